//! Changes a number in a map of Linux from user space, atomically.
//!
//! Reading and writing back would lose what a probe adds in between. So a program of a few
//! instructions does it inside Linux, run by `BPF_PROG_TEST_RUN`: it looks up the element and changes
//! it atomically, as the probes themselves do. A [`Modifier`] creates a missing element; one of
//! [`Atomics`] returns what the number was.
//!
//! ```text
//! ctx of a Modifier:        key, padded to 8 bytes │ operand
//! ctx of an AtomicProgram:  key, padded to 8 bytes │ where the number is │ operand │ expected │ what it was
//! ```

use crate::sys;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use xputrace_bytecode::image::MapSpec;
use xputrace_bytecode::insn::{self, Alu, Cond, STACK_BYTES, Size};
use xputrace_bytecode::vm::{Atomic, Number};
use xputrace_bytecode::{Assembler, BpfMapId, Reg, helper};

/// Bytes of a register.
const WORD: usize = 8;

/// A loaded program for one map and one operation.
#[derive(Debug)]
pub(crate) struct Modifier {
    op: i32,
    program: OwnedFd,
    ctx: Vec<u8>,
}

impl Modifier {
    pub(crate) fn new(map: BorrowedFd<'_>, spec: &MapSpec, op: i32) -> io::Result<Modifier> {
        let refused = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let (key, value) = sizes(spec);
        if spec.value_size < 8 || key + value > STACK_BYTES {
            let text = format!(
                "a key of {} and a value of {} bytes cannot be changed in place",
                spec.key_size, spec.value_size
            );
            return Err(refused(text));
        }
        let insns = program(map, key, value, op).map_err(refused)?;
        let program = sys::load_syscall_program(c"xt_modify", &insns)?;
        Ok(Modifier { op, program, ctx: vec![0; key + 8] })
    }

    pub(crate) fn op(&self) -> i32 {
        self.op
    }

    /// Returns whether the element was created; `key` has the map's key size.
    pub(crate) fn run(&mut self, key: &[u8], operand: u64) -> io::Result<bool> {
        let operand_at = self.ctx.len() - 8;
        self.ctx[..key.len()].copy_from_slice(key);
        self.ctx[operand_at..].copy_from_slice(&operand.to_ne_bytes());
        match sys::run_program(self.program.as_fd(), &mut self.ctx)? {
            made @ (0 | 1) => Ok(made == 1),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

/// The programs for one map that run atomic instructions: at most one for each instruction and size of number.
#[derive(Debug, Default)]
pub(crate) struct Atomics {
    programs: Vec<AtomicSlot>,
    refusal: Option<io::Error>,
}

#[derive(Debug)]
struct AtomicSlot {
    /// 4 or 8.
    bytes: u8,
    op: i32,
    /// `None` if it can't be: it is not tried again.
    program: Option<AtomicProgram>,
}

impl Atomics {
    /// Returns what the number was, or `None` if the map has no such element, or it can't be done: see
    /// [`Atomics::refusal`].
    pub(crate) fn run(
        &mut self,
        map: BorrowedFd<'_>,
        spec: &MapSpec,
        key: &[u8],
        number: Number,
        atomic: Atomic,
    ) -> Option<u64> {
        let at = self.slot(map, spec, number.bytes, atomic.op);
        let program = self.programs[at].program.as_mut()?;
        program.run(key, number, atomic).unwrap_or_else(|error| {
            self.refusal.get_or_insert(error);
            None
        })
    }

    /// Returns why the first instruction that could not be done could not.
    pub(crate) fn refusal(&self) -> Option<&io::Error> {
        self.refusal.as_ref()
    }

    /// Returns where the program of this instruction and size is, loaded on first use.
    fn slot(&mut self, map: BorrowedFd<'_>, spec: &MapSpec, bytes: u8, op: i32) -> usize {
        if let Some(at) = self.programs.iter().position(|it| (it.bytes, it.op) == (bytes, op)) {
            return at;
        }
        let program = AtomicProgram::new(map, spec, bytes, op);
        let program = program.map_err(|error| self.refusal.get_or_insert(error)).ok();
        self.programs.push(AtomicSlot { bytes, op, program });
        self.programs.len() - 1
    }
}

/// A loaded program for one map, one size of number and one atomic instruction.
#[derive(Debug)]
struct AtomicProgram {
    program: OwnedFd,
    ctx: Vec<u8>,
}

impl AtomicProgram {
    /// Words of the context after the key.
    const WORDS: usize = 4;

    fn new(map: BorrowedFd<'_>, spec: &MapSpec, bytes: u8, op: i32) -> io::Result<AtomicProgram> {
        let refused = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let key = sizes(spec).0;
        if key > STACK_BYTES {
            return Err(refused(format!("a key of {} bytes is too long", spec.key_size)));
        }
        let last = spec.value_size.checked_sub(bytes.into()).and_then(|it| i32::try_from(it).ok());
        let last = last.ok_or_else(|| refused(format!("a value of {} bytes has no such number", spec.value_size)))?;
        let insns = atomic_program(map, key, bytes, last, op).map_err(refused)?;
        let program = sys::load_syscall_program(c"xt_atomic", &insns)?;
        Ok(AtomicProgram { program, ctx: vec![0; key + Self::WORDS * WORD] })
    }

    /// Returns what the number was, or `None` if the map has no such element; `key` has the map's key size.
    fn run(&mut self, key: &[u8], number: Number, atomic: Atomic) -> io::Result<Option<u64>> {
        let Number { at, bytes } = number;
        if !at.is_multiple_of(bytes.into()) {
            let text = format!("the number at byte {at} is not aligned to its {bytes} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        self.ctx[..key.len()].copy_from_slice(key);
        let words = self.ctx.len() - Self::WORDS * WORD;
        for (n, word) in [at.into(), atomic.operand, atomic.expected, 0].into_iter().enumerate() {
            self.ctx[words + n * WORD..][..WORD].copy_from_slice(&word.to_ne_bytes());
        }
        let is_there = sys::run_program(self.program.as_fd(), &mut self.ctx)? == 1;
        let was = self.ctx.last_chunk().map_or(0, |it| u64::from_ne_bytes(*it));
        Ok(is_there.then_some(was))
    }
}

/// Returns a program that returns 1 if the element is there. `last` is where the last number of this size would be.
fn atomic_program(map: BorrowedFd<'_>, key: usize, bytes: u8, last: i32, op: i32) -> Result<Vec<[u8; 8]>, String> {
    let key_at = -(key as i16);
    let word = |n: usize| (key + n * WORD) as i16;
    let size = if bytes == 4 { Size::W } else { Size::Dw };
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    copy_key(&mut asm, key);
    asm.ldx(Size::Dw, Reg::R7, Reg::R6, word(1));
    asm.ldx(Size::Dw, Reg::R8, Reg::R6, word(2));
    asm.find(BpfMapId(0), key_at);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov(Reg::R9, Reg::R0);
    asm.mov_imm(Reg::R0, 0);
    // The verifier must see that the number is aligned, and inside the value.
    asm.ldx(Size::Dw, Reg::R1, Reg::R6, word(0));
    asm.alu_imm(Alu::And, Reg::R1, -i32::from(bytes));
    asm.jump_if_imm(Cond::Gt, Reg::R1, last, out);
    asm.alu(Alu::Add, Reg::R9, Reg::R1);
    asm.mov(Reg::R0, Reg::R8);
    // Those that return the old value do so in their operand's register, and CMPXCHG in R0.
    asm.atomic(op | insn::atomic::FETCH, size, Reg::R9, 0, Reg::R7);
    let was = if op == insn::atomic::CMPXCHG { Reg::R0 } else { Reg::R7 };
    asm.stx(Size::Dw, Reg::R6, word(3), was);
    asm.mov_imm(Reg::R0, 1);
    asm.place(out);
    asm.exit();
    patched(asm, map)
}

/// Copies the key from the context, in R6, to the stack.
fn copy_key(asm: &mut Assembler, key: usize) {
    for at in (0..key as i16).step_by(WORD) {
        asm.ldx(Size::Dw, Reg::R1, Reg::R6, at);
        asm.stx(Size::Dw, Reg::FP, at - key as i16, Reg::R1);
    }
}

/// Returns the instructions with the map's descriptor.
fn patched(asm: Assembler, map: BorrowedFd<'_>) -> Result<Vec<[u8; 8]>, String> {
    let done = asm.finish().map_err(|it| it.to_string())?;
    let mut insns = done.insns;
    for (slot, _) in done.map_refs {
        insns[slot].imm = map.as_raw_fd();
    }
    Ok(insns.into_iter().map(|it| it.to_bytes()).collect())
}

/// Returns the sizes of key and value, each padded to 8 bytes.
fn sizes(spec: &MapSpec) -> (usize, usize) {
    let padded = |it: u32| (it as usize).next_multiple_of(8);
    (padded(spec.key_size), padded(spec.value_size))
}

/// Returns 1 if it created the element, else 0, or the negative errno of a map that accepts no
/// element. Deleting an element between two steps has the same effect as deleting it after the
/// last.
fn program(map: BorrowedFd<'_>, key: usize, value: usize, op: i32) -> Result<Vec<[u8; 8]>, String> {
    let (key_at, value_at) = (-(key as i16), -((key + value) as i16));
    let mut asm = Assembler::new();
    let (hit, out, done) = (asm.label(), asm.label(), asm.label());
    let found = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    asm.mov_imm(Reg::R9, 0);
    copy_key(&mut asm, key);
    asm.ldx(Size::Dw, Reg::R7, Reg::R6, key as i16);
    asm.find(BpfMapId(0), key_at);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
    for at in (0..value as i16).step_by(8) {
        asm.st_imm(Size::Dw, Reg::FP, value_at + at, 0);
    }
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.stack_address(Reg::R2, key_at);
    asm.stack_address(Reg::R3, value_at);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.mov(Reg::R8, Reg::R0);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, found);
    asm.mov_imm(Reg::R9, 1);
    asm.place(found);
    asm.find(BpfMapId(0), key_at);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
    asm.mov(Reg::R0, Reg::R8);
    asm.jump_if_imm(Cond::Ne, Reg::R0, -libc::EEXIST, out);
    asm.jump(done);
    asm.place(hit);
    asm.atomic(op, Size::Dw, Reg::R0, 0, Reg::R7);
    asm.place(done);
    asm.mov(Reg::R0, Reg::R9);
    asm.place(out);
    asm.exit();
    patched(asm, map)
}
