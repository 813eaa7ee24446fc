//! Runs twins in place of kernels: what happens in the program's calls.
//!
//! ```text
//! module load, EXIT ─▶ image ─▶ tracer ─▶ twin ─▶ worker: loads it, prepares the context     (waits)
//! launch, ENTER ─▶ context prepared? ─▶ handle known there? ─▶ its twin fits? ─▶ `f` is the twin
//! unload, ENTER ─▶ the image's handles are forgotten
//! launch of a kernel that was loaded before we came ─▶ its name ─▶ tracer ─▶ twin ─▶ worker      (nobody waits: [`early`])
//! ```
//! A context is prepared on its first launch, or where a module is loaded: it gets a block, and the twins of all images
//! that are loaded by then. Only that waits; other launches take no lock. What the worker does is in [`work`].

pub mod arguments;
mod callbacks;
mod calls;
pub(crate) mod choosing;
mod clocks;
mod code;
mod contexts;
mod early;
mod early_table;
mod image;
mod lease;
mod loaded;
mod modules;
mod nodes;
mod own;
mod programs;
mod state;
mod streams;
pub(crate) mod table;
mod timer;
mod work;

pub use calls::{NodeLayout, Origin, TWIN_IDS, TwinCallRole, offset};
pub(crate) use image::find_code;
pub(super) use state::Twins;
pub(crate) use timer::{Calls, GpuTimer, guess};
