//! aya loads and attaches the objects that `build --uprobe single` writes for CPU probes.

use aya::Ebpf;
use aya::maps::PerCpuHashMap;
use aya::programs::UProbe;
use aya::programs::uprobe::UProbeScope;
use std::process::Command;
use xputrace_tests::{need_root, xputrace};

const CALLS: u64 = 250;

#[test]
fn aya_loads_an_object_and_attaches_its_uprobe() {
    need_root!();
    let directory = tempfile::tempdir().unwrap();
    let object = directory.path().join("calls.bpf.o");
    let script = r#"uprobe("libc:getppid", #{scope: "system"}, |e| @n[e.pid].count());
                    tracepoint("sched:sched_switch", |e| @switches[e.prev_comm].count());
                    profile(99.hz, |e| @cpu[e.ustack].count());"#;
    let mut build = Command::new(xputrace());
    build.args(["build", "--uprobe", "single", "-e", script, "-o"]).arg(&object);
    assert!(build.output().unwrap().status.success());
    let mut loaded = Ebpf::load_file(&object).unwrap();
    let probe: &mut UProbe = loaded.program_mut("uprobe_0").unwrap().try_into().unwrap();
    probe.load().unwrap();
    probe.attach("getppid", "libc", UProbeScope::CallingProcess).unwrap();
    for _ in 0..CALLS {
        let _ = std::os::unix::process::parent_id();
    }
    let map: PerCpuHashMap<_, u64, u64> = loaded.map("n_0k").unwrap().try_into().unwrap();
    let counts = map.get(&u64::from(std::process::id()), 0).unwrap();
    assert_eq!(counts.iter().sum::<u64>(), CALLS);
}
