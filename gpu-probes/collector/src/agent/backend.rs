//! What the agent needs from a GPU vendor's tracing library. Another vendor is another
//! implementation of [`Backend`]; nothing in the agent changes.
//!
//! ```text
//! agent   ── start, flush, stop, leave ──▶ backend          (slow paths: dynamic calls)
//! backend ── launch::enter / exit, deliver ──▶ agent        (launch path: direct calls)
//! ```

use super::device::ImageCode;
use super::{Agent, Flushing, Order};
use std::ffi::c_void;
use xputrace_wire::device::{ComputeCapabilities, Extent, ImageOutcome};
use xputrace_wire::fatbin::Memory;
use xputrace_wire::record::{Gpu, GpuLimits};

/// A library's layer in the GPU software stack: determines which frames of a launch stack belong to
/// the program.
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
    /// The library's result code, 0 if the library was not the cause.
    pub result: u32,
    pub text: String,
}

impl From<String> for Refusal {
    fn from(text: String) -> Self {
        Refusal { result: 0, text }
    }
}

/// A vendor's context: its id in records, and the library's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: u32,
    pub handle: *mut c_void,
}

/// A stream as named in a call. Handles are reused after a stream is destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// 0 is the default stream.
    pub handle: usize,
    /// Whether the default stream is the thread's own.
    pub per_thread: bool,
}

/// What a stream is to its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Its default stream.
    Null,
    /// The default stream of the calling thread.
    OfThread,
    /// One that the program created.
    Created,
}

/// One vendor's tracing library, found in this process.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Returns its version, which is not 0; sent in HELLO.
    fn version(&self) -> u32;

    /// Returns the bits of `message::demand` that it supports, beside those that the agent serves.
    fn capabilities(&self) -> u64;

    /// Returns the layer of a library, given its file name.
    fn layer_of(&self, file_name: &[u8]) -> Option<Layer>;

    /// Prepares to record what the agent's demand says, and watches what launches depend on. Called
    /// once; the agent is already recording.
    ///
    /// # Errors
    /// The library refused something. [`Backend::abandon`] is called then.
    fn start(&'static self, agent: &'static Agent) -> Result<(), Refusal>;

    /// Records, from now on, what `to` has; until now it has recorded what `from` has. Nothing is recorded after
    /// [`Backend::start`]. What `to` has in addition is recorded when this returns; of what it lacks, what is still
    /// running is delivered when it has finished. Where nothing is recorded, launches cost as little as possible. Called
    /// on any thread that is not in a launch, also in a callback about another call; by one thread at a time.
    ///
    /// # Errors
    /// The library refused something that `to` has and `from` lacks. Recording then ends for good.
    fn switch(&'static self, agent: &'static Agent, from: &Order, to: &Order) -> Result<(), Refusal>;

    /// Undoes what [`Backend::start`] did, as far as it got.
    fn abandon(&self, agent: &'static Agent);

    /// Delivers everything that has finished, on an ordinary thread without locks; returns whether
    /// all of it was delivered.
    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool;

    /// Does what cannot be done where another tool calls the library. Called by the control thread with each
    /// flush, and after [`Agent::wake`].
    fn tend(&'static self, _agent: &'static Agent) {}

    /// Stops recording activities; launches are still recorded.
    fn stop_activities(&self, agent: &'static Agent);

    /// Releases the library while the program continues, after the last flush; returns what stays
    /// behind, for the user.
    fn leave(&'static self, agent: &'static Agent) -> Option<&'static str>;

    /// Finds the code in an image that the program has loaded from this address. Called by the courier.
    ///
    /// # Errors
    /// Why none can be sent.
    fn code_in(&self, _image: u64, _memory: &mut dyn Memory) -> Result<ImageCode, ImageOutcome> {
        Err(ImageOutcome::NoPtx)
    }

    /// Runs originals from now on.
    fn stop_twins(&self) {}

    /// Has nothing of the program's be used for twins from now on.
    fn close_twins(&self) {}

    /// Returns what the process's GPUs are.
    fn compute_capabilities(&self) -> ComputeCapabilities {
        ComputeCapabilities::default()
    }

    /// Copies so much of the blocks of all contexts into the device region. Called by the worker.
    fn copy_blocks(&'static self, _agent: &'static Agent, _extent: Extent) {}

    /// Likewise for the last time; `disables` says that twins do nothing from then on. Called by the worker.
    fn leave_blocks(&'static self, _agent: &'static Agent, _disables: bool) {}

    /// Does what can be done at this moment for the tracer's programs; returns whether there is nothing more to wait for. Called
    /// by the worker.
    fn look_at_programs(&'static self, _agent: &'static Agent) -> bool {
        true
    }

    /// Gives back its memory, when nobody is in a callback of this run any more.
    fn give_back(&self) {}

    /// Calls `each` with every GPU that this process can use, what a multiprocessor of it has, and its name. Returns
    /// false, having called nothing, if they are not known yet. Called where [`Backend::flush`] is.
    fn each_gpu(&self, _each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        true
    }

    /// Returns the device id of a context, if available. Asked once per context and thread.
    fn device_of(&self, context: Context) -> Option<u32>;

    /// Returns a stream's id, if available. Asked again after [`Agent::on_stream_created`].
    fn stream_of(&self, context: Context, stream: Stream) -> Option<u32>;

    /// Returns a stream's priority, if available. Asked together with [`Backend::stream_of`], for the stream of a launch
    /// that is being made.
    fn priority_of(&self, _stream: Stream) -> Option<i32> {
        None
    }

    /// Returns what a stream is.
    fn kind_of_stream(&self, stream: Stream) -> StreamKind;
}
