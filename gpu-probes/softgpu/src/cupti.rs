//! CUPTI 13.0: subscription, callbacks and activity buffers.
#![allow(non_snake_case, reason = "the names are CUPTI's")]

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{Handle, record_size};
use crate::activity::{self, CompleteFunction, RequestFunction, TimestampFunction};
use crate::callback::{self, CallbackFunction};
use crate::device::{self, CONTEXTS};
use crate::faults::{explain, faults};
use crate::graph::{self, EXECS, GRAPHS};
use crate::names;

/// `CUptiResult`.
type CuptiResult = i32;

const INVALID_PARAMETER: i32 = 1;
const INVALID_CONTEXT: i32 = 3;
const INVALID_OPERATION: i32 = 7;
const MAX_LIMIT_REACHED: i32 = 12;
const INVALID_KIND: i32 = 21;
const MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: i32 = 39;

/// Handle of the only subscriber.
const SUBSCRIBER: Handle = 0x5c00;
const FLUSH_FORCED: u32 = 1;

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
    fn cuptiGetTimestamp(timestamp: *mut u64) { put(timestamp, activity::stamp()) }
    fn cuptiGetResultString(result: c_int, text: *mut *const c_char) {
        put(text, names::result(result as u32).ok_or(INVALID_PARAMETER)?.as_ptr())
    }
    fn cuptiGetErrorMessage(result: c_int, text: *mut *const c_char) {
        put(text, names::result(result as u32).ok_or(INVALID_PARAMETER)?.as_ptr())
    }
    fn cuptiGetDeviceId(context: Handle, deviceId: *mut u32) {
        let handle = if context == 0 { device::current_handle() } else { context };
        put(deviceId, CONTEXTS.get(handle).ok_or(INVALID_CONTEXT)?.device as u32)
    }
    fn cuptiGetContextId(context: Handle, contextId: *mut u32) {
        put(contextId, CONTEXTS.get(context).ok_or(INVALID_CONTEXT)?.uid)
    }
    fn cuptiGetStreamIdEx(context: Handle, stream: Handle, perThreadStream: u8, streamId: *mut u32) {
        known(context)?;
        stream_id(stream, perThreadStream != 0, streamId)
    }
    fn cuptiGetStreamId(context: Handle, stream: Handle, streamId: *mut u32) {
        known(context)?;
        stream_id(stream, false, streamId)
    }
    fn cuptiGetGraphId(graph: Handle, pId: *mut u32) { put(pId, GRAPHS.get(graph).ok_or(INVALID_PARAMETER)?.id) }
    fn cuptiGetGraphNodeId(node: Handle, nodeId: *mut u64) { put(nodeId, graph::node_id(node).ok_or(INVALID_PARAMETER)?) }
    fn cuptiGetGraphExecId(graphExec: Handle, pId: *mut u32) { put(pId, EXECS.get(graphExec).ok_or(INVALID_PARAMETER)?.id) }
    fn cuptiSetThreadIdType(kind: c_int) { activity::use_system_thread_ids(kind == 1); Ok(()) }
    fn cuptiGetThreadIdType(kind: *mut c_int) { put(kind, c_int::from(activity::uses_system_thread_ids())) }

    fn cuptiSubscribe(subscriber: *mut Handle, callback: Option<CallbackFunction>, userdata: *mut c_void) {
        let function = callback.ok_or(INVALID_PARAMETER)?;
        if subscriber.is_null() { return Err(INVALID_PARAMETER); }
        if !callback::subscribe(function, userdata) { return Err(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); }
        put(subscriber, SUBSCRIBER)
    }
    /// Since 13.0. Several subscribers, as 13.2 has them, are not supported.
    fn cuptiSubscribe_v2(subscriber: *mut Handle, callback: Option<CallbackFunction>, userdata: *mut c_void, pParams: *const c_void) {
        let _ = pParams;
        let function = callback.ok_or(INVALID_PARAMETER)?;
        if subscriber.is_null() { return Err(INVALID_PARAMETER); }
        if !callback::subscribe(function, userdata) { return Err(MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED); }
        put(subscriber, SUBSCRIBER)
    }
    fn cuptiUnsubscribe(subscriber: Handle) { check(subscriber)?; callback::unsubscribe(); Ok(()) }
    fn cuptiEnableCallback(enable: u32, subscriber: Handle, domain: u32, cbid: u32) {
        check(subscriber)?;
        let name = names::callback(domain, cbid).and_then(|it| it.to_str().ok()).unwrap_or_default();
        if faults().lacks_callback(name) {
            return Err(INVALID_PARAMETER);
        }
        if callback::enable(domain, cbid, enable != 0) { Ok(()) } else { Err(INVALID_PARAMETER) }
    }
    fn cuptiEnableDomain(enable: u32, subscriber: Handle, domain: u32) {
        check(subscriber)?;
        if callback::enable_domain(domain, enable != 0) { Ok(()) } else { Err(INVALID_PARAMETER) }
    }
    fn cuptiEnableAllDomains(enable: u32, subscriber: Handle) {
        check(subscriber)?;
        for domain in [callback::DRIVER, callback::RUNTIME, callback::RESOURCE] { callback::enable_domain(domain, enable != 0); }
        Ok(())
    }
    fn cuptiGetCallbackState(enable: *mut u32, subscriber: Handle, domain: u32, cbid: u32) {
        check(subscriber)?;
        put(enable, u32::from(callback::is_enabled(domain, cbid)))
    }
    fn cuptiGetCallbackName(domain: u32, cbid: u32, name: *mut *const c_char) {
        put(name, names::callback(domain, cbid).ok_or(INVALID_PARAMETER)?.as_ptr())
    }

    fn cuptiActivityRegisterCallbacks(funcBufferRequested: Option<RequestFunction>, funcBufferCompleted: Option<CompleteFunction>) {
        activity::register(funcBufferRequested.ok_or(INVALID_PARAMETER)?, funcBufferCompleted.ok_or(INVALID_PARAMETER)?);
        Ok(())
    }
    /// Applies to all times from now on, and to every tool.
    fn cuptiActivityRegisterTimestampCallback(funcTimestamp: Option<TimestampFunction>) {
        activity::use_timestamps_of(Some(funcTimestamp.ok_or(INVALID_PARAMETER)?));
        Ok(())
    }
    fn cuptiActivityEnable(kind: u32) { if activity::enable(kind, true) { Ok(()) } else { Err(INVALID_KIND) } }
    fn cuptiActivityDisable(kind: u32) { if activity::enable(kind, false) { Ok(()) } else { Err(INVALID_KIND) } }
    /// Returns the record after `*record`, or the first one if it is null.
    fn cuptiActivityGetNextRecord(buffer: *mut u8, validBufferSizeBytes: usize, record: *mut *mut u8) {
        if buffer.is_null() || record.is_null() { return Err(INVALID_PARAMETER); }
        let offset = if (*record).is_null() { 0 } else { ((*record) as usize - buffer as usize) + size_at(*record)? };
        if offset >= validBufferSizeBytes { return Err(MAX_LIMIT_REACHED); }
        *record = buffer.add(offset);
        Ok(())
    }
    /// Counts drops over all contexts and streams; CUPTI ignores the arguments too.
    fn cuptiActivityGetNumDroppedRecords(context: Handle, streamId: u32, dropped: *mut usize) {
        let _ = (context, streamId);
        put(dropped, activity::take_dropped() as usize)
    }
    /// Kernels that are launched from now on say when they were queued and submitted.
    fn cuptiActivityEnableLatencyTimestamps(enable: u8) { activity::tell_latencies(enable != 0); Ok(()) }
    fn cuptiActivityFlushAll(flag: u32) { activity::flush(flag & FLUSH_FORCED != 0); Ok(()) }
    fn cuptiActivityFlush(context: Handle, streamId: u32, flag: u32) {
        let _ = (context, streamId);
        activity::flush(flag & FLUSH_FORCED != 0);
        Ok(())
    }
    /// Stores attributes and returns them; none has an effect here.
    fn cuptiActivitySetAttribute(attr: u32, valueSize: *mut usize, value: *mut u8) {
        if valueSize.is_null() || value.is_null() || *valueSize > 8 { return Err(INVALID_PARAMETER); }
        let mut kept = [0u8; 8];
        value.copy_to_nonoverlapping(kept.as_mut_ptr(), *valueSize);
        attributes::set(attr, u64::from_ne_bytes(kept))
    }
    fn cuptiActivityGetAttribute(attr: u32, valueSize: *mut usize, value: *mut u8) {
        if valueSize.is_null() || value.is_null() { return Err(INVALID_PARAMETER); }
        let (kept, size) = attributes::get(attr)?;
        if *valueSize < size { return Err(INVALID_PARAMETER); }
        value.copy_from_nonoverlapping(kept.to_ne_bytes().as_ptr(), size);
        put(valueSize, size)
    }
    /// Resets to the state before CUPTI was used and delivers what the buffers hold.
    fn cuptiFinalize() {
        (0..64).for_each(|kind| { activity::enable(kind, false); });
        activity::flush(true);
        activity::unregister();
        activity::use_timestamps_of(None);
        activity::tell_latencies(false);
        callback::reset();
        Ok(())
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

fn check(subscriber: Handle) -> Result<(), CuptiResult> {
    if subscriber == SUBSCRIBER && callback::is_subscribed() { Ok(()) } else { Err(INVALID_PARAMETER) }
}

/// Null means the current context.
fn known(context: Handle) -> Result<(), CuptiResult> {
    if context == 0 || CONTEXTS.get(context).is_some() { Ok(()) } else { Err(INVALID_CONTEXT) }
}

unsafe fn stream_id(stream: Handle, per_thread: bool, to: *mut u32) -> Result<(), CuptiResult> {
    let stream = device::stream(stream, per_thread).map_err(|_| INVALID_OPERATION)?;
    // SAFETY: the caller's contract.
    unsafe { put(to, stream.id) }
}

unsafe fn size_at(record: *const u8) -> Result<usize, CuptiResult> {
    // SAFETY: a record begins with its kind.
    record_size(unsafe { record.cast::<u32>().read_unaligned() }).ok_or(INVALID_KIND)
}

/// `CUpti_ActivityAttribute` values; 0 unless a default matters to a tool.
mod attributes {
    use std::sync::atomic::{AtomicU64, Ordering};

    const COUNT: usize = 16;
    /// 0: size of a device buffer. 9: one buffer per thread, the default from 13.0.
    const DEFAULTS: [u64; COUNT] = [3_200_000, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    static VALUES: [AtomicU64; COUNT] = [const { AtomicU64::new(u64::MAX) }; COUNT];

    pub(super) fn set(attribute: u32, value: u64) -> Result<(), i32> {
        VALUES.get(attribute as usize).ok_or(super::INVALID_PARAMETER)?.store(value, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the value and its size: attributes 5 and 9 take one byte, all others are `size_t`.
    pub(super) fn get(attribute: u32) -> Result<(u64, usize), i32> {
        let index = attribute as usize;
        let value = match VALUES.get(index).ok_or(super::INVALID_PARAMETER)?.load(Ordering::Relaxed) {
            u64::MAX => DEFAULTS[index],
            set => set,
        };
        Ok((value, if matches!(attribute, 5 | 9) { 1 } else { 8 }))
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
            ("CUPTI_ERROR_INVALID_KIND", super::INVALID_KIND),
            ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", super::MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED),
        ] {
            assert!(LAYOUTS.lines().any(|line| line == format!("result {code} {name}")), "{name}");
        }
    }
}
