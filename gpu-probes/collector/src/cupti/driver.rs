//! The few functions of the CUDA driver that are called directly.

use super::Handle;
use crate::agent::Stream;
use std::ffi::{CStr, c_void};

/// What CUPTI left in a driver library: how to ask whether a stream is being captured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Driver {
    /// `cuStreamIsCapturing(stream, &status)`.
    pub is_capturing: Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>,
    /// The same for the variant whose default stream is the thread's own.
    pub is_capturing_ptsz: Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>,
}

impl Driver {
    /// Whether work in this stream would be recorded into a graph.
    pub(crate) fn is_capturing(&self, stream: Stream) -> bool {
        let ask = if stream.per_thread { self.is_capturing_ptsz.or(self.is_capturing) } else { self.is_capturing };
        let mut status = 0;
        // SAFETY: the stream of the launch that is being made, and a live u32.
        ask.is_some_and(|ask| unsafe { ask(stream.handle as Handle, &mut status) == 0 } && status != 0)
    }
}

/// The functions of the driver that is mapped; empty where there is none.
pub(crate) fn find_driver() -> Driver {
    // SAFETY: only looks at what is mapped; the driver's own functions by their names.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return Driver::default();
        }
        let find = |name: &CStr| {
            std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn(Handle, *mut u32) -> u32>>(libc::dlsym(
                library,
                name.as_ptr(),
            ))
        };
        Driver { is_capturing: find(c"cuStreamIsCapturing"), is_capturing_ptsz: find(c"cuStreamIsCapturing_ptsz") }
    }
}
