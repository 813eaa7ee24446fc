//! Programs that only add to an element of a map, as a handler with `@time[k.name].sum(k.duration)` does: where the element is
//! there already, nothing needs to be interpreted.

use std::collections::BTreeMap;

use super::fuse::{COPY_SLOTS, LOOKUP_SLOTS};
use super::map::{LookedUp, Map};
use super::op::{Decoded, Op};
use super::pointer;

/// Maximum number of words of a key.
const MOST_KEY_WORDS: usize = 8;

/// What a program does if its element is there.
pub(super) struct Tally {
    map: usize,
    key: Vec<Word>,
    /// Offsets in the value, and what is added there.
    adds: Vec<(usize, Word)>,
    answer: u64,
    /// Bytes of the context that are read.
    context_bytes: usize,
}

/// A word of which is known where it comes from.
#[derive(Clone, Copy)]
enum Word {
    /// Offset in the context.
    Context(usize),
    Number(u64),
}

impl Word {
    #[inline(always)]
    fn of(self, ctx: &[u8]) -> Option<u64> {
        match self {
            Word::Context(at) => ctx.get(at..)?.first_chunk().map(|it| u64::from_le_bytes(*it)),
            Word::Number(it) => Some(it),
        }
    }

    fn end(&self) -> usize {
        match self {
            Word::Context(at) => at.saturating_add(size_of::<u64>()),
            Word::Number(_) => 0,
        }
    }
}

impl Tally {
    /// Returns what a program does, if it is no more than that.
    pub(super) fn of(code: &[Decoded], maps: &[Map]) -> Option<Tally> {
        let mut walk = Walk::default();
        let mut pc = 0;
        loop {
            match walk.turn(code.get(pc)?, pc)? {
                Next::At(next) if next > pc => pc = next,
                Next::At(_) => return None,
                Next::End(answer) => return walk.tally(answer, maps),
            }
        }
    }

    /// Does it, and returns the program's answer; `None`, and nothing is done, if the program must run.
    #[inline(always)]
    pub(super) fn run(&self, maps: &mut [Map], ctx: &[u8]) -> Option<u64> {
        if ctx.len() < self.context_bytes {
            return None;
        }
        let mut key = [0; MOST_KEY_WORDS * size_of::<u64>()];
        for (word, to) in self.key.iter().zip(key.as_chunks_mut().0) {
            *to = word.of(ctx)?.to_le_bytes();
        }
        let map = maps.get_mut(self.map)?;
        let LookedUp::Value(slot) = map.find(key.get(..self.key.len() * size_of::<u64>())?) else { return None };
        for (offset, word) in &self.adds {
            map.add_to_slot(slot, *offset, word.of(ctx)?);
        }
        Some(self.answer)
    }
}

/// What a register holds.
#[derive(Clone, Copy, Default)]
enum Held {
    #[default]
    Unknown,
    Word(Word),
    Element,
}

enum Next {
    At(usize),
    End(u64),
}

/// Follows a program to its end, as if its element were there.
#[derive(Default)]
struct Walk {
    registers: [Held; 16],
    /// Words by place; none overlap.
    stack: BTreeMap<i32, Word>,
    /// The map as a pointer, and the key's place.
    lookup: Option<(u64, Vec<Word>)>,
    adds: Vec<(usize, Word)>,
}

impl Walk {
    /// Follows an instruction; `None` if it does anything else.
    fn turn(&mut self, insn: &Decoded, pc: usize) -> Option<Next> {
        let (dst, src) = (insn.dst(), insn.src());
        match insn.op {
            Op::Mov64R => self.registers[dst] = self.registers[src],
            Op::Mov64I | Op::Mov32I => self.registers[dst] = Held::Word(Word::Number(insn.imm)),
            Op::ContextLoad64 => self.load(insn)?,
            Op::CopyToStack64 => {
                self.load(insn)?;
                self.store(insn.off, self.registers[dst])?;
                return Some(Next::At(pc + COPY_SLOTS));
            }
            Op::StackStore64R => self.store(insn.off, self.registers[src])?,
            Op::StackStore64I => self.store(insn.off, Held::Word(Word::Number(insn.imm)))?,
            Op::StackLoad64 => self.registers[dst] = Held::Word(*self.stack.get(&insn.off)?),
            Op::StackLookup if self.lookup.is_none() => {
                let words = (insn.off..).step_by(size_of::<u64>()).map_while(|at| self.stack.get(&at).copied());
                self.lookup = Some((insn.imm, words.collect()));
                self.registers[..3].copy_from_slice(&[Held::Element, Held::Unknown, Held::Unknown]);
                return Some(Next::At(pc + LOOKUP_SLOTS));
            }
            Op::Jeq64I if matches!(self.registers[dst], Held::Element) && insn.imm == 0 => {}
            Op::Jne64I if matches!(self.registers[dst], Held::Element) && insn.imm == 0 => {
                return Some(Next::At(usize::try_from(insn.off).ok()?));
            }
            Op::AtomicAdd64 => match (self.registers[dst], self.registers[src]) {
                (Held::Element, Held::Word(it)) => self.adds.push((usize::try_from(insn.off).ok()?, it)),
                _ => return None,
            },
            Op::Return => return Some(Next::End(insn.imm)),
            _ => return None,
        }
        Some(Next::At(pc + 1))
    }

    fn load(&mut self, insn: &Decoded) -> Option<()> {
        self.registers[insn.dst()] = Held::Word(Word::Context(usize::try_from(insn.imm).ok()?));
        Some(())
    }

    fn store(&mut self, place: i32, it: Held) -> Option<()> {
        let Held::Word(it) = it else { return None };
        self.stack.insert(place, it);
        (place % size_of::<u64>() as i32 == 0).then_some(())
    }

    fn tally(self, answer: u64, maps: &[Map]) -> Option<Tally> {
        let (pointer, mut key) = self.lookup?;
        let at = pointer::offset(pointer) as usize;
        let map = maps.get(at)?;
        let n_words = map.key_size / size_of::<u64>();
        let has_words = map.key_size.is_multiple_of(size_of::<u64>()) && n_words <= key.len().min(MOST_KEY_WORDS);
        let has_room = self.adds.iter().all(|(offset, _)| offset.saturating_add(size_of::<u64>()) <= map.value_size);
        if !has_words || !has_room || !map.is_own_hash() {
            return None;
        }
        key.truncate(n_words);
        let context_bytes = key.iter().chain(self.adds.iter().map(|it| &it.1)).map(Word::end).max()?;
        Some(Tally { map: at, key, adds: self.adds, answer, context_bytes })
    }
}
