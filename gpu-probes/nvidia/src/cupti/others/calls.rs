//! CUPTI's functions as other users in the program call them.
//!
//! Without an armed run each does what CUPTI's own does. With one, `--on-conflict` says what happens
//! to a call that claims what we use. A caller is known by the library that contains its return
//! address.

use super::other::{DOMAINS, MOST_IDS, OTHER, OURS};
use super::redirect::{Redirected, redirected};
use super::scoped;
use crate::cupti::run::{Run, current_run};
use crate::cupti::{
    ATTRIBUTE_ALL_SYNCHRONIZATIONS, ATTRIBUTE_ALLOCATION_SOURCE, ATTRIBUTE_DEVICE_GRAPHS, ATTRIBUTE_EVENT_TIMESTAMPS,
    ATTRIBUTE_LATENCY_TIMESTAMPS, ATTRIBUTE_LAUNCH_ATTRIBUTES, ATTRIBUTE_THREAD_ID_TYPE, ATTRIBUTE_TIMESTAMP_CALLBACK,
    CallbackFunction, CompleteFunction, CuptiResult, ERROR_MULTIPLE_SUBSCRIBERS, ERROR_NOT_SUPPORTED, FLUSH_FORCED,
    Handle, RequestFunction, SUCCESS, SubscriberParameters, TimestampFunction, domain, entry,
};
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use xputrace_agent::Conflict;
use xputrace_agent::Inside;
use xputrace_agent::external;
use xputrace_agent::this_thread;

/// A function that is redirected.
pub(super) struct RedirectedFunction {
    pub(super) name: &'static CStr,
    /// Where its callers arrive.
    pub(super) address: *const (),
    /// Returns CUPTI's own.
    pub(super) real: fn(&Real) -> Option<*const c_void>,
}

// SAFETY: the addresses are those of functions.
unsafe impl Sync for RedirectedFunction {}

/// Defines the functions: CUPTI's name and parameters, and the register of the parameter after the
/// last, in which the entry passes the return address on to the function in [`handlers`].
macro_rules! redirected {
    ($($name:ident = $symbol:literal ($($argument:ty),*), $register:literal;)*) => {
        /// CUPTI's own functions; a missing one is `None`.
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Real {
            $($name: Option<unsafe extern "C" fn($($argument),*) -> CuptiResult>,)*
        }

        impl Real {
            /// Fills the table.
            ///
            /// # Safety
            /// `find` returns the addresses of CUPTI's functions by their names; they stay loaded.
            pub(super) unsafe fn of(find: impl Fn(&CStr) -> Option<u64>) -> Self {
                Real { $($name: {
                    let address = find($symbol).unwrap_or_default() as *mut c_void;
                    // SAFETY: the caller promises the address of CUPTI's function of this name; 0 becomes `None`.
                    unsafe {
                        std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($argument),*) -> CuptiResult>>(
                            address,
                        )
                    }
                },)* }
            }
        }

        mod entries {
            $(
                #[unsafe(naked)]
                pub(super) unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        concat!("mov ", $register, ", [rsp]"),
                        "jmp {}",
                        sym super::handlers::$name
                    )
                }
            )*
        }

        /// Every redirected function.
        pub(super) static REDIRECTED: &[RedirectedFunction] = &[$(RedirectedFunction {
            name: $symbol,
            address: entries::$name as *const (),
            real: |it| it.$name.map(|it| it as *const c_void),
        }),*];
    };
}

redirected! {
    subscribe = c"cuptiSubscribe" (*mut Handle, Option<CallbackFunction>, *mut c_void), "rcx";
    subscribe_v2 = c"cuptiSubscribe_v2" (*mut Handle, Option<CallbackFunction>, *mut c_void, *mut SubscriberParameters), "r8";
    unsubscribe = c"cuptiUnsubscribe" (Handle), "rsi";
    enable_callback = c"cuptiEnableCallback" (u32, Handle, u32, u32), "r8";
    enable_domain = c"cuptiEnableDomain" (u32, Handle, u32), "rcx";
    enable_all_domains = c"cuptiEnableAllDomains" (u32, Handle), "rdx";
    callback_state = c"cuptiGetCallbackState" (*mut u32, Handle, u32, u32), "r8";
    register = c"cuptiActivityRegisterCallbacks" (Option<RequestFunction>, Option<CompleteFunction>), "rdx";
    register_timestamp = c"cuptiActivityRegisterTimestampCallback" (Option<TimestampFunction>), "rsi";
    enable = c"cuptiActivityEnable" (u32), "rsi";
    disable = c"cuptiActivityDisable" (u32), "rsi";
    enable_context = c"cuptiActivityEnableContext" (Handle, u32), "rdx";
    disable_context = c"cuptiActivityDisableContext" (Handle, u32), "rdx";
    enable_and_dump = c"cuptiActivityEnableAndDump" (u32), "rsi";
    flush_all = c"cuptiActivityFlushAll" (u32), "rsi";
    flush = c"cuptiActivityFlush" (Handle, u32, u32), "rcx";
    set_attribute = c"cuptiActivitySetAttribute" (u32, *mut usize, *mut c_void), "rcx";
    get_attribute = c"cuptiActivityGetAttribute" (u32, *mut usize, *mut c_void), "rcx";
    set_attribute_v2 = c"cuptiActivitySetAttribute_v2" (Handle, u32, *mut usize, *mut c_void), "r8";
    get_attribute_v2 = c"cuptiActivityGetAttribute_v2" (Handle, u32, *mut usize, *mut c_void), "r8";
    finalize = c"cuptiFinalize" (), "rdi";
    next_record = c"cuptiActivityGetNextRecord" (*mut u8, usize, *mut *mut u8), "rcx";
    dropped = c"cuptiActivityGetNumDroppedRecords" (Handle, u32, *mut usize), "rcx";
    timestamp = c"cuptiGetTimestamp" (*mut u64), "rsi";
    set_thread_id_type = c"cuptiSetThreadIdType" (u32), "rsi";
    get_thread_id_type = c"cuptiGetThreadIdType" (*mut u32), "rsi";
    flush_period = c"cuptiActivityFlushPeriod" (u32), "rsi";
    push_external = c"cuptiActivityPushExternalCorrelationId" (u32, u64), "rdx";
    pop_external = c"cuptiActivityPopExternalCorrelationId" (u32, *mut u64), "rdx";
    push_external_v2 = c"cuptiActivityPushExternalCorrelationId_v2" (Handle, u32, u64), "rcx";
    pop_external_v2 = c"cuptiActivityPopExternalCorrelationId_v2" (Handle, u32, *mut u64), "rcx";
    enable_driver_api = c"cuptiActivityEnableDriverApi" (u32, u8), "rdx";
    enable_runtime_api = c"cuptiActivityEnableRuntimeApi" (u32, u8), "rdx";
    latency_timestamps = c"cuptiActivityEnableLatencyTimestamps" (u8), "rsi";
    launch_attributes = c"cuptiActivityEnableLaunchAttributes" (u8), "rsi";
    device_graphs = c"cuptiActivityEnableDeviceGraph" (u8), "rsi";
    allocation_source = c"cuptiActivityEnableAllocationSource" (u8), "rsi";
    all_synchronizations = c"cuptiActivityEnableAllSyncRecords" (u8), "rsi";
    event_timestamps = c"cuptiActivityEnableCudaEventDeviceTimestamps" (u8), "rsi";
}

/// A call, and what it meets.
struct RedirectedCall {
    library: &'static Redirected,
    /// The armed run, unless the call is CUPTI's own or ours.
    run: Option<&'static Run>,
    /// Keeps the run's memory.
    _inside: Option<Inside<'static>>,
    caller: u64,
}

/// What becomes of a call that claims what the run uses.
enum Verdict {
    /// There is no run that uses it, or it has ended for this: it is CUPTI's to answer.
    Pass,
    /// Both use CUPTI.
    Share(&'static Run),
    Refuse,
}

impl RedirectedCall {
    /// `None` if the function was never redirected.
    fn from(caller: u64) -> Option<RedirectedCall> {
        let library = redirected()?;
        let is_internal = library.is_internal(caller);
        let run = current_run().filter(|it| !is_internal && it.agent.is_ours() && it.agent.is_recording());
        let inside = run.and_then(|it| it.agent.enter(this_thread()));
        Some(RedirectedCall { library, run: run.filter(|_| inside.is_some()), _inside: inside, caller })
    }

    fn is_internal(&self) -> bool {
        self.library.is_internal(self.caller)
    }

    /// Notes another user, and returns true, where subscribers share CUPTI: nothing of ours is in its way then.
    fn note_if_scoped(&self) -> bool {
        let is_scoped = scoped::is_used() && !self.is_internal();
        if is_scoped {
            OTHER.note();
        }
        is_scoped
    }

    /// Decides about a call that claims something.
    fn claim(&self, what: Claim) -> Verdict {
        let Some(run) = self.run else {
            if !self.is_internal() {
                OTHER.note();
            }
            return Verdict::Pass;
        };
        match run.agent.on_conflict() {
            Conflict::Keep if what.is_used_by(run) => {
                let _ = guarded(|| run.agent.kept_from(&holder(self.caller)));
                return Verdict::Refuse;
            }
            Conflict::Fail if what.is_used_by(run) => {
                OTHER.note();
                let _ = guarded(|| run.backend.give_up(run.agent, &holder(self.caller)));
            }
            Conflict::Yield => {
                OTHER.note();
                return Verdict::Share(run);
            }
            Conflict::Keep | Conflict::Fail => OTHER.note(),
        }
        Verdict::Pass
    }

    /// As [`RedirectedCall::claim`], for records; if the verdict is to share, the run has yielded them when this returns.
    fn claim_records(&self) -> (Verdict, Option<Busy>) {
        let verdict = self.claim(Claim::Records);
        let busy = match verdict {
            Verdict::Share(run) if run.backend.wants_records(run.agent) => Some(self.yielded_by(run)),
            _ => None,
        };
        (verdict, busy)
    }

    /// Makes a run yield.
    fn yielded_by(&self, run: &'static Run) -> Busy {
        let busy = Busy::new(run);
        let _ = guarded(|| run.backend.begin_yield(run.agent, &holder(self.caller)));
        busy
    }

    /// The run that has the records.
    fn holder_of_records(&self) -> Option<&'static Run> {
        self.run.filter(|it| it.backend.has_records(it.agent))
    }

    fn has_flushed(&self) {
        if !self.is_internal() {
            OTHER.flushed();
            self.gave_up();
        }
    }

    /// Whether the run may come back, after a call that gave something up.
    fn gave_up(&self) {
        if let Some(run) = self.run.filter(|it| it.backend.is_yielding()) {
            run.agent.wake();
        }
    }
}

/// What a call claims.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    Subscription,
    Records,
    Everything,
}

impl Claim {
    fn is_used_by(self, run: &Run) -> bool {
        let (subscription, records) = (run.backend.is_subscribed(), run.backend.wants_records(run.agent));
        match self {
            Claim::Subscription => subscription,
            Claim::Records => records,
            Claim::Everything => subscription || records,
        }
    }
}

/// Keeps the run from coming back while a call of the other user is under way.
struct Busy(&'static Run);

impl Busy {
    fn new(run: &'static Run) -> Self {
        run.backend.set_busy(true);
        Busy(run)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.backend.set_busy(false);
    }
}

/// Runs a step of ours. A panic must not reach the caller, whose call then goes to CUPTI.
fn guarded<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).ok()
}

/// Returns the file name of the library that contains an address.
fn holder(caller: u64) -> String {
    let path = xputrace_unwind::find_loaded(|it| it.holds(caller).then(|| it.path.to_vec())).unwrap_or_default();
    let name = path.rsplit(|it| *it == b'/').next().filter(|it| !it.is_empty());
    match name {
        Some(name) => String::from_utf8_lossy(name).into_owned(),
        None => std::fs::read_link("/proc/self/exe")
            .ok()
            .and_then(|it| Some(it.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "the program".into()),
    }
}

const ALL_DOMAINS: std::ops::Range<u32> = 1..DOMAINS as u32;

/// The functions behind the entries. Each is CUPTI's of that name, with the caller as one more
/// argument.
mod handlers {
    use super::*;

    /// Calls CUPTI's own function.
    macro_rules! real {
        ($call:ident . $name:ident ($($argument:expr),*)) => {
            match $call.library.real.$name {
                // SAFETY: the caller's arguments, as it passed them, or checked ones.
                Some(real) => unsafe { real($($argument),*) },
                None => ERROR_NOT_SUPPORTED,
            }
        };
    }

    /// Finds out what a call meets.
    macro_rules! call {
        ($caller:ident) => {
            match RedirectedCall::from($caller) {
                Some(call) => call,
                None => return ERROR_NOT_SUPPORTED,
            }
        };
    }

    pub(super) unsafe extern "C" fn subscribe(
        subscriber: *mut Handle,
        callback: Option<CallbackFunction>,
        user_data: *mut c_void,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        if call.note_if_scoped() {
            // SAFETY: the caller's arguments.
            return unsafe { scoped::subscribe(subscriber, callback, user_data) };
        }
        // SAFETY: the caller's pointer.
        match unsafe { share_subscription(&call, subscriber, callback, user_data) } {
            Some(answer) => answer,
            None => real!(call.subscribe(subscriber, callback, user_data)),
        }
    }

    pub(super) unsafe extern "C" fn subscribe_v2(
        subscriber: *mut Handle,
        callback: Option<CallbackFunction>,
        user_data: *mut c_void,
        parameters: *mut SubscriberParameters,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        if call.note_if_scoped() {
            // SAFETY: the caller's arguments.
            return unsafe { scoped::subscribe_v2(subscriber, callback, user_data, parameters) };
        }
        if current_run().is_some_and(|it| it.backend.has_subscriber_functions()) {
            return hand_everything_over(
                &call,
                || real!(call.subscribe_v2(subscriber, callback, user_data, parameters)),
                || {
                    // SAFETY: CUPTI has just written there.
                    unsafe { subscriber.read() }
                },
            );
        }
        // SAFETY: as above.
        match unsafe { share_subscription(&call, subscriber, callback, user_data) } {
            Some(answer) => answer,
            None => real!(call.subscribe_v2(subscriber, callback, user_data, parameters)),
        }
    }

    /// Leaves CUPTI to a caller whose further calls name its subscription (13.2 and later), which it therefore can't
    /// share with us: until it unsubscribes.
    fn hand_everything_over(
        call: &RedirectedCall,
        subscribe: impl FnOnce() -> CuptiResult,
        handle: impl FnOnce() -> Handle,
    ) -> CuptiResult {
        let shared = match call.claim(Claim::Everything) {
            Verdict::Pass => None,
            Verdict::Refuse => return ERROR_MULTIPLE_SUBSCRIBERS,
            Verdict::Share(run) => Some((run, call.yielded_by(run))),
        };
        if let (Some((run, _)), false) = (&shared, OTHER.is_subscribed()) {
            let _ = guarded(|| run.backend.unsubscribe());
            run.agent.gap_is_blind();
        }
        let answer = subscribe();
        if answer == SUCCESS && shared.is_some() {
            OTHER.set_alone(Some(handle()));
        }
        drop(shared);
        call.gave_up();
        answer
    }

    /// Gives the caller our subscription, whose callback calls its own; `None` leaves the answer to CUPTI.
    ///
    /// # Safety
    /// `subscriber` is null or points to a handle.
    unsafe fn share_subscription(
        call: &RedirectedCall,
        subscriber: *mut Handle,
        callback: Option<CallbackFunction>,
        user_data: *mut c_void,
    ) -> Option<CuptiResult> {
        let run = match call.claim(Claim::Subscription) {
            Verdict::Pass if call.is_internal() => return None,
            Verdict::Pass => None,
            Verdict::Refuse => return Some(ERROR_MULTIPLE_SUBSCRIBERS),
            Verdict::Share(run) => Some(run),
        };
        // A second one beside it, or nonsense, is refused by CUPTI.
        let function = callback.filter(|_| !OTHER.is_subscribed() && !subscriber.is_null())?;
        let handle = match run {
            Some(run) => guarded(|| run.backend.shared_subscription(run.agent)).flatten()?,
            None => OTHER.subscription()?,
        };
        OTHER.subscribe(handle, function, user_data);
        // SAFETY: the caller promises that `subscriber`, which is not null here, points to a handle.
        unsafe { subscriber.write(handle) };
        Some(SUCCESS)
    }

    pub(super) unsafe extern "C" fn unsubscribe(subscriber: Handle, caller: u64) -> CuptiResult {
        let call = call!(caller);
        if call.note_if_scoped() {
            return scoped::unsubscribe(subscriber);
        }
        if OTHER.alone() == Some(subscriber) {
            let answer = real!(call.unsubscribe(subscriber));
            OTHER.set_alone(None);
            call.gave_up();
            return answer;
        }
        if call.is_internal() || !OTHER.shares(subscriber) {
            return real!(call.unsubscribe(subscriber));
        }
        OTHER.unsubscribe();
        if !current_run().is_some_and(|it| it.backend.is_subscribed()) {
            OTHER.ids.drain(|_, _| ());
            return real!(call.unsubscribe(subscriber));
        }
        OTHER.ids.drain(|domain, id| {
            if !OURS.has(domain, id) {
                real!(call.enable_callback(0, subscriber, domain, id));
            }
        });
        SUCCESS
    }

    pub(super) unsafe extern "C" fn enable_callback(
        enable: u32,
        subscriber: Handle,
        domain: u32,
        id: u32,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let is_shared = !call.is_internal() && OTHER.shares(subscriber);
        if is_shared {
            OTHER.ids.set(domain, id, enable != 0);
        }
        match enable {
            0 if is_shared && OURS.has(domain, id) => SUCCESS,
            _ => real!(call.enable_callback(enable, subscriber, domain, id)),
        }
    }

    pub(super) unsafe extern "C" fn enable_domain(
        enable: u32,
        subscriber: Handle,
        domain: u32,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        if call.is_internal() || !OTHER.shares(subscriber) {
            return real!(call.enable_domain(enable, subscriber, domain));
        }
        switch_domain(&call, enable, subscriber, domain)
    }

    /// Switches all ids of a domain for the other user, and leaves ours on.
    fn switch_domain(call: &RedirectedCall, enable: u32, subscriber: Handle, domain: u32) -> CuptiResult {
        OTHER.ids.set_domain(domain, enable != 0);
        if enable != 0 || OURS.is_empty_in(domain) {
            return real!(call.enable_domain(enable, subscriber, domain));
        }
        // Ids are consecutive, from 1 on.
        for id in (1..MOST_IDS).filter(|it| !OURS.has(domain, *it)) {
            if real!(call.enable_callback(0, subscriber, domain, id)) != SUCCESS {
                break;
            }
        }
        SUCCESS
    }

    pub(super) unsafe extern "C" fn enable_all_domains(enable: u32, subscriber: Handle, caller: u64) -> CuptiResult {
        let call = call!(caller);
        if call.is_internal() || !OTHER.shares(subscriber) {
            return real!(call.enable_all_domains(enable, subscriber));
        }
        if enable != 0 {
            ALL_DOMAINS.for_each(|it| OTHER.ids.set_domain(it, true));
            return real!(call.enable_all_domains(enable, subscriber));
        }
        for domain in ALL_DOMAINS {
            switch_domain(&call, 0, subscriber, domain);
        }
        SUCCESS
    }

    pub(super) unsafe extern "C" fn callback_state(
        enable: *mut u32,
        subscriber: Handle,
        domain: u32,
        id: u32,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let answer = real!(call.callback_state(enable, subscriber, domain, id));
        if answer == SUCCESS && !call.is_internal() && OTHER.shares(subscriber) {
            // SAFETY: CUPTI has just written there.
            unsafe { enable.write(u32::from(OTHER.ids.has(domain, id))) };
        }
        answer
    }

    pub(super) unsafe extern "C" fn register(
        request: Option<RequestFunction>,
        complete: Option<CompleteFunction>,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let (Some(request), Some(complete)) = (request, complete) else {
            return real!(call.register(request, complete));
        };
        if call.is_internal() {
            return real!(call.register(Some(request), Some(complete)));
        }
        if call.note_if_scoped() {
            return scoped::register(request, complete);
        }
        let had_records = OTHER.gets_records();
        // Kinds that it enabled before count from now on.
        let (verdict, _busy) = match OTHER.kinds().next() {
            Some(_) => call.claim_records(),
            None => (call.claim(Claim::Records), None),
        };
        if let Verdict::Refuse = verdict {
            return ERROR_MULTIPLE_SUBSCRIBERS;
        }
        OTHER.register(request, complete);
        // Ours return each buffer to whoever it came from.
        let answer = real!(call.register(Some(entry::request_buffer), Some(entry::complete_buffer)));
        if !had_records && OTHER.gets_records() {
            OTHER.kinds().for_each(|it| _ = real!(call.enable(it)));
        }
        answer
    }

    pub(super) unsafe extern "C" fn register_timestamp(
        function: Option<TimestampFunction>,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        if call.note_if_scoped() {
            return scoped::register_timestamp(function);
        }
        // Our own records are to be out before the clock changes.
        let (verdict, _busy) = call.claim_records();
        if let Verdict::Refuse = verdict {
            return ERROR_MULTIPLE_SUBSCRIBERS;
        }
        let answer = real!(call.register_timestamp(function));
        if let (SUCCESS, Some(function)) = (answer, function) {
            let _ = guarded(|| crate::cupti::others::clock::CLOCK.changed(function));
        }
        answer
    }

    /// Enables a kind of records for the other user by `enable`.
    fn enable_kind(call: &RedirectedCall, kind: u32, enable: impl FnOnce() -> CuptiResult) -> CuptiResult {
        if call.is_internal() {
            return enable();
        }
        if call.run.is_some() && !OTHER.is_registered() && call.holder_of_records().is_some() {
            // It cannot get any record yet: nothing to yield.
            return match call.claim(Claim::Records) {
                Verdict::Refuse => ERROR_MULTIPLE_SUBSCRIBERS,
                Verdict::Pass => enable(),
                Verdict::Share(_) => {
                    OTHER.set_kind(kind, true);
                    SUCCESS
                }
            };
        }
        let (verdict, _busy) = call.claim_records();
        if let Verdict::Refuse = verdict {
            return ERROR_MULTIPLE_SUBSCRIBERS;
        }
        OTHER.set_kind(kind, true);
        let answer = enable();
        if answer != SUCCESS {
            OTHER.set_kind(kind, false);
        }
        answer
    }

    fn disable_kind(call: &RedirectedCall, kind: u32, disable: impl FnOnce() -> CuptiResult) -> CuptiResult {
        if call.is_internal() {
            return disable();
        }
        OTHER.set_kind(kind, false);
        // What it never enabled may be ours.
        let answer = if call.holder_of_records().is_some() { SUCCESS } else { disable() };
        call.gave_up();
        answer
    }

    /// Defines functions that enable or disable a kind of records, some of them in one context.
    macro_rules! of_kind {
        ($(fn $name:ident($($context:ident)?) $how:ident, $scoped:ident;)*) => {$(
            pub(super) unsafe extern "C" fn $name($($context: Handle,)? kind: u32, caller: u64) -> CuptiResult {
                let call = call!(caller);
                if call.note_if_scoped() {
                    // A subscriber has no kinds of one context.
                    return scoped::$scoped(kind);
                }
                $how(&call, kind, || real!(call.$name($($context,)? kind)))
            }
        )*};
    }

    of_kind! {
        fn enable() enable_kind, enable;
        fn enable_and_dump() enable_kind, enable_and_dump;
        fn enable_context(context) enable_kind, enable;
        fn disable() disable_kind, disable;
        fn disable_context(context) disable_kind, disable;
    }

    pub(super) unsafe extern "C" fn flush_all(flag: u32, caller: u64) -> CuptiResult {
        let call = call!(caller);
        flush_by(&call, flag, |flag| real!(call.flush_all(flag)))
    }

    pub(super) unsafe extern "C" fn flush(context: Handle, stream: u32, flag: u32, caller: u64) -> CuptiResult {
        let call = call!(caller);
        flush_by(&call, flag, |flag| real!(call.flush(context, stream, flag)))
    }

    /// A forced flush takes records of kernels that still run, and they never come again: not ours.
    fn flush_by(call: &RedirectedCall, flag: u32, flush: impl FnOnce(u32) -> CuptiResult) -> CuptiResult {
        if call.note_if_scoped() {
            return flush(flag);
        }
        let answer = flush(if call.holder_of_records().is_some() { flag & !FLUSH_FORCED } else { flag });
        call.has_flushed();
        answer
    }

    pub(super) unsafe extern "C" fn set_attribute(
        attribute: u32,
        size: *mut usize,
        value: *mut c_void,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        if let Some(run) = call.holder_of_records()
            // SAFETY: the caller's pointers.
            && unsafe { run.backend.keep_attribute(attribute, size, value.cast()) }
        {
            return SUCCESS;
        }
        if call.note_if_scoped() {
            return scoped::set_attribute(attribute, size, value);
        }
        real!(call.set_attribute(attribute, size, value))
    }

    /// A clock of a subscriber's own can only be set while nobody records: so we don't, for a moment.
    pub(super) unsafe extern "C" fn set_attribute_v2(
        subscriber: Handle,
        attribute: u32,
        size: *mut usize,
        value: *mut c_void,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let Some(run) = call.holder_of_records().filter(|_| call.note_if_scoped()) else {
            return real!(call.set_attribute_v2(subscriber, attribute, size, value));
        };
        // SAFETY: the caller's pointers.
        if unsafe { run.backend.keep_attribute(attribute, size, value.cast()) } {
            return SUCCESS;
        }
        let is_clock = attribute == ATTRIBUTE_TIMESTAMP_CALLBACK && run.agent.on_conflict() != Conflict::Keep;
        let busy = is_clock.then(|| call.yielded_by(run));
        let answer = real!(call.set_attribute_v2(subscriber, attribute, size, value));
        if busy.is_some() {
            // It needs the records for this call alone.
            OTHER.note_use();
        }
        drop(busy);
        call.gave_up();
        answer
    }

    pub(super) unsafe extern "C" fn get_attribute_v2(
        subscriber: Handle,
        attribute: u32,
        size: *mut usize,
        value: *mut c_void,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let answer = real!(call.get_attribute_v2(subscriber, attribute, size, value));
        // SAFETY: CUPTI has just written there.
        unsafe { show_kept(&call, attribute, value, answer) };
        answer
    }

    /// Shows the caller its own value of an attribute that we have changed.
    ///
    /// # Safety
    /// If the answer is success, CUPTI has written the attribute's value.
    unsafe fn show_kept(call: &RedirectedCall, attribute: u32, value: *mut c_void, answer: CuptiResult) {
        if let (Some(run), SUCCESS) = (call.holder_of_records(), answer)
            && let Some(kept) = run.backend.kept_attribute(attribute)
        {
            // SAFETY: the caller's promise: a byte.
            unsafe { value.cast::<u8>().write(kept) };
        }
    }

    pub(super) unsafe extern "C" fn get_attribute(
        attribute: u32,
        size: *mut usize,
        value: *mut c_void,
        caller: u64,
    ) -> CuptiResult {
        let call = call!(caller);
        let answer = match call.note_if_scoped() {
            true => scoped::get_attribute(attribute, size, value),
            false => real!(call.get_attribute(attribute, size, value)),
        };
        // SAFETY: CUPTI has just written there.
        unsafe { show_kept(&call, attribute, value, answer) };
        answer
    }

    pub(super) unsafe extern "C" fn finalize(caller: u64) -> CuptiResult {
        let call = call!(caller);
        if call.is_internal() {
            return real!(call.finalize());
        }
        if call.note_if_scoped() {
            scoped::forget();
            // It would end our use too, and crash the next to subscribe.
            let is_ours = current_run().is_some_and(|it| it.backend.is_subscribed());
            return if is_ours { SUCCESS } else { real!(call.finalize()) };
        }
        let shared = match call.claim(Claim::Everything) {
            Verdict::Refuse => return ERROR_MULTIPLE_SUBSCRIBERS,
            Verdict::Pass => None,
            Verdict::Share(run) => Some((run, call.yielded_by(run))),
        };
        // Whoever unloads CUPTI gives its subscription up first; it shared ours.
        if let (Some((run, _)), false) = (&shared, OTHER.is_subscribed()) {
            let _ = guarded(|| run.backend.unsubscribe());
        }
        OTHER.forget();
        crate::cupti::others::clock::CLOCK.forget();
        let answer = real!(call.finalize());
        if let Some((run, _)) = shared {
            run.backend.was_finalized(run.agent);
        }
        call.gave_up();
        answer
    }

    /// Defines functions that are CUPTI's own, some only as long as no subscribers share it; and what follows where they succeed.
    macro_rules! unless_scoped {
        ($(fn $name:ident($($argument:ident: $type:ty),*) $({ $scoped:expr })? $(then $then:expr;)?)*) => {$(
            pub(super) unsafe extern "C" fn $name($($argument: $type,)* caller: u64) -> CuptiResult {
                let Some(library) = redirected() else { return ERROR_NOT_SUPPORTED };
                let answer = match library.real.$name {
                    $(_ if scoped::is_used() && !library.is_cuptis(caller) => $scoped,)?
                    // SAFETY: the caller's arguments, as it passed them.
                    Some(real) => unsafe { real($($argument),*) },
                    None => ERROR_NOT_SUPPORTED,
                };
                $(if answer == SUCCESS && !library.is_internal(caller) {
                    $then
                })?
                answer
            }
        )*};
    }

    unless_scoped! {
        fn next_record(buffer: *mut u8, valid: usize, record: *mut *mut u8) { scoped::next_record(buffer, valid, record) }
        fn dropped(context: Handle, stream: u32, dropped: *mut usize) { scoped::dropped(context, stream, dropped) }
        // SAFETY: the caller's pointer.
        fn timestamp(time: *mut u64) { unsafe { scoped::timestamp(time) } }
        fn set_thread_id_type(kind: u32) { scoped::set(ATTRIBUTE_THREAD_ID_TYPE, kind) }
        fn get_thread_id_type(kind: *mut u32) { scoped::get(ATTRIBUTE_THREAD_ID_TYPE, kind) }
        // Records are flushed often while we are there; a subscriber has no period.
        fn flush_period(_milliseconds: u32) { SUCCESS }
        fn push_external(kind: u32, id: u64) { scoped::push_external(kind, id) } then external::push(kind, id);
        fn pop_external(kind: u32, last: *mut u64) { scoped::pop_external(kind, last) } then external::pop(kind);
        // Those of a tool that has a subscription of its own.
        fn push_external_v2(_subscriber: Handle, kind: u32, id: u64) then external::push(kind, id);
        fn pop_external_v2(_subscriber: Handle, kind: u32, last: *mut u64) then external::pop(kind);
        fn enable_driver_api(id: u32, enable: u8) { scoped::enable_driver_api(id, enable) }
        fn enable_runtime_api(id: u32, enable: u8) { scoped::enable_runtime_api(id, enable) }
        fn latency_timestamps(enable: u8) { scoped::set(ATTRIBUTE_LATENCY_TIMESTAMPS, enable) }
        fn launch_attributes(enable: u8) { scoped::set(ATTRIBUTE_LAUNCH_ATTRIBUTES, enable) }
        fn device_graphs(enable: u8) { scoped::set(ATTRIBUTE_DEVICE_GRAPHS, enable) }
        fn allocation_source(enable: u8) { scoped::set(ATTRIBUTE_ALLOCATION_SOURCE, enable) }
        fn all_synchronizations(enable: u8) { scoped::set(ATTRIBUTE_ALL_SYNCHRONIZATIONS, enable) }
        fn event_timestamps(enable: u8) { scoped::set(ATTRIBUTE_EVENT_TIMESTAMPS, enable) }
    }
}

const _: () = assert!(domain::RESOURCE < DOMAINS as u32);
