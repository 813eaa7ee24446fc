//! Finding libcupti: the application's own copy first, because a second one in the process would
//! fight it for the subscription, and because its version fits the application's CUDA.

use crate::cupti::Cupti;
use crate::stack::for_each_library;
use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A libcupti that is loaded.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) cupti: Cupti,
    pub(crate) path: String,
}

/// Names under which libcupti is loaded: 11 carries its minor version, later ones do not.
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

/// Looks for libcupti and loads it.
///
/// # Errors
/// A text that says where it was looked for.
pub(crate) fn find() -> Result<Found, String> {
    if let Some(found) = SONAMES.iter().find_map(|name| open(name, libc::RTLD_NOLOAD)) {
        return Ok(found);
    }
    let mapped = mapped_libraries();
    if let Some(found) = mapped.iter().filter(|it| is_cupti(it)).find_map(|it| open_path(it, libc::RTLD_NOLOAD)) {
        return Ok(found);
    }
    let mut directories = candidate_directories(&mapped);
    directories.dedup();
    let files = directories.iter().flat_map(|it| cupti_files(it));
    if let Some(found) = files.filter_map(|it| open_path(it.as_os_str().as_bytes(), 0)).next() {
        return Ok(found);
    }
    // The loader's own search: LD_LIBRARY_PATH and its cache.
    if let Some(found) = SONAMES.iter().find_map(|name| open(name, 0)) {
        return Ok(found);
    }
    let looked: Vec<_> = directories.iter().map(|it| it.display().to_string()).collect();
    let looked = if looked.is_empty() { "a toolkit or wheel".into() } else { looked.join(", ") };
    Err(format!(
        "no libcupti is mapped, in {looked}, or in the loader's path; install the CUDA toolkit's CUPTI or set LD_LIBRARY_PATH to it"
    ))
}

fn mapped_libraries() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for_each_library(|library| all.push(library.path.to_vec()));
    all
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&it| it == b'/').next().unwrap_or_default()
}

fn is_cupti(path: &[u8]) -> bool {
    file_name(path).starts_with(b"libcupti.so") || file_name(path).starts_with(b"libcupti-")
}

/// Where libcupti lies beside the CUDA libraries that are mapped, in wheels, in toolkits.
fn candidate_directories(mapped: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for library in mapped.iter().filter(|it| file_name(it).starts_with(b"libcudart")) {
        let Some(beside) = Path::new(OsStr::from_bytes(library)).parent() else { continue };
        all.push(beside.to_path_buf());
        all.push(beside.join("../extras/CUPTI/lib64"));
        // A wheel's cudart lies in `nvidia/cuda_runtime/lib`, or, from 13 on, in `nvidia/cu13/lib`.
        all.push(beside.join("../../cuda_cupti/lib"));
        all.push(beside.join("../../cu13/lib"));
    }
    for packages in site_packages(mapped) {
        all.push(packages.join("nvidia/cu13/lib"));
        all.push(packages.join("nvidia/cuda_cupti/lib"));
    }
    for variable in ["CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"] {
        if let Some(prefix) = std::env::var_os(variable).map(PathBuf::from) {
            all.extend(["lib", "targets/x86_64-linux/lib", "extras/CUPTI/lib64"].map(|it| prefix.join(it)));
        }
    }
    for toolkit in toolkits() {
        all.extend(["targets/x86_64-linux/lib", "extras/CUPTI/lib64", "lib64"].map(|it| toolkit.join(it)));
    }
    all
}

/// Site-packages directories that some mapped library lies in.
fn site_packages(mapped: &[Vec<u8>]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for library in mapped {
        let path = Path::new(OsStr::from_bytes(library));
        let packages = path.ancestors().find(|it| it.ends_with("site-packages") || it.ends_with("dist-packages"));
        if let Some(packages) = packages.filter(|it| !all.iter().any(|known| known == it)) {
            all.push(packages.to_path_buf());
        }
    }
    all
}

/// `/usr/local/cuda*`, newest version first after the plain link.
fn toolkits() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/usr/local") else { return Vec::new() };
    let names = entries.flatten().map(|it| it.file_name());
    let mut names: Vec<_> = names.filter(|it| it.as_bytes().starts_with(b"cuda")).collect();
    names.sort_by_key(|it| {
        let version: Vec<u32> = it.to_string_lossy().split(['-', '.']).filter_map(|part| part.parse().ok()).collect();
        (it.as_bytes() != b"cuda", std::cmp::Reverse(version))
    });
    names.into_iter().map(|it| Path::new("/usr/local").join(it)).collect()
}

/// The libcupti files of a directory: the shortest name, which is the link, first.
fn cupti_files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> = entries.flatten().map(|it| it.file_name()).filter(|it| is_cupti(it.as_bytes())).collect();
    names.sort_by_key(|it| (it.len(), it.clone()));
    names.into_iter().map(|it| directory.join(it)).collect()
}

fn open_path(path: &[u8], flags: i32) -> Option<Found> {
    open(&CString::new(path).ok()?, flags)
}

fn open(name: &CStr, flags: i32) -> Option<Found> {
    // SAFETY: loads, or looks up, a library by name; libcupti's initialisers do no harm.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | flags) };
    if library.is_null() {
        return None;
    }
    // SAFETY: CUPTI's functions by CUPTI's names; the handle is kept for ever.
    let cupti = unsafe { Cupti::from_symbols(|symbol| libc::dlsym(library, symbol.as_ptr())) };
    let path = path_of(cupti.get_version.map(|it| it as *const c_void));
    Some(Found { cupti, path: path.unwrap_or_else(|| name.to_string_lossy().into_owned()) })
}

/// Path of the library that a function lies in.
fn path_of(function: Option<*const c_void>) -> Option<String> {
    let address = function? as usize;
    let mut path = None;
    for_each_library(|library| {
        if (library.start..library.end).contains(&address) && !library.path.is_empty() {
            path = Some(library.path.to_vec());
        }
    });
    Some(std::ffi::OsString::from_vec(path?).to_string_lossy().into_owned())
}

/// Loads an injection library that was asked for before us, and runs it; a note for the user.
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
mod tests {
    use super::*;

    #[test]
    fn the_link_comes_before_the_versions_it_leads_to() {
        let directory = std::env::temp_dir().join(format!("xputrace-locate-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["libcupti.so.2025.3.0", "libcupti.so.13", "libcupti_static.a", "libother.so"] {
            std::fs::write(directory.join(name), b"").unwrap();
        }
        let files = cupti_files(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        let names: Vec<_> = files.iter().map(|it| it.file_name().unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["libcupti.so.13", "libcupti.so.2025.3.0"]);
    }

    #[test]
    fn wheels_are_looked_into_beside_what_is_mapped() {
        let mapped = [b"/env/lib/python3.12/site-packages/torch/lib/libtorch.so".to_vec()];
        let directories = candidate_directories(&mapped);
        let packages = Path::new("/env/lib/python3.12/site-packages/nvidia");
        assert!(directories.contains(&packages.join("cu13/lib")));
        assert!(directories.contains(&packages.join("cuda_cupti/lib")));
        let toolkit = [b"/opt/cuda/targets/x86_64-linux/lib/libcudart.so.13".to_vec()];
        assert!(candidate_directories(&toolkit).contains(&PathBuf::from("/opt/cuda/targets/x86_64-linux/lib")));
    }

    #[test]
    fn an_injection_library_that_is_not_there_is_reported() {
        let note = run_chained("/nowhere/libtool.so");
        assert!(note.contains("/nowhere/libtool.so could not be loaded: "), "{note}");
        let note = run_chained("libc.so.6");
        assert!(note.contains("has no InitializeInjection"), "{note}");
    }
}
