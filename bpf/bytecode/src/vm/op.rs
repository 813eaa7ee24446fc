//! The instructions of the inner loop.

/// An instruction of the inner loop, 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoded {
    pub(super) op: Op,
    pub(super) dst: u8,
    pub(super) src: u8,
    /// Jump target, access offset, or stack offset.
    pub(super) off: i32,
    pub(super) imm: u64,
}

impl Decoded {
    /// Returns the index of the destination, which needs no check.
    #[inline(always)]
    pub(super) fn dst(&self) -> usize {
        usize::from(self.dst & 15)
    }

    /// Returns the index of the source, which needs no check.
    #[inline(always)]
    pub(super) fn src(&self) -> usize {
        usize::from(self.src & 15)
    }
}

/// What an instruction does. `I` takes the immediate, `R` the source register.
#[rustfmt::skip]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    Add64I, Add64R, Sub64I, Sub64R, Mul64I, Mul64R, Div64I, Div64R, Or64I, Or64R, And64I, And64R,
    Lsh64I, Lsh64R, Rsh64I, Rsh64R, Mod64I, Mod64R, Xor64I, Xor64R, Mov64I, Mov64R,
    Arsh64I, Arsh64R, SDiv64I, SDiv64R, SMod64I, SMod64R, Neg64,
    Add32I, Add32R, Sub32I, Sub32R, Mul32I, Mul32R, Div32I, Div32R, Or32I, Or32R, And32I, And32R,
    Lsh32I, Lsh32R, Rsh32I, Rsh32R, Mod32I, Mod32R, Xor32I, Xor32R, Mov32I, Mov32R,
    Arsh32I, Arsh32R, SDiv32I, SDiv32R, SMod32I, SMod32R, Neg32,
    MovS8To64, MovS16To64, MovS32To64, MovS8To32, MovS16To32,
    Low16, Low32, Low64, Swap16, Swap32, Swap64,
    Ja,
    Jeq64I, Jeq64R, Jgt64I, Jgt64R, Jge64I, Jge64R, Jset64I, Jset64R, Jne64I, Jne64R,
    Jsgt64I, Jsgt64R, Jsge64I, Jsge64R, Jlt64I, Jlt64R, Jle64I, Jle64R, Jslt64I, Jslt64R, Jsle64I, Jsle64R,
    Jeq32I, Jeq32R, Jgt32I, Jgt32R, Jge32I, Jge32R, Jset32I, Jset32R, Jne32I, Jne32R,
    Jsgt32I, Jsgt32R, Jsge32I, Jsge32R, Jlt32I, Jlt32R, Jle32I, Jle32R, Jslt32I, Jslt32R, Jsle32I, Jsle32R,
    Load8, Load16, Load32, Load64, LoadS8, LoadS16, LoadS32,
    StackLoad8, StackLoad16, StackLoad32, StackLoad64,
    ContextLoad8, ContextLoad16, ContextLoad32, ContextLoad64,
    Store8I, Store16I, Store32I, Store64I, Store8R, Store16R, Store32R, Store64R,
    StackStore8I, StackStore16I, StackStore32I, StackStore64I,
    StackStore8R, StackStore16R, StackStore32R, StackStore64R,
    Atomic32, Atomic64, AtomicAdd64,
    LdImm64,
    Lookup, Call,
    /// Rows of the above: `fuse`.
    CopyToStack64, StackLookup, Return,
    /// Calls a function of the program.
    CallLocal,
    Exit,
    /// Second half of `LdImm64`; never reached.
    Half,
}
