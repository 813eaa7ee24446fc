//! Atomic operations. On the stack, which only its thread sees, they are plain ones.

use super::memory::{Memory, Reached, Space};
use super::{Emitter, RESULT, put};
use crate::analyse::State;
use crate::flat::AtomicOp;
use crate::layout::Scope;
use crate::value::{Place, Value};
use crate::{Refusal, SiteKind};

/// An atomic operation, without its place.
#[derive(Clone, Copy)]
pub(super) struct Atomic {
    pub(super) op: AtomicOp,
    pub(super) fetch: bool,
    pub(super) wide: bool,
    pub(super) src: u8,
}

impl Atomic {
    fn bits(self) -> u32 {
        if self.wide { 64 } else { 32 }
    }
}

impl Emitter<'_> {
    pub(super) fn atomic(&mut self, atomic: Atomic, base: u8, off: i16, state: &State) -> Result<(), Refusal> {
        let n_bytes = atomic.bits() / 8;
        let src = self.read(atomic.src, state)?;
        if atomic.op == AtomicOp::CompareExchange {
            self.read(0, state)?;
        }
        let reached = self.reach(base, off.into(), n_bytes, state)?;
        match &reached {
            Reached::Memory(memory) if memory.space != Space::Local => {
                let varies =
                    matches!(state.reg(self.node.frame, base), Value::Element { at: Place::Varies { .. }, .. });
                self.align(memory, n_bytes, varies)?;
                self.atomic_global(atomic, &src, memory);
                Ok(())
            }
            _ => self.atomic_own(atomic, &src, &reached),
        }
    }

    /// Makes sure that a place is aligned: the device has no other atomic operations.
    fn align(&mut self, memory: &Memory, n_bytes: u32, varies: bool) -> Result<(), Refusal> {
        if 1 << memory.zeros.min(3) >= n_bytes {
            return Ok(());
        }
        if !varies {
            return self.refuse(format!("changes {n_bytes} bytes atomically that are not aligned"));
        }
        let (low, odd, failure) = (self.long(), self.predicate(), self.failure(SiteKind::BadAccess));
        put!(self, "add.s64 {low}, {}, {}", memory.base, memory.off);
        put!(self, "and.b64 {low}, {low}, {}", n_bytes - 1);
        put!(self, "setp.ne.u64 {odd}, {low}, 0");
        put!(self, "@{odd} bra {failure}");
        Ok(())
    }

    fn atomic_global(&mut self, atomic: Atomic, src: &str, memory: &Memory) {
        let Atomic { op, fetch, wide, .. } = atomic;
        let scope = match memory.space {
            Space::Global(Scope::System) => "sys",
            _ => "gpu",
        };
        let (place, bits) = (memory.byte(0), atomic.bits());
        if op == AtomicOp::Add && !fetch {
            return self.add(scope, memory, wide, src);
        }
        let name = match op {
            AtomicOp::Add => format!("add.u{bits}"),
            AtomicOp::Or => format!("or.b{bits}"),
            AtomicOp::And => format!("and.b{bits}"),
            AtomicOp::Xor => format!("xor.b{bits}"),
            AtomicOp::Exchange => format!("exch.b{bits}"),
            AtomicOp::CompareExchange => format!("cas.b{bits}"),
        };
        let operand = self.resized(src, wide);
        if !fetch {
            return put!(self, "red.relaxed.{scope}.global.{name} {place}, {operand}");
        }
        let old = if wide { self.long() } else { self.word() };
        let to = match op {
            AtomicOp::CompareExchange => {
                let expected = self.resized(RESULT, wide);
                put!(self, "atom.relaxed.{scope}.global.{name} {old}, {place}, {expected}, {operand}");
                RESULT
            }
            _ => {
                put!(self, "atom.relaxed.{scope}.global.{name} {old}, {place}, {operand}");
                src
            }
        };
        match wide {
            true => put!(self, "mov.b64 {to}, {old}"),
            false => put!(self, "cvt.u64.u32 {to}, {old}"),
        }
    }

    /// Returns a register of the operation's size.
    fn resized(&mut self, value: &str, wide: bool) -> String {
        if wide {
            return value.into();
        }
        let narrow = self.word();
        put!(self, "cvt.u32.u64 {narrow}, {value}");
        narrow
    }

    /// Adds without fetching.
    fn add(&mut self, scope: &str, memory: &Memory, wide: bool, src: &str) {
        let operand = self.resized(src, wide);
        let bits = if wide { 64 } else { 32 };
        put!(self, "red.relaxed.{scope}.global.add.u{bits} {}, {operand}", memory.byte(0));
    }

    /// Changes memory that only this thread accesses.
    fn atomic_own(&mut self, atomic: Atomic, src: &str, reached: &Reached) -> Result<(), Refusal> {
        let Atomic { op, fetch, wide, .. } = atomic;
        let n_bytes = atomic.bits() / 8;
        let (old, new) = (self.long(), self.long());
        self.load_into(&old, reached, 0, n_bytes, false)?;
        match op {
            AtomicOp::Add => put!(self, "add.s64 {new}, {old}, {src}"),
            AtomicOp::Or => put!(self, "or.b64 {new}, {old}, {src}"),
            AtomicOp::And => put!(self, "and.b64 {new}, {old}, {src}"),
            AtomicOp::Xor => put!(self, "xor.b64 {new}, {old}, {src}"),
            AtomicOp::Exchange => put!(self, "mov.b64 {new}, {src}"),
            AtomicOp::CompareExchange => {
                let (expected, equal) = (self.long(), self.predicate());
                match wide {
                    true => put!(self, "mov.b64 {expected}, {RESULT}"),
                    false => put!(self, "and.b64 {expected}, {RESULT}, 0xffffffff"),
                }
                put!(self, "setp.eq.u64 {equal}, {old}, {expected}");
                put!(self, "selp.b64 {new}, {src}, {old}, {equal}");
            }
        }
        self.store_from(&new, reached, 0, n_bytes)?;
        match op {
            AtomicOp::CompareExchange => put!(self, "mov.b64 {RESULT}, {old}"),
            _ if fetch => put!(self, "mov.b64 {src}, {old}"),
            _ => {}
        }
        Ok(())
    }
}
