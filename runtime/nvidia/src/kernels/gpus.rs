//! What this machine's GPUs are, by NVIDIA's management library: before CUDA has started in a process, the driver does not tell it
//! there.

use libloading::{Library, Symbol};
use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::OnceLock;

const LIBRARY: &str = "libnvidia-ml.so.1";
/// `NVML_SUCCESS` in `nvml.h`.
const SUCCESS: c_int = 0;

/// Returns the compute capability of the GPUs, such as 90; `None` if they differ, or nobody tells it.
pub fn capability() -> Option<u32> {
    static KNOWN: OnceLock<Option<u32>> = OnceLock::new();
    *KNOWN.get_or_init(asked)
}

fn asked() -> Option<u32> {
    // SAFETY: its initializers do no harm. It stays loaded: it may start threads.
    let library = ManuallyDrop::new(unsafe { Library::new(LIBRARY) }.ok()?);
    // SAFETY: the types are those of `nvml.h`.
    unsafe {
        let initialize: Symbol<'_, unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2").ok()?;
        let shut_down: Symbol<'_, unsafe extern "C" fn() -> c_int> = library.get(b"nvmlShutdown").ok()?;
        if initialize() != SUCCESS {
            return None;
        }
        let found = common(&library);
        shut_down();
        found
    }
}

/// # Safety
/// The library is initialized.
unsafe fn common(library: &Library) -> Option<u32> {
    // SAFETY: the types are those of `nvml.h`, and each pointer is to a value that lives through its call.
    unsafe {
        let count: Symbol<'_, unsafe extern "C" fn(*mut c_uint) -> c_int> =
            library.get(b"nvmlDeviceGetCount_v2").ok()?;
        let device: Symbol<'_, unsafe extern "C" fn(c_uint, *mut *mut c_void) -> c_int> =
            library.get(b"nvmlDeviceGetHandleByIndex_v2").ok()?;
        let capability: Symbol<'_, unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> c_int> =
            library.get(b"nvmlDeviceGetCudaComputeCapability").ok()?;
        let (mut n, mut all) = (0, Vec::new());
        if count(&mut n) != SUCCESS {
            return None;
        }
        for at in 0..n {
            let (mut handle, mut major, mut minor) = (null_mut(), 0, 0);
            // One that we may not use is no process's GPU either.
            if device(at, &mut handle) == SUCCESS && capability(handle, &mut major, &mut minor) == SUCCESS {
                all.push(u32::try_from(major * 10 + minor).ok()?);
            }
        }
        let first = *all.first()?;
        all.iter().all(|it| *it == first).then_some(first)
    }
}
