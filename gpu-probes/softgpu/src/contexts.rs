//! Contexts: which there are, the primary one of each device, and which is current for a thread.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{Handle, Status, error};
use crate::devices;
use crate::forks;
use crate::registry::Registry;
use crate::stream::Stream;

pub(crate) static CONTEXTS: Registry<Context> = Registry::new();

const FIRST_CONTEXT: u32 = 1;
static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(FIRST_CONTEXT);
/// By device.
static PRIMARIES: [Mutex<Primary>; devices::MOST] =
    [const { Mutex::new(Primary { handle: 0, users: 0 }) }; devices::MOST];

thread_local! {
    // It has no destructor, and leaks a little: functions for `atexit` make calls after the main thread's ran.
    static CURRENT: RefCell<ManuallyDrop<Vec<Handle>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// A context.
pub(crate) struct Context {
    pub(crate) uid: u32,
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) legacy: Arc<Stream>,
}

/// A device's primary context.
pub(crate) struct Primary {
    pub(crate) handle: Handle,
    pub(crate) users: u32,
}

pub(crate) fn require_initialized() -> Status {
    if forks::has_begun() { Ok(()) } else { Err(error::NOT_INITIALIZED) }
}

/// Returns the next context's CUPTI id.
pub(crate) fn next_uid() -> u32 {
    NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed)
}

pub(crate) fn has_contexts() -> bool {
    NEXT_CONTEXT.load(Ordering::Relaxed) > FIRST_CONTEXT
}

pub(crate) fn primary(device: i32) -> MutexGuard<'static, Primary> {
    PRIMARIES[device as usize % devices::MOST].lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the context: programs keep using what they created in it, and it costs nothing.
pub(crate) fn release_primary(device: i32) -> Status {
    let mut primary = primary(device);
    primary.users = primary.users.checked_sub(1).ok_or(error::INVALID_CONTEXT)?;
    Ok(())
}

pub(crate) fn primary_handle(device: i32) -> Handle {
    primary(device).handle
}

pub(crate) fn primary_is_active(device: i32) -> bool {
    primary(device).users > 0
}

pub(crate) fn current_handle() -> Handle {
    CURRENT.with(|stack| stack.borrow().last().copied().unwrap_or(0))
}

/// Returns the current context's handle and CUPTI id, or zeros if there is none.
pub(crate) fn current_ids() -> (Handle, u32) {
    let handle = current_handle();
    (handle, CONTEXTS.get(handle).map_or(0, |context| context.uid))
}

pub(crate) fn current() -> Result<Arc<Context>, i32> {
    require_initialized()?;
    CONTEXTS.get(current_handle()).ok_or(error::INVALID_CONTEXT)
}

pub(crate) fn set_current(handle: Handle) -> Status {
    if handle != 0 && CONTEXTS.get(handle).is_none() {
        return Err(error::INVALID_CONTEXT);
    }
    CURRENT.with(|stack| {
        let mut stack = stack.borrow_mut();
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

pub(crate) fn push_current(handle: Handle) -> Status {
    if CONTEXTS.get(handle).is_none() {
        return Err(error::INVALID_CONTEXT);
    }
    CURRENT.with(|stack| stack.borrow_mut().push(handle));
    Ok(())
}

pub(crate) fn pop_current() -> Result<Handle, i32> {
    CURRENT.with(|stack| stack.borrow_mut().pop()).ok_or(error::INVALID_CONTEXT)
}
