//! A stand-in for `libcuda`, `libcudart` and `libcupti` on machines without a GPU.
//!
//! Tests and the demo need a program that launches kernels, and a CUPTI that reports them, on any machine.
//! Streams, events, graphs, correlation ids, callbacks and activity buffers are real here; only the times mean
//! nothing. The device says what it is: its name is `xputrace software GPU`.
//!
//! # Use
//! The built library is one file. [`install`] puts it into a directory together with symbolic links of the
//! CUDA names (one inode, so one state whichever name a program opens); that directory goes in front of
//! `LD_LIBRARY_PATH`.
//!
//! # Kernels
//! A kernel is a host function that the program registers by name: [`softgpu_register_kernel`], found with `dlsym`
//! in `libcuda.so.1`. It is called once per **block**, on the stream's thread, blocks in order of x, then y,
//! then z; it loops over its threads itself. A module is any image; PTX is read for the names and parameters of its
//! entries and never executed. A launch of a kernel that nobody registered fails with `CUDA_ERROR_NOT_FOUND` (500),
//! and `SOFTGPU_VERBOSE=1` says which one it was.
//!
//! Arguments are copied at the launch, as the driver does. Their sizes come from the module's PTX, or from
//! [`softgpu_register_kernel_params`]; where neither is known the kernel gets a null `args`.
//!
//! # Faults, by environment
//! | variable | meaning |
//! |---|---|
//! | `SOFTGPU_DROP=1/n` | every n-th activity record is dropped, and counted as CUPTI counts them |
//! | `SOFTGPU_LATE_MS=ms` | completed buffers are handed over that much later, by the worker, flush or not |
//! | `SOFTGPU_NO_TIMES=1/n` | every n-th record has start = end = 0 ("not collected") |
//! | `SOFTGPU_CUPTI_VERSION=n` | what `cuptiGetVersion` answers; 130001 unless set |
//! | `SOFTGPU_FAIL_LAUNCH=n` | every n-th kernel launch fails with `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` (701) |
//! | `SOFTGPU_FAIL=function:code,…` | these calls (driver, runtime or CUPTI) answer the code and do nothing else |
//! | `SOFTGPU_BUSY_NS=n` | every kernel takes at least that long |
//! | `SOFTGPU_VERBOSE=1` | reasons of failed calls on stderr |
//!
//! # What is different from a GPU
//! - Static cudart does not run: it wants private tables of the driver (`cuGetExportTable`).
//! - Device memory is host memory; there is one device, without peers, textures or arrays.
//! - A captured graph runs its nodes one after the other, in the order of capture.
//! - CUDA calls that a tool makes inside a callback fire no callbacks.
//! - NVIDIA's libraries keep frame pointers. This one does where it is built with `RUSTFLAGS="-C force-frame-pointers=yes"`:
//!   Cargo has no stable setting for it in a manifest. Without, a walk from a callback needs `.eh_frame`.
//! - Functions that are missing are missing symbols, so that a program says so.
//!
//! # Where structures and ids come from
//! They are written from CUDA's public headers and checked by tests against `gpu-probes/layouts`, which a program
//! printed on a real GPU. Which calls nest, share a correlation id and are withheld by a flush was measured there too.
#![allow(clippy::print_stderr, reason = "what stands in for a driver is asked to speak by its variables")]

mod abi;
mod activity;
mod callback;
pub mod cupti;
mod device;
pub mod driver;
mod faults;
mod graph;
mod install;
mod kernel;
mod names;
mod operation;
pub mod runtime;
mod stream;

pub use abi::{CuLaunchConfig, CudaLaunchConfig, Dim3, Extent, PitchedPtr, SoftLaunch};
pub use install::{InstallError, Installed, LIBRARY_NAMES, built_library, install, install_from};
pub use kernel::{KernelFunction, softgpu_register_kernel, softgpu_register_kernel_params};

/// What `cuDeviceGetName` answers.
pub const DEVICE_NAME: &str = "xputrace software GPU";
