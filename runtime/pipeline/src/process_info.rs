//! The processes of a run: their numbers, what is said of them, and what is kept of each at most.

use xputrace_model::gpu::GpuKind;

/// Number of a process in this run, in order of appearance; exec starts a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessIndex(pub u32);

/// A process, as events show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Process id in the tracer's namespace.
    pub pid: u32,
    /// Process id in the target's namespace if it differs, else 0.
    pub pid_in_target: u32,
    /// Name of the process.
    pub comm: String,
    /// Tells images of one process id apart.
    pub generation: u32,
    /// Whether it ran already when it was attached to. Not in recordings, which are made of commands.
    pub is_attached: bool,
    /// Which GPU it uses.
    pub gpu: GpuKind,
}

/// Limits on what is kept per process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Launches that wait for their activities, about 130 bytes each. A collector's buffers hold
    /// 50,000 kernels; beyond those, the kernels of further launches are lost.
    pub pending_launches: usize,
    /// Graph launches kept for the rest of their graph.
    pub graph_launches: usize,
    /// Activities that wait for the watermark, and calls as well; about 240 bytes each. Enough for
    /// all kernels in a collector's buffers (8 MiB, about 39,000). If more wait, they wait for
    /// something lost.
    pub buffered_events: usize,
    /// Activities that wait for their launch; about 120 bytes each.
    pub orphans: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { pending_launches: 1 << 16, graph_launches: 8192, buffered_events: 3 << 14, orphans: 1 << 14 }
    }
}
