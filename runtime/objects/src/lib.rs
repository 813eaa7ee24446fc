//! A compiled object, by libbpf's and bpftime's rules → `Plan`.
//!
//! ```text
//! bytes ─object::read─▶ Contents ─┬─ sections ─▶ probes: where each program runs
//!                                 ├─ maps ─────▶ the image's maps, by bpftime's numbers
//!                                 └─ --set ────▶ what they begin with
//! ```
//!
//! It takes the place of `script` for a run whose programs are compiled already. Like it, it does no I/O, and knows no
//! process and no output.
//!
//! Source of the rules: bpftime's `runtime/include/bpftime_prog.hpp`, `runtime/include/bpftime_shm.hpp` and
//! `attach/nv_attach_impl`; libbpf's documentation of `SEC()` names.
#![forbid(unsafe_code)]

mod helpers;
mod launch;
mod maps;
mod plan;
mod section;
mod set;
mod value;

use std::io;
use xputrace_bytecode::object::ReadError;

pub use plan::plan;

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

/// Why an object can't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("map `{map}`: {what}")]
    Map { map: String, what: String },
    #[error("section `{section}`, program `{program}`: {what}")]
    Program { section: String, program: String, what: String },
    #[error("section `{section}`, program `{program}`, instruction {insn}{line}: {what}")]
    Insn {
        section: String,
        program: String,
        insn: usize,
        /// Where it is in the source: ` (x.bpf.c:3)`, or empty.
        line: String,
        what: String,
    },
    #[error("it has no programs: give a function a section, such as SEC(\"kprobe/KERNEL\")")]
    NoPrograms,
    #[error("it counts losses of an unknown kind, `{0}`: build it again, by this version of xputrace")]
    Loss(String),
    /// A line each.
    #[error("several programs are wrong:{0}")]
    Several(String),
    #[error("{option}: {what}")]
    Option { option: String, what: String },
}

impl ObjectError {
    /// Says everything that is wrong.
    fn all(mut errors: Vec<ObjectError>) -> Result<(), ObjectError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(ObjectError::Several(errors.iter().map(|it| format!("\n  {it}")).collect())),
        }
    }
}

/// Whether a file's name says that it is a compiled object.
pub fn is_object(name: &str) -> bool {
    name.ends_with(".o")
}

/// Returns the names as the end of a sentence: `a, b`.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
