//! What a frame costs: proved unchanged, and walked by rules that are known.

use criterion::{Criterion, criterion_group, criterion_main};
use std::ffi::c_void;
use std::hint::black_box;
use xputrace_unwind::{Bounds, Pushed, Tables, Walker, push_registers};

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
    let (tables, bounds) = (Tables::new(), Bounds::of_thread().unwrap());
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
    let (tables, bounds) = (Tables::new(), Bounds::of_thread().unwrap());
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

criterion_group!(benches, walks, changes);
criterion_main!(benches);
