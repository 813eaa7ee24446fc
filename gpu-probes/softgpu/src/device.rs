//! What is on the devices: contexts, streams, modules, events and memory, each behind its handle.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use crate::abi::{Handle, ModuleResourceData, Status, error, memory_kind, overhead};
use crate::activity;
use crate::callback;
use crate::devices;
use crate::faults::explain;
use crate::forks;
use crate::graph::Capture;
use crate::kernel::{Function, Image};
use crate::stream::{Mark, Role, Stream, spawn};

/// Total memory of the device; allocations beyond it fail.
pub(crate) const TOTAL_MEMORY: usize = 8 << 30;

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

pub(crate) static CONTEXTS: Registry<Context> = Registry::new();
pub(crate) static STREAMS: Registry<Stream> = Registry::new();
pub(crate) static MODULES: Registry<Module> = Registry::new();
pub(crate) static FUNCTIONS: Registry<Function> = Registry::new();
pub(crate) static EVENTS: Registry<Event> = Registry::new();
pub(crate) static MEMORY: Memory = Memory {
    device: Mutex::new(BTreeMap::new()),
    pinned: Mutex::new(BTreeMap::new()),
    registered: Mutex::new(BTreeMap::new()),
    created: Mutex::new(BTreeMap::new()),
    reserved: Mutex::new(BTreeMap::new()),
    mapped: Mutex::new(BTreeMap::new()),
    managed: Mutex::new(BTreeMap::new()),
};

/// Bits that every handle has, so that it looks like an address.
pub(crate) const HANDLES: Handle = 0x5000_0000_0000;
static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(1);
const FIRST_CONTEXT: u32 = 1;
static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(FIRST_CONTEXT);
static NEXT_STREAM: AtomicU32 = AtomicU32::new(FIRST_STREAM);
static NEXT_GRAPH: AtomicU32 = AtomicU32::new(1);
static NEXT_EVENT: AtomicU32 = AtomicU32::new(1);
/// By device.
static PRIMARIES: [Mutex<Primary>; devices::MOST] =
    [const { Mutex::new(Primary { handle: 0, users: 0 }) }; devices::MOST];
static DRIVER: Driver = Driver { state: Mutex::new(InitState::Not), changed: Condvar::new() };

/// A thread's own default streams.
type StreamsByContext = HashMap<u32, (Handle, Arc<Stream>)>;

thread_local! {
    // These have no destructor, and leak a little: functions for `atexit` make calls after the main thread's ran.
    static CURRENT: RefCell<ManuallyDrop<Vec<Handle>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
    static PER_THREAD: RefCell<ManuallyDrop<StreamsByContext>> = RefCell::default();
}

/// Objects by handle. Handles are never reused, so a stale one is an error rather than another
/// object.
pub(crate) struct Registry<T> {
    items: Mutex<BTreeMap<Handle, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { items: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn insert(&self, item: T) -> Handle {
        self.insert_shared(Arc::new(item))
    }

    pub(crate) fn insert_shared(&self, item: Arc<T>) -> Handle {
        let handle = HANDLES | NEXT_HANDLE.fetch_add(1, Ordering::Relaxed) << 4;
        self.lock().insert(handle, item);
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.lock().get(&handle).cloned()
    }

    /// Returns the object, or the driver's error for an invalid handle.
    pub(crate) fn find(&self, handle: Handle) -> Result<Arc<T>, i32> {
        self.get(handle).ok_or(error::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, i32> {
        self.lock().remove(&handle).ok_or(error::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, Arc<T>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A context.
pub(crate) struct Context {
    pub(crate) uid: u32,
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) legacy: Arc<Stream>,
}

/// A loaded image.
pub(crate) struct Module {
    /// CUPTI's number of it.
    id: u32,
    pub(crate) image: Image,
    /// Handles of functions that were looked up, by name.
    functions: Mutex<HashMap<CString, Handle>>,
    globals: Mutex<HashMap<String, usize>>,
}

/// A CUDA event.
pub(crate) struct Event {
    pub(crate) id: u32,
    pub(crate) timing: bool,
    pub(crate) recorded: Mutex<Recorded>,
}

/// What was submitted before an event.
#[derive(Clone, Default)]
pub(crate) struct Recorded {
    pub(crate) mark: Option<Mark>,
    pub(crate) time: Arc<Mutex<Option<u64>>>,
    pub(crate) capture: Option<Arc<Capture>>,
}

struct Primary {
    handle: Handle,
    users: u32,
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

pub(crate) fn require_initialized() -> Status {
    if forks::has_begun() { Ok(()) } else { Err(error::NOT_INITIALIZED) }
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

pub(crate) fn next_graph_id() -> u32 {
    NEXT_GRAPH.fetch_add(1, Ordering::Relaxed)
}

/// Creates a context without making it current.
pub(crate) fn create_context(device: i32) -> Handle {
    start_event_thread();
    let uid = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
    let legacy = Stream::new(LEGACY_STREAM, (uid, device), Role::Legacy, 0, 0);
    STREAMS.insert_shared(legacy.clone());
    CONTEXTS.insert(Context { uid, device, legacy })
}

pub(crate) fn has_contexts() -> bool {
    NEXT_CONTEXT.load(Ordering::Relaxed) > FIRST_CONTEXT
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

fn primary(device: i32) -> MutexGuard<'static, Primary> {
    PRIMARIES[device as usize % devices::MOST].lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn retain_primary(device: i32) -> Handle {
    let mut primary = primary(device);
    primary.users += 1;
    if primary.handle == 0 {
        primary.handle = create_context(device);
        announce_context(primary.handle);
    }
    primary.handle
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
    let role = if flags & NON_BLOCKING != 0 { Role::NonBlocking } else { Role::Blocking };
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
            let stream = Stream::new(id, (context.uid, context.device), Role::Blocking, 0, 0);
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
    pub(crate) fn recorded(&self) -> Recorded {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn record(&self, stream: &Arc<Stream>) {
        let mut recorded = Recorded { capture: stream.capture(), ..Recorded::default() };
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
    let parsed = activity::with_overhead(overhead::MODULE_LOADING, || unsafe { Image::read(image.cast()) })?;
    let (cubin_size, module_id) = (parsed.size(), NEXT_HANDLE.load(Ordering::Relaxed) as u32);
    let handle =
        MODULES.insert(Module { id: module_id, image: parsed, functions: Mutex::default(), globals: Mutex::default() });
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

/// Device memory (host memory here) and pinned host memory.
pub(crate) struct Memory {
    device: Mutex<BTreeMap<usize, usize>>,
    pinned: Mutex<BTreeMap<usize, usize>>,
    /// Memory of the program that it has registered.
    registered: Mutex<BTreeMap<usize, usize>>,
    /// Sizes of memory without an address, by handle.
    created: Mutex<BTreeMap<usize, usize>>,
    /// Reserved addresses, and those of them where memory is mapped.
    reserved: Mutex<BTreeMap<usize, usize>>,
    mapped: Mutex<BTreeMap<usize, usize>>,
    /// Allocations in `device` that the host uses too.
    managed: Mutex<BTreeMap<usize, usize>>,
}

impl Memory {
    /// Allocates `size` bytes of zeroed device memory.
    pub(crate) fn allocate(&self, size: usize) -> Result<usize, i32> {
        if size == 0 {
            return Err(error::INVALID_VALUE);
        }
        if self.used().saturating_add(size) > TOTAL_MEMORY {
            return Err(error::OUT_OF_MEMORY);
        }
        insert(&self.device, size)
    }

    /// Allocates managed memory, which the host uses too.
    pub(crate) fn allocate_managed(&self, size: usize) -> Result<usize, i32> {
        let address = self.allocate(size)?;
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
        Ok(address)
    }

    /// Returns address and size of each managed allocation.
    pub(crate) fn managed_allocations(&self) -> Vec<(usize, usize)> {
        let managed = self.managed.lock().unwrap_or_else(PoisonError::into_inner);
        managed.iter().map(|(address, size)| (*address, *size)).collect()
    }

    pub(crate) fn free(&self, address: usize) -> Status {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        if address == 0 { Ok(()) } else { remove(&self.device, address) }
    }

    pub(crate) fn allocate_pinned(&self, size: usize) -> Result<usize, i32> {
        insert(&self.pinned, size)
    }

    pub(crate) fn free_pinned(&self, address: usize) -> Status {
        remove(&self.pinned, address)
    }

    /// Registers memory of the program.
    pub(crate) fn register(&self, address: usize, size: usize) -> Status {
        if address == 0 || size == 0 {
            return Err(error::INVALID_VALUE);
        }
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        match registered.insert(address, size) {
            None => Ok(()),
            Some(before) => {
                registered.insert(address, before);
                Err(error::HOST_MEMORY_ALREADY_REGISTERED)
            }
        }
    }

    pub(crate) fn unregister(&self, address: usize) -> Status {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.remove(&address).map(drop).ok_or(error::HOST_MEMORY_NOT_REGISTERED)
    }

    /// Creates memory without an address; returns its handle. Where it is mapped, the reserved addresses are the
    /// memory.
    pub(crate) fn create(&self, size: usize) -> Result<usize, i32> {
        if size == 0 {
            return Err(error::INVALID_VALUE);
        }
        if self.used().saturating_add(size) > TOTAL_MEMORY {
            return Err(error::OUT_OF_MEMORY);
        }
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = created.keys().next_back().map_or(1, |it| it + 1);
        created.insert(handle, size);
        Ok(handle)
    }

    pub(crate) fn release(&self, handle: usize) -> Status {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.remove(&handle).map(drop).ok_or(error::INVALID_VALUE)
    }

    pub(crate) fn reserve(&self, size: usize) -> Result<usize, i32> {
        insert(&self.reserved, size)
    }

    pub(crate) fn unreserve(&self, address: usize, size: usize) -> Status {
        match around(&self.reserved, address) {
            Some(range) if range == (address, size) => remove(&self.reserved, address),
            _ => Err(error::INVALID_VALUE),
        }
    }

    pub(crate) fn map(&self, address: usize, size: usize, handle: usize) -> Status {
        let created = self.created.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).copied();
        let is_reserved = around(&self.reserved, address).is_some_and(|(base, all)| address - base + size <= all);
        if created.is_none_or(|it| it < size) || !is_reserved {
            return Err(error::INVALID_VALUE);
        }
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
        Ok(())
    }

    pub(crate) fn unmap(&self, address: usize, size: usize) -> Status {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        match mapped.get(&address) {
            Some(it) if *it == size => {
                mapped.remove(&address);
                Ok(())
            }
            _ => Err(error::INVALID_VALUE),
        }
    }

    /// Returns the base and size of the allocation that holds an address.
    pub(crate) fn range(&self, address: usize) -> Option<(usize, usize)> {
        around(&self.device, address).or_else(|| around(&self.mapped, address))
    }

    /// Checks that the whole range lies in one allocation.
    pub(crate) fn check(&self, address: usize, bytes: usize) -> Status {
        let inside = self.range(address).is_some_and(|(base, size)| bytes <= size - (address - base));
        if inside || bytes == 0 { Ok(()) } else { Err(error::INVALID_VALUE) }
    }

    /// Checks a range that the device writes; pinned host memory is allowed.
    pub(crate) fn check_writable(&self, address: usize, bytes: usize) -> Status {
        let pinned = around(&self.pinned, address);
        if pinned.is_some_and(|(base, size)| bytes <= size - (address - base)) {
            return Ok(());
        }
        self.check(address, bytes)
    }

    /// Returns the `CUpti_ActivityMemoryKind` of an address.
    pub(crate) fn kind(&self, address: usize) -> u8 {
        if around(&self.managed, address).is_some() {
            memory_kind::MANAGED
        } else if self.range(address).is_some() {
            memory_kind::DEVICE
        } else if around(&self.pinned, address).is_some() {
            memory_kind::PINNED
        } else {
            memory_kind::PAGEABLE
        }
    }

    pub(crate) fn used(&self) -> usize {
        let sum = |it: &Mutex<BTreeMap<usize, usize>>| -> usize {
            it.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
        };
        sum(&self.device) + sum(&self.created)
    }
}

fn layout(size: usize) -> Result<std::alloc::Layout, i32> {
    std::alloc::Layout::from_size_align(size.max(1), 256).map_err(|_| error::OUT_OF_MEMORY)
}

fn insert(map: &Mutex<BTreeMap<usize, usize>>, size: usize) -> Result<usize, i32> {
    // SAFETY: the layout is not of size 0.
    let address = unsafe { std::alloc::alloc_zeroed(layout(size)?) } as usize;
    if address == 0 {
        return Err(error::OUT_OF_MEMORY);
    }
    map.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
    Ok(address)
}

fn remove(map: &Mutex<BTreeMap<usize, usize>>, address: usize) -> Status {
    let size = map.lock().unwrap_or_else(PoisonError::into_inner).remove(&address).ok_or(error::INVALID_VALUE)?;
    // SAFETY: `insert` made it with this layout, and it left the map just now.
    unsafe { std::alloc::dealloc(address as *mut u8, layout(size)?) };
    Ok(())
}

fn around(map: &Mutex<BTreeMap<usize, usize>>, address: usize) -> Option<(usize, usize)> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    let (&base, &size) = map.range(..=address).next_back()?;
    (address - base < size).then_some((base, size))
}
