//! How often this process was forked since it loaded the library.

use std::sync::atomic::{AtomicU32, Ordering};

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between loading this library and this process.
#[inline]
pub(crate) fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Whether this process is a child, by fork, of the one that loaded this library.
#[inline]
pub(crate) fn is_forked() -> bool {
    count() != 0
}

/// Counts one. Called first in a forked child.
pub(crate) fn in_forked_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
