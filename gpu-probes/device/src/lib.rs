//! eBPF inside CUDA kernels: translates a program to a block of PTX, and says how the memory is laid out that
//! the block and the host share.
//!
//! ```text
//! Program ──flat──▶ nodes ──analyse──▶ types of registers ──emit──▶ { PTX } ──(woven into a kernel by others)
//!           calls inlined                                              │
//!                                        table, maps, ring ◀───────────┘──▶ readers for the host
//! ```
//!
//! The bytecode means what it means in the other engines (RFC 9669). The block takes no parameters: it finds its
//! maps through one variable of the module, [`layout::VARIABLE`], or through a register. Its registers and labels are in its own scope,
//! so a kernel may hold any number of blocks. It never faults, hangs, or writes outside of its maps, whatever the
//! program: what the types don't prove is tested at run time.
//!
//! This crate knows nothing of scripts, of CUDA's API, or of the kernels that its text becomes part of.
#![forbid(unsafe_code)]

mod analyse;
pub mod arena;
mod block;
mod emit;
mod flat;
pub mod layout;
mod request;
pub mod sums;
mod value;
mod written;

pub use block::{PtxBlock, RecordKind, Refusal, Site, SiteKind};
pub use layout::{DeviceMap, Scope, Storage};
pub use request::{LEAST_ARCHITECTURE, LEAST_PTX_VERSION, Options, Request, TableAt, Word};
pub use sums::{Sum, Sums};

/// Translates a program.
///
/// # Errors
/// An instruction or a helper that the device lacks, a pointer whose kind isn't known, or an access that is
/// outside of its map or the stack.
pub fn translate(request: Request<'_>) -> Result<PtxBlock, Refusal> {
    let flat = flat::flatten(request.program, request.maps.len())?;
    let types = analyse::analyse(&flat, &request);
    emit::emit(&flat, &types, &request)
}
