//! Interpreters of Python by their version, wherever a machine has them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a CPython of this name, such as `python3.12`: on the path, or where pyenv and uv put theirs.
pub fn find(name: &str) -> Option<PathBuf> {
    let version = name.strip_prefix("python")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let managed = [home.join(".pyenv/versions"), home.join(".local/share/uv/python")];
    let directories = std::env::split_paths(&path).chain(managed.iter().flat_map(|it| below(it)));
    directories.map(|it| it.join(name)).find(|it| is_of(it, version))
}

/// The `bin` directories of the installations below a directory.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|it| it.path().join("bin")).collect()
}

/// Whether it runs: a version manager's launcher may have nothing to launch.
fn is_of(program: &Path, version: &str) -> bool {
    let asked = "import sys; print('%d.%d' % sys.version_info[:2])";
    program.is_file()
        && Command::new(program)
            .args(["-c", asked])
            .output()
            .is_ok_and(|it| String::from_utf8_lossy(&it.stdout).trim() == version)
}
