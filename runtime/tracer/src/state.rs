//! What handlers work on: the engine with its maps, the string table, and the processes.
//! Interpreted handlers use it while the pipeline runs.

use crate::device_memory::{DeviceCopy, DeviceLayout, DeviceMemory};
use crate::device_records::{self, RingRead};
use crate::names::Names;
use crate::object::ObjectEnv;
use crate::pipeline::{ProcessIndex, ProcessInfo, SeenGpu, Sink};
use crate::prints;
use crate::switches::Switches;
use rustc_hash::FxHashMap;
use std::io;
use std::sync::Arc;
use xputrace_bytecode::vm::{Engine, Env, Fault, FaultReason};
use xputrace_model::context::{DeviceContext, GpuContext};
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::plan::{BpfMapId, Plan, ProbeId, ProgramId, SwitchId};
use xputrace_model::stack::StackKey;
use xputrace_model::table::{TableDef, TableId};
use xputrace_store::{Backing, OnValue, Refusal, codec};
use xputrace_wire::message::demand;
use xputrace_wire::record::PythonCode;

// Limits per process, so that a target cannot grow the tracer's memory further. A collector issues
// up to 16,384 name ids and 65,536 stack ids.
const MOST_IDS: usize = 1 << 17;
/// Return addresses of all its stacks together: 32 MiB.
const MOST_FRAMES: usize = 4 << 20;
/// Contents of all its Python functions together.
const MOST_CODE_BYTES: usize = 16 << 20;
const MOST_MAPPINGS: usize = 1 << 14;

/// The engine, the string table and the processes of a run.
pub struct State {
    pub(crate) plan: Arc<Plan>,
    pub(crate) engine: Engine,
    pub(crate) names: Names,
    pub(crate) device: DeviceMemory,
    /// Whether what a compiled object launches by itself has run here.
    pub(crate) has_run_launches: bool,
    pub(crate) targets: Vec<Target>,
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
pub(crate) struct Origin {
    /// When it began: of what the GPU did, its launch, if that is known. CLOCK_MONOTONIC nanoseconds.
    pub(crate) began: u64,
    /// What its record says of the demand: `message::demand::told`.
    pub(crate) demanded: u32,
}

/// An executable mapping that a collector reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingInfo {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    pub inode: u64,
    pub device: u64,
    pub path: String,
}

/// A file that stacks were in while it was mapped, as a collector reported it (`xputrace_wire::record::Object`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    pub id: u32,
    pub start: u64,
    pub end: u64,
    /// What is added to the addresses in its program headers.
    pub base: u64,
    /// Empty if it has none.
    pub build_id: Vec<u8>,
    /// Of its first bytes, and how many those are.
    pub check: u64,
    pub checked_bytes: u32,
    /// As the program named it to the loader; empty for the program itself.
    pub path: Vec<u8>,
    /// The directory that the process was in when it was armed, if the path is relative.
    pub directory: Vec<u8>,
}

/// A stack that a collector took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenStack<'a> {
    /// Innermost first (`xputrace_wire::record::Stack`).
    pub words: &'a [u64],
    /// Ids of the files that its return addresses are in.
    pub objects: &'a [u32],
}

#[derive(Debug)]
struct KeptStack {
    words: Box<[u64]>,
    objects: Box<[u32]>,
}

/// What is known of one process.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) info: ProcessInfo,
    stacks: IdMap<KeptStack>,
    n_frames: usize,
    codes: IdMap<PythonCode>,
    codes_bytes: usize,
    mappings: Vec<MappingInfo>,
    objects: Vec<ObjectInfo>,
}

impl Target {
    pub(crate) fn new(info: ProcessInfo) -> Self {
        Target {
            info,
            stacks: IdMap::default(),
            n_frames: 0,
            codes: IdMap::default(),
            codes_bytes: 0,
            mappings: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Adds a stack; an id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_stack(&mut self, id: u32, words: Vec<u64>, objects: Vec<u32>) -> bool {
        if self.stacks.get(id).is_some() {
            return true;
        }
        self.n_frames = self.n_frames.saturating_add(words.len() + objects.len().div_ceil(2));
        let stack = KeptStack { words: words.into_boxed_slice(), objects: objects.into_boxed_slice() };
        self.n_frames <= MOST_FRAMES && self.stacks.insert(id, stack)
    }

    /// Adds a Python function; an id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_code(&mut self, id: u32, contents: &[u8]) -> bool {
        if self.codes.get(id).is_some() {
            return true;
        }
        self.codes_bytes = self.codes_bytes.saturating_add(contents.len());
        let fits = self.codes_bytes <= MOST_CODE_BYTES;
        fits && PythonCode::decode(contents).is_some_and(|it| self.codes.insert(id, it))
    }

    /// Ends the process: keeps only what names its stacks.
    pub(crate) fn end(&mut self) {
        self.stacks.shrink();
        self.codes.shrink();
        if !self.has_stacks() {
            self.codes = IdMap::default();
            self.mappings.clear();
            self.objects.clear();
        }
        self.mappings.shrink_to_fit();
        self.objects.shrink_to_fit();
    }

    fn has_stacks(&self) -> bool {
        !self.stacks.is_empty()
    }

    /// Adds an unknown mapping; returns false if there are too many.
    pub(crate) fn add_mapping(&mut self, mapping: MappingInfo) -> bool {
        // The collector sends its whole list whenever it has changed.
        if self.mappings.contains(&mapping) {
            return true;
        }
        let room = self.mappings.len() < MOST_MAPPINGS;
        if room {
            self.mappings.push(mapping);
        }
        room
    }

    /// Adds a file; a known id keeps its first one. Returns false if there are too many.
    pub(crate) fn add_object(&mut self, object: ObjectInfo) -> bool {
        // Threads that meet it at once each send it.
        if self.objects.iter().any(|it| it.id == object.id) {
            return true;
        }
        let room = self.objects.len() < MOST_MAPPINGS;
        if room {
            self.objects.push(object);
        }
        room
    }
}

impl State {
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
    pub(crate) fn tell_linux_programs(&mut self) {
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
        Origin { began, demanded }: Origin,
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
        self.targets.get(process.0 as usize).map(|it| &it.info)
    }

    /// Returns the executable mappings that the process's collector sent.
    pub fn mappings(&self, process: ProcessIndex) -> &[MappingInfo] {
        self.targets.get(process.0 as usize).map(|it| it.mappings.as_slice()).unwrap_or_default()
    }

    /// Returns the files that the process's stacks were in, in the order in which they were reported.
    pub fn objects(&self, process: ProcessIndex) -> &[ObjectInfo] {
        self.targets.get(process.0 as usize).map(|it| it.objects.as_slice()).unwrap_or_default()
    }

    /// Whether any stack of the process is kept.
    pub fn has_stacks(&self, process: ProcessIndex) -> bool {
        self.targets.get(process.0 as usize).is_some_and(Target::has_stacks)
    }

    /// Forgets the stacks and mappings of a process that has ended.
    pub fn forget_stacks(&mut self, process: ProcessIndex) {
        if let Some(target) = self.targets.get_mut(process.0 as usize) {
            target.stacks = IdMap::default();
            target.end();
        }
    }

    /// Returns a function of the process's Python program.
    pub fn code(&self, process: ProcessIndex, id: u32) -> Option<&PythonCode> {
        self.targets.get(process.0 as usize)?.codes.get(id)
    }

    /// Returns a stack that a collector took.
    pub fn stack(&self, stack: StackKey) -> Option<(ProcessIndex, TakenStack<'_>)> {
        frames_of(&self.targets, stack)
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
    pub fn take_device_records(
        &mut self,
        process: ProcessIndex,
        copies: &[DeviceCopy],
        sink: &mut dyn Sink,
    ) -> Vec<RingRead> {
        let State { plan, names, device, .. } = self;
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
    pub fn record(&mut self, record: &[u8], sink: &mut dyn Sink) -> bool {
        let switches = &mut self.switches;
        prints::record(&self.plan, &self.names, &mut |it, on, at| switches.turn(it, on, at), record, sink)
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

    /// Runs a compiled GPU handler over an event.
    #[inline]
    pub(crate) fn run_gpu(&mut self, probe: ProbeId, program: ProgramId, ctx: &GpuContext, sink: &mut dyn Sink) {
        let mut env = GpuEnv { plan: &self.plan, names: &self.names, switches: &mut self.switches, ctx, sink };
        if let Err(fault) = self.engine.run_words(program, ctx, &mut env) {
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
        sink: &mut dyn Sink,
    ) -> bool {
        let ran = match &self.plan.object {
            None => {
                let State { plan, names, switches, .. } = self;
                self.engine.run_words(program, ctx, &mut DeviceEnv { plan, names, switches, sink })
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
    pub(crate) fn fill_object_maps(&mut self) {
        for it in self.plan.object.iter().flat_map(|it| &it.initial) {
            self.engine.update(it.map, &it.key, &it.value, 0);
        }
    }

    pub(crate) fn count_fault(&mut self, probe: ProbeId, fault: Fault) {
        self.faults.entry(probe).or_insert((0, fault)).0 += 1;
    }
}

pub(crate) fn frames_of(targets: &[Target], stack: StackKey) -> Option<(ProcessIndex, TakenStack<'_>)> {
    let StackKey::Collector { process, id } = stack.whole() else { return None };
    let KeptStack { words, objects } = targets.get(process as usize)?.stacks.get(id)?;
    Some((ProcessIndex(process), TakenStack { words, objects }))
}

/// The script's maps in the engine, and what GPUs have of them. Those of Linux are not reachable through it.
pub struct EngineMaps<'a> {
    engine: &'a mut Engine,
    device: &'a mut DeviceMemory,
}

impl Backing for EngineMaps<'_> {
    fn for_each(&self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        self.engine.for_each(map, f);
        self.device.for_each(map, f);
        Ok(())
    }

    fn drain(&mut self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        self.device.for_each(map, f);
        self.engine.drain(map, f);
        self.device.clear(map)
    }

    fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>> {
        self.engine.lookup(map, key).map(<[u8]>::to_vec).or_else(|| self.device.lookup(map, key))
    }

    fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        refusal(self.engine.update(map, key, value, 0))
    }

    fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> Result<(), Refusal> {
        refusal(self.engine.add(map, key, delta))
    }

    fn delete(&mut self, map: BpfMapId, key: &[u8]) -> Result<(), String> {
        match errno(self.engine.delete(map, key)) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done.map_err(|it| it.to_string()),
        }
    }

    fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        self.engine.clear(map);
        self.device.clear(map)
    }
}

fn refusal(answer: i64) -> Result<(), Refusal> {
    errno(answer).map_err(|it| match it.raw_os_error() {
        Some(libc::E2BIG) => Refusal::Full,
        _ => Refusal::Other(it.to_string()),
    })
}

/// Converts the engine's answer: 0 or a negative errno.
fn errno(answer: i64) -> Result<(), io::Error> {
    if answer == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-answer as i32)) }
}

/// What GPU handlers can ask for: names and printing; the time is the event's own.
struct GpuEnv<'a> {
    plan: &'a Plan,
    names: &'a Names,
    switches: &'a mut Switches,
    ctx: &'a GpuContext,
    sink: &'a mut dyn Sink,
}

impl Env for GpuEnv<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.ctx[xputrace_model::context::word::TIME]
    }

    fn pid_tgid(&mut self) -> u64 {
        use xputrace_model::context::word;
        (self.ctx[word::PID] << 32) | (self.ctx[word::TID] & 0xffff_ffff)
    }

    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        use xputrace_model::context::word;
        // Events that come after this one in order begin after its end, or began before it was known.
        let at = self.ctx[word::END].max(self.ctx[word::LAUNCH_END]);
        let switches = &mut *self.switches;
        prints::record(self.plan, self.names, &mut |it, on, _| switches.turn(it, on, at), data, self.sink)
    }

    fn name(&mut self, id: u64) -> &[u8] {
        self.names.bytes(id)
    }
}

/// What a script's device handlers can ask for on the software GPU: printing.
struct DeviceEnv<'a> {
    plan: &'a Plan,
    names: &'a Names,
    switches: &'a mut Switches,
    sink: &'a mut dyn Sink,
}

impl Env for DeviceEnv<'_> {
    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        let switches = &mut *self.switches;
        prints::record(self.plan, self.names, &mut |it, on, at| switches.turn(it, on, at), data, self.sink)
    }
}

/// Values indexed by small ids that another process chose.
#[derive(Debug)]
pub(crate) struct IdMap<T> {
    values: Vec<Option<T>>,
}

impl<T> Default for IdMap<T> {
    fn default() -> Self {
        IdMap { values: Vec::new() }
    }
}

impl<T> IdMap<T> {
    /// Returns false if the id is out of range.
    pub(crate) fn insert(&mut self, id: u32, value: T) -> bool {
        let at = id as usize;
        if at >= MOST_IDS {
            return false;
        }
        if at >= self.values.len() {
            self.values.resize_with(at + 1, || None);
        }
        self.values[at] = Some(value);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Releases capacity for further ids.
    pub(crate) fn shrink(&mut self) {
        self.values.shrink_to_fit();
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.values.get(id as usize)?.as_ref()
    }
}
