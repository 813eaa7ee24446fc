//! What became of each probe.

use crate::error::AttachError;
use std::path::PathBuf;

/// What [`crate::Linux::attach`] did.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// One for each probe that runs in Linux, the launch marker's apart.
    pub probes: Vec<ProbeReport>,
    pub warnings: Vec<Warning>,
}

/// One probe of the plan.
#[derive(Clone, Debug)]
pub struct ProbeReport {
    /// Index into `Plan::probes`.
    pub probe: usize,
    pub outcome: Outcome,
}

/// What became of a probe.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// `functions` places in `files`. A tracepoint has one function and no file, a profile one a CPU.
    Attached {
        functions: usize,
        files: Vec<PathBuf>,
    },
    /// No file of that name was seen yet; it is attached when one is mapped.
    Pending,
    Failed(AttachError),
}

/// A thing to know about an attached probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Index into `Plan::probes`; 0 where it is about the whole run.
    pub probe: usize,
    /// A sentence without a final dot.
    pub text: String,
}

/// What happened after [`crate::Linux::attach`].
#[derive(Clone, Debug)]
pub enum News {
    /// A pending probe found its file, or a probe found a further one.
    Probe(ProbeReport),
    Warning(Warning),
    /// A process got its own links, or was made a target, after it had begun to run: a child, or a
    /// process of which another thread than the main one called `exec`.
    Child(Unprobed),
    /// Such a process had begun to run a further program by then: one `exec` after another.
    UnprobedProgram,
    /// A process had a file before the file had its uprobes.
    LateFile(LateFile),
    /// So many more new processes of the scope are not targets, and nothing is seen of them.
    Unfollowed(u64),
}

/// A process used a file, which nothing had told of before, without the file's uprobes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateFile {
    pub pid: u32,
    /// As the process sees it.
    pub file: PathBuf,
    /// From its mapping until its uprobes were attached, or until that was found impossible.
    pub micros: u64,
}

/// The time in which a process ran without uprobes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprobed {
    pub pid: u32,
    /// From its fork, or its `exec`, until all its uprobes were attached.
    pub micros: u64,
    /// Why its probes could not be attached; it may have ended by then.
    pub failed: Option<AttachError>,
}

impl AttachReport {
    /// How many places were attached, over all probes.
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
