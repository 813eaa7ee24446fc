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
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use xputrace_agent::untraced;
use xputrace_agent::zeroed::{ZeroIsValid, Zeroed};
use xputrace_agent::{Agent, Context, Library};
use xputrace_wire::device::{ImageOutcome, Twin, Unprobed, original_symbol};

/// Kernels that are known at a time: half of what their table has room for, so that each finds a place there.
const MOST_KERNELS: usize = 1 << 13;

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
    /// Those that are counted as [`Unprobed::NotKnown`].
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
    /// Numbers that were given so far.
    n: AtomicU32,
    /// Whether a kernel found no room, and none was forgotten since.
    is_full: AtomicBool,
}

/// A kernel that was launched, and until when its handle is that.
#[derive(Debug)]
pub(super) struct EarlyKernel {
    key: Key,
    number: u32,
    pub(super) origin: Origin,
    /// 0 if the driver does not tell it.
    pub(super) code: usize,
    /// Where it was launched first: a module's kernels are of that context.
    pub(super) context: u32,
    /// Set once its code is no more.
    is_gone: Arc<AtomicBool>,
}

impl Early {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Early {
            numbers: Table::new()?,
            launches: Zeroed::new(MOST_KERNELS)?,
            n: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
        })
    }

    /// Returns what is counted of a kernel that was launched before.
    fn find(&self, key: Key) -> Option<&Launches> {
        let (_, entry) = self.numbers.find(key)?;
        self.launches.get(entry.kernel.load(Ordering::Relaxed) as usize)
    }

    /// Adds a kernel, with one of the free numbers if there are any; `None` if there is no room. One thread at a time.
    fn add(&self, key: Key, standing: u32, free: &mut Vec<u32>) -> Option<u32> {
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

    fn new_number(&self) -> Option<u32> {
        let number = self.n.load(Ordering::Relaxed);
        let has_room = (number as usize) < self.launches.len();
        has_room.then(|| self.n.fetch_add(1, Ordering::Relaxed))
    }

    /// Lets a kernel's number be another's, once nobody is to answer for it. One thread at a time.
    fn give_back(&self, number: u32, free: &mut Vec<u32>) {
        free.push(number);
        self.is_full.store(false, Ordering::Release);
    }
}

impl Launches {
    fn is_asked(&self) -> bool {
        self.standing.load(Ordering::Acquire) == ASKED
    }

    /// Counts a launch that runs the original.
    fn count(&self, agent: &Agent) {
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
    fn why(&self) -> Option<Unprobed> {
        match self.standing.load(Ordering::Acquire) {
            ASKED => Some(Unprobed::NotKnown),
            NEEDS_NONE => None,
            HAS_TWIN => Some(Unprobed::NotReady),
            refused => Unprobed::ALL.get((refused - REFUSED) as usize).copied(),
        }
    }

    /// Counts those that were not known as what they are by now.
    fn move_early(&self, agent: &Agent) {
        let n = self.early.swap(0, Ordering::AcqRel);
        self.why().into_iter().for_each(|it| agent.count_unprobed(it, n));
        agent.uncount_unprobed(Unprobed::NotKnown, n);
    }

    /// Takes what became of it.
    fn settle(&self, agent: &Agent, outcome: Result<(), ImageOutcome>) {
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
        let is_full = || early.is_full.load(Ordering::Acquire);
        let launched = Launched { kernel: kernel.handle, context };
        let launches = known.or_else(|| if is_full() { None } else { self.ask(twins, early, key, launched) });
        match launches {
            Some(launches) => launches.count(self.agent),
            None => self.agent.count_unprobed(Unprobed::TooManyKernels, 1),
        }
    }

    /// Asks for a kernel's twin; `None` if there is no room for it.
    #[cold]
    fn ask(
        &self,
        twins: &'static Twins,
        early: &'static Early,
        key: Key,
        Launched { kernel, context }: Launched,
    ) -> Option<&'static Launches> {
        // SAFETY: the kernel of the launch that is being made.
        let known = untraced(|| unsafe { self.backend.driver.handles.code_of(kernel) });
        let is_twin = |it: &KernelCode| original_symbol(&it.symbol) != it.symbol;
        let mut images = twins.images();
        // Another thread may launch it, too.
        if let Some(launches) = early.find(key) {
            return Some(launches);
        }
        let is_asked = |it: &KernelCode| !is_twin(it) && !images.loaded.contains(&(it.origin, it.code));
        let asked = known.as_ref().is_ok_and(is_asked);
        let number = early.add(key, if asked { ASKED } else { NEEDS_NONE }, &mut images.free)?;
        let launches = &early.launches[number as usize];
        // What the driver does not tell may be of a module that it has made itself.
        let (origin, code) = known.as_ref().map_or((Origin::Module, 0), |it| (it.origin, it.code));
        let is_gone = Arc::new(AtomicBool::new(false));
        images.early.push(EarlyKernel { key, number, origin, code, context: context.id, is_gone: is_gone.clone() });
        let Some(KernelCode { symbol, .. }) = known.ok().filter(|_| asked) else { return Some(launches) };
        // So that it is prepared, too.
        twins.contexts.claim(context.id, context.handle);
        drop(images);
        let loaded = Loaded { origin, code, context: Some(context), kernel: Some(kernel) };
        let work = Work { backend: self.backend, agent: self.agent, loaded };
        self.agent.ask_for_kernel(symbol, move |answer| twins.answered(work, early, number, answer, &is_gone));
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
    fn answered(
        &self,
        work: Work,
        early: &Early,
        number: u32,
        answer: Result<Vec<Twin>, ImageOutcome>,
        is_gone: &AtomicBool,
    ) {
        let outcome = answer.and_then(|it| self.load(work, &it, is_gone));
        let (launches, mut images) = (&early.launches[number as usize], self.images());
        let is_gone = is_gone.load(Ordering::Acquire);
        // Of code that was unloaded meanwhile, all that is to be said.
        let outcome =
            outcome.or_else(|it| if is_gone && it != ImageOutcome::NothingToProbe { Ok(()) } else { Err(it) });
        launches.settle(work.agent, outcome);
        if is_gone {
            return early.give_back(number, &mut images.free);
        }
        let is_of_images = |it: &ImageOutcome| *it != ImageOutcome::NothingToProbe && reason(*it) == Unprobed::NoTwin;
        let told = outcome.map_or_else(|it| Some(it).filter(is_of_images), |()| Some(ImageOutcome::Twinned));
        told.into_iter().for_each(|it| work.agent.count_image(it));
    }

    /// Forgets kernels; returns of which code they are.
    pub(super) fn forget_early(&self, images: &mut Images, is_it: impl Fn(&EarlyKernel) -> bool) -> Vec<usize> {
        let Some(early) = &self.early else { return Vec::new() };
        let gone: Vec<EarlyKernel> = images.early.extract_if(.., |it| is_it(it)).collect();
        for it in &gone {
            it.is_gone.store(true, Ordering::Release);
            early.numbers.remove(it.key);
            // Else whoever answers gives it back.
            if !early.launches[it.number as usize].is_asked() {
                early.give_back(it.number, &mut images.free);
            }
        }
        gone.into_iter().map(|it| it.code).collect()
    }
}
