//! What device handlers compute: run in the tracer's engine, as for the threads of the software GPU.

use crate::support::plan;
use std::collections::BTreeMap;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::vm::Engine;
use xputrace_model::context::{WORDS, device, word};
use xputrace_model::plan::{DeviceEvent, Plan};
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

#[test]
fn the_plan_lists_the_programs_for_kernels() {
    let plan = plan(
        "kernel(|k| @n.count());
         device_entry([\"a\", \"b*\"], |t| @n.count());
         device_exit(\"c\", |t| @n.count());",
    );
    let found = plan.device_handlers().map(|it| (it.place, it.kernels.text(), it.site.line, it.program));
    let program = |at: usize| plan.probes[at].program;
    let wanted = [
        (DeviceEvent::Entry, "a", 2, program(1)),
        (DeviceEvent::Entry, "b*", 2, program(2)),
        (DeviceEvent::Exit, "c", 3, program(3)),
    ];
    assert_eq!(found.collect::<Vec<_>>(), wanted);
    assert!(wanted.iter().all(|it| it.3.is_some()));
}
