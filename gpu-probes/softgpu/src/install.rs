//! Installs the built library under CUDA's names.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The names under which the library is installed.
pub const LIBRARY_NAMES: [&str; 8] = [
    "libcuda.so",
    "libcuda.so.1",
    "libcudart.so",
    "libcudart.so.12",
    "libcudart.so.13",
    "libcupti.so",
    "libcupti.so.12",
    "libcupti.so.13",
];

const FILE_NAME: &str = "libxputrace_softgpu.so";

/// A directory that holds the library and its links.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The directory to put in front of `LD_LIBRARY_PATH`.
    pub directory: PathBuf,
    /// The library file; every name of [`LIBRARY_NAMES`] is a link to it.
    pub library: PathBuf,
}

impl Installed {
    /// Returns the value for `LD_LIBRARY_PATH`: this directory, then the current value.
    pub fn library_path(&self) -> std::ffi::OsString {
        let mut value = self.directory.clone().into_os_string();
        if let Some(old) = env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
            value.push(":");
            value.push(old);
        }
        value
    }
}

/// Why the software GPU was not installed.
#[derive(Debug)]
pub enum InstallError {
    /// No library file in any of these places.
    NotBuilt(Vec<PathBuf>),
    /// A file operation failed.
    Io(&'static str, PathBuf, io::Error),
}

impl std::fmt::Display for InstallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotBuilt(searched) => {
                let searched: Vec<_> = searched.iter().map(|path| path.display().to_string()).collect();
                write!(
                    f,
                    "find the software GPU: no {FILE_NAME} in {}; build it with `cargo build -p xputrace-softgpu` or name it in XPUTRACE_SOFTGPU",
                    searched.join(", ")
                )
            }
            Self::Io(what, path, error) => write!(f, "install the software GPU: {what} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for InstallError {}

/// Installs the built library into `directory`, creating it if needed.
///
/// # Errors
/// The library was not built, or `directory` cannot be written.
pub fn install(directory: &Path) -> Result<Installed, InstallError> {
    install_from(&built_library()?, directory)
}

/// Copies `library` into `directory` and links every CUDA name to it.
///
/// # Errors
/// A file cannot be read or written.
pub fn install_from(library: &Path, directory: &Path) -> Result<Installed, InstallError> {
    fs::create_dir_all(directory).map_err(|e| InstallError::Io("create", directory.into(), e))?;
    let target = directory.join(FILE_NAME);
    replace(&target, |path| fs::copy(library, path).map(drop))?;
    for name in LIBRARY_NAMES {
        replace(&directory.join(name), |path| std::os::unix::fs::symlink(FILE_NAME, path))?;
    }
    Ok(Installed { directory: directory.into(), library: target })
}

/// Replaces `path` with a new file: writing to a mapped library would change running programs.
fn replace(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(InstallError::Io("replace", path.into(), e));
        }
        _ => {}
    }
    make(path).map_err(|e| InstallError::Io("write", path.into(), e))
}

/// Finds the library that Cargo built: `$XPUTRACE_SOFTGPU`, or next to, above or in `deps/` of the
/// running program.
///
/// # Errors
/// [`InstallError::NotBuilt`] with the places searched.
pub fn built_library() -> Result<PathBuf, InstallError> {
    let candidates = candidates();
    match newest(&candidates) {
        Some(path) => Ok(path),
        None => Err(InstallError::NotBuilt(candidates)),
    }
}

fn candidates() -> Vec<PathBuf> {
    if let Some(path) = env::var_os("XPUTRACE_SOFTGPU") {
        return vec![path.into()];
    }
    let exe = env::current_exe().unwrap_or_default();
    let beside = exe.parent().unwrap_or(Path::new(".")).to_path_buf();
    let above = beside.parent().map(Path::to_path_buf).unwrap_or_default();
    [beside.join("deps"), beside, above.join("deps"), above].iter().map(|dir| dir.join(FILE_NAME)).collect()
}

/// Returns the newest: Cargo updates only the copy in `deps/` when this crate is built as a
/// dependency.
fn newest(candidates: &[PathBuf]) -> Option<PathBuf> {
    candidates
        .iter()
        .filter_map(|path| Some((fs::metadata(path).ok()?.modified().ok()?, path)))
        .max_by_key(|(modified, _)| *modified)
        .map(|(_, path)| path.clone())
}
