//! Files by what they are, not by where or when: a collector says what its process's loader had mapped while a stack
//! was taken. By the time that this is read here, something else may be mapped there, and the path may lead to
//! another file. So a file is looked for under all names that it may have, and taken only if it is proved to be that
//! one.

use crate::file::{FileIndex, Files};
use crate::process::module;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xputrace_boundary::read;
use xputrace_wire::maps::MapsLine;
use xputrace_wire::record::{MAX_BUILD_ID, MAX_CHECKED_BYTES, check_of_file};

/// A file that was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedObject {
    /// Its number in the process.
    pub id: u32,
    /// Addresses, `end` exclusive.
    pub start: u64,
    pub end: u64,
    /// What is added to the addresses in its program headers.
    pub base: u64,
    pub proof: Proof,
    /// As the program named it to the loader; empty for the program itself.
    pub path: PathBuf,
    /// A directory that the process was in, if the path is relative.
    pub directory: PathBuf,
}

/// What a file is recognized by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Empty if it has none.
    pub build_id: Vec<u8>,
    /// `xputrace_wire::record::check_of_file` of so many of its first bytes: for a file without a build id.
    pub check: u64,
    pub checked_bytes: u32,
}

/// What a file shows of itself, to compare it with a [`Proof`].
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    build_id: Option<Vec<u8>>,
    /// Where it has no build id.
    first_bytes: Vec<u8>,
}

impl Evidence {
    /// Reads it; `build_id` is the file's.
    pub(crate) fn of(file: &File, build_id: Option<Vec<u8>>) -> Self {
        let build_id = build_id.filter(|it| it.len() <= MAX_BUILD_ID);
        let mut first_bytes = Vec::new();
        if build_id.is_none() {
            first_bytes.resize(MAX_CHECKED_BYTES, 0);
            let n = file.read_at(&mut first_bytes, 0).unwrap_or(0);
            first_bytes.truncate(n);
        }
        Evidence { build_id, first_bytes }
    }

    /// Whether the file is the one that this proves.
    pub(crate) fn fits(&self, proof: &Proof) -> bool {
        match &self.build_id {
            Some(build_id) => *build_id == proof.build_id,
            None => {
                let first = usize::try_from(proof.checked_bytes).ok().and_then(|len| self.first_bytes.get(..len));
                proof.build_id.is_empty() && first.is_some_and(|it| check_of_file(it) == proof.check)
            }
        }
    }

    pub(crate) fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }
}

impl MappedObject {
    pub(crate) fn holds(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Looks for the file wherever process `pid` may have it; returns it, and the name of its module.
    pub(crate) fn find(&self, files: &mut Files, pid: u32) -> Option<(FileIndex, String)> {
        let mut candidates = self.mapped_now(pid);
        candidates.extend(self.named(pid));
        let found = candidates.into_iter().find_map(|path| {
            let file = read::open(&path).ok()?;
            let real = real_path(&file).unwrap_or(path);
            let name = module(&real);
            Some((files.keep_proved(pid, real, file, &self.proof)?, name))
        });
        found.or_else(|| Some((files.of_build_id(&self.proof.build_id)?, self.module())))
    }

    /// The module's name, as far as it is known without the file.
    pub(crate) fn module(&self) -> String {
        if self.path.as_os_str().is_empty() { "[program]".into() } else { module(&self.path) }
    }

    /// Where the files are that the process has mapped there now.
    fn mapped_now(&self, pid: u32) -> Vec<PathBuf> {
        let mut text = Vec::new();
        let _ = File::open(format!("/proc/{pid}/maps")).and_then(|mut it| it.read_to_end(&mut text));
        let lines = text.split(|it| *it == b'\n').filter_map(MapsLine::parse);
        let here = lines.filter(|it| it.start < self.end && self.start < it.end && it.path.starts_with(b"/"));
        let paths = here.flat_map(|it| {
            let exact = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", it.start, it.end));
            [exact, inside(pid, Path::new(OsStr::from_bytes(it.path)))]
        });
        let mut paths: Vec<PathBuf> = paths.collect();
        paths.dedup();
        paths
    }

    /// Where its name leads to.
    fn named(&self, pid: u32) -> Vec<PathBuf> {
        if self.path.as_os_str().is_empty() {
            return vec![PathBuf::from(format!("/proc/{pid}/exe"))];
        }
        let absolute = self.directory.join(&self.path);
        let now = PathBuf::from(format!("/proc/{pid}/cwd")).join(&self.path);
        vec![now, inside(pid, &absolute), absolute]
    }
}

/// Returns where we see what a process sees at an absolute path.
fn inside(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

fn real_path(file: &File) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_recognized_by_its_build_id_or_its_first_bytes() {
        let proof = |build_id: &[u8], first: &[u8]| Proof {
            build_id: build_id.into(),
            check: check_of_file(first),
            checked_bytes: first.len() as u32,
        };
        let with_id = Evidence { build_id: Some(vec![1, 2]), first_bytes: vec![] };
        assert!(with_id.fits(&proof(&[1, 2], b"whatever")) && !with_id.fits(&proof(&[1, 3], b"")));
        assert!(!with_id.fits(&proof(&[], b"")));
        let without = Evidence { build_id: None, first_bytes: b"\x7fELF and more".into() };
        assert!(without.fits(&proof(&[], b"\x7fELF")) && without.fits(&proof(&[], b"\x7fELF and more")));
        assert!(!without.fits(&proof(&[], b"\x7fElf")) && !without.fits(&proof(&[1], b"\x7fELF")));
        assert!(!without.fits(&proof(&[], b"\x7fELF and more than that")));
    }
}
