//! The path of every CUDA call: CUPTI callbacks, correlation id, API record.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::abi::{Api, CallbackData, CuResult, Handle, ResourceData, Status, error, kind};
use crate::activity;
use crate::contexts;
use crate::faults::{explain, faults};
use crate::forks::{self, say};
use crate::users::{MOST_USERS, UserId};

pub(crate) const DRIVER: u32 = 1;
pub(crate) const RUNTIME: u32 = 2;
pub(crate) const RESOURCE: u32 = 3;

const ENTER: u32 = 0;
const EXIT: u32 = 1;

const DOMAINS: usize = 7;
const IDS: usize = 1024;

/// `CUpti_CallbackFunc`.
pub(crate) type CallbackFunction = unsafe extern "C" fn(user: *mut c_void, domain: u32, id: u32, data: *const c_void);

static SUBSCRIPTIONS: [Subscription; MOST_USERS] = [const { Subscription::new() }; MOST_USERS];
static ENTERED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How many nested CUDA calls this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// The correlation id that they share; 0 until one is needed.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// What one user of CUPTI subscribed to.
struct Subscription {
    enabled: [[AtomicBool; IDS]; DOMAINS],
    is_taken: AtomicBool,
    function: AtomicPtr<c_void>,
    user_data: AtomicPtr<c_void>,
}

impl Subscription {
    const fn new() -> Self {
        Self {
            enabled: [const { [const { AtomicBool::new(false) }; IDS] }; DOMAINS],
            is_taken: AtomicBool::new(false),
            function: AtomicPtr::new(null_mut()),
            user_data: AtomicPtr::new(null_mut()),
        }
    }

    fn flag(&self, domain: u32, id: u32) -> Option<&AtomicBool> {
        self.enabled.get(domain as usize)?.get(id as usize)
    }

    fn is_enabled(&self, domain: u32, id: u32) -> bool {
        self.flag(domain, id).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }

    fn fire(&self, domain: u32, id: u32, data: *const c_void) {
        let function = self.function.load(Ordering::Acquire);
        if function.is_null() {
            return;
        }
        // SAFETY: only `subscribe` stores it, from a function of this very type.
        let function: CallbackFunction = unsafe { std::mem::transmute(function) };
        ENTERED.fetch_add(1, Ordering::Relaxed);
        IN_CALLBACK.set(true);
        // SAFETY: the subscriber's contract; `data` is the structure that CUPTI documents for the domain.
        unsafe { function(self.user_data.load(Ordering::Acquire), domain, id, data) };
        IN_CALLBACK.set(false);
    }
}

/// A CUDA function and its CUPTI callback id.
#[cfg_attr(not(test), allow(dead_code, reason = "ids, and the runtime's table, are there to be checked"))]
pub(crate) struct ExportedFunction {
    pub(crate) name: &'static str,
    pub(crate) id: u32,
    pub(crate) address: *const (),
}

// SAFETY: the address is that of a function.
unsafe impl Sync for ExportedFunction {}

/// Defines exported CUDA functions, each with its callback id, and a table of them.
///
/// `1, 2 f_ptsz fn f(…) |own| …` defines two: `own` is true in the one whose default stream is the thread's own.
///
/// The body reads its parameters from the callback's structure, after the ENTER callback: a tool
/// can change the call by writing there.
macro_rules! calls {
    ($domain:expr, $table:ident; $(
        $(#[$meta:meta])*
        $id:literal $(, $own_id:literal $own_name:ident)? fn $name:ident $params:tt $(symbol $s:expr =>)? $(|$own:ident|)? $body:block
    )*) => {
        $(
            $crate::callback::call_function! { $domain, $id, $(#[$meta])* $name $params $(symbol $s)? => { $(let $own = false;)? $body } }
            $($crate::callback::call_function! { $domain, $own_id, $own_name $params => { let $own = true; $body } })?
        )*
        #[cfg_attr(not(test), allow(dead_code, reason = "the runtime's is there to be checked"))]
        pub(crate) static $table: &[$crate::callback::ExportedFunction] = &[$(
            $crate::callback::ExportedFunction { name: stringify!($name), id: $id, address: $name as *const () },
            $($crate::callback::ExportedFunction { name: stringify!($own_name), id: $own_id, address: $own_name as *const () },)?
        )*];
    };
}
pub(crate) use calls;

/// Defines one function of [`calls`].
macro_rules! call_function {
    ($domain:expr, $id:literal, $(#[$meta:meta])* $name:ident ( $($p:ident : $t:ty),* $(,)? ) $(symbol $s:expr)? => $body:block) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As CUDA's function of that name: pointers are valid for what it reads and writes.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($p: $t),*) -> i32 {
            #[repr(C)]
            struct Params { $($p: $t),* }
            #[allow(unused_mut, unused_assignments, reason = "only launches have a symbol")]
            let mut symbol: *const std::ffi::c_char = std::ptr::null();
            $( symbol = $s; )?
            let mut params = Params { $($p),* };
            let at = &raw mut params;
            // As CUPTI 13.0: a call without parameters has null.
            let given = if size_of::<Params>() == 0 { std::ptr::null_mut() } else { at.cast() };
            $crate::callback::call($domain, $id, concat!(stringify!($name), "\0"), given, symbol, move || -> $crate::abi::Status {
                // SAFETY: `params` outlives the call; the callbacks that may have written it have returned.
                let Params { $($p),* } = unsafe { std::ptr::read_volatile(at) };
                #[allow(unused_unsafe, clippy::undocumented_unsafe_blocks, reason = "the caller keeps CUDA's contract")]
                unsafe { $body }
            })
        }
    };
}
pub(crate) use call_function;

/// Runs one CUDA call: ENTER callback, body, EXIT callback, API record.
pub(crate) fn call(
    domain: u32,
    id: u32,
    name_with_nul: &'static str,
    params: *mut c_void,
    symbol: *const c_char,
    body: impl FnOnce() -> Status,
) -> CuResult {
    if forks::is_forked_child() {
        explain(|| {
            format!("{}: this process was forked from one that uses CUDA", name_with_nul.trim_end_matches('\0'))
        });
        return error::NOT_INITIALIZED;
    }
    let scope = CallScope::enter();
    let mut slot = 0u64;
    let mut result: CuResult = 0;
    let mut event = CallbackData {
        callback_site: ENTER,
        function_name: name_with_nul.as_ptr().cast(),
        function_params: params,
        function_return_value: (&raw mut result).cast(),
        symbol_name: symbol,
        context: 0,
        context_uid: 0,
        correlation_data: &raw mut slot,
        correlation_id: 0,
    };
    fire_call(domain, id, &mut event);
    let start = activity::enabled(api_kind(domain)).then(|| activity::stamp(UserId::GLOBAL));
    result = run(name_with_nul, body);
    event.callback_site = EXIT;
    fire_call(domain, id, &mut event);
    if let Some(start) = start {
        activity::emit(api_kind(domain), &api_record(domain, id, start, result));
    }
    drop(scope);
    result
}

fn run(name_with_nul: &str, body: impl FnOnce() -> Status) -> CuResult {
    let name = name_with_nul.trim_end_matches('\0');
    if let Some(code) = faults().forced(name) {
        explain(|| format!("{name}: SOFTGPU_FAIL makes it answer {code}"));
        return code;
    }
    match body() {
        Ok(()) => 0,
        Err(code) => {
            if code != error::NOT_READY {
                explain(|| format!("{name}: error {code}"));
            }
            code
        }
    }
}

fn fire_call(domain: u32, id: u32, event: &mut CallbackData) {
    if IN_CALLBACK.get() || !anyone_enabled(domain, id) {
        return;
    }
    if CONTEXTS.load(Ordering::Acquire) == MISSED {
        say(format_args!("kinds were enabled before any callback, in a context that existed: CUPTI 13.0 crashes here"));
        std::process::abort();
    }
    (event.context, event.context_uid) = contexts::current_ids();
    event.correlation_id = correlation();
    for subscription in SUBSCRIPTIONS.iter().filter(|it| it.is_enabled(domain, id)) {
        subscription.fire(domain, id, (&raw const *event).cast());
    }
}

/// Tells the subscribers that enabled this callback about a resource of the current context.
pub(crate) fn resource(id: u32, resource_handle: usize, descriptor: *const c_void) {
    resource_of(contexts::current_handle(), id, resource_handle, descriptor);
}

/// Tells the subscribers that enabled this callback about a resource of a context, or the context itself.
pub(crate) fn resource_of(context: Handle, id: u32, resource_handle: usize, descriptor: *const c_void) {
    if IN_CALLBACK.get() || !anyone_enabled(RESOURCE, id) {
        return;
    }
    let data = ResourceData { context, resource_handle, resource_descriptor: descriptor };
    for subscription in SUBSCRIPTIONS.iter().filter(|it| it.is_enabled(RESOURCE, id)) {
        subscription.fire(RESOURCE, id, (&raw const data).cast());
    }
}

fn anyone_enabled(domain: u32, id: u32) -> bool {
    SUBSCRIPTIONS.iter().any(|it| it.is_enabled(domain, id))
}

/// Returns how often a tool's callback was called so far, for programs that tell what tracing them costs.
#[unsafe(no_mangle)]
pub extern "C" fn softgpu_callbacks_entered() -> u64 {
    ENTERED.load(Ordering::Relaxed)
}

/// Returns the correlation id of this thread's outermost call, assigning it on first use.
pub(crate) fn correlation() -> u32 {
    if CURRENT.get() == 0 {
        CURRENT.set(next_correlation());
    }
    CURRENT.get()
}

/// Returns the next id; after 2³² of them they start over. 0 is none.
fn next_correlation() -> u32 {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU32::new(faults().first_correlation));
    match next.fetch_add(1, Ordering::Relaxed) {
        0 => next.fetch_add(1, Ordering::Relaxed),
        id => id,
    }
}

/// Counts nested calls; the outermost one clears the correlation id.
struct CallScope {
    outer: u32,
}

impl CallScope {
    fn enter() -> Self {
        // A call that a tool makes inside its callback is a call of its own.
        let outer = if IN_CALLBACK.get() { CURRENT.replace(0) } else { CURRENT.get() };
        DEPTH.set(DEPTH.get() + 1);
        Self { outer }
    }
}

impl Drop for CallScope {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if IN_CALLBACK.get() {
            CURRENT.set(self.outer);
        } else if DEPTH.get() == 0 {
            CURRENT.set(0);
        }
    }
}

/// Gives a user its subscription; returns false if it has one.
pub(crate) fn subscribe(user: UserId, function: CallbackFunction, user_data: *mut c_void) -> bool {
    let subscription = &SUBSCRIPTIONS[user.index()];
    if subscription.is_taken.swap(true, Ordering::AcqRel) {
        return false;
    }
    subscription.user_data.store(user_data, Ordering::Release);
    subscription.function.store(function as *mut c_void, Ordering::Release);
    true
}

pub(crate) fn unsubscribe(user: UserId) {
    let subscription = &SUBSCRIPTIONS[user.index()];
    subscription.function.store(null_mut(), Ordering::Release);
    for domain in 0..DOMAINS as u32 {
        enable_domain(user, domain, false);
    }
    subscription.is_taken.store(false, Ordering::Release);
}

pub(crate) fn is_subscribed(user: UserId) -> bool {
    SUBSCRIPTIONS[user.index()].is_taken.load(Ordering::Acquire)
}

/// What this library knows of the contexts that exist, as CUPTI 13.0 does: a callback learns of them as
/// it is enabled. If a kind is enabled first, they stay unknown, and the next launch with a callback reads a
/// null pointer.
static CONTEXTS: AtomicU8 = AtomicU8::new(UNSEEN);
const UNSEEN: u8 = 0;
const KNOWN: u8 = 1;
const MISSED: u8 = 2;

/// Whether `cuptiFinalize` ended the use of several subscribers.
static IS_TORN: AtomicBool = AtomicBool::new(false);

pub(crate) fn tear() {
    IS_TORN.store(true, Ordering::Release);
}

pub(crate) fn crash_if_torn() {
    if IS_TORN.load(Ordering::Acquire) {
        say(format_args!("cuptiFinalize was called while several subscribers shared CUPTI: CUPTI 13.5 crashes here"));
        std::process::abort();
    }
}

fn see_contexts(how: u8) {
    let _ = CONTEXTS.compare_exchange(UNSEEN, how, Ordering::AcqRel, Ordering::Relaxed);
}

/// A kind of activity was enabled.
pub(crate) fn on_kind_enabled() {
    see_contexts(if contexts::has_contexts() { MISSED } else { KNOWN });
}

/// Forgets that contexts were missed; those that are known stay so.
pub(crate) fn reset() {
    UserId::all().for_each(unsubscribe);
    let _ = CONTEXTS.compare_exchange(MISSED, UNSEEN, Ordering::AcqRel, Ordering::Relaxed);
}

/// Returns false if there is no such callback.
pub(crate) fn enable(user: UserId, domain: u32, id: u32, on: bool) -> bool {
    if on {
        see_contexts(KNOWN);
    }
    SUBSCRIPTIONS[user.index()].flag(domain, id).map(|flag| flag.store(on, Ordering::Relaxed)).is_some()
}

/// Returns false if there is no such domain.
pub(crate) fn enable_domain(user: UserId, domain: u32, on: bool) -> bool {
    let Some(flags) = SUBSCRIPTIONS[user.index()].enabled.get(domain as usize) else {
        return false;
    };
    if on {
        see_contexts(KNOWN);
    }
    flags.iter().for_each(|flag| flag.store(on, Ordering::Relaxed));
    true
}

pub(crate) fn is_enabled(user: UserId, domain: u32, id: u32) -> bool {
    SUBSCRIPTIONS[user.index()].is_enabled(domain, id)
}

fn api_kind(domain: u32) -> u32 {
    if domain == RUNTIME { kind::RUNTIME } else { kind::DRIVER }
}

fn api_record(domain: u32, cbid: u32, start: u64, result: CuResult) -> Api {
    Api {
        kind: api_kind(domain),
        cbid,
        start,
        end: activity::stamp(UserId::GLOBAL),
        process_id: std::process::id(),
        thread_id: activity::thread_id(),
        correlation_id: correlation(),
        return_value: result as u32,
    }
}

/// Returns a C string as text, empty for null.
///
/// # Safety
/// `text` is null or ends with a NUL.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: the caller's contract.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}
