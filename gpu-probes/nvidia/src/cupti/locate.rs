//! Finds libcupti. The application's own copy comes first: a second copy in the process would
//! compete with it for the subscription, and its version matches the application's CUDA.

use super::Cupti;
use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use xputrace_agent::refusal_of_calls;
use xputrace_unwind::{find_loaded, for_each_loaded};
use xputrace_wire::calls::LOOKING_CALLS;
use xputrace_wire::nvidia::cupti;

/// A loaded libcupti.
#[derive(Debug)]
pub(crate) struct LoadedCupti {
    pub(crate) cupti: Cupti,
    pub(crate) path: String,
    /// Whether the program had loaded it.
    pub(crate) was_loaded: bool,
}

/// Names of libcupti: that of version 11 includes the minor version, later ones do not.
const SONAMES: [&CStr; 12] = [
    c"libcupti.so.13",
    c"libcupti.so.12",
    c"libcupti.so.11.8",
    c"libcupti.so.11.7",
    c"libcupti.so.11.6",
    c"libcupti.so.11.5",
    c"libcupti.so.11.4",
    c"libcupti.so.11.3",
    c"libcupti.so.11.2",
    c"libcupti.so.11.1",
    c"libcupti.so.11.0",
    c"libcupti.so",
];

/// Finds libcupti and loads it.
///
/// # Errors
/// A text that says where it was searched for.
pub(crate) fn find() -> Result<LoadedCupti, String> {
    if let Some(found) = SONAMES.iter().find_map(|name| open(name, libc::RTLD_NOLOAD)) {
        return Ok(found);
    }
    let mapped = mapped_libraries();
    if let Some(found) = mapped.iter().filter(|it| cupti::is_cupti(it)).find_map(|it| open_path(it, libc::RTLD_NOLOAD))
    {
        return Ok(found);
    }
    if let Some(why) = refusal_of_calls(LOOKING_CALLS, "looking for libcupti takes") {
        return by_name().ok_or_else(|| format!("no libcupti is mapped, or in the loader's path, and {why}"));
    }
    let variable = |name: &str| std::env::var_os(name);
    let (directories, wheels) = (cupti::directories(&mapped, variable), cupti::wheels(variable));
    // In between comes the loader's own search: LD_LIBRARY_PATH and its cache.
    let found = first_in(&directories).or_else(by_name);
    found.or_else(|| first_in(&wheels)).ok_or_else(|| {
        let looked: Vec<_> = directories.iter().chain(&wheels).map(|it| it.display().to_string()).collect();
        let looked = if looked.is_empty() { "a toolkit or wheel".into() } else { looked.join(", ") };
        format!(
            "no libcupti is mapped, in {looked}, or in the loader's path; install the CUDA toolkit's CUPTI or set LD_LIBRARY_PATH to it"
        )
    })
}

/// Returns the libcupti that the loader finds by itself.
fn by_name() -> Option<LoadedCupti> {
    SONAMES.iter().find_map(|name| open(name, 0))
}

/// Returns the paths of the libraries that the program has mapped.
pub(crate) fn mapped_libraries() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for_each_loaded(|library| all.push(PathBuf::from(OsStr::from_bytes(library.path))));
    all
}

/// Returns the first loadable libcupti in these directories.
fn first_in(directories: &[PathBuf]) -> Option<LoadedCupti> {
    directories.iter().flat_map(|it| cupti::files(it)).find_map(|it| open_path(&it, 0))
}

fn open_path(path: &Path, flags: i32) -> Option<LoadedCupti> {
    open(&CString::new(path.as_os_str().as_bytes()).ok()?, flags)
}

fn open(name: &CStr, flags: i32) -> Option<LoadedCupti> {
    // SAFETY: loads, or looks up, a library by name; libcupti's initialisers do no harm.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
    if library.is_null() {
        return None;
    }
    // SAFETY: CUPTI's functions by CUPTI's names; the handle is kept for ever.
    let cupti = unsafe { Cupti::from_symbols(|symbol| libc::dlsym(library, symbol.as_ptr())) };
    let path = path_of(cupti.get_version.map(|it| it as *const c_void));
    let path = path.unwrap_or_else(|| name.to_string_lossy().into_owned());
    // SAFETY: as above.
    let path = match unsafe { stand_in(library) } {
        Some(file) => Path::new(&path).with_file_name(file).to_string_lossy().into_owned(),
        None => path,
    };
    let was_loaded = flags & libc::RTLD_NOLOAD != 0;
    Some(LoadedCupti { cupti, was_loaded, path })
}

/// Returns the name of the file that stands in for a vendor's library, of which the loader knows the link alone. To follow
/// the link takes a system call that a program may have forbidden.
///
/// # Safety
/// The library is loaded, and stays so.
unsafe fn stand_in(library: *mut c_void) -> Option<String> {
    // SAFETY: by this name only the software GPU has a function, of this type, which returns a constant.
    unsafe {
        let symbol = libc::dlsym(library, c"xputrace_softgpu_file".as_ptr());
        let file = std::mem::transmute::<*mut c_void, Option<extern "C" fn() -> *const libc::c_char>>(symbol)?;
        Some(CStr::from_ptr(file()).to_string_lossy().into_owned())
    }
}

/// Returns the path of the library that contains a function.
fn path_of(function: Option<*const c_void>) -> Option<String> {
    let address = function? as u64;
    let path = find_loaded(|it| (it.holds(address) && !it.path.is_empty()).then(|| it.path.to_vec()));
    Some(std::ffi::OsString::from_vec(path?).to_string_lossy().into_owned())
}

/// Loads and runs an injection library that was requested before us; returns a note for the user.
pub(crate) fn run_chained(path: &str) -> String {
    let Ok(name) = CString::new(path) else { return format!("{path}: not a file name") };
    // SAFETY: what the CUDA driver would have done with this variable had we not taken it.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        if library.is_null() {
            let error = libc::dlerror();
            let error = if error.is_null() { "".into() } else { CStr::from_ptr(error).to_string_lossy() };
            return format!("the earlier injection library {path} could not be loaded: {error}");
        }
        let entry = libc::dlsym(library, c"InitializeInjection".as_ptr());
        match std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn() -> i32>>(entry) {
            Some(initialize) => {
                let answer = initialize();
                format!("the earlier injection library {path} runs too (it answered {answer})")
            }
            None => format!("the earlier injection library {path} has no InitializeInjection"),
        }
    }
}

#[cfg(test)]
#[path = "../../../agent/tests/suite/forbidding.rs"]
mod forbidding;

#[cfg(test)]
mod tests {
    use super::forbidding::forbid;
    use super::*;

    /// Else it would end the tests.
    #[test]
    fn no_directory_is_listed_for_a_libcupti_where_that_is_forbidden() {
        let in_thread = || {
            forbid(libc::SYS_getdents64);
            find().map(|it| it.path)
        };
        let found = std::thread::spawn(in_thread).join().unwrap();
        let is_said = |why: &String| why.contains("for calling getdents64, which looking for libcupti takes");
        assert!(found.as_ref().err().is_none_or(is_said), "{found:?}");
    }

    #[test]
    fn an_injection_library_that_is_not_there_is_reported() {
        let note = run_chained("/nowhere/libtool.so");
        assert!(note.contains("/nowhere/libtool.so could not be loaded: "), "{note}");
        let note = run_chained("libc.so.6");
        assert!(note.contains("has no InitializeInjection"), "{note}");
    }
}
