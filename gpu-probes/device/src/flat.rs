//! Decodes a program, and puts the functions that it calls in the place of the calls.
//!
//! Each call gets nodes of its own, one *frame* deeper, so what follows knows only jumps within one list. A function's
//! R6 to R10 belong to its frame; R0 to R5 are shared, as eBPF's calling convention has it.

use std::collections::{BTreeMap, BTreeSet};

use xputrace_bytecode::insn::{self, Cond, Insn, MAX_FRAMES, Size, atomic, class, mode};
use xputrace_bytecode::{BpfMapId, Program};

use crate::Refusal;

/// Bytes of a function's stack.
pub(crate) const STACK_BYTES: i64 = insn::STACK_BYTES as i64;

/// Nodes of a program with its calls inlined.
const MAX_NODES: usize = 1 << 16;

/// A program without calls of functions. It begins with the first node.
pub(crate) struct Flat {
    pub(crate) nodes: Vec<FlatNode>,
    /// Frames that exist, at least 1.
    pub(crate) n_frames: u8,
}

/// An instruction in one place of the flat program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlatNode {
    /// Its index in the program.
    pub(crate) insn: usize,
    pub(crate) frame: u8,
    pub(crate) op: Op,
    /// The node that follows unless a branch is taken.
    pub(crate) next: usize,
    /// The node that a taken branch goes to.
    pub(crate) target: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Reg(u8),
    Imm(i64),
}

/// Arithmetic of two operands; `S` marks signed operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    SDiv,
    Mod,
    SMod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
    Arsh,
    Mov,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Or,
    And,
    Xor,
    Exchange,
    CompareExchange,
}

/// What a node does. `wide` is 64 bits instead of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Alu {
        op: Alu,
        wide: bool,
        dst: u8,
        rhs: Operand,
    },
    Neg {
        wide: bool,
        dst: u8,
    },
    /// `dst` gets the lowest `bits` of `src`, sign-extended.
    Extend {
        bits: u8,
        wide: bool,
        dst: u8,
        src: u8,
    },
    /// Keeps the lowest `bits`.
    Low {
        bits: u8,
        dst: u8,
    },
    /// Reverses the bytes of the lowest `bits`, and clears the others.
    Swap {
        bits: u8,
        dst: u8,
    },
    Const {
        dst: u8,
        value: u64,
    },
    LoadMap {
        dst: u8,
        map: BpfMapId,
    },
    /// The address of a byte in an array's first value.
    LoadMapValue {
        dst: u8,
        map: BpfMapId,
        offset: i32,
    },
    Load {
        size: Size,
        signed: bool,
        dst: u8,
        base: u8,
        off: i16,
    },
    Store {
        size: Size,
        base: u8,
        off: i16,
        value: Operand,
    },
    Atomic {
        op: AtomicOp,
        fetch: bool,
        wide: bool,
        base: u8,
        off: i16,
        src: u8,
    },
    Branch {
        cond: Cond,
        wide: bool,
        lhs: u8,
        rhs: Operand,
    },
    Jump,
    /// A helper.
    Call(i32),
    /// Begins a function; its frame is the next node's.
    Enter,
    /// Ends a function.
    Leave,
    /// Ends the program.
    Exit,
}

/// Decodes and inlines.
pub(crate) fn flatten(program: &Program, n_maps: usize) -> Result<Flat, Refusal> {
    let mut flattener = Flattener { program, n_maps, nodes: Vec::new(), n_frames: 1 };
    flattener.function(0, 0, None)?;
    let mut nodes = flattener.nodes;
    call_in_place_of_jumps(&mut nodes);
    Ok(Flat { nodes, n_frames: flattener.n_frames })
}

/// Puts helper calls in the place of jumps to them. Compilers let paths meet at a call that passes an address in the stack on
/// one of them, and in a map on the other: with a call of its own, each path knows which.
fn call_in_place_of_jumps(nodes: &mut [FlatNode]) {
    for at in 0..nodes.len() {
        let FlatNode { op: Op::Jump, next, .. } = nodes[at] else { continue };
        // Jumps stay within a function, and so within its frame.
        if matches!(nodes[next].op, Op::Call(_)) {
            nodes[at] = nodes[next];
        }
    }
}

struct Flattener<'a> {
    program: &'a Program,
    n_maps: usize,
    nodes: Vec<FlatNode>,
    n_frames: u8,
}

/// Where control goes after an instruction, as indices of instructions.
#[derive(Clone, Copy)]
struct Decoded {
    op: Op,
    next: Option<usize>,
    target: Option<usize>,
    calls: Option<usize>,
}

impl Flattener<'_> {
    /// Adds the nodes of the function that begins at an instruction. Its exits go on after the nodes, if it was called.
    fn function(&mut self, entry: usize, frame: u8, caller: Option<usize>) -> Result<(), Refusal> {
        if usize::from(frame) >= MAX_FRAMES {
            let insn = caller.unwrap_or(entry);
            return Err(Refusal { insn, what: format!("calls are more than {MAX_FRAMES} functions deep") });
        }
        self.n_frames = self.n_frames.max(frame + 1);
        let body = self.reached(entry)?;
        let first = self.nodes.len();
        if body.keys().next() != Some(&entry) {
            self.push(entry, frame, Op::Jump)?;
        }
        let mut placed = BTreeMap::new();
        for (insn, decoded) in &body {
            placed.insert(*insn, self.nodes.len());
            let op = if caller.is_some() && decoded.op == Op::Exit { Op::Leave } else { decoded.op };
            self.push(*insn, frame, op)?;
            if let Some(callee) = decoded.calls {
                self.function(callee, frame + 1, Some(*insn))?;
            }
        }
        let end = self.nodes.len();
        self.connect(first, entry, frame, &body, &placed, end);
        Ok(())
    }

    fn push(&mut self, insn: usize, frame: u8, op: Op) -> Result<(), Refusal> {
        if self.nodes.len() >= MAX_NODES {
            let what = format!("the program has more than {MAX_NODES} instructions with its calls inlined");
            return Err(Refusal { insn, what });
        }
        let next = self.nodes.len() + 1;
        self.nodes.push(FlatNode { insn, frame, op, next, target: next });
        Ok(())
    }

    /// Turns the successors of a function's nodes into nodes.
    fn connect(
        &mut self,
        first: usize,
        entry: usize,
        frame: u8,
        body: &BTreeMap<usize, Decoded>,
        placed: &BTreeMap<usize, usize>,
        end: usize,
    ) {
        if self.nodes[first].op == Op::Jump && placed.get(&entry) != Some(&first) {
            self.nodes[first].next = placed[&entry];
        }
        for (insn, at) in placed {
            let decoded = &body[insn];
            let node = &mut self.nodes[*at];
            debug_assert!(node.frame == frame, "callees lie between the function's own nodes");
            match node.op {
                Op::Leave => node.next = end,
                // The callee follows, and the nodes after it go on by themselves.
                Op::Enter => {}
                _ => node.next = decoded.next.map_or(*at, |it| placed[&it]),
            }
            node.target = decoded.target.map_or(node.next, |it| placed[&it]);
        }
        self.return_to_next(body, placed, end);
    }

    /// Makes the exits of callees go to the instruction after the call, which need not be the next node.
    fn return_to_next(&mut self, body: &BTreeMap<usize, Decoded>, placed: &BTreeMap<usize, usize>, end: usize) {
        for (insn, at) in placed {
            let Decoded { calls: Some(_), next: Some(after), .. } = body[insn] else { continue };
            let after = placed[&after];
            let callees_end = placed.range(insn + 1..).next().map_or(end, |it| *it.1);
            let frame = self.nodes[*at].frame + 1;
            for node in &mut self.nodes[at + 1..callees_end] {
                if node.frame == frame && node.op == Op::Leave {
                    (node.next, node.target) = (after, after);
                }
            }
        }
    }

    /// Decodes the instructions that a function reaches, without those of its callees.
    fn reached(&self, entry: usize) -> Result<BTreeMap<usize, Decoded>, Refusal> {
        let mut body = BTreeMap::new();
        let mut open = BTreeSet::from([entry]);
        while let Some(at) = open.pop_first() {
            if body.contains_key(&at) {
                continue;
            }
            let decoded = self.decode(at).map_err(|what| Refusal { insn: at, what })?;
            open.extend(decoded.next);
            open.extend(decoded.target);
            body.insert(at, decoded);
        }
        Ok(body)
    }

    fn decode(&self, at: usize) -> Result<Decoded, String> {
        let insn = self.program.insns.get(at).ok_or("the program runs past its end")?;
        if insn.dst > 10 || insn.src > 10 {
            return Err("names a register above r10".into());
        }
        let straight = |op| Decoded { op, next: Some(at + 1), target: None, calls: None };
        match insn.code & 7 {
            class::LD => Ok(Decoded { next: Some(at + 2), ..straight(self.wide_constant(at, insn)?) }),
            class::LDX => load(insn).map(straight),
            class::ST => store(insn, Operand::Imm(insn.imm.into())).map(straight),
            class::STX if insn.code & 0xe0 == mode::ATOMIC => atomic_operation(insn).map(straight),
            class::STX => store(insn, Operand::Reg(insn.src)).map(straight),
            class::ALU => arithmetic(insn, false).map(straight),
            class::ALU64 => arithmetic(insn, true).map(straight),
            class::JMP => jump(at, insn, true),
            _ => jump(at, insn, false),
        }
    }

    fn wide_constant(&self, at: usize, insn: &Insn) -> Result<Op, String> {
        let high = match self.program.insns.get(at + 1) {
            Some(Insn { code: 0, dst: 0, src: 0, off: 0, imm }) => *imm,
            _ => return Err("a 64-bit immediate has no second half".into()),
        };
        if insn.code != class::LD | mode::IMM | Size::Dw as u8 || insn.off != 0 {
            return Err(unknown(insn));
        }
        let dst = writable(insn.dst)?;
        match insn.src {
            0 => Ok(Op::Const { dst, value: u64::from(insn.imm as u32) | u64::from(high as u32) << 32 }),
            insn::PSEUDO_MAP_FD => Ok(Op::LoadMap { dst, map: self.map_at(at)? }),
            insn::PSEUDO_MAP_VALUE => Ok(Op::LoadMapValue { dst, map: self.map_at(at)?, offset: high }),
            kind => Err(format!("loads an address of kind {kind}, which the device lacks")),
        }
    }

    fn map_at(&self, at: usize) -> Result<BpfMapId, String> {
        let found = self.program.map_refs.iter().find(|(slot, _)| *slot == at).map(|it| it.1);
        let map = found.ok_or("loads a map, but the image does not say which")?;
        if map.index() >= self.n_maps {
            return Err(format!("loads map {}, which the device does not have", map.0));
        }
        Ok(map)
    }
}

fn unknown(insn: &Insn) -> String {
    let Insn { code, dst, src, off, imm } = insn;
    format!("the device has no instruction {code:#04x} (dst {dst}, src {src}, off {off}, imm {imm})")
}

fn writable(reg: u8) -> Result<u8, String> {
    match reg {
        10 => Err("writes to r10, the frame pointer".into()),
        _ => Ok(reg),
    }
}

fn load(insn: &Insn) -> Result<Op, String> {
    let size = Size::of(insn.code);
    let signed = match insn.code & 0xe0 {
        mode::MEM => false,
        mode::MEMSX if size != Size::Dw => true,
        _ => return Err(unknown(insn)),
    };
    Ok(Op::Load { size, signed, dst: writable(insn.dst)?, base: insn.src, off: insn.off })
}

fn store(insn: &Insn, value: Operand) -> Result<Op, String> {
    match insn.code & 0xe0 {
        mode::MEM => Ok(Op::Store { size: Size::of(insn.code), base: insn.dst, off: insn.off, value }),
        _ => Err(unknown(insn)),
    }
}

fn atomic_operation(insn: &Insn) -> Result<Op, String> {
    let wide = match Size::of(insn.code) {
        Size::Dw => true,
        Size::W => false,
        _ => return Err(unknown(insn)),
    };
    let (op, fetch) = match insn.imm {
        atomic::XCHG => (AtomicOp::Exchange, true),
        atomic::CMPXCHG => (AtomicOp::CompareExchange, true),
        imm => {
            let op = match imm & !atomic::FETCH {
                atomic::ADD => AtomicOp::Add,
                atomic::OR => AtomicOp::Or,
                atomic::AND => AtomicOp::And,
                atomic::XOR => AtomicOp::Xor,
                _ => return Err(unknown(insn)),
            };
            (op, imm & atomic::FETCH != 0)
        }
    };
    if fetch && op != AtomicOp::CompareExchange {
        writable(insn.src)?;
    }
    Ok(Op::Atomic { op, fetch, wide, base: insn.dst, off: insn.off, src: insn.src })
}

fn arithmetic(insn: &Insn, wide: bool) -> Result<Op, String> {
    let dst = writable(insn.dst)?;
    let from_register = insn.code & insn::SRC_REG != 0;
    let rhs = if from_register { Operand::Reg(insn.src) } else { Operand::Imm(insn.imm.into()) };
    let op = match (insn.code & 0xf0, insn.off) {
        (0xd0, 0) => return byte_order(insn, wide, dst),
        (0x80, 0) if !from_register => return Ok(Op::Neg { wide, dst }),
        (0xb0, bits @ (8 | 16 | 32)) if from_register && (wide || bits < 32) => {
            return Ok(Op::Extend { bits: bits as u8, wide, dst, src: insn.src });
        }
        (0x00, 0) => Alu::Add,
        (0x10, 0) => Alu::Sub,
        (0x20, 0) => Alu::Mul,
        (0x30, 0) => Alu::Div,
        (0x30, 1) => Alu::SDiv,
        (0x40, 0) => Alu::Or,
        (0x50, 0) => Alu::And,
        (0x60, 0) => Alu::Lsh,
        (0x70, 0) => Alu::Rsh,
        (0x90, 0) => Alu::Mod,
        (0x90, 1) => Alu::SMod,
        (0xa0, 0) => Alu::Xor,
        (0xb0, 0) => Alu::Mov,
        (0xc0, 0) => Alu::Arsh,
        _ => return Err(unknown(insn)),
    };
    Ok(Op::Alu { op, wide, dst, rhs })
}

/// Little endian keeps the low bits, big endian swaps; the wide form always swaps.
fn byte_order(insn: &Insn, wide: bool, dst: u8) -> Result<Op, String> {
    let bits = match insn.imm {
        16 | 32 | 64 => insn.imm as u8,
        _ => return Err(unknown(insn)),
    };
    match (wide, insn.code & insn::SRC_REG != 0) {
        (true, true) => Err(unknown(insn)),
        (false, false) => Ok(Op::Low { bits, dst }),
        _ => Ok(Op::Swap { bits, dst }),
    }
}

fn jump(at: usize, insn: &Insn, wide: bool) -> Result<Decoded, String> {
    let target =
        |distance: i64| usize::try_from(at as i64 + 1 + distance).map_err(|_| "jumps out of the program".to_string());
    let straight = |op| Decoded { op, next: Some(at + 1), target: None, calls: None };
    match (insn.code & 0xf0, wide) {
        (insn::JA, _) if insn.code & insn::SRC_REG == 0 => {
            let to = target(if wide { insn.off.into() } else { insn.imm.into() })?;
            Ok(Decoded { next: Some(to), ..straight(Op::Jump) })
        }
        (insn::EXIT, true) => Ok(Decoded { next: None, ..straight(Op::Exit) }),
        (insn::CALL, true) => match insn.src {
            0 => Ok(straight(Op::Call(insn.imm))),
            insn::PSEUDO_CALL => Ok(Decoded { calls: Some(target(insn.imm.into())?), ..straight(Op::Enter) }),
            kind => Err(format!("makes a call of kind {kind}, which the device lacks")),
        },
        (code, _) => {
            let cond = Cond::of(code).ok_or_else(|| unknown(insn))?;
            let from_register = insn.code & insn::SRC_REG != 0;
            let rhs = if from_register { Operand::Reg(insn.src) } else { Operand::Imm(insn.imm.into()) };
            let op = Op::Branch { cond, wide, lhs: insn.dst, rhs };
            Ok(Decoded { target: Some(target(insn.off.into())?), ..straight(op) })
        }
    }
}
