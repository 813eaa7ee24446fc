//! The outcome of each probe.

use crate::error::AttachError;
use std::path::PathBuf;
use xputrace_model::plan::ProbeId;

/// What [`crate::Linux::attach`] did.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// One for each probe in Linux, except the launch marker.
    pub probes: Vec<ProbeReport>,
    pub warnings: Vec<Warning>,
}

/// One probe of the plan.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    pub probe: ProbeId,
    pub outcome: Outcome,
}

/// The outcome of a probe.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Attached to `functions` places in `files`. A tracepoint has one function and no file, a
    /// profile one per CPU.
    Attached {
        functions: usize,
        files: Vec<PathBuf>,
    },
    /// No such file has been seen; attached once one is mapped.
    Pending,
    Failed(AttachError),
}

/// A remark about an attached probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// `None` if it is about the whole run.
    pub probe: Option<ProbeId>,
    /// A sentence without a final dot.
    pub text: String,
}

/// What happened after [`crate::Linux::attach`].
#[derive(Clone, Debug)]
pub enum News {
    /// A pending probe found its file, or a probe found another one.
    Probe(ProbeReport),
    Warning(Warning),
    /// A process got its own links, or became a target, after it had started to run: a child, or a
    /// process in which a thread other than the main one called `exec`.
    Child(Unprobed),
    /// Such a process was already running another program by then, after a second `exec`.
    UnprobedProgram,
    /// A process had mapped a file before the file had its uprobes.
    LateFile(LateFile),
    /// So many new processes of the scope are not targets, and nothing is seen of them.
    Unfollowed(u64),
}

/// A process used a file, unknown until then, without the file's uprobes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateFile {
    pub pid: u32,
    /// As the process sees it.
    pub file: PathBuf,
    /// Probes, by their index in `Plan::probes`, that ask for such a file and are attached to none.
    pub waiting: Vec<ProbeId>,
    /// From the mapping until the uprobes were attached, or until that proved impossible.
    pub micros: u64,
}

/// A process that ran without uprobes for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprobed {
    pub pid: u32,
    /// From its fork or `exec` until all its uprobes were attached.
    pub micros: u64,
    /// Why its probes could not be attached; it may have ended by then.
    pub failed: Option<AttachError>,
}

impl AttachReport {
    /// Returns the number of attached places, over all probes.
    pub fn places(&self) -> usize {
        self.probes
            .iter()
            .map(|it| match &it.outcome {
                Outcome::Attached { functions, .. } => *functions,
                _ => 0,
            })
            .sum()
    }
}
