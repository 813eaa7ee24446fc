//! What launches give to patches whose handlers read parameters of the kernel.
//!
//! ```text
//! call ─▶ where its parameters are ─▶ launch: into a slot, by its stream ─▶ patches of the kernel
//! ```
//!
//! A slot is device memory with the words of one launch. It belongs to a stream, and what is copied into it is copied in this
//! stream: so it changes once the kernels before have ended that read it. A call keeps its slot until it returns, since its kernel
//! is in the stream only then; another thread's launch there takes another one. A stream that has ended leaves its slots unused:
//! its kernels may still run.

use super::functions::{Functions, SUCCESS};
use crate::cupti::Handle;
use crate::cupti::twins::arguments::Arguments;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::device::{MOST_ARGUMENTS, Parameters, kernel_words};

/// Slots of a context.
const MOST_SLOTS: usize = 1 << 15;
const SLOT_BYTES: usize = kernel_words::ARGUMENTS + 8 * MOST_ARGUMENTS;
/// Bytes of them all.
pub(super) const BYTES: usize = MOST_SLOTS * SLOT_BYTES;

thread_local! {
    /// Of the call that the thread is in.
    static OF_CALL: Cell<Option<Arguments>> = const { Cell::new(None) };
    static TAKEN: Cell<Option<Taken>> = const { Cell::new(None) };
}

/// What a thread's call has taken.
#[derive(Clone, Copy)]
struct Taken {
    of: &'static Slots,
    stream: usize,
    slot: usize,
}

/// The slots of a context.
#[derive(Debug)]
pub(super) struct Slots {
    /// Of the memory.
    address: u64,
    state: Mutex<ArgumentState>,
}

#[derive(Debug, Default)]
struct ArgumentState {
    /// Those that no call has, by the API's own handles of their streams.
    by_stream: HashMap<usize, Vec<usize>>,
    /// All from here on belong to none.
    next: usize,
}

/// Begins a call that launches a kernel.
///
/// # Safety
/// `params` is null or points at the parameter structure of the call with this id, which the calling thread makes.
pub(super) unsafe fn begin_call(id: u32, params: *const c_void) {
    end_call();
    // SAFETY: the caller promises that `params` is null or points at the parameters of this call, which is under way.
    OF_CALL.set(unsafe { Arguments::of(id, params) });
}

/// Ends the call that the thread is in.
pub(super) fn end_call() {
    OF_CALL.set(None);
    if let Some(Taken { of, stream, slot }) = TAKEN.take() {
        of.state().by_stream.entry(stream).or_default().push(slot);
    }
}

/// Returns the parameters that a kernel's handlers read, with their bits and the values; `None` if the call that the thread is in
/// gives none.
///
/// # Safety
/// The thread is in the call that launches this kernel, whose parameters are these.
unsafe fn values(parameters: &Parameters) -> Option<(u64, [u64; MOST_ARGUMENTS])> {
    let call = OF_CALL.get()?;
    let (mut there, mut values) = (0, [0; MOST_ARGUMENTS]);
    for (number, it) in parameters.iter().enumerate().filter(|it| it.1.bytes > 0) {
        // SAFETY: the caller promises that the thread is in the launch of this kernel, which has such a parameter.
        values[number] = unsafe { call.value(number, it.offset as usize, it.bytes as usize) }?;
        there |= 1 << number;
    }
    Some((there, values))
}

impl Slots {
    /// For memory at this address, of [`BYTES`].
    pub(super) fn new(address: u64) -> Self {
        Slots { address, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ArgumentState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a launch's words and parameters into a slot, before its kernel; returns its address. `None` if they are not known, or
    /// no slot can be had.
    ///
    /// # Safety
    /// As for [`values`]; the stream is the launch's, as the API calls it.
    pub(super) unsafe fn give(
        &'static self,
        functions: &Functions,
        words: &[u8; kernel_words::BYTES],
        parameters: &Parameters,
        stream: Handle,
    ) -> Option<u64> {
        // SAFETY: the caller promises that the thread is in the launch of this kernel, whose parameters are these.
        let (there, values) = unsafe { values(parameters) }?;
        let mut bytes = [0; SLOT_BYTES];
        bytes[..kernel_words::BYTES].copy_from_slice(words);
        let given = values.into_iter().enumerate().map(|(n, value)| (kernel_words::ARGUMENTS + 8 * n, value));
        for (at, word) in given.chain([(kernel_words::HAS_ARGUMENTS, there)]) {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let at = self.address + (self.take(stream as usize)? * SLOT_BYTES) as u64;
        // SAFETY: within the memory; the bytes are taken before this returns (`sanitizer_memory.h`).
        let answer =
            unsafe { (functions.copy_to_device)(at as *mut c_void, bytes.as_ptr().cast(), bytes.len(), stream) };
        (answer == SUCCESS).then_some(at)
    }

    /// Takes a slot of a stream until the thread's call ends.
    fn take(&'static self, stream: usize) -> Option<usize> {
        // A call launches one kernel.
        if TAKEN.get().is_some() {
            return None;
        }
        let slot = self.state().take(stream)?;
        TAKEN.set(Some(Taken { of: self, stream, slot }));
        Some(slot)
    }

    /// Has a stream that is about to end keep its slots: another one may have its handle.
    pub(super) fn stream_ends(&self, stream: Handle) {
        self.state().by_stream.remove(&(stream as usize));
    }
}

impl ArgumentState {
    fn take(&mut self, stream: usize) -> Option<usize> {
        if let Some(slot) = self.by_stream.get_mut(&stream).and_then(Vec::pop) {
            return Some(slot);
        }
        let slot = self.next;
        self.next = slot.checked_add(1).filter(|it| *it <= MOST_SLOTS)?;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_of_one_stream_for_ever_and_of_one_call_at_a_time() {
        let slots: &'static Slots = Box::leak(Box::new(Slots::new(0)));
        let call = |stream| {
            let slot = slots.take(stream);
            end_call();
            slot
        };
        assert_eq!([7, 7, 8, 7].map(call), [Some(0), Some(0), Some(1), Some(0)]);
        assert_eq!(slots.take(7), Some(0));
        assert_eq!(slots.take(7), None, "the call has one");
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(call(7), Some(2))).join().unwrap());
        end_call();
        slots.stream_ends(7 as Handle);
        assert_eq!(call(7), Some(3), "another stream of its handle");
        slots.state().next = MOST_SLOTS;
        assert_eq!([9, 8, 7].map(call), [None, Some(1), Some(3)]);
    }
}
