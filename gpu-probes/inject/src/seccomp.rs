//! Whether a thread's seccomp filters would kill it for what loading a library does.
//!
//! Source of the formats: seccomp(2), `include/uapi/linux/filter.h` and `bpf_common.h`; the filter
//! is read by ptrace(2), `PTRACE_SECCOMP_GET_FILTER`.

use std::io;
use xputrace_wire::calls::{CALLS, SystemCall};

/// Source: `include/uapi/linux/ptrace.h`.
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
/// `AUDIT_ARCH_X86_64`.
const ARCHITECTURE: u32 = 0xc000_003e;
/// Maximum number of filters that are examined.
const MOST_FILTERS: usize = 64;

/// An instruction of classic BPF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    operand: u32,
}

/// Returns which system call would be the end of a stopped thread, if any.
///
/// # Errors
/// Its filters cannot be read.
pub(crate) fn deadly_call(tid: u32) -> io::Result<Option<&'static str>> {
    let filters = filters(tid)?;
    let is_deadly = |it: &&SystemCall| filters.iter().any(|filter| is_deadly(action(filter, it.number, it.argument)));
    Ok(CALLS.iter().find(is_deadly).map(|it| it.name))
}

fn filters(tid: u32) -> io::Result<Vec<Vec<Instruction>>> {
    let mut all = Vec::new();
    while all.len() < MOST_FILTERS {
        let mut filter = vec![Instruction::default(); libc::BPF_MAXINSNS as usize];
        // SAFETY: Linux writes at most BPF_MAXINSNS instructions.
        let n = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid as libc::pid_t, all.len(), filter.as_mut_ptr()) };
        if n < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(all) } else { Err(error) };
        }
        filter.truncate(n as usize);
        all.push(filter);
    }
    Err(io::Error::other(format!("there are more than {MOST_FILTERS}")))
}

/// Whether a filter's action ends the thread, or hands it to someone who may.
fn is_deadly(action: u32) -> bool {
    let action = action & libc::SECCOMP_RET_ACTION_FULL;
    ![libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_LOG, libc::SECCOMP_RET_ERRNO].contains(&action)
}

/// Runs a filter over `struct seccomp_data` of a call; a malformed one kills, as Linux would not have taken it.
fn action(filter: &[Instruction], number: i64, argument: u64) -> u32 {
    run(filter, &data(number, argument)).unwrap_or(libc::SECCOMP_RET_KILL_PROCESS)
}

/// `struct seccomp_data` as 32-bit words.
fn data(number: i64, argument: u64) -> [u32; 16] {
    let mut words = [0; 16];
    (words[0], words[1]) = (number as u32, ARCHITECTURE);
    (words[4], words[5]) = (argument as u32, (argument >> 32) as u32);
    words
}

/// Source of the encodings: `include/uapi/linux/bpf_common.h`.
fn run(filter: &[Instruction], data: &[u32; 16]) -> Option<u32> {
    const LD_ABS: u16 = 0x20;
    const LD_LEN: u16 = 0x80;
    const LD_IMM: u16 = 0x00;
    const LD_MEM: u16 = 0x60;
    const LDX_IMM: u16 = 0x01;
    const LDX_LEN: u16 = 0x81;
    const LDX_MEM: u16 = 0x61;
    const ST: u16 = 0x02;
    const STX: u16 = 0x03;
    const RET_K: u16 = 0x06;
    const RET_A: u16 = 0x16;
    const TAX: u16 = 0x07;
    const TXA: u16 = 0x87;
    const JA: u16 = 0x05;
    const NEG: u16 = 0x84;
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let len = size_of_val(data) as u32;
    let mut at = 0usize;
    loop {
        let it = filter.get(at)?;
        at += 1;
        let k = it.operand;
        let slot = k as usize & 15;
        let source = if it.code & 0x08 != 0 { x } else { k };
        match it.code {
            LD_ABS => a = *data.get(k as usize / 4)?,
            LD_IMM => a = k,
            LD_LEN => a = len,
            LD_MEM => a = memory[slot],
            LDX_IMM => x = k,
            LDX_LEN => x = len,
            LDX_MEM => x = memory[slot],
            ST => memory[slot] = a,
            STX => memory[slot] = x,
            RET_K => return Some(k),
            RET_A => return Some(a),
            TAX => x = a,
            TXA => a = x,
            NEG => a = a.wrapping_neg(),
            JA => at += k as usize,
            code if code & 0x07 == 0x05 => {
                let holds = match code & 0xf0 {
                    0x10 => a == source,
                    0x20 => a > source,
                    0x30 => a >= source,
                    0x40 => a & source != 0,
                    _ => return None,
                };
                at += usize::from(if holds { it.if_true } else { it.if_false });
            }
            code if code & 0x07 == 0x04 => a = arithmetic(code & 0xf0, a, source)?,
            _ => return None,
        }
    }
}

fn arithmetic(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.checked_shl(b)?,
        0x70 => a.checked_shr(b)?,
        0xa0 => a ^ b,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u16, if_true: u8, if_false: u8, operand: u32) -> Instruction {
        Instruction { code, if_true, if_false, operand }
    }

    #[test]
    fn a_filter_is_run_as_linux_runs_it() {
        // Allows everything but `connect`, and `socket` only for AF_UNIX.
        let filter = [
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 3, 0, libc::SYS_connect as u32),
            instruction(0x15, 0, 3, libc::SYS_socket as u32),
            instruction(0x20, 0, 0, 16),
            instruction(0x15, 1, 0, libc::AF_UNIX as u32),
            instruction(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        assert_eq!(action(&filter, libc::SYS_connect, 0), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(action(&filter, libc::SYS_socket, libc::AF_UNIX as u64), libc::SECCOMP_RET_ALLOW);
        assert_eq!(action(&filter, libc::SYS_socket, libc::AF_INET as u64), libc::SECCOMP_RET_KILL_PROCESS);
        assert_eq!(action(&filter, libc::SYS_read, 0), libc::SECCOMP_RET_ALLOW);
        assert_eq!(action(&[], libc::SYS_read, 0), libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn an_error_is_no_end() {
        assert!(!is_deadly(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
        assert!(is_deadly(libc::SECCOMP_RET_TRAP) && is_deadly(libc::SECCOMP_RET_KILL_THREAD));
    }
}
