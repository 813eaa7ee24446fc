//! Whether any thread is inside a range that `--range` names.

use super::handles::NvtxHandle;
use super::texts;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use xputrace_agent::ranges_changed;
use xputrace_wire::RANGE_VARIABLE;

/// Ranges of the name that are open, on all threads.
static OPEN: AtomicU64 = AtomicU64::new(0);
/// Ranges of any name that were opened.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// Whether any thread is in a range of the name.
pub(super) fn is_inside() -> bool {
    OPEN.load(Ordering::SeqCst) != 0
}

/// Returns the number of ranges of any name that were opened.
pub(super) fn opened() -> u64 {
    SEEN.load(Ordering::Relaxed)
}

/// Counts a range that opens; returns whether it is one of those named.
pub(super) fn names(domain: NvtxHandle, name: &[u8]) -> bool {
    SEEN.fetch_add(1, Ordering::Relaxed);
    static WANTED: OnceLock<Option<String>> = OnceLock::new();
    let Some(wanted) = WANTED.get_or_init(|| std::env::var(RANGE_VARIABLE).ok()) else { return false };
    match wanted.as_bytes().strip_prefix(name) {
        Some(b"") => true,
        Some([b'@', of_domain @ ..]) => of_domain == texts::name_of(domain),
        _ => false,
    }
}

pub(super) fn enter() {
    OPEN.fetch_add(1, Ordering::SeqCst);
    ranges_changed();
}

pub(super) fn leave(n: u64) {
    let less = |open: u64| Some(open.saturating_sub(n));
    let _ = OPEN.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    ranges_changed();
}
