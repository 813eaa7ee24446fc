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

mod arguments;
mod block_end;
mod conflicts;
mod handler;
mod image;
mod kept;
mod kernels;
mod maker;
mod maps;
mod patches;
mod program;
mod programs;
mod refusal;
mod sharing;
mod spot;
mod target;
mod text;
mod times;
mod twin_text;
mod weaving;
mod words;

pub use handler::{Handler, HandlerSite, Origin, Wanted};
pub use image::ImageTwins;
pub use maker::Maker;
pub use maps::GpuMap;
pub use patches::PatchesText;
pub use program::{Images, NoCode, ReadError, cubin_in, entries_of, images_of, kernels_of, parameters_of, ptx_in};
pub use programs::{ProgramKernel, ProgramsText};
pub use refusal::{MakerError, NoTwin, Refused};
pub use text::{Gpu, TextError, best, text};
pub use twin_text::TwinText;
pub use xputrace_device::RecordKind;
