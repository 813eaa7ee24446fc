//! What a frame costs: proved unchanged, walked with known rules, read from the tables anew.

use criterion::{Criterion, criterion_group, criterion_main};
use std::ffi::c_void;
use std::hint::black_box;
use xputrace_unwind::{Bounds, Registers, Tables, Walker};

// Calls `at_bottom(argument, registers)` with the registers that the caller relies on.
core::arch::global_asm!(
    "with_registers:",
    ".cfi_startproc",
    "mov rax, rsp",
    "push r15",
    "push r14",
    "push r13",
    "push r12",
    "push rbp",
    "push rbx",
    "push rax",
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

#[repr(C)]
struct Pushed {
    rsp: u64,
    saved: [u64; 6],
}

struct AtBottom<'a> {
    run: &'a mut dyn FnMut(Registers),
}

unsafe extern "C" fn at_bottom(argument: *mut c_void, pushed: &Pushed) {
    // SAFETY: what `down` gives, and what was pushed.
    let (argument, rip) = unsafe { (&mut *argument.cast::<AtBottom<'_>>(), *(pushed.rsp as *const u64)) };
    (argument.run)(Registers { rip, rsp: pushed.rsp + 8, saved: pushed.saved });
}

#[inline(never)]
fn down(depth: usize, run: &mut dyn FnMut(Registers)) -> usize {
    if depth == 0 {
        let mut argument = AtBottom { run };
        // SAFETY: the argument lives through the call.
        unsafe { with_registers((&raw mut argument).cast()) };
        return 0;
    }
    black_box(down(depth - 1, run)) + 1
}

fn bounds() -> Bounds {
    // SAFETY: the attributes are initialised, read and destroyed.
    unsafe {
        let mut attributes = std::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_getattr_np(libc::pthread_self(), &mut attributes);
        let (mut low, mut size) = (std::ptr::null_mut::<c_void>(), 0);
        libc::pthread_attr_getstack(&attributes, &mut low, &mut size);
        libc::pthread_attr_destroy(&mut attributes);
        Bounds { low: low as u64, high: low as u64 + size as u64 }
    }
}

fn walks(criterion: &mut Criterion) {
    let (tables, bounds) = (Tables::new(), bounds());
    let mut walker = Walker::new();
    for depth in [20, 60] {
        let mut run = |registers: Registers| {
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

criterion_group!(benches, walks);
criterion_main!(benches);
