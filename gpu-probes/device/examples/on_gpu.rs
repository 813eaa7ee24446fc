//! Runs translated programs on a GPU: random ones against the tracer's engine, and some that a million threads run at the
//! same time. Says what was covered, and fails if anything differs.
//!
//! ```text
//! on_gpu [--cases N] [--seed N] [--threads N]
//! ```
#![allow(clippy::print_stdout, reason = "it reports to its caller")]
#![allow(dead_code, reason = "it uses a part of what the tests share")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_void};
use std::time::{Duration, Instant};

use common::generate::{self, Case, word};
use common::programs::{self, ARRAY, HASH};
use common::{kernels, map, program};
use cudarc::driver::{result, sys};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use xputrace_bytecode::insn::Size;
use xputrace_bytecode::{Assembler, BpfMapId};
use xputrace_device::arena::{Arena, MapBytes, Needs, RingBytes, RingReader};
use xputrace_device::layout::{VARIABLE, descriptor};
use xputrace_device::{DeviceMap, Options, PtxBlock, Request, Storage, Word, translate};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Programs in one module.
const BATCH: usize = 50;
const THREADS_PER_BLOCK: u32 = 256;
/// Keys that are counted where all fit.
const N_KEYS: i32 = 1000;
/// Backward jumps of the endless program.
const FUEL: u32 = 1000;
const RING_SLOTS: u32 = 1 << 12;

struct Arguments {
    n_cases: usize,
    seed: u8,
    n_threads: u32,
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let arguments = arguments()?;
    let Some(gpu) = Gpu::open()? else {
        println!("no GPU: nothing was run");
        return Ok(());
    };
    random_programs(&gpu, &arguments)?;
    for test in [counts, one_key, full_map, come_and_go, sums, values_of_threads, records, endless, stray] {
        test(&gpu, arguments.n_threads)?;
    }
    println!("all as expected");
    Ok(())
}

fn arguments() -> Result<Arguments> {
    let mut arguments = Arguments { n_cases: 400, seed: 1, n_threads: 1 << 20 };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or_else(|| format!("{name} needs a number"))?;
        match name.as_str() {
            "--cases" => arguments.n_cases = value.parse()?,
            "--seed" => arguments.seed = value.parse()?,
            "--threads" => arguments.n_threads = value.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    arguments.n_threads = arguments.n_threads.next_multiple_of(THREADS_PER_BLOCK);
    Ok(arguments)
}

/// The first GPU, with its context on this thread.
struct Gpu;

impl Gpu {
    fn open() -> Result<Option<Gpu>> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } || result::init().is_err() {
            return Ok(None);
        }
        let Ok(device) = result::device::get(0) else { return Ok(None) };
        // SAFETY: the device exists, and its context stays until the process ends.
        unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?)? };
        Ok(Some(Gpu))
    }

    fn load(&self, text: &str) -> Result<Module> {
        let source = CString::new(text)?;
        let mut log = vec![0u8; 1 << 14];
        let mut module = std::ptr::null_mut();
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        // SAFETY: the source ends with NUL; the options describe the buffer, which outlives the call.
        let status = unsafe {
            sys::cuModuleLoadDataEx(
                &mut module,
                source.as_ptr().cast(),
                options.len() as u32,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        if let Err(error) = status.result() {
            let log = String::from_utf8_lossy(&log);
            let said = log.trim_end_matches('\0');
            return Err(format!("the driver refuses a module: {error:?}\n{said}\n{text}").into());
        }
        Ok(Module { module })
    }
}

struct Module {
    module: sys::CUmodule,
}

impl Module {
    fn function(&self, name: &str) -> Result<sys::CUfunction> {
        // SAFETY: the module is loaded.
        Ok(unsafe { result::module::get_function(self.module, CString::new(name)?)? })
    }

    /// Makes code of the module use a table.
    fn use_table(&self, address: u64) -> Result<()> {
        let mut variable = 0;
        let mut n_bytes = 0;
        let name = CString::new(VARIABLE)?;
        // SAFETY: the module is loaded; the variable has 8 bytes, as it is declared.
        unsafe {
            sys::cuModuleGetGlobal_v2(&mut variable, &mut n_bytes, self.module, name.as_ptr()).result()?;
            result::memcpy_htod_sync(variable, &[address])?;
        }
        Ok(())
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: all launches have ended, or the context is unusable anyway.
        let _ = unsafe { sys::cuModuleUnload(self.module) };
    }
}

/// Memory of the device.
struct Buffer {
    address: u64,
    n_bytes: usize,
}

impl Buffer {
    fn new(n_bytes: usize) -> Result<Buffer> {
        let n_bytes = n_bytes.max(1);
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(n_bytes)? };
        Ok(Buffer { address, n_bytes })
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.n_bytes {
            return Err("a write is longer than its buffer".into());
        }
        // SAFETY: the buffer has room.
        unsafe { result::memcpy_htod_sync(self.address, bytes)? };
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.n_bytes];
        // SAFETY: both have the same size.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, self.address)? };
        Ok(bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated, and is freed once.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Launches a kernel whose parameters are 64-bit words.
fn launch(
    function: sys::CUfunction,
    n_blocks: u32,
    n_threads: u32,
    stream: sys::CUstream,
    words: &[u64],
) -> Result<()> {
    let mut words = words.to_vec();
    let mut parameters: Vec<*mut c_void> = words.iter_mut().map(|it| std::ptr::from_mut(it).cast()).collect();
    // SAFETY: the kernel has as many parameters of 8 bytes.
    unsafe { result::launch_kernel(function, (n_blocks, 1, 1), (n_threads, 1, 1), 0, stream, &mut parameters)? };
    Ok(())
}

/// Compares random programs with the tracer's engine.
fn random_programs(gpu: &Gpu, arguments: &Arguments) -> Result<()> {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[arguments.seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = generate::case();
    let (mut seen, mut n_run) = (BTreeSet::new(), 0);
    let begin = Instant::now();
    while n_run < arguments.n_cases {
        let n = BATCH.min(arguments.n_cases - n_run);
        let mut cases = Vec::new();
        for _ in 0..n {
            cases.push(strategy.new_tree(&mut runner).map_err(|it| it.to_string())?.current());
        }
        cases.iter().for_each(|it| generate::coverage(&generate::build(it, true).insns, &mut seen));
        batch(gpu, &cases)?;
        n_run += n;
    }
    let all = generate::everything();
    let missed: Vec<&String> = all.difference(&seen).collect();
    let n_covered = all.len() - missed.len();
    println!("{n_run} random programs as in the engine, {:.1} s", begin.elapsed().as_secs_f64());
    println!("covered {n_covered} of {} instructions, helpers, loops and calls", all.len());
    if !missed.is_empty() {
        return Err(format!("never covered: {missed:?}; more --cases are needed").into());
    }
    Ok(())
}

/// Runs programs of one module, each in a kernel of its own, by one thread.
fn batch(gpu: &Gpu, cases: &[Case]) -> Result<()> {
    let mut blocks = Vec::new();
    for case in cases {
        blocks.push(generate::translated(case, 0)?);
    }
    let text = kernels::of_one_thread(&blocks);
    let module = gpu.load(&text)?;
    for (at, (case, block)) in cases.iter().zip(&blocks).enumerate() {
        let arena = generate::arena(block.sites.len() as u32);
        let ctx_at = arena.n_bytes();
        let out_at = ctx_at + case.ctx.len() as u64 * 8;
        let buffer = Buffer::new(out_at as usize + 8)?;
        let mut memory = generate::memory(&arena);
        memory.extend(case.ctx.iter().flat_map(|it| it.to_le_bytes()));
        memory.extend([0; 8]);
        buffer.write(&memory)?;
        module.use_table(buffer.address)?;
        let words = [buffer.address + ctx_at, buffer.address + out_at];
        launch(module.function(&format!("k{at}"))?, 1, 1, std::ptr::null_mut(), &words)?;
        result::ctx::synchronize().map_err(|it| format!("program {at} faults: {it:?}\n{case:#?}"))?;
        let memory = buffer.read()?;
        let (expected, actual) = (generate::expected(case), generate::outcome(word(&memory, out_at), &arena, &memory));
        if expected != actual {
            return Err(format!("{case:#?}\nexpected {expected:?}\nbut it was {actual:?}").into());
        }
    }
    Ok(())
}

/// A program that many threads run.
struct Crowd {
    maps: Vec<DeviceMap>,
    arena: Arena,
    block: PtxBlock,
    module: Module,
    buffer: Buffer,
}

impl Crowd {
    fn new(
        gpu: &Gpu,
        hash: DeviceMap,
        array: DeviceMap,
        n_threads: u64,
        write: impl FnOnce(&mut Assembler),
    ) -> Result<Crowd> {
        let maps = vec![hash, map(Storage::Ring, 0, 0, 0), array];
        let options = Options { architecture: 90, fuel: FUEL, ..Options::default() };
        let context = [Word::Statements(kernels::THREAD_NUMBER.into())];
        let program = program(write);
        let request = Request { program: &program, maps: &maps, context: &context, options: &options };
        let block = translate(request)?;
        let text = kernels::of_a_crowd(&block);
        let needs = Needs { maps: maps.clone(), n_sites: block.sites.len() as u32, ring_slots: RING_SLOTS, n_threads };
        let arena = Arena::new(needs)?;
        let (module, buffer) = (gpu.load(&text)?, Buffer::new(arena.n_bytes() as usize)?);
        let mut memory = vec![0; arena.n_bytes() as usize];
        let table = arena.table();
        memory[..table.len()].copy_from_slice(&table);
        buffer.write(&memory)?;
        module.use_table(buffer.address)?;
        Ok(Crowd { maps, arena, block, module, buffer })
    }

    /// Runs all threads; returns the memory afterwards.
    fn run(&self, name: &str, n_threads: u32) -> Result<Vec<u8>> {
        let function = self.module.function("kernel")?;
        let begin = Instant::now();
        launch(function, n_threads / THREADS_PER_BLOCK, THREADS_PER_BLOCK, std::ptr::null_mut(), &[])?;
        result::ctx::synchronize().map_err(|it| format!("{name} faults: {it:?}"))?;
        println!("{name}: {n_threads} threads, {:.3} ms", begin.elapsed().as_secs_f64() * 1e3);
        self.buffer.read()
    }

    fn elements(&self, memory: &[u8], map: BpfMapId) -> BTreeMap<u64, Vec<u8>> {
        let parts = self.arena.parts(map.index()).expect("is there");
        let part = |range: &std::ops::Range<u64>| &memory[range.start as usize..range.end as usize];
        let map = &self.maps[map.index()];
        let bytes = MapBytes { map, states: part(&parts.states), keys: part(&parts.keys), values: part(&parts.values) };
        let mut elements = BTreeMap::new();
        bytes.for_each(|key, value| {
            let number = key.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
            assert!(elements.insert(number, value.to_vec()).is_none(), "key {number} is there twice");
        });
        elements
    }

    fn counter(&self, memory: &[u8], map: BpfMapId, counter: i64) -> u64 {
        word(memory, self.arena.counter(map.index(), counter))
    }

    fn losses(&self, memory: &[u8]) -> u64 {
        (0..self.block.sites.len()).map(|it| word(memory, self.arena.loss(it as u32))).sum()
    }
}

fn total(value: &[u8]) -> u64 {
    value.as_chunks::<8>().0.iter().fold(0, |sum, it| sum.wrapping_add(u64::from_le_bytes(*it)))
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, actual: T, expected: T) -> Result<()> {
    if actual == expected { Ok(()) } else { Err(format!("{what}: {actual:?} instead of {expected:?}").into()) }
}

fn hash(max_entries: u32) -> DeviceMap {
    DeviceMap { parts: 132, ..map(Storage::Hash, 16, 8, max_entries) }
}

fn array() -> DeviceMap {
    map(Storage::Array, 4, 8, 1)
}

fn counts(gpu: &Gpu, n_threads: u32) -> Result<()> {
    counted(gpu, "count by 1000 keys", N_KEYS, n_threads)
}

fn one_key(gpu: &Gpu, n_threads: u32) -> Result<()> {
    counted(gpu, "count by one key", 1, n_threads)
}

fn counted(gpu: &Gpu, name: &str, n_keys: i32, n_threads: u32) -> Result<()> {
    let crowd = Crowd::new(gpu, hash(N_KEYS as u32), array(), 1, |asm| programs::count(asm, n_keys))?;
    let memory = crowd.run(name, n_threads)?;
    let elements = crowd.elements(&memory, HASH);
    expect("refused", crowd.counter(&memory, HASH, descriptor::FULL), 0)?;
    expect("given up", crowd.counter(&memory, HASH, descriptor::CONTENDED), 0)?;
    expect("elements", elements.len(), n_keys as usize)?;
    for (key, value) in elements {
        let n = u64::from(n_threads);
        let expected = n / n_keys as u64 + u64::from(key < n % n_keys as u64);
        expect("count", total(&value), expected)?;
    }
    Ok(())
}

fn full_map(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let crowd = Crowd::new(gpu, hash(100), array(), 1, |asm| programs::count(asm, N_KEYS))?;
    let memory = crowd.run("count by 1000 keys, room for 100", n_threads)?;
    let elements = crowd.elements(&memory, HASH);
    let counted: u64 = elements.values().map(|it| total(it)).sum();
    expect("elements", elements.len(), 100)?;
    expect("counted and refused", counted + crowd.counter(&memory, HASH, descriptor::FULL), n_threads.into())
}

fn come_and_go(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let one_part = map(Storage::Hash, 16, 8, N_KEYS as u32);
    let crowd = Crowd::new(gpu, one_part, array(), 1, |asm| programs::come_and_go(asm, N_KEYS))?;
    let memory = crowd.run("make and delete 1000 keys", n_threads)?;
    let elements = crowd.elements(&memory, HASH);
    for (key, value) in &elements {
        expect("value", total(value), *key)?;
    }
    expect("live", crowd.counter(&memory, HASH, descriptor::LIVE), elements.len() as u64)
}

fn sums(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let parts = DeviceMap { parts: 132, ..array() };
    let crowd = Crowd::new(gpu, hash(1), parts, 1, |asm| programs::sum(asm, Size::Dw))?;
    let memory = crowd.run("sum", n_threads)?;
    let expected = (0..u64::from(n_threads)).fold(0u64, |sum, it| sum.wrapping_add(it.wrapping_mul(programs::FACTOR)));
    expect("sum", total(&crowd.elements(&memory, ARRAY)[&0]), expected)
}

fn values_of_threads(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let room = u64::from(n_threads / 2);
    let per_thread = map(Storage::PerThreadArray, 4, 8, 1);
    let crowd = Crowd::new(gpu, hash(1), per_thread, room, |asm| programs::sum(asm, Size::Dw))?;
    let memory = crowd.run("a value per thread, room for half of them", n_threads)?;
    let values = &crowd.elements(&memory, ARRAY)[&0];
    expect("values", values.len() as u64, room * 8)?;
    for (thread, value) in (0..).zip(values.as_chunks::<8>().0) {
        expect("value", u64::from_le_bytes(*value), programs::FACTOR.wrapping_mul(thread))?;
    }
    expect("refused", crowd.counter(&memory, ARRAY, descriptor::BEYOND), u64::from(n_threads) - room)
}

fn endless(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let n_threads = n_threads.min(1 << 16);
    let crowd = Crowd::new(gpu, hash(1), array(), 1, programs::endless)?;
    let memory = crowd.run("an endless loop", n_threads)?;
    expect("runs ended", crowd.losses(&memory), n_threads.into())
}

fn stray(gpu: &Gpu, n_threads: u32) -> Result<()> {
    let crowd = Crowd::new(gpu, hash(1), array(), 1, programs::stray)?;
    let before = crowd.buffer.read()?;
    let memory = crowd.run("a write outside of a map", n_threads)?;
    expect("runs ended", crowd.losses(&memory), n_threads.into())?;
    let losses = crowd.arena.loss(0) as usize..crowd.arena.loss(crowd.block.sites.len() as u32) as usize;
    let changed = (0..memory.len()).find(|it| memory[*it] != before[*it] && !losses.contains(it));
    expect("first byte written", changed, None)
}

/// Reads the ring while a kernel writes to it.
fn records(gpu: &Gpu, n_threads: u32) -> Result<()> {
    const N_BYTES: i32 = 60;
    const N_RECORDS: u64 = 2;
    let crowd = Crowd::new(gpu, hash(1), array(), 1, |asm| programs::record(asm, N_BYTES, N_RECORDS as i32))?;
    let mut stream = std::ptr::null_mut();
    // SAFETY: the context is current; the stream is used by this function only.
    unsafe { sys::cuStreamCreate(&mut stream, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32).result()? };
    let begin = Instant::now();
    launch(crowd.module.function("kernel")?, n_threads / THREADS_PER_BLOCK, THREADS_PER_BLOCK, stream, &[])?;
    let mut reader = RingReader::new(RING_SLOTS);
    let mut n_read: BTreeMap<u64, u64> = BTreeMap::new();
    let (_, tail) = crowd.arena.ring_words();
    let mut running = true;
    let mut kernel_time = Duration::ZERO;
    loop {
        // SAFETY: the stream exists.
        let busy = running && unsafe { sys::cuStreamQuery(stream) } == sys::cudaError_enum::CUDA_ERROR_NOT_READY;
        if running && !busy {
            kernel_time = begin.elapsed();
        }
        running = busy;
        let (marks, slots, head) = ring(&crowd)?;
        reader.read(RingBytes { marks: &marks, slots: &slots, head }, !running, |it| {
            *n_read.entry(word(it.data, 0)).or_default() += 1;
        });
        // SAFETY: the word is in the buffer.
        unsafe { result::memcpy_htod_sync(crowd.buffer.address + tail, &[reader.position()])? };
        if !running && reader.position() >= head {
            break;
        }
    }
    // SAFETY: the stream exists, and what ran in it has ended.
    unsafe { sys::cuStreamDestroy_v2(stream).result()? };
    result::ctx::synchronize()?;
    let dropped = crowd.losses(&crowd.buffer.read()?);
    let read: u64 = n_read.values().sum();
    println!("records, read meanwhile: {read} read, {dropped} dropped, {:.3} ms", kernel_time.as_secs_f64() * 1e3);
    expect("never written", reader.unwritten_slots, 0)?;
    expect("slots dropped", reader.dropped_slots, dropped * 2)?;
    expect("records of unknown threads", n_read.keys().filter(|it| **it >= n_threads.into()).count(), 0)?;
    expect("read and dropped", read + dropped, u64::from(n_threads) * N_RECORDS)
}

/// Copies the ring: marks, slots, head, in this order.
fn ring(crowd: &Crowd) -> Result<(Vec<u8>, Vec<u8>, u64)> {
    let (slots_at, marks_at) = crowd.arena.ring_parts();
    let copy = |range: std::ops::Range<u64>| -> Result<Vec<u8>> {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        // SAFETY: the range is in the buffer.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, crowd.buffer.address + range.start)? };
        Ok(bytes)
    };
    let (marks, slots) = (copy(marks_at)?, copy(slots_at)?);
    let (head, _) = crowd.arena.ring_words();
    let head = copy(head..head + 8)?;
    Ok((marks, slots, word(&head, 0)))
}
