//! The instructions of a function: where it returns, where it jumps to another function, and where
//! its own jumps go.
//!
//! ```text
//! symbol ──sweep──▶ instructions ──▶ exits: `ret`s, and jumps to other functions
//!    │                   │
//!    └── `.cold` parts ◀─┘ jumps out
//! ```
//! A breakpoint in data would change the program. So bytes count as code only if all of it makes
//! sense: every instruction is valid, and every jump goes to the start of one.

use crate::elf::{Elf, LONGEST_INSTRUCTION};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use xputrace_model::plan::cookie::ReturnSite;

/// How many instructions before an indirect jump to search for the load from its table.
const TABLE_LOAD_DISTANCE: usize = 16;
const BITS: u32 = 64;
/// Longest code of a function that is read. Instructions take forty times as much memory as their bytes; the longest
/// functions, which programs have written, have a megabyte.
const MOST_BYTES: u64 = 4 << 20;

/// Reads the functions of a file. Addresses are file offsets: instructions refer to each other by
/// distance, which is the same there.
pub(crate) struct CodeReader<'a> {
    elf: &'a Elf,
    /// Start of each function.
    starts: OnceCell<HashSet<u64>>,
    /// Parts that the compiler moved out of their functions: start to end.
    cold: OnceCell<BTreeMap<u64, u64>>,
}

/// The code of a function, including the parts that the compiler moved out.
#[derive(Default)]
pub(crate) struct FunctionCode {
    parts: Vec<Range<u64>>,
    /// By address.
    instructions: Vec<Instruction>,
    /// Targets of direct jumps.
    targets: HashSet<u64>,
    has_table_jump: bool,
}

/// Where calls of a function end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Exits {
    pub(crate) returns: Vec<Return>,
    pub(crate) tail_calls: Vec<TailCall>,
}

/// A place where a call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) file_offset: u64,
    pub(crate) site: ReturnSite,
}

/// A jump to another function, which returns instead of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TailCall {
    pub(crate) file_offset: u64,
    /// The processor's condition code of a conditional jump.
    pub(crate) condition: Option<u8>,
}

/// Why the code of a function cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    NoSize,
    TooLong,
    NotCode,
    OtherMachine,
    /// A conditional jump leads to code without a name: a part of the function, or another one.
    LeavesToUnnamed,
}

/// Why a place inside a function cannot be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// It is inside an instruction; where that and the next one begin.
    Inside { before: u64, after: u64 },
    /// The code up to there cannot be decoded.
    Undecodable,
}

impl Unreadable {
    /// Continues a sentence that starts with the function's name.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Unreadable::NoSize => "has no length in the file's symbols",
            Unreadable::TooLong => "is longer than 4 MiB by the file's symbols",
            Unreadable::NotCode => "has bytes that are not instructions",
            Unreadable::OtherMachine => "is not code for x86-64",
            Unreadable::LeavesToUnnamed => "jumps to code that the file does not name, which may return",
        }
    }
}

impl<'a> CodeReader<'a> {
    pub(crate) fn new(elf: &'a Elf) -> Self {
        CodeReader { elf, starts: OnceCell::new(), cold: OnceCell::new() }
    }

    /// Reads the code of the function at `start`.
    pub(crate) fn read(&self, start: u64, size: u64) -> Result<FunctionCode, Unreadable> {
        if !self.elf.is_x86_64() {
            return Err(Unreadable::OtherMachine);
        }
        if size == 0 {
            return Err(Unreadable::NoSize);
        }
        let mut code = FunctionCode::default();
        let whole = start..start.checked_add(size).ok_or(Unreadable::TooLong)?;
        let mut parts = vec![whole];
        while let Some(part) = parts.pop() {
            code.sweep(part, self.elf)?;
            let outside = || code.targets.iter().copied().filter(|it| !code.contains(*it));
            let moved = outside().find_map(|it| self.cold_part(it));
            parts.extend(moved.or_else(|| outside().find_map(|it| self.unnamed_part(it, &code))));
        }
        code.instructions.sort_by_key(Instruction::ip);
        code.has_table_jump = code.find_table_jump();
        if code.makes_sense() { Ok(code) } else { Err(Unreadable::NotCode) }
    }

    /// Checks that an instruction begins at a place, decoding from the start of its function. A breakpoint
    /// elsewhere would change the program.
    pub(crate) fn begins_at(&self, start: u64, place: u64) -> Result<(), Misplaced> {
        // To the end of the instruction that the place is in, or after.
        let len = place.saturating_sub(start).min(MOST_BYTES) + LONGEST_INSTRUCTION;
        let code = if self.elf.is_x86_64() { self.elf.code(start, len) } else { &[] };
        for instruction in Decoder::with_ip(BITS, code, start, DecoderOptions::NONE) {
            if instruction.is_invalid() {
                break;
            }
            if instruction.ip() == place {
                return Ok(());
            }
            if instruction.next_ip() > place {
                return Err(Misplaced::Inside { before: instruction.ip(), after: instruction.next_ip() });
            }
        }
        Err(Misplaced::Undecodable)
    }

    /// Returns where calls of the function end.
    pub(crate) fn exits(&self, code: &FunctionCode) -> Result<Exits, Unreadable> {
        let mut exits = Exits::default();
        for (index, instruction) in code.instructions.iter().enumerate() {
            if instruction.mnemonic() == Mnemonic::Ret {
                exits.returns.push(code.return_at(index));
            } else if let Some(condition) = self.leaves(code, index)? {
                exits.tail_calls.push(TailCall { file_offset: instruction.ip(), condition });
            }
        }
        Ok(exits)
    }

    /// Returns the condition of a jump to another function, if an instruction is one.
    fn leaves(&self, code: &FunctionCode, index: usize) -> Result<Option<Option<u8>>, Unreadable> {
        let instruction = &code.instructions[index];
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch => Ok((!code.contains(target)).then_some(None)),
            FlowControl::ConditionalBranch if code.contains(target) => Ok(None),
            FlowControl::ConditionalBranch if self.starts().contains(&target) => Ok(condition(instruction).map(Some)),
            FlowControl::ConditionalBranch => Err(Unreadable::LeavesToUnnamed),
            FlowControl::IndirectBranch => Ok((!code.is_table_jump(index)).then_some(None)),
            _ => Ok(None),
        }
    }

    fn cold_part(&self, target: u64) -> Option<Range<u64>> {
        let (start, end) = self.cold().range(..=target).next_back()?;
        (target < *end).then_some(*start..*end)
    }

    /// Returns a moved part that the file does not name, if it can be nothing else: it leads back into
    /// the function without a branch.
    fn unnamed_part(&self, start: u64, code: &FunctionCode) -> Option<Range<u64>> {
        const LONGEST: u64 = 4096;
        if self.starts().contains(&start) {
            return None;
        }
        let bytes = self.elf.code(start, LONGEST);
        let mut decoded = Decoder::with_ip(BITS, bytes, start, DecoderOptions::NONE).into_iter();
        let last = decoded.find(|it| !matches!(it.flow_control(), FlowControl::Next | FlowControl::Call))?;
        let leads_back = last.flow_control() == FlowControl::UnconditionalBranch
            && last.op0_kind() == OpKind::NearBranch64
            && code.contains(last.near_branch_target());
        leads_back.then(|| start..last.next_ip())
    }

    fn starts(&self) -> &HashSet<u64> {
        let functions = || self.elf.functions(&mut |it| !is_cold(it));
        self.starts.get_or_init(|| functions().iter().map(|it| it.file_offset).collect())
    }

    fn cold(&self) -> &BTreeMap<u64, u64> {
        let parts = || self.elf.functions(&mut is_cold);
        self.cold
            .get_or_init(|| parts().iter().map(|it| (it.file_offset, it.file_offset.saturating_add(it.size))).collect())
    }
}

/// `f.cold`, `f.cold.1` (GCC, LLVM): rarely executed parts of `f`.
fn is_cold(symbol: &str) -> bool {
    symbol.ends_with(".cold") || symbol.contains(".cold.")
}

impl FunctionCode {
    /// Whether something in the function may jump to this place.
    pub(crate) fn may_jump_to(&self, place: u64) -> bool {
        self.targets.contains(&place) || (self.has_table_jump && !self.sets_up_frame(place))
    }

    /// Whether a direct jump goes to this place.
    pub(crate) fn jumps_to(&self, place: u64) -> bool {
        self.targets.contains(&place)
    }

    fn find_table_jump(&self) -> bool {
        let indirect = |it: &Instruction| it.flow_control() == FlowControl::IndirectBranch;
        self.instructions.iter().enumerate().any(|(index, it)| indirect(it) && self.is_table_jump(index))
    }

    /// Whether the instruction at a place can only be reached by a call: a jump there would grow
    /// the stack in every iteration.
    fn sets_up_frame(&self, place: u64) -> bool {
        self.instruction_at(place).is_some_and(|it| {
            it.mnemonic() == Mnemonic::Push
                || (it.mnemonic() == Mnemonic::Sub
                    && it.op0_kind() == OpKind::Register
                    && it.op0_register() == Register::RSP)
        })
    }

    fn instruction_at(&self, place: u64) -> Option<&Instruction> {
        let index = self.instructions.binary_search_by_key(&place, Instruction::ip).ok()?;
        Some(&self.instructions[index])
    }

    fn sweep(&mut self, part: Range<u64>, elf: &Elf) -> Result<(), Unreadable> {
        let len = part.end - part.start;
        let before: u64 = self.parts.iter().map(|it| it.end - it.start).sum();
        if len > MOST_BYTES - before {
            return Err(Unreadable::TooLong);
        }
        let bytes = elf.code(part.start, len);
        if bytes.len() as u64 != len {
            return Err(Unreadable::NotCode);
        }
        for instruction in Decoder::with_ip(BITS, bytes, part.start, DecoderOptions::NONE) {
            if instruction.is_invalid() {
                return Err(Unreadable::NotCode);
            }
            self.targets.extend(jump_target(&instruction));
            self.instructions.push(instruction);
        }
        self.parts.push(part);
        Ok(())
    }

    fn contains(&self, place: u64) -> bool {
        self.parts.iter().any(|it| it.contains(&place))
    }

    /// Whether every jump within the function goes to an instruction, or past the `lock` prefix of
    /// one (code skips the prefix when single-threaded).
    fn makes_sense(&self) -> bool {
        let after_lock = |it: u64| self.instruction_at(it.wrapping_sub(1)).is_some_and(Instruction::has_lock_prefix);
        let mut inside = self.targets.iter().filter(|it| self.contains(**it));
        inside.all(|it| self.instruction_at(*it).is_some() || after_lock(*it))
    }

    /// Returns the place to probe for a `ret`. Before `pop %rbp` or `leave` the frame is still
    /// complete, so a stack taken there includes the caller; nothing may jump in between.
    fn return_at(&self, index: usize) -> Return {
        let ret = &self.instructions[index];
        let before = index.checked_sub(1).map(|it| &self.instructions[it]);
        let before = before.filter(|it| it.next_ip() == ret.ip() && !self.may_jump_to(ret.ip()));
        match before.map(|it| (it.ip(), it.mnemonic(), it.op0_register())) {
            Some((file_offset, Mnemonic::Pop, Register::RBP)) => Return { file_offset, site: ReturnSite::Pop },
            Some((file_offset, Mnemonic::Leave, _)) => Return { file_offset, site: ReturnSite::Leave },
            _ => Return { file_offset: ret.ip(), site: ReturnSite::Ret },
        }
    }

    /// Whether an indirect jump goes through a table of the function's own labels, as in a
    /// `switch`. The compiler marks it `notrack`, or loads its target by an index.
    fn is_table_jump(&self, index: usize) -> bool {
        let jump = &self.instructions[index];
        if jump.segment_prefix() == Register::DS || jump.memory_index() != Register::None {
            return true;
        }
        let before = self.instructions[..index].iter().rev().take(TABLE_LOAD_DISTANCE);
        let loads = |it: &Instruction| {
            matches!(it.mnemonic(), Mnemonic::Mov | Mnemonic::Movsxd)
                && it.op0_kind() == OpKind::Register
                && it.memory_index() != Register::None
        };
        jump.op0_kind() == OpKind::Register && before.into_iter().any(loads)
    }
}

fn jump_target(instruction: &Instruction) -> Option<u64> {
    let jumps = matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
    (jumps && instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target())
}

/// Returns the condition code of `jcc`; `None` for `loop` and `jrcxz`, which compilers don't emit.
fn condition(instruction: &Instruction) -> Option<u8> {
    use iced_x86::ConditionCode as Is;
    let order = [
        Is::o,
        Is::no,
        Is::b,
        Is::ae,
        Is::e,
        Is::ne,
        Is::be,
        Is::a,
        Is::s,
        Is::ns,
        Is::p,
        Is::np,
        Is::l,
        Is::ge,
        Is::le,
        Is::g,
    ];
    let jcc = instruction.is_jcc_short_or_near();
    order.iter().position(|it| jcc && *it == instruction.condition_code()).map(|it| it as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_claim_any_length_of_a_function() {
        let elf = Elf::open(&std::env::current_exe().unwrap()).unwrap();
        let reader = CodeReader::new(&elf);
        for (start, size) in [(0x1000, u64::MAX), (u64::MAX, 1), (0, u64::MAX), (0, MOST_BYTES + 1)] {
            assert_eq!(reader.read(start, size).err(), Some(Unreadable::TooLong), "{start:#x} {size:#x}");
        }
        assert_eq!(reader.read(u64::MAX - 1, 1).err(), Some(Unreadable::NotCode));
        assert_eq!(reader.begins_at(u64::MAX - 1, u64::MAX), Err(Misplaced::Undecodable));
    }
}
