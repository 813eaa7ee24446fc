//! What device handlers compute: run in the tracer's engine, as for the threads of the software GPU.

use crate::support::{compiled_for, plan, staged};
use std::collections::BTreeMap;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::vm::Engine;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::MiniCatalog;
use xputrace_model::context::{WORDS, device, word};
use xputrace_model::plan::{Activity, Detail, DeviceEvent, DeviceWay, DeviceWays, Plan};
use xputrace_model::table::Storage;

/// Both ends of the integers, and values on both sides of the buckets' bounds.
const VALUES: [i64; 12] = [7, 0, -1, 1, 8, 31, 32, 100, -300, 1 << 40, i64::MIN, i64::MAX];

/// An event's words: where the value and its group are.
struct Words {
    n: usize,
    value: usize,
    group: usize,
}

/// Runs a script's first handler over events with each value; returns the bytes of its map's elements.
fn elements(plan: &Plan, words: &Words, map: impl Fn(Storage) -> Option<BpfMapId>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let program = plan.probes[0].program.expect("it is compiled");
    let mut engine = Engine::new(&plan.image, &[program], &mut |_, _| None).expect("the engine takes the program");
    for (n, value) in VALUES.iter().enumerate() {
        let mut ctx = vec![0; words.n];
        (ctx[words.value], ctx[words.group]) = (*value as u64, n as u64 % 2);
        engine.run_words(program, &ctx, &mut ()).expect("no fault");
    }
    let mut found = BTreeMap::new();
    let map = map(plan.tables[0].storage).expect("it has a part there");
    engine.for_each(map, &mut |key, value| _ = found.insert(key.to_vec(), value.to_vec()));
    found
}

#[test]
fn aggregations_are_stored_on_the_gpu_as_in_the_tracer() {
    let on_gpu = Words { n: device::WORDS, value: device::CLOCK, group: device::SMID };
    let in_tracer = Words { n: WORDS, value: word::REGISTERS, group: word::DEVICE };
    let calls = ["count()", "sum(V)", "min(V)", "max(V)", "avg(V)", "stats(V)", "hist(V)", "hist(V, 3)"];
    for call in calls.into_iter().chain(["lhist(V, -20, 100, 8)", "quantiles(V)"]) {
        for key in ["", "[K]"] {
            let script = format!("@m{key}.{call}");
            let filled = |value: &str, group: &str| script.replace('V', value).replace('K', group);
            let device = plan(&format!("device_exit(\"*\", |t| {});", filled("t.clock", "t.smid")));
            let kernel = plan(&format!("kernel(|k| {});", filled("k.registers", "k.device")));
            let (device, kernel) =
                (elements(&device, &on_gpu, Storage::gpu), elements(&kernel, &in_tracer, Storage::tracer));
            assert_eq!(device, kernel, "{script}");
            assert!(!device.is_empty(), "{script}");
        }
    }
}

/// Returns the plan of a script whose programs are started.
fn open_plan(script: &str) -> Plan {
    let wishes = Wishes { chooses_way: true, ..Wishes::default() };
    compile(&staged(script).staged, &MiniCatalog, wishes).0
}

#[test]
fn a_script_that_leaves_the_way_open_says_what_patches_lack() {
    for (beside, lacks) in [
        ("", ""),
        ("kernel(|k| @k.sum(k.duration)); launch(|l| @l.count());", ""),
        ("device_mem(\"b\", #{via: ()}, |t| @m.count());", ""),
        ("memcpy(|c| @c.count());", "`memcpy` needs CUPTI, which can't be used in a process whose kernels are patched"),
        ("wait(|w| @w.count());", "`wait` needs CUPTI, which can't be used in a process whose kernels are patched"),
        (
            "api(\"cuda*\", |a| @a.count());",
            "`api` needs CUPTI, which can't be used in a process whose kernels are patched",
        ),
        ("kernel(|k| @k[k.registers].count());", "nobody tells of these fields where kernels are patched: registers"),
        ("device_exit(\"a\", |t| @e[t.arg1].count());", ""),
        (
            "device_exit(\"a\", |t| @e[t.launch.api].count());",
            "the key of `@e` has a field of the launch that is not known where kernels are patched",
        ),
        ("device_line(\"a\", |t| @m.count());", "patches of machine code don't know source lines"),
        (
            "device_block_end(\"a\", |t| @m.count());",
            "patches of machine code don't know which thread of a block ends last",
        ),
        (
            "device_exit(\"a\", #{stream: 7}, |t| @m.count());",
            "in which stream a launch is isn't known where kernels are patched",
        ),
    ] {
        let script = format!("device_entry(\"a\", |t| @n.count()); {beside}");
        let unpatchable = Some(lacks.to_owned()).filter(|it| !it.is_empty());
        assert_eq!(open_plan(&script).device_ways, DeviceWays::Either { unpatchable }, "{beside}");
        assert_eq!(plan(&script).device_ways, DeviceWays::One(DeviceWay::Twin), "{beside}");
    }
    let said = "device_entry(\"a\", |t| @n.count()); device_exit(\"a\", #{via: \"patch\"}, |t| @n.count());";
    assert_eq!(open_plan(said).device_ways, DeviceWays::One(DeviceWay::Patch));
    assert_eq!(open_plan("kernel(|k| @n.count());").device_ways, DeviceWays::default(), "nothing gets into kernels");
}

#[test]
fn what_patches_may_tell_of_kernels_is_recorded_with_launches() {
    let demand = |script: &str| open_plan(script).demand;
    let with_times = demand("device_entry(\"a\", |t| @n.count()); kernel(|k| @k.count());");
    assert!(with_times.has(Detail::PatchedKernels) && with_times.joins(Activity::Kernel));
    let with_cupti = demand("device_entry(\"a\", |t| @n.count()); kernel(|k| @k.count()); memcpy(|c| @c.count());");
    assert!(!with_cupti.has(Detail::PatchedKernels) && !with_cupti.joins(Activity::Kernel));
}

#[test]
fn the_plan_lists_the_programs_for_kernels() {
    let plan = plan(
        "kernel(|k| @n.count());
         device_entry([\"a\", \"b*\"], |t| @n.count());
         device_exit(\"c\", |t| @n.count());",
    );
    let found = plan.device_handlers().map(|it| (it.place, it.kernels.pattern().text(), it.site.line, it.program));
    let program = |at: usize| plan.probes[at].program;
    let wanted = [
        (DeviceEvent::Entry, "a", 2, program(1)),
        (DeviceEvent::Entry, "b*", 2, program(2)),
        (DeviceEvent::Exit, "c", 3, program(3)),
    ];
    assert_eq!(found.collect::<Vec<_>>(), wanted);
    assert!(wanted.iter().all(|it| it.3.is_some()));
}

/// Returns what is refused of a script that is built as an object.
fn refused_in_objects(script: &str) -> Vec<String> {
    let wishes = Wishes { other_loaders: true, ..Wishes::default() };
    compiled_for(script, wishes).1.into_iter().map(|it| it.message).collect()
}

#[test]
fn objects_carry_handlers_whose_numbers_are_what_they_show() {
    let kept = "device_entry(\"k\", #{per: \"warp\"}, |t| { @a[t.smid, t.arg0].count(); @b.sum(t.clock); @c[t.smid] = t.laneid; });
                device_exit(\"k\", |t| @d[t.threadIdx.x] += 1);
                uprobe(\"libc:malloc\", |e| @max[e.comm].max(e.arg0));";
    assert_eq!(refused_in_objects(kept), [""; 0]);
}

#[test]
fn objects_refuse_what_they_would_show_as_another_number() {
    let said = |script: &str, part: &str| {
        let all = refused_in_objects(script);
        assert!(all.iter().any(|it| it.contains(part)), "{script}: {all:?}");
        assert!(plan(script).image.programs.len() == 1, "{script} runs as a script");
    };
    for (option, name) in [("every: 10", "`every`"), ("stream: 7", "`stream`"), ("via: \"patch\"", "`via`")] {
        let script = format!("device_entry(\"k\", #{{{option}}}, |t| @a.count());");
        said(&script, &format!("an object has no place for {name} of `device_entry`"));
    }
    said("device_entry(\"*\", |t| if t.kernel == \"k\" { @a.count() });", "the handler reads `kernel`");
    said("device_mem(\"*\", |t| if t.access == \"load\" { @a.count() });", "the handler reads `access`");
    said("device_call(\"*\", |t| if t.callee == \"f\" { @a.count() });", "the handler reads `callee`");
    said("device_entry(\"*\", |t| @a[t.launch.tid].count());", "the handler reads `launch.tid`");
    said("device_entry(\"*\", |t| @a[\"x\"].count());", "the key of `@a` has a name");
    said("device_entry(\"*\", |t| print(t.smid));", "the handler calls `print`");
    for kind in ["min", "max", "avg", "stats", "hist", "quantiles"] {
        let script = format!("device_entry(\"*\", |t| @a.{kind}(t.clock));");
        said(&script, &format!("`@a` is a `{kind}()`, which is stored in a form of its own"));
    }
}
