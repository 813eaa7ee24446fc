//! Makes twins: a copy of some kernels of an image that a program has loaded, with handlers woven in.
//!
//! ```text
//! Image (PTX by GPU, compressed) ──text──▶ PTX ──Maker──▶ TwinText: PTX, kernels, variables of the original
//!                                                 ▲
//!                handlers (eBPF), maps ───────────┘
//! ```
//!
//! For kernels without PTX it makes patches of the same handlers: functions that their machine code is made to call.
//!
//! Of programs that name no kernel it makes kernels of their own.
//!
//! It also finds the code for GPUs in programs and libraries on disk.
//!
//! It knows nothing of scripts: which handlers a kernel gets is asked of the caller, by the kernel's symbol. It knows
//! nothing of processes: an image is bytes, and so is a twin.
#![forbid(unsafe_code)]

mod block_end;
mod conflicts;
mod image;
mod kept;
mod maker;
mod patches;
mod program;
mod programs;
mod sharing;
mod text;
mod times;

use sharing::MOST_COPIES;
use xputrace_wire::device::MOST_KERNEL_CONDITIONS;

pub use image::{ImageTwins, Refused};
pub use maker::{GpuMap, Handler, HandlerSite, Maker, MakerError, Origin, TwinText, Wanted};
pub use patches::{NoCode, PatchesText};
pub use program::{Images, ReadError, cubin_in, entries_of, images_of, kernels_of, parameters_of, ptx_in};
pub use programs::{ProgramKernel, ProgramsText};
pub use text::{Gpu, TextError, best, text};
pub use xputrace_device::RecordKind;

/// Why an image, or one of its kernels, has no twin, although handlers want it.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("its PTX can't be read")]
    Parse(#[from] xputrace_ptx::ParseError),
    #[error("its PTX is for {target}: handlers need sm_70 and PTX 7.0 or later")]
    TooOld { target: String },
    #[error("it can't be copied faithfully: {0}")]
    Obstacles(String),
    #[error("a handler can't run there: {0}")]
    Refused(xputrace_device::Refusal),
    #[error("its PTX doesn't say which lines it was compiled from, as it does with nvcc's option -lineinfo")]
    NoLines,
    #[error("with it, more than {MOST_COPIES} functions would be copied that kernels with other handlers call, too")]
    Copies,
    #[error(
        "its handlers run at {n} different choices of launches; the limit is {MOST_KERNEL_CONDITIONS}: handlers with the same \
         `every` and `tag`, of one declaration if it is switched, share one"
    )]
    Conditions { n: usize },
    #[error("weaving")]
    Weave(#[from] xputrace_ptx::WeaveError),
    #[error("its variables can't be shared")]
    Redirect(#[from] xputrace_ptx::RedirectError),
    #[error("naming the twin")]
    Rename(#[from] xputrace_ptx::RenameError),
}
