//! Addresses → named frames; mangled names → readable ones.
//!
//! ```text
//! mappings of a process ──▶ Processes ──resolve──▶ Frames ──▶ SymbolTable (for recordings)
//!                              │
//!                              └─ files, opened when first seen, so names outlive the process
//! ```
//! Missing symbols are never an error: a frame without a name has its address. Nothing here
//! knows who took a stack.
#![forbid(unsafe_code)]

mod demangle;
mod file;
mod images;
mod jit;
mod process;
mod table;
mod vdso;

pub use demangle::{Demangled, demangle};
pub use images::Images;
pub use process::{ANONYMOUS, Innermost, Mapping, ProcessKey, Processes, is_without_frame_pointers};
pub use table::SymbolTable;
