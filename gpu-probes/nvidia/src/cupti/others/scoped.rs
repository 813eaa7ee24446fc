//! Other users of CUPTI where its subscribers share it: from [`SEVERAL_SUBSCRIBERS_SINCE`] on.
//!
//! Each subscriber has records, buffers, attributes and a clock of its own, so nobody yields. But once one of them shares
//! CUPTI, it refuses, in the whole process, functions that name no subscriber, and subscribers that don't allow others.
//! A tool that doesn't know of others calls such functions all the same. They act on subscriptions of its own:
//!
//! [`SEVERAL_SUBSCRIBERS_SINCE`]: crate::cupti::SEVERAL_SUBSCRIBERS_SINCE
//!
//! ```text
//! cuptiSubscribe ──────────▶ a subscription for its callbacks
//! cuptiActivityEnable, … ──▶ a subscription for its records, made at the first such call
//! cuptiSubscribe_v2 ───────▶ what it asks for, and that others are allowed
//! ```
//! Tools that allow others themselves call CUPTI without us in between. Nothing here refers to a run: a tool's
//! subscriptions may outlive ours.

use super::clock::{Replaceable, Scale};
use crate::cupti::functions::TimestampFunction;
use crate::cupti::records::{kind, time_offsets};
use crate::cupti::{
    CallbackData, CallbackFunction, CompleteFunction, Cupti, CuptiResult, EARLIER_NAME_BYTES,
    ERROR_MULTIPLE_SUBSCRIBERS, ERROR_NOT_SUPPORTED, Handle, RequestFunction, SUCCESS, SubscriberParameters,
};
use std::ffi::{c_char, c_void};
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;
use xputrace_wire::events::Realtime;

/// The functions that name a subscriber, once subscribers share CUPTI in this process.
static FUNCTIONS: OnceLock<Cupti> = OnceLock::new();

/// The tool that doesn't know of others.
static TOOL: Tool = Tool {
    calls: AtomicPtr::new(null_mut()),
    records: AtomicPtr::new(null_mut()),
    request: AtomicPtr::new(null_mut()),
    complete: AtomicPtr::new(null_mut()),
};

struct Tool {
    /// Its subscription for callbacks.
    calls: AtomicPtr<c_void>,
    /// Its subscription for records; [`BEING_MADE`] meanwhile.
    records: AtomicPtr<c_void>,
    /// Its functions for buffers.
    request: AtomicPtr<c_void>,
    complete: AtomicPtr<c_void>,
}

/// The clock of the tool's records. A subscriber may replace CUPTI's for itself, but only while no kind is enabled by
/// anyone. So times are converted when its buffers come.
static CLOCK: Replaceable = Replaceable::new();

const BEING_MADE: *mut c_void = std::ptr::dangling_mut::<c_void>();
const MAKING_PERIOD: Duration = Duration::from_micros(20);

/// Notes that subscribers share CUPTI from now on.
pub(in crate::cupti) fn begin(functions: &Cupti) {
    let _ = FUNCTIONS.set(*functions);
}

/// Whether subscribers share CUPTI.
pub(in crate::cupti) fn is_used() -> bool {
    FUNCTIONS.get().is_some()
}

/// Calls a function of this name for a subscription.
macro_rules! scoped {
    ($name:ident ($($argument:expr),*)) => {
        match FUNCTIONS.get().and_then(|it| it.$name) {
            // SAFETY: the caller's arguments as it passed them, and a subscription of its own.
            Some(function) => unsafe { function($($argument),*) },
            None => ERROR_NOT_SUPPORTED,
        }
    };
}

/// As above, for the subscription of the tool's records.
macro_rules! of_records {
    ($name:ident ($($argument:expr),*)) => {
        match TOOL.records() {
            Ok(subscriber) => scoped!($name(subscriber, $($argument),*)),
            Err(answer) => answer,
        }
    };
}

/// Gives the tool a subscription of its own, one at a time.
///
/// # Safety
/// As for `cuptiSubscribe`: `subscriber` is null or has room for a handle, and the callback takes this user data until
/// the subscription ends.
pub(super) unsafe fn subscribe(
    subscriber: *mut Handle,
    callback: Option<CallbackFunction>,
    user_data: *mut c_void,
) -> CuptiResult {
    if !TOOL.calls.load(Ordering::Acquire).is_null() {
        return ERROR_MULTIPLE_SUBSCRIBERS;
    }
    // SAFETY: the caller promises what `cuptiSubscribe` asks for: null or room for a handle, and a callback that takes
    // this user data.
    let answer = unsafe { subscribe_v2(subscriber, callback, user_data, null_mut()) };
    if answer == SUCCESS {
        // SAFETY: CUPTI has just written there.
        TOOL.calls.store(unsafe { subscriber.read() }, Ordering::Release);
    }
    answer
}

/// Subscribes as the tool asks for, and allows others.
///
/// # Safety
/// As for [`subscribe`], which is `cuptiSubscribe_v2`'s too; `parameters` is null or points to a structure of the size
/// that it begins with.
pub(super) unsafe fn subscribe_v2(
    subscriber: *mut Handle,
    callback: Option<CallbackFunction>,
    user_data: *mut c_void,
    parameters: *mut SubscriberParameters,
) -> CuptiResult {
    let mut earlier_name = [0; EARLIER_NAME_BYTES];
    let mut sharing = SubscriberParameters::sharing(std::ptr::null(), &mut earlier_name);
    // SAFETY: the caller's promise: null, or a structure of the size that it begins with.
    unsafe {
        if let Some(size) = parameters.cast::<usize>().as_ref()
            && *size >= offset_of!(SubscriberParameters, allows_others)
        {
            sharing.name = (*parameters).name;
            sharing.earlier_name = (*parameters).earlier_name;
            sharing.earlier_name_bytes = (*parameters).earlier_name_bytes;
        }
    }
    let Some(callback) = callback else { return ERROR_NOT_SUPPORTED };
    scoped!(subscribe_v2(subscriber, callback, user_data, &mut sharing))
}

/// Ends a subscription.
pub(super) fn unsubscribe(subscriber: Handle) -> CuptiResult {
    let _ = TOOL.calls.compare_exchange(subscriber, null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    scoped!(unsubscribe(subscriber))
}

/// Ends the tool's subscriptions, as `cuptiFinalize` does.
pub(super) fn forget() {
    for subscription in [&TOOL.calls, &TOOL.records] {
        let handle = subscription.swap(null_mut(), Ordering::AcqRel);
        if !handle.is_null() && handle != BEING_MADE {
            let _ = scoped!(unsubscribe(handle));
        }
    }
    TOOL.request.store(null_mut(), Ordering::Release);
    TOOL.complete.store(null_mut(), Ordering::Release);
    CLOCK.forget();
}

/// Takes the tool's functions for buffers.
pub(super) fn register(request: RequestFunction, complete: CompleteFunction) -> CuptiResult {
    TOOL.complete.store(complete as *mut c_void, Ordering::Release);
    TOOL.request.store(request as *mut c_void, Ordering::Release);
    TOOL.records().err().unwrap_or(SUCCESS)
}

pub(super) fn enable(kind: u32) -> CuptiResult {
    of_records!(enable_v2(kind, null_mut()))
}

pub(super) fn enable_and_dump(kind: u32) -> CuptiResult {
    of_records!(enable_and_dump_v2(kind, null_mut()))
}

pub(super) fn disable(kind: u32) -> CuptiResult {
    of_records!(disable_v2(kind, null_mut()))
}

pub(super) fn next_record(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> CuptiResult {
    of_records!(next_record_v2(buffer, valid, record))
}

pub(super) fn dropped(context: Handle, stream: u32, dropped: *mut usize) -> CuptiResult {
    of_records!(dropped_records_v2(context, stream, dropped))
}

pub(super) fn set_attribute(attribute: u32, size: *mut usize, value: *mut c_void) -> CuptiResult {
    of_records!(set_attribute_v2(attribute, size, value))
}

pub(super) fn get_attribute(attribute: u32, size: *mut usize, value: *mut c_void) -> CuptiResult {
    of_records!(get_attribute_v2(attribute, size, value))
}

/// Sets an attribute in whose place a function without a subscriber has a parameter of this type.
pub(super) fn set<T>(attribute: u32, mut value: T) -> CuptiResult {
    set_attribute(attribute, &mut size_of::<T>(), (&raw mut value).cast())
}

pub(super) fn get<T>(attribute: u32, value: *mut T) -> CuptiResult {
    get_attribute(attribute, &mut size_of::<T>(), value.cast())
}

/// Replaces the clock of the tool's records.
pub(super) fn register_timestamp(function: Option<TimestampFunction>) -> CuptiResult {
    match function {
        Some(function) => CLOCK.changed(function),
        None => CLOCK.forget(),
    }
    SUCCESS
}

/// # Safety
/// As for `cuptiGetTimestamp`: `time` is null or may be written.
pub(super) unsafe fn timestamp(time: *mut u64) -> CuptiResult {
    match (CLOCK.function(), time.is_null()) {
        (Some(function), false) => {
            // SAFETY: the tool's own function; the caller promises that `time`, which is not null here, may be written.
            unsafe { time.write(function()) };
            SUCCESS
        }
        _ => of_records!(get_timestamp_v2(time)),
    }
}

pub(super) fn push_external(kind: u32, id: u64) -> CuptiResult {
    of_records!(push_external_v2(kind, id))
}

pub(super) fn pop_external(kind: u32, last: *mut u64) -> CuptiResult {
    of_records!(pop_external_v2(kind, last))
}

pub(super) fn enable_driver_api(id: u32, enable: u8) -> CuptiResult {
    of_records!(enable_driver_api_v2(id, enable))
}

pub(super) fn enable_runtime_api(id: u32, enable: u8) -> CuptiResult {
    of_records!(enable_runtime_api_v2(id, enable))
}

impl Tool {
    /// Returns the subscription for the tool's records.
    fn records(&self) -> Result<Handle, CuptiResult> {
        loop {
            match self.records.compare_exchange(null_mut(), BEING_MADE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(BEING_MADE) => std::thread::sleep(MAKING_PERIOD),
                Err(handle) => return Ok(handle),
            }
        }
        let made = make_subscription_for_records();
        self.records.store(made.unwrap_or(null_mut()), Ordering::Release);
        made
    }

    fn request(&self) -> Option<RequestFunction> {
        let function = self.request.load(Ordering::Acquire);
        // SAFETY: null, or stored by `register` from a function of this type.
        unsafe { std::mem::transmute::<*mut c_void, Option<RequestFunction>>(function) }
    }

    fn complete(&self) -> Option<CompleteFunction> {
        let function = self.complete.load(Ordering::Acquire);
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, Option<CompleteFunction>>(function) }
    }
}

fn make_subscription_for_records() -> Result<Handle, CuptiResult> {
    let mut handle: Handle = null_mut();
    let mut earlier_name: [c_char; EARLIER_NAME_BYTES] = [0; EARLIER_NAME_BYTES];
    let mut sharing = SubscriberParameters::sharing(std::ptr::null(), &mut earlier_name);
    match scoped!(subscribe_v2(&mut handle, no_callback, null_mut(), &mut sharing)) {
        SUCCESS => {}
        answer => return Err(answer),
    }
    match scoped!(register_callbacks_v2(handle, request_buffer, complete_buffer)) {
        SUCCESS => Ok(handle),
        answer => {
            let _ = scoped!(unsubscribe(handle));
            Err(answer)
        }
    }
}

/// Is never called: the subscription for records enables none.
unsafe extern "C" fn no_callback(_: *mut c_void, _: u32, _: u32, _: *const CallbackData) {}

/// CUPTI requests a buffer for the tool's records. Without a function of the tool's it gets none, and drops them.
unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize, _: *const c_void) {
    match TOOL.request() {
        // SAFETY: CUPTI's own arguments.
        Some(request) => unsafe { request(buffer, size, max_records) },
        // SAFETY: CUPTI's out-parameters.
        None => unsafe {
            buffer.write(null_mut());
            size.write(0);
        },
    }
}

unsafe extern "C" fn complete_buffer(buffer: *mut u8, size: usize, valid: usize, _: *const c_void) {
    let Some(complete) = TOOL.complete() else { return };
    // SAFETY: CUPTI's own arguments. It passes no context and stream to anyone since CUDA 6.
    unsafe {
        if let Some(scale) = CLOCK.scale() {
            convert(buffer, valid, scale);
        }
        complete(null_mut(), 0, buffer, size, valid);
    }
}

/// Converts the times of the tool's records to its clock.
///
/// # Safety
/// CUPTI filled `valid` bytes of the buffer, and no longer uses it.
unsafe fn convert(buffer: *mut u8, valid: usize, scale: Scale) {
    let mut record: *mut u8 = null_mut();
    while valid > 0 && next_record(buffer, valid, &mut record) == SUCCESS && !record.is_null() {
        // SAFETY: a record that CUPTI stepped to, whose times are where its kind has them.
        unsafe {
            for at in time_offsets(kind(record)) {
                let time = record.add(*at).cast::<u64>();
                time.write_unaligned(scale.theirs(Realtime(time.read_unaligned())));
            }
        }
    }
}
