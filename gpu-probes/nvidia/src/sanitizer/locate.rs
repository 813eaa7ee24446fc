//! Finds and loads libsanitizer-public.

use super::functions::Functions;
use crate::cupti::locate::mapped_libraries;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use xputrace_wire::nvidia::cupti::sanitizer_directories;

const FILE: &str = "libsanitizer-public.so";

/// Finds the library and loads it.
///
/// # Errors
/// A text that says where it was searched for, and what to install.
pub(super) fn find() -> Result<Functions, String> {
    let mut failures = Vec::new();
    for file in &files()? {
        match open(file) {
            Ok(functions) => return Ok(functions),
            Err(why) => failures.push(format!("{}: {why}", file.display())),
        }
    }
    Err(format!("patching kernels needs NVIDIA's Sanitizer API: {}", failures.join("; ")))
}

/// Returns where it is: in one place at least.
///
/// # Errors
/// As [`find`].
pub(super) fn files() -> Result<Vec<PathBuf>, String> {
    let directories = sanitizer_directories(&mapped_libraries(), |name| std::env::var_os(name));
    let files: Vec<PathBuf> = directories.iter().map(|it| it.join(FILE)).filter(|it| it.exists()).collect();
    if !files.is_empty() {
        return Ok(files);
    }
    let looked: Vec<_> = directories.iter().map(|it| it.display().to_string()).collect();
    let looked = if looked.is_empty() { "a toolkit or wheel".to_owned() } else { looked.join(", ") };
    Err(format!(
        "patching kernels needs NVIDIA's Sanitizer API, and {FILE} is not in {looked}; install the CUDA toolkit's \
         compute-sanitizer (package cuda-sanitizer-13-0), or the wheel nvidia-cuda-sanitizer-api"
    ))
}

fn open(file: &std::path::Path) -> Result<Functions, String> {
    let name = CString::new(file.as_os_str().as_bytes()).map_err(|it| it.to_string())?;
    // SAFETY: loads a library by name; its initialisers do no harm. It stays loaded.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            let error = libc::dlerror();
            let error = if error.is_null() { c"it can't be loaded" } else { std::ffi::CStr::from_ptr(error) };
            return Err(error.to_string_lossy().into_owned());
        }
        Functions::from_symbols(|symbol| libc::dlsym(library, symbol.as_ptr()))
            .map_err(|symbol| format!("it has no {}", symbol.to_string_lossy()))
    }
}
