//! Kernels of code that the program had loaded before we came.
//!
//! ```text
//! launch of a handle that nobody knows ─▶ its name and code ─▶ tracer: is its PTX in a file of the program?
//! further launches: the original, counted                      │
//! launch ─▶ its twin ◀── worker: loads it, if it takes the same parameters ◀┘
//! ```
//! Nobody waits. All handles of code that is loaded later are known by then, or have no twin.

use super::code::KernelCode;
use super::table::{Key, New, Table};
use super::work::{Loaded, Work};
use super::{Images, Kernel, Origin, Run, Twins};
use crate::agent::host_call::unseen;
use crate::agent::zeroed::{ZeroIsValid, Zeroed};
use crate::agent::{Agent, Backend, Context};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use xputrace_wire::device::{ImageOutcome, Twin, Unprobed, original_symbol};

/// Kernels that are asked for.
const MOST_KERNELS: usize = 1 << 14;

/// What is known of a kernel: nothing so far.
const ASKED: u32 = 0;
/// No handler names it, or it is of code that was loaded since: its launches don't count.
const NEEDS_NONE: u32 = 1;
/// It has a twin.
const HAS_TWIN: u32 = 2;
/// From here on: it has none, by why.
const REFUSED: u32 = 3;

/// A kernel's launches.
#[derive(Debug)]
#[repr(C)]
struct Launches {
    /// Those before there was an answer.
    early: AtomicU64,
    /// What is known of it.
    standing: AtomicU32,
    unused: u32,
}

// SAFETY: atomics and an integer.
unsafe impl ZeroIsValid for Launches {}

/// The kernels that were launched, by handle.
#[derive(Debug)]
pub(super) struct Early {
    numbers: Table,
    launches: Zeroed<Launches>,
    n: AtomicU32,
}

/// A kernel that was launched, and until when its handle is that.
#[derive(Debug)]
pub(super) struct EarlyKernel {
    key: Key,
    pub(super) origin: Origin,
    pub(super) code: usize,
    /// Where it was launched first: a module's kernels are of that context.
    pub(super) context: u32,
    /// Set once its code is no more.
    is_gone: Arc<AtomicBool>,
}

impl Early {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Early { numbers: Table::new()?, launches: Zeroed::new(MOST_KERNELS)?, n: AtomicU32::new(0) })
    }

    /// Returns what is counted of a kernel that was launched before.
    fn find(&self, key: Key) -> Option<&Launches> {
        let (_, entry) = self.numbers.find(key)?;
        self.launches.get(entry.kernel.load(Ordering::Relaxed) as usize)
    }

    /// Adds a kernel; `None` if there is no room. One thread at a time.
    fn add(&self, key: Key, standing: u32) -> Option<&Launches> {
        let number = self.n.load(Ordering::Relaxed);
        let launches = self.launches.get(number as usize)?;
        launches.standing.store(standing, Ordering::Release);
        self.n.store(number + 1, Ordering::Relaxed);
        self.numbers.insert(key, New { kernel: number, ..New::default() }).then_some(launches)
    }
}

impl Launches {
    /// Counts a launch that runs the original.
    fn count(&self, agent: &Agent) {
        self.early.fetch_add(1, Ordering::AcqRel);
        self.count_early(agent);
    }

    /// Counts the launches that were not counted yet, if it is known what they are.
    fn count_early(&self, agent: &Agent) {
        let standing = self.standing.load(Ordering::Acquire);
        if standing == ASKED {
            return;
        }
        let n = self.early.swap(0, Ordering::AcqRel);
        let why = match standing {
            NEEDS_NONE => None,
            HAS_TWIN => Some(Unprobed::NotReady),
            refused => Unprobed::ALL.get((refused - REFUSED) as usize).copied(),
        };
        why.into_iter().for_each(|it| agent.count_unprobed(it, n));
    }

    /// Takes what became of it.
    fn settle(&self, agent: &Agent, outcome: Result<(), ImageOutcome>) {
        let standing = match outcome {
            Ok(()) => HAS_TWIN,
            Err(ImageOutcome::NothingToProbe) => NEEDS_NONE,
            Err(why) => REFUSED + reason(why) as u32,
        };
        self.standing.store(standing, Ordering::Release);
        self.count_early(agent);
    }
}

/// Returns why launches run the original.
fn reason(outcome: ImageOutcome) -> Unprobed {
    match outcome {
        ImageOutcome::NotInFiles => Unprobed::NotInFiles,
        ImageOutcome::NoPtx => Unprobed::NoPtx,
        ImageOutcome::OlderPtx => Unprobed::OlderPtx,
        ImageOutcome::Ambiguous => Unprobed::Ambiguous,
        ImageOutcome::Unlike => Unprobed::Unlike,
        _ => Unprobed::NoTwin,
    }
}

impl Run {
    /// Counts a launch that runs the original, if its kernel was loaded before we came, and asks for its twin at the first one.
    #[inline]
    pub(super) fn look_at_early(&self, twins: &'static Twins, context: Option<Context>, kernel: &Kernel) {
        if let Some(early) = &twins.early {
            self.look(twins, early, context, kernel);
        }
    }

    #[inline(never)]
    fn look(&self, twins: &'static Twins, early: &'static Early, context: Option<Context>, kernel: &Kernel) {
        let Some(key) = Key::anywhere(kernel.handle) else { return };
        // Code that we know, in a context where it can't run.
        if twins.twins.find(key).is_some() {
            return;
        }
        let known = early.find(key);
        if known.is_some_and(|it| it.standing.load(Ordering::Acquire) == NEEDS_NONE) {
            return;
        }
        let Some(context) = context else { return };
        let is_selected = self.backend.device_of(context).is_none_or(|it| self.agent.is_device_selected(it));
        if !is_selected {
            return;
        }
        let launches = known.or_else(|| self.ask(twins, early, key, Launched { kernel: kernel.handle, context }));
        launches.into_iter().for_each(|it| it.count(self.agent));
    }

    /// Asks for a kernel's twin.
    #[cold]
    fn ask(
        &self,
        twins: &'static Twins,
        early: &'static Early,
        key: Key,
        Launched { kernel, context }: Launched,
    ) -> Option<&'static Launches> {
        // SAFETY: the kernel of the launch that is being made.
        let known = unseen(|| unsafe { self.backend.driver.handles.code_of(kernel) });
        let is_twin = |it: &KernelCode| original_symbol(&it.symbol) != it.symbol;
        let mut images = twins.images();
        // Another thread may launch it, too.
        if let Some(launches) = early.find(key) {
            return Some(launches);
        }
        let asked = known.ok().filter(|it| !is_twin(it) && !images.loaded.contains(&(it.origin, it.code)));
        let launches = early.add(key, if asked.is_some() { ASKED } else { NEEDS_NONE })?;
        let KernelCode { origin, code, symbol } = asked?;
        let is_gone = Arc::new(AtomicBool::new(false));
        images.early.push(EarlyKernel { key, origin, code, context: context.id, is_gone: is_gone.clone() });
        // So that it is prepared, too.
        twins.contexts.claim(context.id, context.handle);
        drop(images);
        let loaded = Loaded { origin, code, context: Some(context), kernel: Some(kernel) };
        let work = Work { backend: self.backend, agent: self.agent, loaded };
        self.agent.ask_for_kernel(symbol, move |answer| twins.answered(work, launches, answer, &is_gone));
        Some(launches)
    }
}

/// A launch.
struct Launched {
    kernel: u64,
    context: Context,
}

impl Twins {
    /// Has a kernel run its twins, if there are any. Called by the worker.
    fn answered(&self, work: Work, launches: &Launches, answer: Result<Vec<Twin>, ImageOutcome>, is_gone: &AtomicBool) {
        match answer.and_then(|it| self.load(work, &it, is_gone)) {
            // Of code that was unloaded meanwhile, all that is to be said.
            Err(it) if it != ImageOutcome::NothingToProbe && is_gone.load(Ordering::Acquire) => {
                launches.settle(work.agent, Ok(()));
            }
            outcome => {
                launches.settle(work.agent, outcome);
                let is_of_images =
                    |it: &ImageOutcome| *it != ImageOutcome::NothingToProbe && reason(*it) == Unprobed::NoTwin;
                let told = outcome.map_or_else(|it| Some(it).filter(is_of_images), |()| Some(ImageOutcome::Twinned));
                told.into_iter().for_each(|it| work.agent.count_image(it));
            }
        }
    }

    /// Forgets kernels; returns of which code they are.
    pub(super) fn forget_early(&self, images: &mut Images, is_it: impl Fn(&EarlyKernel) -> bool) -> Vec<usize> {
        let Some(early) = &self.early else { return Vec::new() };
        let gone: Vec<EarlyKernel> = images.early.extract_if(.., |it| is_it(it)).collect();
        for it in &gone {
            it.is_gone.store(true, Ordering::Release);
            early.numbers.remove(it.key);
        }
        gone.into_iter().map(|it| it.code).collect()
    }
}
