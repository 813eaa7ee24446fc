//! The backend that patches the machine code of kernels, by NVIDIA's Sanitizer API. It excludes CUPTI in a process.
//!
//! ```text
//! module is loaded ─▶ tracer: which of its kernels? ─▶ patches: the module's code calls them     (waits)
//! launch ─▶ the kernel's words for its patches, or none; agent::launch, where keys name launches
//! worker ─▶ copies blocks, as of twins
//! ```

mod arguments;
mod clock;
mod functions;
mod launches;
mod locate;
mod patching;
mod places;
mod times;

use crate::cupti::driver::{Driver, find_driver};
use crate::cupti::{Handle, kind_of_stream, layer_of, twins};
use functions::{
    API_ENTER, API_EXIT, CONTEXT_CREATED, CONTEXT_DESTROYING, CallData, ContextData, Functions, GRAPH_LAUNCH_BEGIN,
    GRAPH_LAUNCH_END, GraphLaunchData, LAUNCH_BEGIN, LAUNCH_END, LAUNCH_GRAPH, LAUNCH_GRAPH_PTSZ, LaunchData,
    MODULE_LOADED, MODULE_UNLOADING, ModuleData, NODE_IS_KERNEL, NODE_LAUNCH_BEGIN, NodeLaunchData, STREAM_DESTROYING,
    SUCCESS, StreamData, domain,
};
use patching::Patching;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use xputrace_agent::device::ImageCode;
use xputrace_agent::{
    Agent, ArmRefusal, Backend, Context, Flushing, KernelCode, Layer, Library, Order, Stream, StreamKind,
};
use xputrace_agent::{this_thread, untraced};
use xputrace_unwind::{Pushed, with_registers};
use xputrace_wire::device::{ComputeCapabilities, CopyExtent, ImageOutcome};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Gpu, GpuLimits};
use xputrace_wire::stored::ReadableMemory;

/// What is watched.
const WATCHED: [(u32, u32); 11] = [
    (domain::RESOURCE, CONTEXT_CREATED),
    (domain::RESOURCE, CONTEXT_DESTROYING),
    (domain::RESOURCE, MODULE_LOADED),
    (domain::RESOURCE, MODULE_UNLOADING),
    (domain::LAUNCH, LAUNCH_BEGIN),
    (domain::LAUNCH, LAUNCH_END),
    (domain::GRAPHS, NODE_LAUNCH_BEGIN),
    (domain::GRAPHS, GRAPH_LAUNCH_BEGIN),
    (domain::GRAPHS, GRAPH_LAUNCH_END),
    (domain::DRIVER_API, LAUNCH_GRAPH),
    (domain::DRIVER_API, LAUNCH_GRAPH_PTSZ),
];

/// Likewise, for what some handlers read: parameters of kernels, and the time.
fn watched_for_handlers(agent: &Agent) -> impl Iterator<Item = (u32, u32)> {
    let reads_arguments = agent.wants(demand::ARGUMENTS);
    let calls = twins::arguments::launches().map(|it| (domain::DRIVER_API, it));
    let streams = [(domain::RESOURCE, STREAM_DESTROYING)].into_iter().filter(move |_| reads_arguments);
    let reads_any = reads_arguments || reads_clock(agent);
    calls.filter(move |_| reads_any).chain(streams)
}

fn reads_clock(agent: &Agent) -> bool {
    agent.device_region().is_some_and(|it| it.place_of_clock_offset().is_some())
}

/// The Sanitizer API in this process, for one run.
#[derive(Debug)]
pub struct SanitizerBackend {
    functions: Functions,
    driver: Driver,
    subscription: AtomicPtr<c_void>,
    patching: Patching,
}

/// A backend that patches for an agent.
struct Run {
    agent: &'static Agent,
    backend: &'static SanitizerBackend,
}

/// The run that callbacks are for; never freed.
static RUN: AtomicPtr<Run> = AtomicPtr::new(null_mut());

impl SanitizerBackend {
    /// Finds the API.
    ///
    /// # Errors
    /// Why it can't be had, and what to install.
    pub fn find() -> Result<Self, String> {
        SanitizerBackend::new(locate::find()?, find_driver())
    }

    /// Looks for its library, without loading it.
    ///
    /// # Errors
    /// As [`SanitizerBackend::find`].
    pub fn is_there() -> Result<(), String> {
        locate::files().map(drop)
    }

    /// Uses the functions that `find` returns for their symbols.
    ///
    /// # Errors
    /// One is missing.
    ///
    /// # Safety
    /// `find` returns null or the API's function of this name, or one of the same signature that behaves like it; they
    /// stay loaded.
    pub unsafe fn of_symbols(find: impl Fn(&CStr) -> *mut c_void, driver: Driver) -> Result<Self, String> {
        // SAFETY: the caller promises that `find` returns null, the API's functions, or what has their signatures.
        let functions = unsafe { Functions::from_symbols(find) };
        SanitizerBackend::new(functions.map_err(|it| it.to_string_lossy().into_owned())?, driver)
    }

    fn new(functions: Functions, driver: Driver) -> Result<Self, String> {
        Ok(SanitizerBackend {
            functions,
            driver,
            subscription: AtomicPtr::new(null_mut()),
            patching: Patching::new().map_err(|error| format!("memory for the kernels that are launched: {error}"))?,
        })
    }

    fn unsubscribe(&self) {
        let subscription = self.subscription.swap(null_mut(), Ordering::AcqRel);
        if !subscription.is_null() {
            // SAFETY: our own subscription.
            unsafe { (self.functions.unsubscribe)(subscription) };
        }
    }

    fn refusal(&self, attempted: &str, result: u32) -> ArmRefusal {
        ArmRefusal { result, text: format!("{attempted}: {}", self.functions.explain(result)) }
    }
}

with_registers! {
    /// Calls [`on_callback`].
    fn callback(user_data: *mut c_void, of: u32, id: u32, data: *const c_void) => on_callback
}

unsafe extern "C" fn on_callback(
    _user_data: *mut c_void,
    of: u32,
    id: u32,
    data: *const c_void,
    registers: *const Pushed,
) {
    // SAFETY: null, or a run, never freed; and what `callback` pushed.
    let (Some(run), Some(registers)) = (unsafe { (RUN.load(Ordering::Acquire).as_ref(), registers.as_ref()) }) else {
        return;
    };
    // A forked child has neither the memory nor the threads; and what we load is not the program's.
    if data.is_null() || this_thread().is_untraced() || !run.agent.is_ours() {
        return;
    }
    // SAFETY: the API's data for this callback, which is valid while it runs.
    run.agent.guarded(|| untraced(|| unsafe { run.on_callback(of, id, data, registers) }));
}

impl Run {
    /// # Safety
    /// `data` is the API's for this callback, and valid while it runs; the registers are those at the API's call.
    unsafe fn on_callback(&self, of: u32, id: u32, data: *const c_void, registers: &Pushed) {
        let Run { agent, backend } = *self;
        // SAFETY: the caller's promise: each callback has the structure that the API's headers say.
        unsafe {
            match (of, id) {
                (domain::RESOURCE, CONTEXT_CREATED) => {
                    let ContextData { context, device } = &*data.cast();
                    let is_timed = reads_clock(agent);
                    backend.patching.context_created(*context, *device as u32, is_timed);
                    if is_timed {
                        let context = *context as usize;
                        agent.work_later(move || backend.patching.begin_clock(&backend.driver, context));
                    }
                }
                (domain::RESOURCE, CONTEXT_DESTROYING) => {
                    let ContextData { context, .. } = &*data.cast();
                    backend.patching.context_ends(&backend.functions, agent, *context);
                }
                (domain::RESOURCE, MODULE_LOADED) => {
                    let module = &*data.cast::<ModuleData>();
                    agent.count_image(match backend.patching.patch(&backend.functions, agent, module) {
                        Ok(()) => {
                            // Soon: nothing of the program's waits for it.
                            agent.work_later(|| {
                                backend.patching.set_clocks(&backend.functions, &backend.driver, agent);
                            });
                            ImageOutcome::Twinned
                        }
                        Err(outcome) => outcome,
                    });
                }
                (domain::RESOURCE, MODULE_UNLOADING) => {
                    backend.patching.module_ends((*data.cast::<ModuleData>()).module);
                }
                (domain::LAUNCH, LAUNCH_BEGIN) => {
                    let launch = &*data.cast::<LaunchData>();
                    backend.patching.launched(&backend.functions, agent, launch, registers);
                }
                (domain::LAUNCH, LAUNCH_END) => launches::end(agent),
                (domain::GRAPHS, NODE_LAUNCH_BEGIN) => {
                    let node = data.cast::<NodeLaunchData>();
                    if (*node).node_type == NODE_IS_KERNEL {
                        backend.patching.node_launched(&backend.functions, agent, &*node);
                    }
                }
                (domain::GRAPHS, GRAPH_LAUNCH_BEGIN) => {
                    let launch = &*data.cast::<GraphLaunchData>();
                    if launch.is_upload == 0 && agent.runs_twins_now() {
                        let context = backend.patching.context_of(launch.context);
                        launches::begin_graph(agent, launch, context, registers);
                    }
                }
                (domain::GRAPHS, GRAPH_LAUNCH_END) => launches::end_graph(agent),
                (domain::RESOURCE, STREAM_DESTROYING) => {
                    let StreamData { context, stream_handle, .. } = *data.cast();
                    backend.patching.stream_ends(context, stream_handle);
                }
                (domain::DRIVER_API, _) => self.on_call(id, &*data.cast::<CallData>()),
                _ => {}
            }
        }
    }

    /// Handles a call that launches.
    ///
    /// # Safety
    /// `call` is the API's in a callback about this call, which the calling thread makes.
    unsafe fn on_call(&self, id: u32, call: &CallData) {
        let patching = &self.backend.patching;
        let is_of_graph = matches!(id, LAUNCH_GRAPH | LAUNCH_GRAPH_PTSZ);
        match call.site {
            API_ENTER => {
                patching.wait_for_clocks();
                if !is_of_graph {
                    // SAFETY: the caller promises that `call` is the API's for this call, which the calling thread
                    // makes: so are its parameters.
                    unsafe { arguments::begin_call(id, call.parameters) };
                }
            }
            API_EXIT if is_of_graph => {
                // SAFETY: the caller promises that `call` is the API's for this call, whose result is null or can be
                // read at its exit.
                let has_failed = unsafe { call.result.as_ref() }.is_some_and(|it| *it != 0);
                let launched = launches::take_last_graph();
                launched.filter(|_| has_failed).into_iter().for_each(|it| patching.graph_failed(it));
            }
            _ if is_of_graph => {}
            _ => arguments::end_call(),
        }
    }
}

impl Library for SanitizerBackend {
    fn version(&self) -> u32 {
        1
    }

    fn capabilities(&self) -> u64 {
        // Scripts that need more are refused before they run; what device handlers ask of CUPTI for the software GPU isn't
        // needed here.
        u64::MAX
    }

    fn layer_of(&self, file_name: &[u8]) -> Option<Layer> {
        if file_name.starts_with(b"libsanitizer") { Some(Layer::Tracing) } else { layer_of(file_name) }
    }

    fn each_gpu(&self, each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        untraced(|| self.driver.devices.each(each))
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        self.patching.device_of(context.handle)
    }

    fn stream_of(&self, _context: Context, _stream: Stream) -> Option<u32> {
        None
    }

    fn kind_of_stream(&self, stream: Stream) -> StreamKind {
        kind_of_stream(stream)
    }
}

impl Backend for SanitizerBackend {
    fn start(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        let run: &'static Run = Box::leak(Box::new(Run { agent, backend: self }));
        RUN.store(std::ptr::from_ref(run).cast_mut(), Ordering::Release);
        let mut subscription: Handle = null_mut();
        // SAFETY: a live handle, and a function that is never unloaded.
        let answer = unsafe { (self.functions.subscribe)(&mut subscription, callback, null_mut()) };
        if answer != SUCCESS {
            return Err(self.refusal("sanitizerSubscribe", answer));
        }
        self.subscription.store(subscription, Ordering::Release);
        for (domain, id) in WATCHED.into_iter().chain(watched_for_handlers(agent)) {
            // SAFETY: our own subscription.
            let answer = unsafe { (self.functions.enable_callback)(1, subscription, domain, id) };
            if answer != SUCCESS {
                return Err(self.refusal(&format!("sanitizerEnableCallback for {domain}, {id}"), answer));
            }
        }
        Ok(())
    }

    fn switch(&'static self, _agent: &'static Agent, _from: &Order, _to: &Order) -> Result<(), ArmRefusal> {
        Ok(())
    }

    fn abandon(&self, _agent: &'static Agent) {
        self.unsubscribe();
    }

    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool {
        // At the program's exit the worker has read them: the driver may be gone.
        if how != Flushing::AtExit {
            untraced(|| self.patching.read_times(&self.functions, &self.driver, agent));
        }
        if how != Flushing::Regular {
            self.patching.give_up_times(agent);
        }
        true
    }

    fn tend(&'static self, agent: &'static Agent) {
        if self.patching.is_reading_due() {
            untraced(|| self.patching.read_times(&self.functions, &self.driver, agent));
        }
    }

    fn stop_activities(&self, _agent: &'static Agent) {}

    fn leave(&'static self, _agent: &'static Agent) -> Option<&'static str> {
        self.unsubscribe();
        Some("kernels that were patched stay so: a call at each place, which returns at once")
    }

    fn kernel_code(&'static self) -> Option<&'static dyn KernelCode> {
        Some(self)
    }
}

impl KernelCode for SanitizerBackend {
    fn code_in(&self, image: u64, memory: &mut dyn ReadableMemory) -> Result<ImageCode, ImageOutcome> {
        twins::find_code(image, self.compute_capabilities().least, memory)
    }

    fn stop_twins(&self) {
        self.patching.stop();
    }

    fn compute_capabilities(&self) -> ComputeCapabilities {
        self.driver.devices.compute_capabilities()
    }

    fn copy_blocks(&'static self, agent: &'static Agent, extent: CopyExtent) {
        self.patching.copy_blocks(&self.functions, &self.driver, agent, extent);
    }

    fn leave_blocks(&'static self, agent: &'static Agent, disables: bool) {
        self.patching.leave_blocks(&self.functions, &self.driver, agent, disables);
    }
}
