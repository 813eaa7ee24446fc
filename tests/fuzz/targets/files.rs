//! Files with code, which processes of others have mapped.

use super::{file_with, files_in, text};
use crate::harness::{Bound, Target};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use xputrace_symbols::{Detail, Mapping, ProcessKey, Processes};
use xputrace_twins::{cubin_in, images_of, kernels_of, parameters_of, ptx_in};

/// Readers of files map them, and keep tables of them; debug information may be compressed.
const BOUND: Bound = Bound { bytes: 64 << 20, per_byte: 512 };

/// Code of GPUs is read as it is stored, and as it was before: 64 MiB each (`MOST_IMAGE_BYTES`).
const GPU_BOUND: Bound = Bound { bytes: 160 << 20, per_byte: 64 };

pub(super) const TARGETS: &[Target] = &[
    Target { name: "elf_linux", read: linux, seeds: elf_files, words: WORDS, bound: BOUND },
    Target { name: "elf_symbols", read: symbols, seeds: elf_files, words: WORDS, bound: BOUND },
    Target { name: "elf_inject", read: inject, seeds: elf_files, words: WORDS, bound: BOUND },
    Target { name: "elf_gpu", read: gpu, seeds: elf_files, words: WORDS, bound: GPU_BOUND },
    Target {
        name: "eh_frame",
        read: eh_frame,
        seeds: tables,
        words: &[],
        bound: Bound { bytes: 1 << 20, per_byte: 16 },
    },
    Target { name: "perf_map", read: perf_map, seeds: perf_maps, words: &["\n", " ", "0x"], bound: BOUND },
    Target {
        name: "linker_cache",
        read: xputrace_linux::fuzzing::linker_cache,
        seeds: caches,
        words: &["glibc-ld.so.cache1.1"],
        bound: BOUND,
    },
];

const WORDS: &[&str] = &[
    ".eh_frame",
    ".debug_info",
    ".debug_line",
    ".note.stapsdt",
    ".gnu_debuglink",
    ".nv_fatbin",
    ".nv.info.k",
    "stapsdt\0",
    "GNU\0",
    "-4@%edi",
    "8@total(%rip)",
    "_ZN2ns",
    "$ORIGIN",
    "\u{7f}ELF",
];

fn elf_files() -> Vec<Vec<u8>> {
    let mut all = files_in("tests/fuzz/seeds", ".so");
    all.extend(files_in("tests/fuzz/seeds", ".cubin"));
    all
}

fn linux(input: &[u8]) {
    let file = file_with(input);
    xputrace_linux::fuzzing::file(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())));
}

/// Names the frames of stacks in a file that a process has mapped; here this one, which has it under its descriptor.
fn symbols(input: &[u8]) {
    const START: u64 = 0x10_0000;
    let file = file_with(input);
    let Ok(about) = file.metadata() else { return };
    let key = ProcessKey { pid: std::process::id(), generation: 0 };
    let mut processes = Processes::new();
    let mapping = Mapping {
        start: START,
        end: START + (input.len() as u64).next_multiple_of(4096),
        file_offset: 0,
        path: PathBuf::from(format!("/proc/{}/fd/{}", key.pid, file.as_raw_fd())),
        build_id: None,
        device: about.dev(),
        inode: about.ino(),
    };
    processes.map(key, &mapping);
    let step = (input.len() as u64 / 48).max(1);
    let addresses: Vec<u64> = (0..48).map(|it| START + it * step).collect();
    for detail in [Detail::Names, Detail::Lines] {
        addresses.iter().for_each(|it| _ = processes.resolve(&[*it], key, detail));
    }
    let _ =
        processes.resolve_launch(&addresses, &[], key, Detail::Lines, |_, _| xputrace_symbols::python_frame(None, 0));
}

fn inject(input: &[u8]) {
    let file = file_with(input);
    let Ok(about) = file.metadata() else { return };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    xputrace_inject::fuzzing::file(&path, about.ino(), input.len() as u64);
}

/// Looks for code of GPUs in a file, and reads it.
fn gpu(input: &[u8]) {
    /// Images of a file that are read.
    const MOST_IMAGES: usize = 64;
    let _ = (kernels_of(input), parameters_of(input));
    let file = file_with(input);
    let images = images_of(&file, &|| true);
    for found in images.all.iter().take(MOST_IMAGES) {
        for it in &found.ptx {
            if let Ok(ptx) = ptx_in(&file, it) {
                let _ = xputrace_twins::text(&ptx);
            }
        }
        for it in &found.cubins {
            if let Ok(cubin) = cubin_in(&file, it) {
                let _ = (kernels_of(&cubin), parameters_of(&cubin));
            }
        }
    }
}

/// Reads rows of a file's tables: of addresses that it says it has, and of others.
fn eh_frame(input: &[u8]) {
    const TABLE_AT: usize = 12;
    let entries = input.get(TABLE_AT..).unwrap_or_default().chunks_exact(8).take(24);
    for entry in entries {
        let address = i64::from(i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]));
        [0, 1, 5, 40].iter().for_each(|it| xputrace_unwind::fuzzing::row(input, address + it));
    }
    [0, -0x230, i64::MIN, i64::MAX].iter().for_each(|it| xputrace_unwind::fuzzing::row(input, *it));
}

/// From `.eh_frame_hdr` to the end of `.eh_frame`, which linkers put behind it.
fn tables() -> Vec<Vec<u8>> {
    let all = files_in("tests/fuzz/seeds", ".so");
    let word =
        |file: &[u8], at: usize, n: usize| file[at..at + n].iter().rev().fold(0, |sum, it| sum << 8 | usize::from(*it));
    let table = |file: &Vec<u8>| {
        let (headers, n) = (word(file, 32, 8), word(file, 56, 2));
        let header = (0..n).map(|it| headers + it * 56).find(|it| word(file, *it, 4) == 0x6474_e550)?;
        let from = word(file, header + 8, 8);
        Some(file.get(from..from + 0x400)?.to_vec())
    };
    all.iter().filter_map(table).collect()
}

fn perf_map(input: &[u8]) {
    let file = file_with(input);
    let first = text(input).split(' ').next().and_then(|it| u64::from_str_radix(it, 16).ok());
    xputrace_symbols::fuzzing::perf_map(&file, first.unwrap_or(0x1000));
}

fn perf_maps() -> Vec<Vec<u8>> {
    let texts = [
        "1000 10 py::forward:/app/model.py\nnonsense\n0x2000 0x20 old\n2000 20 new name\n",
        "1000 100 old\n1200 10 small\n1080 200 new\n1400 0 empty\nffffffffffffff00 fff end\n1500 10 unfini",
    ];
    texts.map(|it| it.as_bytes().to_vec()).to_vec()
}

fn caches() -> Vec<Vec<u8>> {
    let entries = [1u32, 0, 96, 106, 0, 0].map(u32::to_le_bytes).concat();
    let head = [&b"glibc-ld.so.cache1.1"[..], &2u32.to_le_bytes(), &[0; 24]].concat();
    let own = [&head[..], &entries, &entries, b"libc.so.6\0/lib/libc.so.6\0"].concat();
    let of_system = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    vec![own, of_system]
}
