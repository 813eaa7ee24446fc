//! Where a walk begins: the registers with which a function was called.

use crate::registers::{Bounds, Registers, SAVED};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// The registers that a caller relies on, as [`push_registers!`](crate::push_registers) leaves them
/// on the stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Pushed {
    /// Address of the return address.
    pub rsp: u64,
    /// rbx, rbp, r12, r13, r14, r15.
    pub saved: [u64; SAVED],
}

/// Assembly text for the beginning of a function: pushes a [`Pushed`], from its last member to its
/// first, at rsp then, and keeps the stack aligned for a call. The function ends with
/// `add rsp, 56` and `ret`. Changes rax.
#[macro_export]
macro_rules! push_registers {
    () => {
        "mov rax, rsp\npush r15\npush r14\npush r13\npush r12\npush rbp\npush rbx\npush rax"
    };
}

/// Declares a function that C calls with four words. It calls `target` with them and, as the fifth, the address of a [`Pushed`]
/// with the registers at C's call: a stack walk starts from them.
#[macro_export]
macro_rules! with_registers {
    ($(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) => $target:ident) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($argument: $kind),*) {
            core::arch::naked_asm!(
                $crate::push_registers!(),
                "mov r8, rsp",
                "call {}",
                "add rsp, 56",
                "ret",
                sym $target
            )
        }
    };
}

const _: () = assert!(size_of::<Pushed>() == 56);

impl Pushed {
    /// The caller's registers; `None` if the return address is not within `bounds`.
    ///
    /// # Safety
    /// The return address is readable if it is within `bounds`.
    #[inline]
    pub unsafe fn registers(&self, bounds: Bounds) -> Option<Registers> {
        // SAFETY: the caller promises that the return address is readable if it is within `bounds`.
        let rip = bounds.holds_word(self.rsp).then(|| unsafe { *(self.rsp as *const u64) })?;
        Some(Registers { rip, rsp: self.rsp + 8, saved: self.saved })
    }
}

impl Bounds {
    /// The calling thread's stack. May allocate: to be asked once a thread.
    pub fn of_thread() -> Option<Bounds> {
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut low, mut size) = (std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: the attributes are initialised by the first call, read by the second, and
        // destroyed by the third.
        unsafe {
            if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
                return None;
            }
            let answer = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            if answer != 0 {
                return None;
            }
        }
        let low = low as u64;
        Some(Bounds { low, high: low.checked_add(size as u64)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_its_own_stack() {
        let local = 0u8;
        let check = |at: u64| Bounds::of_thread().is_some_and(|it| it.low <= at && at < it.high);
        assert!(check(&raw const local as u64));
        std::thread::spawn(move || {
            let local = 0u8;
            assert!(check(&raw const local as u64));
        })
        .join()
        .unwrap();
    }
}
