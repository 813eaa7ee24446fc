//! What a frame costs: proved unchanged, and walked by rules that are known.

use criterion::{Criterion, criterion_group, criterion_main};
use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;
use xputrace_unwind::{Bounds, Pushed, StackMemory, StackMemoryKey, UnwindTables, Walker, push_registers};

// Calls `at_bottom(argument, registers)` with the registers that the caller relies on.
core::arch::global_asm!(
    "with_registers:",
    ".cfi_startproc",
    push_registers!(),
    ".cfi_adjust_cfa_offset 56",
    "mov rsi, rsp",
    "call {}",
    "add rsp, 56",
    ".cfi_adjust_cfa_offset -56",
    "ret",
    ".cfi_endproc",
    sym at_bottom
);

unsafe extern "C" {
    fn with_registers(argument: *mut c_void);
}

struct AtBottom<'a> {
    run: &'a mut dyn FnMut(&Pushed),
}

unsafe extern "C" fn at_bottom(argument: *mut c_void, pushed: &Pushed) {
    // SAFETY: what `down` gives.
    let argument = unsafe { &mut *argument.cast::<AtBottom<'_>>() };
    (argument.run)(pushed);
}

#[inline(never)]
fn down(depth: usize, run: &mut dyn FnMut(&Pushed)) -> usize {
    if depth == 0 {
        let mut argument = AtBottom { run };
        // SAFETY: the argument lives through the call.
        unsafe { with_registers((&raw mut argument).cast()) };
        return 0;
    }
    black_box(down(depth - 1, run)) + 1
}

fn walks(criterion: &mut Criterion) {
    let (tables, bounds) = (UnwindTables::new(), Bounds::of_thread().unwrap());
    let mut walker = Walker::new();
    for depth in [20, 60] {
        let mut run = |pushed: &Pushed| {
            // SAFETY: what was pushed.
            let registers = unsafe { pushed.registers(bounds) }.unwrap();
            // SAFETY: the calling thread's registers and stack.
            let n = unsafe { walker.walk(&tables, registers, bounds) }.0.len();
            criterion.bench_function(&format!("{n} frames, none changed"), |it| {
                // SAFETY: as above; the frame that they are of has not returned.
                it.iter(|| unsafe { walker.walk(&tables, registers, bounds) }.0.len())
            });
            criterion.bench_function(&format!("{n} frames, all new to the thread"), |it| {
                it.iter(|| {
                    walker.forget();
                    // SAFETY: as above.
                    unsafe { walker.walk(&tables, registers, bounds) }.0.len()
                })
            });
        };
        down(depth, &mut run);
    }
}

/// The same recursion in another function, so that its frames are others.
#[inline(never)]
fn down_elsewhere(depth: usize, run: &mut dyn FnMut(&Pushed)) -> usize {
    if depth == 0 { down(0, run) } else { black_box(down_elsewhere(depth - 1, run)) + 2 }
}

const OTHERS_BYTES: usize = 512 << 10;

/// The inner half of a stack is another one at each launch, as where a program goes from one function
/// to the next.
fn changes(criterion: &mut Criterion) {
    let (tables, bounds) = (UnwindTables::new(), Bounds::of_thread().unwrap());
    let mut walker = Walker::new();
    let mut walk = |pushed: &Pushed| {
        // SAFETY: what was pushed, the calling thread's registers and stack.
        unsafe { black_box(walker.walk(&tables, pushed.registers(bounds).unwrap(), bounds).0.len()) };
    };
    let mut nothing = |_: &Pushed| {};
    let both = |run: &mut dyn FnMut(&Pushed)| down(30, run) + down_elsewhere(30, run);
    down(20, &mut |_| {
        criterion.bench_function("twice 30 calls", |it| it.iter(|| both(&mut nothing)));
        criterion.bench_function("twice 30 calls, each walked: 30 new frames", |it| it.iter(|| both(&mut walk)));
        // What a program does between two launches takes the place of ours in the processor's nearer caches.
        let others = vec![1u64; OTHERS_BYTES / 8];
        let mut work = |_: &Pushed| _ = black_box(others.iter().step_by(8).sum::<u64>());
        criterion.bench_function("twice 30 calls with cold caches", |it| it.iter(|| both(&mut work)));
        let mut work_and_walk = |pushed: &Pushed| {
            black_box(others.iter().step_by(8).sum::<u64>());
            walk(pushed);
        };
        criterion
            .bench_function("twice 30 calls with cold caches, each walked", |it| it.iter(|| both(&mut work_and_walk)));
    });
}

/// How many different stacks a program launches from, one after another.
const STACKS: u64 = 170;
/// Their frames that differ, and those that all of them have.
const OWN: u32 = 31;
const COMMON: usize = 11;
/// Kernels: fewer than there are stacks, so they don't tell all of them apart.
const KERNELS: u64 = 60;

/// Calls two functions in an order that the bits of `path` give, so that each path is a stack of its own.
#[inline(never)]
fn left(path: u64, depth: u32, run: &mut dyn FnMut(&Pushed)) -> usize {
    match (depth, path & 1) {
        (0, _) => down(0, run),
        (_, 0) => black_box(left(path >> 1, depth - 1, run)) + 1,
        (_, _) => black_box(right(path >> 1, depth - 1, run)) + 2,
    }
}

#[inline(never)]
fn right(path: u64, depth: u32, run: &mut dyn FnMut(&Pushed)) -> usize {
    match (depth, path & 1) {
        (0, _) => black_box(down(0, run)) + 3,
        (_, 0) => black_box(left(path >> 1, depth - 1, run)) + 4,
        (_, _) => black_box(right(path >> 1, depth - 1, run)) + 5,
    }
}

/// The path of a stack: its outermost own frame differs from that of the stack before.
fn path(stack: u64) -> u64 {
    stack.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 << 1 | stack & 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Calls,
    Walked,
    Remembered,
    /// Looked for and kept, but never found again.
    Forgotten,
}

/// A program in a loop: launches from the same stacks again and again, and does something else in between. The ways
/// take turns; prints the median of their rounds, less that of the calls alone.
#[allow(clippy::print_stdout, reason = "a measurement prints its result")]
fn remembered(_: &mut Criterion) {
    let rounds: usize = std::env::var("ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(300);
    let (tables, bounds) = (UnwindTables::new(), Bounds::of_thread().unwrap());
    let others = vec![1u64; OTHERS_BYTES / 8];
    for others in [&others[..0], &others[..]] {
        let mut ways = [Way::Calls, Way::Walked, Way::Remembered, Way::Forgotten]
            .map(|way| (way, Box::new(Walker::new()), Box::new(StackMemory::new()), Vec::new()));
        let (mut known, mut frames, mut launches) = (0, 0, 0);
        for round in 0..rounds * ways.len() {
            let (way, walker, memory, nanos) = &mut ways[round % 4];
            let begin = Instant::now();
            for stack in 0..STACKS {
                launches += 1;
                let kernel = if *way == Way::Forgotten { launches } else { stack % KERNELS };
                let key = StackMemoryKey { about: [1, 2], hint: kernel };
                let mut run = |pushed: &Pushed| {
                    black_box(others.iter().step_by(8).sum::<u64>());
                    // SAFETY: what was pushed.
                    let registers = unsafe { pushed.registers(bounds) }.unwrap();
                    if *way == Way::Calls {
                        return;
                    }
                    let may_be_known = *way != Way::Walked;
                    // SAFETY: the calling thread's registers and stack.
                    let mut recalled = || unsafe { memory.recall(walker, &key, &registers, bounds) };
                    if let Some(value) = may_be_known.then(&mut recalled).flatten() {
                        known += u64::from(black_box(value) == stack as u32);
                        return;
                    }
                    // SAFETY: as above.
                    frames = black_box(unsafe { walker.walk(&tables, registers, bounds) }.0.len());
                    if may_be_known {
                        memory.keep(walker, &key, bounds, stack as u32);
                    }
                };
                down(COMMON, &mut |_| _ = black_box(left(path(stack) << 1, OWN - 2, &mut run)));
            }
            nanos.push(begin.elapsed().as_nanos() as f64 / STACKS as f64);
        }
        let medians = ways.map(|(_, _, _, mut nanos)| {
            nanos.sort_by(f64::total_cmp);
            nanos[nanos.len() / 2]
        });
        let [walked, remembered, forgotten] = [1, 2, 3].map(|way| medians[way] - medians[0]);
        println!(
            "{STACKS} stacks of {frames} frames, {} KiB read in between: walked {walked:.0} ns, remembered \
             {remembered:.0} ns ({known} of {}), looked for and not found {forgotten:.0} ns",
            size_of_val(others) >> 10,
            (rounds as u64 - 1) * STACKS,
        );
    }
}

criterion_group!(benches, walks, changes, remembered);
criterion_main!(benches);
