//! Where a `ptxas` may be, as whom it runs, and where cubins are kept.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use xputrace_boundary::user::Account;
use xputrace_cubins::Cache;
use xputrace_linux::shares_our_files;
use xputrace_wire::maps::MapsLine;

/// Environment variable that names the `ptxas` to use before others; empty for none at all.
const PTXAS_VARIABLE: &str = "XPUTRACE_PTXAS";
const NAME: &str = "ptxas";
/// Where NVIDIA's installer puts the toolkit that is used by default.
const DEFAULT_TOOLKIT: &str = "/usr/local/cuda/bin";
/// Directories of Python's packages: upstream's name and Debian's.
const PACKAGES: [&str; 2] = ["/site-packages/", "/dist-packages/"];
/// Where a `ptxas` is in them: Triton's own, and those of NVIDIA's packages for CUDA 12 and 13.
const IN_PACKAGES: [&str; 3] =
    ["triton/backends/nvidia/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas", "nvidia/cu13/bin/ptxas"];
/// What cubins of one user take at most.
const MOST_CACHE_BYTES: u64 = 1 << 30;

/// Returns the files that may be a `ptxas` for the code of a process, the best first.
///
/// One that only the process knows of is used only if the process has our files: outside of its container, it could do
/// what it can't do inside.
pub fn candidates(pid: u32) -> Vec<PathBuf> {
    let ours = of_environment(|it| env::var_os(it));
    let Some(mut all) = ours else { return Vec::new() };
    if shares_our_files(pid).unwrap_or(false)
        && let Ok(maps) = std::fs::read(format!("/proc/{pid}/maps"))
    {
        all.extend(of_packages(&maps));
    }
    all.retain(|it| it.is_file());
    all
}

/// Returns those that our environment leads to; `None` if none is to be used.
fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Option<Vec<PathBuf>> {
    let named = variable(PTXAS_VARIABLE);
    if named.as_ref().is_some_and(|it| it.is_empty()) {
        return None;
    }
    let on_path = variable("PATH").map(|it| env::split_paths(&it).collect()).unwrap_or_default();
    let of_toolkit = variable("CUDA_HOME").map(|it| Path::new(&it).join("bin"));
    let directories = Vec::into_iter(on_path).chain(of_toolkit).chain([DEFAULT_TOOLKIT.into()]);
    // Elsewhere a relative path would be another.
    let in_directories = directories.filter(|it| it.is_absolute()).map(|it| it.join(NAME));
    Some(named.map(PathBuf::from).into_iter().chain(in_directories).collect())
}

/// Returns those below the packages of the Python that has these mappings.
fn of_packages(maps: &[u8]) -> Vec<PathBuf> {
    let below = |line: &[u8]| {
        let (path, _) = MapsLine::parse(line)?.file()?;
        let path = path.to_str()?;
        let end = PACKAGES.iter().find_map(|it| path.find(it).map(|at| at + it.len()))?;
        Some(path[..end].to_owned())
    };
    let directories: BTreeSet<String> = maps.split(|it| *it == b'\n').filter_map(below).collect();
    directories.iter().flat_map(|it| IN_PACKAGES.map(|file| Path::new(it).join(file))).collect()
}

/// Whether we can run programs as this user.
pub fn can_become(user: Account) -> bool {
    let own = own_user();
    own == 0 || own == user.uid
}

fn own_user() -> u32 {
    // SAFETY: cannot fail, and only returns a number.
    unsafe { libc::geteuid() }
}

/// Returns what keeps cubins of a user's. Each user has their own: they may have brought the `ptxas`.
///
/// # Errors
/// There is no directory for it, or others can write there.
pub fn cache(user: Account) -> Result<Cache> {
    let directory = cache_directory(|it| env::var_os(it), own_user(), user.uid)
        .context("neither XDG_CACHE_HOME nor HOME is set")?;
    Ok(Cache::open(&directory, MOST_CACHE_BYTES)?)
}

fn cache_directory(variable: impl Fn(&str) -> Option<OsString>, own: u32, user: u32) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = || absolute("HOME").map(|it| it.join(".cache"));
    // Root's variables may be those of the user who became root, who could change what lies there.
    let caches = if own == 0 { Some("/var/cache".into()) } else { absolute("XDG_CACHE_HOME").or_else(home) };
    let directory = caches?.join("xputrace/twins");
    Some(if own == user { directory } else { directory.join(user.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables<'a>(all: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| all.iter().find(|it| it.0 == name).map(|it| it.1.into())
    }

    #[test]
    fn the_environment_comes_in_its_order() {
        let all = [("XPUTRACE_PTXAS", "/own/ptxas-12"), ("PATH", "/a:.:/b"), ("CUDA_HOME", "/cuda")];
        let expected = ["/own/ptxas-12", "/a/ptxas", "/b/ptxas", "/cuda/bin/ptxas", "/usr/local/cuda/bin/ptxas"];
        assert_eq!(of_environment(variables(&all)).unwrap(), expected.map(PathBuf::from));
        assert_eq!(of_environment(variables(&[])).unwrap(), [PathBuf::from("/usr/local/cuda/bin/ptxas")]);
        assert_eq!(of_environment(variables(&[("XPUTRACE_PTXAS", ""), ("PATH", "/a")])), None);
    }

    #[test]
    fn packages_are_those_of_mapped_libraries() {
        let maps = b"\
55d0-55d1 r-xp 00000000 08:01 1 /usr/bin/python3.12
7f00-7f01 r-xp 00000000 08:01 2 /venv a/lib/python3.12/site-packages/torch/lib/libc10.so
7f01-7f02 r--p 00000000 08:01 2 /venv a/lib/python3.12/site-packages/numpy/x.so
7f02-7f03 r-xp 00000000 08:01 3 /usr/lib/python3/dist-packages/y.so
7f03-7f04 rw-p 00000000 00:00 0 [heap]
";
        let found = of_packages(maps);
        assert_eq!(found.len(), 6);
        assert_eq!(found[0], Path::new("/usr/lib/python3/dist-packages/triton/backends/nvidia/bin/ptxas"));
        assert_eq!(found[5], Path::new("/venv a/lib/python3.12/site-packages/nvidia/cu13/bin/ptxas"));
    }

    #[test]
    fn each_users_cubins_are_apart() {
        let of = |all: &[(&str, &str)], own, user| cache_directory(variables(all), own, user);
        let home = [("HOME", "/home/ann")];
        assert_eq!(of(&home, 1000, 1000), Some("/home/ann/.cache/xputrace/twins".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/c"), home[0]], 1000, 1000), Some("/c/xputrace/twins".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "relative"), home[0]], 1000, 1000), of(&home, 1000, 1000));
        assert_eq!(of(&home, 0, 0), Some("/var/cache/xputrace/twins".into()));
        assert_eq!(of(&home, 0, 1000), Some("/var/cache/xputrace/twins/1000".into()));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/home/ann/c")], 0, 0), of(&home, 0, 0));
        assert_eq!(of(&[], 1000, 1000), None);
    }
}
