//! The inner loop.

use super::call::{HelperCall, Scratch, lookup_on_stack};
use super::env::{Atomic, Env};
use super::fault::{Fault, FaultReason};
use super::fuse::{COPY_SLOTS, LOOKUP_SLOTS, RETURN_SLOTS};
use super::memory::{Caller, OpenCalls, RunMemory};
use super::op::{Decoded, Op};
use super::pointer::{self, CTX, STACK};
use crate::insn::{MAX_FRAMES, STACK_BYTES, atomic};

/// Registers; five more than exist, so that no 4-bit index needs a check.
type Registers = [u64; 16];

/// Runs a decoded program to its `exit`; returns R0.
#[expect(clippy::redundant_closure_call, reason = "the macros take each operation as a closure")]
pub(super) fn run<E: Env>(
    code: &[Decoded],
    memory: &mut RunMemory<'_>,
    scratch: &mut Scratch,
    env: &mut E,
    instruction_limit: u64,
) -> Result<u64, Fault> {
    let mut r: Registers = [0; 16];
    r[1] = pointer::make(CTX, 0);
    r[10] = pointer::make(STACK, STACK_BYTES as u64);
    let ctx = memory.local.ctx;
    let mut pc = 0;
    // Between two backward jumps a program only runs forward, so it is enough to charge those.
    let mut budget = instruction_limit;

    macro_rules! fail {
        ($reason:expr) => {
            return Err(Fault { insn: pc - 1, reason: $reason })
        };
    }
    macro_rules! jump {
        ($target:expr) => {{
            let target = $target as usize;
            if target < pc {
                budget = match budget.checked_sub((pc - target) as u64) {
                    Some(rest) => rest,
                    None => fail!(FaultReason::InstructionLimit),
                };
            }
            pc = target;
        }};
    }

    loop {
        // Each operation reads the parts that it needs.
        let Some(insn) = code.get(pc) else {
            return Err(Fault { insn: pc, reason: FaultReason::NoProgram });
        };
        pc += 1;

        macro_rules! wide {
            ($rhs:expr, $f:expr) => {{
                let f: fn(u64, u64) -> u64 = $f;
                r[insn.dst()] = f(r[insn.dst()], $rhs);
            }};
        }
        macro_rules! narrow {
            ($rhs:expr, $f:expr) => {{
                let f: fn(u32, u32) -> u32 = $f;
                r[insn.dst()] = u64::from(f(r[insn.dst()] as u32, $rhs as u32));
            }};
        }
        macro_rules! branch {
            ($rhs:expr, $type:ty, $test:expr) => {{
                let test: fn($type, $type) -> bool = $test;
                if test(r[insn.dst()] as $type, $rhs as $type) {
                    jump!(insn.off);
                }
            }};
        }
        macro_rules! load {
            ($type:ty, $wider:ty) => {{
                let address = r[insn.src()].wrapping_add(insn.imm);
                match memory.load(address) {
                    Some(bytes) => r[insn.dst()] = <$type>::from_le_bytes(bytes) as $wider as u64,
                    None => {
                        let len = size_of::<$type>();
                        fail!(FaultReason::BadAccess { address, len, write: false })
                    }
                }
            }};
        }
        macro_rules! store {
            ($type:ty, $value:expr) => {{
                let address = r[insn.dst()].wrapping_add(insn.off as i64 as u64);
                if memory.store(address, ($value as $type).to_le_bytes()).is_none() {
                    let len = size_of::<$type>();
                    fail!(FaultReason::BadAccess { address, len, write: true })
                }
            }};
        }
        macro_rules! stack {
            ($type:ty) => {
                memory
                    .local
                    .stack
                    .get_mut(insn.off as usize..)
                    .and_then(|it| it.first_chunk_mut::<{ size_of::<$type>() }>())
            };
        }
        macro_rules! stack_load {
            ($type:ty) => {
                match stack!($type) {
                    Some(bytes) => r[insn.dst()] = u64::from(<$type>::from_le_bytes(*bytes)),
                    None => fail!(bad_stack(insn.off, false)),
                }
            };
        }
        macro_rules! context_load {
            ($type:ty) => {
                match ctx.get(insn.imm as usize..).and_then(|it| it.first_chunk()) {
                    Some(bytes) => r[insn.dst()] = u64::from(<$type>::from_le_bytes(*bytes)),
                    None => {
                        let (address, len) = (r[insn.src()].wrapping_add(insn.imm), size_of::<$type>());
                        fail!(FaultReason::BadAccess { address, len, write: false })
                    }
                }
            };
        }
        macro_rules! stack_store {
            ($type:ty, $value:expr) => {
                match stack!($type) {
                    Some(bytes) => *bytes = ($value as $type).to_le_bytes(),
                    None => fail!(bad_stack(insn.off, true)),
                }
            };
        }
        macro_rules! atomic {
            ($method:ident, $op:expr, $len:expr) => {{
                let address = r[insn.dst()].wrapping_add(insn.off as i64 as u64);
                if $method(memory, address, $op, &mut r, insn.src()).is_none() {
                    fail!(FaultReason::BadAccess { address, len: $len, write: true })
                }
            }};
        }
        macro_rules! exit {
            () => {
                match leave(memory, &mut r) {
                    Some(back) => jump!(back),
                    None => return Ok(r[0]),
                }
            };
        }
        macro_rules! call {
            ($method:ident $(, $helper:expr)?) => {{
                let args = [r[1], r[2], r[3], r[4], r[5]];
                let mut call = HelperCall { memory: &mut *memory, scratch: &mut *scratch, env: &mut *env, args };
                match call.$method($($helper)?) {
                    Ok(answer) => r[0] = answer,
                    Err(reason) => fail!(reason),
                }
            }};
        }

        match insn.op {
            Op::Add64I => wide!(insn.imm, |a, b| a.wrapping_add(b)),
            Op::Add64R => wide!(r[insn.src()], |a, b| a.wrapping_add(b)),
            Op::Sub64I => wide!(insn.imm, |a, b| a.wrapping_sub(b)),
            Op::Sub64R => wide!(r[insn.src()], |a, b| a.wrapping_sub(b)),
            Op::Mul64I => wide!(insn.imm, |a, b| a.wrapping_mul(b)),
            Op::Mul64R => wide!(r[insn.src()], |a, b| a.wrapping_mul(b)),
            Op::Div64I => wide!(insn.imm, |a, b| a.checked_div(b).unwrap_or(0)),
            Op::Div64R => wide!(r[insn.src()], |a, b| a.checked_div(b).unwrap_or(0)),
            Op::SDiv64I => wide!(insn.imm, signed_div),
            Op::SDiv64R => wide!(r[insn.src()], signed_div),
            Op::Mod64I => wide!(insn.imm, |a, b| a.checked_rem(b).unwrap_or(a)),
            Op::Mod64R => wide!(r[insn.src()], |a, b| a.checked_rem(b).unwrap_or(a)),
            Op::SMod64I => wide!(insn.imm, signed_mod),
            Op::SMod64R => wide!(r[insn.src()], signed_mod),
            Op::Or64I => wide!(insn.imm, |a, b| a | b),
            Op::Or64R => wide!(r[insn.src()], |a, b| a | b),
            Op::And64I => wide!(insn.imm, |a, b| a & b),
            Op::And64R => wide!(r[insn.src()], |a, b| a & b),
            Op::Xor64I => wide!(insn.imm, |a, b| a ^ b),
            Op::Xor64R => wide!(r[insn.src()], |a, b| a ^ b),
            Op::Lsh64I => wide!(insn.imm, |a, b| a.wrapping_shl(b as u32)),
            Op::Lsh64R => wide!(r[insn.src()], |a, b| a.wrapping_shl(b as u32)),
            Op::Rsh64I => wide!(insn.imm, |a, b| a.wrapping_shr(b as u32)),
            Op::Rsh64R => wide!(r[insn.src()], |a, b| a.wrapping_shr(b as u32)),
            Op::Arsh64I => wide!(insn.imm, |a, b| (a as i64).wrapping_shr(b as u32) as u64),
            Op::Arsh64R => wide!(r[insn.src()], |a, b| (a as i64).wrapping_shr(b as u32) as u64),
            Op::Mov64I | Op::Mov32I => r[insn.dst()] = insn.imm,
            Op::Mov64R => r[insn.dst()] = r[insn.src()],
            Op::Neg64 => r[insn.dst()] = r[insn.dst()].wrapping_neg(),

            Op::Add32I => narrow!(insn.imm, |a, b| a.wrapping_add(b)),
            Op::Add32R => narrow!(r[insn.src()], |a, b| a.wrapping_add(b)),
            Op::Sub32I => narrow!(insn.imm, |a, b| a.wrapping_sub(b)),
            Op::Sub32R => narrow!(r[insn.src()], |a, b| a.wrapping_sub(b)),
            Op::Mul32I => narrow!(insn.imm, |a, b| a.wrapping_mul(b)),
            Op::Mul32R => narrow!(r[insn.src()], |a, b| a.wrapping_mul(b)),
            Op::Div32I => narrow!(insn.imm, |a, b| a.checked_div(b).unwrap_or(0)),
            Op::Div32R => narrow!(r[insn.src()], |a, b| a.checked_div(b).unwrap_or(0)),
            Op::SDiv32I => narrow!(insn.imm, signed_div_32),
            Op::SDiv32R => narrow!(r[insn.src()], signed_div_32),
            Op::Mod32I => narrow!(insn.imm, |a, b| a.checked_rem(b).unwrap_or(a)),
            Op::Mod32R => narrow!(r[insn.src()], |a, b| a.checked_rem(b).unwrap_or(a)),
            Op::SMod32I => narrow!(insn.imm, signed_mod_32),
            Op::SMod32R => narrow!(r[insn.src()], signed_mod_32),
            Op::Or32I => narrow!(insn.imm, |a, b| a | b),
            Op::Or32R => narrow!(r[insn.src()], |a, b| a | b),
            Op::And32I => narrow!(insn.imm, |a, b| a & b),
            Op::And32R => narrow!(r[insn.src()], |a, b| a & b),
            Op::Xor32I => narrow!(insn.imm, |a, b| a ^ b),
            Op::Xor32R => narrow!(r[insn.src()], |a, b| a ^ b),
            Op::Lsh32I => narrow!(insn.imm, |a, b| a.wrapping_shl(b)),
            Op::Lsh32R => narrow!(r[insn.src()], |a, b| a.wrapping_shl(b)),
            Op::Rsh32I => narrow!(insn.imm, |a, b| a.wrapping_shr(b)),
            Op::Rsh32R => narrow!(r[insn.src()], |a, b| a.wrapping_shr(b)),
            Op::Arsh32I => narrow!(insn.imm, |a, b| (a as i32).wrapping_shr(b) as u32),
            Op::Arsh32R => narrow!(r[insn.src()], |a, b| (a as i32).wrapping_shr(b) as u32),
            Op::Mov32R => r[insn.dst()] = u64::from(r[insn.src()] as u32),
            Op::Neg32 => r[insn.dst()] = u64::from((r[insn.dst()] as u32).wrapping_neg()),

            Op::MovS8To64 => r[insn.dst()] = r[insn.src()] as i8 as u64,
            Op::MovS16To64 => r[insn.dst()] = r[insn.src()] as i16 as u64,
            Op::MovS32To64 => r[insn.dst()] = r[insn.src()] as i32 as u64,
            Op::MovS8To32 => r[insn.dst()] = u64::from(r[insn.src()] as i8 as u32),
            Op::MovS16To32 => r[insn.dst()] = u64::from(r[insn.src()] as i16 as u32),
            Op::Low16 => r[insn.dst()] = u64::from(r[insn.dst()] as u16),
            Op::Low32 => r[insn.dst()] = u64::from(r[insn.dst()] as u32),
            Op::Low64 => {}
            Op::Swap16 => r[insn.dst()] = u64::from((r[insn.dst()] as u16).swap_bytes()),
            Op::Swap32 => r[insn.dst()] = u64::from((r[insn.dst()] as u32).swap_bytes()),
            Op::Swap64 => r[insn.dst()] = r[insn.dst()].swap_bytes(),

            Op::Ja => jump!(insn.off),
            Op::Jeq64I => branch!(insn.imm, u64, |a, b| a == b),
            Op::Jeq64R => branch!(r[insn.src()], u64, |a, b| a == b),
            Op::Jne64I => branch!(insn.imm, u64, |a, b| a != b),
            Op::Jne64R => branch!(r[insn.src()], u64, |a, b| a != b),
            Op::Jgt64I => branch!(insn.imm, u64, |a, b| a > b),
            Op::Jgt64R => branch!(r[insn.src()], u64, |a, b| a > b),
            Op::Jge64I => branch!(insn.imm, u64, |a, b| a >= b),
            Op::Jge64R => branch!(r[insn.src()], u64, |a, b| a >= b),
            Op::Jlt64I => branch!(insn.imm, u64, |a, b| a < b),
            Op::Jlt64R => branch!(r[insn.src()], u64, |a, b| a < b),
            Op::Jle64I => branch!(insn.imm, u64, |a, b| a <= b),
            Op::Jle64R => branch!(r[insn.src()], u64, |a, b| a <= b),
            Op::Jset64I => branch!(insn.imm, u64, |a, b| a & b != 0),
            Op::Jset64R => branch!(r[insn.src()], u64, |a, b| a & b != 0),
            Op::Jsgt64I => branch!(insn.imm, i64, |a, b| a > b),
            Op::Jsgt64R => branch!(r[insn.src()], i64, |a, b| a > b),
            Op::Jsge64I => branch!(insn.imm, i64, |a, b| a >= b),
            Op::Jsge64R => branch!(r[insn.src()], i64, |a, b| a >= b),
            Op::Jslt64I => branch!(insn.imm, i64, |a, b| a < b),
            Op::Jslt64R => branch!(r[insn.src()], i64, |a, b| a < b),
            Op::Jsle64I => branch!(insn.imm, i64, |a, b| a <= b),
            Op::Jsle64R => branch!(r[insn.src()], i64, |a, b| a <= b),
            Op::Jeq32I => branch!(insn.imm, u32, |a, b| a == b),
            Op::Jeq32R => branch!(r[insn.src()], u32, |a, b| a == b),
            Op::Jne32I => branch!(insn.imm, u32, |a, b| a != b),
            Op::Jne32R => branch!(r[insn.src()], u32, |a, b| a != b),
            Op::Jgt32I => branch!(insn.imm, u32, |a, b| a > b),
            Op::Jgt32R => branch!(r[insn.src()], u32, |a, b| a > b),
            Op::Jge32I => branch!(insn.imm, u32, |a, b| a >= b),
            Op::Jge32R => branch!(r[insn.src()], u32, |a, b| a >= b),
            Op::Jlt32I => branch!(insn.imm, u32, |a, b| a < b),
            Op::Jlt32R => branch!(r[insn.src()], u32, |a, b| a < b),
            Op::Jle32I => branch!(insn.imm, u32, |a, b| a <= b),
            Op::Jle32R => branch!(r[insn.src()], u32, |a, b| a <= b),
            Op::Jset32I => branch!(insn.imm, u32, |a, b| a & b != 0),
            Op::Jset32R => branch!(r[insn.src()], u32, |a, b| a & b != 0),
            Op::Jsgt32I => branch!(insn.imm, i32, |a, b| a > b),
            Op::Jsgt32R => branch!(r[insn.src()], i32, |a, b| a > b),
            Op::Jsge32I => branch!(insn.imm, i32, |a, b| a >= b),
            Op::Jsge32R => branch!(r[insn.src()], i32, |a, b| a >= b),
            Op::Jslt32I => branch!(insn.imm, i32, |a, b| a < b),
            Op::Jslt32R => branch!(r[insn.src()], i32, |a, b| a < b),
            Op::Jsle32I => branch!(insn.imm, i32, |a, b| a <= b),
            Op::Jsle32R => branch!(r[insn.src()], i32, |a, b| a <= b),

            Op::Load8 => load!(u8, u8),
            Op::Load16 => load!(u16, u16),
            Op::Load32 => load!(u32, u32),
            Op::Load64 => load!(u64, u64),
            Op::LoadS8 => load!(i8, i64),
            Op::LoadS16 => load!(i16, i64),
            Op::LoadS32 => load!(i32, i64),
            Op::StackLoad8 => stack_load!(u8),
            Op::StackLoad16 => stack_load!(u16),
            Op::StackLoad32 => stack_load!(u32),
            Op::StackLoad64 => stack_load!(u64),
            Op::ContextLoad8 => context_load!(u8),
            Op::ContextLoad16 => context_load!(u16),
            Op::ContextLoad32 => context_load!(u32),
            Op::ContextLoad64 => context_load!(u64),
            Op::Store8I => store!(u8, insn.imm),
            Op::Store16I => store!(u16, insn.imm),
            Op::Store32I => store!(u32, insn.imm),
            Op::Store64I => store!(u64, insn.imm),
            Op::Store8R => store!(u8, r[insn.src()]),
            Op::Store16R => store!(u16, r[insn.src()]),
            Op::Store32R => store!(u32, r[insn.src()]),
            Op::Store64R => store!(u64, r[insn.src()]),
            Op::StackStore8I => stack_store!(u8, insn.imm),
            Op::StackStore16I => stack_store!(u16, insn.imm),
            Op::StackStore32I => stack_store!(u32, insn.imm),
            Op::StackStore64I => stack_store!(u64, insn.imm),
            Op::StackStore8R => stack_store!(u8, r[insn.src()]),
            Op::StackStore16R => stack_store!(u16, r[insn.src()]),
            Op::StackStore32R => stack_store!(u32, r[insn.src()]),
            Op::StackStore64R => stack_store!(u64, r[insn.src()]),

            Op::AtomicAdd64 => atomic!(atomic_64, atomic::ADD, 8),
            Op::Atomic64 => atomic!(atomic_64, insn.imm as i32, 8),
            Op::Atomic32 => atomic!(atomic_32, insn.imm as i32, 4),
            Op::LdImm64 => {
                r[insn.dst()] = insn.imm;
                pc += 1;
            }
            Op::Lookup => call!(lookup),
            Op::CopyToStack64 => {
                context_load!(u64);
                stack_store!(u64, r[insn.dst()]);
                pc += COPY_SLOTS - 1;
            }
            Op::StackLookup => {
                (r[1], r[2]) = (insn.imm, pointer::make(STACK, insn.off as u64));
                pc += LOOKUP_SLOTS - 1;
                match lookup_on_stack(memory, insn.imm, insn.off as usize) {
                    Ok(answer) => r[0] = answer,
                    Err(reason) => fail!(reason),
                }
            }
            Op::Call => call!(run, insn.imm as i32),
            Op::CallLocal => match enter(memory, &mut r, pc) {
                Some(()) => jump!(insn.off),
                None => fail!(FaultReason::TooManyFrames),
            },
            Op::Exit => exit!(),
            Op::Return => {
                r[0] = insn.imm;
                pc += RETURN_SLOTS - 1;
                exit!();
            }
            Op::Half => fail!(FaultReason::NoProgram),
        }
    }
}

/// Begins a function; `None` if too many are inside each other.
#[cold]
fn enter(memory: &mut RunMemory<'_>, r: &mut Registers, pc: usize) -> Option<()> {
    let OpenCalls { callers, stacks } = &mut *memory.local.calls;
    if callers.len() + 1 >= MAX_FRAMES {
        return None;
    }
    callers.push(Caller { saved: [r[6], r[7], r[8], r[9], r[10]], pc });
    let depth = callers.len();
    stacks.resize(depth * STACK_BYTES, 0);
    r[10] = pointer::make(STACK, ((depth + 1) * STACK_BYTES) as u64);
    Some(())
}

/// Ends a function; returns where its caller goes on.
#[inline(always)]
fn leave(memory: &mut RunMemory<'_>, r: &mut Registers) -> Option<usize> {
    let OpenCalls { callers, stacks } = &mut *memory.local.calls;
    let Caller { saved, pc } = callers.pop()?;
    stacks.truncate(callers.len() * STACK_BYTES);
    r[6..=10].copy_from_slice(&saved);
    Some(pc)
}

fn bad_stack(place: i32, write: bool) -> FaultReason {
    FaultReason::BadAccess { address: pointer::make(STACK, place as u64), len: 0, write }
}

/// Follows Linux: dividing by zero yields 0, and the smallest number divided by -1 is itself.
fn signed_div(a: u64, b: u64) -> u64 {
    match b {
        0 => 0,
        _ => (a as i64).wrapping_div(b as i64) as u64,
    }
}

/// Follows Linux: the dividend for a division by zero, and 0 for -1.
fn signed_mod(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => (a as i64).wrapping_rem(b as i64) as u64,
    }
}

fn signed_div_32(a: u32, b: u32) -> u32 {
    match b {
        0 => 0,
        _ => (a as i32).wrapping_div(b as i32) as u32,
    }
}

fn signed_mod_32(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => (a as i32).wrapping_rem(b as i32) as u32,
    }
}

/// A single thread runs the engine, so plain access to its own memory is atomic enough.
#[inline(always)]
fn atomic_64(memory: &mut RunMemory<'_>, address: u64, op: i32, r: &mut Registers, src: usize) -> Option<()> {
    let atomic = Atomic { op, operand: r[src], expected: r[0] };
    if let Some(old) = memory.atomic_elsewhere(address, 8, atomic) {
        give_back(op, old, r, src);
        return Some(());
    }
    let number = memory.bytes_mut(address, 8)?.first_chunk_mut()?;
    let old = u64::from_le_bytes(*number);
    *number = changed(op, old, r[src], r[0])?.to_le_bytes();
    give_back(op, old, r, src);
    Some(())
}

#[inline(always)]
fn atomic_32(memory: &mut RunMemory<'_>, address: u64, op: i32, r: &mut Registers, src: usize) -> Option<()> {
    let atomic = Atomic { op, operand: u64::from(r[src] as u32), expected: u64::from(r[0] as u32) };
    if let Some(old) = memory.atomic_elsewhere(address, 4, atomic) {
        give_back(op, old, r, src);
        return Some(());
    }
    let number = memory.bytes_mut(address, 4)?.first_chunk_mut()?;
    let old = u32::from_le_bytes(*number);
    let new = changed(op, old.into(), u64::from(r[src] as u32), u64::from(r[0] as u32))?;
    *number = (new as u32).to_le_bytes();
    give_back(op, old.into(), r, src);
    Some(())
}

#[inline(always)]
fn changed(op: i32, old: u64, operand: u64, expected: u64) -> Option<u64> {
    Some(match op {
        atomic::XCHG => operand,
        atomic::CMPXCHG if old == expected => operand,
        atomic::CMPXCHG => old,
        _ => match op & !atomic::FETCH {
            atomic::ADD => old.wrapping_add(operand),
            atomic::OR => old | operand,
            atomic::AND => old & operand,
            atomic::XOR => old ^ operand,
            _ => return None,
        },
    })
}

#[inline(always)]
fn give_back(op: i32, old: u64, r: &mut Registers, src: usize) {
    match op {
        atomic::CMPXCHG => r[0] = old,
        _ if op & atomic::FETCH != 0 => r[src & 15] = old,
        _ => {}
    }
}
