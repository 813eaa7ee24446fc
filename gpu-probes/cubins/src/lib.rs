//! Compiles PTX to cubins with a `ptxas` of this machine, and keeps them on disk.
//!
//! ```text
//! PTX, architecture ──Compiler──▶ Cubin: machine code, what its kernels use
//!                      │     ▲
//!                      ▼     └── Cache: files by a hash of all that they were made of
//!                    Ptxas: a program, run as the user whose code it is
//! ```
//! PTX comes from programs that are not trusted, and so may the `ptxas`: it runs with the rights of those programs' user,
//! and what it makes is for that user's programs alone. Who that is, and where to look for a `ptxas`, the caller says.

mod cache;
mod compiler;
#[doc(hidden)]
pub mod fuzzing;
mod ptxas;
mod usage;

pub use cache::{Cache, CacheError};
pub use compiler::{Compiler, Cubin, NoCubin, Order};
pub use ptxas::{Failure, Ptxas, Purpose};
pub use usage::{StackUsage, Usage};
