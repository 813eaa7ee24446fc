//! Device handlers: on the software GPU they run over kernels' records, once per thread; on a real GPU they are counted.

mod common;

use common::*;
use std::sync::Arc;
use xputrace_bytecode::ProgramId;
use xputrace_model::context::GpuContext;
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::Loss;
use xputrace_model::object::{DirectLaunch, LaunchShape, Object};
use xputrace_model::output::Output;
use xputrace_model::plan::{
    Activity, Demand, DeviceEvent, KernelPattern, LaunchFilter, MapAction, PatternOfHandler, Plan, Probe, ProbeId,
    ProbePlace, Switch, SwitchId,
};
use xputrace_model::table::{Cell, TableId, Value};
use xputrace_pipeline::{HandlerState, Outputs, Pipeline, ProcessInfo, Sink};
use xputrace_wire::device::Sampled;
use xputrace_wire::record::{Kernel, Launch};

/// A run of `KERNEL_A`, `a<int>`, from 100 to 200.
fn shaped(grid: [u32; 3], block: [u32; 3]) -> Kernel {
    Kernel { grid, block, ..kernel(1, 100, 200) }
}

/// Runs a plan over a kernel of a process with such a GPU.
fn ran(plan: Plan, gpu: GpuKind, kernel: Kernel) -> Pipeline {
    let mut pipeline = Pipeline::new(Arc::new(plan), demangle, &mut |_, _| None).unwrap();
    let process = pipeline.add_process(ProcessInfo { pid: 100, gpu, ..Default::default() });
    pipeline.feed(process, &[Ring::default().names().clock(1).kernel(kernel).0], &mut Recorder::default());
    pipeline.finish(&mut Recorder::default());
    pipeline
}

/// Returns the rows as name, thread, time and count.
fn counts(pipeline: &mut Pipeline) -> Vec<(String, i64, i64, i64)> {
    let row = |(key, cell): (Vec<Value>, Cell)| match (&key[..], cell) {
        ([Value::Str(name), Value::Int(thread), Value::Int(time)], Cell::Number(n)) => {
            (name.to_string(), *thread, *time, n)
        }
        other => panic!("{other:?}"),
    };
    rows(pipeline, 0, true).into_iter().map(row).collect()
}

/// A run that is over as soon as it was asked so often.
struct OverAfter(std::cell::Cell<u32>);

impl Outputs for OverAfter {
    fn output(&mut self, _: Output) {}
    fn map(&mut self, _: TableId, _: MapAction) {}
    fn exit(&mut self, _: i64) {}
    fn is_over(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left == 0
    }
}

impl Sink for OverAfter {
    fn interpret(&mut self, _: ProbeId, _: &GpuContext, _: &mut HandlerState) {}
}

#[test]
fn a_launch_ends_with_the_run() {
    for (n_asked, grid, n_ran) in [(3, 1 << 20, 3), (100, 5, 5)] {
        let mut plan = device_plan(DeviceEvent::Exit, "direct");
        let shape = LaunchShape { grid: [grid, 1, 1], block: [1; 3] };
        let launches = vec![DirectLaunch { probe: ProbeId(0), program: ProgramId(0), shape }];
        plan.object = Some(Arc::new(Object { launches, with_context: vec![ProgramId(0)], ..Default::default() }));
        let mut pipeline = Pipeline::new(Arc::new(plan), demangle, &mut |_, _| None).unwrap();
        pipeline.run_launches(100, 7, &mut OverAfter(n_asked.into()));
        let n: i64 = counts(&mut pipeline).iter().map(|it| it.3).sum();
        assert_eq!(n, n_ran);
    }
}

#[test]
fn each_thread_of_a_kernel_that_matches_by_any_name_runs_it() {
    for pattern in ["a<int>", "a", "*", "?"] {
        let mut pipeline =
            ran(device_plan(DeviceEvent::Exit, pattern), GpuKind::Software, shaped([3, 1, 2], [2, 5, 1]));
        let of = |thread| ("a<int>".to_owned(), thread, 200, 30);
        assert_eq!(counts(&mut pipeline), [of(0), of(1)], "{pattern}");
        assert_eq!(pipeline.losses().iter().count(), 0);
    }
    for pattern in ["b", "a<float>", "aa", ""] {
        let mut pipeline =
            ran(device_plan(DeviceEvent::Exit, pattern), GpuKind::Software, shaped([1, 1, 1], [2, 1, 1]));
        assert_eq!(counts(&mut pipeline), [], "{pattern}");
    }
}

#[test]
fn a_pattern_that_no_kernel_matched_is_known_once_there_were_kernels() {
    for gpu in [GpuKind::Software, GpuKind::Real] {
        let unmatched = |pattern| {
            let ran = ran(device_plan(DeviceEvent::Exit, pattern), gpu, shaped([1, 1, 1], [1, 1, 1]));
            ran.unmatched_device_probes().len()
        };
        assert_eq!(["a", "a<int>", "*", "b", "A"].map(unmatched), [0, 0, 0, 1, 1], "{gpu:?}");
    }
    let pipeline = Pipeline::new(Arc::new(device_plan(DeviceEvent::Exit, "b")), demangle, &mut |_, _| None).unwrap();
    assert_eq!(pipeline.unmatched_device_probes(), []);
}

#[test]
fn a_pattern_has_matched_a_kernel_that_another_of_its_handler_has() {
    let mut plan = device_plan(DeviceEvent::Exit, "");
    let probe = plan.probes.remove(0);
    let patterns = PatternOfHandler::each(["a", "a*", "b", "a"].map(KernelPattern::new));
    plan.probes.extend(patterns.into_iter().map(|it| Probe { target: ProbePlace::Kernels(it), ..probe.clone() }));
    let mut ran = ran(plan, GpuKind::Software, shaped([1, 1, 1], [1, 1, 1]));
    assert_eq!(counts(&mut ran).len(), 1);
    assert_eq!(ran.unmatched_device_probes(), [ProbeId(2)]);
}

#[test]
fn an_entry_is_at_the_kernels_start() {
    let mut pipeline = ran(device_plan(DeviceEvent::Entry, "a"), GpuKind::Software, shaped([1, 1, 1], [1, 1, 1]));
    assert_eq!(counts(&mut pipeline), [("a<int>".to_owned(), 0, 100, 1)]);
}

#[test]
fn a_kernel_of_a_real_gpu_is_counted_instead() {
    for gpu in [GpuKind::Real, GpuKind::None] {
        let mut pipeline = ran(device_plan(DeviceEvent::Exit, "a"), gpu, shaped([1, 1, 1], [64, 1, 1]));
        assert_eq!(counts(&mut pipeline), []);
        assert_eq!((pipeline.losses().of(Loss::DeviceUnprobed), pipeline.losses().iter().count()), (1, 1));
        let other = ran(device_plan(DeviceEvent::Exit, "b"), gpu, shaped([1, 1, 1], [64, 1, 1]));
        assert_eq!(other.losses().iter().count(), 0);
    }
}

#[test]
fn threads_beyond_the_limit_are_counted() {
    let kernel = shaped([1 << 10, 1, 3], [1 << 10, 1, 1]);
    let mut pipeline = ran(device_plan(DeviceEvent::Exit, "a"), GpuKind::Software, kernel);
    let total: i64 = counts(&mut pipeline).iter().map(|it| it.3).sum();
    assert_eq!((total, pipeline.losses().of(Loss::DeviceThreadSkipped)), (1 << 20, 2 << 20));
}

#[test]
fn a_process_can_not_have_handlers_run_for_ever() {
    let mut plan = device_plan(DeviceEvent::Exit, "a");
    let once_more = plan.probes[0].clone();
    plan.probes.resize(20, once_more);
    let kernel = shaped([1 << 10, 1, 1], [1 << 10, 1, 1]);
    let mut pipeline = ran(plan, GpuKind::Software, kernel);
    let total: i64 = counts(&mut pipeline).iter().map(|it| it.3).sum();
    assert_eq!((total, pipeline.losses().of(Loss::DeviceThreadSkipped)), (16 << 20, 4 << 20));
}

#[test]
fn a_handler_that_is_switched_off_runs_in_no_thread() {
    let mut plan = device_plan(DeviceEvent::Exit, "a");
    plan.probes[0].switch = Some(SwitchId(0));
    plan.switches = vec![Switch {
        declared: 0,
        name: "device_exit:a".into(),
        begins_on: false,
        is_turned_elsewhere: true,
        demand: plan.demand,
        site: Default::default(),
    }];
    let mut pipeline = ran(plan, GpuKind::Software, shaped([1, 1, 1], [64, 1, 1]));
    assert_eq!(counts(&mut pipeline), []);
}

/// Runs a plan over kernels of a process with such a GPU, which has twins of some; returns the threads that ran.
fn ran_all(plan: Plan, gpu: GpuKind, twins: &[&str], kernels: &[Kernel]) -> (Pipeline, i64) {
    let mut pipeline = Pipeline::new(Arc::new(plan), demangle, &mut |_, _| None).unwrap();
    let process = pipeline.add_process(ProcessInfo { pid: 100, gpu, ..Default::default() });
    pipeline.has_twins(process, twins.iter().copied());
    let ring = kernels.iter().fold(Ring::default().names().clock(1), |ring, it| ring.kernel(*it));
    pipeline.feed(process, &[ring.0], &mut Recorder::default());
    pipeline.finish(&mut Recorder::default());
    let n = counts(&mut pipeline).iter().map(|it| it.3).sum();
    (pipeline, n)
}

#[test]
fn every_nth_launch_of_each_kernel_is_chosen() {
    let mut plan = device_plan(DeviceEvent::Exit, "*");
    plan.probes[0].launches = LaunchFilter { every: 3, tag: None, stream: None };
    // Four of the one kernel, and seven of the other, in turn at first.
    let of = |n: u64| {
        let symbol = if n < 8 && n.is_multiple_of(2) { KERNEL_A } else { KERNEL_B };
        Kernel { symbol, grid: [1; 3], block: [2, 1, 1], ..kernel(n as u32, 100 + n, 101 + n) }
    };
    let kernels: Vec<Kernel> = (0..11).map(of).collect();
    let (pipeline, n) = ran_all(plan.clone(), GpuKind::Software, &[], &kernels);
    assert_eq!(n, 2 * (2 + 3));
    assert_eq!(pipeline.sampled().map(|it| it.1).collect::<Vec<_>>(), [Sampled { met: 11, chosen: 5 }]);
    // On a real GPU, the collector chooses for those that have twins, and counts which could not run them.
    let (mut pipeline, _) = ran_all(plan, GpuKind::Real, &["b"], &kernels);
    assert_eq!(pipeline.losses().of(Loss::DeviceUnprobed), 2);
    pipeline.add_sampled(0, Sampled { met: 7, chosen: 3 }, 1);
    pipeline.add_sampled(1, Sampled { met: 7, chosen: 3 }, 1);
    assert_eq!(pipeline.losses().of(Loss::DeviceUnprobed), 3);
    assert_eq!(pipeline.sampled().map(|it| it.1).collect::<Vec<_>>(), [Sampled { met: 11, chosen: 5 }]);
}

#[test]
fn launches_are_chosen_by_their_tag() {
    let mut plan = device_plan(DeviceEvent::Exit, "a");
    plan.probes[0].launches = LaunchFilter { every: 2, tag: Some(-7), stream: None };
    plan.demand = Demand { calls: Activity::Kernel.causes(), ..plan.demand };
    let tags = [None, Some(-7), Some(7), Some(-7), Some(0), Some(-7)];
    let mut ring = Ring::default().names().clock(1);
    for (n, tag) in (1..).zip(tags) {
        let flags = if tag.is_some() { Launch::TAGGED } else { 0 };
        let launch = Launch { tag: tag.unwrap_or(-7), flags, ..launch(n, 50 + u64::from(n)) };
        let kernel = Kernel { grid: [1; 3], block: [1; 3], ..kernel(n, 100 + u64::from(n), 200) };
        ring = ring.launch(launch).kernel(kernel);
    }
    let mut pipeline = Pipeline::new(Arc::new(plan), demangle, &mut |_, _| None).unwrap();
    let process = pipeline.add_process(ProcessInfo { pid: 100, gpu: GpuKind::Software, ..Default::default() });
    pipeline.feed(process, &[ring.0], &mut Recorder::default());
    pipeline.finish(&mut Recorder::default());
    assert_eq!(pipeline.sampled().map(|it| it.1).collect::<Vec<_>>(), [Sampled { met: 3, chosen: 2 }]);
    assert_eq!(counts(&mut pipeline).iter().map(|it| it.3).sum::<i64>(), 2);
}
