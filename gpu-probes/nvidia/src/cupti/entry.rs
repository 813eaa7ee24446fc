//! CUPTI's callbacks, the entry points from C. Panics end here and are counted.

use super::delivery::drop_buffer;
use super::leaving::on_other_call;
use super::others::{OTHER, OURS, TWINS, WantedBy};
use super::pool::{Origin, Pool};
use super::run::{POOL, RUN, Run, current_run};
use super::{
    CallbackData, CallbackFunction, CallbackId, GraphData, Handle, ModuleData, RESOURCE_CONTEXT_CREATED,
    RESOURCE_CONTEXT_DESTROYING, RESOURCE_CUDA_STARTED, RESOURCE_EXECUTABLE_CREATED, RESOURCE_MODULE_LOADED,
    RESOURCE_MODULE_UNLOADING, RESOURCE_NODE_CLONED, RESOURCE_NODE_CREATED, RESOURCE_NODE_UPDATED,
    RESOURCE_STREAM_CREATED, ResourceData, SITE_ENTER, domain,
};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use xputrace_agent::resources::{ContextChange, ModuleChange};
use xputrace_agent::{ThisThread, this_thread};
use xputrace_unwind::{Pushed, with_registers};
use xputrace_wire::record::Node;

/// The subscriber's callback.
pub(super) const CALLBACK: CallbackFunction = callback;

with_registers! {
    /// Calls [`on_callback`].
    fn callback(user_data: *mut c_void, domain: u32, id: u32, data: *const CallbackData) => on_callback
}

/// Handles a callback of ours, then calls that of another user who shares the subscription. Its
/// exceptions pass through, as through CUPTI.
unsafe extern "C-unwind" fn on_callback(
    _user_data: *mut c_void,
    domain: u32,
    id: u32,
    data: *const CallbackData,
    registers: *const Pushed,
) {
    let wanted = WantedBy::of(domain, id);
    if wanted.are(&OURS) {
        // SAFETY: CUPTI's data of this call, null or valid while it runs, and what `callback` pushed.
        unsafe { on_ours(domain, id, data, registers) };
    } else {
        // SAFETY: as above.
        unsafe { on_shared(wanted, domain, id, data, registers) };
    }
}

/// Handles a callback that we enabled.
///
/// # Safety
/// `data` is CUPTI's for this callback, null or valid while it runs, `registers` null or those at CUPTI's call.
#[inline(always)]
unsafe fn on_ours(domain: u32, id: u32, data: *const CallbackData, registers: *const Pushed) {
    // SAFETY: a run, never freed; the caller promises that `registers` is null or those at CUPTI's call.
    if let (Some(run), Some(registers)) = unsafe { (RUN.load(Ordering::Acquire).as_ref(), registers.as_ref()) } {
        let thread = this_thread();
        // SAFETY: CUPTI's data of this call, null or valid while it runs.
        run.agent.guarded_on(thread, || unsafe { on_own_callback(run, thread, (domain, id), data, registers) });
    }
}

/// Handles a callback that others want besides us: twins, another user, or nobody by now.
///
/// # Safety
/// As for [`on_ours`].
#[inline(never)]
unsafe fn on_shared(wanted: WantedBy, domain: u32, id: u32, data: *const CallbackData, registers: *const Pushed) {
    let other = OTHER.callback(wanted);
    // SAFETY: CUPTI's data of this call, null or valid while it runs; resources have another structure.
    let is_enter = domain != domain::RESOURCE && unsafe { data.as_ref() }.is_some_and(|it| it.site == SITE_ENTER);
    // Handlers in Linux give a launch its tag where it begins to be recorded.
    // SAFETY: a run, never freed.
    let are_twins_first =
        is_enter && !unsafe { RUN.load(Ordering::Acquire).as_ref() }.is_some_and(|it| it.twins_need_tags);
    let is_for_twins = wanted.has(&TWINS);
    if is_for_twins && are_twins_first {
        // SAFETY: CUPTI's data of this call, valid while it runs.
        unsafe { on_twins_callback(domain, id, data) };
    }
    // Also where there is no other user: it may just have unsubscribed.
    if wanted.has(&OURS) {
        // SAFETY: the caller promises CUPTI's data for this callback, null or valid while it runs, and null or the
        // registers at CUPTI's call.
        unsafe { on_ours(domain, id, data, registers) };
    } else if domain != domain::RESOURCE {
        // SAFETY: CUPTI's data of this call, null or valid while it runs.
        unsafe { on_other_call(data) };
    }
    if is_for_twins && !are_twins_first {
        // SAFETY: CUPTI's data of this call, null or valid while it runs.
        unsafe { on_twins_callback(domain, id, data) };
    }
    if let Some((function, user_data)) = other {
        // SAFETY: what the other user subscribed with, and CUPTI's own arguments.
        unsafe { function(user_data, domain, id, data) };
    }
}

/// Handles a callback that twins depend on: a call's beginning before others do, and its end behind them.
///
/// # Safety
/// `data` is CUPTI's for this callback, null or valid while it runs.
#[inline]
unsafe fn on_twins_callback(domain: u32, id: u32, data: *const CallbackData) {
    if this_thread().is_untraced() {
        return;
    }
    // SAFETY: a run, never freed.
    let run = unsafe { RUN.load(Ordering::Acquire).as_ref() };
    // A forked child has neither the memory nor the threads.
    if let Some(run) = run.filter(|it| it.agent.is_ours()) {
        // SAFETY: the caller promises that `data` is CUPTI's for this callback, null or valid while it runs.
        run.agent.guarded(|| unsafe { run.on_twin_callback(domain, id, data) });
    }
}

/// # Safety
/// `data` is CUPTI's for this callback, null or valid while it runs, `registers` those at CUPTI's call.
#[inline(always)]
unsafe fn on_own_callback(
    run: &'static Run,
    thread: &'static ThisThread,
    (domain, id): CallbackId,
    data: *const CallbackData,
    registers: &Pushed,
) {
    // What the driver loads in a call of ours, it would have loaded in one of the program's.
    let is_of_program = (domain, id) == (domain::RESOURCE, RESOURCE_MODULE_LOADED);
    if run.has_twins && thread.is_untraced() && !is_of_program {
        return;
    }
    if domain == domain::RESOURCE {
        // SAFETY: the caller promises that `data` is CUPTI's for this callback, null or valid while it runs, and the
        // registers at CUPTI's call; this domain has another structure.
        return unsafe { on_resource(run, id, data.cast::<ResourceData>().as_ref(), registers) };
    }
    // SAFETY: the caller promises that `data` is CUPTI's for this callback, null or valid while it runs.
    match unsafe { data.as_ref() } {
        None => run.agent.count_unexpected(),
        // SAFETY: the caller promises that `data` is CUPTI's for this call, and the registers at CUPTI's call.
        Some(data) => unsafe { run.on_call(thread, (domain, id), data, registers) },
    }
}

/// # Safety
/// `data` is CUPTI's for this callback, `registers` those at CUPTI's call.
#[cold]
unsafe fn on_resource(run: &'static Run, id: u32, data: Option<&ResourceData>, registers: &Pushed) {
    // SAFETY: what callbacks about nodes have.
    let graph = || unsafe { data?.descriptor.cast::<GraphData>().as_ref() };
    match id {
        RESOURCE_STREAM_CREATED => run.agent.on_stream_created(),
        RESOURCE_MODULE_LOADED | RESOURCE_MODULE_UNLOADING => {
            // SAFETY: what callbacks about modules have.
            let Some(module) = (unsafe { data.and_then(|it| it.descriptor.cast::<ModuleData>().as_ref()) }) else {
                return;
            };
            let is_loaded = id == RESOURCE_MODULE_LOADED;
            // SAFETY: the caller promises that `data` is CUPTI's for this callback: the module was just loaded.
            let is_own = if is_loaded { unsafe { run.is_own_module(module) } } else { run.was_own_module(module) };
            if is_own {
                return;
            }
            let bytes = is_loaded.then_some(module.cubin_size as u64);
            // SAFETY: the caller promises the registers at CUPTI's call.
            unsafe { run.agent.module_changed(ModuleChange { module: module.id, bytes }, registers) };
        }
        RESOURCE_CUDA_STARTED => run.backend.cuda_started(run.agent),
        RESOURCE_CONTEXT_CREATED | RESOURCE_CONTEXT_DESTROYING => {
            let Some(data) = data else { return };
            let is_created = id == RESOURCE_CONTEXT_CREATED;
            if is_created {
                run.backend.cuda_started(run.agent);
            }
            let change = ContextChange { is_created, ids: run.backend.ids_of_context(data.context, is_created) };
            // SAFETY: the caller promises the registers at CUPTI's call.
            unsafe { run.agent.context_changed(change, registers) };
        }
        RESOURCE_NODE_CREATED => {
            if let Some(node) = graph().and_then(|it| run.backend.id_of_node(it.node)) {
                // SAFETY: the caller promises the registers at CUPTI's call.
                unsafe { run.agent.node_created(node, registers) };
            }
        }
        RESOURCE_EXECUTABLE_CREATED => {
            if let Some(graph) = graph().and_then(|it| run.backend.id_of_graph(it.executable)) {
                // SAFETY: the caller promises the registers at CUPTI's call.
                unsafe { run.agent.node_created(Node::of_graph(graph), registers) };
            }
        }
        RESOURCE_NODE_CLONED | RESOURCE_NODE_UPDATED => {
            let ids = graph().map(|it| [it.node, it.original_node].map(|node| run.backend.id_of_node(node)));
            match ids {
                Some([Some(node), Some(original)]) if id == RESOURCE_NODE_CLONED => {
                    run.agent.node_cloned(node, original);
                }
                Some([Some(model), Some(node)]) => run.agent.node_updated(node, model),
                _ => {}
            }
        }
        _ => {}
    }
}

/// CUPTI requests a buffer: of another user while that gets the records, else of ours.
pub(super) unsafe extern "C" fn request_buffer(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    if let Some(request) = OTHER.request().filter(|_| current_run().is_none_or(|it| !it.backend.has_records(it.agent)))
    {
        // SAFETY: CUPTI's own arguments; and its out-parameter, which the call has filled.
        unsafe {
            request(buffer, size, max_records);
            if !(*buffer).is_null() {
                OTHER.lent(true);
            }
        }
        return;
    }
    // SAFETY: CUPTI's out-parameters.
    unsafe { lend(buffer, size, max_records) };
}

/// # Safety
/// The pointers are CUPTI's out-parameters, which may be written.
unsafe fn lend(buffer: *mut *mut u8, size: *mut usize, max_records: *mut usize) {
    let Some((memory, bytes)) = POOL.get().map(Pool::request) else { return };
    // SAFETY: the caller promises CUPTI's out-parameters, which may be written.
    unsafe {
        *buffer = memory;
        *size = bytes;
        *max_records = 0;
    }
}

/// CUPTI returns a buffer, to whoever provided it.
pub(super) unsafe extern "C" fn complete_buffer(
    context: Handle,
    stream: u32,
    buffer: *mut u8,
    size: usize,
    valid: usize,
) {
    let is_ours = POOL.get().is_some_and(|it| it.origin(buffer) != Origin::Foreign);
    if let Some(complete) = OTHER.complete().filter(|_| !is_ours) {
        OTHER.lent(false);
        // SAFETY: CUPTI's own arguments.
        return unsafe { complete(context, stream, buffer, size, valid) };
    }
    // SAFETY: CUPTI's promise about the buffer.
    unsafe { take_back(buffer, valid) };
}

/// # Safety
/// CUPTI filled `valid` bytes at `buffer` and no longer uses it.
unsafe fn take_back(buffer: *mut u8, valid: usize) {
    let Some(run) = current_run() else { return drop_buffer(buffer) };
    // SAFETY: the caller promises that CUPTI filled `valid` bytes of the buffer and no longer uses it.
    if run.agent.is_ours() && !run.agent.guarded(|| unsafe { run.complete(buffer, valid) }) {
        drop_buffer(buffer);
    }
}

/// CUPTI requests a buffer for our subscription, where subscribers share it.
pub(super) unsafe extern "C" fn request_scoped(
    buffer: *mut *mut u8,
    size: *mut usize,
    max_records: *mut usize,
    _: *const c_void,
) {
    // SAFETY: CUPTI's out-parameters.
    unsafe { lend(buffer, size, max_records) };
}

/// CUPTI returns a buffer of our subscription.
pub(super) unsafe extern "C" fn complete_scoped(buffer: *mut u8, _: usize, valid: usize, _: *const c_void) {
    // SAFETY: CUPTI's promise about the buffer.
    unsafe { take_back(buffer, valid) };
}
