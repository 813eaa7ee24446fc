//! The binary format shared by the collector, in the target, and the tracer.
//!
//! ```text
//! target                                            tracer
//! callback ──record──▶ ring of its thread ──bytes──▶ decode
//!          region: one sealed memfd a process, control page first, then the rings
//! collector ◀──────── message on a socket ─────────▶ rendezvous
//! ```
//!
//! This crate knows nothing of scripts or eBPF, and of CUPTI only where its library may lie. What
//! the tracer reads here is untrusted: it copies the bytes before looking at them, and every
//! decoder accepts any bytes.
#![deny(unsafe_code)]

pub mod answer;
pub mod calls;
pub mod device;
pub mod limits;
pub mod maps;
pub mod marker;
pub mod message;
pub mod nvidia;
mod prefetch;
pub mod record;
pub mod region;
pub mod ring;
pub mod status;
pub mod stored;
pub mod times;
pub mod totals;
pub mod vendor;

pub use answer::Answer;
/// The functions of the GPU's API, by number.
pub use xputrace_cuda_calls as api;
pub use xputrace_events as events;

/// Changes with every layout in this crate; each side refuses a peer of another version.
pub const VERSION: u32 = 29;

/// The collector's function, without parameters and result, that waits until the programs have ended that the tracer runs in this
/// process in kernels of their own. xputrace calls it where it is the process itself.
pub const WAIT_FOR_PROGRAMS: &str = "xputrace_wait_for_programs";

/// Environment variable that names the tracer's sockets: `@NAME` in the abstract namespace, a path, or both as
/// `@NAME:PATH`.
pub const SOCKET_VARIABLE: &str = "XPUTRACE_SOCKET";

/// Name of the collector's threads in a process that is armed, or about to be. The tracer recognizes such a process by it.
pub const COLLECTORS_THREAD: &str = "xputrace";

/// Environment variable that names the library that CUDA loads at a process's first call.
pub const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";

/// Environment variable that holds the earlier value of `NVTX_INJECTION64_PATH`, so that the collector can chain to it.
pub const CHAINED_RANGES_VARIABLE: &str = "XPUTRACE_CHAINED_NVTX";

/// Environment variable that holds the name of the NVTX ranges to record, or `NAME@DOMAIN`.
pub const RANGE_VARIABLE: &str = "XPUTRACE_RANGE";

/// Environment variable that holds the earlier value of `CUDA_INJECTION64_PATH`, so that the
/// collector can chain to it.
pub const CHAIN_VARIABLE: &str = "XPUTRACE_CHAINED_INJECTION";
