//! Kernels of code that the program had loaded before we came.
//!
//! ```text
//! launch of a handle that nobody knows ─▶ its name and code ─▶ tracer: is its PTX in a file of the program?
//! further launches: the original, counted                      │
//! launch ─▶ its twin ◀── worker: loads it, if it takes the same parameters ◀┘
//! ```
//! Nobody waits. All handles of code that is loaded later are known by then, or have no twin.

use super::calls::{Kernel, Origin};
use super::code::KernelCode;
use super::early_table::{ASKED, Early, EarlyKernel, Launches, NEEDS_NONE, reason};
use super::loaded::{Images, LoadedCode};
use super::state::Twins;
use super::table::TwinKey;
use super::work::Work;
use crate::cupti::run::Run;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use xputrace_agent::untraced;
use xputrace_agent::{Context, Library};
use xputrace_wire::device::{ImageOutcome, Twin, Unprobed, original_symbol};

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
        let Some(key) = TwinKey::anywhere(kernel.handle) else { return };
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
        key: TwinKey,
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
        let loaded = LoadedCode { origin, code, context: Some(context), kernel: Some(kernel) };
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
