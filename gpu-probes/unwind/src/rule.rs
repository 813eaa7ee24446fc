//! How a frame leads to its caller's: one row of the table, packed into words.
//!
//! Compilers use few of the forms that DWARF allows. Known here are an offset from a register, and
//! the word found there. (The expression of procedure linkage tables is not: they jump, so nothing
//! returns into one.)

use crate::registers::{Registers, SAVED};
use gimli::{CfaRule, EhFrame, EndianSlice, NativeEndian, Operation, Register, RegisterRule, UnwindTableRow, X86_64};

pub(crate) type Bytes<'a> = EndianSlice<'a, NativeEndian>;

/// The same order as [`Registers::saved`].
const SAVED_REGISTERS: [Register; SAVED] =
    [X86_64::RBX, X86_64::RBP, X86_64::R12, X86_64::R13, X86_64::R14, X86_64::R15];

/// Where registers are counted from: the canonical frame address, rsp, or one of
/// [`Registers::saved`] from 2 on.
type Base = u8;
const CFA: Base = 0;
const RSP: Base = 1;
const FIRST_SAVED: Base = 2;

/// The return address among what a rule finds in memory, behind [`Registers::saved`].
pub(crate) const RIP: usize = SAVED;
const FOUND: usize = SAVED + 1;

/// Words of a rule.
pub(crate) const WORDS: usize = 4;

/// One row.
///
/// | word | bits |
/// |---|---|
/// | 0 | offset of the canonical frame address (32), its base (8), flags (8), what is in memory (8) |
/// | 1 | the bases of what is in memory, 4 bits each |
/// | 2, 3 | their offsets in words of 8 bytes, 16 bits each |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule(pub(crate) [u64; WORDS]);

mod flag {
    /// The canonical frame address is the word at base and offset.
    pub(super) const WORD: u64 = 1 << 40;
    /// Of a signal's frame: the address that it returns to was not called from.
    pub(super) const SIGNAL: u64 = 1 << 41;
    /// There is no caller.
    pub(super) const ROOT: u64 = 1 << 42;
    /// So that no rule is 0.
    pub(super) const IS_RULE: u64 = 1 << 43;
}
const IN_MEMORY: u32 = 48;

impl Rule {
    /// `None` where the row has a form that is not known here.
    pub(crate) fn from_row<S>(
        row: &UnwindTableRow<usize, S>,
        eh_frame: &EhFrame<Bytes<'_>>,
        is_signal: bool,
    ) -> Option<Rule>
    where
        S: gimli::UnwindContextStorage<usize>,
    {
        let mut words = [flag::IS_RULE, 0, 0, 0];
        let (base, offset, is_word) = cfa_of(row.cfa(), eh_frame)?;
        words[0] |= u64::from(offset as u32) | u64::from(base) << 32;
        words[0] |= if is_word { flag::WORD } else { 0 } | if is_signal { flag::SIGNAL } else { 0 };
        for (at, register) in SAVED_REGISTERS.into_iter().chain([X86_64::RA]).enumerate() {
            match place_of(row.register(register), eh_frame)? {
                SavedRegister::Memory(base, offset) => {
                    let offset = i16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0)?;
                    words[0] |= 1 << (IN_MEMORY + at as u32);
                    words[1] |= u64::from(base) << (4 * at);
                    words[2 + at / 4] |= u64::from(offset as u16) << (16 * (at % 4));
                }
                // The caller does not rely on this register.
                SavedRegister::Undefined if at != RIP => {}
                SavedRegister::Undefined => words[0] |= flag::ROOT,
                SavedRegister::Same if at != RIP => {}
                SavedRegister::Same => return None,
            }
        }
        Some(Rule(words))
    }

    #[inline]
    pub(crate) fn is_signal(&self) -> bool {
        self.0[0] & flag::SIGNAL != 0
    }

    #[inline]
    pub(crate) fn is_root(&self) -> bool {
        self.0[0] & flag::ROOT != 0
    }

    /// What rsp is in the caller, or the address of the word that says so.
    #[inline]
    pub(crate) fn cfa(&self, registers: &Registers) -> Cfa {
        let address = value(self.cfa_base(), registers, 0).wrapping_add_signed(self.cfa_offset().into());
        if self.0[0] & flag::WORD == 0 { Cfa::Is(address) } else { Cfa::IsAt(address) }
    }

    /// Which of [`Registers::saved`] are in memory, as bits, and behind them the return address.
    #[inline]
    pub(crate) fn in_memory(&self) -> u8 {
        (self.0[0] >> IN_MEMORY) as u8
    }

    /// The address of one of those in memory.
    #[inline]
    pub(crate) fn slot(&self, at: usize, registers: &Registers, cfa: u64) -> u64 {
        value(self.base(at), registers, cfa).wrapping_add_signed(i64::from(self.offset_words(at)) * 8)
    }

    /// The registers that the rule reads, as bits.
    pub(crate) fn reads(&self) -> u8 {
        let bit = |base: Base| if base < FIRST_SAVED { 0 } else { 1 << (base - FIRST_SAVED) };
        (0..FOUND).map(|at| self.base(at)).fold(bit(self.cfa_base()), |bits, base| bits | bit(base))
    }

    #[inline]
    fn cfa_base(&self) -> Base {
        (self.0[0] >> 32) as Base
    }

    #[inline]
    fn cfa_offset(&self) -> i32 {
        self.0[0] as i32
    }

    /// The base of what is in memory at this index.
    #[inline]
    fn base(&self, at: usize) -> Base {
        (self.0[1] >> (4 * at) & 15) as Base
    }

    /// Its offset from the base, in words.
    #[inline]
    fn offset_words(&self, at: usize) -> i16 {
        (self.0[2 + at / 4] >> (16 * (at % 4))) as i16
    }
}

/// A rule of the form that nearly all have, in one word: the canonical frame address is counted from
/// rsp or rbp, the return address is right below it, and so are the registers in memory.
///
/// | bits | |
/// |---|---|
/// | 0 to 23 | distance of each of [`Registers::saved`] below the canonical frame address, in words, 4 bits each; 0 if it is not in memory |
/// | 24 to 29 | which of them are in memory |
/// | 30 to 33 | distance of the lowest of them, or of the return address |
/// | 34 | whether the canonical frame address is counted from rbp, not rsp |
/// | 35 | set in every step, so that none is 0 |
/// | 36 to 59 | how many words the canonical frame address is above that register |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step(u64);

const IN_STEP: u32 = 24;
const LOWEST: u32 = 30;
const BY_RBP: u64 = 1 << 34;
const IS_STEP: u64 = 1 << 35;
const OFFSET: u32 = 36;
/// Where rbp is in [`Registers::saved`].
pub(crate) const RBP: usize = 1;

impl Rule {
    /// The rule in one word, if it has the usual form.
    pub(crate) fn step(&self) -> Option<Step> {
        let is_usual = self.0[0] & (flag::WORD | flag::SIGNAL | flag::ROOT) == 0 && self.0[1] == 0;
        let by_rbp = match self.cfa_base() {
            RSP => 0,
            base if base == FIRST_SAVED + RBP as Base => BY_RBP,
            _ => return None,
        };
        let offset = self.cfa_offset();
        if !is_usual || offset <= 0 || offset % 8 != 0 || offset >= 8 << (60 - OFFSET) || self.words_below(RIP) != 1 {
            return None;
        }
        let saved = self.in_memory() & !(1 << RIP);
        let mut step = IS_STEP | by_rbp | ((offset / 8) as u64) << OFFSET | u64::from(saved) << IN_STEP;
        let mut lowest = 1;
        for at in (0..SAVED).filter(|at| saved & 1 << at != 0) {
            let below = u64::try_from(self.words_below(at)).ok().filter(|it| (2..16).contains(it))?;
            step |= below << (4 * at);
            lowest = lowest.max(below);
        }
        Some(Step(step | lowest << LOWEST))
    }

    fn words_below(&self, at: usize) -> i64 {
        -i64::from(self.offset_words(at))
    }
}

impl Step {
    /// No step; equal to none.
    pub(crate) const NONE: Step = Step(0);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.0 != 0
    }

    /// The canonical frame address.
    #[inline]
    pub(crate) fn cfa(self, registers: &Registers) -> u64 {
        let base = if self.0 & BY_RBP == 0 { registers.rsp } else { registers.saved[RBP] };
        base.wrapping_add((self.0 >> OFFSET) * 8)
    }

    /// The lowest word that is read.
    #[inline]
    pub(crate) fn lowest(self, cfa: u64) -> u64 {
        cfa.wrapping_sub((self.0 >> LOWEST & 15) * 8)
    }

    /// The return address's place.
    #[inline]
    pub(crate) fn return_address(self, cfa: u64) -> u64 {
        cfa.wrapping_sub(8)
    }

    /// Which of [`Registers::saved`] are in memory, as bits.
    #[inline]
    pub(crate) fn in_memory(self) -> u8 {
        (self.0 >> IN_STEP) as u8 & ((1 << SAVED) - 1)
    }

    /// The place of one of those.
    #[inline]
    pub(crate) fn slot(self, at: usize, cfa: u64) -> u64 {
        cfa.wrapping_sub((self.0 >> (4 * at) & 15) * 8)
    }

    #[inline]
    pub(crate) fn reads_rbp(self) -> bool {
        self.0 & BY_RBP != 0
    }
}

/// The canonical frame address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    Is(u64),
    IsAt(u64),
}

#[inline]
fn value(base: Base, registers: &Registers, cfa: u64) -> u64 {
    match base {
        CFA => cfa,
        RSP => registers.rsp,
        _ => registers.saved[usize::from(base - FIRST_SAVED) % SAVED],
    }
}

fn base_of(register: Register) -> Option<Base> {
    if register == X86_64::RSP {
        return Some(RSP);
    }
    SAVED_REGISTERS.iter().position(|it| *it == register).map(|at| FIRST_SAVED + at as Base)
}

enum SavedRegister {
    Same,
    Undefined,
    Memory(Base, i64),
}

fn place_of(rule: Option<RegisterRule<usize>>, eh_frame: &EhFrame<Bytes<'_>>) -> Option<SavedRegister> {
    Some(match rule {
        None | Some(RegisterRule::SameValue) => SavedRegister::Same,
        Some(RegisterRule::Undefined) => SavedRegister::Undefined,
        Some(RegisterRule::Offset(offset)) => SavedRegister::Memory(CFA, offset),
        Some(RegisterRule::Expression(it)) => {
            let mut operations = it.get(eh_frame).ok()?.operations(ENCODING);
            let (base, offset) = register_offset(operations.next().ok()??)?;
            operations.next().ok()?.is_none().then_some(SavedRegister::Memory(base, offset))?
        }
        Some(_) => return None,
    })
}

/// Base, offset, and whether the address is the word there.
fn cfa_of(rule: &CfaRule<usize>, eh_frame: &EhFrame<Bytes<'_>>) -> Option<(Base, i32, bool)> {
    match rule {
        CfaRule::RegisterAndOffset { register, offset } => {
            Some((base_of(*register)?, i32::try_from(*offset).ok()?, false))
        }
        CfaRule::Expression(it) => {
            let mut operations = it.get(eh_frame).ok()?.operations(ENCODING);
            let (base, offset) = register_offset(operations.next().ok()??)?;
            let is_word = matches!(operations.next().ok()??, Operation::Deref { size: 8, space: false, .. });
            let is_all = operations.next().ok()?.is_none();
            (is_word && is_all).then_some((base, i32::try_from(offset).ok()?, true))
        }
    }
}

fn register_offset(operation: Operation<Bytes<'_>>) -> Option<(Base, i64)> {
    match operation {
        Operation::RegisterOffset { register, offset, .. } => Some((base_of(register)?, offset)),
        _ => None,
    }
}

/// Of the expressions in `.eh_frame`.
const ENCODING: gimli::Encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
