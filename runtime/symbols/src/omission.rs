//! What names and lines leave out because it would take too much memory.

use std::fmt;
use std::path::PathBuf;

/// Something that is left out. A user should be told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Frames in this file have no lines: it has too much DWARF.
    Lines { file: PathBuf, more_than: TooMuch },
    /// Frames in this file have no names: a symbol table of it has more than these bytes.
    Names { file: PathBuf, most_bytes: u64 },
    /// Code made later at run time has no names: the perf maps of all processes have reached these bytes.
    JitNames { most_bytes: u64 },
}

/// Of what a file's DWARF has more than is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMuch {
    Bytes(u64),
    Units(usize),
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TooMuch::Bytes(bytes) => write!(f, "{} MiB of DWARF", bytes >> 20),
            TooMuch::Units(n) => write!(f, "{n} units of DWARF"),
        }
    }
}

impl fmt::Display for Omission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MIB: u64 = 1 << 20;
        match self {
            Omission::Lines { file, more_than } => {
                write!(f, "no lines for {}: it has more than {more_than}", file.display())
            }
            Omission::Names { file, most_bytes } => {
                let mib = most_bytes / MIB;
                write!(f, "names missing for {}: it has a symbol table of more than {mib} MiB", file.display())
            }
            Omission::JitNames { most_bytes } => {
                let mib = most_bytes / MIB;
                write!(f, "names missing for code made at run time: perf maps take more than {mib} MiB of memory")
            }
        }
    }
}
