//! Whether Linux accepts a breakpoint on an instruction, and what a hit costs there.
//!
//! Linux emulates a few instructions when a uprobe is hit, and single-steps all others out of line.
//! That takes a second trap, which is twenty times slower in a virtual machine. Source:
//! `arch/x86/kernel/uprobes.c`, `branch_setup_xol_ops` and `push_setup_xol_ops`.

/// `endbr64`, at the start of functions compiled for control-flow enforcement. It does nothing that
/// a handler could miss, but it is single-stepped.
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// How Linux executes a probed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Emulated,
    SingleStepped,
}

/// Returns the length of a leading `endbr64`.
pub(crate) fn landing_pad(code: &[u8]) -> u64 {
    if code.starts_with(&ENDBR64) { ENDBR64.len() as u64 } else { 0 }
}

/// Returns how Linux executes the x86-64 instruction at the start of `code`.
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

/// Linux's answer to a breakpoint on an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakpointAnswer {
    Taken,
    /// No version can step over it.
    Refused,
    /// Ask Linux: its lists differ between versions.
    InDoubt,
}

/// Predicts Linux's answer to a breakpoint on the x86-64 instruction at the start of `code`.
pub(crate) fn answer(code: &[u8]) -> BreakpointAnswer {
    match code {
        // The lock prefix: functions that count references begin with it. Then int3 and hlt.
        [0xf0 | 0xcc | 0xf4, ..] => BreakpointAnswer::Refused,
        _ if is_usual(code) => BreakpointAnswer::Taken,
        _ => BreakpointAnswer::InDoubt,
    }
}

/// Whether functions commonly start like this.
fn is_usual(code: &[u8]) -> bool {
    let code = match code {
        [0x40..=0x4f, rest @ ..] => rest,
        _ => code,
    };
    match code {
        // add or adc sbb and sub xor cmp; push pop; movsxd; push and imul of constants
        [first @ 0x00..=0x3f, ..] if first & 7 < 6 => true,
        [0x50..=0x5f | 0x63 | 0x68..=0x6b, ..] => true,
        // jcc; arithmetic with constants; test xchg mov lea; nop xchg cwd
        [0x70..=0x81 | 0x83..=0x8b | 0x8d | 0x90..=0x99, ..] => true,
        // test and mov of constants; shifts; ret; mov; leave; call jmp; not neg mul div; inc dec call jmp push
        [0xa8 | 0xa9 | 0xb0..=0xc3 | 0xc6 | 0xc7 | 0xc9 | 0xd0..=0xd3 | 0xe8 | 0xe9 | 0xeb, ..] => true,
        [0xf6 | 0xf7 | 0xfe | 0xff, ..] => true,
        // movups and the like; nop; cmov; jcc setcc; cpuid; imul; movzx movsx
        [0x0f, 0x10..=0x17 | 0x1f | 0x28..=0x2f | 0x40..=0x5f | 0x80..=0x9f | 0xa2 | 0xaf, ..] => true,
        [0x0f, 0xb6 | 0xb7 | 0xbe | 0xbf, ..] => true,
        // movss movsd; movdqu movdqa movd pxor; nop; fs:
        [0xf3 | 0xf2 | 0x66, 0x0f, 0x10..=0x17 | 0x1f | 0x28..=0x2f | 0x51..=0x76 | 0x7e | 0x7f | 0xef, ..] => true,
        [0x66, 0x90, ..] | [0x64, 0x48 | 0x4c, 0x8b, ..] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_functions_begin_with_is_taken_and_the_odd_is_asked_about() {
        for code in [
            &[0x55][..],
            &[0x48, 0x83, 0xec, 8],
            &[0x31, 0xc0],
            &[0x0f, 0x1f, 0x44],
            &[0xf3, 0x0f, 0x10],
            &[0x64, 0x48, 0x8b, 0x04, 0x25],
        ] {
            assert_eq!(answer(code), BreakpointAnswer::Taken, "{code:x?}");
        }
        for code in [&[0xf0, 0xff, 0x0f][..], &[0xf4], &[0xcc]] {
            assert_eq!(answer(code), BreakpointAnswer::Refused, "{code:x?}");
        }
        // vmovdqu; evex; push %ds; mov to a segment; nothing
        for code in [&[0xc5, 0xfe][..], &[0x62, 0xf1], &[0x1e], &[0x8e, 0xd0], &[]] {
            assert_eq!(answer(code), BreakpointAnswer::InDoubt, "{code:x?}");
        }
    }

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
