//! The kernels of code that was loaded before we came, by their handles, and how often each was launched.

use super::calls::Origin;
use super::table::{New, TwinKey, TwinTable};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use xputrace_agent::Agent;
use xputrace_agent::zeroed::{ZeroIsValid, Zeroed};
use xputrace_wire::device::{ImageOutcome, Unprobed};

/// Kernels that are known at a time: half of what their table has room for, so that each finds a place there.
pub(super) const MOST_KERNELS: usize = 1 << 13;

/// What is known of a kernel: nothing so far.
pub(super) const ASKED: u32 = 0;
/// No handler names it, or it is of code that was loaded since: its launches don't count.
pub(super) const NEEDS_NONE: u32 = 1;
/// It has a twin.
pub(super) const HAS_TWIN: u32 = 2;
/// From here on: it has none, by why.
pub(super) const REFUSED: u32 = 3;

/// A kernel's launches.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Launches {
    /// Those that are counted as [`Unprobed::NotKnown`].
    pub(super) early: AtomicU64,
    /// What is known of it.
    pub(super) standing: AtomicU32,
    pub(super) unused: u32,
}

// SAFETY: atomics and an integer.
unsafe impl ZeroIsValid for Launches {}

/// The kernels that were launched, by handle.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) numbers: TwinTable,
    pub(super) launches: Zeroed<Launches>,
    /// Numbers that were given so far.
    pub(super) n: AtomicU32,
    /// Whether a kernel found no room, and none was forgotten since.
    pub(super) is_full: AtomicBool,
}

/// A kernel that was launched, and until when its handle is that.
#[derive(Debug)]
pub(super) struct EarlyKernel {
    pub(super) key: TwinKey,
    pub(super) number: u32,
    pub(super) origin: Origin,
    /// 0 if the driver does not tell it.
    pub(super) code: usize,
    /// Where it was launched first: a module's kernels are of that context.
    pub(super) context: u32,
    /// Set once its code is no more.
    pub(super) is_gone: Arc<AtomicBool>,
}

impl Early {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Early {
            numbers: TwinTable::new()?,
            launches: Zeroed::new(MOST_KERNELS)?,
            n: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
        })
    }

    /// Returns what is counted of a kernel that was launched before.
    pub(super) fn find(&self, key: TwinKey) -> Option<&Launches> {
        let (_, entry) = self.numbers.find(key)?;
        self.launches.get(entry.kernel.load(Ordering::Relaxed) as usize)
    }

    /// Adds a kernel, with one of the free numbers if there are any; `None` if there is no room. One thread at a time.
    pub(super) fn add(&self, key: TwinKey, standing: u32, free: &mut Vec<u32>) -> Option<u32> {
        let number = free.pop().or_else(|| self.new_number());
        let added = number.filter(|it| {
            self.launches[*it as usize].standing.store(standing, Ordering::Release);
            self.numbers.insert(key, New { kernel: *it, ..New::default() })
        });
        if added.is_none() {
            free.extend(number);
            self.is_full.store(true, Ordering::Release);
        }
        added
    }

    pub(super) fn new_number(&self) -> Option<u32> {
        let number = self.n.load(Ordering::Relaxed);
        let has_room = (number as usize) < self.launches.len();
        has_room.then(|| self.n.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets a kernel's number be another's, once nobody is to answer for it. One thread at a time.
    pub(super) fn give_back(&self, number: u32, free: &mut Vec<u32>) {
        free.push(number);
        self.is_full.store(false, Ordering::Release);
    }
}

impl Launches {
    pub(super) fn is_asked(&self) -> bool {
        self.standing.load(Ordering::Acquire) == ASKED
    }

    /// Counts a launch that runs the original.
    pub(super) fn count(&self, agent: &Agent) {
        match self.why() {
            Some(Unprobed::NotKnown) => {
                // In this order: what is moved was counted before.
                agent.count_unprobed(Unprobed::NotKnown, 1);
                self.early.fetch_add(1, Ordering::AcqRel);
                if !self.is_asked() {
                    self.move_early(agent);
                }
            }
            why => why.into_iter().for_each(|it| agent.count_unprobed(it, 1)),
        }
    }

    /// Returns as what its launches count, if they do.
    pub(super) fn why(&self) -> Option<Unprobed> {
        match self.standing.load(Ordering::Acquire) {
            ASKED => Some(Unprobed::NotKnown),
            NEEDS_NONE => None,
            HAS_TWIN => Some(Unprobed::NotReady),
            refused => Unprobed::ALL.get((refused - REFUSED) as usize).copied(),
        }
    }

    /// Counts those that were not known as what they are by now.
    pub(super) fn move_early(&self, agent: &Agent) {
        let n = self.early.swap(0, Ordering::AcqRel);
        self.why().into_iter().for_each(|it| agent.count_unprobed(it, n));
        agent.uncount_unprobed(Unprobed::NotKnown, n);
    }

    /// Takes what became of it.
    pub(super) fn settle(&self, agent: &Agent, outcome: Result<(), ImageOutcome>) {
        let standing = match outcome {
            Ok(()) => HAS_TWIN,
            Err(ImageOutcome::NothingToProbe) => NEEDS_NONE,
            Err(why) => REFUSED + reason(why) as u32,
        };
        self.standing.store(standing, Ordering::Release);
        self.move_early(agent);
    }
}

/// Returns why launches run the original.
pub(super) fn reason(outcome: ImageOutcome) -> Unprobed {
    match outcome {
        ImageOutcome::NotInFiles => Unprobed::NotInFiles,
        ImageOutcome::NoPortableCode => Unprobed::NoPortableCode,
        ImageOutcome::OlderPortableCode => Unprobed::OlderPortableCode,
        ImageOutcome::Ambiguous => Unprobed::Ambiguous,
        ImageOutcome::Unlike => Unprobed::Unlike,
        _ => Unprobed::NoTwin,
    }
}
