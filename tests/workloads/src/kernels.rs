//! The four kernels, as PTX for a GPU and as host functions for the software GPU.

use std::ffi::{CString, c_char, c_void};

/// `nop()`: does nothing.
pub const NOP: &str = "_Z3nopv";
/// `fill(unsigned int*, unsigned int, unsigned int)`: address, value, count.
pub const FILL: &str = "_Z4fillPjjj";
/// `scale(float*, float, unsigned int)`: address, factor, count.
pub const SCALE: &str = "_Z5scalePffj";
/// `spin(unsigned long long)`: busy for this many nanoseconds.
pub const SPIN: &str = "_Z4spiny";

pub(crate) const PTX: &str = r"
.version 7.0
.target sm_52
.address_size 64

.visible .entry _Z3nopv()
{
    ret;
}

.visible .entry _Z4fillPjjj(.param .u64 fill_p, .param .u32 fill_value, .param .u32 fill_count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<7>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [fill_p];
    ld.param.u32 %r1, [fill_value];
    ld.param.u32 %r2, [fill_count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r2;
    @%p1 bra FILL_DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r6, 4;
    add.s64 %rd4, %rd2, %rd3;
    st.global.u32 [%rd4], %r1;
FILL_DONE:
    ret;
}

.visible .entry _Z5scalePffj(.param .u64 scale_p, .param .f32 scale_by, .param .u32 scale_count)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [scale_p];
    ld.param.f32 %f1, [scale_by];
    ld.param.u32 %r1, [scale_count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra SCALE_DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd4], %f3;
SCALE_DONE:
    ret;
}

.visible .entry _Z4spiny(.param .u64 spin_ns)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [spin_ns];
    mov.u64 %rd2, %globaltimer;
SPIN_AGAIN:
    mov.u64 %rd3, %globaltimer;
    sub.s64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra SPIN_AGAIN;
    ret;
}
";

/// What the software GPU passes to a kernel; its documentation explains the fields.
#[repr(C)]
struct SoftLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    block_idx: [u32; 3],
    shared_bytes: u32,
    shared: *mut c_void,
}

type Kernel = extern "C" fn(*const SoftLaunch, *mut *mut c_void);
type Register = unsafe extern "C" fn(*const c_char, Kernel);

/// Registers the kernels if the driver is the software GPU; returns whether it is.
pub(crate) fn register() -> bool {
    let Some(register) = registration() else {
        return false;
    };
    let kernels: [(&str, Kernel); 4] = [(NOP, nop), (FILL, fill), (SCALE, scale), (SPIN, spin)];
    for (name, kernel) in kernels {
        if let Ok(name) = CString::new(name) {
            // SAFETY: the name ends with a NUL, and the function has the documented type.
            unsafe { register(name.as_ptr(), kernel) };
        }
    }
    true
}

fn registration() -> Option<Register> {
    // SAFETY: constant names; the library is open already, as the context exists.
    let function = unsafe {
        let driver = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if driver.is_null() {
            return None;
        }
        libc::dlsym(driver, c"softgpu_register_kernel".as_ptr())
    };
    // SAFETY: a null pointer is `None`; else it is the function of that name.
    unsafe { std::mem::transmute::<*mut c_void, Option<Register>>(function) }
}

extern "C" fn nop(_: *const SoftLaunch, _: *mut *mut c_void) {}

extern "C" fn fill(context: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with a valid context and with the arguments of the PTX above.
    let (context, address, value, count) = unsafe {
        (&*context, *(*args).cast::<*mut u32>(), *(*args.add(1)).cast::<u32>(), *(*args.add(2)).cast::<u32>())
    };
    for index in block_elements(context, count) {
        // SAFETY: the program launched it for `count` elements at `address`.
        unsafe { *address.add(index) = value };
    }
}

extern "C" fn scale(context: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with a valid context and with the arguments of the PTX above.
    let (context, address, by, count) = unsafe {
        (&*context, *(*args).cast::<*mut f32>(), *(*args.add(1)).cast::<f32>(), *(*args.add(2)).cast::<u32>())
    };
    for index in block_elements(context, count) {
        // SAFETY: the program launched it for `count` elements at `address`.
        unsafe { *address.add(index) *= by };
    }
}

extern "C" fn spin(_: *const SoftLaunch, args: *mut *mut c_void) {
    // SAFETY: called with the argument of the PTX above.
    let nanoseconds = unsafe { *(*args).cast::<u64>() };
    std::thread::sleep(std::time::Duration::from_nanos(nanoseconds));
}

/// Returns the elements that the threads of this block work on.
fn block_elements(context: &SoftLaunch, count: u32) -> std::ops::Range<usize> {
    let first = context.block_idx[0] * context.block[0];
    first.min(count) as usize..(first + context.block[0]).min(count) as usize
}
