//! Records and device memory of targets, in the tracer's pipeline.

use super::{joined, parts};
use crate::harness::{Bound, Target};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use xputrace_bytecode::BpfMapId;
use xputrace_compiler::{Wishes, compile};
use xputrace_device::arena::{Arena, Needs};
use xputrace_device::layout::ring::{MARK_BYTES, SLOT_BYTES};
use xputrace_device::{DeviceMap, RecordKind, Scope, Storage};
use xputrace_model::catalog::MiniCatalog;
use xputrace_model::context::GpuContext;
use xputrace_model::diagnostic::{Severity, Site, SourceFile};
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::Loss;
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::plan::{MapAction, Plan, ProbeId};
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::TableId;
use xputrace_pipeline::{
    DeviceLayout, DeviceSite, EngineMaps, HandlerState, Limits, Outputs, Pipeline, ProcessIndex, ProcessInfo, Sink,
};
use xputrace_render::{Context, json, text};
use xputrace_replay::ReplaySink;
use xputrace_script::{BundledLoader, load, scripts};
use xputrace_wire::device::DeviceCopy;

/// The pipeline keeps a bounded number of everything; its engine has its maps from the start.
const BOUND: Bound = Bound { bytes: 256 << 20, per_byte: 256 };

pub(super) const TARGETS: &[Target] = &[
    Target { name: "pipeline", read: pipeline, seeds: drains, words: &[], bound: BOUND },
    Target {
        name: "device_memory",
        read: device_memory,
        seeds: blocks,
        words: &["%s %d %llu\0", "%-20.5f"],
        bound: BOUND,
    },
];

/// A script that reads most of what the pipeline keeps.
const EVERYTHING: &str = r#"
kernel(|k| @time[k.name, k.launch.tid, k.launch.tag].sum(k.duration));
kernel(|k| @stack[k.launch.stack, k.stream, k.gpu].count());
memcpy(|m| @copied[m.kind, m.launch.name].sum(m.bytes));
memset(|m| @set[m.stream] = m.bytes);
graph(|g| @graphs[g.name].avg(g.duration));
launch(|l| @launched[l.name, l.comm].hist(l.duration));
"#;

/// The plans of the bundled scripts, and of one more, that need no handler in Linux.
pub(super) fn plans() -> &'static [Arc<Plan>] {
    static PLANS: LazyLock<Vec<Arc<Plan>>> = LazyLock::new(|| {
        let bundled = scripts().iter().map(|it| it.text.to_owned());
        let lines = EVERYTHING.lines().filter(|it| !it.is_empty()).map(str::to_owned);
        let all: Vec<_> = bundled.chain(lines).filter_map(|it| plan(&it)).collect();
        assert!(all.len() > 10, "{} scripts compile", all.len());
        all
    });
    &PLANS
}

fn plan(script: &str) -> Option<Arc<Plan>> {
    let source = SourceFile { name: "script.rhai".into(), text: script.into() };
    let loaded = load(source, &[], Rc::new(BundledLoader));
    let (plan, diagnostics) = compile(&loaded.staged, &MiniCatalog, Wishes::default());
    let is_error = |it: &xputrace_model::diagnostic::Diagnostic| it.severity == Severity::Error;
    let has_errors = diagnostics.iter().chain(&loaded.diagnostics).any(is_error);
    (!has_errors).then(|| Arc::new(plan))
}

/// As the tracer has it, from the crate with symbols.
pub(super) fn demangle(symbol: &str) -> (String, String) {
    let it = xputrace_symbols::demangle(symbol);
    (it.name, it.short_name)
}

/// Takes everything.
#[derive(Default)]
pub(super) struct Nobody {
    exited: bool,
}

impl Outputs for Nobody {
    fn output(&mut self, _: Output) {}
    fn map(&mut self, _: TableId, _: MapAction) {}
    fn exit(&mut self, _: i64) {
        self.exited = true;
    }
    fn is_over(&self) -> bool {
        self.exited
    }
}

impl Sink for Nobody {
    fn interpret(&mut self, _: ProbeId, _: &GpuContext, _: &mut HandlerState) {}
}

impl ReplaySink for Nobody {}

/// Feeds parts: the first chooses a plan and whether limits are small; an empty one ends a drain, others are rings.
fn pipeline(input: &[u8]) {
    let parts = parts(input);
    let Some((choice, rest)) = parts.split_first() else { return };
    let byte = |at: usize| choice.get(at).copied().unwrap_or(0);
    let plans = plans();
    let plan = plans[usize::from(byte(0)) % plans.len()].clone();
    let Ok(mut pipeline) = Pipeline::new(plan.clone(), demangle, &mut |_, _| None) else { return };
    if byte(1) & 1 != 0 {
        pipeline =
            pipeline.with_limits(Limits { pending_launches: 4, graph_launches: 2, buffered_events: 8, orphans: 2 });
    }
    let gpu = if byte(1) & 2 != 0 { GpuKind::Software } else { GpuKind::Real };
    let process = pipeline.add_process(ProcessInfo { pid: 100, comm: "app".into(), gpu, ..ProcessInfo::default() });
    let sink = &mut Nobody::default();
    for drain in rest.split(|it| it.is_empty()) {
        let rings: Vec<Vec<u8>> = drain.iter().map(|it| it.to_vec()).collect();
        pipeline.feed(process, &rings, sink);
        let _ = (pipeline.waiting(), pipeline.in_flight(), pipeline.may_lack_activities(process));
    }
    pipeline.finish(sink);
    let _ = (pipeline.account(), pipeline.losses(), pipeline.lost_by_name(), pipeline.busy_nanos());
    read_tables(&mut pipeline, &plan);
}

/// Reads all tables, and shows them.
fn read_tables(pipeline: &mut Pipeline, plan: &Plan) {
    let mut store = xputrace_store::Store::new(plan, false);
    for table in 0..plan.tables.len() as u32 {
        let (engine, names) = pipeline.state_mut().maps();
        let table = store.with(None::<EngineMaps<'_>>, engine, names).snapshot(TableId(table));
        let output = Output::Table(View { table: Arc::new(table), top: Some(9) });
        let mut context = Context { names: &mut NoNames, sources: &plan.sources, tables: &plan.tables, width: 80 };
        let _ = text(&mut Vec::new(), &output, &mut context).and(json(&mut Vec::new(), &output, &mut context));
    }
}

/// Knows no stack.
struct NoNames;

impl StackNames for NoNames {
    fn frames(&mut self, _: StackKey) -> Option<Frames> {
        None
    }
}

fn drains() -> Vec<Vec<u8>> {
    let rings = super::recordings::rings();
    let of = |n: usize| {
        let choice = [n as u8, n as u8 / 3];
        let some = rings.iter().cycle().skip(n * 3).take(4).map(Vec::as_slice);
        let drains = some.flat_map(|it| [it, &[]]);
        joined(std::iter::once(&choice[..]).chain(drains))
    };
    (0..plans().len().max(rings.len() / 3)).map(of).collect()
}

const RING_SLOTS: u32 = 16;

/// A layout with maps of each kind and a ring.
fn layout() -> Arc<DeviceLayout> {
    let map = |kind, key_bytes, scope| DeviceMap { kind, key_bytes, value_bytes: 8, max_entries: 4, parts: 2, scope };
    let maps = vec![
        map(Storage::Array, 4, Scope::Device),
        map(Storage::Hash, 16, Scope::Device),
        DeviceMap { parts: 1, ..map(Storage::PerThreadArray, 4, Scope::Device) },
    ];
    let needs = Needs { maps: maps.clone(), n_sites: 4, ring_slots: RING_SLOTS, n_threads: 4 };
    let arena = Arena::new(needs).expect("it is small");
    let site = |record| DeviceSite { loss: Some(Loss::InstructionLimit), record, at: Site::default() };
    let kinds = [None, Some(RecordKind::Format), Some(RecordKind::Text), Some(RecordKind::Data(BpfMapId(0)))];
    Arc::new(DeviceLayout { maps, arena, sites: kinds.map(site).to_vec() })
}

/// Reads parts, each a copy of a context's block; their first byte says of which one, and whether it is the last.
fn device_memory(input: &[u8]) {
    let plans = plans();
    let device = plans.iter().filter(|it| it.device_handlers().next().is_some()).chain(plans);
    for plan in device.take(2) {
        let Ok(mut pipeline) = Pipeline::new(plan.clone(), demangle, &mut |_, _| None) else { return };
        let process = pipeline.add_process(ProcessInfo { pid: 100, gpu: GpuKind::Real, ..ProcessInfo::default() });
        let state = pipeline.state_mut();
        state.set_device_layout(layout());
        for part in parts(input) {
            let Some((choice, block)) = part.split_first() else { continue };
            let copy = DeviceCopy {
                slot: usize::from(choice & 3),
                context: 1,
                is_last: choice & 4 != 0,
                block: block.to_vec(),
            };
            let read = state.ingest_device_records(process, std::slice::from_ref(&copy), &mut Nobody::default());
            assert!(read.iter().all(|it| it.slot == copy.slot));
            state.set_device_memory(ProcessIndex(u32::from(choice >> 7)), vec![copy]);
            let _ = state.handler_losses();
        }
        (0..3).for_each(|map| state.for_each_element(BpfMapId(map), &mut |_, _| {}));
        state.end_device_memory(process);
        (0..3).for_each(|map| state.for_each_element(BpfMapId(map), &mut |_, _| {}));
        read_tables(&mut pipeline, plan);
    }
}

/// Blocks with records of each site.
fn blocks() -> Vec<Vec<u8>> {
    let layout = layout();
    let block = |n_records: u64| {
        let mut block = layout.arena.table();
        block.resize(layout.arena.n_bytes() as usize, 0);
        let mut put = |at: u64, word: u64| block[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        let (slots, marks) = layout.arena.ring_parts();
        for position in 0..n_records {
            let index = position % u64::from(RING_SLOTS);
            let slot = slots.start + index * u64::from(SLOT_BYTES);
            put(slot, (24 << 32) + position % 4);
            put(slot + 8, position);
            put(slot + 16, u64::from_le_bytes(*b"%d %s %x"));
            put(marks.start + index * u64::from(MARK_BYTES), position + 1);
        }
        put(layout.arena.ring_words().0, n_records);
        block
    };
    let part = |choice: u8, n| [&[choice][..], &block(n)].concat();
    let copies = [part(0, 3), part(1, 7), part(0, 9), part(4, 40)];
    vec![joined(copies.iter().map(Vec::as_slice)), joined([&copies[1][..]]), joined([&copies[3][..]])]
}
