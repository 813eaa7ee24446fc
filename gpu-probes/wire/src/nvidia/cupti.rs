//! Where to look for libcupti. The collector searches inside a program, `xputrace doctor` for
//! programs that have not started yet. They share one list, so that `doctor` predicts what the
//! collector finds.
//! ```text
//! beside the program's own CUDA libraries ─▶ toolkits ─▶ the loader's search ─▶ wheels of the environment
//! ```

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Variables that name a toolkit.
const TOOLKIT_VARIABLES: [&str; 3] = ["CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"];
/// Variables that name a Python environment.
const ENVIRONMENT_VARIABLES: [&str; 2] = ["VIRTUAL_ENV", "CONDA_PREFIX"];
/// Where a toolkit keeps its libraries.
const IN_TOOLKIT: [&str; 4] = ["targets/x86_64-linux/lib", "extras/CUPTI/lib64", "lib64", "lib"];
/// Where wheels keep libcupti: from CUDA 13 on, and before.
const IN_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_cupti/lib"];

/// Returns the directories to search before the loader does: next to the CUDA libraries among the
/// `mapped` ones, in the wheels that contain any of these, and in toolkits. `variable` reads the
/// environment.
pub fn directories(mapped: &[PathBuf], variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for library in mapped.iter().filter(|it| file_name(it).starts_with(b"libcudart")) {
        let Some(beside) = library.parent() else { continue };
        all.push(beside.to_path_buf());
        all.push(beside.join("../extras/CUPTI/lib64"));
        // A wheel's cudart is in `nvidia/cuda_runtime/lib`, or, from 13 on, in `nvidia/cu13/lib`.
        all.push(beside.join("../../cuda_cupti/lib"));
        all.push(beside.join("../../cu13/lib"));
    }
    all.extend(packages_of(mapped).iter().flat_map(|it| IN_PACKAGES.map(|place| it.join(place))));
    for toolkit in toolkits(variable) {
        all.extend(IN_TOOLKIT.map(|it| toolkit.join(it)));
    }
    all.dedup();
    all
}

/// Returns the directories to search after the loader: wheels of the active Python environment,
/// which the program may not use.
pub fn wheels(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let named = ENVIRONMENT_VARIABLES.into_iter().filter_map(variable).filter(|it| !it.is_empty()).map(PathBuf::from);
    let packages = named.flat_map(|it| names_in(&it.join("lib"), b"python")).map(|it| it.join("site-packages"));
    packages.flat_map(|it| IN_PACKAGES.map(|place| it.join(place))).collect()
}

/// Where the library of NVIDIA's Sanitizer API is in a toolkit, and in packages of Python.
const SANITIZER_IN_TOOLKIT: &str = "compute-sanitizer";
const SANITIZER_IN_PACKAGES: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_sanitizer_api/lib"];

/// Returns the directories to search for the library of NVIDIA's Sanitizer API: in the toolkits, and in the packages from
/// which the program has libraries mapped.
pub fn sanitizer_directories(mapped: &[PathBuf], variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let toolkits = toolkits(variable).map(|it| it.join(SANITIZER_IN_TOOLKIT));
    let packages = packages_of(mapped);
    toolkits.chain(packages.iter().flat_map(|it| SANITIZER_IN_PACKAGES.map(|place| it.join(place)))).collect()
}

/// Returns the toolkits that variables name, then those that are installed.
fn toolkits(variable: impl Fn(&str) -> Option<OsString>) -> impl Iterator<Item = PathBuf> {
    let named = TOOLKIT_VARIABLES.into_iter().filter_map(variable).filter(|it| !it.is_empty()).map(PathBuf::from);
    named.chain(installed_toolkits())
}

/// Returns the libcupti files in a directory, shortest name (the link) first.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = names_in(directory, b"libcupti");
    files.retain(|it| is_cupti(it));
    files.sort_by_key(|it| (it.as_os_str().len(), it.clone()));
    files
}

/// Whether a library is libcupti, by its usual name or a wheel's.
pub fn is_cupti(path: &Path) -> bool {
    [b"libcupti.so", b"libcupti-" as &[u8]].iter().any(|it| file_name(path).starts_with(it))
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_encoded_bytes()
}

/// Returns the site-packages directories that contain a mapped library.
fn packages_of(mapped: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    for library in mapped {
        let packages = library.ancestors().find(|it| it.ends_with("site-packages") || it.ends_with("dist-packages"));
        if let Some(packages) = packages.filter(|it| !all.iter().any(|known| known == it)) {
            all.push(packages.to_path_buf());
        }
    }
    all
}

/// Returns `/usr/local/cuda`, then `/usr/local/cuda-*`, newest version first.
fn installed_toolkits() -> Vec<PathBuf> {
    let mut all = names_in(Path::new("/usr/local"), b"cuda");
    all.sort_by_key(|it| {
        let name = it.file_name().unwrap_or_default();
        let version: Vec<u32> = name.to_string_lossy().split(['-', '.']).filter_map(|it| it.parse().ok()).collect();
        (name != OsStr::new("cuda"), Reverse(version))
    });
    all
}

/// Returns the directory's entries whose names start with `prefix`; none if it is unreadable.
fn names_in(directory: &Path, prefix: &[u8]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|it| it.path());
    entries.filter(|it| file_name(it).starts_with(prefix)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<OsString> {
        None
    }

    #[test]
    fn the_link_comes_before_the_versions_it_leads_to() {
        let directory = std::env::temp_dir().join(format!("xputrace-cupti-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for name in ["libcupti.so.2025.3.0", "libcupti.so.13", "libcupti_static.a", "libother.so"] {
            std::fs::write(directory.join(name), b"").unwrap();
        }
        let found = files(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        let names: Vec<_> = found.iter().map(|it| it.file_name().unwrap().to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["libcupti.so.13", "libcupti.so.2025.3.0"]);
    }

    #[test]
    fn wheels_are_looked_into_beside_what_is_mapped() {
        let mapped = [PathBuf::from("/env/lib/python3.12/site-packages/torch/lib/libtorch.so")];
        let all = directories(&mapped, nothing);
        let packages = Path::new("/env/lib/python3.12/site-packages/nvidia");
        assert!(all.contains(&packages.join("cu13/lib")));
        assert!(all.contains(&packages.join("cuda_cupti/lib")));
        let toolkit = [PathBuf::from("/opt/cuda/targets/x86_64-linux/lib/libcudart.so.13")];
        assert!(directories(&toolkit, nothing).contains(&PathBuf::from("/opt/cuda/targets/x86_64-linux/lib")));
    }

    #[test]
    fn variables_name_toolkits() {
        for name in TOOLKIT_VARIABLES {
            let all = directories(&[], |it| (it == name).then(|| "/opt/named".into()));
            assert!(all.contains(&PathBuf::from("/opt/named/extras/CUPTI/lib64")), "{name}");
        }
    }

    #[test]
    fn the_active_environment_has_wheels() {
        let prefix = std::env::temp_dir().join(format!("xputrace-env-{}", std::process::id()));
        std::fs::create_dir_all(prefix.join("lib/python3.12")).unwrap();
        let all = wheels(|it| (it == "VIRTUAL_ENV").then(|| prefix.clone().into()));
        std::fs::remove_dir_all(&prefix).unwrap();
        let packages = prefix.join("lib/python3.12/site-packages");
        assert_eq!(all, [packages.join("nvidia/cu13/lib"), packages.join("nvidia/cuda_cupti/lib")]);
    }
}
