//! The contexts that have a block: looked up at each launch, without a lock.

use super::super::Handle;
use super::timer::GpuTimer;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::device::MOST_CONTEXTS;
use xputrace_wire::record::UNKNOWN;

/// A context, by CUPTI's id, which is not used again.
#[derive(Debug)]
pub(super) struct ContextState {
    /// Null before there is one, and once it is gone.
    handle: AtomicPtr<std::ffi::c_void>,
    pub(super) device: AtomicU32,
    /// Multiprocessors of the GPU; 0 if the driver does not tell them.
    pub(super) sms: AtomicU32,
    /// The block's address; 0 without one.
    pub(super) block: AtomicU64,
    /// The address of memory for it, which may not be ready yet.
    pub(super) allocated: AtomicU64,
    /// Whether the block was copied when the program was about to end the context.
    pub(super) is_copied: AtomicBool,
    /// Our stream, and its id in records.
    pub(super) stream: AtomicPtr<std::ffi::c_void>,
    pub(super) stream_id: AtomicU32,
    /// The GPU's timer. The worker alone holds this lock.
    timer: Mutex<GpuTimer>,
    /// The id of the stream that it is read in.
    pub(super) timer_stream_id: AtomicU32,
    /// The id of the stream in which programs run in kernels of their own.
    pub(super) programs_stream_id: AtomicU32,
    /// The newest image that was prepared here, or could not be.
    pub(super) prepared: AtomicU32,
}

impl ContextState {
    const fn new() -> Self {
        ContextState {
            handle: AtomicPtr::new(null_mut()),
            device: AtomicU32::new(UNKNOWN),
            sms: AtomicU32::new(0),
            block: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
            is_copied: AtomicBool::new(false),
            stream: AtomicPtr::new(null_mut()),
            stream_id: AtomicU32::new(UNKNOWN),
            timer: Mutex::new(GpuTimer::new()),
            timer_stream_id: AtomicU32::new(UNKNOWN),
            programs_stream_id: AtomicU32::new(UNKNOWN),
            prepared: AtomicU32::new(0),
        }
    }

    /// `None` once it is gone.
    pub(super) fn handle(&self) -> Option<Handle> {
        Some(self.handle.load(Ordering::Acquire)).filter(|it| !it.is_null())
    }

    pub(super) fn timer(&self) -> MutexGuard<'_, GpuTimer> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn end(&self) {
        self.handle.store(null_mut(), Ordering::Release);
    }
}

/// All of them, by slot.
#[derive(Debug)]
pub(super) struct Contexts {
    /// CUPTI's ids, close together; [`UNKNOWN`] in slots that are free.
    ids: [AtomicU32; MOST_CONTEXTS],
    states: [ContextState; MOST_CONTEXTS],
}

impl Contexts {
    pub(super) fn new() -> Self {
        Contexts {
            ids: [const { AtomicU32::new(UNKNOWN) }; MOST_CONTEXTS],
            states: [const { ContextState::new() }; MOST_CONTEXTS],
        }
    }

    /// Returns the slot of a context.
    #[inline]
    pub(super) fn find(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|it| it.load(Ordering::Acquire) == id).filter(|_| id != UNKNOWN)
    }

    pub(super) fn find_handle(&self, handle: Handle) -> Option<usize> {
        self.states.iter().position(|it| it.handle() == Some(handle))
    }

    /// Returns the slot of a context, or gives it one. One thread at a time.
    pub(super) fn claim(&self, id: u32, handle: Handle) -> Option<usize> {
        if let Some(slot) = self.find(id) {
            return Some(slot);
        }
        let slot = self.find_free().filter(|_| id != UNKNOWN)?;
        self.states[slot].handle.store(handle, Ordering::Release);
        self.ids[slot].store(id, Ordering::Release);
        Some(slot)
    }

    fn find_free(&self) -> Option<usize> {
        self.ids.iter().position(|it| it.load(Ordering::Acquire) == UNKNOWN)
    }

    #[inline]
    pub(super) fn state(&self, slot: usize) -> &ContextState {
        &self.states[slot]
    }

    pub(super) fn id(&self, slot: usize) -> u32 {
        self.ids[slot].load(Ordering::Acquire)
    }

    /// Whether this stream, by the ids in records, is one of ours.
    pub(super) fn has_stream(&self, context: u32, stream: u32) -> bool {
        self.find(context).is_some_and(|it| {
            let ContextState { stream_id, timer_stream_id, programs_stream_id, .. } = &self.states[it];
            [stream_id, timer_stream_id, programs_stream_id].into_iter().any(|it| it.load(Ordering::Acquire) == stream)
        })
    }
}
