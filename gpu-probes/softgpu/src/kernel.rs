//! Kernels: host functions by name, parameters read from PTX, and launches.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::abi::{Dim3, Handle, Kernel10, SoftLaunch, error};
use crate::activity;
use crate::callback::text;
use crate::device::{FUNCTIONS, MODULES};
use crate::faults::{explain, faults};
use crate::forks::is_forked_child;
use crate::stream::Stream;

/// A kernel, called once per block; `args[i]` points to a copy of the i-th argument.
pub type KernelFunction = extern "C" fn(context: *const SoftLaunch, args: *mut *mut c_void);

#[derive(Clone)]
struct Registered {
    function: KernelFunction,
    /// Parameter sizes in bytes, if the program gave them.
    sizes: Option<Vec<usize>>,
}

static REGISTERED: Mutex<Option<HashMap<String, Registered>>> = Mutex::new(None);

/// Registers `function` as the kernel `name`, for modules with an entry of that name.
///
/// # Safety
/// `name` ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_register_kernel(name: *const c_char, function: KernelFunction) {
    // SAFETY: the caller's contract.
    register(unsafe { text(name) }, Registered { function, sizes: None });
}

/// Like [`softgpu_register_kernel`], with parameter sizes in bytes: for modules that are not PTX.
///
/// # Safety
/// `name` ends with a NUL; `sizes` points to `count` sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softgpu_register_kernel_params(
    name: *const c_char,
    function: KernelFunction,
    sizes: *const usize,
    count: usize,
) {
    let sizes = if count == 0 || sizes.is_null() {
        Vec::new()
    } else {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts(sizes, count) }.to_vec()
    };
    // SAFETY: the caller's contract.
    register(unsafe { text(name) }, Registered { function, sizes: Some(sizes) });
}

fn register(name: &str, kernel: Registered) {
    let mut table = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    table.get_or_insert_default().insert(name.to_owned(), kernel);
}

fn registered(name: &str) -> Option<Registered> {
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(name).cloned()
}

/// A `CUfunction` or `CUkernel`: launches accept either, as driver 13 does.
pub(crate) struct Function {
    pub(crate) name: CString,
    pub(crate) module: Handle,
    /// Parameter sizes, if the image declares them.
    pub(crate) parameters: Option<Vec<usize>>,
}

impl Function {
    /// Returns the parameter sizes from the image or the registration.
    pub(crate) fn sizes(&self) -> Option<Vec<usize>> {
        self.parameters.clone().or_else(|| registered(self.name.to_str().ok()?)?.sizes)
    }
}

/// What a module was loaded from.
pub(crate) enum ModuleImage {
    Ptx(String),
    /// A cubin or fat binary: assumed to contain any name.
    Opaque,
}

impl ModuleImage {
    /// # Safety
    /// PTX text is NUL-terminated; of anything else the first eight bytes are readable.
    pub(crate) unsafe fn read(image: *const u8) -> Result<Self, i32> {
        const ELF: [u8; 4] = *b"\x7fELF";
        const FAT_WRAPPER: u32 = 0x466243b1;
        const FAT_DATA: u32 = 0xba55ed50;
        // SAFETY: there is at least a NUL, after which nothing is read.
        let first = unsafe { *image };
        if first == 0 {
            return Err(error::INVALID_IMAGE);
        }
        // SAFETY: an image that begins like this is longer than four bytes; PTX is too.
        let magic: [u8; 4] = unsafe { image.cast::<[u8; 4]>().read_unaligned() };
        if magic == ELF || [FAT_WRAPPER, FAT_DATA].contains(&u32::from_le_bytes(magic)) {
            return Ok(Self::Opaque);
        }
        // SAFETY: the caller's contract.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        if !text.contains(".version") {
            explain(|| "the image is neither PTX nor a cubin nor a fat binary".into());
            return Err(error::INVALID_IMAGE);
        }
        Ok(Self::Ptx(text.into_owned()))
    }

    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Ptx(text) => text.len(),
            Self::Opaque => 0,
        }
    }

    /// Returns `None` if there is no such entry, else its parameter sizes if known.
    #[allow(clippy::option_option, reason = "absent and unknown are two answers")]
    pub(crate) fn entry(&self, name: &str) -> Option<Option<Vec<usize>>> {
        match self {
            Self::Opaque => Some(None),
            Self::Ptx(ptx) => entry_parameters(ptx, name).map(Some),
        }
    }

    /// Returns the size of a `.global` or `.const` variable.
    pub(crate) fn variable(&self, name: &str) -> Option<usize> {
        let Self::Ptx(ptx) = self else { return None };
        let is_variable = |line: &&str| line.contains(".global") || line.contains(".const");
        ptx.split([';', '{', '}']).filter(is_variable).find_map(|line| {
            let declared = line.split('=').next()?;
            let word = declared.split_whitespace().next_back()?;
            (word.split('[').next()? == name).then(|| declared_size(declared))
        })
    }
}

fn entry_parameters(ptx: &str, name: &str) -> Option<Vec<usize>> {
    ptx.match_indices(".entry").find_map(|(at, keyword)| {
        let rest = ptx[at + keyword.len()..].trim_start();
        let end = rest.find(|c: char| c == '(' || c == '{' || c.is_whitespace())?;
        if &rest[..end] != name {
            return None;
        }
        let rest = rest[end..].trim_start();
        let Some(list) = rest.strip_prefix('(').and_then(|list| list.split(')').next()) else {
            return Some(Vec::new());
        };
        Some(list.split(',').filter(|one| one.contains(".param")).map(declared_size).collect())
    })
}

/// Returns the size of a declaration such as `.param .align 8 .b8 name[16]`.
fn declared_size(declaration: &str) -> usize {
    let element = declaration.split_whitespace().find_map(type_size).unwrap_or(8);
    let count = declaration.split_once('[').and_then(|(_, rest)| rest.split(']').next()?.trim().parse().ok());
    element * count.unwrap_or(1)
}

fn type_size(word: &str) -> Option<usize> {
    let word = word.strip_prefix('.')?;
    let bits: usize = word.strip_prefix(['u', 's', 'f', 'b'])?.parse().ok()?;
    Some(bits / 8)
}

/// One launch, with copies of all its arguments.
pub(crate) struct Launch {
    name: CString,
    function: KernelFunction,
    grid: Dim3,
    block: Dim3,
    shared_bytes: u32,
    arguments: Arguments,
    cooperative: bool,
}

/// The parameters of a launch call.
pub(crate) struct Request {
    pub(crate) function: Handle,
    pub(crate) grid: Dim3,
    pub(crate) block: Dim3,
    pub(crate) shared_bytes: u32,
    pub(crate) params: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
    pub(crate) cooperative: bool,
}

impl Request {
    /// Checks the request and copies its arguments.
    ///
    /// # Safety
    /// `params` and `extra` are as `cuLaunchKernel` requires.
    pub(crate) unsafe fn prepare(&self) -> Result<Arc<Launch>, i32> {
        self.check_dimensions()?;
        let function = FUNCTIONS.find(self.function)?;
        let name = function.name.to_str().unwrap_or("");
        MODULES.find(function.module)?;
        if faults().fails_launch() {
            explain(|| format!("launch of {name}: SOFTGPU_FAIL_LAUNCH makes it fail"));
            return Err(error::LAUNCH_OUT_OF_RESOURCES);
        }
        let kernel = registered(name).ok_or_else(|| {
            explain(|| {
                format!("launch of {name}: no host function is registered under that name (softgpu_register_kernel)")
            });
            error::NOT_FOUND
        })?;
        // SAFETY: the caller's contract.
        let arguments = unsafe { Arguments::copy(function.sizes(), self.params, self.extra) }?;
        Ok(Arc::new(Launch {
            name: function.name.clone(),
            function: kernel.function,
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            arguments,
            cooperative: self.cooperative,
        }))
    }

    fn check_dimensions(&self) -> Result<(), i32> {
        let Dim3 { x, y, z } = self.block;
        let threads = [x, y, z].iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)));
        let blocks_ok = self.grid.x != 0 && (1..=65_535).contains(&self.grid.y) && (1..=65_535).contains(&self.grid.z);
        let ok = blocks_ok && (1..=1024).contains(&threads) && z <= 64 && self.shared_bytes <= 227 << 10;
        if ok { Ok(()) } else { Err(error::INVALID_VALUE) }
    }
}

impl Launch {
    /// Runs all blocks, one after another.
    pub(crate) fn run(&self, start: u64) {
        let mut shared = vec![0u128; (self.shared_bytes as usize).div_ceil(16)];
        let mut storage = self.arguments.bytes.clone();
        let base = storage.as_mut_ptr().cast::<u8>();
        // SAFETY: the offsets lie within `storage`.
        let mut args: Vec<*mut c_void> =
            self.arguments.offsets.iter().map(|&offset| unsafe { base.add(offset) }.cast()).collect();
        let args = if args.is_empty() { std::ptr::null_mut() } else { args.as_mut_ptr() };
        for z in 0..self.grid.z {
            for y in 0..self.grid.y {
                for x in 0..self.grid.x {
                    shared.fill(0);
                    let context = SoftLaunch {
                        grid: [self.grid.x, self.grid.y, self.grid.z],
                        block: [self.block.x, self.block.y, self.block.z],
                        block_idx: [x, y, z],
                        shared_bytes: self.shared_bytes,
                        shared: if shared.is_empty() { std::ptr::null_mut() } else { shared.as_mut_ptr().cast() },
                    };
                    (self.function)(&context, args);
                }
            }
        }
        stay_busy_until(start + faults().busy_ns);
    }

    /// Builds the kernel record without times; fields that mean nothing here are as on a real GPU.
    pub(crate) fn record(&self, kind: u32, stream: &Stream, correlation_id: u32, graph: u32, node: u64) -> Kernel10 {
        const REGISTERS: u16 = 16;
        const LOCAL_MEMORY: u32 = 0x0948_0000;
        const SHARED_MEMORY: u32 = 32 << 10;
        let hide_graph = activity::enabled(crate::abi::kind::GRAPH_TRACE);
        Kernel10 {
            kind,
            registers_per_thread: REGISTERS,
            partitioned_global_cache_requested: 1,
            partitioned_global_cache_executed: 1,
            device_id: stream.device as u32,
            context_id: stream.context,
            stream_id: stream.id,
            grid_x: self.grid.x,
            grid_y: self.grid.y,
            grid_z: self.grid.z,
            block_x: self.block.x,
            block_y: self.block.y,
            block_z: self.block.z,
            dynamic_shared_memory: self.shared_bytes,
            local_memory_total: LOCAL_MEMORY,
            correlation_id,
            grid_id: activity::next_grid_id(),
            name: interned(&self.name).expose_provenance() as u64,
            // Nodes of graphs have no such times.
            queued: if graph == 0 { activity::latency_stamp() } else { 0 },
            submitted: if graph == 0 { activity::latency_stamp() } else { 0 },
            launch_type: u8::from(self.cooperative),
            shared_memory_executed: SHARED_MEMORY,
            graph_node_id: if hide_graph { 0 } else { node },
            graph_id: if hide_graph { 0 } else { graph },
            channel_id: u32::from(graph != 0),
            channel_type: 1,
            cluster_scheduling_policy: 1,
            local_memory_total_v2: u64::from(LOCAL_MEMORY),
            ..Kernel10::default()
        }
    }
}

/// Interns a name for the life of the process: records outlive modules.
pub(crate) fn interned(name: &CStr) -> *const c_char {
    static NAMES: Mutex<Option<HashMap<CString, &'static CStr>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(name) {
        return known.as_ptr();
    }
    let kept: &'static CStr = Box::leak(name.to_owned().into_boxed_c_str());
    names.insert(name.to_owned(), kept);
    kept.as_ptr()
}

/// Returns the symbol that callbacks show for a launch, or null for an invalid handle.
pub(crate) fn symbol(function: Handle) -> *const c_char {
    if is_forked_child() {
        // Another thread may have held the locks at the time of the fork.
        return std::ptr::null();
    }
    FUNCTIONS.get(function).map_or(std::ptr::null(), |function| interned(&function.name))
}

/// Sleeps most of the time, so that a busy stream does not starve the program on a small machine.
fn stay_busy_until(end: u64) {
    const SPIN_NS: u64 = 100_000;
    loop {
        match end.saturating_sub(activity::now()) {
            0 => return,
            left if left > SPIN_NS => std::thread::sleep(Duration::from_nanos(left - SPIN_NS / 2)),
            _ => std::hint::spin_loop(),
        }
    }
}

/// Copied arguments, aligned for any type.
#[derive(Default)]
struct Arguments {
    bytes: Vec<u128>,
    offsets: Vec<usize>,
}

impl Arguments {
    unsafe fn copy(sizes: Option<Vec<usize>>, params: *mut *mut c_void, extra: *mut *mut c_void) -> Result<Self, i32> {
        let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else {
            return Ok(Self::default());
        };
        if params.is_null() && extra.is_null() {
            return Err(error::INVALID_VALUE);
        }
        let offsets = offsets(&sizes);
        let total = offsets.iter().zip(&sizes).map(|(offset, size)| offset + size).max().unwrap_or(0);
        let mut bytes = vec![0u128; total.div_ceil(16)];
        let to = bytes.as_mut_ptr().cast::<u8>();
        if params.is_null() {
            // SAFETY: the caller's contract.
            let (buffer, size) = unsafe { extra_buffer(extra) }.ok_or(error::INVALID_VALUE)?;
            // SAFETY: `to` has `total` bytes, `buffer` has `size`.
            unsafe { to.copy_from_nonoverlapping(buffer, size.min(total)) };
            return Ok(Self { bytes, offsets });
        }
        for (index, (&offset, &size)) in offsets.iter().zip(&sizes).enumerate() {
            // SAFETY: the kernel has that many parameters, so the program gave as many pointers.
            unsafe { to.add(offset).copy_from_nonoverlapping((*params.add(index)).cast(), size) };
        }
        Ok(Self { bytes, offsets })
    }
}

/// Returns each parameter's offset in the parameter buffer: naturally aligned, to 16 bytes at most.
pub(crate) fn offsets(sizes: &[usize]) -> Vec<usize> {
    let mut at = 0;
    sizes
        .iter()
        .map(|&size| {
            let offset = if size == 0 { at } else { usize::next_multiple_of(at, 1 << size.trailing_zeros().min(4)) };
            at = offset + size;
            offset
        })
        .collect()
}

/// Reads `CU_LAUNCH_PARAM_BUFFER_POINTER` and its size from a list that ends with
/// `CU_LAUNCH_PARAM_END`.
unsafe fn extra_buffer(extra: *mut *mut c_void) -> Option<(*const u8, usize)> {
    let (mut buffer, mut size) = (std::ptr::null(), None);
    for pair in 0..8 {
        // SAFETY: the list ends with 0, which is checked before going on.
        let (key, value) = unsafe { (*extra.add(2 * pair) as usize, *extra.add(2 * pair + 1)) };
        match key {
            1 => buffer = value as *const u8,
            // SAFETY: the value of this key points to the size.
            2 => size = Some(unsafe { *value.cast::<usize>() }),
            _ => break,
        }
    }
    if buffer.is_null() { None } else { Some((buffer, size?)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = ".version 7.0\n.target sm_52\n.global .align 4 .u32 counter;\n.global .align 8 .b8 table[64];\n\
        .visible .entry first(\n .param .u64 p,\n .param .f32 by,\n .param .align 8 .b8 shape[24]\n)\n{ ret; }\n\
        .visible .entry first_other()\n{ ret; }\n.entry bare { ret; }\n";

    fn entry(name: &str) -> Option<Option<Vec<usize>>> {
        ModuleImage::Ptx(PTX.into()).entry(name)
    }

    #[test]
    fn ptx_tells_parameters() {
        assert_eq!(entry("first"), Some(Some(vec![8, 4, 24])));
        assert_eq!(entry("first_other"), Some(Some(vec![])));
        assert_eq!(entry("bare"), Some(Some(vec![])));
        assert_eq!(entry("fir"), None);
        assert_eq!(offsets(&[8, 4, 24]), [0, 8, 16]);
        assert_eq!(offsets(&[4, 8, 1, 2]), [0, 8, 16, 18]);
    }

    #[test]
    fn ptx_tells_variables() {
        let image = ModuleImage::Ptx(PTX.into());
        assert_eq!(image.variable("counter"), Some(4));
        assert_eq!(image.variable("table"), Some(64));
        assert_eq!(image.variable("missing"), None);
    }
}
