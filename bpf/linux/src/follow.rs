//! Keeping the map of target processes right inside the kernel.
//!
//! Two small programs run when a process is made and when one ends: a new process is a target
//! before it runs its first instruction, so probes, tracepoints and samples miss nothing of it.
//!
//! ```text
//! task_newtask        if targets[current process]: targets[child] = 1, or unfollowed += 1
//! sched_process_exit  if its last thread ends: delete targets[current process]
//! ```
//!
//! The map names processes as our pid namespace does. The kernel's records of these events do not,
//! so the programs read the child's id out of its `struct pid`.

use crate::btf;
use crate::map::MapHandle;
use crate::sys;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use xputrace_bytecode::insn::{Alu, Cond, Size, atomic};
use xputrace_bytecode::{Assembler, Home, Label, MapKind, MapSpec, Reg, helper};

/// A task that is a new thread, not a process. Source: `include/uapi/linux/sched.h`.
const CLONE_THREAD: i32 = 0x0001_0000;
/// Bytes of `struct upid`, whose first member is the id. Source: `include/linux/pid.h`.
const UPID_BYTES_SHIFT: i32 = 4;
/// Stack slots of the programs.
const TGID: i16 = -4;
const CHILD: i16 = -8;
const ONE: i16 = -12;
const ZERO: i16 = -16;
const WORD: i16 = -24;
const NAMESPACED: i16 = -32;

/// The two programs, loaded.
#[derive(Debug)]
pub(crate) struct Followers {
    birth: OwnedFd,
    end: OwnedFd,
    unfollowed: MapHandle,
}

impl Followers {
    /// Loads them for a map of targets, or says in a sentence why they cannot be.
    pub(crate) fn load(targets: BorrowedFd<'_>, namespace: Option<(u64, u64)>) -> Result<Followers, String> {
        let spec = counter();
        let failed = |what: &str, answer: std::io::Error| format!("cannot {what}: {answer}");
        let unfollowed = sys::map_create(&spec).map_err(|it| failed("count new processes in the kernel", it))?;
        let offsets = Offsets::of_the_kernel()?;
        let maps = [targets, unfollowed.as_fd()];
        let load = |name, asm| {
            sys::load_raw_tracepoint(name, &insns(asm, maps)?)
                .map_err(|it| failed("load the programs that follow processes", it))
        };
        let birth = load(c"xt_birth", on_birth(&offsets, namespace))?;
        let end = load(c"xt_end", on_end(&offsets, namespace))?;
        Ok(Followers { birth, end, unfollowed: MapHandle::new(spec, unfollowed) })
    }

    /// From here on the children of targets are targets.
    pub(crate) fn watch_births(&self) -> Result<OwnedFd, String> {
        link(c"task_newtask", &self.birth)
    }

    /// From here on targets that end are taken out.
    pub(crate) fn watch_ends(&self) -> Result<OwnedFd, String> {
        link(c"sched_process_exit", &self.end)
    }

    /// Children of targets that did not become targets, up to now: the map is full, or they have a
    /// pid namespace of their own, whose processes no program can name in ours.
    pub(crate) fn unfollowed(&self) -> u64 {
        let missed = sys::prog_misses(self.birth.as_fd()).unwrap_or_default();
        let count = self.unfollowed.lookup(&[0; 4]).ok().flatten().and_then(|it| it.first()?.first_chunk().copied());
        missed + count.map_or(0, u64::from_ne_bytes)
    }
}

/// Where the kernel keeps what the programs read.
struct Offsets {
    /// `task_struct`: its `struct pid`.
    thread_pid: i32,
    /// `task_struct`: its `signal_struct`.
    signal: i32,
    /// `signal_struct`: threads that have not ended.
    live: i32,
    /// `struct pid`: how many namespaces are around its own.
    level: i32,
    /// `struct pid`: its id in each namespace, the initial one first.
    numbers: i32,
}

impl Offsets {
    fn of_the_kernel() -> Result<Offsets, String> {
        const MEMBERS: [(&str, &str); 5] = [
            ("task_struct", "thread_pid"),
            ("task_struct", "signal"),
            ("signal_struct", "live"),
            ("pid", "level"),
            ("pid", "numbers"),
        ];
        let found = btf::member_offsets(MEMBERS).ok_or("the kernel's type information (BTF) is not there")?;
        let [thread_pid, signal, live, level, numbers] = found.map(|it| it as i32);
        Ok(Offsets { thread_pid, signal, live, level, numbers })
    }
}

/// Arguments: the new task, its clone flags; its maker runs. Threads get no entry, as nobody looks
/// for one.
fn on_birth(offsets: &Offsets, namespace: Option<(u64, u64)>) -> Assembler {
    let mut asm = Assembler::new();
    let (out, unfollowed) = (asm.label(), asm.label());
    asm.mov(Reg::R6, Reg::R1);
    asm.ldx(Size::Dw, Reg::R1, Reg::R6, 8);
    asm.alu_imm(Alu::And, Reg::R1, CLONE_THREAD);
    asm.jump_if_imm(Cond::Ne, Reg::R1, 0, out);
    current_process(&mut asm, namespace);
    call_with_key(&mut asm, Map::Targets, TGID, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    // Its maker is a target, so the level of its maker's ids is that of our namespace.
    asm.call(helper::GET_CURRENT_TASK);
    read(&mut asm, offsets.thread_pid, Size::Dw, unfollowed);
    read(&mut asm, offsets.level, Size::W, unfollowed);
    asm.mov(Reg::R7, Reg::R0);
    asm.ldx(Size::Dw, Reg::R0, Reg::R6, 0);
    read(&mut asm, offsets.thread_pid, Size::Dw, unfollowed);
    asm.mov(Reg::R8, Reg::R0);
    if namespace.is_some() {
        read(&mut asm, offsets.level, Size::W, unfollowed);
        asm.jump_if(Cond::Ne, Reg::R0, Reg::R7, unfollowed);
    }
    asm.mov(Reg::R0, Reg::R8);
    asm.alu_imm(Alu::Lsh, Reg::R7, UPID_BYTES_SHIFT);
    asm.alu(Alu::Add, Reg::R0, Reg::R7);
    read(&mut asm, offsets.numbers, Size::W, unfollowed);
    asm.stx(Size::W, Reg::FP, CHILD, Reg::R0);
    asm.st_imm(Size::W, Reg::FP, ONE, 1);
    address(&mut asm, Reg::R3, ONE);
    asm.mov_imm(Reg::R4, helper::UPDATE_ANY.into());
    call_with_key(&mut asm, Map::Targets, CHILD, helper::MAP_UPDATE_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.place(unfollowed);
    asm.st_imm(Size::W, Reg::FP, ZERO, 0);
    call_with_key(&mut asm, Map::Unfollowed, ZERO, helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    finish(asm, out)
}

/// Runs in the thread that ends. A process can go on without the thread that it began with.
fn on_end(offsets: &Offsets, namespace: Option<(u64, u64)>) -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.call(helper::GET_CURRENT_TASK);
    read(&mut asm, offsets.signal, Size::Dw, out);
    read(&mut asm, offsets.live, Size::W, out);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, out);
    current_process(&mut asm, namespace);
    call_with_key(&mut asm, Map::Targets, TGID, helper::MAP_DELETE_ELEM);
    finish(asm, out)
}

/// The process id of whoever runs, as our namespace knows it, into its stack slot; 0 where it has
/// none.
fn current_process(asm: &mut Assembler, namespace: Option<(u64, u64)>) {
    match namespace {
        None => {
            asm.call(helper::GET_CURRENT_PID_TGID);
            asm.alu_imm(Alu::Rsh, Reg::R0, 32);
        }
        Some((device, inode)) => {
            // `struct bpf_pidns_info { u32 pid; u32 tgid; }`: the thread, then the process.
            asm.mov_imm(Reg::R1, device as i64);
            asm.mov_imm(Reg::R2, inode as i64);
            address(asm, Reg::R3, NAMESPACED);
            asm.mov_imm(Reg::R4, 8);
            asm.call(helper::GET_NS_CURRENT_PID_TGID);
            asm.ldx(Size::W, Reg::R0, Reg::FP, NAMESPACED + 4);
        }
    }
    asm.stx(Size::W, Reg::FP, TGID, Reg::R0);
}

/// R0 = what stands at R0 + `offset` in the kernel's memory.
fn read(asm: &mut Assembler, offset: i32, size: Size, unreadable: Label) {
    asm.mov(Reg::R3, Reg::R0);
    asm.alu_imm(Alu::Add, Reg::R3, offset);
    address(asm, Reg::R1, WORD);
    asm.mov_imm(Reg::R2, if size == Size::Dw { 8 } else { 4 });
    asm.call(helper::PROBE_READ_KERNEL);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, unreadable);
    asm.ldx(size, Reg::R0, Reg::FP, WORD);
}

/// The maps of the programs, by the number under which their instructions name them.
#[derive(Clone, Copy)]
enum Map {
    Targets,
    Unfollowed,
}

fn call_with_key(asm: &mut Assembler, map: Map, key: i16, function: i32) {
    asm.ld_map(Reg::R1, map as usize);
    address(asm, Reg::R2, key);
    asm.call(function);
}

fn address(asm: &mut Assembler, reg: Reg, slot: i16) {
    asm.mov(reg, Reg::FP);
    asm.alu_imm(Alu::Add, reg, slot.into());
}

fn finish(mut asm: Assembler, out: Label) -> Assembler {
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    asm
}

fn insns(asm: Assembler, maps: [BorrowedFd<'_>; 2]) -> Result<Vec<[u8; 8]>, String> {
    let mut done = asm.finish().map_err(|it| it.to_string())?;
    for (slot, map) in done.map_refs {
        done.insns[slot].imm = maps[map].as_raw_fd();
    }
    Ok(done.insns.into_iter().map(|it| it.to_bytes()).collect())
}

fn link(tracepoint: &std::ffi::CStr, program: &OwnedFd) -> Result<OwnedFd, String> {
    sys::link_raw_tracepoint(tracepoint, program.as_fd())
        .map_err(|it| format!("cannot attach to {}: {it}", tracepoint.to_string_lossy()))
}

/// One number, once.
fn counter() -> MapSpec {
    MapSpec {
        name: "xt_unfollowed".into(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        flags: 0,
        home: Home::Linux,
        inner: None,
    }
}
