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

use crate::elf::Elf;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use xputrace_model::plan::cookie::ReturnSite;

/// How many instructions before an indirect jump to search for the load from its table.
const TABLE_LOAD_DISTANCE: usize = 16;

/// Reads the functions of a file. Addresses are file offsets: instructions refer to each other by
/// distance, which is the same there.
pub(crate) struct Reader<'a> {
    elf: &'a Elf,
    /// Start and size of each function.
    starts: OnceCell<HashMap<u64, u64>>,
    /// Parts that the compiler moved out of their functions: start to end.
    cold: OnceCell<BTreeMap<u64, u64>>,
}

/// The code of a function, including the parts that the compiler moved out.
#[derive(Default)]
pub(crate) struct Code {
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
    NotCode,
    OtherMachine,
}

impl Unreadable {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Unreadable::NoSize => "the file does not say how long the function is",
            Unreadable::NotCode => "its bytes are not all instructions",
            Unreadable::OtherMachine => "the file is not for x86-64",
        }
    }
}

impl<'a> Reader<'a> {
    pub(crate) fn new(elf: &'a Elf) -> Self {
        Reader { elf, starts: OnceCell::new(), cold: OnceCell::new() }
    }

    /// Reads the code of the function at `start`.
    pub(crate) fn read(&self, start: u64, size: u64) -> Result<Code, Unreadable> {
        if !self.elf.is_x86_64() {
            return Err(Unreadable::OtherMachine);
        }
        if size == 0 {
            return Err(Unreadable::NoSize);
        }
        let mut code = Code::default();
        let mut parts: Vec<_> = std::iter::once(start..start + size).collect();
        while let Some(part) = parts.pop() {
            code.sweep(part, self.elf)?;
            let moved = code.targets.iter().filter(|it| !code.contains(**it)).find_map(|it| self.cold_part(*it));
            parts.extend(moved);
        }
        code.instructions.sort_by_key(Instruction::ip);
        code.has_table_jump = code.find_table_jump();
        if code.makes_sense() { Ok(code) } else { Err(Unreadable::NotCode) }
    }

    /// Returns where calls of the function end.
    pub(crate) fn exits(&self, code: &Code) -> Exits {
        let mut exits = Exits::default();
        for (index, instruction) in code.instructions.iter().enumerate() {
            if instruction.mnemonic() == Mnemonic::Ret {
                exits.returns.push(code.return_at(index));
            } else if let Some(condition) = self.leaves(code, index) {
                exits.tail_calls.push(TailCall { file_offset: instruction.ip(), condition });
            }
        }
        exits
    }

    /// Whether everything that runs between the function's entry and its return is known and leaves
    /// the stack alone: no call or jump through a pointer or to another file, no system call, no
    /// recursion, no other stack.
    pub(crate) fn is_closed(&self, start: u64, size: u64) -> bool {
        self.is_closed_below(start, size, &mut Vec::new())
    }

    /// `above` are the functions whose calls lead here.
    fn is_closed_below(&self, start: u64, size: u64, above: &mut Vec<u64>) -> bool {
        const DEEPEST: usize = 3;
        if above.len() == DEEPEST || above.contains(&start) {
            return false;
        }
        let Ok(code) = self.read(start, size) else { return false };
        above.push(start);
        let closed = code.instructions.iter().all(|it| self.stays_inside(it, &code, above));
        above.pop();
        closed
    }

    fn stays_inside(&self, instruction: &Instruction, code: &Code, above: &mut Vec<u64>) -> bool {
        let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
        let target = instruction.near_branch_target();
        match instruction.flow_control() {
            FlowControl::Next => !sets_stack_pointer(instruction),
            FlowControl::Return => instruction.mnemonic() == Mnemonic::Ret,
            FlowControl::Exception => true,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch if code.contains(target) => is_direct,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch | FlowControl::Call if is_direct => {
                self.starts().get(&target).is_some_and(|size| self.is_closed_below(target, *size, above))
            }
            _ => false,
        }
    }

    /// Returns the condition of a jump to another function, if an instruction is one.
    fn leaves(&self, code: &Code, index: usize) -> Option<Option<u8>> {
        let instruction = &code.instructions[index];
        match instruction.flow_control() {
            FlowControl::UnconditionalBranch => (!code.contains(instruction.near_branch_target())).then_some(None),
            // A target that is not the start of a function is a part of this one.
            FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                let leaves = !code.contains(target) && self.starts().contains_key(&target);
                condition(instruction).filter(|_| leaves).map(Some)
            }
            FlowControl::IndirectBranch => (!code.is_table_jump(index)).then_some(None),
            _ => None,
        }
    }

    fn cold_part(&self, target: u64) -> Option<Range<u64>> {
        let (start, end) = self.cold().range(..=target).next_back()?;
        (target < *end).then_some(*start..*end)
    }

    fn starts(&self) -> &HashMap<u64, u64> {
        let functions = || self.elf.functions(&mut |it| !is_cold(it));
        self.starts.get_or_init(|| functions().iter().map(|it| (it.file_offset, it.size)).collect())
    }

    fn cold(&self) -> &BTreeMap<u64, u64> {
        let parts = || self.elf.functions(&mut is_cold);
        self.cold.get_or_init(|| parts().iter().map(|it| (it.file_offset, it.file_offset + it.size)).collect())
    }
}

/// `f.cold`, `f.cold.1` (GCC, LLVM): rarely executed parts of `f`.
fn is_cold(symbol: &str) -> bool {
    symbol.ends_with(".cold") || symbol.contains(".cold.")
}

impl Code {
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
        const BITS: u32 = 64;
        let bytes = usize::try_from(part.end - part.start).ok().and_then(|it| elf.code(part.start).get(..it));
        let bytes = bytes.ok_or(Unreadable::NotCode)?;
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
        let after_lock = |it: u64| self.instruction_at(it - 1).is_some_and(Instruction::has_lock_prefix);
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

/// Whether an instruction moves the stack pointer in a way that a function's own frame does not
/// need.
fn sets_stack_pointer(instruction: &Instruction) -> bool {
    let (to, from) = (instruction.op0_register(), instruction.op1_register());
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg && from == Register::RSP;
    let in_frame = match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Sub | Mnemonic::Add | Mnemonic::And | Mnemonic::Cmp | Mnemonic::Test => true,
        Mnemonic::Mov => from == Register::RBP,
        Mnemonic::Lea => matches!(instruction.memory_base(), Register::RSP | Register::RBP),
        _ => false,
    };
    exchanges || (to == Register::RSP && !in_frame)
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
