//! The vendor-neutral part of the library inside the traced program: rings, ids, stacks, and the tracer's orders.
//!
//! ```text
//! the GPU's library starts ─▶ begin ─▶ socket named in the environment ─▶ HELLO
//!                                      DORMANT or nobody there: one blocked thread (dormant)
//!                                      ARM: map the region, start the backend, ARMED
//! launch ─▶ backend ─▶ launch ───▶ ring of the launching thread
//! buffer ─▶ backend ─▶ delivery ─▶ ring of the backend's thread
//! thread "xputrace": flush, DISARM or tracer gone ─▶ leave;   exit ─▶ last flush
//! ```
//!
//! A vendor is a [`Vendor`], which finds a [`Backend`]. The agent names none.
//!
//! It lives in other people's processes. It never runs user code, holds no lock during a backend's
//! call, allocates nothing at a launch after a thread's first, lets no panic out, and drops and
//! counts what does not fit. Whatever goes wrong, the program continues.
//!
//! Of a launch stack it keeps the API function's frame and everything outside it ([`stack`]).

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod agent;
mod arming;
pub mod backend;
mod beginning;
pub mod clock;
mod control;
pub mod delivery;
pub mod device;
mod dormant;
pub mod external;
mod flushing;
pub mod host_call;
pub mod intern;
pub mod launch;
mod leaving;
pub mod library;
mod mappings;
mod marker;
mod nodes;
mod output;
mod phase;
mod presence;
mod python;
pub mod ranges;
pub mod region;
pub mod rendezvous;
pub mod resources;
mod seccomp;
pub mod stack;
mod state;
mod surroundings;
mod switching;
mod threads;
mod vendor;
mod window;
mod yielding;
pub mod zeroed;

pub use agent::{Agent, current};
pub use arming::{Dormant, answer_tracer, arm, begin};
pub use backend::{ArmRefusal, Backend, Flushing, KernelCode};
pub use library::{Context, Layer, Library, Stream, StreamKind};
pub use marker::xputrace_launch_marker;
pub use presence::Inside;
pub use seccomp::refusal as refusal_of_calls;
pub use state::held::Held;
pub use state::selection::Selection;
pub use state::switching::Order;
pub use state::this_thread::{ThisThread, this_thread, untraced};
pub use state::yielding::Conflict;
pub use vendor::{Came, FindBackend, Ranges, Vendor, World};
pub use window::ranges_changed;

use std::sync::Once;

/// Waits until the tracer's programs have ended, if they run in this process.
pub fn wait_for_programs() {
    current().into_iter().for_each(Agent::wait_for_programs);
}

/// Silences panics: they are caught and counted, and their text is not for the program's terminal.
/// Affects only this library's copy of the standard library.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| ())));
}
