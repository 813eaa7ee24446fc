//! Code that the program has loaded, and the twins that it has.

use super::calls::Origin;
use super::choosing::{KernelNumber, Wanted};
use super::early_table::EarlyKernel;
use super::table::TwinKey;
use std::collections::HashSet;
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use xputrace_agent::Context;
use xputrace_agent::device::Job;
use xputrace_wire::device::{Choice, MOST_CONTEXTS, Twin};

/// Code that the program has loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedCode {
    pub(super) origin: Origin,
    /// `CUmodule` or `CUlibrary`.
    pub(super) code: usize,
    /// In which it was loaded.
    pub(super) context: Option<Context>,
    /// Of code that was loaded before we came: its only kernel that is to have a twin.
    pub(super) kernel: Option<u64>,
}

// SAFETY: the context's handle is a name, which the driver checks.
unsafe impl Send for LoadedCode {}

/// Code that has a twin.
#[derive(Debug)]
pub(super) struct TwinnedCode {
    pub(super) number: u32,
    pub(super) origin: Origin,
    pub(super) code: usize,
    /// The context of a module.
    pub(super) context: Option<Context>,
    /// Whether it was loaded before we came: all that is known of it is a kernel.
    pub(super) is_early: bool,
    /// Of each of its twins.
    pub(super) contents: Arc<[Contents]>,
    /// Its entries; those of any context are beyond the slots.
    pub(super) entries: Vec<ImageEntry>,
}

// SAFETY: as for `LoadedCode`.
unsafe impl Send for TwinnedCode {}

/// Where an image's kernel is in the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageEntry {
    pub(super) slot: usize,
    /// From the original to its twin.
    pub(super) key: TwinKey,
    /// From the twin to its original, where the twin is of this context alone.
    pub(super) back: Option<TwinKey>,
}

/// Twins, and the only kernel that runs them, of code that was loaded before we came. Twins have the addresses of its code's
/// variables, so they are of no use to the same kernel of other code, which may run at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) kernel: u64,
    pub(super) code: usize,
    /// Two hashes.
    pub(super) twins: [u64; 2],
}

impl Fingerprint {
    /// `None` of code that was loaded since we came.
    pub(super) fn of(loaded: LoadedCode, twins: &[Twin]) -> Option<Self> {
        let hash = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            (salt, twins).hash(&mut hasher);
            hasher.finish()
        };
        loaded.kernel.map(|kernel| Fingerprint { kernel, code: loaded.code, twins: [hash(0), hash(1)] })
    }
}

/// Twins that stay loaded for a kernel: it may be forgotten where its code is not unloaded, and asked for again.
#[derive(Debug)]
pub(super) struct EarlyTwins {
    pub(super) of: Fingerprint,
    pub(super) contents: Arc<[Contents]>,
}

/// What does not change of one of its twins.
#[derive(Debug)]
pub(super) struct Contents {
    /// `CUlibrary` of the twin.
    pub(super) library: usize,
    pub(super) kernels: Vec<Pair>,
    pub(super) variables: Vec<CString>,
    /// String ids of its kernels' names, if it has a variable for them.
    pub(super) names: Vec<u64>,
}

/// A twin's variable for the block, which switches its handlers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Switch {
    pub(super) slot: usize,
    pub(super) address: u64,
    pub(super) bytes: usize,
}

/// A kernel, and its twin as `CUkernel`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    /// `CUkernel` or, of a module, `CUfunction`.
    pub(super) original: u64,
    pub(super) twin: u64,
    /// At which launches it runs.
    pub(super) choice: Choice,
    /// What counts the launches of the original.
    pub(super) kernel: KernelNumber,
}

/// What the worker is just using in a call of the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InUse {
    /// The slot of a context.
    pub(super) slot: Option<usize>,
    /// `CUmodule` or `CUlibrary` of the program.
    pub(super) code: Option<usize>,
}

/// The code that the program has loaded, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) all: Vec<TwinnedCode>,
    /// The switches of all twins that contexts have, also of images that are forgotten: graphs may have them.
    pub(super) switches: Vec<Switch>,
    /// Kernels of code that was loaded before we came, as far as they were launched.
    pub(super) early: Vec<EarlyKernel>,
    /// Numbers of such that were forgotten, for others.
    pub(super) free: Vec<u32>,
    pub(super) early_twins: Vec<EarlyTwins>,
    /// Code that was loaded since then, where that matters.
    pub(super) loaded: HashSet<(Origin, usize)>,
    pub(super) wanted: Wanted,
    pub(super) in_use: InUse,
    /// Nobody tells from now on what the program ends: the worker uses nothing of it.
    pub(super) is_over: bool,
    /// What prepares each context.
    pub(super) jobs: [Option<Job>; MOST_CONTEXTS],
}

impl Images {
    /// Adds a switch, if it is not known: twins are prepared again for a kernel that was forgotten.
    pub(super) fn add_switch(&mut self, switch: Switch) {
        if !self.switches.iter().any(|it| (it.slot, it.address) == (switch.slot, switch.address)) {
            self.switches.push(switch);
        }
    }
}
