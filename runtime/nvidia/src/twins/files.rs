//! Finds the PTX of kernels in the files that a process has mapped.
//!
//! All of it is the program's, and may be anything: nothing outside of its root is opened, and a search ends in time.

use anyhow::{Context, Result, bail};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use xputrace_boundary::read::{Links, open_below, open_directory};
use xputrace_twins::{Gpu, best, cubin_in, entries_of, images_of, kernels_of, ptx_in, text};
use xputrace_wire::device::{ImageOutcome, PortableCode};
use xputrace_wire::maps::MapsLine;
use xputrace_wire::nvidia::fatbin::FatbinContents;
use xputrace_wire::stored::StoredAt;

/// How long a file is searched for PTX, and again for machine code.
pub const SEARCHED_WITHIN: Duration = Duration::from_secs(30);
/// How long all files of a process are searched for a kernel. What was given up then is not searched again.
const ALL_SEARCHED_WITHIN: Duration = Duration::from_secs(60);

/// The files that were searched, for one script. A file system may let whoever searches wait for ever: only those wait with it
/// who need the same file.
#[derive(Debug, Default)]
pub struct ProgramFiles(Mutex<HashMap<FileId, Arc<OnceLock<Searched>>>>);

/// A search of all files of a process.
struct Search<'a> {
    gpu: Gpu,
    is_wanted: &'a dyn Fn(&str) -> bool,
    /// When it is given up.
    until: Instant,
}

/// A file, as it was when it was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    capability: u32,
}

/// What was found in a file.
#[derive(Debug, Default)]
struct Searched {
    images: Vec<SearchedImage>,
    /// Images without PTX.
    others: Vec<FatbinContents>,
    /// Kernels of those that handlers name. Libraries have gigabytes of them: they are searched only if that matters.
    machine_code: OnceLock<MachineCode>,
    is_cut: bool,
}

#[derive(Debug, Default)]
struct MachineCode {
    kernels: HashSet<String>,
    is_cut: bool,
}

/// PTX with kernels that handlers name.
#[derive(Debug)]
struct SearchedImage {
    ptx: StoredAt,
    /// Whether the code for the GPU was made from other PTX.
    is_older: bool,
    kernels: Vec<String>,
}

/// What files have of a kernel.
#[derive(Debug, Default)]
pub struct FoundKernel {
    /// The PTX of its code, once for each image that has it.
    pub ptx: Vec<PortableCode<'static>>,
    /// Whether other code has a kernel of this name: it may be that which runs.
    pub elsewhere: Option<Elsewhere>,
}

/// Code that has no PTX of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// Its image has PTX, but not that from which it was made.
    OlderPortableCode,
    NoPortableCode,
}

impl ProgramFiles {
    /// Searches the files that a process has mapped for a kernel; `is_wanted` says of which kernels this will be asked.
    ///
    /// # Errors
    /// A file could not be read, or not searched to its end.
    pub fn find(&self, pid: u32, symbol: &str, gpu: Gpu, is_wanted: &dyn Fn(&str) -> bool) -> Result<FoundKernel> {
        let (mut found, mut cut) = (FoundKernel::default(), None);
        let search = Search { gpu, is_wanted, until: Instant::now() + ALL_SEARCHED_WITHIN };
        for (path, file) in opened(pid, mapped_programs(pid)?).context("opening its root directory")? {
            let Some(known) = self.known(&file, gpu) else { continue };
            let searched = known.get_or_init(|| search.images(&file));
            for image in searched.images.iter().filter(|it| it.kernels.iter().any(|it| it == symbol)) {
                match image.is_older {
                    true => found.elsewhere = Some(Elsewhere::OlderPortableCode),
                    false => found.ptx.push(ptx_in(&file, &image.ptx)?),
                }
            }
            let of_machine = searched.machine_code.get_or_init(|| search.machine_code(&file, &searched.others));
            if of_machine.kernels.contains(symbol) {
                found.elsewhere = found.elsewhere.or(Some(Elsewhere::NoPortableCode));
            }
            cut = cut.or_else(|| (searched.is_cut || of_machine.is_cut).then_some(path));
        }
        match cut {
            Some(path) => {
                bail!(
                    "searching {} for {symbol} takes longer than {} s, or all files of the process longer than {} s",
                    path.display(),
                    SEARCHED_WITHIN.as_secs(),
                    ALL_SEARCHED_WITHIN.as_secs()
                )
            }
            None => Ok(found),
        }
    }

    /// Returns what is known of a file; `None` of what is no file.
    fn known(&self, file: &File, gpu: Gpu) -> Option<Arc<OnceLock<Searched>>> {
        let about = file.metadata().ok().filter(fs::Metadata::is_file)?;
        let id = FileId {
            device: about.dev(),
            inode: about.ino(),
            bytes: about.len(),
            modified: (about.mtime(), about.mtime_nsec()),
            capability: gpu.capability,
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(all.entry(id).or_default().clone())
    }
}

impl Search<'_> {
    /// Returns until when a file is searched that is begun now.
    fn of_file(&self) -> Instant {
        self.until.min(Instant::now() + SEARCHED_WITHIN)
    }

    /// Returns the images of a file, and the kernels of their PTX that are wanted.
    fn images(&self, file: &File) -> Searched {
        let until = self.of_file();
        let goes_on = || Instant::now() < until;
        let found = images_of(file, &goes_on);
        let (with_ptx, others) = found.all.into_iter().partition::<Vec<FatbinContents>, _>(|it| !it.ptx.is_empty());
        let mut searched = Searched { others, is_cut: found.is_cut, ..Searched::default() };
        for image in with_ptx {
            searched.is_cut |= !goes_on();
            if searched.is_cut {
                break;
            }
            searched.images.extend(self.image(file, image));
        }
        searched
    }

    /// Returns the kernels of images without PTX that are wanted.
    fn machine_code(&self, file: &File, images: &[FatbinContents]) -> MachineCode {
        let until = self.of_file();
        let mut found = MachineCode::default();
        for cubin in images.iter().filter_map(|it| it.cubin_that_runs(self.gpu.capability)) {
            if Instant::now() >= until {
                found.is_cut = true;
                break;
            }
            // What can't be read can't be loaded.
            let Ok(cubin) = cubin_in(file, cubin) else { continue };
            found.kernels.extend(kernels_of(&cubin).into_iter().flatten().filter(|it| (self.is_wanted)(it)));
        }
        found
    }

    /// Returns the PTX of an image, if it has a kernel that is wanted.
    fn image(&self, file: &File, image: FatbinContents) -> Option<SearchedImage> {
        let all = image.ptx.clone();
        let (of_code, is_older) = match image.of_what_runs(self.gpu.capability) {
            Ok(of_code) => (of_code, false),
            Err(ImageOutcome::OlderPortableCode) => (all, true),
            Err(_) => return None,
        };
        let read: Vec<PortableCode<'_>> = of_code.iter().filter_map(|it| ptx_in(file, it).ok()).collect();
        let ptx = best(&read, self.gpu)?;
        let at = of_code.iter().find(|it| (it.sm, it.portability) == (ptx.sm, ptx.portability))?;
        let text = text(ptx).ok()?;
        let kernels: Vec<String> = entries_of(&text).filter(|it| (self.is_wanted)(it)).map(str::to_owned).collect();
        (!kernels.is_empty()).then_some(SearchedImage { ptx: *at, is_older, kernels })
    }
}

/// Opens files as a process sees them, without those that can't be opened.
///
/// # Errors
/// Its root directory can't be opened.
pub fn opened(pid: u32, paths: impl IntoIterator<Item = PathBuf>) -> io::Result<impl Iterator<Item = (PathBuf, File)>> {
    let root = open_directory(Path::new(&format!("/proc/{pid}/root")))?;
    Ok(paths.into_iter().filter_map(move |path| open_below(&root, &path, Links::InRoot).ok().map(|it| (path, it))))
}

/// Returns the programs and libraries that a process has mapped, as it sees them, without those that were deleted since.
pub fn mapped_programs(pid: u32) -> Result<BTreeSet<PathBuf>> {
    let maps = fs::read(format!("/proc/{pid}/maps")).context("reading what it has mapped")?;
    let lines = maps.split(|it| *it == b'\n').filter_map(MapsLine::parse).filter(|it| it.is_executable);
    let files = lines.filter_map(|it| it.file()).filter(|(_, is_deleted)| !is_deleted);
    Ok(files.map(|it| it.0).filter(|it| it != Path::new("/")).collect())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use object::write::Object;
    use object::{Architecture, BinaryFormat, Endianness, SectionKind};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::ptr::null_mut;

    /// What `nvcc` of CUDA 13.0 makes of `gpu-probes/nvidia/tests/images/scale.cu`: a cubin for `sm_90`, and PTX for it and
    /// `sm_75`.
    pub const SCALE: &[u8] = include_bytes!("../../../../gpu-probes/nvidia/tests/images/zstd.fatbin");
    const SYMBOL: &str = "scale";

    /// Returns an ELF file with a section for each of these contents.
    pub fn elf(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        for (name, contents) in sections {
            let id = object.add_section(Vec::new(), (*name).into(), SectionKind::ReadOnlyData);
            object.append_section_data(id, contents, 8);
        }
        object.write().unwrap()
    }

    /// A library, mapped into this process until it is dropped.
    pub struct Library(*mut libc::c_void, tempfile::NamedTempFile);

    const MAPPED_BYTES: usize = 4096;

    impl Library {
        pub fn with(containers: &[u8]) -> Self {
            let file = tempfile::NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
            fs::write(file.path(), elf(&[(".nv_fatbin", containers)])).unwrap();
            let (rights, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
            // SAFETY: a fresh mapping.
            let at = unsafe { libc::mmap(null_mut(), MAPPED_BYTES, rights, flags, file.as_file().as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Library(at, file)
        }
    }

    impl Drop for Library {
        fn drop(&mut self) {
            // SAFETY: the mapping of `with`.
            unsafe { libc::munmap(self.0, MAPPED_BYTES) };
        }
    }

    fn find(symbol: &str, capability: u32) -> FoundKernel {
        let wanted = |it: &str| it == SYMBOL;
        ProgramFiles::default().find(std::process::id(), symbol, Gpu { capability }, &wanted).unwrap()
    }

    #[test]
    fn kernels_are_found_in_what_a_process_has_mapped() {
        let none = find(SYMBOL, 90);
        assert_eq!((none.ptx.len(), none.elsewhere), (0, None));
        let library = Library::with(SCALE);
        let found = find(SYMBOL, 90);
        assert_eq!((found.ptx.len(), found.ptx[0].sm, found.elsewhere), (1, 90, None));
        assert_eq!(find(SYMBOL, 80).ptx[0].sm, 75, "the driver compiles it");
        assert_eq!(find("other", 90).ptx.len(), 0);
        let again = Library::with(&[SCALE, SCALE].concat());
        assert_eq!(find(SYMBOL, 90).ptx.len(), 3);
        let machine = Library::with(&machine_code_of(SYMBOL));
        assert_eq!(find(SYMBOL, 90).elsewhere, Some(Elsewhere::NoPortableCode), "it may be that which runs");
        drop((library, again, machine));
        let deleted = Library::with(SCALE);
        fs::remove_file(deleted.1.path()).unwrap();
        assert_eq!(find(SYMBOL, 90).ptx.len(), 0, "what has its name now is another file");
    }

    /// A file that takes long to search, as this one, does not keep others waiting.
    #[test]
    fn a_search_does_not_keep_other_files_from_being_searched() {
        let files = ProgramFiles::default();
        let written: [File; 2] = std::array::from_fn(|_| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&elf(&[])).unwrap();
            file
        });
        let [one, other] = written.each_ref().map(|it| files.known(it, Gpu { capability: 90 }).unwrap());
        one.get_or_init(|| {
            other.get_or_init(Searched::default);
            Searched::default()
        });
        assert!(other.get().is_some());
    }

    #[test]
    fn a_search_that_is_over_finds_nothing_more() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&elf(&[(".nv_fatbin", SCALE)])).unwrap();
        let search = Search { gpu: Gpu { capability: 90 }, is_wanted: &|_| true, until: Instant::now() };
        let searched = search.images(&file);
        assert_eq!((searched.is_cut, searched.images.len()), (true, 0));
    }

    /// Returns a container with a cubin for `sm_90` alone.
    pub fn machine_code_of(kernel: &str) -> Vec<u8> {
        let mut cubin = elf(&[(&format!(".nv.constant0.{kernel}"), &[0; 16])]);
        cubin.resize(cubin.len().next_multiple_of(8), 0);
        // As in what the compiler makes, whose first entry is a cubin with a header of 64 bytes.
        let mut container = SCALE[..80].to_vec();
        container[8..16].copy_from_slice(&(64 + cubin.len() as u64).to_le_bytes());
        container[24..32].copy_from_slice(&(cubin.len() as u64).to_le_bytes());
        container.extend(cubin);
        container
    }

    #[test]
    fn ptx_of_other_code_is_older() {
        let mut older = SCALE.to_vec();
        let mut at = 16;
        while at < SCALE.len() {
            let word = |at: usize| u64::from_le_bytes(SCALE[at..at + 8].try_into().unwrap()) as usize;
            if SCALE[at] == 1 {
                older[at + 28] = 75;
            }
            at += (word(at) >> 32) + word(at + 8);
        }
        for (container, is_older) in [(SCALE, false), (&older, true)] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&elf(&[(".nv_fatbin", container)])).unwrap();
            let search = Search {
                gpu: Gpu { capability: 90 },
                is_wanted: &|it| it == SYMBOL,
                until: Instant::now() + SEARCHED_WITHIN,
            };
            let searched = search.images(&file);
            assert_eq!(searched.images.iter().map(|it| it.is_older).collect::<Vec<_>>(), [is_older]);
        }
    }
}
