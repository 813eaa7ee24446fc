//! Calls that are events of the CPU, at their entry and return.

use super::calls::read;
use super::functions::{CallbackData, CallbackId, SITE_ENTER, SITE_EXIT, context, result};
use super::host_calls::{EVENT_RECORD_EXTERNAL, HostCallRole, InStream, STREAM_NON_BLOCKING, role_of};
use super::run::Run;
use std::ffi::c_void;
use xputrace_agent::ThisThread;
use xputrace_agent::host_call::{self, CallMemory, Created, Entered, Facts, Returned};
use xputrace_agent::{Layer, Stream};
use xputrace_unwind::Pushed;
use xputrace_wire::api::{FunctionId, MOST_PARAMETER_BYTES};
use xputrace_wire::events::host::{PARAMETER_WORDS, StreamMode, WaitKind};

impl Run {
    /// Handles a call on entry or return that may be an event of the CPU, and perhaps a launch too. The event is the
    /// whole call, so it begins first; it ends first as well, since after the end of a launch CUPTI may be gone.
    ///
    /// # Safety
    /// As for [`Run::on_call`].
    #[cold]
    pub(super) unsafe fn on_watched_call(
        &self,
        thread: &'static ThisThread,
        (domain, id): CallbackId,
        data: &CallbackData,
        registers: &Pushed,
    ) {
        let Some(function) = FunctionId::of_callback(domain, id) else { return self.agent.count_unexpected() };
        // SAFETY: the caller promises that `data` is CUPTI's for this call, and the registers at CUPTI's call.
        unsafe { self.on_host_call(thread, function, data, registers) };
        if super::calls::index_of(domain, id).is_some() {
            // SAFETY: the caller promises that `data` is CUPTI's for this call, and the registers at CUPTI's call.
            unsafe { self.on_known_call(thread, (domain, id), data, registers) };
        }
    }

    /// # Safety
    /// `data` is CUPTI's for this call, `registers` those at CUPTI's call.
    unsafe fn on_host_call(
        &self,
        thread: &'static ThisThread,
        function: FunctionId,
        data: &CallbackData,
        registers: &Pushed,
    ) {
        let layer = if function.domain() == super::domain::DRIVER { Layer::Driver } else { Layer::Runtime };
        let (function_number, correlation) = (function.number(), data.correlation_id);
        let context = context(data);
        match data.site {
            SITE_ENTER => {
                let events = self.watched.events_of(function);
                let entered = Entered { function: function_number, layer, events, correlation, context, registers };
                // SAFETY: the registers of this very call.
                unsafe { host_call::enter(thread, self.agent, &entered) };
            }
            SITE_EXIT => {
                let result = result(data);
                let returned = Returned { function: function_number, layer, correlation, result, context };
                // SAFETY: CUPTI's parameters of this call, which has returned.
                let facts = || unsafe { facts(function, data.function_params, result) };
                host_call::exit(thread, self.agent, &returned, facts);
            }
            _ => self.agent.count_unexpected(),
        }
    }
}

// A record holds the parameters of any call, and no more.
const _: () = assert!(PARAMETER_WORDS * 8 == MOST_PARAMETER_BYTES);

/// Reads what a call was about.
///
/// # Safety
/// `params` is null or points at the parameters of the function, which has returned with `result`.
unsafe fn facts(function: FunctionId, params: *const c_void, result: i32) -> Facts {
    let at = params.cast::<u8>();
    let role = role_of(function);
    let wait = match role {
        Some(HostCallRole::Wait { kind, .. }) => kind as u32,
        _ => 0,
    };
    let mut facts = Facts { wait, ..Facts::default() };
    // CUPTI 13.0 gives none of a call without parameters, such as cudaDeviceSynchronize.
    if at.is_null() {
        return facts;
    }
    let size = function.parameter_bytes();
    // SAFETY: the caller promises that `params`, which is not null here, points at the function's parameters, which are
    // so long; the words have room for `MOST_PARAMETER_BYTES`.
    unsafe { at.copy_to_nonoverlapping(facts.parameters.as_mut_ptr().cast(), size) };
    if let Some(role) = role {
        // SAFETY: the caller promises that the function has returned and that these are its parameters; it has this
        // role.
        unsafe { of_role(role, at, result == 0, &mut facts) };
    }
    facts
}

/// # Safety
/// `at` points at the parameters of a call with this role, which has returned.
unsafe fn of_role(role: HostCallRole, at: *const u8, succeeded: bool, facts: &mut Facts) {
    // SAFETY: the caller promises that `at` points at the parameters of a call with this role, which are at the offsets
    // of its layout.
    let stream_of = |it: InStream| unsafe { Stream { handle: read(at, it.at), per_thread: it.per_thread } };
    // SAFETY: as above. Where the call stored what it made, if it succeeded: the program gave it the address.
    let stored = |parameter: usize, word: usize| unsafe {
        let pointer: *const u64 = read(at, parameter);
        (succeeded && !pointer.is_null()).then(|| read::<u64>(pointer.cast(), word * 8))
    };
    // SAFETY: as above.
    let word = |offset: usize| unsafe { read::<u64>(at, offset) };
    match role {
        HostCallRole::Wait { kind: WaitKind::Event, .. } => facts.event = word(0),
        HostCallRole::Wait { stream, .. } => facts.stream = stream.map(stream_of),
        HostCallRole::Record { event, stream, flags } => {
            // SAFETY: as above.
            let is_external = flags.is_some_and(|it| unsafe { read::<u32>(at, it) } & EVENT_RECORD_EXTERNAL != 0);
            facts.event = word(event);
            facts.stream = stream.filter(|_| !is_external).map(stream_of);
        }
        HostCallRole::CreateStream { flags, priority } => {
            let handle = stored(0, 0);
            // SAFETY: as above.
            let flags = flags.map_or(0, |it| unsafe { read::<u32>(at, it) });
            // SAFETY: as above.
            let priority = priority.map_or(0, |it| unsafe { read::<i32>(at, it) });
            facts.stream = handle.map(|it| Stream { handle: it as usize, per_thread: false });
            facts.handle = handle;
            let mode = if flags & STREAM_NON_BLOCKING == 0 { StreamMode::Blocking } else { StreamMode::NonBlocking };
            facts.created = Some(Created { priority, mode });
        }
        // It is gone: CUPTI must not be asked about it.
        HostCallRole::DestroyStream => facts.handle = succeeded.then(|| word(0)),
        HostCallRole::Alloc { kind, stream } => {
            facts.stream = stream.map(stream_of);
            let is_async = stream.is_some();
            facts.memory = CallMemory { kind: kind as u32, address: stored(0, 0), bytes: word(8), is_async };
        }
        HostCallRole::AllocPitch => {
            let (row, rows) = (stored(8, 0).unwrap_or_else(|| word(16)), word(24));
            facts.memory = CallMemory::of_device(stored(0, 0), row.saturating_mul(rows));
        }
        HostCallRole::AllocPitched => {
            let row = stored(0, 1).unwrap_or_else(|| word(8));
            facts.memory = CallMemory::of_device(stored(0, 0), row.saturating_mul(word(16)).saturating_mul(word(24)));
        }
        HostCallRole::Claim { kind } => {
            let address = succeeded.then(|| word(0));
            facts.memory = CallMemory { kind: kind as u32, address, bytes: word(8), is_async: false };
        }
        HostCallRole::Free { kind, stream } => {
            facts.stream = stream.map(stream_of);
            let is_async = stream.is_some();
            facts.memory = CallMemory { kind: kind as u32, address: Some(word(0)), bytes: 0, is_async };
        }
    }
}
