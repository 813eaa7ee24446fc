//! The twins of a run, and how the program's ends of code and contexts reach them.

use super::calls::Origin;
use super::choosing::{AskLaunch, Kernels, SharedOff};
use super::code::KernelHandle;
use super::contexts::Contexts;
use super::early_table::Early;
use super::loaded::{ImageEntry, Images, InUse, TwinnedCode};
use super::own::{OwnModules, OwnPrograms};
use super::table::{TwinEntry, TwinTable};
use crate::cupti::functions::Handle;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xputrace_agent::Agent;
use xputrace_agent::device::{LOOKS_EVERY, TWIN_WITHIN, count_timeout};
use xputrace_wire::device::{Choice, Control};

/// How long the end of a context waits for the worker to let go of it, and that of code where the run or the program ends.
const LETS_GO_WITHIN: Duration = Duration::from_secs(2);

/// The twins of a run. Never freed: the worker may be in a call of the driver when the run ends.
#[derive(Debug)]
pub(in crate::cupti) struct Twins {
    pub(super) is_on: AtomicBool,
    /// The number of the newest image with a twin; 0 without one.
    pub(super) newest: AtomicU32,
    /// How many were loaded, or were to be.
    pub(super) n_loaded: AtomicU32,
    /// Whether some image could not be prepared in some context.
    pub(super) has_unprepared: AtomicBool,
    /// Whether some twin could not be loaded.
    pub(super) has_unloaded: AtomicBool,
    /// From originals to twins, and from twins to originals.
    pub(super) twins: TwinTable,
    pub(super) originals: TwinTable,
    pub(super) contexts: Contexts,
    pub(super) modules: OwnModules,
    pub(super) programs: OwnPrograms,
    pub(super) kernels: Kernels,
    /// Kernels that were loaded before we came, where there may be any.
    pub(super) early: Option<Early>,
    /// What the switches of twins are set to.
    pub(super) off: SharedOff,
    pub(super) images: Mutex<Images>,
    /// The worker has let go of something.
    pub(super) released: Condvar,
}

impl Twins {
    /// `is_late` says that the program may have loaded code before we came.
    pub(in crate::cupti) fn new(is_late: bool) -> io::Result<Self> {
        Ok(Twins {
            is_on: AtomicBool::new(true),
            newest: AtomicU32::new(0),
            n_loaded: AtomicU32::new(0),
            has_unprepared: AtomicBool::new(false),
            has_unloaded: AtomicBool::new(false),
            twins: TwinTable::new()?,
            originals: TwinTable::new()?,
            contexts: Contexts::new(),
            modules: OwnModules::default(),
            programs: OwnPrograms::default(),
            kernels: Kernels::new()?,
            early: is_late.then(Early::new).transpose()?,
            off: SharedOff::default(),
            images: Mutex::default(),
            released: Condvar::new(),
        })
    }

    /// Decides which conditions of a kernel hold for the launch that the calling thread is making.
    #[inline]
    pub(super) fn choose(&self, control: &Control, entry: &TwinEntry, launch: &impl AskLaunch) -> Choice {
        self.kernels.choose(entry.kernel.load(Ordering::Relaxed), control, self.off.get(), launch)
    }

    pub(super) fn has_block(&self, slot: usize) -> bool {
        let state = self.contexts.state(slot);
        state.block.load(Ordering::Acquire) != 0 && state.handle().is_some()
    }

    pub(super) fn kernel_handle(&self, slot: usize, handle: u64, entry: &TwinEntry) -> KernelHandle {
        match entry.is_kernel.load(Ordering::Relaxed) {
            0 => KernelHandle::Function(handle),
            _ => KernelHandle::Kernel(handle, self.contexts.state(slot).device.load(Ordering::Acquire) as i32),
        }
    }

    /// Runs originals from now on.
    pub(in crate::cupti) fn stop(&self) {
        self.is_on.store(false, Ordering::Release);
    }

    /// Whether this stream, by the ids in records, is ours.
    pub(in crate::cupti) fn has_stream(&self, context: u32, stream: u32) -> bool {
        self.contexts.has_stream(context, stream)
    }

    pub(super) fn images(&self) -> MutexGuard<'_, Images> {
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the worker's call of the driver no longer uses this. The program has no time limit of its own, so
    /// there is one: shorter where the run or the program ends, since the tracer wants no twin then.
    pub(super) fn wait_while(&self, agent: &Agent, most: Duration, is_used: impl Fn(&InUse) -> bool) {
        let began = Instant::now();
        let mut images = self.images();
        while is_used(&images.in_use) {
            let within = if agent.may_wait() { most } else { LETS_GO_WITHIN };
            if began.elapsed() >= within {
                return count_timeout(within);
            }
            images = self.released.wait_timeout(images, LOOKS_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stops the worker from using the program's handles.
    pub(in crate::cupti) fn close(&self) {
        self.images().is_over = true;
    }

    /// Forgets code that is about to be unloaded: its handles may be others' then.
    pub(super) fn forget_code(&self, agent: &Agent, origin: Origin, code: usize) {
        let mut images = self.images();
        images.loaded.remove(&(origin, code));
        let ends = |it: (Origin, usize), is_early| it == (origin, code) || is_early && may_be_of(it.0, origin);
        let mut codes = self.forget_early(&mut images, |it| ends((it.origin, it.code), true));
        codes.push(code);
        images.all.retain(|image| {
            let is_it = ends((image.origin, image.code), image.is_early);
            if is_it {
                self.forget(image, |_| true);
            }
            !is_it
        });
        drop(images);
        self.wait_while(agent, TWIN_WITHIN, |it| it.code.is_some_and(|it| codes.contains(&it)));
    }

    /// Forgets a context that is about to end.
    pub(super) fn forget_context(&self, agent: &Agent, handle: Handle) {
        let Some(slot) = self.contexts.find_handle(handle) else { return };
        let mut images = self.images();
        self.contexts.state(slot).end();
        let id = self.contexts.id(slot);
        images.all.retain(|image| {
            let ends = image.origin == Origin::Module && image.context.is_some_and(|it| it.id == id);
            self.forget(image, |it| ends || it == slot);
            !ends
        });
        images.switches.retain(|it| it.slot != slot);
        self.forget_early(&mut images, |it| it.origin == Origin::Module && it.context == id);
        drop(images);
        self.wait_while(agent, LETS_GO_WITHIN, |it| it.slot == Some(slot));
        if self.contexts.state(slot).is_copied.load(Ordering::Acquire) {
            agent.note_last_copy(slot);
        }
    }

    /// Removes the entries of an image in these slots; those of any context are beyond the slots.
    pub(super) fn forget(&self, image: &TwinnedCode, mut is_in: impl FnMut(usize) -> bool) {
        for ImageEntry { key, back, .. } in image.entries.iter().filter(|it| is_in(it.slot)) {
            self.twins.remove(*key);
            back.iter().for_each(|it| self.originals.remove(*it));
        }
    }
}

/// Whether early code of this origin may be what is unloaded as the other: a library's functions in a context are those of a
/// module, and the driver does not tell of which library that is.
fn may_be_of(origin: Origin, unloaded: Origin) -> bool {
    (origin, unloaded) == (Origin::Module, Origin::Library)
}
