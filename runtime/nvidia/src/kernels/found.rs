//! Searches a file for kernels, with several threads: libraries have thousands of images, and each has to be decompressed.

use super::reached::{Kernels, Ways};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use xputrace_twins::{cubin_in, entries_of, images_of, kernels_of, ptx_in, text};
use xputrace_wire::nvidia::fatbin::FatbinContents as Image;
use xputrace_wire::stored::StoredAt;

/// Threads that search one file.
const MOST_THREADS: usize = 8;
/// What the symbols of a file may have: ten times what those of the largest libraries do.
const MOST_SYMBOL_BYTES: usize = 64 << 20;
/// Images below which one thread does it all.
const FEW_IMAGES: usize = 16;

/// What a file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileKernels {
    pub kernels: Kernels,
    /// Whether the search was given up before its end.
    pub is_cut: bool,
}

/// Returns the kernels that GPUs of this compute capability run of a program or library; those of the newest code, if that is not
/// known. Asks between its images whether to go on.
pub fn found_in(file: &File, gpu: Option<u32>, goes_on: &(dyn Fn() -> bool + Sync)) -> FileKernels {
    let images = images_of(file, &goes_on);
    let (next, n_bytes, is_cut) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(images.is_cut));
    let work = || {
        let mut kernels = Kernels::new();
        while let Some(image) = images.all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !goes_on() || n_bytes.load(Ordering::Relaxed) > MOST_SYMBOL_BYTES {
                is_cut.store(true, Ordering::Relaxed);
                break;
            }
            let ways = Ways::of(image);
            for symbol in names(file, image, gpu) {
                n_bytes.fetch_add(symbol.len(), Ordering::Relaxed);
                kernels.entry(symbol).or_default().add(&ways);
            }
        }
        kernels
    };
    let n_threads = match images.all.len() {
        n if n <= FEW_IMAGES => 1,
        _ => thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS),
    };
    let kernels = thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        let mut kernels = work();
        for found in others.into_iter().filter_map(|it| it.join().ok()) {
            found.into_iter().for_each(|(symbol, ways)| kernels.entry(symbol).or_default().add(&ways));
        }
        kernels
    });
    FileKernels { kernels, is_cut: is_cut.into_inner() }
}

/// Returns the symbols of an image's kernels. Those of its machine code differ from GPU to GPU.
fn names(file: &File, image: &Image, gpu: Option<u32>) -> Vec<String> {
    let of_ptx = |it: &StoredAt| Some(entries_of(&text(&ptx_in(file, it).ok()?).ok()?).map(str::to_owned).collect());
    let of_cubin = |it: &StoredAt| kernels_of(&cubin_in(file, it).ok()?).ok();
    let found = match gpu {
        Some(gpu) => match image.cubin_that_runs(gpu) {
            Some(cubin) => of_cubin(cubin),
            // The driver compiles PTX.
            None => image.ptx.iter().filter(|it| it.target().compiles_for(gpu)).find_map(of_ptx),
        },
        None => {
            let newest = image.cubins.iter().max_by_key(|it| it.sm);
            image.ptx.iter().find_map(of_ptx).or_else(|| newest.and_then(of_cubin))
        }
    };
    found.unwrap_or_default()
}
