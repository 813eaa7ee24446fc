//! What handlers work on: the engine with its maps, the string table, and the processes.
//! Interpreted handlers use it while the pipeline runs.

use crate::device_layout::DeviceLayout;
use crate::device_memory::DeviceMemory;
use crate::device_records;
use crate::engine_maps::EngineMaps;
use crate::gpus::SeenGpu;
use crate::known_process::{self, KnownProcess, MappingInfo, ObjectInfo, TakenStack};
use crate::object::ObjectEnv;
use crate::outputs::Outputs;
use crate::prints::{self, Prints};
use crate::process_info::{ProcessIndex, ProcessInfo};
use crate::switches::Switches;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use xputrace_bytecode::vm::{Engine, Env, Fault, FaultReason};
use xputrace_model::context::{DeviceContext, GpuContext, word};
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::names::Names;
use xputrace_model::plan::{BpfMapId, Plan, ProbeId, ProgramId, SwitchId};
use xputrace_model::stack::StackKey;
use xputrace_model::table::{TableDef, TableId};
use xputrace_store::codec;
use xputrace_wire::device::{DeviceCopy, RingRead};
use xputrace_wire::message::demand;
use xputrace_wire::record::PythonCode;

/// The engine, the string table and the processes of a run.
pub struct HandlerState {
    pub(crate) plan: Arc<Plan>,
    pub(crate) engine: Engine,
    pub(crate) names: Names,
    pub(crate) device: DeviceMemory,
    /// Whether what a compiled object launches by itself has run here.
    pub(crate) has_run_launches: bool,
    pub(crate) processes: Vec<KnownProcess>,
    /// Handler runs that ended in a fault, by probe; keeps the first fault for messages.
    pub(crate) faults: FxHashMap<ProbeId, (u64, Fault)>,
    /// The GPUs of all processes so far, each once with the same number.
    pub(crate) gpus: Vec<SeenGpu>,
    /// Whether the maps of Linux are here too, as in a replay.
    pub(crate) all_native: bool,
    pub(crate) switches: Switches,
    /// CLOCK_MONOTONIC nanoseconds: the time now, of a replay that of the recording.
    pub(crate) now: u64,
    /// Everything that can switch a probe, and happened before, has been heard of. Events of the GPU wait for that.
    pub(crate) heard_until: u64,
    /// What programs of Linux have switched before has been heard of. Launches and host events wait for that.
    pub(crate) linux_heard_until: u64,
    /// Which probes' handlers have run here.
    pub(crate) hit: Vec<bool>,
    /// Events that a handler skipped after it was enabled, by probe.
    pub(crate) late: FxHashMap<ProbeId, u64>,
    /// Events that a handler skipped because it is unknown whether it was enabled, by probe.
    pub(crate) forgotten: FxHashMap<ProbeId, u64>,
}

/// Under which circumstances an event was recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventOrigin {
    /// When it began: of what the GPU did, its launch, if that is known. CLOCK_MONOTONIC nanoseconds.
    pub(crate) began: u64,
    /// What its record says of the demand: `message::demand::recorded_under`.
    pub(crate) demanded: u32,
}

impl HandlerState {
    /// Returns what handlers work on before the first event. With `all_native`, the maps of Linux are in the engine too.
    pub(crate) fn new(plan: Arc<Plan>, engine: Engine, names: Names, all_native: bool) -> Self {
        let mut state = HandlerState {
            engine,
            names,
            device: DeviceMemory::of(&plan),
            has_run_launches: false,
            processes: Vec::new(),
            faults: FxHashMap::default(),
            gpus: Vec::new(),
            all_native,
            switches: Switches::new(&plan),
            now: 0,
            heard_until: u64::MAX,
            linux_heard_until: u64::MAX,
            hit: vec![false; plan.probes.len()],
            late: FxHashMap::default(),
            forgotten: FxHashMap::default(),
            plan,
        };
        state.tell_linux_programs();
        state.fill_object_maps();
        state
    }

    /// Returns the string table.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the string table, for interning.
    pub fn names_mut(&mut self) -> &mut Names {
        &mut self.names
    }

    /// Returns the running script.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Notes the time, and until when everything that can switch a probe has been heard of.
    pub fn set_time(&mut self, now: u64, heard_until: u64) {
        (self.now, self.heard_until) = (now, heard_until);
    }

    /// Switches a probe from now on.
    pub fn switch(&mut self, switch: SwitchId, on: bool) {
        self.switches.turn(switch, on, self.now);
    }

    /// Notes until when everything has been heard of that programs of Linux have switched.
    pub fn heard_linux(&mut self, until: u64) {
        self.linux_heard_until = until;
    }

    /// Returns what is switched on.
    pub fn switches(&self) -> &Switches {
        &self.switches
    }

    /// Returns the same, to switch.
    pub fn switches_mut(&mut self) -> &mut Switches {
        &mut self.switches
    }

    /// Tells Linux's programs what is switched on, if they run here.
    pub fn tell_linux_programs(&mut self) {
        let Some(map) = self.plan.linux_switches.filter(|_| self.all_native) else { return };
        for (switch, on) in self.switches.all() {
            self.engine.update(map, &switch.0.to_le_bytes(), &u64::from(!on).to_le_bytes(), 0);
        }
    }

    /// Whether a handler with this switch runs over an event that began then and of which this is known; counts what
    /// it lacks.
    #[inline]
    pub(crate) fn lets_run(
        &mut self,
        probe: ProbeId,
        switch: SwitchId,
        needs: u32,
        EventOrigin { began, demanded }: EventOrigin,
    ) -> bool {
        let Some(is_on) = self.switches.is_on_at(switch, began) else {
            *self.forgotten.entry(probe).or_insert(0) += 1;
            return false;
        };
        let has_all = demand::has_all(demanded, needs);
        if is_on && !has_all {
            *self.late.entry(probe).or_insert(0) += 1;
        }
        is_on && has_all
    }

    /// Returns the GPUs of all processes so far.
    pub fn gpus(&self) -> &[SeenGpu] {
        &self.gpus
    }

    /// Returns the information given when the process was added.
    pub fn process(&self, process: ProcessIndex) -> Option<&ProcessInfo> {
        self.processes.get(process.0 as usize).map(|it| &it.info)
    }

    /// Returns the executable mappings that the process's collector sent.
    pub fn mappings(&self, process: ProcessIndex) -> &[MappingInfo] {
        self.processes.get(process.0 as usize).map(|it| it.mappings.as_slice()).unwrap_or_default()
    }

    /// Returns the files that the process's stacks were in, in the order in which they were reported.
    pub fn objects(&self, process: ProcessIndex) -> &[ObjectInfo] {
        self.processes.get(process.0 as usize).map(|it| it.objects.as_slice()).unwrap_or_default()
    }

    /// Whether any stack of the process is kept.
    pub fn has_stacks(&self, process: ProcessIndex) -> bool {
        self.processes.get(process.0 as usize).is_some_and(KnownProcess::has_stacks)
    }

    /// Forgets the stacks and mappings of a process that has ended.
    pub fn forget_stacks(&mut self, process: ProcessIndex) {
        self.processes.get_mut(process.0 as usize).into_iter().for_each(KnownProcess::forget_stacks);
    }

    /// Returns a function of the process's Python program.
    pub fn code(&self, process: ProcessIndex, id: u32) -> Option<&PythonCode> {
        self.processes.get(process.0 as usize)?.codes.get(id)
    }

    /// Returns a stack that a collector took.
    pub fn stack(&self, stack: StackKey) -> Option<(ProcessIndex, TakenStack<'_>)> {
        known_process::frames_of(&self.processes, stack)
    }

    /// Returns the engine's maps and the string table, for the store.
    pub fn maps(&mut self) -> (EngineMaps<'_>, &mut Names) {
        (EngineMaps { engine: &mut self.engine, device: &mut self.device }, &mut self.names)
    }

    /// Passes all elements of a compiled object's map to `f`: of real GPUs, if they have any, or of the engine; of both, if programs
    /// have run on both.
    pub fn for_each_element(&self, map: BpfMapId, f: &mut dyn FnMut(&[u8], &[u8])) {
        let is_on_gpu =
            self.device.is_used() && !(self.has_run_launches && self.plan.device_handlers().next().is_none());
        if is_on_gpu {
            self.device.for_each(map, f);
        }
        if !is_on_gpu || self.has_run_launches {
            self.engine.for_each(map, f);
        }
    }

    /// Whether programs here have stored to values of a map in Linux other than atomically.
    pub fn has_overwritten(&self, map: BpfMapId) -> bool {
        self.engine.has_overwritten(map)
    }

    /// Says how the script's maps lie in the memory of GPUs.
    pub fn set_device_layout(&mut self, layout: Arc<DeviceLayout>) {
        self.device.set_layout(layout);
    }

    /// Replaces the copies of a process's device memory, of the contexts that have a new one.
    pub fn set_device_memory(&mut self, process: ProcessIndex, copies: Vec<DeviceCopy>) {
        self.device.replace(process, copies);
    }

    /// Handles the records in the rings of a process's device memory, and returns how far each was read.
    pub fn ingest_device_records(
        &mut self,
        process: ProcessIndex,
        copies: &[DeviceCopy],
        sink: &mut dyn Outputs,
    ) -> Vec<RingRead> {
        let HandlerState { plan, names, device, .. } = self;
        let Some((layout, records)) = device.records_mut() else { return Vec::new() };
        let mut handle = |site: u32, data: &[u8]| {
            // What comes after an `exit` comes after the end.
            if sink.is_over() {
                return;
            }
            let Some(kind) = layout.sites.get(site as usize).and_then(|it| it.record) else { return };
            match &plan.object {
                Some(object) if object.with_context.is_empty() => {
                    device_records::shown(object, kind, data).into_iter().for_each(|it| sink.output(it));
                }
                _ => _ = prints::record_of_gpu(plan, names, data, sink),
            }
        };
        copies.iter().map(|it| records.read(&layout, process, it, |it| handle(it.site, it.data))).collect()
    }

    /// Says that these were the last copies of a process.
    pub fn end_device_memory(&mut self, process: ProcessIndex) {
        self.device.end(process);
    }

    /// Whether a handler of the tracer has run, by its probe.
    pub fn is_hit(&self, probe: ProbeId) -> bool {
        self.hit.get(probe.index()).copied().unwrap_or(false)
    }

    /// Handles a record written by a handler in Linux: a print or `exit`. Returns false for
    /// recorded hits and unknown kinds.
    pub fn record(&mut self, record: &[u8], sink: &mut dyn Outputs) -> bool {
        self.programs().1.record(record, sink)
    }

    /// Returns the losses that the engine's handlers counted, by line, and runs that ended in a
    /// fault.
    pub fn handler_losses(&self) -> Losses {
        let mut losses = Losses::default();
        let kernel = self.plan.linux_losses.filter(|_| self.all_native);
        for map in self.plan.tracer_losses.into_iter().chain(self.plan.gpu_losses).chain(kernel) {
            self.add_loss_map(map, &mut losses);
        }
        self.device.add_losses(&mut losses);
        for (id, def) in TableId::each(&self.plan.tables).filter(|(_, def)| def.evicts()) {
            let evicted = self.maps_of(def).into_iter().map(|map| self.engine.evicted(map)).sum();
            losses.add_at(Loss::MapEvicted, id, evicted);
        }
        for (loss, counts) in [(Loss::EnabledLate, &self.late), (Loss::EnabledForgotten, &self.forgotten)] {
            for (probe, n) in counts {
                let site = self.plan.probes.get(probe.index()).map(|it| it.site).unwrap_or_default();
                losses.add_at(loss, site, *n);
            }
        }
        // What else a compiled object's programs did wrong is no loss: it is named.
        let is_limit = |fault: &Fault| self.plan.object.is_none() || fault.reason == FaultReason::InstructionLimit;
        for (probe, (n, _)) in self.faults.iter().filter(|it| is_limit(&it.1.1)) {
            match self.plan.probes.get(probe.index()) {
                Some(it) => losses.add_at(Loss::InstructionLimit, it.site, *n),
                None => losses.add(Loss::InstructionLimit, *n),
            }
        }
        losses
    }

    /// Returns the first fault of each probe's handler and how many there were, for messages. A fault of a script's is a
    /// bug in the compiler or an endless loop; data cannot cause one.
    pub fn faults(&self) -> Vec<(ProbeId, Fault, u64)> {
        let mut all: Vec<_> = self.faults.iter().map(|(probe, (n, fault))| (*probe, *fault, *n)).collect();
        all.sort_by_key(|it| it.0);
        all
    }

    fn add_loss_map(&self, map: BpfMapId, losses: &mut Losses) {
        for (slot, site) in self.plan.loss_sites.iter().enumerate() {
            let key = (slot as u32).to_le_bytes();
            if let Some(value) = self.engine.lookup(map, &key) {
                losses.add_at(site.loss, *site, codec::word(value, 0));
            }
            self.device.for_each(map, &mut |at, value| {
                if at == key {
                    losses.add_at(site.loss, *site, codec::word(value, 0));
                }
            });
        }
    }

    /// Returns the maps of the image that hold parts of a table here.
    fn maps_of(&self, def: &TableDef) -> Vec<BpfMapId> {
        let of_linux = def.storage.linux().filter(|_| self.all_native);
        def.storage.tracer().into_iter().chain(def.storage.gpu()).chain(of_linux).collect()
    }

    /// Returns the engine, and what the records of its programs are about.
    pub fn programs(&mut self) -> (&mut Engine, Prints<'_>) {
        let HandlerState { plan, engine, names, switches, .. } = self;
        (engine, Prints { plan, names, switches })
    }

    /// Runs a compiled GPU handler over an event.
    #[inline]
    pub(crate) fn run_gpu(&mut self, probe: ProbeId, program: ProgramId, ctx: &GpuContext, sink: &mut dyn Outputs) {
        let (engine, prints) = self.programs();
        if let Err(fault) = engine.run_words(program, ctx, &mut GpuEnv { prints, ctx, sink }) {
            self.count_fault(probe, fault);
        }
    }

    /// Runs a device handler in a thread of the software GPU; returns false if it ended the thread. An object's has no
    /// context.
    #[inline]
    pub(crate) fn run_device(
        &mut self,
        probe: ProbeId,
        program: ProgramId,
        ctx: &DeviceContext,
        sink: &mut dyn Outputs,
    ) -> bool {
        let ran = match &self.plan.object {
            None => {
                let (engine, prints) = self.programs();
                engine.run_words(program, ctx, &mut DeviceEnv { prints, sink })
            }
            Some(object) => {
                let mut env = ObjectEnv::new(object, ctx, sink);
                self.engine.set_gpu_thread(env.thread.number());
                let words: &[u64] = if object.with_context.contains(&program) { ctx } else { &[] };
                self.engine.run_words(program, words, &mut env)
            }
        };
        match ran {
            Err(Fault { reason: FaultReason::ThreadExit, .. }) => return false,
            Err(fault) => self.count_fault(probe, fault),
            Ok(_) => {}
        }
        true
    }

    /// Fills the maps of a compiled object with what they begin with.
    fn fill_object_maps(&mut self) {
        for it in self.plan.object.iter().flat_map(|it| &it.initial) {
            self.engine.update(it.map, &it.key, &it.value, 0);
        }
    }

    /// Notes that a handler's run ended in a fault.
    pub fn count_fault(&mut self, probe: ProbeId, fault: Fault) {
        self.faults.entry(probe).or_insert((0, fault)).0 += 1;
    }
}

/// What GPU handlers can ask for: names and printing; the time is the event's own.
struct GpuEnv<'a> {
    prints: Prints<'a>,
    ctx: &'a GpuContext,
    sink: &'a mut dyn Outputs,
}

impl Env for GpuEnv<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.ctx[word::TIME]
    }

    fn pid_tgid(&mut self) -> u64 {
        (self.ctx[word::PID] << 32) | (self.ctx[word::TID] & 0xffff_ffff)
    }

    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        // Events that come after this one in order begin after its end, or began before it was known.
        let at = self.ctx[word::END].max(self.ctx[word::LAUNCH_END]);
        self.prints.record_at(Some(at), data, self.sink)
    }

    fn name(&mut self, id: u64) -> &[u8] {
        self.prints.name(id)
    }
}

/// What a script's device handlers can ask for on the software GPU: printing.
struct DeviceEnv<'a> {
    prints: Prints<'a>,
    sink: &'a mut dyn Outputs,
}

impl Env for DeviceEnv<'_> {
    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        self.prints.record(data, self.sink)
    }
}
