//! Our pid namespace, and where Linux keeps the ids that tasks of namespaces within it have there.

use crate::btf;
use crate::map::MapHandle;
use crate::sys;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use xputrace_bytecode::insn::{Alu, Cond, Size};
use xputrace_bytecode::probe::{IdsWithin, PidNamespace};
use xputrace_bytecode::{Assembler, BpfMapId, MapKind, MapSpec, Reg, helper};

/// Inode of the initial pid namespace. Source: `PROC_PID_INIT_INO` in `include/linux/proc_ns.h`.
const INITIAL_PID_NAMESPACE: u64 = 4_026_531_836;

/// Returns our pid namespace; `None` if it is the initial one.
pub(crate) fn own() -> Option<PidNamespace> {
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok().filter(|it| it.ino() != INITIAL_PID_NAMESPACE)?;
    Some(PidNamespace { device: namespace.dev(), inode: namespace.ino(), within: ids_within() })
}

/// Offsets in Linux's structures.
struct Offsets {
    thread_pid: u32,
    group_leader: u32,
    level: u32,
    numbers: u32,
    number: u32,
    namespace: u32,
    inode: u32,
    /// The BTF type id of the iterator over tasks.
    iterator: u32,
}

impl Offsets {
    fn of_linux() -> Option<Offsets> {
        btf::with(|it| {
            Some(Offsets {
                thread_pid: it.offset("task_struct", "thread_pid")?,
                group_leader: it.offset("task_struct", "group_leader")?,
                level: it.offset("pid", "level")?,
                numbers: it.offset("pid", "numbers")?,
                number: it.offset("upid", "nr")?,
                namespace: it.offset("upid", "ns")?,
                inode: it.offset("pid_namespace", "ns")? + it.offset("ns_common", "inum")?,
                iterator: it.function("bpf_iter_task")?,
            })
        })
    }
}

/// Returns where the ids are. `None` without Linux's type information, or the rights to load a program.
fn ids_within() -> Option<IdsWithin> {
    /// `sizeof(struct upid)`: an id and a pointer.
    const NUMBER_BYTES: u32 = 16;
    let offsets = Offsets::of_linux()?;
    let number = offsets.numbers + own_level(&offsets)? * NUMBER_BYTES;
    Some(IdsWithin {
        group_leader: offsets.group_leader,
        pid: offsets.thread_pid,
        number: number + offsets.number,
        namespace: number + offsets.namespace,
        inode: offsets.inode,
    })
}

/// Returns how many namespaces ours is within. Only Linux knows: what is outside is hidden from us.
fn own_level(offsets: &Offsets) -> Option<u32> {
    let spec = MapSpec::number("xt_level", MapKind::Array);
    let map = sys::map_create(&spec).ok()?;
    let program = sys::load_iterator(c"xt_level", offsets.iterator, &visit(offsets, &map)?).ok()?;
    sys::iterate_tasks(program.as_fd(), Some(std::process::id())).ok()?;
    let stored = MapHandle::new(spec, map).ok()?.lookup(&[0; 4]).ok()??;
    let level = stored.first()?.first_chunk().map(|it| u64::from_ne_bytes(*it))?;
    u32::try_from(level).ok().filter(|it| *it > 0)
}

/// Stores the level of the visited task's namespace. Context: `struct bpf_iter__task`, whose second word is the task;
/// null after the last one.
fn visit(offsets: &Offsets, map: &OwnedFd) -> Option<Vec<[u8; 8]>> {
    const VALUE: i16 = -8;
    const KEY: i16 = -16;
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.st_imm(Size::Dw, Reg::FP, VALUE, 0);
    asm.st_imm(Size::W, Reg::FP, KEY, 0);
    asm.ldx(Size::Dw, Reg::R3, Reg::R1, 8);
    asm.jump_if_imm(Cond::Eq, Reg::R3, 0, out);
    for (offset, bytes) in [(offsets.thread_pid, 8), (offsets.level, 4)] {
        asm.alu_imm(Alu::Add, Reg::R3, offset as i32);
        asm.stack_address(Reg::R1, VALUE);
        asm.mov_imm(Reg::R2, bytes);
        asm.call(helper::PROBE_READ_KERNEL);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, out);
        asm.ldx(Size::Dw, Reg::R3, Reg::FP, VALUE);
    }
    asm.ldx(Size::W, Reg::R6, Reg::FP, VALUE);
    asm.find(BpfMapId(0), KEY);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.stx(Size::Dw, Reg::R0, 0, Reg::R6);
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let mut done = asm.finish().ok()?;
    for (slot, _) in done.map_refs {
        done.insns[slot].imm = map.as_raw_fd();
    }
    Some(done.insns.into_iter().map(|it| it.to_bytes()).collect())
}
