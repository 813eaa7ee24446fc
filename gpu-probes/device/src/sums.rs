//! Sums in registers: what a program only adds to elements of maps, a thread of the kernel can add up in registers, and add
//! to the maps once, where it ends. Code that runs at each access of a loop would otherwise search the map there.
//!
//! ```text
//! Sums::of (a program at a place) ─▶ the caller chooses some ─▶ registers: at the kernel's beginning
//!                                                           ├▶ Options::sums: blocks add to registers
//!                                                           └▶ flush: where the thread ends
//! ```

mod kept;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use xputrace_bytecode::asm::AsmError;
use xputrace_bytecode::insn::{self, Cond, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Program, ProgramKind, helper};

use crate::analyse::{State, Types, analyse};
use crate::flat::{Alu, AtomicOp, Flat, FlatNode, Op, Operand, flatten};
use crate::value::{Offset, Value};
use crate::{DeviceMap, Options, PtxBlock, Refusal, Request, Storage, Word, emit};
use kept::SumChange;

pub(crate) use kept::{KeyWord, there, word};
pub use kept::{Sum, Sums};

/// The stack of the program that adds registers to a map: where its key begins, and the value of a new element.
const KEY_AT: i16 = -64;
const VALUE_AT: i16 = -256;
const MOST_KEY_BYTES: u32 = 64;
const MOST_VALUE_BYTES: u32 = 192;

impl Sums {
    /// Returns what this program could keep in registers at this place, of elements that are merged when they are read or not. It
    /// keeps nothing unless its block has no condition then: threads of a warp that part for a while would come back to the
    /// kernel's code in other groups, as the compiler has no reason to have them wait for each other.
    ///
    /// # Errors
    /// The program can't be read.
    pub fn of(request: Request<'_>) -> Result<Vec<Sum>, Refusal> {
        let flat = flatten(request.program, request.maps.len())?;
        let mut list = candidates(&flat, &request);
        while !list.is_empty() {
            let options = Options { sums: Sums { first: 0, list: list.clone() }, ..request.options.clone() };
            let types = analyse(&flat, &Request { options: &options, ..request });
            let uses = Uses::of(&flat, &types, &|it| match it {
                Value::Sum { sum, at } => Some((sum, at)),
                _ => None,
            });
            if uses.others.is_empty() {
                for (sum, at, change) in uses.changes {
                    list[sum].words.insert(at, change);
                }
                list.retain(|it| !it.words.is_empty());
                let block = emit::emit(&flat, &types, &Request { options: &options, ..request })?;
                return Ok(if is_straight(&block) { list } else { Vec::new() });
            }
            let mut sum = 0..;
            list.retain(|_| !sum.next().is_some_and(|it| uses.others.contains(&it)));
        }
        Ok(list)
    }

    /// Returns the PTX that adds the registers to the maps, for where a thread ends; `context` is what handlers have there.
    ///
    /// # Errors
    /// A map is of a kind that has no such elements.
    pub fn flush(&self, maps: &[DeviceMap], context: &[Word], options: &Options) -> Result<String, Refusal> {
        let mut text = String::new();
        let options = Options { sums: Sums::default(), ..options.clone() };
        for (number, sum) in (self.first..).zip(&self.list) {
            let program = sum.program(maps).map_err(|it| Refusal { insn: 0, what: it.to_string() })?;
            let words = sum.words.keys().map(|at| Word::Wide(word(number, *at)));
            let context: Vec<Word> = words.chain(sum.key_words().map(|it| context[it].clone())).collect();
            let request = Request { program: &program, maps, context: &context, options: &options };
            let flat = flatten(&program, maps.len())?;
            let block = emit::emit(&flat, &analyse(&flat, &request), &request)?;
            let _ = write!(
                text,
                "{{\n    .reg .pred %xpt_unused;\n    setp.eq.u32 %xpt_unused, {}, 0;\n    @%xpt_unused bra $xpt_added;\n{}$xpt_added:\n}}\n",
                there(number),
                block.text
            );
        }
        Ok(text)
    }
}

impl Sum {
    /// Returns the program that adds the first words of its context to the element, and makes the element if it isn't there.
    /// Behind them are those of its key.
    fn program(&self, maps: &[DeviceMap]) -> Result<Program, AsmError> {
        let mut asm = Assembler::new();
        let (found, end, element) = (asm.label(), asm.label(), Reg::R7);
        asm.mov(Reg::R6, Reg::R1);
        let mut next = 8 * self.words.len() as i16;
        for (at, word) in (KEY_AT..).step_by(8).zip(&self.key) {
            match word {
                KeyWord::Known(known) => asm.mov_imm(Reg::R1, *known as i64),
                KeyWord::OfContext(_) => {
                    asm.ldx(Size::Dw, Reg::R1, Reg::R6, next);
                    next += 8;
                }
            }
            asm.stx(Size::Dw, Reg::FP, at, Reg::R1);
        }
        asm.find(self.map, KEY_AT);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, found);
        let n_bytes = maps[self.map.index()].value_bytes.next_multiple_of(8);
        for at in (VALUE_AT..).step_by(8).take(n_bytes as usize / 8) {
            asm.st_imm(Size::Dw, Reg::FP, at, 0);
        }
        asm.ld_map(Reg::R1, self.map);
        asm.stack_address(Reg::R2, KEY_AT);
        asm.stack_address(Reg::R3, VALUE_AT);
        asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
        asm.call(helper::MAP_UPDATE_ELEM);
        asm.find(self.map, KEY_AT);
        asm.place(found);
        asm.mov(element, Reg::R0);
        for (nth, (at, change)) in self.words.iter().enumerate() {
            // Without an element, the first access ends the program, counted.
            if nth == 1 {
                asm.jump_if_imm(Cond::Eq, element, 0, end);
            }
            let (word, at) = (8 * nth as i16, *at as i16);
            match change {
                SumChange::Add => {
                    asm.ldx(Size::Dw, Reg::R1, Reg::R6, word);
                    asm.atomic(atomic::ADD, Size::Dw, element, at, Reg::R1);
                }
                SumChange::Raise => {
                    asm.mov(Reg::R1, element);
                    if at != 0 {
                        asm.alu_imm(insn::Alu::Add, Reg::R1, at.into());
                    }
                    asm.ldx(Size::Dw, Reg::R2, Reg::R6, word);
                    asm.call(helper::RAISE);
                }
            }
        }
        asm.place(end);
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
        let assembled = asm.finish()?;
        Ok(Program {
            name: "sum".into(),
            kind: ProgramKind::Syscall,
            insns: assembled.insns,
            map_refs: assembled.map_refs,
            lines: assembled.lines,
        })
    }
}

/// Whether all threads that come to a block do the same.
pub fn is_straight(block: &PtxBlock) -> bool {
    !block.text.contains('@')
}

/// Returns the elements that a program looks up by keys that are the same wherever a thread comes there.
fn candidates(flat: &Flat, request: &Request<'_>) -> Vec<Sum> {
    let types = analyse(flat, request);
    let mut list: Vec<Sum> = Vec::new();
    for (at, node) in flat.nodes.iter().enumerate() {
        let (Op::Call(helper::MAP_LOOKUP_ELEM), Some(state)) = (node.op, types.before(at)) else { continue };
        let Value::Map(map) = state.reg(node.frame, 1) else { continue };
        let shape = request.maps[map.index()];
        let key = state.key(shape).filter(|_| can_be_kept(shape));
        let sum = key.map(|key| Sum { map, key, words: BTreeMap::new() });
        list.extend(sum.filter(|it| !list.iter().any(|known| known.is_of(it))));
    }
    list
}

/// Whether elements are of a kind that can be kept. Whether it doesn't matter when a thread adds to them, the caller knows.
fn can_be_kept(map: DeviceMap) -> bool {
    let has_elements = map.kind == Storage::Hash || map.kind == Storage::Array && map.max_entries == 1;
    has_elements && map.key_bytes <= MOST_KEY_BYTES && map.value_bytes <= MOST_VALUE_BYTES
}

/// Returns the maps to whose elements programs do more than to add.
///
/// # Errors
/// The program can't be read.
pub fn read_or_set(request: Request<'_>) -> Result<BTreeSet<BpfMapId>, Refusal> {
    let flat = flatten(request.program, request.maps.len())?;
    let types = analyse(&flat, &request);
    let uses = Uses::of(&flat, &types, &|it| match it {
        Value::Element { map, at, .. } => Some((map, at)),
        _ => None,
    });
    let deleted =
        flat.nodes.iter().enumerate().filter_map(|(at, node)| match (node.op, types.before(at)?.reg(node.frame, 1)) {
            (Op::Call(helper::MAP_DELETE_ELEM | helper::MAP_MODIFY), Value::Map(map)) => Some(map),
            _ => None,
        });
    Ok(uses.others.into_iter().chain(deleted).collect())
}

/// What a program does through pointers of some kind.
struct Uses<T> {
    changes: Vec<(T, i32, SumChange)>,
    /// Those that it uses otherwise.
    others: BTreeSet<T>,
}

impl<T: Copy + Ord> Uses<T> {
    fn of(flat: &Flat, types: &Types, pointee: &dyn Fn(Value) -> Option<(T, Offset)>) -> Self {
        let mut uses = Uses { changes: Vec::new(), others: BTreeSet::new() };
        for (at, node) in flat.nodes.iter().enumerate() {
            if let Some(state) = types.before(at) {
                uses.node(node, state, pointee);
            }
        }
        uses
    }

    fn node(&mut self, node: &FlatNode, state: &State, pointee: &dyn Fn(Value) -> Option<(T, Offset)>) {
        let reg = |reg| pointee(state.reg(node.frame, reg));
        let operand = |it| match it {
            Operand::Reg(it) => reg(it),
            Operand::Imm(_) => None,
        };
        let change = |it: Option<(T, Offset)>, off: i16, change| match it {
            Some((what, at)) => match at.plus(off.into()) {
                Some(Offset::Fixed(at)) => Ok(Some((what, at, change))),
                _ => Err(what),
            },
            None => Ok(None),
        };
        let (changed, others) = match node.op {
            Op::Atomic { op: AtomicOp::Add, fetch: false, wide: true, base, off, src } => {
                (change(reg(base), off, SumChange::Add), vec![reg(src)])
            }
            Op::Atomic { base, src, .. } => (Ok(None), vec![reg(base), reg(src)]),
            Op::Call(helper::RAISE) => (change(reg(1), 0, SumChange::Raise), vec![reg(2)]),
            Op::Call(_) => (Ok(None), (1..=5).map(reg).collect()),
            Op::Load { base, .. } | Op::Store { base, .. } => (Ok(None), vec![reg(base)]),
            Op::Alu { op: Alu::Mov | Alu::Add, wide: true, rhs, .. }
                if state.operand(node.frame, rhs).scalar().known.is_some() =>
            {
                (Ok(None), vec![])
            }
            Op::Alu { op: Alu::Mov, wide: true, .. } => (Ok(None), vec![]),
            Op::Alu { dst, rhs, .. } => (Ok(None), vec![reg(dst), operand(rhs)]),
            Op::Neg { dst, .. } | Op::Low { dst, .. } | Op::Swap { dst, .. } => (Ok(None), vec![reg(dst)]),
            Op::Extend { src, .. } => (Ok(None), vec![reg(src)]),
            Op::Branch { rhs: Operand::Imm(0), .. } => (Ok(None), vec![]),
            Op::Branch { lhs, rhs, .. } => (Ok(None), vec![reg(lhs), operand(rhs)]),
            _ => (Ok(None), vec![]),
        };
        match changed {
            Ok(change) => self.changes.extend(change),
            Err(what) => _ = self.others.insert(what),
        }
        self.others.extend(others.into_iter().flatten().map(|it| it.0));
    }
}
