//! The bytes that the collector in the target and the tracer share.
//!
//! ```text
//! target                                            tracer
//! callback ──record──▶ ring of its thread ──bytes──▶ decode
//!          region: one sealed memfd a process, control page first, then the rings
//! collector ◀──────── message on a socket ─────────▶ rendezvous
//! ```
//!
//! Knows nothing of scripts or eBPF, and of CUPTI only where its library may lie. What the tracer reads from here is untrusted: it copies bytes
//! out before it looks at them, and every decoder accepts any bytes.
#![deny(unsafe_code)]

pub mod cupti;
pub mod maps;
pub mod marker;
pub mod message;
pub mod record;
pub mod region;
pub mod ring;
pub mod status;

pub use xputrace_events as events;

/// Changes whenever a layout in this crate does; both sides refuse another one.
pub const VERSION: u32 = 3;

/// Environment variable that names the tracer's sockets: `@NAME` in the abstract namespace, a path, or both as
/// `@NAME:PATH`.
pub const SOCKET_VARIABLE: &str = "XPUTRACE_SOCKET";

/// Environment variable with an earlier value of `CUDA_INJECTION64_PATH`, to be chained.
pub const CHAIN_VARIABLE: &str = "XPUTRACE_CHAINED_INJECTION";
