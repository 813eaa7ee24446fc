//! Runs a plan over a recording, as if it were live.
//!
//! ```text
//! hits, launch starts ─by time─▶ programs of Linux ──────tags─┐
//! drains, in their order ────────────────────────────────────▶ pipeline
//! ```
//! GPU events go through the same pipeline as live ones. For hits of CPU probes, the engine runs
//! the programs that Linux would run, on what was recorded of each hit. Linux's launch handlers run
//! at the start of their launch, and set its tag before it is joined. All maps are the engine's.
#![forbid(unsafe_code)]

mod check;
mod cpu_env;
mod everything;
mod linux_handlers;
mod opened;
mod playing;
mod tape;

pub use check::ReplayError;
pub use everything::every_event;
pub use opened::{Opened, open};
pub use playing::{Playing, ReplayOutcome, ReplaySink};
