//! Naming a million frames, of 10,000 functions with mangled names: 10,000 stacks of 100 frames,
//! from a file that is opened for it.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use object::{Object, ObjectSymbol};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use xputrace_symbols::{Detail, Mapping, ProcessKey, Processes};

const FUNCTIONS: usize = 10_000;
const STACKS: usize = 10_000;
const FRAMES_A_STACK: usize = 100;
/// Where the file is mapped.
const BASE: u64 = 0x7000_0000;

/// Compiles `at::work<n>(float*)` for each n.
fn compile(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("work.c"), folder.join("libwork.so"));
    let mut text = String::new();
    for n in 0..FUNCTIONS {
        writeln!(text, "void _ZN2at4workILi{n}EEEvPf(float *it) {{\n    it[{n}] += 1;\n}}").expect("memory");
    }
    std::fs::write(&source, text).expect("a folder");
    let status = Command::new("cc").args(["-g", "-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(status.expect("a C compiler").success());
    library
}

/// Returns the mapping of the whole library, and an address in each function.
fn mapped(library: &Path) -> (Mapping, Vec<u64>) {
    let bytes = std::fs::read(library).expect("the library");
    let elf = object::File::parse(&*bytes).expect("ELF");
    let functions = elf.symbols().filter(|it| it.name().is_ok_and(|it| it.starts_with("_ZN2at")));
    // Its text has the same offset in file and memory.
    let addresses: Vec<u64> = functions.map(|it| BASE + it.address() + 5).collect();
    assert_eq!(addresses.len(), FUNCTIONS);
    let mapping = Mapping {
        start: BASE,
        end: BASE + bytes.len() as u64,
        file_offset: 0,
        path: library.into(),
        build_id: elf.build_id().expect("notes").map(<[u8]>::to_vec),
        device: 0,
        inode: 0,
    };
    (mapping, addresses)
}

/// Names all stacks; returns how many frames have the name of a function.
fn name_all(mapping: &Mapping, stacks: &[Vec<u64>], detail: Detail) -> usize {
    let key = ProcessKey { pid: u32::MAX, generation: 0 };
    let mut processes = Processes::new();
    processes.map(key, mapping);
    let named = |stack: &Vec<u64>| {
        let frames = processes.resolve(stack, key, detail);
        frames.iter().filter(|it| it.function.starts_with("at::work<")).count()
    };
    stacks.iter().map(named).sum()
}

fn frames(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let (mapping, addresses) = mapped(&compile(folder.path()));
    // Strides that share no factor with the number of functions.
    let stack = |n: usize| (0..FRAMES_A_STACK).map(|it| addresses[(n * 7919 + it * 101) % FUNCTIONS]).collect();
    let stacks: Vec<Vec<u64>> = (0..STACKS).map(stack).collect();
    let mut group = criterion.benchmark_group("a million frames");
    group.sample_size(10).throughput(Throughput::Elements((STACKS * FRAMES_A_STACK) as u64));
    for (name, detail) in [("names", Detail::Names), ("lines", Detail::Lines)] {
        assert_eq!(name_all(&mapping, &stacks, detail), STACKS * FRAMES_A_STACK);
        group.bench_function(name, |it| it.iter(|| name_all(&mapping, &stacks, detail)));
    }
}

criterion_group!(benches, frames);
criterion_main!(benches);
