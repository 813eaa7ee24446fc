//! A stand-in for `libcuda`, `libcudart` and `libcupti` on machines without a GPU.
//!
//! Tests and the demo need a program that launches kernels, and a CUPTI that reports them, on any
//! machine. Streams, events, graphs, correlation ids, callbacks and activity buffers are real; only
//! the times mean nothing. The device's name is `xputrace software GPU`.
//!
//! # Use
//! The built library is one file. [`install`] copies it into a directory and links the CUDA names
//! to it (one inode, so all names share one state). Put that directory in front of
//! `LD_LIBRARY_PATH`.
//!
//! # Kernels
//! A kernel is a host function. The program finds [`softgpu_register_kernel`] with `dlsym` in
//! `libcuda.so.1` and registers the function by name. It is called once per **block**, on the
//! stream's thread, blocks in order of x, then y, then z; it loops over its threads itself. Any
//! image loads as a module; of PTX, only the names and parameters of entries are read. Launching an
//! unregistered kernel fails with `CUDA_ERROR_NOT_FOUND` (500), and `SOFTGPU_VERBOSE=1` names it.
//!
//! Arguments are copied at launch, as in the driver. Their sizes come from the module's PTX or from
//! [`softgpu_register_kernel_params`]; if neither is known, the kernel gets a null `args`.
//!
//! # Callbacks
//! `softgpu_callbacks_entered` returns how often a tool's callback was called, at entry or return;
//! `softgpu_records_kind` whether a kind of activity is recorded now; `softgpu_waiting_threads` how many
//! threads wait for the GPU.
//!
//! # Fault injection
//! | variable | meaning |
//! |---|---|
//! | `SOFTGPU_DROP=1/n` | drop every n-th activity record, and count it as CUPTI does |
//! | `SOFTGPU_LATE_MS=ms` | deliver completed buffers that much later, flush or not |
//! | `SOFTGPU_NO_TIMES=1/n` | set start = end = 0 ("not collected") in every n-th record |
//! | `SOFTGPU_CUPTI_VERSION=n` | return n from `cuptiGetVersion`; default 130001. From 130500 on subscribers share CUPTI |
//! | `SOFTGPU_FAIL_LAUNCH=n` | fail every n-th kernel launch with `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES` (701) |
//! | `SOFTGPU_FAIL=function:code,…` | make these calls (driver, runtime or CUPTI) return the code and do nothing |
//! | `SOFTGPU_NO_CALLBACK=function,…` | CUPTI does not know the callbacks of these functions, by CUPTI's own names |
//! | `SOFTGPU_BUSY_NS=n` | make every kernel take at least n nanoseconds |
//! | `SOFTGPU_COPY_PART=n` | copy pageable memory in parts of at most n bytes, each with a record |
//! | `SOFTGPU_NO_HOST_COPIES=1` | have no record of a copy within the host's memory that a call makes itself |
//! | `SOFTGPU_FIRST_CORRELATION=n` | give the first call that has one the correlation id n; they start over after 2³² |
//! | `SOFTGPU_DEVICES=n` | have n GPUs; default 1. `CUDA_VISIBLE_DEVICES` selects and orders them |
//! | `SOFTGPU_VERBOSE=1` | explain failing calls on stderr |
//!
//! # Differences from a GPU
//! - Statically linked cudart does not work: it needs private driver tables (`cuGetExportTable`).
//! - Device memory is host memory, which all devices share; there are no textures or arrays.
//! - A captured graph runs its nodes one after another, in capture order.
//! - CUDA calls that a tool makes inside a callback fire no callbacks.
//! - NVIDIA's libraries keep frame pointers. This one doesn't: a walk from its callbacks needs
//!   `.eh_frame`.
//! - Functions that are not implemented are missing symbols, so programs name them.
//!
//! # Source of structures and ids
//! They follow CUDA's public headers, and tests compare them with `gpu-probes/layouts`, dumped by a
//! program on a real GPU. The nesting of calls, the sharing of correlation ids and what a flush
//! holds back were measured there too.

mod abi;
mod activity;
mod callback;
mod capture;
mod context_switch;
mod contexts;
mod copy;
pub mod cupti;
mod device;
mod devices;
pub mod driver;
mod faults;
mod forks;
mod graph;
mod install;
mod kernel;
mod memory;
mod names;
mod operation;
mod registry;
pub mod runtime;
mod stream;
mod threads;
mod unified;
mod users;

pub use abi::{CuLaunchConfig, CudaLaunchConfig, Dim3, Extent, Memcpy3DParms, PitchedPtr, SoftLaunch};
pub use activity::softgpu_records_kind;
pub use callback::softgpu_callbacks_entered;
pub use install::{InstallError, Installed, LIBRARY_NAMES, built_library, install, install_from};
pub use kernel::{KernelFunction, softgpu_register_kernel, softgpu_register_kernel_params};
pub use stream::softgpu_waiting_threads;

// The linker calls what is in here (`build.rs`).
core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old_glibc.s")));

/// The name that `cuDeviceGetName` returns.
pub const DEVICE_NAME: &str = "xputrace software GPU";
