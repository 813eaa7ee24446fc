//! Addresses → named frames; mangled names → readable ones.
//!
//! ```text
//! mappings of a process ──▶ Processes ──resolve──▶ Frames
//!                              │
//!                              └─ files, opened when first seen, so names outlive the process
//! ```
//! A missing symbol is never an error: a frame without a name shows its address. This crate does
//! not know who took a stack.
#![forbid(unsafe_code)]

mod debug_file;
mod demangle;
mod elf_file;
mod excerpt;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod images;
mod jit;
mod lines;
mod object;
mod omission;
mod process;
mod python;
mod table;
mod vdso;

pub use demangle::{Demangled, demangle, with_parameters};
pub use images::Images;
pub use lines::may_panic;
pub use object::{MappedObject, Proof};
pub use omission::{Omission, TooMuch};
pub use process::{
    ANONYMOUS, Detail, Mapping, ProcessKey, Processes, is_without_frame_pointers, with_unknown_mappings,
};
pub use python::{is_unknown_python, python_frame, shown};
pub use xputrace_boundary::read::open as open_regular;
