//! Checks a program once and converts it to the form that the inner loop runs.
//!
//! There is one decoded instruction per slot, so positions match the program and the log. Jumps
//! hold their target, immediates are extended, maps are pointers, and accesses relative to the
//! frame pointer are fixed stack offsets; those relative to the register that a compiler keeps the context in,
//! offsets in the context.

use super::fault::LoadError;
use super::fuse::fuse;
use super::op::{Decoded, Op};
use super::pointer::{self, MAPS, VALUES};
use crate::helper;
use crate::image::Program;
use crate::insn::{self, Insn, STACK_BYTES, Size, atomic, class, mode};

/// Checks and decodes a program.
pub(super) fn decode(program: &Program, n_maps: usize) -> Result<Vec<Decoded>, LoadError> {
    let has_calls = program.insns.iter().any(|it| it.code == CALL && it.src == insn::PSEUDO_CALL);
    let context = if has_calls { None } else { context_register(&program.insns) };
    let checked = Decoder { program, n_maps, has_calls, context };
    checked
        .run()
        .map_err(|(insn, what)| LoadError { place: format!("program `{}`, instruction {insn}", program.name), what })
}

/// Code of a call.
const CALL: u8 = class::JMP | insn::CALL;

struct Decoder<'a> {
    program: &'a Program,
    n_maps: usize,
    /// Whether functions call each other: then the frame pointer isn't the same everywhere.
    has_calls: bool,
    /// The register that holds the context wherever it is read.
    context: Option<u8>,
}

/// Returns the register that the first instruction copies the context to, if no other one writes it or follows a jump
/// to the first.
fn context_register(insns: &[Insn]) -> Option<u8> {
    let (first, others) = insns.split_first()?;
    let copies = first.code == class::ALU64 | insn::Alu::Mov as u8 | insn::SRC_REG && first.src == 1 && first.off == 0;
    let is_kept = (6..=9).contains(&first.dst);
    let writes = |it: &Insn| match it.code & 7 {
        class::LD | class::LDX | class::ALU | class::ALU64 => it.dst == first.dst,
        // An atomic instruction may fetch into its source.
        class::STX => it.code & 0xe0 == mode::ATOMIC && it.src == first.dst,
        _ => false,
    };
    let jumps_to_first = |(at, it): (usize, &Insn)| {
        let is_jump = matches!(it.code & 7, class::JMP | class::JMP32);
        let far = it.code == class::JMP32 | insn::JA;
        let distance = if far { i64::from(it.imm) } else { i64::from(it.off) };
        is_jump && at as i64 + 1 + distance == 0
    };
    let is_stable = !others.iter().any(writes) && !insns.iter().enumerate().any(jumps_to_first);
    (copies && is_kept && is_stable).then_some(first.dst)
}

type Checked<T> = Result<T, String>;

impl Decoder<'_> {
    fn run(&self) -> Result<Vec<Decoded>, (usize, String)> {
        let insns = &self.program.insns;
        self.map_refs()?;
        let mut code = Vec::with_capacity(insns.len());
        while let Some(insn) = insns.get(code.len()) {
            let at = code.len();
            let decoded = self.insn(at, insn).map_err(|what| (at, what))?;
            code.push(decoded);
            if decoded.op == Op::LdImm64 {
                code.push(Decoded { op: Op::Half, ..decoded });
            }
        }
        self.ends(&code)?;
        self.targets(&code)?;
        fuse(&mut code, !self.has_calls);
        Ok(code)
    }

    fn map_refs(&self) -> Result<(), (usize, String)> {
        for (slot, map) in &self.program.map_refs {
            let insn = self.program.insns.get(*slot);
            let loads_map = insn.is_some_and(|it| {
                it.code == class::LD | mode::IMM | insn::Size::Dw as u8
                    && [insn::PSEUDO_MAP_FD, insn::PSEUDO_MAP_VALUE].contains(&it.src)
            });
            if !loads_map || map.index() >= self.n_maps {
                return Err((*slot, format!("refers to map {}, but loads no map of the image", map.0)));
            }
        }
        Ok(())
    }

    fn ends(&self, code: &[Decoded]) -> Result<(), (usize, String)> {
        match code.last() {
            Some(Decoded { op: Op::Exit | Op::Ja, .. }) => Ok(()),
            last => {
                let at = code.len() - usize::from(last.is_some());
                Err((at, "the program runs past its end".into()))
            }
        }
    }

    fn targets(&self, code: &[Decoded]) -> Result<(), (usize, String)> {
        for (at, insn) in code.iter().enumerate().filter(|(_, it)| it.op.jumps()) {
            match usize::try_from(insn.off).ok().and_then(|it| code.get(it)) {
                None => return Err((at, "jumps out of the program".into())),
                Some(Decoded { op: Op::Half, .. }) => {
                    return Err((at, "jumps into the middle of an instruction".into()));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn insn(&self, at: usize, insn: &Insn) -> Checked<Decoded> {
        if insn.dst > 10 || insn.src > 10 {
            return Err("names a register above r10".into());
        }
        match insn.code & 7 {
            class::LD => self.ld_imm64(at, insn),
            class::LDX => self.ldx(insn),
            class::ST => store(insn, false, !self.has_calls),
            class::STX if insn.code & 0xe0 == mode::ATOMIC => atomic(insn),
            class::STX => store(insn, true, !self.has_calls),
            class::ALU => alu(insn, false),
            class::ALU64 => alu(insn, true),
            class::JMP => jump(at, insn, false),
            _ => jump(at, insn, true),
        }
    }

    fn ldx(&self, insn: &Insn) -> Checked<Decoded> {
        use Op::*;
        writes(insn.dst)?;
        let size = Size::of(insn.code).bytes();
        let (op, in_stack, in_context) = match (insn.code & 0xe0, size) {
            (mode::MEM, 1) => (Load8, Some(StackLoad8), Some(ContextLoad8)),
            (mode::MEM, 2) => (Load16, Some(StackLoad16), Some(ContextLoad16)),
            (mode::MEM, 4) => (Load32, Some(StackLoad32), Some(ContextLoad32)),
            (mode::MEM, 8) => (Load64, Some(StackLoad64), Some(ContextLoad64)),
            (mode::MEMSX, 1) => (LoadS8, None, None),
            (mode::MEMSX, 2) => (LoadS16, None, None),
            (mode::MEMSX, 4) => (LoadS32, None, None),
            _ => return Err(unknown(insn)),
        };
        if insn.imm != 0 {
            return Err(unknown(insn));
        }
        let offset = insn.off as i64 as u64;
        Ok(match (in_stack, in_context) {
            (Some(op), _) if insn.src == 10 && !self.has_calls => decoded(op, insn, stack_place(insn.off, size)?, 0),
            (_, Some(op)) if Some(insn.src) == self.context => decoded(op, insn, insn.off.into(), offset),
            _ => decoded(op, insn, insn.off.into(), offset),
        })
    }

    fn ld_imm64(&self, at: usize, insn: &Insn) -> Checked<Decoded> {
        if insn.code != class::LD | mode::IMM | insn::Size::Dw as u8 || insn.off != 0 {
            return Err(unknown(insn));
        }
        let high = match self.program.insns.get(at + 1) {
            Some(Insn { code: 0, dst: 0, src: 0, off: 0, imm }) => *imm,
            _ => return Err("a 64-bit immediate has no second half".into()),
        };
        let imm = match insn.src {
            0 => u64::from(insn.imm as u32) | u64::from(high as u32) << 32,
            insn::PSEUDO_MAP_FD => pointer::make(MAPS, self.map_at(at)? as u64),
            insn::PSEUDO_MAP_VALUE => pointer::make(VALUES + self.map_at(at)? as u64, u64::from(high as u32)),
            kind => return Err(format!("loads an address of kind {kind}, which the engine lacks")),
        };
        writes(insn.dst)?;
        Ok(decoded(Op::LdImm64, insn, 0, imm))
    }

    fn map_at(&self, at: usize) -> Checked<usize> {
        let found = self.program.map_refs.iter().find(|(slot, _)| *slot == at);
        found.map(|it| it.1.index()).ok_or_else(|| "loads a map, but the image does not say which".into())
    }
}

impl Op {
    fn jumps(self) -> bool {
        self == Op::CallLocal || (Op::Ja as u8..=Op::Jsle32R as u8).contains(&(self as u8))
    }
}

fn decoded(op: Op, insn: &Insn, off: i32, imm: u64) -> Decoded {
    Decoded { op, dst: insn.dst, src: insn.src, off, imm }
}

fn unknown(insn: &Insn) -> String {
    let Insn { code, dst, src, off, imm } = insn;
    format!("the engine has no instruction {code:#04x} (dst {dst}, src {src}, off {off}, imm {imm})")
}

fn writes(reg: u8) -> Checked<()> {
    match reg {
        10 => Err("writes to r10, the frame pointer".into()),
        _ => Ok(()),
    }
}

/// Returns the stack offset of a frame-pointer access of `size` bytes.
fn stack_place(off: i16, size: usize) -> Checked<i32> {
    let place = STACK_BYTES as i32 + i32::from(off);
    if place < 0 || place as usize + size > STACK_BYTES {
        return Err(format!("access to {size} bytes at r10{off:+} is outside of the stack"));
    }
    Ok(place)
}

fn store(insn: &Insn, from_register: bool, stack_is_fixed: bool) -> Checked<Decoded> {
    use Op::*;
    let unused = if from_register { insn.imm != 0 } else { insn.src != 0 };
    if insn.code & 0xe0 != mode::MEM || unused {
        return Err(unknown(insn));
    }
    let size = Size::of(insn.code).bytes();
    let is_fixed = insn.dst == 10 && stack_is_fixed;
    let ops = match (is_fixed, from_register) {
        (false, false) => [Store8I, Store16I, Store32I, Store64I],
        (false, true) => [Store8R, Store16R, Store32R, Store64R],
        (true, false) => [StackStore8I, StackStore16I, StackStore32I, StackStore64I],
        (true, true) => [StackStore8R, StackStore16R, StackStore32R, StackStore64R],
    };
    let off = if is_fixed { stack_place(insn.off, size)? } else { insn.off.into() };
    Ok(decoded(ops[size.trailing_zeros() as usize], insn, off, insn.imm as i64 as u64))
}

fn atomic(insn: &Insn) -> Checked<Decoded> {
    let op = match Size::of(insn.code).bytes() {
        4 => Op::Atomic32,
        // By far the most frequent one.
        8 if insn.imm == atomic::ADD => Op::AtomicAdd64,
        8 => Op::Atomic64,
        _ => return Err(unknown(insn)),
    };
    let fetches = match insn.imm {
        atomic::ADD | atomic::OR | atomic::AND | atomic::XOR | atomic::CMPXCHG => false,
        atomic::XCHG => true,
        imm if imm & atomic::FETCH != 0 => match imm & !atomic::FETCH {
            atomic::ADD | atomic::OR | atomic::AND | atomic::XOR => true,
            _ => return Err(unknown(insn)),
        },
        _ => return Err(unknown(insn)),
    };
    if fetches {
        writes(insn.src)?;
    }
    Ok(decoded(op, insn, insn.off.into(), insn.imm as u32 as u64))
}

fn alu(insn: &Insn, wide: bool) -> Checked<Decoded> {
    writes(insn.dst)?;
    let code = insn.code & 0xf0;
    if code == 0xd0 {
        return byte_order(insn, wide);
    }
    let from_register = insn.code & insn::SRC_REG != 0;
    let unused = if from_register { insn.imm != 0 } else { insn.src != 0 };
    let negates = code == insn::Alu::Neg as u8;
    if unused || (negates && (from_register || insn.imm != 0)) {
        return Err(unknown(insn));
    }
    let op = alu_op(code, insn.off, wide, from_register).ok_or_else(|| unknown(insn))?;
    let bits = if wide { 63 } else { 31 };
    let shifts = matches!(code, 0x60 | 0x70 | 0xc0);
    let imm = match insn.imm as i64 as u64 {
        imm if shifts => imm & bits,
        imm if wide => imm,
        imm => imm & 0xffff_ffff,
    };
    Ok(decoded(op, insn, 0, imm))
}

fn alu_op(code: u8, off: i16, wide: bool, from_register: bool) -> Option<Op> {
    use Op::*;
    let four = match (code, off) {
        (0x00, 0) => [Add32I, Add32R, Add64I, Add64R],
        (0x10, 0) => [Sub32I, Sub32R, Sub64I, Sub64R],
        (0x20, 0) => [Mul32I, Mul32R, Mul64I, Mul64R],
        (0x30, 0) => [Div32I, Div32R, Div64I, Div64R],
        (0x30, 1) => [SDiv32I, SDiv32R, SDiv64I, SDiv64R],
        (0x40, 0) => [Or32I, Or32R, Or64I, Or64R],
        (0x50, 0) => [And32I, And32R, And64I, And64R],
        (0x60, 0) => [Lsh32I, Lsh32R, Lsh64I, Lsh64R],
        (0x70, 0) => [Rsh32I, Rsh32R, Rsh64I, Rsh64R],
        (0x80, 0) => [Neg32, Neg32, Neg64, Neg64],
        (0x90, 0) => [Mod32I, Mod32R, Mod64I, Mod64R],
        (0x90, 1) => [SMod32I, SMod32R, SMod64I, SMod64R],
        (0xa0, 0) => [Xor32I, Xor32R, Xor64I, Xor64R],
        (0xb0, 0) => [Mov32I, Mov32R, Mov64I, Mov64R],
        (0xb0, _) if !from_register => return None,
        (0xb0, 8) => [MovS8To32, MovS8To32, MovS8To64, MovS8To64],
        (0xb0, 16) => [MovS16To32, MovS16To32, MovS16To64, MovS16To64],
        (0xb0, 32) if wide => [MovS32To64; 4],
        (0xc0, 0) => [Arsh32I, Arsh32R, Arsh64I, Arsh64R],
        _ => return None,
    };
    Some(four[usize::from(wide) * 2 + usize::from(from_register)])
}

/// Little endian keeps the low bits, big endian swaps; the wide form always swaps.
fn byte_order(insn: &Insn, wide: bool) -> Checked<Decoded> {
    let swaps = wide || insn.code & insn::SRC_REG != 0;
    if insn.src != 0 || insn.off != 0 || (wide && insn.code & insn::SRC_REG != 0) {
        return Err(unknown(insn));
    }
    let op = match (insn.imm, swaps) {
        (16, false) => Op::Low16,
        (32, false) => Op::Low32,
        (64, false) => Op::Low64,
        (16, true) => Op::Swap16,
        (32, true) => Op::Swap32,
        (64, true) => Op::Swap64,
        _ => return Err(unknown(insn)),
    };
    Ok(decoded(op, insn, 0, 0))
}

fn jump(at: usize, insn: &Insn, narrow: bool) -> Checked<Decoded> {
    let target = |distance: i32| {
        let to = at as i64 + 1 + i64::from(distance);
        i32::try_from(to).map_err(|_| "jumps out of the program".to_string())
    };
    match (insn.code & 0xf0, narrow) {
        (insn::JA, _) if insn.code & insn::SRC_REG != 0 => Err(unknown(insn)),
        (insn::JA, true) => Ok(decoded(Op::Ja, insn, target(insn.imm)?, 0)),
        (insn::JA, false) => Ok(decoded(Op::Ja, insn, target(insn.off.into())?, 0)),
        (insn::CALL, false) if insn.code == CALL && insn.src == insn::PSEUDO_CALL => {
            Ok(decoded(Op::CallLocal, insn, target(insn.imm)?, 0))
        }
        (insn::CALL, false) => call(insn),
        (insn::EXIT, false) if insn.code & insn::SRC_REG == 0 => Ok(decoded(Op::Exit, insn, 0, 0)),
        (code, _) => {
            let from_register = insn.code & insn::SRC_REG != 0;
            let unused = if from_register { insn.imm != 0 } else { insn.src != 0 };
            let op = jump_op(code, narrow, from_register).filter(|_| !unused);
            let imm = insn.imm as i64 as u64;
            Ok(decoded(op.ok_or_else(|| unknown(insn))?, insn, target(insn.off.into())?, imm))
        }
    }
}

fn jump_op(code: u8, narrow: bool, from_register: bool) -> Option<Op> {
    use Op::*;
    let four = match code {
        0x10 => [Jeq64I, Jeq64R, Jeq32I, Jeq32R],
        0x20 => [Jgt64I, Jgt64R, Jgt32I, Jgt32R],
        0x30 => [Jge64I, Jge64R, Jge32I, Jge32R],
        0x40 => [Jset64I, Jset64R, Jset32I, Jset32R],
        0x50 => [Jne64I, Jne64R, Jne32I, Jne32R],
        0x60 => [Jsgt64I, Jsgt64R, Jsgt32I, Jsgt32R],
        0x70 => [Jsge64I, Jsge64R, Jsge32I, Jsge32R],
        0xa0 => [Jlt64I, Jlt64R, Jlt32I, Jlt32R],
        0xb0 => [Jle64I, Jle64R, Jle32I, Jle32R],
        0xc0 => [Jslt64I, Jslt64R, Jslt32I, Jslt32R],
        0xd0 => [Jsle64I, Jsle64R, Jsle32I, Jsle32R],
        _ => return None,
    };
    Some(four[usize::from(narrow) * 2 + usize::from(from_register)])
}

fn call(insn: &Insn) -> Checked<Decoded> {
    if insn.src != 0 || insn.code & insn::SRC_REG != 0 {
        return Err(format!("makes a call of kind {}, which the engine lacks", insn.src));
    }
    match insn.imm {
        helper::MAP_LOOKUP_ELEM => Ok(decoded(Op::Lookup, insn, 0, 0)),
        // The engine has every helper that has a name here.
        id if helper::name(id).is_some() => Ok(decoded(Op::Call, insn, 0, id as u64)),
        id => Err(format!("the engine has no helper {id}")),
    }
}
