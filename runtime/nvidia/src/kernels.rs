//! The kernels in the files of a program, and which ways lead into them.

mod found;
pub mod gpus;
mod kept;
mod reached;

pub use found::{FileKernels, found_in};
pub use kept::{FORM, of_text, to_text};
pub use reached::{Kernels, Ways};

use crate::drivers::is_software_gpu;
use crate::twins::files::{SEARCHED_WITHIN, opened};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;
use xputrace_model::plan::KernelPattern;
use xputrace_symbols::demangle;

/// What a process has mapped that has code for GPUs.
#[derive(Debug, Default)]
pub struct Mapped {
    pub files: BTreeMap<PathBuf, Kernels>,
    pub has_software_gpu: bool,
    /// Which files were not searched to their end.
    pub notes: Vec<String>,
}

/// Searches files of a process.
pub fn search(pid: u32, paths: &BTreeSet<PathBuf>) -> Mapped {
    let has_software_gpu = paths.iter().any(|it| is_software_gpu(it));
    let mut mapped = Mapped { has_software_gpu, ..Mapped::default() };
    let files = opened(pid, paths.iter().cloned()).into_iter().flatten();
    files.for_each(|(path, file)| mapped.add(&file, &path));
    mapped
}

impl Mapped {
    /// Adds the kernels of a program or library, if it has any; notes if that takes too long for all of them.
    pub fn add(&mut self, file: &File, path: &Path) {
        let began = Instant::now();
        let found = found_in(file, gpus::capability(), &|| began.elapsed() < SEARCHED_WITHIN);
        if found.is_cut {
            let (path, seconds) = (path.display(), SEARCHED_WITHIN.as_secs());
            self.notes.push(format!("{path} was searched for {seconds} s only: some of its kernels are not listed"));
        }
        if !found.kernels.is_empty() {
            self.files.insert(path.to_owned(), found.kernels);
        }
    }
}

/// Whether a kernel matches a pattern.
pub fn matches(pattern: &KernelPattern, symbol: &str) -> bool {
    // Libraries have so many kernels that demangling them takes long.
    pattern.matches([symbol]) || {
        let demangled = demangle(symbol);
        pattern.matches([&*demangled.name, &*demangled.short_name])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_match_by_any_of_their_names() {
        let symbol = "_Z9vectorAddIfEvPKT_S2_PS0_i";
        let matches = |pattern: &str| matches(&KernelPattern::new(pattern), symbol);
        assert!(matches("vectorAdd") && matches("vectorAdd<float>") && matches("_Z9*") && !matches("vector"));
    }
}
