//! The driver's functions for code and memory, as the worker calls them: results instead of out-parameters.

use super::super::Handle;
use super::super::driver::{Code, Handles};
use super::super::host_calls::STREAM_NON_BLOCKING;
use super::calls::{ATTRIBUTE_CLUSTER, Extents, Kernel, NodeLayout, Origin, offset};
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

/// `CUresult` other than success; `NOT_FOUND` too where the driver lacks the function.
pub(super) type Failure = u32;

/// `CUDA_ERROR_CONTEXT_IS_DESTROYED`: the program has ended what the call needs, or the run is over.
pub(super) const GONE: Failure = 709;

/// `CUDA_ERROR_INVALID_VALUE`: what the tracer sent does not fit together.
pub(super) const INVALID: Failure = 1;
pub(super) type DriverResult<T> = Result<T, Failure>;

const SUCCESS: u32 = 0;
/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: Failure = 500;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const CAPTURE_MODE_RELAXED: u32 = 2;

/// A kernel as the driver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelHandle {
    /// `CUfunction`, of one context.
    Function(u64),
    /// `CUkernel`, with attributes for each GPU, by its ordinal.
    Kernel(u64, i32),
}

impl KernelHandle {
    pub(super) fn raw(self) -> u64 {
        match self {
            KernelHandle::Function(it) | KernelHandle::Kernel(it, _) => it,
        }
    }
}

/// How many blocks and threads a launch has, as `x y z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GridShape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
}

/// `CUDA_ERROR_NOT_READY`: what was begun in a stream has not ended.
const NOT_READY: u32 = 600;

/// `CU_MEMHOSTREGISTER_PORTABLE` and `CU_MEMHOSTREGISTER_DEVICEMAP` (`cuda.h`).
const IN_ALL_CONTEXTS: u32 = 1;
const MAPPED: u32 = 2;
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`: for another context.
const ALREADY_REGISTERED: u32 = 712;

/// Beyond the highest priority, which the driver takes then (CUDA Driver API, "cuStreamCreateWithPriority").
const MOST_URGENT: i32 = -1000;

/// A kernel's code, as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelCode {
    pub(super) origin: Origin,
    /// `CUmodule` or `CUlibrary`.
    pub(super) code: usize,
    pub(super) symbol: String,
}

/// `CUDA_ERROR_INVALID_VALUE`: there is no such parameter.
const INVALID_VALUE: u32 = 1;
/// More than kernels have: a parameter has a byte at least (CUDA C++ Programming Guide, "Function Parameters": 32,764 bytes).
const MOST_PARAMETERS: usize = 32_764;

/// # Safety
/// `kernel` is alive: a `CUkernel` or a `CUfunction`, of the origin that is given, whose code stays loaded meanwhile.
impl Handles {
    /// Returns which code a kernel is of, a `CUkernel` or a `CUfunction`.
    pub(super) unsafe fn code_of(&self, kernel: u64) -> DriverResult<KernelCode> {
        let (kernel, mut code, mut name) = (kernel as Handle, null_mut(), null());
        // SAFETY: the caller promises that the kernel is alive; live pointers. A function has no library, which the
        // driver says.
        let origin = unsafe {
            if of(self.kernel_library)?(&mut code, kernel) == SUCCESS {
                checked(of(self.kernel_name)?(&mut name, kernel))?;
                Origin::Library
            } else {
                checked(of(self.function_module)?(&mut code, kernel))?;
                checked(of(self.function_name)?(&mut name, kernel))?;
                Origin::Module
            }
        };
        if name.is_null() {
            return Err(NOT_FOUND);
        }
        // SAFETY: the driver's text, which lives as long as the kernel.
        let symbol = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| NOT_FOUND)?.to_owned();
        Ok(KernelCode { origin, code: code as usize, symbol })
    }

    /// Returns offsets and sizes of the parameters of a `CUkernel` or, of a module, a `CUfunction`.
    pub(super) unsafe fn parameters(&self, origin: Origin, kernel: u64) -> DriverResult<Vec<(usize, usize)>> {
        let ask = of(match origin {
            Origin::Library => self.kernel_parameter,
            Origin::Module => self.function_parameter,
        })?;
        let mut all = Vec::new();
        while all.len() < MOST_PARAMETERS {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the caller promises that the kernel is alive; live integers.
            match unsafe { ask(kernel as Handle, all.len(), &mut offset, &mut bytes) } {
                SUCCESS => all.push((offset, bytes)),
                INVALID_VALUE => return Ok(all),
                failure => return Err(failure),
            }
        }
        Err(INVALID_VALUE)
    }
}

fn checked(answer: u32) -> DriverResult<()> {
    if answer == SUCCESS { Ok(()) } else { Err(answer) }
}

fn of<F>(function: Option<F>) -> DriverResult<F> {
    function.ok_or(NOT_FOUND)
}

/// # Safety
/// Handles and device addresses are the driver's, alive, and of the current context where they are of one. Memory of
/// the process has that many bytes until what was begun with it has ended. A launch has the parameters that its kernel
/// has. Code is what the driver can load: text ends with a 0.
impl Code {
    /// Makes a context current on this thread, whose calls disturb no capture.
    pub(crate) unsafe fn enter(&self, context: Handle) -> DriverResult<()> {
        let mut mode = CAPTURE_MODE_RELAXED;
        // SAFETY: the caller promises that the context is alive; a live integer.
        unsafe {
            of(self.exchange_capture_mode)?(&mut mode);
            checked(of(self.set_context)?(context))
        }
    }

    pub(crate) unsafe fn leave(&self) {
        // SAFETY: no context.
        self.set_context.inspect(|it| _ = unsafe { it(null_mut()) });
    }

    pub(super) unsafe fn device(&self) -> DriverResult<i32> {
        let mut device = 0;
        // SAFETY: a live integer.
        checked(unsafe { of(self.context_device)?(&mut device) })?;
        Ok(device)
    }

    /// Returns the context of a stream. Of a green context's, the driver does not tell it.
    pub(super) unsafe fn context_of_stream(&self, stream: Handle) -> DriverResult<Handle> {
        let mut context = null_mut();
        // SAFETY: the caller promises that the stream is alive; a live pointer.
        checked(unsafe { of(self.stream_context)?(stream, &mut context) })?;
        Ok(context)
    }

    /// Loads code; text ends with a 0.
    pub(super) unsafe fn load(&self, code: &[u8]) -> DriverResult<Handle> {
        let mut library = null_mut();
        // SAFETY: the caller promises code that the driver can load: text ends with a 0; no options.
        let answer =
            unsafe { of(self.load_library)?(&mut library, code.as_ptr().cast(), null(), null(), 0, null(), null(), 0) };
        checked(answer)?;
        Ok(library)
    }

    /// Returns a library's kernel.
    pub(super) unsafe fn kernel(&self, library: Handle, name: &CStr) -> DriverResult<u64> {
        let mut kernel = null_mut();
        // SAFETY: the caller promises that the library is alive; a live pointer, and a C string.
        checked(unsafe { of(self.library_kernel)?(&mut kernel, library, name.as_ptr()) })?;
        Ok(kernel as u64)
    }

    /// Returns a module's function.
    pub(super) unsafe fn module_kernel(&self, module: Handle, name: &CStr) -> DriverResult<u64> {
        let mut function = null_mut();
        // SAFETY: the caller promises that the module is alive; a live pointer, and a C string.
        checked(unsafe { of(self.module_function)?(&mut function, module, name.as_ptr()) })?;
        Ok(function as u64)
    }

    /// Returns a kernel's function in the current context.
    pub(super) unsafe fn function(&self, kernel: u64) -> DriverResult<u64> {
        let mut function = null_mut();
        // SAFETY: the caller promises that the kernel is alive; a live pointer.
        checked(unsafe { of(self.kernel_function)?(&mut function, kernel as Handle) })?;
        Ok(function as u64)
    }

    /// Returns address and size of a variable in the current context.
    pub(super) unsafe fn variable(&self, origin: Origin, code: Handle, name: &CStr) -> DriverResult<(u64, usize)> {
        let (mut address, mut bytes) = (0, 0);
        // SAFETY: the caller promises that the module or library is alive; live integers, and a C string.
        unsafe {
            let name = name.as_ptr();
            let answer = match origin {
                Origin::Module => of(self.module_global)?(&mut address, &mut bytes, code, name),
                Origin::Library => match of(self.library_global)?(&mut address, &mut bytes, code, name) {
                    SUCCESS => SUCCESS,
                    _ => of(self.library_managed)?(&mut address, &mut bytes, code, name),
                },
            };
            checked(answer)?;
        }
        Ok((address, bytes))
    }

    pub(super) unsafe fn attribute(&self, kernel: KernelHandle, attribute: u32) -> DriverResult<i32> {
        let mut value = 0;
        // SAFETY: the caller promises that the kernel is alive; a live integer.
        let answer = unsafe {
            match kernel {
                KernelHandle::Function(it) => of(self.function_attribute)?(&mut value, attribute, it as Handle),
                KernelHandle::Kernel(it, device) => {
                    of(self.kernel_attribute)?(&mut value, attribute, it as Handle, device)
                }
            }
        };
        checked(answer)?;
        Ok(value)
    }

    /// Returns how many blocks of so many threads and bytes of dynamic shared memory a multiprocessor runs at once, as
    /// the current context's GPU has them.
    pub(super) unsafe fn blocks_per_sm(&self, kernel: u64, threads: u64, shared: u32) -> DriverResult<u64> {
        let mut blocks = 0;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the caller promises that the kernel is alive; a live integer. The driver takes a `CUkernel` for the
        // function, too.
        checked(unsafe { of(self.occupancy)?(&mut blocks, kernel as Handle, threads, shared as usize) })?;
        Ok(u64::try_from(blocks).unwrap_or(0))
    }

    /// Returns how many clusters of such a launch the current context's GPU runs at once.
    pub(super) unsafe fn clusters_at_once(&self, kernel: u64, launch: &Kernel) -> DriverResult<u64> {
        let mut clusters = 0;
        let ask = of(self.active_clusters)?;
        // SAFETY: the caller promises that the kernel is alive; a live integer. The driver takes a `CUkernel` for the
        // function, too.
        checked(launch.with_config(|config| unsafe { ask(&mut clusters, kernel as Handle, config) }))?;
        Ok(u64::try_from(clusters).unwrap_or(0))
    }

    /// Returns how a node groups its blocks, if it does.
    pub(super) unsafe fn cluster_of_node(&self, node: u64) -> DriverResult<Option<Extents>> {
        let mut value = [0u32; (offset::attribute::BYTES - offset::attribute::VALUE) / 4];
        // SAFETY: the caller promises that the node is alive; room for an attribute's value.
        checked(unsafe { of(self.node_attribute)?(node as Handle, ATTRIBUTE_CLUSTER, value.as_mut_ptr().cast()) })?;
        Ok((value[0] != 0).then_some(Extents([value[0], value[1], value[2]])))
    }

    /// Returns what a kernel node is made of, as [`NodeLayout::Kernel`] describes it.
    pub(super) unsafe fn node(&self, node: u64) -> DriverResult<[u64; NodeLayout::Kernel.size() / 8]> {
        let mut params = [0; NodeLayout::Kernel.size() / 8];
        // SAFETY: the caller promises that the node is alive; room for the structure.
        checked(unsafe { of(self.node_params)?(node as Handle, params.as_mut_ptr().cast()) })?;
        Ok(params)
    }

    pub(super) unsafe fn set_node(&self, node: u64, params: &[u64; NodeLayout::Kernel.size() / 8]) -> DriverResult<()> {
        // SAFETY: the caller promises that the node and what the structure names are alive; the structure has this
        // layout.
        checked(unsafe { of(self.set_node_params)?(node as Handle, params.as_ptr().cast()) })
    }

    pub(super) unsafe fn set_attribute(&self, kernel: KernelHandle, attribute: u32, value: i32) -> DriverResult<()> {
        // SAFETY: the caller promises that the kernel is alive.
        let answer = unsafe {
            match kernel {
                KernelHandle::Function(it) => of(self.set_function_attribute)?(it as Handle, attribute, value),
                KernelHandle::Kernel(it, device) => {
                    of(self.set_kernel_attribute)?(attribute, value, it as Handle, device)
                }
            }
        };
        checked(answer)
    }

    pub(super) unsafe fn allocate(&self, bytes: usize) -> DriverResult<u64> {
        let mut address = 0;
        // SAFETY: a live integer.
        checked(unsafe { of(self.alloc)?(&mut address, bytes) })?;
        Ok(address)
    }

    /// Returns a stream that waits for no other.
    pub(crate) unsafe fn stream(&self) -> DriverResult<Handle> {
        let mut stream = null_mut();
        // SAFETY: a live pointer.
        checked(unsafe { of(self.create_stream)?(&mut stream, STREAM_NON_BLOCKING) })?;
        Ok(stream)
    }

    /// Returns one whose kernels go before others that wait for a place on the GPU.
    pub(crate) unsafe fn urgent_stream(&self) -> DriverResult<Handle> {
        let mut stream = null_mut();
        // SAFETY: a live pointer.
        checked(unsafe { of(self.create_urgent_stream)?(&mut stream, STREAM_NON_BLOCKING, MOST_URGENT) })?;
        Ok(stream)
    }

    /// Launches a kernel that has one parameter of 8 bytes, in one thread.
    pub(super) unsafe fn launch_thread(&self, function: u64, mut parameter: u64, stream: Handle) -> DriverResult<()> {
        let thread = GridShape { grid: [1; 3], block: [1; 3] };
        let mut parameters = [(&raw mut parameter).cast::<c_void>()];
        // SAFETY: the caller promises that function and stream are alive, and that the kernel has one such parameter;
        // the driver copies the parameter before it returns.
        unsafe { self.launch(function, thread, &mut parameters, stream) }
    }

    /// Launches a kernel with these parameters, to which the list points.
    pub(super) unsafe fn launch(
        &self,
        function: u64,
        GridShape { grid: [x, y, z], block: [bx, by, bz] }: GridShape,
        parameters: &mut [*mut c_void],
        stream: Handle,
    ) -> DriverResult<()> {
        let parameters = if parameters.is_empty() { null_mut() } else { parameters.as_mut_ptr() };
        // SAFETY: the caller promises that function and stream are alive, and as many parameters as the kernel has,
        // each of its size.
        checked(unsafe {
            let launch = of(self.launch_kernel)?;
            launch(function as Handle, x, y, z, bx, by, bz, 0, stream, parameters, null_mut())
        })
    }

    /// Whether all that was begun in a stream has ended.
    pub(super) unsafe fn is_done(&self, stream: Handle) -> DriverResult<bool> {
        // SAFETY: the caller promises that the stream is alive.
        match unsafe { of(self.query_stream)?(stream) } {
            NOT_READY => Ok(false),
            answer => checked(answer).map(|()| true),
        }
    }

    /// Begins to copy to the GPU.
    pub(super) unsafe fn write(&self, to: u64, from: *const u8, bytes: usize, stream: Handle) -> DriverResult<()> {
        // SAFETY: the caller promises that the stream and `bytes` of device memory are alive, and that as many
        // are readable at `from` until the copy is done.
        checked(unsafe { of(self.copy_to_device)?(to, from.cast::<c_void>(), bytes, stream) })
    }

    /// Lets the GPU use memory of the process, in all contexts, and returns where the current one has it.
    pub(super) unsafe fn register(&self, memory: *mut u8, bytes: usize) -> DriverResult<u64> {
        let mut address = 0;
        // SAFETY: the caller promises that `bytes` stay mapped there, which the GPU may use; a live integer.
        unsafe {
            match of(self.register_memory)?(memory.cast(), bytes, IN_ALL_CONTEXTS | MAPPED) {
                SUCCESS | ALREADY_REGISTERED => {}
                refused => return Err(refused),
            }
            checked(of(self.registered_address)?(&mut address, memory.cast(), 0))?;
        }
        Ok(address)
    }

    /// Begins to copy from the GPU.
    pub(super) unsafe fn read(&self, to: *mut u8, from: u64, bytes: usize, stream: Handle) -> DriverResult<()> {
        // SAFETY: the caller promises that the stream and that many bytes of device memory are alive, and that as many
        // bytes are writable at `to` until the copy is done.
        checked(unsafe { of(self.copy_to_host)?(to.cast::<c_void>(), from, bytes, stream) })
    }

    /// Waits for what was begun in a stream.
    pub(crate) unsafe fn wait_for(&self, stream: Handle) -> DriverResult<()> {
        // SAFETY: the caller promises that the stream is alive.
        checked(unsafe { of(self.wait_for_stream)?(stream) })
    }
}
