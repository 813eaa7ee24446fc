//! The tool that follows NVTX too.

use super::schemas;
use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;
use xputrace_wire::CHAINED_RANGES_VARIABLE;

/// `NvtxGetExportTableFunc_t`.
pub type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;
/// What NVTX calls in a tool's library.
type Initialize = unsafe extern "C" fn(Option<GetExportTable>) -> c_int;
/// The same for an extension.
type InitializeExtension = unsafe extern "C" fn(*mut schemas::ExtensionModule) -> c_int;

/// Returns the initialization of the tool that follows NVTX too, which stays loaded for ever.
pub(super) fn chained() -> Option<Initialize> {
    static CHAINED: OnceLock<Option<Initialize>> = OnceLock::new();
    // SAFETY: what NVTX itself would do; the function has this type.
    *CHAINED.get_or_init(|| unsafe {
        Some(std::mem::transmute::<*mut c_void, Initialize>(of_chained(c"InitializeInjectionNvtx2")?))
    })
}

/// The same for NVTX's extensions.
pub(super) fn chained_extension() -> Option<InitializeExtension> {
    static CHAINED: OnceLock<Option<InitializeExtension>> = OnceLock::new();
    // SAFETY: as above.
    *CHAINED.get_or_init(|| unsafe {
        Some(std::mem::transmute::<*mut c_void, InitializeExtension>(of_chained(c"InitializeInjectionNvtxExtension")?))
    })
}

/// Returns a function of the tool that follows NVTX too.
fn of_chained(name: &CStr) -> Option<*mut c_void> {
    let path = std::env::var(CHAINED_RANGES_VARIABLE).ok().filter(|it| !it.is_empty())?;
    let path = std::ffi::CString::new(path).ok()?;
    // SAFETY: C strings.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_LAZY);
        let function = if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) };
        (!function.is_null()).then_some(function)
    }
}
