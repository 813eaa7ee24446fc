//! Other loaders take the objects that `build` writes: aya, the newest libbpf, that of the system (1.1 in
//! Debian 12), and bpftool.

use aya::Ebpf;
use aya::maps::PerCpuHashMap;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::uprobe::UProbeScope;
use aya::programs::{PerfEvent, Program, TracePoint, UProbe};
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_tests::{need_root, program, skip, xputrace};

const CALLS: u64 = 250;

/// Every kind of handler. Those of the GPU are in the object too, where loaders pass over them.
const EVERY_KIND: &str = r#"
    uprobe("libc:getppid", |e| @entered[e.pid].count());
    uretprobe("libc:getppid", |e| @returned[e.pid].count());
    uretprobe("libc:getppid", |e| @took[e.pid].max(e.duration));
    uprobe("libc:getpp*", |e| @by_pattern[e.pid].count());
    tracepoint("sched:sched_switch", |e| @switches[e.prev_pid].count());
    profile(99.hz, |e| @cpu[e.ustack].count());
    kernel(|k| @time[k.name].sum(k.duration));
    launch(|l| @calls[l.api, l.ustack].count());
    device_exit("vectorAdd", |t| @left[t.threadIdx.x].count());
    interval(1.s, || print(@entered));
"#;

/// An object of this script, in a directory that goes with it.
struct Built {
    directory: tempfile::TempDir,
}

impl Built {
    fn new(script: &str, options: &[&str]) -> Self {
        let built = Built { directory: tempfile::tempdir().unwrap() };
        let mut build = Command::new(xputrace());
        let done = build.arg("build").args(options).args(["-e", script, "-o"]).arg(built.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        built
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("it.bpf.o")
    }
}

/// The tests are threads of one process: only one may call what all probe.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn call() {
    for _ in 0..CALLS {
        let _ = std::os::unix::process::parent_id();
    }
}

/// Our key in maps by process.
fn own_key() -> u64 {
    std::process::id().into()
}

/// Returns a map's name in the object: it begins with the script's, and Linux's part ends with a `k`.
fn linux_part<'a>(names: impl IntoIterator<Item = &'a str>, of: &str) -> Option<&'a str> {
    names.into_iter().find(|it| it.starts_with(&format!("{of}_")) && it.ends_with('k'))
}

#[test]
fn aya_loads_every_program_and_attaches_them() {
    need_root!();
    let _alone = alone();
    let mut loaded = Ebpf::load_file(Built::new(EVERY_KIND, &[]).path()).unwrap();
    let mut kinds = Vec::new();
    for (name, program) in loaded.programs_mut() {
        match program {
            Program::UProbe(it) => attach_uprobe(it),
            Program::TracePoint(it) => attach_tracepoint(it),
            Program::PerfEvent(it) => attach_sampler(it),
            _ => panic!("{name} is of a kind that is not attached here"),
        }
        kinds.push(name.split('_').next().unwrap_or_default().to_owned());
    }
    kinds.sort();
    assert_eq!(kinds, ["entry", "profile", "tracepoint", "uprobe", "uprobe", "uretprobe", "uretprobe"]);
    call();
    for map in ["entered", "returned", "by_pattern"] {
        let names: Vec<&str> = loaded.maps().map(|it| it.0).collect();
        let name = linux_part(names, map).unwrap().to_owned();
        let counts: PerCpuHashMap<_, u64, u64> = loaded.map(&name).unwrap().try_into().unwrap();
        assert_eq!(
            counts.get(&own_key(), 0).unwrap_or_else(|it| panic!("{name}: {it}")).iter().sum::<u64>(),
            CALLS,
            "{name}"
        );
    }
}

fn attach_uprobe(probe: &mut UProbe) {
    probe.load().unwrap();
    probe.attach("getppid", "libc", UProbeScope::CallingProcess).unwrap();
}

fn attach_tracepoint(probe: &mut TracePoint) {
    probe.load().unwrap();
    probe.attach("sched", "sched_switch").unwrap();
}

fn attach_sampler(probe: &mut PerfEvent) {
    probe.load().unwrap();
    let scope = PerfEventScope::CallingProcess { cpu: None };
    probe
        .attach(PerfEventConfig::Software(SoftwareEvent::CpuClock), scope, SamplePolicy::Frequency(99), false)
        .unwrap();
}

/// Attaches what libbpf attaches by the section's name; returns the object with its links.
fn attached(path: &Path) -> (Object, Vec<libbpf_rs::Link>) {
    let object = ObjectBuilder::default().open_file(path).unwrap().load().unwrap();
    let by_name = |it: &libbpf_rs::ProgramMut<'_>| !it.section().to_string_lossy().starts_with("perf_event");
    let links = object.progs_mut().filter(by_name).filter_map(|it| it.attach().ok()).collect();
    (object, links)
}

fn sum(object: &Object, map: &str) -> u64 {
    let maps: Vec<_> = object.maps().collect();
    let names: Vec<String> = maps.iter().map(|it| it.name().to_string_lossy().into_owned()).collect();
    let name = linux_part(names.iter().map(String::as_str), map).unwrap();
    let map = maps.iter().find(|it| it.name() == name).unwrap();
    let values = map.lookup_percpu(&own_key().to_ne_bytes(), MapFlags::ANY).unwrap().unwrap_or_default();
    values.iter().map(|it| u64::from_ne_bytes(it[..8].try_into().unwrap())).sum()
}

#[test]
fn the_newest_libbpf_attaches_by_the_names_of_sections() {
    need_root!();
    let _alone = alone();
    let built = Built::new(EVERY_KIND, &[]);
    let (object, links) = attached(&built.path());
    call();
    assert_eq!((sum(&object, "entered"), sum(&object, "returned")), (CALLS, CALLS));
    // All but the sampler, and the pattern, for which there is no single place.
    assert_eq!(links.len(), 5);
}

#[test]
fn the_newest_libbpf_attaches_patterns_if_the_object_is_for_it() {
    need_root!();
    let _alone = alone();
    let built = Built::new(EVERY_KIND, &["--loader", "libbpf"]);
    let (object, links) = attached(&built.path());
    call();
    assert_eq!((sum(&object, "entered"), sum(&object, "by_pattern"), links.len()), (CALLS, CALLS, 6));
    let is_for_gpu = |it: &libbpf_rs::Program<'_>| it.section() == "syscall";
    assert_eq!(object.progs().filter(is_for_gpu).count(), 2, "handlers of `kernel` and `launch` are loaded");
}

/// Debian 12 has libbpf 1.1.
#[test]
fn the_systems_libbpf_attaches_by_the_names_of_sections() {
    need_root!();
    if !Path::new("/usr/include/bpf/libbpf.h").exists() {
        skip!("no libbpf-dev");
    }
    let built = Built::new(EVERY_KIND, &[]);
    let mut loads = Command::new(program("loads"));
    let done = loads.arg(built.path()).arg(CALLS.to_string()).args(["entered_", "returned_"]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}");
    assert!(said.contains(": 7 loaded, 5 attached\n"), "{said}");
    assert!(said.contains(&format!("entered_ {CALLS}\nreturned_ {CALLS}\n")), "{said}");
}

/// Pins below bpffs, which go with this.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bpftool_loads_and_pins_every_program() {
    need_root!();
    let built = Built::new(EVERY_KIND, &[]);
    let pins = Pins(format!("/sys/fs/bpf/xputrace-objects-{}", std::process::id()).into());
    let bpftool =
        |name: &&str| Command::new(name).args(["prog", "loadall"]).arg(built.path()).arg(&pins.0).output().ok();
    let Some(done) = ["bpftool", "/usr/sbin/bpftool"].iter().find_map(bpftool) else { skip!("no bpftool") };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(std::fs::read_dir(&pins.0).unwrap().count(), 7);
}
