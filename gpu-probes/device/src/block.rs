//! What comes of a program: a block of PTX with its sites, or why there is none.

use xputrace_bytecode::BpfMapId;

/// A translated program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PtxBlock {
    /// `{ … }`: PTX to be placed at the start of a statement, in a function's body.
    pub text: String,
    /// What is counted or recorded, in order of number, from [`crate::Options::first_site`] on.
    pub sites: Vec<Site>,
}

/// A place in a program that counts losses, or writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Index of the instruction in the program.
    pub insn: usize,
    pub what: SiteKind,
}

/// What happens at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteKind {
    /// Counts runs that [`crate::Options::fuel`] ended.
    OutOfFuel,
    /// Counts runs that an access outside of a map, the stack or a record ended.
    BadAccess,
    /// Writes records; counts those that the ring had no room for.
    Record(RecordKind),
}

/// What the data of a site's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Bytes that the program has written to this ring.
    Data(BpfMapId),
    /// Three arguments, 64 bits each, and the format that shows them (helper 6).
    Format,
    /// Text up to a NUL (helper 501).
    Text,
}

/// Why a program can't run on the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {insn}: {what}")]
pub struct Refusal {
    /// Index of the instruction; [`xputrace_bytecode::Program::line_of`] has its line of the script.
    pub insn: usize,
    /// What is wrong there.
    pub what: String,
}
