//! What a walk knows of a thread: a frame's registers, and where the stack lies.

/// The registers that a function keeps for its caller, in the order of [`Registers::saved`].
pub const SAVED: usize = 6;

/// The registers of a frame, as far as callers can rely on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    pub rip: u64,
    pub rsp: u64,
    /// rbx, rbp, r12, r13, r14, r15.
    pub saved: [u64; SAVED],
}

/// The addresses of a thread's stack, `low..high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub low: u64,
    pub high: u64,
}

impl Bounds {
    #[inline]
    pub(crate) fn holds_word(self, address: u64) -> bool {
        address.is_multiple_of(8) && self.low <= address && address < self.high && self.high - address >= 8
    }
}
