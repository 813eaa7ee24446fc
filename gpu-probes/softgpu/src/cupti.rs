//! CUPTI 13.0: subscription, callbacks and activity buffers; and what later versions have for several subscribers.
#![allow(non_snake_case, reason = "the names are CUPTI's")]

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{Handle, UnifiedMemoryCounter, kind, record_size};
use crate::activity::{
    self, BufferFunctions, CompleteFunction, RequestFunction, ScopedCompleteFunction, ScopedRequestFunction,
    TimestampFunction,
};
use crate::callback::{self, CallbackFunction};
use crate::contexts::{self, CONTEXTS};
use crate::device;
use crate::faults::{explain, faults};
use crate::graph::{self, EXECS, GRAPHS};
use crate::names;
use crate::unified;
use crate::users::{self, Usage, UserId};

/// `CUptiResult`.
type CuptiResult = i32;

const INVALID_PARAMETER: i32 = 1;
const INVALID_CONTEXT: i32 = 3;
const INVALID_OPERATION: i32 = 7;
const MAX_LIMIT_REACHED: i32 = 12;
const NOT_COMPATIBLE: i32 = 14;
const NOT_INITIALIZED: i32 = 15;
const QUEUE_EMPTY: i32 = 18;
const INVALID_KIND: i32 = 21;
const NOT_SUPPORTED: i32 = 27;
const MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: i32 = 39;

/// The first version with records of a GPU's switches of contexts.
const CONTEXT_SWITCHES_SINCE: u32 = 130_100;
/// The version whose subscribers share CUPTI as they do here.
const SEVERAL_SUBSCRIBERS_SINCE: u32 = 130_500;
/// `CUPTI_ACTIVITY_ATTR_ENABLE_MULTI_SUBSCRIBER_GRAPH_TRACE`.
const WHOLE_GRAPHS: u32 = 20;
/// `CUPTI_ACTIVITY_ATTR_ENABLE_KERNEL_LATENCY_TIMESTAMPS`.
const LATENCY_TIMESTAMPS: u32 = 15;
/// `CUPTI_ACTIVITY_ATTR_TIMESTAMP_CALLBACK`.
const TIMESTAMP_CALLBACK: u32 = 22;
const KIND_GRAPH_TRACE: u32 = 51;
const FLUSH_FORCED: u32 = 1;

/// The name of this library's file, whatever link it was loaded by. The collector recognizes the software GPU by this function.
#[unsafe(no_mangle)]
pub extern "C" fn xputrace_softgpu_file() -> *const std::ffi::c_char {
    c"libxputrace_softgpu.so".as_ptr()
}

/// Defines exported CUPTI functions; `SOFTGPU_FAIL` can make each one fail.
macro_rules! cupti {
    ($( $(#[$meta:meta])* fn $name:ident ( $($p:ident : $t:ty),* $(,)? ) $body:block )*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// As CUPTI's function of that name: pointers are valid for what it reads and writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($p: $t),*) -> CuptiResult {
            if let Some(code) = faults().forced(stringify!($name)) {
                explain(|| format!("{}: SOFTGPU_FAIL makes it answer {code}", stringify!($name)));
                return code;
            }
            let body = move || -> Result<(), CuptiResult> {
                #[allow(unused_unsafe, clippy::undocumented_unsafe_blocks, reason = "the caller keeps CUPTI's contract")]
                unsafe { $body }
            };
            body().err().unwrap_or(0)
        }
    )*};
}

cupti! {
    /// Returns the version, or `SOFTGPU_CUPTI_VERSION`.
    fn cuptiGetVersion(version: *mut u32) { put(version, faults().cupti_version) }
    /// CUPTI's clock, which is CLOCK_REALTIME.
    fn cuptiGetTimestamp(timestamp: *mut u64) { put(timestamp, activity::stamp(UserId::GLOBAL)) }
    fn cuptiGetTimestamp_v2(subscriber: Handle, timestamp: *mut u64) { put(timestamp, activity::stamp(scoped(subscriber)?)) }
    fn cuptiGetResultString(result: c_int, text: *mut *const c_char) {
        put(text, names::result(result as u32).ok_or(INVALID_PARAMETER)?.as_ptr())
    }
    fn cuptiGetErrorMessage(result: c_int, text: *mut *const c_char) {
        put(text, names::result(result as u32).ok_or(INVALID_PARAMETER)?.as_ptr())
    }
    fn cuptiGetDeviceId(context: Handle, deviceId: *mut u32) {
        let handle = if context == 0 { contexts::current_handle() } else { context };
        put(deviceId, CONTEXTS.get(handle).ok_or(INVALID_CONTEXT)?.device as u32)
    }
    fn cuptiGetContextId(context: Handle, contextId: *mut u32) {
        put(contextId, CONTEXTS.get(context).ok_or(INVALID_CONTEXT)?.uid)
    }
    fn cuptiGetStreamIdEx(context: Handle, stream: Handle, perThreadStream: u8, streamId: *mut u32) {
        stream_id(context, (stream, perThreadStream != 0), streamId)
    }
    fn cuptiGetStreamId(context: Handle, stream: Handle, streamId: *mut u32) {
        stream_id(context, (stream, false), streamId)
    }
    fn cuptiGetGraphId(graph: Handle, pId: *mut u32) { put(pId, GRAPHS.get(graph).ok_or(INVALID_PARAMETER)?.id) }
    fn cuptiGetGraphNodeId(node: Handle, nodeId: *mut u64) { put(nodeId, graph::node_id(node).ok_or(INVALID_PARAMETER)?) }
    fn cuptiGetGraphExecId(graphExec: Handle, pId: *mut u32) { put(pId, EXECS.get(graphExec).ok_or(INVALID_PARAMETER)?.id) }
    fn cuptiSetThreadIdType(kind: c_int) { activity::use_system_thread_ids(kind == 1); Ok(()) }
    fn cuptiGetThreadIdType(kind: *mut c_int) { put(kind, c_int::from(activity::uses_system_thread_ids())) }

    fn cuptiSubscribe(subscriber: *mut Handle, callback: Option<CallbackFunction>, userdata: *mut c_void) {
        let function = callback.ok_or(INVALID_PARAMETER)?;
        subscribe_alone(subscriber, function, userdata)
    }
    /// Since 13.0; from 13.5 on, several subscribers that all allow that.
    fn cuptiSubscribe_v2(subscriber: *mut Handle, callback: Option<CallbackFunction>, userdata: *mut c_void, pParams: *const SubscriberParams) {
        let function = callback.ok_or(INVALID_PARAMETER)?;
        let allows_others = faults().cupti_version >= SEVERAL_SUBSCRIBERS_SINCE && pParams.as_ref().is_some_and(|it| it.allows_others == 1);
        if !allows_others { return subscribe_alone(subscriber, function, userdata); }
        if callback::is_subscribed(UserId::GLOBAL) || users::records_alone() { return Err(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); }
        subscribe(UserId::scoped(), subscriber, function, userdata)
    }
    fn cuptiUnsubscribe(subscriber: Handle) {
        let user = subscribed(subscriber)?;
        callback::unsubscribe(user);
        if user == UserId::GLOBAL { users::end_alone(); } else { activity::forget(user); }
        Ok(())
    }
    fn cuptiEnableCallback(enable: u32, subscriber: Handle, domain: u32, cbid: u32) {
        let user = subscribed(subscriber)?;
        callback::crash_if_torn();
        let name = names::callback(domain, cbid).and_then(|it| it.to_str().ok()).unwrap_or_default();
        if faults().lacks_callback(name) {
            return Err(INVALID_PARAMETER);
        }
        if callback::enable(user, domain, cbid, enable != 0) { Ok(()) } else { Err(INVALID_PARAMETER) }
    }
    fn cuptiEnableDomain(enable: u32, subscriber: Handle, domain: u32) {
        let user = subscribed(subscriber)?;
        if callback::enable_domain(user, domain, enable != 0) { Ok(()) } else { Err(INVALID_PARAMETER) }
    }
    fn cuptiEnableAllDomains(enable: u32, subscriber: Handle) {
        let user = subscribed(subscriber)?;
        for domain in [callback::DRIVER, callback::RUNTIME, callback::RESOURCE] { callback::enable_domain(user, domain, enable != 0); }
        Ok(())
    }
    fn cuptiGetCallbackState(enable: *mut u32, subscriber: Handle, domain: u32, cbid: u32) {
        let user = subscribed(subscriber)?;
        put(enable, u32::from(callback::is_enabled(user, domain, cbid)))
    }
    fn cuptiGetCallbackName(domain: u32, cbid: u32, name: *mut *const c_char) {
        put(name, names::callback(domain, cbid).ok_or(INVALID_PARAMETER)?.as_ptr())
    }

    fn cuptiActivityRegisterCallbacks(funcBufferRequested: Option<RequestFunction>, funcBufferCompleted: Option<CompleteFunction>) {
        let functions = BufferFunctions::Global(funcBufferRequested.ok_or(INVALID_PARAMETER)?, funcBufferCompleted.ok_or(INVALID_PARAMETER)?);
        global()?;
        activity::register(UserId::GLOBAL, functions);
        Ok(())
    }
    fn cuptiActivityRegisterCallbacks_v2(subscriber: Handle, funcBufferRequested: Option<ScopedRequestFunction>, funcBufferCompleted: Option<ScopedCompleteFunction>) {
        let functions = BufferFunctions::Scoped(funcBufferRequested.ok_or(INVALID_PARAMETER)?, funcBufferCompleted.ok_or(INVALID_PARAMETER)?);
        activity::register(scoped(subscriber)?, functions);
        Ok(())
    }
    /// Applies to all times from now on, and to every tool.
    fn cuptiActivityRegisterTimestampCallback(funcTimestamp: Option<TimestampFunction>) {
        global()?;
        activity::use_timestamps_of(UserId::GLOBAL, Some(funcTimestamp.ok_or(INVALID_PARAMETER)?));
        Ok(())
    }
    fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) { external::push(UserId::GLOBAL, kind, id) }
    fn cuptiActivityPopExternalCorrelationId(kind: u32, lastId: *mut u64) { pop_external(UserId::GLOBAL, kind, lastId) }
    fn cuptiActivityPushExternalCorrelationId_v2(subscriber: Handle, kind: u32, id: u64) { external::push(scoped(subscriber)?, kind, id) }
    fn cuptiActivityPopExternalCorrelationId_v2(subscriber: Handle, kind: u32, lastId: *mut u64) { pop_external(scoped(subscriber)?, kind, lastId) }
    /// Has records of unified memory count these things.
    fn cuptiActivityConfigureUnifiedMemoryCounter(config: *const UnifiedMemoryCounter, count: u32) {
        if !device::is_initialized() { return Err(NOT_INITIALIZED); }
        if config.is_null() { return Err(INVALID_PARAMETER); }
        let counters = std::slice::from_raw_parts(config, count as usize);
        if counters.iter().all(|it| unified::configure(it.kind, it.enable != 0)) { Ok(()) } else { Err(INVALID_PARAMETER) }
    }
    fn cuptiActivityEnable(kind: u32) {
        global()?;
        enable(UserId::GLOBAL, kind)
    }
    fn cuptiActivityDisable(kind: u32) {
        global()?;
        if activity::enable(UserId::GLOBAL, kind, false) { Ok(()) } else { Err(INVALID_KIND) }
    }
    /// Subscribers that share CUPTI record graphs as a whole only where one has chosen that for all before any kind was
    /// enabled.
    fn cuptiActivityEnable_v2(subscriber: Handle, kind: u32, pActivityConfig: *const c_void) {
        let _ = pActivityConfig;
        let user = scoped(subscriber)?;
        if kind == KIND_GRAPH_TRACE && user != UserId::GLOBAL && attributes::get(user, WHOLE_GRAPHS)?.0 == 0 { return Err(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); }
        enable(user, kind)
    }
    fn cuptiActivityDisable_v2(subscriber: Handle, kind: u32, pActivityConfig: *const c_void) {
        let _ = pActivityConfig;
        if activity::enable(scoped(subscriber)?, kind, false) { Ok(()) } else { Err(INVALID_KIND) }
    }
    /// Returns the record after `*record`, or the first one if it is null.
    fn cuptiActivityGetNextRecord(buffer: *mut u8, validBufferSizeBytes: usize, record: *mut *mut u8) {
        global()?;
        next_record(buffer, validBufferSizeBytes, record)
    }
    fn cuptiActivityGetNextRecord_v2(subscriber: Handle, buffer: *mut u8, validBufferSizeBytes: usize, record: *mut *mut u8) {
        scoped(subscriber)?;
        next_record(buffer, validBufferSizeBytes, record)
    }
    /// Counts drops over all contexts and streams; CUPTI ignores the arguments too.
    fn cuptiActivityGetNumDroppedRecords(context: Handle, streamId: u32, dropped: *mut usize) {
        let _ = (context, streamId);
        global()?;
        put(dropped, activity::take_dropped(UserId::GLOBAL) as usize)
    }
    /// Kernels that are launched from now on say when they were queued and submitted.
    fn cuptiActivityEnableLatencyTimestamps(enable: u8) { global()?; activity::tell_latencies(enable != 0); Ok(()) }
    fn cuptiActivityGetNumDroppedRecords_v2(subscriber: Handle, context: Handle, streamId: u32, dropped: *mut usize) {
        let _ = (context, streamId);
        put(dropped, activity::take_dropped(scoped(subscriber)?) as usize)
    }
    /// Delivers the records of all users.
    fn cuptiActivityFlushAll(flag: u32) { activity::flush(flag & FLUSH_FORCED != 0); Ok(()) }
    fn cuptiActivityFlush(context: Handle, streamId: u32, flag: u32) {
        let _ = (context, streamId);
        activity::flush(flag & FLUSH_FORCED != 0);
        Ok(())
    }
    /// Stores attributes and returns them; few have an effect here.
    fn cuptiActivitySetAttribute(attr: u32, valueSize: *mut usize, value: *mut u8) {
        global()?;
        attributes::set(UserId::GLOBAL, attr, valueSize, value)
    }
    fn cuptiActivityGetAttribute(attr: u32, valueSize: *mut usize, value: *mut u8) {
        global()?;
        attributes::read(UserId::GLOBAL, attr, valueSize, value)
    }
    fn cuptiActivitySetAttribute_v2(subscriber: Handle, attr: u32, valueSize: *mut usize, value: *mut u8) {
        let user = scoped(subscriber)?;
        let is_recording = UserId::all().any(activity::records_anything);
        if attr == WHOLE_GRAPHS && is_recording { return Err(INVALID_OPERATION); }
        if attr == TIMESTAMP_CALLBACK && is_recording { return Err(NOT_COMPATIBLE); }
        if attr == LATENCY_TIMESTAMPS && !value.is_null() { activity::tell_latencies(*value != 0); }
        if attr == TIMESTAMP_CALLBACK && !value.is_null() {
            let function = value.cast::<Option<TimestampFunction>>().read_unaligned();
            activity::use_timestamps_of(user, function);
        }
        attributes::set(user, attr, valueSize, value)
    }
    fn cuptiActivityGetAttribute_v2(subscriber: Handle, attr: u32, valueSize: *mut usize, value: *mut u8) {
        attributes::read(scoped(subscriber)?, attr, valueSize, value)
    }
    /// Resets to the state before CUPTI was used and delivers what the buffers hold. As 13.5, it ends all subscribers'
    /// use, and if there were several, crashes when the next one enables a callback.
    fn cuptiFinalize() {
        unified::reset();
        if UserId::scoped().filter(|it| callback::is_subscribed(*it)).count() > 1 { callback::tear(); }
        activity::flush(true);
        UserId::all().for_each(activity::forget);
        activity::tell_latencies(false);
        callback::reset();
        users::end_alone();
        Ok(())
    }
}

/// `CUpti_SubscriberParams`.
#[repr(C)]
pub struct SubscriberParams {
    struct_size: usize,
    name: *const c_char,
    old_name: *mut c_char,
    old_name_bytes: usize,
    allows_others: u8,
    padding: [u8; 7],
}

/// Enables a kind of records for a user.
fn enable(user: UserId, of: u32) -> Result<(), CuptiResult> {
    match of {
        kind::CONTEXT_SWITCH if faults().cupti_version < CONTEXT_SWITCHES_SINCE => Err(NOT_COMPATIBLE),
        _ if activity::enable(user, of, true) => Ok(()),
        _ => Err(INVALID_KIND),
    }
}

/// Lets functions for records that name no subscriber pass, unless some that do were used before.
fn global() -> Result<(), CuptiResult> {
    if faults().cupti_version < SEVERAL_SUBSCRIBERS_SINCE || users::settle(Usage::Global) {
        return Ok(());
    }
    Err(NOT_COMPATIBLE)
}

/// Returns a subscriber whose records functions name.
fn scoped(handle: Handle) -> Result<UserId, CuptiResult> {
    if faults().cupti_version < SEVERAL_SUBSCRIBERS_SINCE {
        return Err(NOT_SUPPORTED);
    }
    let user = subscribed(handle)?;
    if users::settle(Usage::Scoped) { Ok(user) } else { Err(NOT_COMPATIBLE) }
}

/// Subscribes the only one.
unsafe fn subscribe_alone(
    subscriber: *mut Handle,
    function: CallbackFunction,
    user_data: *mut c_void,
) -> Result<(), CuptiResult> {
    if UserId::scoped().any(callback::is_subscribed) {
        return Err(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
    }
    // SAFETY: the caller's contract.
    unsafe { subscribe([UserId::GLOBAL], subscriber, function, user_data) }
}

/// Returns the subscriber with this handle.
fn subscribed(handle: Handle) -> Result<UserId, CuptiResult> {
    UserId::of(handle).filter(|it| callback::is_subscribed(*it)).ok_or(INVALID_PARAMETER)
}

/// Subscribes the first of these that is free.
unsafe fn subscribe(
    users: impl IntoIterator<Item = UserId>,
    subscriber: *mut Handle,
    function: CallbackFunction,
    user_data: *mut c_void,
) -> Result<(), CuptiResult> {
    if subscriber.is_null() {
        return Err(INVALID_PARAMETER);
    }
    let user = users.into_iter().find(|it| callback::subscribe(*it, function, user_data));
    // SAFETY: the caller's contract.
    unsafe { put(subscriber, user.ok_or(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)?.handle()) }
}

unsafe fn next_record(buffer: *mut u8, valid: usize, record: *mut *mut u8) -> Result<(), CuptiResult> {
    if buffer.is_null() || record.is_null() {
        return Err(INVALID_PARAMETER);
    }
    // SAFETY: the caller's contract.
    unsafe {
        let offset = if (*record).is_null() { 0 } else { ((*record) as usize - buffer as usize) + size_at(*record)? };
        if offset >= valid {
            return Err(MAX_LIMIT_REACHED);
        }
        put(record, buffer.add(offset))
    }
}

unsafe fn put<T>(to: *mut T, value: T) -> Result<(), CuptiResult> {
    if to.is_null() {
        return Err(INVALID_PARAMETER);
    }
    // SAFETY: the caller of the CUPTI function promises a valid pointer.
    unsafe { to.write(value) };
    Ok(())
}

/// Null means the current context.
/// Stores the id where it is wanted.
unsafe fn pop_external(user: UserId, kind: u32, last: *mut u64) -> Result<(), CuptiResult> {
    let id = external::pop(user, kind)?;
    // SAFETY: the caller's contract.
    if last.is_null() { Ok(()) } else { unsafe { put(last, id) } }
}

/// Ids that threads push for tools. There are no records of them.
mod external {
    use super::{CuptiResult, INVALID_PARAMETER, QUEUE_EMPTY};
    use crate::users::UserId;
    use std::cell::RefCell;

    /// `CUPTI_EXTERNAL_CORRELATION_KIND_UNKNOWN` and the last one.
    const KINDS: std::ops::RangeInclusive<u32> = 1..=5;

    thread_local! {
        /// Users, kinds and ids.
        static PUSHED: RefCell<Vec<(usize, u32, u64)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn push(user: UserId, kind: u32, id: u64) -> Result<(), CuptiResult> {
        if !KINDS.contains(&kind) {
            return Err(INVALID_PARAMETER);
        }
        PUSHED.with(|it| it.borrow_mut().push((user.index(), kind, id)));
        Ok(())
    }

    pub(super) fn pop(user: UserId, kind: u32) -> Result<u64, CuptiResult> {
        if !KINDS.contains(&kind) {
            return Err(INVALID_PARAMETER);
        }
        PUSHED.with(|it| {
            let mut pushed = it.borrow_mut();
            let at = pushed.iter().rposition(|it| (it.0, it.1) == (user.index(), kind)).ok_or(QUEUE_EMPTY)?;
            Ok(pushed.remove(at).2)
        })
    }
}

/// Stores the id of a stream of this context, or of the current one if it is 0.
unsafe fn stream_id(context: Handle, (stream, per_thread): (Handle, bool), to: *mut u32) -> Result<(), CuptiResult> {
    let id = match CONTEXTS.get(context) {
        None if context != 0 => return Err(INVALID_CONTEXT),
        Some(context) if (stream, per_thread) == (0, false) => context.legacy.id,
        _ => device::stream(stream, per_thread).map_err(|_| INVALID_OPERATION)?.id,
    };
    // SAFETY: the caller's contract.
    unsafe { put(to, id) }
}

unsafe fn size_at(record: *const u8) -> Result<usize, CuptiResult> {
    // SAFETY: a record begins with its kind.
    record_size(unsafe { record.cast::<u32>().read_unaligned() }).ok_or(INVALID_KIND)
}

/// `CUpti_ActivityAttribute` values of each user; 0 unless a default matters to a tool.
mod attributes {
    use super::{INVALID_PARAMETER, WHOLE_GRAPHS, put};
    use crate::users::{MOST_USERS, UserId};
    use std::sync::atomic::{AtomicU64, Ordering};

    const COUNT: usize = 25;
    static VALUES: [[AtomicU64; COUNT]; MOST_USERS] =
        [const { [const { AtomicU64::new(u64::MAX) }; COUNT] }; MOST_USERS];

    /// 0: size of a device buffer. 9: one buffer per thread, the default from 13.0.
    fn default_of(attribute: u32) -> u64 {
        match attribute {
            0 => 3_200_000,
            9 => 1,
            _ => 0,
        }
    }

    fn size_of(attribute: u32) -> usize {
        if matches!(attribute, 5 | 9 | 11..=20) { 1 } else { 8 }
    }

    fn value(user: UserId, attribute: u32) -> Result<&'static AtomicU64, i32> {
        // As in 13.5, buffers are alike for all subscribers, and graphs.
        let user = if matches!(attribute, 5 | 9 | WHOLE_GRAPHS) { UserId::GLOBAL } else { user };
        VALUES[user.index()].get(attribute as usize).ok_or(INVALID_PARAMETER)
    }

    /// # Safety
    /// `size` is null or points to a number, `value` is null or points to so many bytes.
    pub(super) unsafe fn set(user: UserId, attribute: u32, size: *mut usize, value: *mut u8) -> Result<(), i32> {
        // SAFETY: the caller promises that the pointers are null, or to a number and to so many bytes.
        unsafe {
            if size.is_null() || value.is_null() || *size > 8 {
                return Err(INVALID_PARAMETER);
            }
            let mut kept = [0u8; 8];
            value.copy_to_nonoverlapping(kept.as_mut_ptr(), *size);
            self::value(user, attribute)?.store(u64::from_ne_bytes(kept), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the value and its size.
    pub(super) fn get(user: UserId, attribute: u32) -> Result<(u64, usize), i32> {
        let value = match value(user, attribute)?.load(Ordering::Relaxed) {
            u64::MAX => default_of(attribute),
            set => set,
        };
        Ok((value, size_of(attribute)))
    }

    /// # Safety
    /// `size` is null or points to a number, `value` is null or points to so many bytes, which may be written.
    pub(super) unsafe fn read(user: UserId, attribute: u32, size: *mut usize, value: *mut u8) -> Result<(), i32> {
        // SAFETY: the caller promises that the pointers are null, or to a number and to so many bytes.
        unsafe {
            if size.is_null() || value.is_null() {
                return Err(INVALID_PARAMETER);
            }
            let (kept, bytes) = get(user, attribute)?;
            if *size < bytes {
                return Err(INVALID_PARAMETER);
            }
            value.copy_from_nonoverlapping(kept.to_ne_bytes().as_ptr(), bytes);
            put(size, bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::names::LAYOUTS;

    #[test]
    fn codes_are_cuptis() {
        for (name, code) in [
            ("CUPTI_ERROR_INVALID_PARAMETER", super::INVALID_PARAMETER),
            ("CUPTI_ERROR_INVALID_CONTEXT", super::INVALID_CONTEXT),
            ("CUPTI_ERROR_INVALID_OPERATION", super::INVALID_OPERATION),
            ("CUPTI_ERROR_MAX_LIMIT_REACHED", super::MAX_LIMIT_REACHED),
            ("CUPTI_ERROR_NOT_COMPATIBLE", super::NOT_COMPATIBLE),
            ("CUPTI_ERROR_INVALID_KIND", super::INVALID_KIND),
            ("CUPTI_ERROR_NOT_SUPPORTED", super::NOT_SUPPORTED),
            ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", super::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED),
        ] {
            assert!(LAYOUTS.lines().any(|line| line == format!("result {code} {name}")), "{name}");
        }
    }
}
