//! The kernels in the files that a process has mapped, each file searched once: what was found is kept on disk.

use super::rule::Named;
use crate::kernels::{FORM, FileKernels, Kernels, found_in, matches, of_text, to_text};
use crate::twins::files::{mapped_programs, opened};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use xputrace_boundary::user::Account;
use xputrace_cubins::Cache;
use xputrace_model::plan::KernelPattern;

/// The files that were searched in this run, for each user: others can't make up what their files have.
#[derive(Debug, Default)]
pub struct SearchedFiles(Mutex<HashMap<(String, Account), Searched>>);

/// A file that is searched once, by whoever comes first.
type Searched = Arc<OnceLock<Arc<InFile>>>;

/// What a file has.
#[derive(Debug, PartialEq, Eq)]
struct InFile {
    found: FileKernels,
    /// Whether the next run need not search it.
    is_kept: bool,
}

/// What the files of a process have.
#[derive(Debug, Default)]
pub struct Looked {
    files: Vec<Arc<InFile>>,
    /// Whether something could not be looked at.
    is_cut: bool,
}

impl Looked {
    /// Whether the next run finds all of it without a search that takes long.
    pub fn is_kept(&self) -> bool {
        !self.is_cut && self.files.iter().all(|it| it.is_kept)
    }

    /// Returns how many kernels handlers name; `None` if not all files were searched.
    pub fn named(&self, patterns: &BTreeSet<KernelPattern>, gpu: Option<u32>) -> Option<Named> {
        (!self.is_cut).then(|| Named::among(self.files.iter().map(|it| &it.found.kernels), patterns, gpu))
    }
}

impl Named {
    /// Counts the kernels that patterns name, each once: it has PTX if it has it anywhere.
    pub fn among<'k>(
        files: impl IntoIterator<Item = &'k Kernels>,
        patterns: &BTreeSet<KernelPattern>,
        gpu: Option<u32>,
    ) -> Self {
        let mut has_ptx: BTreeMap<&str, bool> = BTreeMap::new();
        for (symbol, ways) in files.into_iter().flatten() {
            if patterns.iter().any(|it| matches(it, symbol)) {
                *has_ptx.entry(symbol).or_default() |= ways.has_twin_on(gpu);
            }
        }
        let n_with_ptx = has_ptx.values().filter(|it| **it).count();
        Named { n_with_ptx, n_without: has_ptx.len() - n_with_ptx }
    }
}

/// How files are searched.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// For the code of GPUs of this compute capability.
    pub gpu: Option<u32>,
    /// Whose programs they are.
    pub account: Account,
    /// What earlier runs found.
    pub cache: Option<&'a Cache>,
    /// When it is given up.
    pub until: Instant,
}

impl SearchedFiles {
    /// Returns what the files of a process have that it has mapped as programs.
    pub fn of_process(&self, pid: u32, search: Search<'_>) -> Looked {
        let Some(files) = mapped_programs(pid).ok().and_then(|it| opened(pid, it).ok()) else {
            return Looked { is_cut: true, ..Looked::default() };
        };
        let mut looked = Looked::default();
        for (path, file) in files {
            let Some(identity) = search.identity(&path, &file) else { continue };
            let found = self.cell(&identity, search.account);
            let found = found.get_or_init(|| Arc::new(search.kept_or_found(&identity, &file)));
            looked.is_cut |= found.found.is_cut;
            looked.files.push(found.clone());
        }
        looked
    }

    fn cell(&self, identity: &str, account: Account) -> Searched {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry((identity.to_owned(), account)).or_default().clone()
    }
}

impl Search<'_> {
    /// Returns what tells a file from others, and from what it was before, with the GPU; `None` of what is no file.
    fn identity(&self, path: &Path, file: &File) -> Option<String> {
        let about = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let (inode, bytes, modified) = (about.ino(), about.len(), (about.mtime(), about.mtime_nsec()));
        let gpu = self.gpu.map_or_else(|| "newest".into(), |it| format!("sm_{it}"));
        Some(format!("{}\n{inode} {bytes} {}.{:09} {gpu}", path.to_str()?, modified.0, modified.1))
    }

    fn kept_or_found(&self, identity: &str, file: &File) -> InFile {
        let words = [FORM, identity];
        if let Some(kernels) = self.cache.and_then(|it| it.text(&words)).and_then(|it| of_text(&it)) {
            return InFile { found: FileKernels { kernels, is_cut: false }, is_kept: true };
        }
        let found = found_in(file, self.gpu, &|| Instant::now() < self.until);
        let keep = || self.cache?.keep_text(&words, to_text(&found.kernels)?).ok();
        // Most files have none, and say so at once.
        let is_kept = !found.is_cut && (found.kernels.is_empty() || keep().is_some());
        InFile { found, is_kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::files::tests::{Library, SCALE, elf, machine_code_of};
    use std::time::Duration;

    const OURS: Account = Account { uid: 0, gid: 0 };

    fn search(cache: Option<&Cache>) -> Search<'_> {
        Search { gpu: None, account: OURS, cache, until: Instant::now() + Duration::from_secs(600) }
    }

    /// A search that is over before it begins.
    fn over(cache: Option<&Cache>) -> Search<'_> {
        Search { until: Instant::now(), ..search(cache) }
    }

    /// Returns a file with a kernel, and its identity.
    fn library(directory: &Path) -> (File, String) {
        let path = directory.join("library.so");
        fs::write(&path, elf(&[(".nv_fatbin", SCALE)])).unwrap();
        let file = File::open(&path).unwrap();
        let identity = search(None).identity(&path, &file).unwrap();
        (file, identity)
    }

    #[test]
    fn a_file_is_searched_once_and_then_found_on_disk() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("cache"), 1 << 20).unwrap();
        let (file, identity) = library(directory.path());
        let found = search(Some(&cache)).kept_or_found(&identity, &file);
        assert!(found.found.kernels.contains_key("scale") && !found.found.is_cut && found.is_kept);
        assert_eq!(over(Some(&cache)).kept_or_found(&identity, &file), found);
        let over = over(None).kept_or_found(&identity, &file);
        assert!(over.found.is_cut && !over.is_kept);
        assert!(!search(None).kept_or_found(&identity, &file).is_kept, "there is no place for it");
    }

    #[test]
    fn what_is_kept_in_another_form_is_searched_again() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(&directory.path().join("cache"), 1 << 20).unwrap();
        let (file, identity) = library(directory.path());
        cache.keep_text(&[FORM, &identity], " nonsense\n".into()).unwrap();
        assert!(search(Some(&cache)).kept_or_found(&identity, &file).found.kernels.contains_key("scale"));
    }

    #[test]
    fn files_that_a_process_has_mapped_are_looked_at() {
        // Other tests map what has other kernels.
        let patterns = [KernelPattern::new("looked_for")].into();
        let named = |search| SearchedFiles::default().of_process(std::process::id(), search).named(&patterns, None);
        assert_eq!(named(search(None)), Some(Named::default()));
        let _library = Library::with(&machine_code_of("looked_for"));
        assert_eq!(named(search(None)), Some(Named { n_with_ptx: 0, n_without: 1 }));
        assert_eq!(named(over(None)), None, "it was not searched to its end");
    }

    #[test]
    fn kernels_are_counted_once_and_by_the_gpu() {
        let with = of_text("twins=sm_90 machine_code= ptx=\n scale\n both\n").unwrap();
        let without = of_text("twins= machine_code=sm_80,sm_90 ptx=\n nvjet_a\n nvjet_b\n both\n").unwrap();
        let named = |pattern: &str, gpu| {
            let patterns = [KernelPattern::new(pattern)].into();
            let Named { n_with_ptx, n_without } = Named::among([&with, &without], &patterns, gpu);
            (n_with_ptx, n_without)
        };
        assert_eq!(named("*", Some(90)), (2, 2));
        assert_eq!(named("nvjet*", Some(90)), (0, 2));
        assert_eq!(named("scale", Some(80)), (0, 1), "there is no code of it for that GPU");
        assert_eq!(named("scale", None), (1, 0));
        assert_eq!(named("other", Some(90)), (0, 0));
    }
}
