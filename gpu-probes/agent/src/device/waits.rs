//! How long threads of the program wait for what a run needs, and how often they time out.

use std::cell::Cell;
use std::time::Duration;

/// How long a thread of the program waits for a twin, or for its context to be prepared.
pub const TWIN_WITHIN: Duration = Duration::from_secs(10);
/// How long the end of a run, of the program or of a context waits for the last copy of its blocks.
pub const LAST_COPY_WITHIN: Duration = Duration::from_secs(2);

thread_local! {
    /// How often the thread has timed out after longer than the end of a run may take. Tests read it.
    pub static LONG_TIMEOUTS: Cell<u64> = const { Cell::new(0) };
}

/// Notes that the calling thread has timed out after this long.
pub fn count_timeout(waited: Duration) {
    if waited > LAST_COPY_WITHIN {
        LONG_TIMEOUTS.set(LONG_TIMEOUTS.get() + 1);
    }
}
