//! The contents of a recording as entries, in the order in which they were written.

use super::schema::Schema;
use serde::{Deserialize, Serialize};
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::Losses;
use xputrace_model::plan::{ContextWord, Demand, Detail, HostEvent, HostEvents};
use xputrace_model::stack::{Frame, StackKey};
use xputrace_wire::api::{ApiFunction, FunctionId, Functions, functions};
use xputrace_wire::totals::CollectorTotals;

/// The file's header.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct FileHeader {
    #[serde(flatten)]
    pub(super) meta: Meta,
    /// Columns of its records.
    pub(super) records: Schema,
}

/// Facts about the whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Meta {
    /// The command line that was recorded.
    pub command: Vec<String>,
    /// `uname -a`, or another name of the machine.
    pub machine: String,
    /// Seconds since 1970 at the start.
    pub unix_seconds: u64,
    /// CLOCK_MONOTONIC nanoseconds at the start.
    pub monotonic_nanos: u64,
    /// The kind of GPU, in recordings that do not store it per process.
    #[serde(with = "WrittenGpu", skip_serializing_if = "is_none")]
    pub gpu: GpuKind,
    /// Name and version of the program that wrote it.
    pub program: String,
    /// CPU probes whose hits are in the file; [`Hit::probe`] is an index into this.
    pub probes: Vec<ProbeInfo>,
    /// Whether launch stacks were requested.
    pub launch_stacks: bool,
    /// Whether Python frames were requested with them.
    pub launch_python: bool,
    /// Whether the NVTX ranges around launches were requested.
    pub launch_ranges: bool,
    /// Whether those around CUDA's calls were.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub call_ranges: bool,
    /// The kinds of host events that were recorded, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_events: Vec<String>,
    /// The functions whose calls were recorded as `api` events, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub api: Vec<String>,
    /// Whether all calls of the runtime were watched, so that a call of the driver inside one is known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub nested_calls: bool,
    /// Whether its stacks have lines too, under keys of their own.
    pub lines: bool,
    /// Whether the file contains the losses of CPU probes. If not, a stack's word of 0 may also
    /// mean that there was no stack.
    pub tells_losses: bool,
}

impl Meta {
    /// Notes which host events a recording asks for.
    #[must_use]
    pub fn with_host_events(self, demand: &Demand) -> Self {
        let name = |it: FunctionId| it.function().map(|it| it.name().to_owned());
        Meta {
            host_events: demand.host_events.iter().map(|it| it.name().to_owned()).collect(),
            api: demand.api.iter().filter_map(name).collect(),
            nested_calls: demand.has(Detail::Nested),
            call_ranges: demand.has(Detail::CallRanges),
            ..self
        }
    }

    /// Returns the functions whose calls were recorded as `api` events.
    pub fn functions(&self) -> Functions {
        let recorded = functions().iter().filter(|it| self.api.iter().any(|name| name == it.name()));
        recorded.fold(Functions::NONE, |mut all, it| {
            all.add(it.id);
            all
        })
    }

    /// Names the host events and functions that a script asks for and that were not recorded.
    pub fn missing_host_events(&self, wanted: &Demand) -> Vec<String> {
        let has = |list: &[String], name: &str| list.iter().any(|it| it == name);
        let kinds = self.missing_kinds(wanted.required).map(HostEvent::name);
        let functions = wanted.api.iter().filter_map(FunctionId::function).map(ApiFunction::name);
        let functions = functions.filter(|it| has(&self.host_events, "api") && !has(&self.api, it));
        let nested = (wanted.has(Detail::Nested) && !self.nested_calls).then_some("nested");
        let ranges = (wanted.has(Detail::CallRanges) && !self.call_ranges).then_some("nvtx_path");
        kinds.chain(functions).chain(nested).chain(ranges).map(str::to_owned).collect()
    }

    /// Returns the kinds of host events, of these, that were not recorded.
    pub fn missing_kinds(&self, wanted: HostEvents) -> impl Iterator<Item = HostEvent> {
        wanted.iter().filter(|it| !self.host_events.iter().any(|has| has == it.name()))
    }
}

/// How a [`GpuKind`] is written.
#[derive(Serialize, Deserialize)]
#[serde(remote = "GpuKind", rename_all = "lowercase")]
enum WrittenGpu {
    None,
    Real,
    Software,
}

fn is_none(gpu: &GpuKind) -> bool {
    *gpu == GpuKind::None
}

/// The list that encodes a process's start: process, pid, pid in its own namespace, comm, generation, nanoseconds, GPU. Older
/// recordings lack its last member.
#[derive(Serialize, Deserialize)]
pub(super) struct ProcessStart(
    pub(super) u32,
    pub(super) u32,
    pub(super) u32,
    pub(super) String,
    pub(super) u32,
    pub(super) u64,
    #[serde(default, with = "WrittenGpu")] pub(super) GpuKind,
);

impl From<ProcessStart> for RecordingEntry {
    fn from(it: ProcessStart) -> Self {
        let ProcessStart(process, pid, pid_in_target, comm, generation, time_nanos, gpu) = it;
        RecordingEntry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos, gpu }
    }
}

/// A recorded CPU probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProbeInfo {
    /// As in [`xputrace_model::plan::Probe::name`].
    pub name: String,
    /// Fields of a tracepoint's record, so that scripts compile on other machines.
    pub fields: Vec<TracepointFieldInfo>,
    /// The integer that a function returns, if its file told: `i4`, `u8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returns: Option<String>,
    /// Whether each hit has the user stack, and the Linux stack.
    pub ustack: bool,
    pub kstack: bool,
    /// The target's strings that each hit contains.
    pub texts: Vec<RecordedText>,
    /// Whether hits of all processes were recorded, not only the command's. A probe may be recorded
    /// both ways. `None` in older recordings, where a probe's hits are those of its widest scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub everywhere: Option<bool>,
}

/// Where the address of a recorded text comes from, like `model::plan::ContextWord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecordedText {
    pub at: u32,
    pub plus: i64,
}

impl From<ContextWord> for RecordedText {
    fn from(word: ContextWord) -> Self {
        RecordedText { at: word.at, plus: word.plus }
    }
}

/// A field of a recorded tracepoint, like `model::catalog::TracepointField`, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TracepointFieldInfo {
    pub name: String,
    pub offset: u32,
    /// `i4`, `u8`, `chars16`, `data_loc`, `other`.
    pub kind: String,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordingEntry {
    /// A process was armed.
    ProcessStart {
        process: u32,
        pid: u32,
        pid_in_target: u32,
        comm: String,
        generation: u32,
        time_nanos: u64,
        gpu: GpuKind,
    },
    /// One drain of a process's rings, taken at this time.
    Wire { process: u32, time_nanos: u64, rings: Vec<Vec<u8>> },
    /// A CPU probe was hit.
    Hit(Hit),
    /// A process ended or was disarmed.
    ProcessEnd { process: u32, time_nanos: u64, totals: Box<CollectorTotals> },
    /// Names of frames; written at the end.
    Symbols(Vec<(StackKey, Vec<FrameInfo>)>),
    /// What CPU probes lost while recording, by kind; written at the end.
    Losses(Losses),
}

/// A hit of a recorded CPU probe, with everything that a handler at that probe may read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// Index into [`Meta::probes`].
    pub probe: u32,
    /// Whether it is the hit at the function's entry, for a return probe.
    pub entry: bool,
    /// CLOCK_MONOTONIC.
    pub time_nanos: u64,
    pub pid: u32,
    pub tid: u32,
    pub uid: u32,
    pub gid: u32,
    pub cpu: u32,
    /// NUL padded.
    pub comm: [u8; 16],
    pub cgroup: u64,
    pub cookie: u64,
    pub func_ip: u64,
    /// Words of [`StackKey`].
    pub ustack: u64,
    pub kstack: u64,
    /// The program's context: `pt_regs`, or the tracepoint's record.
    pub context: Vec<u8>,
    /// Texts of the target that the recorded handlers read.
    pub strings: Vec<UserString>,
}

/// Text at an address, at the time of the hit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserString {
    pub address: u64,
    pub text: Vec<u8>,
}

/// One named frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FrameInfo {
    pub function: String,
    pub module: String,
    pub offset: u64,
}

impl From<&Frame> for FrameInfo {
    fn from(frame: &Frame) -> Self {
        FrameInfo { function: frame.function.clone(), module: frame.module.clone(), offset: frame.offset }
    }
}

impl From<FrameInfo> for Frame {
    fn from(info: FrameInfo) -> Self {
        Frame { function: info.function, module: info.module, offset: info.offset }
    }
}
