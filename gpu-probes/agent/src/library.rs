//! What a GPU vendor's tracing library is asked, whoever asks: its facts, and what its handles stand for.

use std::ffi::c_void;
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
pub trait Library: std::fmt::Debug + Send + Sync {
    /// Returns its version, which is not 0; sent in HELLO.
    fn version(&self) -> u32;

    /// Returns the bits of `message::demand` that it supports, beside those that the agent serves.
    fn capabilities(&self) -> u64;

    /// Returns the layer of a library, given its file name.
    fn layer_of(&self, file_name: &[u8]) -> Option<Layer>;

    /// Calls `each` with every GPU that this process can use, what a multiprocessor of it has, and its name. Returns
    /// false, having called nothing, if they are not known yet. Called on an ordinary thread without locks.
    fn each_gpu(&self, _each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        true
    }

    /// Returns the device id of a context, if available. Asked once per context and thread.
    fn device_of(&self, context: Context) -> Option<u32>;

    /// Returns a stream's id, if available. Asked again after `Agent::on_stream_created`.
    fn stream_of(&self, context: Context, stream: Stream) -> Option<u32>;

    /// Returns a stream's priority, if available. Asked together with [`Library::stream_of`], for the stream of a launch
    /// that is being made.
    fn priority_of(&self, _stream: Stream) -> Option<i32> {
        None
    }

    /// Returns what a stream is.
    fn kind_of_stream(&self, stream: Stream) -> StreamKind;
}
