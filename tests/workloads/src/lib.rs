//! Shared by the workloads: a device, four kernels, options, and the account that each prints.
//!
//! The same programs run on a GPU and on the software GPU. The kernels are PTX; if the driver is
//! the software GPU (it exports `softgpu_register_kernel`), they are also registered as host
//! functions.
//!
//! Every workload ends by printing what it launched as one JSON object, for tests to compare a
//! trace with. With `--hold` it first prints `ready PID` and waits for a line on standard input, so
//! that tests can attach to it. With `--until-input`, `server` and `threads` continue until such a
//! line comes.

mod kernels;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use serde_json::{Map, Value, json};

pub use kernels::{FILL, NOP, SCALE, SPIN};

/// Any error ends a workload with its text.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Elements of a buffer.
pub const ELEMENTS: u32 = 1024;
const THREADS: u32 = 128;

/// The device, with the kernels loaded.
#[derive(Clone)]
pub struct Gpu {
    pub context: Arc<CudaContext>,
    pub nop: CudaFunction,
    pub fill: CudaFunction,
    pub scale: CudaFunction,
    pub spin: CudaFunction,
    software: bool,
}

impl Gpu {
    /// Opens the first device.
    ///
    /// # Errors
    /// There is no driver or device, or it refuses the kernels.
    pub fn open() -> Result<Self> {
        // SAFETY: only looks for the library.
        if !unsafe { cudarc::driver::sys::is_culib_present() } {
            return Err(
                "there is no CUDA driver here (libcuda.so.1); to use xputrace's software GPU, put its directory \
                        (`xputrace demo` leaves it in xputrace-demo/softgpu) into LD_LIBRARY_PATH"
                    .into(),
            );
        }
        let context = CudaContext::new(0)?;
        // SAFETY: each buffer of a workload is used by one stream only. Event tracking would add
        // calls to every launch.
        unsafe { context.disable_event_tracking() };
        let software = kernels::register();
        let module = context.load_module(cudarc::nvrtc::Ptx::from_src(kernels::PTX))?;
        Ok(Self {
            nop: module.load_function(NOP)?,
            fill: module.load_function(FILL)?,
            scale: module.load_function(SCALE)?,
            spin: module.load_function(SPIN)?,
            context,
            software,
        })
    }

    /// Creates a stream.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn stream(&self) -> Result<Arc<CudaStream>> {
        Ok(self.context.new_stream()?)
    }

    /// Launches `nop`.
    ///
    /// # Errors
    /// The launch fails.
    #[inline(never)]
    pub fn nop(&self, stream: &Arc<CudaStream>) -> Result<()> {
        // SAFETY: it has no parameters.
        unsafe { stream.launch_builder(&self.nop).launch(config(1, 1)) }?;
        Ok(())
    }

    /// Launches `fill`: every element becomes `value`.
    ///
    /// # Errors
    /// The launch fails.
    #[inline(never)]
    pub fn fill(&self, stream: &Arc<CudaStream>, buffer: &mut CudaSlice<f32>, value: f32) -> Result<()> {
        let (bits, count) = (value.to_bits(), ELEMENTS);
        let mut launch = stream.launch_builder(&self.fill);
        launch.arg(buffer).arg(&bits).arg(&count);
        // SAFETY: the parameters are the kernel's, and `count` elements are there.
        unsafe { launch.launch(config(ELEMENTS / THREADS, THREADS)) }?;
        Ok(())
    }

    /// Launches `scale`: every element is multiplied by `by`.
    ///
    /// # Errors
    /// The launch fails.
    #[inline(never)]
    pub fn scale(&self, stream: &Arc<CudaStream>, buffer: &mut CudaSlice<f32>, by: f32) -> Result<()> {
        let count = ELEMENTS;
        let mut launch = stream.launch_builder(&self.scale);
        launch.arg(buffer).arg(&by).arg(&count);
        // SAFETY: the parameters are the kernel's, and `count` elements are there.
        unsafe { launch.launch(config(ELEMENTS / THREADS, THREADS)) }?;
        Ok(())
    }

    /// Launches `spin`: one thread, busy for this many nanoseconds.
    ///
    /// # Errors
    /// The launch fails.
    #[inline(never)]
    pub fn spin(&self, stream: &Arc<CudaStream>, nanoseconds: u64) -> Result<()> {
        let mut launch = stream.launch_builder(&self.spin);
        launch.arg(&nanoseconds);
        // SAFETY: the parameter is the kernel's.
        unsafe { launch.launch(config(1, 1)) }?;
        Ok(())
    }

    /// Allocates a buffer of [`ELEMENTS`] zeros.
    ///
    /// # Errors
    /// Out of memory.
    pub fn buffer(&self, stream: &Arc<CudaStream>) -> Result<CudaSlice<f32>> {
        Ok(stream.alloc_zeros::<f32>(ELEMENTS as usize)?)
    }
}

/// Returns the configuration for `blocks` blocks of `threads` threads.
pub fn config(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
}

/// The account: what a workload did.
pub struct Account {
    name: &'static str,
    launches: u64,
    kernels: BTreeMap<&'static str, u64>,
    more: Map<String, Value>,
}

impl Account {
    pub fn new(name: &'static str) -> Self {
        Self { name, launches: 0, kernels: BTreeMap::new(), more: Map::new() }
    }

    /// Adds `count` calls that launched one kernel each.
    pub fn launched(&mut self, kernel: &'static str, count: u64) {
        self.launches += count;
        self.ran(kernel, count);
    }

    /// Adds `count` kernels that ran without a call of their own, as in a graph.
    pub fn ran(&mut self, kernel: &'static str, count: u64) {
        *self.kernels.entry(kernel).or_default() += count;
    }

    /// Adds another fact.
    pub fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.more.insert(name.into(), value.into());
    }

    /// Prints it as one line of JSON.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print(self, gpu: &Gpu) -> Result<()> {
        let mut account = json!({
            "workload": self.name,
            "pid": std::process::id(),
            "device": gpu.context.name()?,
            "software": gpu.software,
            "launches": self.launches,
            "kernels": self.kernels,
        });
        if let Some(fields) = account.as_object_mut() {
            fields.extend(self.more);
        }
        writeln!(std::io::stdout(), "{account}")?;
        Ok(())
    }
}

/// Returns the value of `--name=VALUE` on the command line.
///
/// # Errors
/// The value is not a number.
pub fn option(name: &str, default: u64) -> Result<u64> {
    let prefix = format!("--{name}=");
    match std::env::args().find_map(|arg| arg.strip_prefix(&prefix).map(str::to_owned)) {
        Some(text) => text.parse().map_err(|_| format!("read --{name}={text}: expected a number").into()),
        None => Ok(default),
    }
}

/// Whether the command line has `--name`.
pub fn flag(name: &str) -> bool {
    std::env::args().any(|arg| arg.strip_prefix("--") == Some(name))
}

/// Returns a function that says whether to continue: with `--until-input` until a line comes, else
/// always.
pub fn until_input() -> impl Fn() -> bool + Clone + Send {
    let came = Arc::new(AtomicBool::new(false));
    if flag("until-input") {
        let came = came.clone();
        std::thread::spawn(move || {
            let _ = std::io::stdin().lock().read_line(&mut String::new());
            came.store(true, Ordering::Relaxed);
        });
    }
    move || !came.load(Ordering::Relaxed)
}

/// If `--hold` is given, prints `ready PID` and waits for a line.
///
/// # Errors
/// Standard input or output is closed.
pub fn hold_if_asked() -> Result<()> {
    if flag("hold") {
        writeln!(std::io::stdout(), "ready {}", std::process::id())?;
        std::io::stdout().flush()?;
        std::io::stdin().lock().read_line(&mut String::new())?;
    }
    Ok(())
}
