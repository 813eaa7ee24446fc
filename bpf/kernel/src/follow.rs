//! Keeping the map of target processes right inside the kernel.
//!
//! Two small programs run at `sched_process_fork` and `sched_process_exit`: a new process is a
//! target before it runs its first instruction, so tracepoints and samples miss nothing of it.

use xputrace_bytecode::insn::{Alu, Cond, Size};
use xputrace_bytecode::{Assembler, Program, ProgramKind, Reg, helper};
use xputrace_model::catalog::{Catalog, TracepointFormat};

/// The tracepoints that they run at, of `sched`.
pub(crate) const FORK: &str = "sched_process_fork";
pub(crate) const EXIT: &str = "sched_process_exit";
/// Stack slots of the programs.
const TGID: i16 = -4;
const OTHER: i16 = -8;
const ONE: i16 = -12;

/// The two programs over map `targets` of the image, or a sentence why they cannot be made.
pub(crate) fn programs(targets: usize, catalog: &dyn Catalog) -> Result<[Program; 2], String> {
    let fork = catalog.tracepoint("sched", FORK)?;
    let exit = catalog.tracepoint("sched", EXIT)?;
    Ok([on_fork(targets, &fork)?, on_exit(targets, &exit)?])
}

/// `if targets[current process]: targets[child] = 1`. A new thread gets an entry too, which
/// names no process and goes when the thread ends.
fn on_fork(targets: usize, format: &TracepointFormat) -> Result<Program, String> {
    let child = offset(format, "child_pid")?;
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    current_process(&mut asm);
    call_with_key(&mut asm, targets, TGID, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.ldx(Size::W, Reg::R1, Reg::R6, child);
    asm.stx(Size::W, Reg::FP, OTHER, Reg::R1);
    asm.st_imm(Size::W, Reg::FP, ONE, 1);
    asm.mov(Reg::R3, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R3, ONE.into());
    asm.mov_imm(Reg::R4, helper::UPDATE_ANY.into());
    call_with_key(&mut asm, targets, OTHER, helper::MAP_UPDATE_ELEM);
    asm.place(out);
    finish(asm, "xt_fork", FORK)
}

/// `if the process ends: delete targets[process]`; `if a thread ends: delete targets[thread]`.
/// Kernels that do not tell whether the whole process ends keep its entry.
fn on_exit(targets: usize, format: &TracepointFormat) -> Result<Program, String> {
    let thread = offset(format, "pid")?;
    let mut asm = Assembler::new();
    let (out, same) = (asm.label(), asm.label());
    asm.mov(Reg::R6, Reg::R1);
    current_process(&mut asm);
    asm.ldx(Size::W, Reg::R1, Reg::R6, thread);
    asm.stx(Size::W, Reg::FP, OTHER, Reg::R1);
    asm.ldx(Size::W, Reg::R2, Reg::FP, TGID);
    asm.jump_if(Cond::Eq, Reg::R1, Reg::R2, same);
    call_with_key(&mut asm, targets, OTHER, helper::MAP_DELETE_ELEM);
    asm.place(same);
    if let Ok(group_dead) = offset(format, "group_dead") {
        asm.ldx(Size::B, Reg::R1, Reg::R6, group_dead);
        asm.jump_if_imm(Cond::Eq, Reg::R1, 0, out);
        call_with_key(&mut asm, targets, TGID, helper::MAP_DELETE_ELEM);
    }
    asm.place(out);
    finish(asm, "xt_exit", EXIT)
}

/// The process id of whoever runs, into its stack slot.
fn current_process(asm: &mut Assembler) {
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.alu_imm(Alu::Rsh, Reg::R0, 32);
    asm.stx(Size::W, Reg::FP, TGID, Reg::R0);
}

fn call_with_key(asm: &mut Assembler, map: usize, key: i16, function: i32) {
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, key.into());
    asm.call(function);
}

fn offset(format: &TracepointFormat, name: &str) -> Result<i16, String> {
    let field = format.fields.iter().find(|it| it.name == name);
    field
        .and_then(|it| i16::try_from(it.offset).ok())
        .ok_or_else(|| format!("the tracepoint for following processes has no field `{name}` here"))
}

fn finish(mut asm: Assembler, name: &str, tracepoint: &str) -> Result<Program, String> {
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let done = asm.finish().map_err(|it| it.to_string())?;
    Ok(Program {
        name: name.into(),
        kind: ProgramKind::Tracepoint { category: "sched".into(), name: tracepoint.into() },
        insns: done.insns,
        map_refs: done.map_refs,
        lines: done.lines,
    })
}
