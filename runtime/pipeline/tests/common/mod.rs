//! A small plan, and synthetic rings for it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::sync::Arc;
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, Image, MapKind, MapSpec, Program, ProgramId, ProgramKind, helper};
use xputrace_model::context::{GpuContext, device, word};
use xputrace_model::output::{Output, Piece};
use xputrace_model::plan::{
    Activities, Activity, Calls, Demand, DeviceEvent, KernelPattern, MapAction, PatternOfHandler, Place, Plan, Probe,
    ProbeId, ProbePlace, ProbeScope,
};
use xputrace_model::schema::{Event, Unit};
use xputrace_model::table::{Cell, Key, KeyPart, Scalar, Storage, TableDef, TableId, TableKind};
use xputrace_pipeline::{EngineMaps, HandlerState, Outputs, Pipeline, ProcessInfo, Sink};
use xputrace_store::Store;
use xputrace_wire::events::Realtime;
use xputrace_wire::record::{
    self, Clock, Flush, Graph, Kernel, Launch, Memcpy, Memset, Name, Node, NodeUpdate, Yield, kind,
};

/// REALTIME − MONOTONIC in all synthetic rings.
pub const OFFSET: u64 = 1_000_000_000_000;
/// Name ids: two kernels, a call.
pub const KERNEL_A: u32 = 1;
pub const KERNEL_B: u32 = 2;
pub const API: u32 = 3;

/// Creates a program for `map[ctx[keys]…] += ctx[value]`, or `+= 1` without a value.
pub fn add_to_map(name: &str, map: BpfMapId, keys: &[usize], value: Option<usize>) -> Program {
    let mut asm = Assembler::new();
    let key_at = -8 * keys.len() as i16;
    let zero_at = key_at - 8;
    asm.mov(Reg::R6, Reg::R1);
    for (i, key) in keys.iter().enumerate() {
        asm.ldx(Size::Dw, Reg::R2, Reg::R6, (*key * 8) as i16);
        asm.stx(Size::Dw, Reg::FP, key_at + 8 * i as i16, Reg::R2);
    }
    let (have, out) = (asm.label(), asm.label());
    let lookup = |asm: &mut Assembler| {
        asm.ld_map(Reg::R1, map);
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, key_at.into());
        asm.call(helper::MAP_LOOKUP_ELEM);
    };
    lookup(&mut asm);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, have);
    asm.st_imm(Size::Dw, Reg::FP, zero_at, 0);
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, key_at.into());
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, zero_at.into());
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    lookup(&mut asm);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.place(have);
    match value {
        Some(at) => asm.ldx(Size::Dw, Reg::R1, Reg::R6, (at * 8) as i16),
        None => asm.mov_imm(Reg::R1, 1),
    }
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    program(name, ProgramKind::Syscall, asm)
}

pub fn program(name: &str, kind: ProgramKind, asm: Assembler) -> Program {
    let it = asm.finish().unwrap();
    Program { name: name.into(), kind, insns: it.insns, map_refs: it.map_refs, lines: it.lines }
}

pub fn hash(name: &str, key_size: u32, home: Home) -> MapSpec {
    MapSpec {
        name: name.into(),
        kind: MapKind::Hash,
        key_size,
        value_size: 8,
        max_entries: 65_536,
        flags: 0,
        home,
        inner: None,
    }
}

pub fn key(kind: Scalar) -> KeyPart {
    KeyPart { kind, optional: false, unit: Unit::None }
}

pub fn table(name: &str, keys: Vec<KeyPart>, kind: TableKind, map: BpfMapId) -> Arc<TableDef> {
    Arc::new(TableDef {
        name: name.into(),
        keys,
        kind,
        unit: Unit::Nanos,
        capacity: 65_536,
        evict: false,
        storage: Storage::Tracer(map),
    })
}

pub fn probe(event: Event, place: Place, program: Option<ProgramId>) -> Probe {
    Probe { program, scope: ProbeScope::Process, sees_unjoined: true, ..Probe::of(event, place) }
}

/// `kernel(|k| @time[k.name, k.launch.tid, joined].sum(k.duration))`, `kernel(interpret(…))`.
pub fn kernel_plan() -> Plan {
    let keys = [word::NAME, word::LAUNCH_TID, word::JOINED];
    Plan {
        image: Image {
            maps: vec![hash("time", 24, Home::Tracer)],
            programs: vec![add_to_map("time", BpfMapId(0), &keys, Some(word::DURATION))],
            sources: Vec::new(),
        },
        tables: vec![table(
            "@time",
            vec![key(Scalar::Name), key(Scalar::Int), key(Scalar::Int)],
            TableKind::Sum,
            BpfMapId(0),
        )],
        probes: vec![
            probe(Event::KERNEL, Place::Tracer, Some(ProgramId(0))),
            probe(Event::KERNEL, Place::Interpreter, None),
        ],
        strings: vec!["".into()],
        demand: Demand {
            calls: Calls::LAUNCHES,
            activities: Activities::of(&[Activity::Kernel]),
            ..Default::default()
        },
        ..Default::default()
    }
}

/// `device_exit(pattern, |t| @n[t.kernel, t.threadIdx.x, t.time].count())`, or at the entry.
pub fn device_plan(place: DeviceEvent, pattern: &str) -> Plan {
    let keys = [device::KERNEL, device::THREAD, device::TIME];
    let parts = vec![key(Scalar::Name), key(Scalar::Int), key(Scalar::Int)];
    let table =
        TableDef { storage: Storage::Gpu(BpfMapId(0)), ..(*table("@n", parts, TableKind::Count, BpfMapId(0))).clone() };
    let handler = Probe {
        name: format!("{}:{pattern}", place.name()),
        target: ProbePlace::Kernels(PatternOfHandler::only(KernelPattern::new(pattern))),
        ..probe(Event::Device(place), Place::Gpu, Some(ProgramId(0)))
    };
    Plan {
        image: Image {
            maps: vec![hash("n", 24, Home::Gpu)],
            programs: vec![add_to_map("device_exit_0", BpfMapId(0), &keys, None)],
            sources: Vec::new(),
        },
        tables: vec![Arc::new(table)],
        probes: vec![handler],
        strings: vec!["".into()],
        demand: Demand { activities: Activities::of(&[Activity::Kernel]), ..Default::default() },
        ..Default::default()
    }
}

/// A simple stand-in that removes everything from `<` on.
pub fn demangle(symbol: &str) -> (String, String) {
    let short = symbol.split('<').next().unwrap_or(symbol);
    (symbol.to_owned(), short.to_owned())
}

pub fn pipeline(plan: Plan) -> Pipeline {
    let mut it = Pipeline::new(Arc::new(plan), demangle, &mut |_, _| None).unwrap();
    it.add_process(ProcessInfo { pid: 100, comm: "app".into(), ..Default::default() });
    it
}

/// Collects everything that the pipeline passes on.
#[derive(Default)]
pub struct Recorder {
    pub lines: Vec<String>,
    pub events: Vec<GpuContext>,
    pub exits: Vec<i64>,
}

impl Recorder {
    pub fn ends(&self) -> Vec<u64> {
        self.events.iter().map(|it| it[word::END]).collect()
    }
}

impl Outputs for Recorder {
    fn output(&mut self, output: Output) {
        if let Output::Print(pieces) = output {
            let text = |it| match it {
                Piece::Text(text) | Piece::Value(text) => text,
                Piece::Stack(stack) => format!("{stack:?}"),
            };
            self.lines.push(pieces.into_iter().map(text).collect());
        }
    }

    fn map(&mut self, map: TableId, action: MapAction) {
        self.lines.push(format!("{map:?} {action:?}"));
    }

    fn exit(&mut self, code: i64) {
        self.exits.push(code);
    }
}

impl Sink for Recorder {
    fn interpret(&mut self, _probe: ProbeId, event: &GpuContext, _state: &mut HandlerState) {
        self.events.push(*event);
    }
}

/// One ring's bytes.
#[derive(Clone, Default)]
pub struct Ring(pub Vec<u8>);

impl Ring {
    pub fn name(self, id: u32, text: &str) -> Self {
        self.name_of_bytes(id, text.as_bytes())
    }

    pub fn name_of_bytes(mut self, id: u32, text: &[u8]) -> Self {
        record::push(&mut self.0, kind::NAME, &Name { id, len: text.len() as u32 }, text);
        self
    }

    pub fn names(self) -> Self {
        self.name(KERNEL_A, "a<int>").name(KERNEL_B, "b").name(API, "cudaLaunchKernel")
    }

    pub fn launch(mut self, launch: Launch) -> Self {
        record::push(&mut self.0, kind::LAUNCH, &launch, &[]);
        self
    }

    pub fn kernel(mut self, kernel: Kernel) -> Self {
        record::push(&mut self.0, kind::KERNEL, &kernel, &[]);
        self
    }

    pub fn memset(mut self, memset: Memset) -> Self {
        record::push(&mut self.0, Activity::Memset.record_kind(), &memset, &[]);
        self
    }

    pub fn memcpy(mut self, memcpy: Memcpy) -> Self {
        record::push(&mut self.0, Activity::Memcpy.record_kind(), &memcpy, &[]);
        self
    }

    pub fn graph(mut self, graph: Graph) -> Self {
        record::push(&mut self.0, Activity::Graph.record_kind(), &graph, &[]);
        self
    }

    /// Adds the stack of a node of a graph; and what it is from a time on.
    pub fn node(mut self, node: u64, stack: u32) -> Self {
        record::push(&mut self.0, kind::NODE, &Node { node, stack, reserved: 0 }, &[]);
        self
    }

    pub fn node_update(mut self, since: u64, node: u64, stack: u32) -> Self {
        record::push(&mut self.0, kind::NODE_UPDATE, &NodeUpdate { since, node, stack, reserved: 0 }, &[]);
        self
    }

    /// Adds a clock record at this monotonic time, with [`OFFSET`].
    pub fn clock(self, at: u64) -> Self {
        self.clock_pair(Clock {
            monotonic_before: at,
            realtime: Realtime(at + OFFSET),
            monotonic_after: at,
            ..Clock::default()
        })
    }

    /// Adds the clock record of a 1 MiB buffer that holds `filled` bytes.
    pub fn clock_of_buffer(self, at: u64, filled: u32) -> Self {
        let (monotonic_before, realtime, monotonic_after) = (at, Realtime(at + OFFSET), at);
        self.clock_pair(Clock { monotonic_before, realtime, monotonic_after, filled, room: 1 << 20 })
    }

    pub fn clock_pair(mut self, clock: Clock) -> Self {
        record::push(&mut self.0, kind::CLOCK, &clock, &[]);
        self
    }

    pub fn flush(mut self, began: u64) -> Self {
        record::push(&mut self.0, kind::FLUSH, &Flush { began, last: 0 }, &[]);
        self
    }
}

impl Ring {
    /// Adds the record of a GPU, whose UUID consists of this byte; [`record::UNKNOWN`] says that they follow.
    pub fn gpu(mut self, device: u32, uuid: u8) -> Self {
        let name = b"GPU";
        let gpu = record::Gpu { device, uuid: [uuid; 16], sms: 4, memory: 1 << 30, name_len: name.len() as u64 };
        let limits = record::GpuLimits { capability: 90, reserved_shared: 1024, ..record::GpuLimits::default() };
        record::push(&mut self.0, kind::GPU, &gpu, &limits.after(name));
        self
    }

    /// Adds the record of a gap in which `libother.so` had CUPTI; one that `ended` at 0 has only begun.
    pub fn gap(mut self, began: u64, ended: u64, launches: u64) -> Self {
        let holder = b"libother.so";
        let gap = Yield { began, ended, launches, len: holder.len() as u64 };
        record::push(&mut self.0, kind::YIELD, &gap, holder);
        self
    }
}

/// Returns a launch of `KERNEL_A` by thread 7.
pub fn launch(correlation: u32, start: u64) -> Launch {
    Launch {
        start,
        end: start + 5,
        correlation,
        tid: 7,
        api: API,
        symbol: KERNEL_A,
        context: 1,
        launch_kind: Launch::KERNEL,
        ..Default::default()
    }
}

/// Returns a run of `KERNEL_A`; times are monotonic.
pub fn kernel(correlation: u32, start: u64, end: u64) -> Kernel {
    let (start, end) = (Realtime(start + OFFSET), Realtime(end + OFFSET));
    Kernel { start, end, correlation, context: 1, symbol: KERNEL_A, ..Default::default() }
}

/// Returns a memset of 64 bytes of device memory to 7; times are monotonic.
pub fn memset(correlation: u32, start: u64, end: u64) -> Memset {
    let (start, end) = (Realtime(start + OFFSET), Realtime(end + OFFSET));
    Memset { start, end, correlation, context: 1, bytes: 64, value: 7, memory_kind: 3, known: 1, ..Default::default() }
}

/// Returns a copy of 64 bytes from pinned memory to a device; times are monotonic.
pub fn copy(correlation: u32, start: u64, end: u64) -> Memcpy {
    let (start, end) = (Realtime(start + OFFSET), Realtime(end + OFFSET));
    Memcpy { start, end, correlation, context: 1, bytes: 64, direction: 1, src: 2, dst: 3, ..Default::default() }
}

/// Returns the call that submits a copy.
pub fn copy_call(correlation: u32, start: u64) -> Launch {
    Launch { symbol: 0, launch_kind: Launch::MEMCPY, ..launch(correlation, start) }
}

/// Returns the call that submits a memset.
pub fn memset_call(correlation: u32, start: u64) -> Launch {
    Launch { symbol: 0, launch_kind: Launch::MEMSET, ..launch(correlation, start) }
}

/// Returns the rows of the map with this number, sorted by key. `has_linux` is false after a
/// replay.
pub fn rows(pipeline: &mut Pipeline, table: u32, has_linux: bool) -> Vec<(Key, Cell)> {
    let state = pipeline.state_mut();
    let mut store = Store::new(&state.plan().clone(), has_linux);
    let (engine, names) = state.maps();
    let mut rows = store.with(None::<EngineMaps<'_>>, engine, names).snapshot(TableId(table)).rows;
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows
}
