//! What is fuzzed: everything that reads what others write.

mod code;
mod files;
mod recordings;
mod texts;
mod tracer;
mod wire;

use crate::harness::Target;
use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};

/// Returns all targets, by the crate that reads.
pub(crate) fn all() -> Vec<Target> {
    [wire::TARGETS, tracer::TARGETS, recordings::TARGETS, files::TARGETS, code::TARGETS, texts::TARGETS].concat()
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the contents of a directory's files with such an ending.
fn files_in(directory: &str, ending: &str) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(root().join(directory)).expect("the directory is part of the repository");
    let mut paths: Vec<PathBuf> = entries.flatten().map(|it| it.path()).collect();
    paths.retain(|it| it.to_string_lossy().ends_with(ending));
    paths.sort();
    let all: Vec<_> = paths.iter().map(|it| std::fs::read(it).expect("a file of the repository is readable")).collect();
    assert!(!all.is_empty(), "{directory} has files that end with {ending}");
    all
}

/// Returns an input as text, as readers of files get it that must be UTF-8.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}

/// Returns a file with these contents: memory.
fn file_with(contents: &[u8]) -> File {
    // SAFETY: a plain call with a constant name.
    let descriptor = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(descriptor >= 0, "there is memory for a file");
    // SAFETY: it was just made, and is nobody else's.
    let mut file = unsafe { File::from_raw_fd(descriptor) };
    file.write_all(contents).expect("a file of memory takes what is written");
    file
}

/// Splits an input into parts, each behind its length of four bytes; the last may be shorter than it says.
fn parts(mut input: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some((len, rest)) = input.split_first_chunk::<4>() {
        let (part, rest) = rest.split_at((u32::from_le_bytes(*len) as usize).min(rest.len()));
        all.push(part);
        input = rest;
    }
    all
}

/// Inverts [`parts`].
fn joined<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    parts.into_iter().flat_map(|it| [&(it.len() as u32).to_le_bytes()[..], it].concat()).collect()
}
