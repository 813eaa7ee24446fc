//! PTX, NVIDIA's assembly language, as text: a parser, a printer, and a weaver that puts statements into
//! kernels. "PTX ISA" in this crate is NVIDIA's "Parallel Thread Execution ISA", version 9.0.
//!
//! ```text
//! text ──Module::parse──▶ Module ──only, redirect, weave, rename──▶ Module ──Display──▶ text
//!                           └──faithful──▶ what keeps a copy from doing what the original does
//! ```
//!
//! The tree keeps all that a text says but comments and white space, so that an instruction which this crate has
//! never heard of is printed as it was. Of the meaning of instructions it knows only what weaving needs: where
//! control goes, and what memory is accessed.
//!
//! This crate knows nothing of eBPF, scripts or CUDA's functions, and does no I/O.
#![forbid(unsafe_code)]

mod access;
mod calls;
mod declare;
mod error;
mod faithful;
mod instruction;
mod lex;
mod names;
mod parse;
mod print;
mod reach;
mod redirect;
mod tree;
mod visit;
mod weave;

pub use access::{AccessKind, MemoryAccess};
pub use calls::Calls;
pub use error::ParseError;
pub use faithful::Obstacle;
pub use instruction::{Space, type_bits};
pub use parse::parse_statements;
pub use reach::RenameError;
pub use redirect::{GLOBALS, Linkage, RedirectError, Variable};
pub use tree::*;
pub use weave::{ADDRESS, Line, Point, Site, WeaveError};
