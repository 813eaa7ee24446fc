//! What the agent needs of a GPU vendor's tracing library. A second vendor is one more
//! implementation of [`Backend`]; nothing in the agent changes.
//!
//! ```text
//! agent   ── start, flush, stop, leave ──▶ backend          (slow paths: dynamic calls)
//! backend ── launch::enter / exit, deliver ──▶ agent        (launch path: direct calls)
//! ```

use super::{Agent, Flushing};
use std::ffi::c_void;

/// Where in the software of a GPU a library stands: decides which frames of a launch stack are
/// the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The tracing library, which calls us.
    Tracing,
    Driver,
    /// What programs usually call; it calls the driver.
    Runtime,
}

/// Why arming failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The library's result, 0 where it was not the library.
    pub result: u32,
    pub text: String,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal { result: 0, text }
    }
}

/// A context of the vendor's: its id in records, and the handle that the library knows it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: u32,
    pub handle: *mut c_void,
}

/// A stream as a call names it. Handles are used again when a stream is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// 0 is the default stream.
    pub handle: usize,
    /// The default stream is the thread's own.
    pub per_thread: bool,
}

/// One vendor's tracing library, found in this process.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Its version, not 0; told in HELLO.
    fn version(&self) -> u32;

    /// The bits of `message::demand` that it can serve.
    fn capabilities(&self) -> u64;

    /// The layer that a library belongs to, by the last part of its path.
    fn layer_of(&self, file_name: &[u8]) -> Option<Layer>;

    /// Begins to record what the agent's demand says. Called once; the agent records from before.
    ///
    /// # Errors
    /// What the library refused. [`Backend::abandon`] is called then.
    fn start(&'static self, agent: &'static Agent) -> Result<(), Refusal>;

    /// Takes back what [`Backend::start`] did, as far as it came.
    fn abandon(&self, agent: &'static Agent);

    /// Has everything delivered that has finished, from an ordinary thread without a lock; whether
    /// all of it was.
    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool;

    /// No activity is recorded any more; launches still are.
    fn stop_activities(&self, agent: &'static Agent);

    /// Lets go of the library while the program goes on, after the last flush; returns what stays
    /// behind, for the user.
    fn leave(&'static self, agent: &'static Agent) -> Option<&'static str>;

    /// The id of a context's device, where it can be told. Asked once for each context of a thread.
    fn device_of(&self, context: Context) -> Option<u32>;

    /// The id of a stream, where it can be told. Asked again after [`Agent::on_stream_created`].
    fn stream_of(&self, context: Context, stream: Stream) -> Option<u32>;
}
