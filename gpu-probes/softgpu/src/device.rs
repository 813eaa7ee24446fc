//! What is on the devices: contexts as they come and go, streams, modules and events, each behind its handle.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use crate::abi::{Handle, ModuleResourceData, Status, error, overhead};
use crate::activity;
use crate::callback;
use crate::capture::Capture;
use crate::contexts::{self, CONTEXTS, Context, current, current_handle, pop_current};
use crate::faults::explain;
use crate::forks;
use crate::kernel::{Function, ModuleImage};
use crate::memory::MEMORY;
use crate::registry::{NEXT_HANDLE, Registry};
use crate::stream::{Mark, Stream, StreamRole};
use crate::threads::spawn;

/// CUPTI's stream ids, as seen on a real GPU: 7 for the default stream, 13 for the first one
/// created.
const LEGACY_STREAM: u32 = 7;
const FIRST_STREAM: u32 = 13;

// `CUpti_CallbackIdResource`.
const CONTEXT_CREATED: u32 = 1;
const CONTEXT_DESTROY_STARTING: u32 = 2;
const STREAM_CREATED: u32 = 3;
const CU_INIT_FINISHED: u32 = 5;
const MODULE_LOADED: u32 = 6;
const MODULE_UNLOAD_STARTING: u32 = 7;

pub(crate) static STREAMS: Registry<Stream> = Registry::new();
pub(crate) static MODULES: Registry<LoadedModule> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();
pub(crate) static EVENTS: Registry<Event> = Registry::new();
static NEXT_STREAM: AtomicU32 = AtomicU32::new(FIRST_STREAM);
static NEXT_EVENT: AtomicU32 = AtomicU32::new(1);
static DRIVER: Driver = Driver { state: Mutex::new(InitState::Not), changed: Condvar::new() };

/// A thread's own default streams.
type StreamsByContext = HashMap<u32, (Handle, Arc<Stream>)>;

thread_local! {
    // It has no destructor, and leaks a little: functions for `atexit` make calls after the main thread's ran.
    static PER_THREAD: RefCell<ManuallyDrop<StreamsByContext>> = RefCell::default();
}

/// A loaded image.
pub(crate) struct LoadedModule {
    /// CUPTI's number of it.
    id: u32,
    pub(crate) image: ModuleImage,
    /// Handles of functions that were looked up, by name.
    functions: Mutex<HashMap<CString, Handle>>,
    globals: Mutex<HashMap<String, usize>>,
}

/// A CUDA event.
pub(crate) struct Event {
    pub(crate) id: u32,
    pub(crate) timing: bool,
    pub(crate) recorded: Mutex<RecordedWork>,
}

/// What was submitted before an event.
#[derive(Clone, Default)]
pub(crate) struct RecordedWork {
    pub(crate) mark: Option<Mark>,
    pub(crate) time: Arc<Mutex<Option<u64>>>,
    pub(crate) capture: Option<Arc<Capture>>,
}

struct Driver {
    state: Mutex<InitState>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InitState {
    Not,
    By(ThreadId),
    Done,
}

/// `cuInit`: runs once and loads the tool named in `CUDA_INJECTION64_PATH`, as the real driver
/// does.
pub(crate) fn initialize() {
    forks::begin();
    let me = std::thread::current().id();
    let mut state = DRIVER.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match *state {
            InitState::Done => return,
            // The tool calls `cuInit` while it is being loaded.
            InitState::By(thread) if thread == me => return,
            InitState::By(_) => state = DRIVER.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            InitState::Not => break,
        }
    }
    *state = InitState::By(me);
    drop(state);
    inject();
    *DRIVER.state.lock().unwrap_or_else(PoisonError::into_inner) = InitState::Done;
    DRIVER.changed.notify_all();
    callback::resource_of(0, CU_INIT_FINISHED, 0, std::ptr::null());
}

/// Whether `cuInit` is done, and not only under way.
pub(crate) fn is_initialized() -> bool {
    *DRIVER.state.lock().unwrap_or_else(PoisonError::into_inner) == InitState::Done
}

fn inject() {
    let Some(path) = std::env::var_os("CUDA_INJECTION64_PATH").filter(|path| !path.is_empty()) else {
        return;
    };
    let Ok(path) = CString::new(std::os::unix::ffi::OsStringExt::into_vec(path)) else {
        return;
    };
    // SAFETY: `path` ends with a NUL.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if library.is_null() {
        explain(|| format!("cuInit: CUDA_INJECTION64_PATH: {} cannot be loaded", path.to_string_lossy()));
        return;
    }
    // SAFETY: `library` is a handle from dlopen.
    let function = unsafe { libc::dlsym(library, c"InitializeInjection".as_ptr()) };
    if function.is_null() {
        explain(|| format!("cuInit: {} has no InitializeInjection", path.to_string_lossy()));
        return;
    }
    // SAFETY: CUDA's contract for a function of that name.
    let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(function) };
    let answer = function();
    explain(|| format!("cuInit: InitializeInjection of {} answered {answer}", path.to_string_lossy()));
}

/// Creates a context without making it current.
pub(crate) fn create_context(device: i32) -> Handle {
    start_event_thread();
    let uid = contexts::next_uid();
    let legacy = Stream::new(LEGACY_STREAM, (uid, device), StreamRole::Legacy, 0, 0);
    STREAMS.insert_shared(legacy.clone());
    CONTEXTS.insert(Context { uid, device, legacy })
}

/// Starts the thread that NVIDIA's driver has for each context. This one only has the name.
fn start_event_thread() {
    let (begins, has_begun) = std::sync::mpsc::channel();
    spawn("cuda-EvtHandlr", move || {
        // A thread has its name before it runs this.
        let _ = begins.send(());
        loop {
            std::thread::park();
        }
    });
    // Fails at once where the system refused the thread.
    let _ = has_begun.recv();
}

pub(crate) fn announce_context(handle: Handle) {
    callback::resource_of(handle, CONTEXT_CREATED, 0, std::ptr::null());
    explain(|| format!("context {handle:#x} created"));
}

/// Destroys a context, after CUPTI has told of that.
pub(crate) fn destroy_context(handle: Handle) -> Status {
    CONTEXTS.find(handle).map_err(|_| error::INVALID_CONTEXT)?;
    callback::resource_of(handle, CONTEXT_DESTROY_STARTING, 0, std::ptr::null());
    let context = CONTEXTS.remove(handle).map_err(|_| error::INVALID_CONTEXT)?;
    if current_handle() == handle {
        pop_current()?;
    }
    streams_of(context.uid).iter().for_each(|stream| stream.close());
    Ok(())
}

pub(crate) fn retain_primary(device: i32) -> Handle {
    let mut primary = contexts::primary(device);
    primary.users += 1;
    if primary.handle == 0 {
        primary.handle = create_context(device);
        announce_context(primary.handle);
    }
    primary.handle
}

/// Finds a stream: 0 is the default stream, 1 the legacy stream, 2 the per-thread stream.
pub(crate) fn stream(handle: Handle, per_thread_default: bool) -> Result<Arc<Stream>, i32> {
    let context = current()?;
    match (handle, per_thread_default) {
        (0, false) | (1, _) => Ok(context.legacy.clone()),
        (0, true) | (2, _) => Ok(per_thread_stream(&context)),
        _ => STREAMS.find(handle),
    }
}

pub(crate) fn create_stream(flags: u32, priority: i32) -> Result<Handle, i32> {
    const NON_BLOCKING: u32 = 1;
    let context = current()?;
    let role = if flags & NON_BLOCKING != 0 { StreamRole::NonBlocking } else { StreamRole::Blocking };
    let id = NEXT_STREAM.fetch_add(1, Ordering::Relaxed);
    let handle = STREAMS.insert_shared(Stream::new(id, (context.uid, context.device), role, flags, priority));
    callback::resource(STREAM_CREATED, handle, std::ptr::null());
    Ok(handle)
}

pub(crate) fn streams_of(context: u32) -> Vec<Arc<Stream>> {
    let mut streams = STREAMS.all();
    streams.retain(|stream| stream.context == context);
    streams
}

/// Waits for all work in a context.
pub(crate) fn synchronize(context: u32) -> Status {
    let streams = streams_of(context);
    if streams.iter().any(|stream| stream.capture().is_some()) {
        return Err(error::STREAM_CAPTURE_UNSUPPORTED);
    }
    streams.iter().map(Stream::mark).for_each(|mark| mark.wait());
    Ok(())
}

fn per_thread_stream(context: &Context) -> Arc<Stream> {
    PER_THREAD.with(|streams| {
        let mut streams = streams.borrow_mut();
        let (_, stream) = streams.entry(context.uid).or_insert_with(|| {
            let id = NEXT_STREAM.fetch_add(1, Ordering::Relaxed);
            let stream = Stream::new(id, (context.uid, context.device), StreamRole::Blocking, 0, 0);
            (STREAMS.insert_shared(stream.clone()), stream)
        });
        stream.clone()
    })
}

pub(crate) fn create_event(flags: u32) -> Handle {
    const DISABLE_TIMING: u32 = 2;
    let id = NEXT_EVENT.fetch_add(1, Ordering::Relaxed);
    EVENTS.insert(Event { id, timing: flags & DISABLE_TIMING == 0, recorded: Mutex::default() })
}

impl Event {
    pub(crate) fn recorded(&self) -> RecordedWork {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn record(&self, stream: &Arc<Stream>) {
        let mut recorded = RecordedWork { capture: stream.capture(), ..RecordedWork::default() };
        if recorded.capture.is_none() {
            let time = recorded.time.clone();
            recorded.mark = Some(stream.submit(&streams_of(stream.context), move || {
                *time.lock().unwrap_or_else(PoisonError::into_inner) = Some(crate::activity::now());
            }));
        }
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = recorded;
    }
}

/// Loads an image.
///
/// # Safety
/// `image` is NUL-terminated PTX, or any other image (only its first bytes are read).
pub(crate) unsafe fn load_module(image: *const c_void) -> Result<Handle, i32> {
    if image.is_null() {
        return Err(error::INVALID_VALUE);
    }
    // SAFETY: the caller's contract.
    let parsed = activity::with_overhead(overhead::MODULE_LOADING, || unsafe { ModuleImage::read(image.cast()) })?;
    let (cubin_size, module_id) = (parsed.size(), NEXT_HANDLE.load(Ordering::Relaxed) as u32);
    let handle = MODULES.insert(LoadedModule {
        id: module_id,
        image: parsed,
        functions: Mutex::default(),
        globals: Mutex::default(),
    });
    let data = ModuleResourceData { module_id, cubin_size, cubin: image.cast::<c_char>() };
    callback::resource(MODULE_LOADED, handle, (&raw const data).cast());
    Ok(handle)
}

/// Unloads an image.
pub(crate) fn unload_module(module: Handle) -> Result<(), i32> {
    let id = MODULES.find(module)?.id;
    let data = ModuleResourceData { module_id: id, cubin_size: 0, cubin: std::ptr::null() };
    callback::resource(MODULE_UNLOAD_STARTING, module, (&raw const data).cast());
    MODULES.remove(module).map(drop)
}

/// Finds a function in a module.
pub(crate) fn function(module: Handle, name: &str) -> Result<Handle, i32> {
    let found = MODULES.find(module)?;
    let parameters = found.image.entry(name).ok_or_else(|| {
        explain(|| format!("the module has no entry {name}"));
        error::NOT_FOUND
    })?;
    let c_name = CString::new(name).map_err(|_| error::INVALID_VALUE)?;
    let mut functions = found.functions.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = *functions.entry(c_name.clone()).or_insert_with(|| {
        let load = || FUNCTIONS.insert(Function { name: c_name, module, parameters });
        activity::with_overhead(overhead::LAZY_FUNCTION_LOADING, load)
    });
    Ok(handle)
}

/// Finds a module's variable and returns its address and size. If PTX does not declare it,
/// allocates `size_if_new` bytes.
pub(crate) fn global(module: Handle, name: &str) -> Result<(usize, usize), i32> {
    let found = MODULES.find(module)?;
    let size = found.image.variable(name).ok_or(error::NOT_FOUND)?;
    let mut globals = found.globals.lock().unwrap_or_else(PoisonError::into_inner);
    let address = match globals.get(name) {
        Some(&address) => address,
        None => {
            let address = MEMORY.allocate(size)?;
            globals.insert(name.into(), address);
            address
        }
    };
    Ok((address, size))
}
