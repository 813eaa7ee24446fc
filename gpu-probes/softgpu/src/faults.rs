//! Faults that tests inject through the environment; the crate documentation lists them.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::forks::{Lazy, say};

/// The fault settings, read once.
pub(crate) struct Faults {
    pub(crate) late_ms: u64,
    pub(crate) cupti_version: u32,
    pub(crate) busy_ns: u64,
    pub(crate) first_correlation: u32,
    /// Bytes of a part of pageable memory; 0 copies it at once.
    pub(crate) copy_part: usize,
    /// A copy within the host's memory that a call makes itself has no record.
    pub(crate) unrecorded_host_copies: bool,
    pub(crate) verbose: bool,
    drop: EveryNth,
    no_times: EveryNth,
    fail_launch: EveryNth,
    fail: HashMap<String, i32>,
    no_callback: String,
}

impl Faults {
    /// Whether to drop this activity record.
    pub(crate) fn drops_record(&self) -> bool {
        self.drop.hit()
    }

    /// Whether to leave this activity record without times.
    pub(crate) fn hides_times(&self) -> bool {
        self.no_times.hit()
    }

    /// Whether to fail this launch.
    pub(crate) fn fails_launch(&self) -> bool {
        self.fail_launch.hit()
    }

    /// Whether CUPTI does not know the callback of this function.
    pub(crate) fn lacks_callback(&self, function: &str) -> bool {
        !self.no_callback.is_empty() && self.no_callback.split(',').any(|it| it == function)
    }

    /// Returns the code that this call must return, if one is set.
    pub(crate) fn forced(&self, function: &str) -> Option<i32> {
        if self.fail.is_empty() { None } else { self.fail.get(function).copied() }
    }
}

pub(crate) fn faults() -> &'static Faults {
    static FAULTS: Lazy<Faults> = Lazy::new();
    FAULTS.get_or_make(|| Faults {
        late_ms: number("SOFTGPU_LATE_MS").unwrap_or(0),
        cupti_version: number("SOFTGPU_CUPTI_VERSION").unwrap_or(130_001) as u32,
        busy_ns: number("SOFTGPU_BUSY_NS").unwrap_or(0),
        first_correlation: number("SOFTGPU_FIRST_CORRELATION").unwrap_or(1) as u32,
        copy_part: number("SOFTGPU_COPY_PART").unwrap_or(0) as usize,
        unrecorded_host_copies: env::var_os("SOFTGPU_NO_HOST_COPIES").is_some(),
        verbose: env::var_os("SOFTGPU_VERBOSE").is_some(),
        drop: EveryNth::from_env("SOFTGPU_DROP"),
        no_times: EveryNth::from_env("SOFTGPU_NO_TIMES"),
        fail_launch: EveryNth::from_env("SOFTGPU_FAIL_LAUNCH"),
        no_callback: env::var("SOFTGPU_NO_CALLBACK").unwrap_or_default(),
        fail: failing(&env::var("SOFTGPU_FAIL").unwrap_or_default()),
    })
}

/// Explains a failing call on stderr if the user asked for it.
pub(crate) fn explain(text: impl FnOnce() -> String) {
    if faults().verbose {
        say(format_args!("{}", text()));
    }
}

/// Triggers every n-th time; never if n is 0.
#[derive(Default)]
struct EveryNth {
    n: u64,
    seen: AtomicU64,
}

impl EveryNth {
    fn from_env(name: &str) -> Self {
        Self { n: number(name).unwrap_or(0), seen: AtomicU64::new(0) }
    }

    fn hit(&self) -> bool {
        self.n != 0 && (self.seen.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.n)
    }
}

/// Parses `7` and `1/7` as 7.
fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let parsed = text.strip_prefix("1/").unwrap_or(&text).trim().parse().ok();
    if parsed.is_none() {
        say(format_args!("{name}={text}: expected a number or 1/number; ignored"));
    }
    parsed
}

fn failing(text: &str) -> HashMap<String, i32> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    pairs
        .filter_map(|pair| {
            let parsed =
                pair.trim().rsplit_once(':').and_then(|(name, code)| Some((name.to_owned(), code.parse().ok()?)));
            if parsed.is_none() {
                say(format_args!("SOFTGPU_FAIL={pair}: expected function:code; ignored"));
            }
            parsed
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_calls_are_parsed() {
        let map = failing("cuptiSubscribe:39, cuMemAlloc_v2:2,nonsense");
        assert_eq!(map.get("cuptiSubscribe"), Some(&39));
        assert_eq!(map.get("cuMemAlloc_v2"), Some(&2));
        assert_eq!(map.len(), 2);
    }

    #[test]
    fn every_nth() {
        let third = EveryNth { n: 3, seen: AtomicU64::new(0) };
        let hits: Vec<bool> = (0..6).map(|_| third.hit()).collect();
        assert_eq!(hits, [false, false, true, false, false, true]);
        assert!(!EveryNth::default().hit());
    }
}
