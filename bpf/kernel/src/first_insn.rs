//! What hitting a breakpoint on an instruction will cost.
//!
//! The kernel emulates a few instructions when a uprobe is hit and single-steps all others out of
//! line, which takes a second trap: twenty times longer in a virtual machine.
//! Source: `arch/x86/kernel/uprobes.c`, `branch_setup_xol_ops` and `push_setup_xol_ops`.

/// `endbr64`, at the start of functions compiled for control-flow enforcement. It does nothing
/// that a handler could miss, but it is single-stepped.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// How the kernel gets past a probed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Emulated,
    SingleStepped,
}

/// Bytes to skip at a function's start so that the probe does not sit on an `endbr64`.
pub(crate) fn landing_pad(code: &[u8]) -> u64 {
    if code.starts_with(&ENDBR64) { ENDBR64.len() as u64 } else { 0 }
}

/// How the kernel gets past the x86-64 instruction that `code` begins with.
pub(crate) fn step(code: &[u8]) -> Step {
    let code = match code {
        // A REX prefix: `push %r12` is 41 54.
        [0x40..=0x4f, rest @ ..] => rest,
        _ => code,
    };
    match code {
        // push %reg; nop; call; jmp; jcc
        [0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb | 0x70..=0x7f, ..] => Step::Emulated,
        [0x0f, 0x80..=0x8f | 0x1f, ..] => Step::Emulated,
        [0x66, 0x90, ..] => Step::Emulated,
        _ => Step::SingleStepped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushes_nops_and_branches_are_emulated() {
        for code in [
            &[0x55][..],
            &[0x41, 0x57],
            &[0x0f, 0x1f, 0x44, 0, 0],
            &[0xe8, 0, 0, 0, 0],
            &[0x0f, 0x84, 0, 0, 0, 0],
            &[0x90],
        ] {
            assert_eq!(step(code), Step::Emulated, "{code:x?}");
        }
    }

    #[test]
    fn everything_else_is_stepped() {
        for code in [&[0xc3][..], &[0x48, 0x83, 0xec, 8], &ENDBR64, &[0x89, 0xf8], &[]] {
            assert_eq!(step(code), Step::SingleStepped, "{code:x?}");
        }
    }

    #[test]
    fn endbr64_is_skipped() {
        assert_eq!(landing_pad(&[0xf3, 0x0f, 0x1e, 0xfa, 0x55]), 4);
        assert_eq!(landing_pad(&[0x55, 0xf3, 0x0f, 0x1e, 0xfa]), 0);
    }
}
