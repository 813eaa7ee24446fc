//! NVIDIA's folder: what the agent needs of CUDA's libraries in the traced program.
//!
//! [`cupti`] is the backend by CUPTI, with twins of kernels. [`sanitizer`] takes its place where machine code is patched.
//! [`nvtx`] follows the ranges that the program marks.
//!
//! It knows no tracer: rings, ids, stacks and messages are the agent's.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod cupti;
mod nvtx;
pub mod sanitizer;

use cupti::CuptiBackend;
use cupti::locate::{self, LoadedCupti};
use nvtx::NvtxRanges;
use sanitizer::SanitizerBackend;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_agent::{Backend, Came, Vendor, World, refusal_of_calls};
use xputrace_wire::CHAIN_VARIABLE;
use xputrace_wire::calls::LOOKING_CALLS;

/// What the CUDA driver takes for success of an injection library.
pub const SUCCESS: c_int = 1;

/// NVIDIA, as the agent asks it.
pub static NVIDIA: Nvidia = Nvidia;

#[derive(Debug)]
pub struct Nvidia;

impl Vendor for Nvidia {
    fn world(&self, came: Came) -> World {
        let is_late = came == Came::Later;
        let chained = if let Came::AtInit { chained } = came { chained } else { None };
        let (backend, library): (Option<Box<dyn Backend>>, String) = match locate::find() {
            Ok(LoadedCupti { cupti, path, was_loaded }) => {
                let backend = CuptiBackend::new(cupti, cupti::driver::find_driver(), chained.is_some());
                let backend = if is_late { backend.may_be_used(was_loaded) } else { backend.is_first() };
                (Some(Box::new(backend)), path)
            }
            Err(why) => (None, why),
        };
        let (patches, no_patches) = (Some(find_patches as _), no_patches());
        World { backend, patches, no_patches, library, chained, ranges: Some(&NvtxRanges) }
    }
}

/// Returns why machine code can't be patched in this process, as far as that is known before.
fn no_patches() -> Option<String> {
    refusal_of_calls(LOOKING_CALLS, "looking for NVIDIA's Sanitizer API takes")
        .or_else(|| SanitizerBackend::is_there().err())
}

fn find_patches() -> Result<Box<dyn Backend>, String> {
    SanitizerBackend::find().map(|it| Box::new(it) as Box<dyn Backend>)
}

/// Runs the injection library whose place we took, once; returns what came of it.
pub fn run_chained() -> Option<String> {
    static RAN: AtomicBool = AtomicBool::new(false);
    let path = std::env::var(CHAIN_VARIABLE).ok().filter(|it| !it.is_empty())?;
    (!RAN.swap(true, Ordering::AcqRel)).then(|| locate::run_chained(&path))
}
