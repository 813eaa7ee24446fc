//! Which code an input has reached, where the compiler has put counters in (`make fuzz`; without them, nothing is known).
//!
//! They are those that `-Cinstrument-coverage` makes, so that one run both looks for inputs and says in the end what they reached.

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

/// Counters that are looked at together: most are 0 after an input.
const BLOCK: usize = 64;

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

    /// Whether anything was reached since the last call that was not before; begins to count anew.
    pub(crate) fn is_new(&mut self) -> bool {
        let mut is_new = false;
        for (block, counters) in counters().chunks_mut(BLOCK).enumerate() {
            if counters.iter().fold(0, |all, it| all | it) == 0 {
                continue;
            }
            for (at, count) in counters.iter_mut().enumerate().filter(|(_, it)| **it > 0) {
                let (at, count) = (block * BLOCK + at, std::mem::take(count));
                let magnitude = 1 << count.ilog2().min(7);
                is_new |= self.seen[at] & magnitude == 0;
                self.n_reached += usize::from(self.seen[at] == 0);
                self.seen[at] |= magnitude;
                self.totals[at] += count;
            }
        }
        is_new
    }
}

/// What is counted when the program ends is what it reports.
impl Drop for Coverage {
    fn drop(&mut self) {
        counters().iter_mut().zip(&self.totals).for_each(|(counter, total)| *counter += total);
    }
}

/// Returns the counters. Whoever calls it doesn't count itself (`counting-rustc.sh`), and nobody else runs meanwhile.
fn counters() -> &'static mut [u64] {
    // SAFETY: it is above, and never changes.
    let [start, end] = unsafe { ENDS };
    match (end - start) / size_of::<u64>() {
        0 => &mut [],
        // SAFETY: these are the ends of a section of such words, which the program has for as long as it runs.
        n => unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(start), n) },
    }
}
