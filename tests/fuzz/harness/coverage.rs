//! Which code an input has reached, where the compiler has put counters in (`make fuzz`; without them, nothing is known).
//!
//! They are those that `-Cinstrument-coverage` makes, so that one run both looks for inputs and says in the end what they reached.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// The linker names the ends of the section with the counters. Without that section the names are 0, but for that they must be
// weak, which only an assembler can say.
std::arch::global_asm!(
    ".pushsection .data.rel.ro.fuzz_counters, \"aw\"",
    ".balign 8",
    ".globl fuzz_counters",
    ".hidden fuzz_counters",
    "fuzz_counters: .quad __start___llvm_prf_cnts, __stop___llvm_prf_cnts",
    ".weak __start___llvm_prf_cnts, __stop___llvm_prf_cnts",
    ".popsection",
);

unsafe extern "C" {
    #[link_name = "fuzz_counters"]
    static ENDS: [usize; 2];
}

/// What was reached so far.
pub(crate) struct Coverage {
    /// For each counter, a bit for each order of magnitude of how often.
    seen: Vec<u8>,
    totals: Vec<u64>,
    /// Counters that were ever counted.
    pub(crate) n_reached: usize,
}

impl Coverage {
    pub(crate) fn new() -> Self {
        let n = counters().len();
        Coverage { seen: vec![0; n], totals: vec![0; n], n_reached: 0 }
    }

    /// Begins to count anew.
    pub(crate) fn clear(&mut self) {
        for (total, counter) in self.totals.iter_mut().zip(counters()) {
            *total += counter.swap(0, Relaxed);
        }
    }

    /// Whether anything was reached that was not before.
    pub(crate) fn is_new(&mut self) -> bool {
        let mut is_new = false;
        for (seen, counter) in self.seen.iter_mut().zip(counters()) {
            let count = counter.load(Relaxed);
            let magnitude = if count == 0 { 0 } else { 1 << count.ilog2().min(7) };
            if *seen & magnitude != magnitude {
                self.n_reached += usize::from(*seen == 0);
                *seen |= magnitude;
                is_new = true;
            }
        }
        is_new
    }
}

/// What is counted when the program ends is what it reports.
impl Drop for Coverage {
    fn drop(&mut self) {
        for (total, counter) in self.totals.iter().zip(counters()) {
            counter.fetch_add(*total, Relaxed);
        }
    }
}

fn counters() -> &'static [AtomicU64] {
    // SAFETY: it is above, and never changes.
    let [start, end] = unsafe { ENDS };
    match (end - start) / size_of::<AtomicU64>() {
        0 => &[],
        // SAFETY: these are the ends of a section of such words, which the program has for as long as it runs.
        n => unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(start), n) },
    }
}
