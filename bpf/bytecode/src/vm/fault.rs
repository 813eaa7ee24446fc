//! Why a program is refused, and why a run ends before its end.

/// Why the engine refused a program or a map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct LoadError {
    /// The program and instruction, or the map.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}

/// Why a run ended before its `exit`. Its changes up to then stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {insn}: {reason}")]
pub struct Fault {
    /// The instruction's index in the program; [`crate::Program::line_of`] has its line.
    pub insn: usize,
    pub reason: FaultReason,
}

/// What went wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultReason {
    #[error("no such program is loaded")]
    NoProgram,
    #[error("{} {len} bytes at {address:#x} is not allowed", if *write { "writing" } else { "reading" })]
    BadAccess { address: u64, len: usize, write: bool },
    #[error("the program runs longer than its instruction limit")]
    InstructionLimit,
    #[error("the first argument, {address:#x}, is no map that this helper takes")]
    NoMap { address: u64 },
    #[error("the first argument, {address:#x}, is no reserved record")]
    NoRecord { address: u64 },
    #[error("more than {} records are reserved at one time", super::pointer::MAX_RECORDS)]
    TooManyRecords,
    #[error("too many values of a map outside of the engine are looked up in one run")]
    TooManyRemoteValues,
    #[error("the engine has no helper {0}")]
    NoHelper(i32),
    /// Helper 507: not a mistake, but what the program wants.
    #[error("the program ended its GPU thread")]
    ThreadExit,
    #[error("calls are more than {} functions deep", crate::insn::MAX_FRAMES)]
    TooManyFrames,
}
