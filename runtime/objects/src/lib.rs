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

mod error;
mod helpers;
mod launch;
mod maps;
mod plan;
mod section;
mod set;
mod value;
mod wishes;

pub use error::ObjectError;
pub use plan::plan;
pub use wishes::{ReadFile, Wishes};

/// Whether a file's name says that it is a compiled object.
pub fn is_object(name: &str) -> bool {
    name.ends_with(".o")
}
