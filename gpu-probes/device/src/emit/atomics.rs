//! Atomic operations. On the stack, which only its thread sees, they are plain ones.

use super::memory::{Address, Reached, Space};
use super::{Emitter, RESULT, put};
use crate::analyse::State;
use crate::flat::AtomicOp;
use crate::layout::Scope;
use crate::sums;
use crate::value::{Offset, Value};
use crate::{Refusal, SiteKind};

/// The first architecture with `redux` ("redux.sync", section 9.7.13.18).
const LEAST_REDUX_ARCHITECTURE: u32 = 80;

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

/// Returns who sees a change of this memory.
fn scope(memory: &Address) -> &'static str {
    match memory.space {
        Space::Global(Scope::System) => "sys",
        _ => "gpu",
    }
}

impl Emitter<'_> {
    pub(super) fn atomic(&mut self, atomic: Atomic, base: u8, off: i16, state: &State) -> Result<(), Refusal> {
        let n_bytes = atomic.bits() / 8;
        let src = self.read(atomic.src, state)?;
        if atomic.op == AtomicOp::CompareExchange {
            self.read(0, state)?;
        }
        if let Value::Sum { sum, at } = state.reg(self.node.frame, base) {
            return self.add_to_sum(atomic, &src, sum, at.plus(off.into()));
        }
        let reached = self.reach(base, off.into(), n_bytes, state)?;
        match &reached {
            Reached::Memory(memory) if memory.space != Space::Local => {
                let varies =
                    matches!(state.reg(self.node.frame, base), Value::Element { at: Offset::Varies { .. }, .. });
                self.align(memory, n_bytes, varies)?;
                let known = state.reg(self.node.frame, atomic.src).scalar().known;
                self.atomic_global(atomic, &src, known, memory);
                Ok(())
            }
            _ => self.atomic_own(atomic, &src, &reached),
        }
    }

    /// Adds to a word of a sum that the thread keeps in registers.
    fn add_to_sum(&mut self, atomic: Atomic, src: &str, sum: usize, at: Option<Offset>) -> Result<(), Refusal> {
        let (AtomicOp::Add, false, true, Some(Offset::Fixed(at))) = (atomic.op, atomic.fetch, atomic.wide, at) else {
            return self.refuse("does more with a sum in registers than to add to it");
        };
        let word = sums::word(sum, at);
        put!(self, "add.s64 {word}, {word}, {src}");
        Ok(())
    }

    /// Makes sure that a place is aligned: the device has no other atomic operations.
    fn align(&mut self, memory: &Address, n_bytes: u32, varies: bool) -> Result<(), Refusal> {
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

    fn atomic_global(&mut self, atomic: Atomic, src: &str, known: Option<u64>, memory: &Address) {
        let Atomic { op, fetch, wide, .. } = atomic;
        let scope = scope(memory);
        let (place, bits) = (memory.byte(0), atomic.bits());
        if op == AtomicOp::Add && !fetch {
            return self.add(scope, memory, wide, src, known);
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
        let old = self.register(wide);
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

    /// Replaces the word at R1 by the number in R2, if that is larger without a sign.
    pub(super) fn raise(&mut self, state: &State) -> Result<(), Refusal> {
        let number = self.read(2, state)?;
        if let Value::Sum { sum, at: Offset::Fixed(at) } = state.reg(self.node.frame, 1) {
            let word = sums::word(sum, at);
            put!(self, "max.u64 {word}, {word}, {number}");
            put!(self, "mov.b64 {RESULT}, 0");
            return Ok(());
        }
        let reached = self.reach(1, 0, 8, state)?;
        match &reached {
            Reached::Memory(memory) if memory.space != Space::Local => {
                let varies = matches!(state.reg(self.node.frame, 1), Value::Element { at: Offset::Varies { .. }, .. });
                self.align(memory, 8, varies)?;
                let scope = scope(memory);
                self.raise_global(scope, memory, &number);
            }
            _ => {
                let value = self.long();
                self.load_into(&value, &reached, 0, 8, false)?;
                put!(self, "max.u64 {value}, {value}, {number}");
                self.store_from(&value, &reached, 0, 8)?;
            }
        }
        put!(self, "mov.b64 {RESULT}, 0");
        Ok(())
    }

    /// Raises a word: once if all threads of a warp raise the same one together, else each for itself.
    fn raise_global(&mut self, scope: &str, memory: &Address, number: &str) {
        let raise = format!("red.relaxed.{scope}.global.max.u64 {}", memory.byte(0));
        if self.request.options.architecture < LEAST_REDUX_ARCHITECTURE {
            return put!(self, "{raise}, {number}");
        }
        let (place, done) = (self.long(), self.label());
        put!(self, "add.s64 {place}, {}, {}", memory.base, memory.off);
        let (together, each) = self.unless_same(&place);
        let largest = self.largest(number, &together);
        self.unless_leader(&together, &done);
        put!(self, "{raise}, {largest}");
        put!(self, "bra {done}");
        self.place(&each);
        put!(self, "{raise}, {number}");
        self.place(&done);
    }

    /// Returns the threads that are there together, and a label: it goes there if their places are not all the same.
    fn unless_same(&mut self, place: &str) -> (String, String) {
        let (together, same, ignored, each) = (self.word(), self.predicate(), self.word(), self.label());
        put!(self, "activemask.b32 {together}");
        put!(self, "match.all.sync.b64 {ignored}|{same}, {place}, {together}");
        put!(self, "@!{same} bra {each}");
        (together, each)
    }

    /// Returns the largest of the threads' numbers, by halves: the lower ones count where the upper one is the largest.
    fn largest(&mut self, number: &str, together: &str) -> String {
        let (low, high, top, bottom) = (self.word(), self.word(), self.word(), self.word());
        let (is_top, largest) = (self.predicate(), self.long());
        put!(self, "mov.b64 {{{low}, {high}}}, {number}");
        put!(self, "redux.sync.max.u32 {top}, {high}, {together}");
        put!(self, "setp.eq.u32 {is_top}, {high}, {top}");
        put!(self, "selp.b32 {low}, {low}, 0, {is_top}");
        put!(self, "redux.sync.max.u32 {bottom}, {low}, {together}");
        put!(self, "mov.b64 {largest}, {{{bottom}, {top}}}");
        largest
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

    /// Adds without fetching: one addition for all threads of a warp that add to the same word together.
    ///
    /// The threads are those that `activemask` sees. All of them execute what follows, so the exchanges are among exactly
    /// these, however the warp has diverged before.
    fn add(&mut self, scope: &str, memory: &Address, wide: bool, src: &str, known: Option<u64>) {
        let bits = if wide { 64 } else { 32 };
        let place = self.long();
        let operand = self.resized(src, wide);
        put!(self, "add.s64 {place}, {}, {}", memory.base, memory.off);
        let add = format!("red.relaxed.{scope}.global.add.u{bits} [{place}+0]");
        match known {
            Some(_) => self.add_same(&add, wide, &place, &operand),
            None if self.request.options.architecture >= LEAST_REDUX_ARCHITECTURE => {
                self.add_any(&add, wide, &place, &operand);
            }
            None => put!(self, "{add}, {operand}"),
        }
    }

    /// Adds a number that is the same in all threads: once for each word that some of them add to.
    fn add_same(&mut self, add: &str, wide: bool, place: &str, operand: &str) {
        let together = self.word();
        put!(self, "activemask.b32 {together}");
        let (peers, n_peers, total, done) = (self.word(), self.word(), self.register(wide), self.label());
        put!(self, "match.any.sync.b64 {peers}, {place}, {together}");
        put!(self, "popc.b32 {n_peers}, {peers}");
        self.unless_leader(&peers, &done);
        match wide {
            true => {
                put!(self, "cvt.u64.u32 {total}, {n_peers}");
                put!(self, "mul.lo.u64 {total}, {total}, {operand}");
            }
            false => put!(self, "mul.lo.u32 {total}, {n_peers}, {operand}"),
        }
        put!(self, "{add}, {total}");
        self.place(&done);
    }

    /// Adds numbers that may differ: once if all threads add to the same word, else each for itself.
    fn add_any(&mut self, add: &str, wide: bool, place: &str, operand: &str) {
        let done = self.label();
        let (together, each) = self.unless_same(place);
        let total = if wide { self.sum_wide(operand, &together) } else { self.sum_piece(operand, &together) };
        self.unless_leader(&together, &done);
        put!(self, "{add}, {total}");
        put!(self, "bra {done}");
        self.place(&each);
        put!(self, "{add}, {operand}");
        self.place(&done);
    }

    /// Returns the sum over threads of 32-bit numbers.
    fn sum_piece(&mut self, operand: &str, together: &str) -> String {
        let sum = self.word();
        put!(self, "redux.sync.add.u32 {sum}, {operand}, {together}");
        sum
    }

    /// Returns the sum of 64-bit numbers, from the sums of pieces that can't overflow.
    fn sum_wide(&mut self, operand: &str, together: &str) -> String {
        let total = self.long();
        for (shift, n_bits) in [(0, 24), (24, 24), (48, 16)] {
            let (bits, piece, sum) = (self.long(), self.word(), self.long());
            put!(self, "bfe.u64 {bits}, {operand}, {shift}, {n_bits}");
            put!(self, "cvt.u32.u64 {piece}, {bits}");
            let narrow = self.sum_piece(&piece, together);
            put!(self, "cvt.u64.u32 {sum}, {narrow}");
            match shift {
                0 => put!(self, "mov.b64 {total}, {sum}"),
                _ => {
                    put!(self, "shl.b64 {sum}, {sum}, {shift}");
                    put!(self, "add.s64 {total}, {total}, {sum}");
                }
            }
        }
        total
    }

    /// Goes to a label in all threads of a mask but one.
    fn unless_leader(&mut self, mask: &str, label: &str) {
        let (leader, lane, follows) = (self.word(), self.word(), self.predicate());
        put!(self, "bfind.u32 {leader}, {mask}");
        put!(self, "mov.u32 {lane}, %laneid");
        put!(self, "setp.ne.u32 {follows}, {lane}, {leader}");
        put!(self, "@{follows} bra {label}");
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
