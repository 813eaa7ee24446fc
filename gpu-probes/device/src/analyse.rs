//! Finds what every register and stack slot holds before each node: abstract interpretation up to a fixed point.
//!
//! Nothing is refused here; the emitter refuses what it can't translate with these types.

use std::collections::{BTreeMap, VecDeque};

use xputrace_bytecode::insn::Cond;
use xputrace_bytecode::{BpfMapId, helper};

use crate::flat::{Alu, AtomicOp, Flat, FlatNode, Op, Operand};
use crate::sums::KeyWord;
use crate::value::{Null, Offset, Scalar, Value};
use crate::{DeviceMap, Request, Storage, Word, written};

/// What is known before each node; `None` for nodes that are never reached.
pub(crate) struct Types {
    before: Vec<Option<State>>,
}

/// What is known at one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// R0 to R5.
    shared: [Value; 6],
    frames: Vec<FrameState>,
}

/// A function's own registers and stack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FrameState {
    /// R6 to R9.
    saved: [Value; 4],
    /// Words of the stack that hold more than an unknown number, by offset from the frame pointer in words.
    slots: BTreeMap<i32, Value>,
}

impl Types {
    pub(crate) fn before(&self, node: usize) -> Option<&State> {
        self.before[node].as_ref()
    }
}

/// Analyses a program.
pub(crate) fn analyse(flat: &Flat, request: &Request<'_>) -> Types {
    let mut analysis = Analysis { flat, request, before: vec![None; flat.nodes.len()] };
    analysis.run();
    Types { before: analysis.before }
}

struct Analysis<'a> {
    flat: &'a Flat,
    request: &'a Request<'a>,
    before: Vec<Option<State>>,
}

impl Analysis<'_> {
    fn run(&mut self) {
        self.before[0] = Some(State::first(self.flat.n_frames));
        let mut open = VecDeque::from([0]);
        while let Some(at) = open.pop_front() {
            let Some(state) = self.before[at].clone() else { continue };
            for (to, state) in self.follow(at, state) {
                if self.reach(to, state) {
                    open.push_back(to);
                }
            }
        }
    }

    /// Adds what is known on one more path; returns whether that is news.
    fn reach(&mut self, to: usize, state: State) -> bool {
        let joined = match &self.before[to] {
            Some(old) => old.join(&state),
            None => state,
        };
        if self.before[to].as_ref() == Some(&joined) {
            return false;
        }
        self.before[to] = Some(joined);
        true
    }

    fn follow(&self, at: usize, state: State) -> Vec<(usize, State)> {
        let node = &self.flat.nodes[at];
        match node.op {
            Op::Exit => Vec::new(),
            Op::Branch { cond, wide, lhs, rhs } => {
                let decided = state.decide(node);
                let edges = [(false, node.next), (true, node.target)];
                let edges = edges.into_iter().filter(|(taken, _)| decided.is_none_or(|it| it == *taken));
                edges.map(|(taken, to)| (to, state.clone().after_branch(node, cond, wide, lhs, rhs, taken))).collect()
            }
            _ => vec![(node.next, self.after(at, node, state))],
        }
    }

    fn after(&self, at: usize, node: &FlatNode, mut state: State) -> State {
        let frame = node.frame;
        match node.op {
            Op::Alu { op, wide, dst, rhs } => {
                let value = computed(op, wide, state.reg(frame, dst), state.operand(frame, rhs));
                state.set(frame, dst, value);
            }
            Op::Const { dst, value } => state.set(frame, dst, Value::known(value)),
            Op::LoadMap { dst, map } => state.set(frame, dst, Value::Map(map)),
            Op::LoadMapValue { dst, map, offset } => {
                state.set(frame, dst, Value::Element { map, at: Offset::Fixed(offset), null: Null::Never });
            }
            Op::Load { size, dst, base, off, .. } => {
                let value = match state.reg(frame, base) {
                    Value::Context(at) => self.of_context(i64::from(at) + i64::from(off), size.bytes()),
                    base => state.loaded(base, off.into(), size.bytes()),
                };
                state.set(frame, dst, value);
            }
            Op::Store { size, base, off, value } => {
                let value = state.operand(frame, value);
                state.store(state.reg(frame, base), off.into(), size.bytes(), value);
            }
            Op::Atomic { op, fetch, wide, base, off, src } => {
                state.store(state.reg(frame, base), off.into(), if wide { 8 } else { 4 }, Value::UNKNOWN);
                match op {
                    AtomicOp::CompareExchange => state.set(frame, 0, Value::UNKNOWN),
                    _ if fetch => state.set(frame, src, Value::UNKNOWN),
                    _ => {}
                }
            }
            Op::Neg { dst, .. } | Op::Extend { dst, .. } | Op::Low { dst, .. } | Op::Swap { dst, .. } => {
                state.set(frame, dst, Value::UNKNOWN);
            }
            Op::Call(helper) => self.call(at, helper, &mut state),
            Op::Enter => state.frames[usize::from(frame) + 1] = FrameState::fresh(),
            Op::Leave => {
                state.frames[usize::from(frame)] = FrameState::fresh();
                state.shared[1..].fill(Value::Unset);
            }
            Op::Jump | Op::Branch { .. } | Op::Exit => {}
        }
        state
    }

    /// Returns what bytes of the context hold.
    fn of_context(&self, at: i64, n_bytes: usize) -> Value {
        let Some(at) = usize::try_from(at).ok().filter(|it| n_bytes == 8 && it % 8 == 0) else { return Value::UNKNOWN };
        match self.request.context.get(at / 8) {
            Some(Word::Constant(value)) => Value::known(*value),
            Some(word) if word.is_fixed() => Value::Scalar(Scalar { word: Some(at / 8), ..Scalar::UNKNOWN }),
            _ => Value::UNKNOWN,
        }
    }

    fn call(&self, at: usize, id: i32, state: &mut State) {
        for (arg, n_bytes) in written::writes(id, state.shared) {
            state.store(state.shared[usize::from(arg)], 0, n_bytes, Value::UNKNOWN);
        }
        let result = self.result(at, id, state);
        state.forget_mark(at);
        state.shared[1..].fill(Value::Unset);
        state.shared[0] = result;
    }

    fn result(&self, at: usize, id: i32, state: &State) -> Value {
        let null = Null::Maybe(Some(at));
        match (id, state.shared[1]) {
            (helper::MAP_LOOKUP_ELEM, Value::Map(map)) if self.has_elements(map) => {
                match self.request.options.sums.find(map, || state.key(self.request.maps[map.index()])) {
                    Some(sum) => Value::Sum { sum, at: Offset::START },
                    None => Value::Element { map, at: Offset::START, null },
                }
            }
            (helper::RINGBUF_RESERVE, _) => match state.shared[2].scalar().known.map(u32::try_from) {
                Some(Ok(n_bytes)) => Value::Record { n_bytes, at: Offset::START, null },
                _ => Value::Mixed,
            },
            _ => Value::UNKNOWN,
        }
    }

    fn has_elements(&self, map: BpfMapId) -> bool {
        self.request.maps.get(map.index()).is_some_and(|it| it.kind != Storage::Ring)
    }
}

impl FrameState {
    fn fresh() -> FrameState {
        FrameState { saved: [Value::Unset; 4], slots: BTreeMap::new() }
    }

    fn join(&self, other: &FrameState) -> FrameState {
        let mut saved = self.saved;
        saved.iter_mut().zip(other.saved).for_each(|(it, other)| *it = it.join(other));
        let both = self.slots.iter().filter_map(|(at, value)| Some((*at, value.join(*other.slots.get(at)?))));
        FrameState { saved, slots: both.filter(|(_, value)| is_worth_keeping(*value)).collect() }
    }
}

/// Whether a slot's value is more than what is assumed of slots that aren't listed.
fn is_worth_keeping(value: Value) -> bool {
    !matches!(value, Value::Mixed | Value::Unset) && value != Value::UNKNOWN
}

impl State {
    fn first(n_frames: u8) -> State {
        let mut shared = [Value::Unset; 6];
        shared[1] = Value::Context(0);
        State { shared, frames: vec![FrameState::fresh(); n_frames.into()] }
    }

    pub(crate) fn reg(&self, frame: u8, reg: u8) -> Value {
        match reg {
            0..=5 => self.shared[usize::from(reg)],
            6..=9 => self.frames[usize::from(frame)].saved[usize::from(reg - 6)],
            _ => Value::Stack { frame, at: Offset::START },
        }
    }

    fn set(&mut self, frame: u8, reg: u8, value: Value) {
        match reg {
            0..=5 => self.shared[usize::from(reg)] = value,
            6..=9 => self.frames[usize::from(frame)].saved[usize::from(reg - 6)] = value,
            _ => {}
        }
    }

    pub(crate) fn operand(&self, frame: u8, operand: Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.reg(frame, reg),
            Operand::Imm(imm) => Value::known(imm as u64),
        }
    }

    fn join(&self, other: &State) -> State {
        let mut shared = self.shared;
        shared.iter_mut().zip(other.shared).for_each(|(it, other)| *it = it.join(other));
        let frames = self.frames.iter().zip(&other.frames).map(|(a, b)| a.join(b)).collect();
        State { shared, frames }
    }

    /// Returns the words of the key in R2, if each is the same wherever a thread comes here.
    pub(crate) fn key(&self, map: DeviceMap) -> Option<Vec<KeyWord>> {
        let word = |at: u32| {
            let Scalar { known, word, .. } = self.loaded(self.shared[2], at.into(), 8).scalar();
            let n_bytes = map.key_bytes - at;
            match (known, word) {
                (Some(known), _) if n_bytes < 8 => Some(KeyWord::Known(known & ((1 << (8 * n_bytes)) - 1))),
                (Some(known), _) => Some(KeyWord::Known(known)),
                (None, Some(word)) if n_bytes >= 8 => Some(KeyWord::OfContext(word)),
                _ => None,
            }
        };
        (0..map.key_bytes).step_by(8).map(word).collect()
    }

    fn loaded(&self, base: Value, off: i64, n_bytes: usize) -> Value {
        let Value::Stack { frame, at } = base else { return Value::UNKNOWN };
        match at.plus(off) {
            Some(Offset::Fixed(at)) if n_bytes == 8 && at % 8 == 0 => {
                self.frames[usize::from(frame)].slots.get(&(at / 8)).copied().unwrap_or(Value::UNKNOWN)
            }
            _ => Value::UNKNOWN,
        }
    }

    fn store(&mut self, base: Value, off: i64, n_bytes: usize, value: Value) {
        let Value::Stack { frame, at } = base else { return };
        let slots = &mut self.frames[usize::from(frame)].slots;
        let Some(Offset::Fixed(at)) = at.plus(off) else {
            return slots.clear();
        };
        for slot in at.div_euclid(8)..=(at + n_bytes as i32 - 1).div_euclid(8) {
            slots.remove(&slot);
        }
        if n_bytes == 8 && at % 8 == 0 && is_worth_keeping(value) {
            slots.insert(at / 8, value);
        }
    }

    /// Makes earlier results of the call at `mark` untestable by its next result.
    fn forget_mark(&mut self, mark: usize) {
        self.change_marked(mark, |it| it.with_null(Null::Maybe(None)));
    }

    fn change_marked(&mut self, mark: usize, change: impl Fn(Value) -> Value) {
        let slots = self.frames.iter_mut().flat_map(|it| it.saved.iter_mut().chain(it.slots.values_mut()));
        for value in self.shared.iter_mut().chain(slots) {
            if value.null() == Some(Null::Maybe(Some(mark))) {
                *value = change(*value);
            }
        }
    }

    /// Returns whether a branch is certainly taken, or certainly not.
    pub(crate) fn decide(&self, node: &FlatNode) -> Option<bool> {
        let Op::Branch { cond, wide, lhs, rhs } = node.op else { return None };
        let (lhs, rhs) = (self.reg(node.frame, lhs), self.operand(node.frame, rhs));
        match (lhs.scalar().known, rhs.scalar().known) {
            (Some(a), Some(b)) => Some(holds(cond, wide, a, b)),
            (None, Some(0)) if wide && lhs.is_never_null() && cond == Cond::Eq => Some(false),
            (None, Some(0)) if wide && lhs.is_never_null() && cond == Cond::Ne => Some(true),
            _ => None,
        }
    }

    /// Uses what a comparison with 0 says of a pointer that may be null.
    fn after_branch(mut self, node: &FlatNode, cond: Cond, wide: bool, lhs: u8, rhs: Operand, taken: bool) -> State {
        let compared = self.reg(node.frame, lhs);
        let zero = self.operand(node.frame, rhs).scalar().known == Some(0);
        let Some(Null::Maybe(mark)) = compared.null().filter(|_| wide && zero) else { return self };
        let is_null = match cond {
            Cond::Eq => taken,
            Cond::Ne => !taken,
            _ => return self,
        };
        let change = |it: Value| if is_null { Value::known(0) } else { it.with_null(Null::Never) };
        if let Some(mark) = mark {
            self.change_marked(mark, change);
        }
        self.set(node.frame, lhs, change(compared));
        self
    }
}

fn holds(cond: Cond, wide: bool, a: u64, b: u64) -> bool {
    let (a, b) = if wide { (a, b) } else { (u64::from(a as u32), u64::from(b as u32)) };
    let (signed_a, signed_b) = if wide { (a as i64, b as i64) } else { (i64::from(a as i32), i64::from(b as i32)) };
    match cond {
        Cond::Eq => a == b,
        Cond::Ne => a != b,
        Cond::Gt => a > b,
        Cond::Ge => a >= b,
        Cond::Lt => a < b,
        Cond::Le => a <= b,
        Cond::Sgt => signed_a > signed_b,
        Cond::Sge => signed_a >= signed_b,
        Cond::Slt => signed_a < signed_b,
        Cond::Sle => signed_a <= signed_b,
        Cond::Set => a & b != 0,
    }
}

fn computed(op: Alu, wide: bool, lhs: Value, rhs: Value) -> Value {
    match (op, lhs, rhs) {
        (Alu::Mov, _, value) if wide => value,
        (Alu::Add, pointer, Value::Scalar(by)) if wide && pointer.is_pointer() => pointer.moved(by, false),
        (Alu::Add, Value::Scalar(by), pointer) if wide && pointer.is_pointer() => pointer.moved(by, false),
        (Alu::Sub, pointer, Value::Scalar(by)) if wide && pointer.is_pointer() => pointer.moved(by, true),
        _ => Value::Scalar(number(op, wide, lhs.scalar(), rhs.scalar())),
    }
}

fn number(op: Alu, wide: bool, a: Scalar, b: Scalar) -> Scalar {
    if op == Alu::Mov {
        return b.known.map_or(Scalar { zeros: b.zeros, ..Scalar::UNKNOWN }, |it| Scalar::known(narrowed(it, wide)));
    }
    if let (Some(a), Some(b)) = (a.known, b.known)
        && let Some(result) = folded(op, wide, a, b)
    {
        return Scalar::known(narrowed(result, wide));
    }
    let zeros = match (op, b.known) {
        (Alu::Add | Alu::Sub | Alu::Or | Alu::Xor, _) => a.zeros.min(b.zeros),
        (Alu::And, _) => a.zeros.max(b.zeros),
        (Alu::Mul, _) => a.zeros.saturating_add(b.zeros).min(64),
        (Alu::Lsh, Some(by)) => a.zeros.saturating_add((by & if wide { 63 } else { 31 }) as u8).min(64),
        _ => 0,
    };
    Scalar { zeros, ..Scalar::UNKNOWN }
}

fn narrowed(value: u64, wide: bool) -> u64 {
    if wide { value } else { u64::from(value as u32) }
}

/// Computes what needs no care: the low bits of these results depend on nothing else.
fn folded(op: Alu, wide: bool, a: u64, b: u64) -> Option<u64> {
    let shift = (b & if wide { 63 } else { 31 }) as u32;
    Some(match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Lsh => a << shift,
        Alu::Rsh => narrowed(a, wide) >> shift,
        _ => return None,
    })
}
