//! Loads and stores, of the width and state space that the pointer's type says.

use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::insn::Size;

use super::{Emitter, StackHome, put, stack_word};
use crate::analyse::State;
use crate::flat::{Operand, STACK_BYTES};
use crate::layout::{Scope, Storage, descriptor, header};
use crate::value::{Null, Offset, Value};
use crate::{Refusal, SiteKind, Word};

/// Bytes that were found to be accessible.
#[derive(Clone, Debug)]
pub(super) enum Reached {
    /// Words of the stack that are in registers: the frame, and the byte from the stack's lowest.
    Registers {
        frame: u8,
        at: i64,
    },
    /// The context, at a byte.
    Context(i64),
    Memory(Address),
}

/// A place in memory.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) space: Space,
    /// Register that holds an address.
    pub(super) base: String,
    /// Bytes from there.
    pub(super) off: i64,
    /// Low bits of the place's address that are certainly 0.
    pub(super) zeros: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Local,
    Global(Scope),
}

/// How a pointer's range is known.
struct Bounds {
    /// Where the pointer's offset begins to count, and the first offset behind it.
    low: i64,
    high: i64,
    what: &'static str,
}

impl Space {
    /// Returns the suffix of loads and stores. Global memory is accessed past the processor's own cache, as other
    /// processors change it (section 8.3, "relaxed").
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Space::Local => "local",
            Space::Global(Scope::Device) => "relaxed.gpu.global",
            Space::Global(Scope::System) => "relaxed.sys.global",
        }
    }
}

impl Address {
    /// Returns the address of a byte in it, as an operand.
    pub(super) fn byte(&self, delta: i64) -> String {
        format!("[{}+{}]", self.base, self.off + delta)
    }

    /// Bytes that one access at `delta` may have: its natural alignment.
    fn granule(&self, delta: i64) -> u32 {
        1 << self.zeros.min(3).min(delta.trailing_zeros() as u8)
    }
}

impl Emitter<'_> {
    /// Returns where `n_bytes` bytes at a register plus an offset are. What isn't certain is tested; a run that fails the
    /// test ends, counted.
    pub(super) fn reach(&mut self, reg: u8, off: i64, n_bytes: u32, state: &State) -> Result<Reached, Refusal> {
        let value = state.reg(self.node.frame, reg);
        let base = self.read(reg, state)?;
        self.reach_value(value, &base, off, n_bytes)
    }

    pub(super) fn reach_value(&mut self, value: Value, base: &str, off: i64, n_bytes: u32) -> Result<Reached, Refusal> {
        match value {
            Value::Stack { frame, at } => self.reach_stack(frame, at, base, off, n_bytes),
            Value::Context(at) => Ok(Reached::Context(i64::from(at) + off)),
            Value::Element { map, at, null } => self.reach_element(map, at, null, base, off, n_bytes),
            Value::Record { n_bytes: len, at, null } => {
                self.require(null, base);
                let Offset::Fixed(start) = at else {
                    return self.refuse("accesses a record at an offset that isn't constant");
                };
                self.check_fixed(
                    i64::from(start) + off,
                    n_bytes,
                    &Bounds { low: 0, high: len.into(), what: "record" },
                )?;
                Ok(Reached::Memory(Address {
                    space: Space::Global(Scope::System),
                    base: base.into(),
                    off,
                    zeros: at.plus(off).map_or(0, Offset::zeros),
                }))
            }
            other => self.refuse(format!("accesses memory through {}", other.name())),
        }
    }

    /// Ends the run if a pointer is null.
    pub(super) fn require(&mut self, null: Null, base: &str) {
        if null == Null::Never {
            return;
        }
        let (is_null, failure) = (self.predicate(), self.failure(SiteKind::BadAccess));
        put!(self, "setp.eq.u64 {is_null}, {base}, 0");
        put!(self, "@{is_null} bra {failure}");
    }

    fn check_fixed(&self, at: i64, n_bytes: u32, bounds: &Bounds) -> Result<(), Refusal> {
        if at < bounds.low || at + i64::from(n_bytes) > bounds.high {
            let Bounds { low, high, what } = bounds;
            return self
                .refuse(format!("accesses {n_bytes} bytes at offset {at} of a {what} that has {low} to {high}"));
        }
        Ok(())
    }

    /// Ends the run unless `n_bytes` bytes at `base + off` are among the `region` bytes at `start`.
    fn check_range(&mut self, base: &str, off: i64, n_bytes: u32, start: &str, region: &str) {
        let (at, end, outside, failure) =
            (self.long(), self.long(), self.predicate(), self.failure(SiteKind::BadAccess));
        put!(self, "sub.s64 {at}, {base}, {start}");
        put!(self, "add.s64 {at}, {at}, {off}");
        put!(self, "sub.s64 {end}, {region}, {n_bytes}");
        put!(self, "setp.gt.u64 {outside}, {at}, {end}");
        put!(self, "@{outside} bra {failure}");
    }

    fn reach_stack(&mut self, frame: u8, at: Offset, base: &str, off: i64, n_bytes: u32) -> Result<Reached, Refusal> {
        let bounds = Bounds { low: -STACK_BYTES, high: 0, what: "stack" };
        match at {
            Offset::Fixed(start) => {
                let at = i64::from(start) + off;
                self.check_fixed(at, n_bytes, &bounds)?;
                if self.stack == StackHome::Registers {
                    return Ok(Reached::Registers { frame, at: at + STACK_BYTES });
                }
            }
            Offset::Varies { .. } => {
                let (start, size) = (self.long(), self.long());
                put!(self, "add.s64 {start}, {}, {}", super::frame_pointer(frame), -STACK_BYTES);
                put!(self, "mov.b64 {size}, {STACK_BYTES}");
                self.check_range(base, off, n_bytes, &start, &size);
            }
        }
        let zeros = at.plus(off).map_or(0, Offset::zeros);
        Ok(Reached::Memory(Address { space: Space::Local, base: base.into(), off, zeros }))
    }

    fn reach_element(
        &mut self,
        map: BpfMapId,
        at: Offset,
        null: Null,
        base: &str,
        off: i64,
        n_bytes: u32,
    ) -> Result<Reached, Refusal> {
        self.require(null, base);
        let shape = self.request.maps[map.index()];
        match at {
            Offset::Fixed(start) => {
                let bounds = Bounds { low: 0, high: shape.value_bytes.into(), what: "map's value" };
                self.check_fixed(i64::from(start) + off, n_bytes, &bounds)?;
            }
            Offset::Varies { .. } => {
                let values = self.part(map, descriptor::VALUES);
                let region = self.long();
                let bytes = shape.value_bytes_in_all();
                match shape.kind {
                    Storage::PerThreadArray => {
                        let threads = self.descriptor(map, descriptor::THREADS);
                        put!(self, "mul.lo.u64 {region}, {threads}, {bytes}");
                    }
                    _ => put!(self, "mov.b64 {region}, {bytes}"),
                }
                self.check_range(base, off, n_bytes, &values, &region);
            }
        }
        let zeros = at.plus(off).map_or(0, Offset::zeros);
        Ok(Reached::Memory(Address { space: Space::Global(shape.scope), base: base.into(), off, zeros }))
    }

    /// Returns a register with the address of a part of a map.
    pub(super) fn part(&mut self, map: BpfMapId, offset: i64) -> String {
        self.address(descriptor_at(map) + offset)
    }

    /// Returns a register with a word of a map's descriptor that doesn't change while a kernel runs.
    pub(super) fn descriptor(&mut self, map: BpfMapId, offset: i64) -> String {
        self.header(descriptor_at(map) + offset)
    }

    pub(super) fn load_map_value(&mut self, dst: u8, map: BpfMapId, offset: i32) -> Result<(), Refusal> {
        let shape = self.request.maps[map.index()];
        if !matches!(shape.kind, Storage::Array | Storage::OuterArray) || shape.parts > 1 {
            return self.refuse("takes the address of a value of a map that is no array, or has several parts");
        }
        let (values, dst) = (self.part(map, descriptor::VALUES), self.reg(dst));
        put!(self, "add.s64 {dst}, {values}, {offset}");
        Ok(())
    }

    pub(super) fn load(
        &mut self,
        size: Size,
        signed: bool,
        dst: u8,
        base: u8,
        off: i16,
        state: &State,
    ) -> Result<(), Refusal> {
        let n_bytes = size.bytes() as u32;
        let reached = self.reach(base, off.into(), n_bytes, state)?;
        let dst = self.reg(dst);
        self.load_into(&dst, &reached, 0, n_bytes, signed)
    }

    /// Loads up to 8 bytes, `delta` bytes from the place that was reached.
    pub(super) fn load_into(
        &mut self,
        dst: &str,
        from: &Reached,
        delta: i64,
        n_bytes: u32,
        signed: bool,
    ) -> Result<(), Refusal> {
        match from {
            Reached::Registers { frame, at } => self.load_registers(dst, *frame, at + delta, n_bytes, signed),
            Reached::Context(at) => return self.load_context(dst, at + delta, n_bytes, signed),
            Reached::Memory(memory) => self.load_memory(dst, memory, delta, n_bytes, signed),
        }
        Ok(())
    }

    fn stack_word(&mut self, frame: u8, word: i64) -> String {
        self.stack_words.insert((frame, word));
        stack_word(frame, word)
    }

    fn load_registers(&mut self, dst: &str, frame: u8, at: i64, n_bytes: u32, signed: bool) {
        let (word, shift, bits) = (at / 8, at % 8 * 8, i64::from(n_bytes) * 8);
        let low = self.stack_word(frame, word);
        if bits == 64 && shift == 0 {
            return put!(self, "mov.b64 {dst}, {low}");
        }
        let sign = if signed { 's' } else { 'u' };
        if shift + bits <= 64 {
            return put!(self, "bfe.{sign}64 {dst}, {low}, {shift}, {bits}");
        }
        let high = self.stack_word(frame, word + 1);
        let (a, b) = (self.long(), self.long());
        put!(self, "shr.u64 {a}, {low}, {shift}");
        put!(self, "shl.b64 {b}, {high}, {}", 64 - shift);
        put!(self, "or.b64 {a}, {a}, {b}");
        put!(self, "bfe.{sign}64 {dst}, {a}, 0, {bits}");
    }

    fn load_memory(&mut self, dst: &str, memory: &Address, delta: i64, n_bytes: u32, signed: bool) {
        let suffix = memory.space.suffix();
        let granule = memory.granule(delta).min(n_bytes);
        let sign = if signed { 's' } else { 'u' };
        if granule == n_bytes {
            return put!(self, "ld.{suffix}.{sign}{} {dst}, {}", n_bytes * 8, memory.byte(delta));
        }
        let whole = self.long();
        for at in (0..n_bytes).step_by(granule as usize) {
            let piece = if at == 0 { whole.clone() } else { self.long() };
            put!(self, "ld.{suffix}.u{} {piece}, {}", granule * 8, memory.byte(delta + i64::from(at)));
            if at > 0 {
                put!(self, "shl.b64 {piece}, {piece}, {}", at * 8);
                put!(self, "or.b64 {whole}, {whole}, {piece}");
            }
        }
        match signed {
            true => put!(self, "cvt.s64.s{} {dst}, {whole}", n_bytes * 8),
            false => put!(self, "mov.b64 {dst}, {whole}"),
        }
    }

    fn load_context(&mut self, dst: &str, at: i64, n_bytes: u32, signed: bool) -> Result<(), Refusal> {
        let n_words = self.request.context.len() as i64;
        let end = at + i64::from(n_bytes);
        if at < 0 || end > n_words * 8 || at / 8 != (end - 1) / 8 {
            let what = "which is outside of the context, or spans two words";
            return self.refuse(format!("reads {n_bytes} bytes at {at} of the context's {n_words} words, {what}"));
        }
        let word = self.context_word((at / 8) as usize)?;
        let (shift, bits) = (at % 8 * 8, n_bytes * 8);
        match (bits, signed) {
            (64, _) => put!(self, "mov.b64 {dst}, {word}"),
            (_, true) => put!(self, "bfe.s64 {dst}, {word}, {shift}, {bits}"),
            (_, false) => put!(self, "bfe.u64 {dst}, {word}, {shift}, {bits}"),
        }
        Ok(())
    }

    fn context_word(&mut self, index: usize) -> Result<String, Refusal> {
        let word = &self.request.context[index];
        if *word == Word::Absent {
            return self.refuse(format!("reads word {index} of the context, which this event does not have"));
        }
        if !word.changes() {
            let register = self.long();
            self.materialize(index, &register);
            return Ok(register);
        }
        if let Some(register) = self.words.get(&index) {
            return Ok(register.clone());
        }
        let register = self.long();
        self.words.insert(index, register.clone());
        Ok(register)
    }

    /// Sets a register to a word of the context.
    pub(super) fn materialize(&mut self, index: usize, register: &str) {
        match &self.request.context[index] {
            Word::Absent => {}
            Word::Constant(value) => put!(self, "mov.b64 {register}, {value:#x}"),
            Word::Wide(from) => put!(self, "mov.u64 {register}, {from}"),
            Word::Narrow(from) => {
                let narrow = self.word();
                put!(self, "mov.u32 {narrow}, {from}");
                put!(self, "cvt.u64.u32 {register}, {narrow}");
            }
            Word::Statements(text) | Word::Fixed(text) => {
                let text = text.replace("{d}", register);
                self.body.push_str(&format!("    {{ {text} }}\n"));
            }
        }
    }

    pub(super) fn store(
        &mut self,
        size: Size,
        base: u8,
        off: i16,
        value: Operand,
        state: &State,
    ) -> Result<(), Refusal> {
        let n_bytes = size.bytes() as u32;
        let to = self.reach(base, off.into(), n_bytes, state)?;
        let value = match value {
            Operand::Reg(_) => self.operand(value, state)?,
            Operand::Imm(imm) => self.constant(imm),
        };
        self.store_from(&value, &to, 0, n_bytes)
    }

    pub(super) fn constant(&mut self, value: i64) -> String {
        let register = self.long();
        put!(self, "mov.b64 {register}, {value}");
        register
    }

    /// Stores the lowest bytes of a 64-bit register.
    pub(super) fn store_from(&mut self, value: &str, to: &Reached, delta: i64, n_bytes: u32) -> Result<(), Refusal> {
        match to {
            Reached::Registers { frame, at } => self.store_registers(value, *frame, at + delta, n_bytes),
            Reached::Context(_) => return self.refuse("writes to the context"),
            Reached::Memory(memory) => self.store_memory(value, memory, delta, n_bytes),
        }
        Ok(())
    }

    fn store_registers(&mut self, value: &str, frame: u8, at: i64, n_bytes: u32) {
        let (word, shift, bits) = (at / 8, at % 8 * 8, i64::from(n_bytes) * 8);
        let low = self.stack_word(frame, word);
        if bits == 64 && shift == 0 {
            return put!(self, "mov.b64 {low}, {value}");
        }
        let here = bits.min(64 - shift);
        put!(self, "bfi.b64 {low}, {value}, {low}, {shift}, {here}");
        if here < bits {
            let (high, rest) = (self.stack_word(frame, word + 1), self.long());
            put!(self, "shr.u64 {rest}, {value}, {here}");
            put!(self, "bfi.b64 {high}, {rest}, {high}, 0, {}", bits - here);
        }
    }

    fn store_memory(&mut self, value: &str, memory: &Address, delta: i64, n_bytes: u32) {
        let suffix = memory.space.suffix();
        let granule = memory.granule(delta).min(n_bytes);
        for at in (0..n_bytes).step_by(granule as usize) {
            let place = memory.byte(delta + i64::from(at));
            let bits = granule * 8;
            if at == 0 {
                put!(self, "st.{suffix}.u{bits} {place}, {value}");
            } else {
                let piece = self.long();
                put!(self, "shr.u64 {piece}, {value}, {}", at * 8);
                put!(self, "st.{suffix}.u{bits} {place}, {piece}");
            }
        }
    }

    /// Loads `n_bytes` bytes as words, the last padded with zeros.
    pub(super) fn load_words(&mut self, from: &Reached, n_bytes: u32) -> Result<Vec<String>, Refusal> {
        let mut words = Vec::new();
        for at in (0..n_bytes).step_by(8) {
            let word = self.long();
            self.load_odd(&word, from, at.into(), (n_bytes - at).min(8))?;
            words.push(word);
        }
        Ok(words)
    }

    /// Loads 1 to 8 bytes, zero-extended, in pieces of 4, 2 and 1 where they aren't a power of two.
    fn load_odd(&mut self, dst: &str, from: &Reached, delta: i64, n_bytes: u32) -> Result<(), Refusal> {
        let mut done = 0;
        for size in [8, 4, 2, 1] {
            if n_bytes - done < size {
                continue;
            }
            if done == 0 {
                self.load_into(dst, from, delta, size, false)?;
            } else {
                let piece = self.long();
                self.load_into(&piece, from, delta + i64::from(done), size, false)?;
                put!(self, "shl.b64 {piece}, {piece}, {}", done * 8);
                put!(self, "or.b64 {dst}, {dst}, {piece}");
            }
            done += size;
        }
        Ok(())
    }

    /// Stores words; of the last one only as many bytes as are left.
    pub(super) fn store_words(&mut self, words: &[String], to: &Reached, n_bytes: u32) -> Result<(), Refusal> {
        for (word, at) in words.iter().zip((0..n_bytes).step_by(8)) {
            let (mut done, left) = (0, (n_bytes - at).min(8));
            for size in [8, 4, 2, 1].into_iter().filter(|it| left & it != 0) {
                let value = match done {
                    0 => word.clone(),
                    _ => {
                        let value = self.long();
                        put!(self, "shr.u64 {value}, {word}, {}", done * 8);
                        value
                    }
                };
                self.store_from(&value, to, i64::from(at + done), size)?;
                done += size;
            }
        }
        Ok(())
    }
}

/// Returns the offset of a map's descriptor in the table.
pub(super) fn descriptor_at(map: BpfMapId) -> i64 {
    header::BYTES + i64::from(map.0) * descriptor::BYTES
}
