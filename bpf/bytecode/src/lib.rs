//! eBPF, the one bytecode of xputrace: instructions, an assembler, the ELF object with BTF that
//! libbpf, bpftool and aya load, and an engine that runs the same programs in user space.
//!
//! ```text
//! compiler ──Assembler──▶ Image ─┬─ object ──▶ ELF ──▶ Linux (libbpf)
//!                                └─ vm ──────▶ the tracer's engine
//! ```
//!
//! This crate knows nothing of scripts, events or processes, and does no I/O.
#![forbid(unsafe_code)]

pub mod asm;
pub mod callers;
pub mod disasm;
pub mod helper;
mod id;
pub mod image;
pub mod insn;
pub mod object;
pub mod probe;
pub mod targets;
pub mod usdt;
pub mod vm;

pub use asm::{Assembler, Label};
pub use id::{BpfMapId, ProgramId};
pub use image::{Home, Image, Line, MapKind, MapSpec, Program, ProgramKind};
pub use insn::{Insn, Reg};
