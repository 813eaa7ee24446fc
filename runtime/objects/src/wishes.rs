//! What the command line asks of an object, and how files that it names are read.

use std::io;

/// What the command line says of an object.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// `--dump MAP`: print the map at the end.
    pub dump: Vec<String>,
    /// `--poll RING`, `--poll RING=STRUCT`: print records as they arrive, by that type.
    pub poll: Vec<String>,
    /// `--set MAP[KEY]=VALUE`, `--set MAP=@FILE`, `--set VARIABLE=VALUE`.
    pub set: Vec<String>,
    /// `--attach PROGRAM=SECTION`: as if the program were in this section.
    pub attach: Vec<String>,
    /// `--on-gpu PROGRAM`: as if its name began with `cuda__`.
    pub on_gpu: Vec<String>,
    /// `--launch PROGRAM=GRID:BLOCK`: what runs as a kernel of its own.
    pub launch: Vec<String>,
    /// `--unsafe`: programs may end threads of kernels.
    pub allows_exit: bool,
    /// Whether function probes are only in the processes that the run names (`-- CMD`, `-p`).
    pub in_processes: bool,
    /// Whether every activity is recorded with the call that caused it: of a part of a run, or of some GPUs.
    pub joins: bool,
}

/// Reads so many bytes of a file that `--set` names, or fewer if it ends before.
pub type ReadFile<'a> = dyn Fn(&str, u64) -> io::Result<Vec<u8>> + 'a;
