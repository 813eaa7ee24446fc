//! Readers of what a program at a Linux probe sees: registers, process and thread ids, stacks.
//!
//! The compiler of handlers and the recorder of hits both emit these sequences, so that each fact
//! about Linux is in one place.

use crate::asm::{Assembler, Label};
use crate::callers::Callers;
use crate::helper;
use crate::id::BpfMapId;
use crate::insn::{Alu, Cond, Reg, Size};

/// x86-64's `struct pt_regs`, at the start of the contexts of function probes and samples. Source:
/// `arch/x86/include/asm/ptrace.h`.
pub mod pt_regs {
    /// Its size.
    pub const SIZE: usize = 168;
    /// `rdi rsi rdx rcx r8 r9`: the integer arguments, in order.
    pub const ARGUMENTS: [i16; 6] = [112, 104, 96, 88, 72, 64];
    /// `rax`.
    pub const RETURN_VALUE: i16 = 80;
    /// `rbp`.
    pub const FRAME_POINTER: i16 = 32;
    /// `rip`.
    pub const INSTRUCTION_POINTER: i16 = 128;
    pub const FLAGS: i16 = 144;
    /// `rsp`.
    pub const STACK_POINTER: i16 = 152;
}

/// A stack as a word: source, owner, and the stack map's id.
///
/// ```text
/// 63..62 source   61..54 exec generation   53..32 process   31..0 id
/// ```
pub mod stack_word {
    /// There was no stack to take.
    pub const EMPTY: u64 = 1;
    /// Source bits of user frames.
    pub const USER: u64 = 1 << 62;
    /// Source bits of the Linux kernel's frames; such stacks have no owner.
    pub const KERNEL: u64 = 2 << 62;
    /// Where the process id stands, and its bits.
    pub const PROCESS_SHIFT: u32 = 32;
    pub const PROCESS_MASK: u64 = 0x3f_ffff;
    /// Bits of a stack's id, from the lowest on.
    pub const ID_BITS: u32 = 30;
    /// Position of the low 8 bits of the exec generation.
    pub const EXEC_SHIFT: u32 = 54;
}

/// The errno of a missing stack, such as the Linux frames of a sample in user mode.
pub const EFAULT: i32 = 14;

/// The errno of a stack whose place in the stack map another stack has.
pub const EEXIST: i32 = 17;

/// Bytes of the program's stack that these readers overwrite.
pub const SCRATCH_BYTES: i16 = 24;

/// What the readers need to know about the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The pid namespace for ids; `None` for the initial one.
    pub pid_namespace: Option<PidNamespace>,
    /// Byte offset of `task_struct.self_exec_id`, if known.
    pub exec_id_offset: Option<u32>,
}

/// A pid namespace in which ids are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PidNamespace {
    pub device: u64,
    pub inode: u64,
    /// Where the ids of tasks in namespaces within this one are; `None` if that is not known, and they read as 0.
    pub within: Option<IdsWithin>,
}

/// Offsets in Linux's structures that lead to an id in an outer pid namespace: `bpf_get_ns_current_pid_tgid` tells ids only
/// in a task's own.
///
/// ```text
/// task ─(group_leader)─▶ task ─pid─▶ struct pid: number
///                                    namespace ─▶ struct pid_namespace: inode
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdsWithin {
    pub group_leader: u32,
    pub pid: u32,
    pub number: u32,
    pub namespace: u32,
    pub inode: u32,
}

/// An id of the current task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskId {
    Process,
    Thread,
}

/// Which frames of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackSide {
    User,
    Kernel,
}

/// Emits readers into a program; each leaves its value in R0 and keeps R6 to R9.
pub struct ReadEmitter<'a> {
    pub asm: &'a mut Assembler,
    pub machine: Machine,
    /// Offset of [`SCRATCH_BYTES`] bytes from the frame pointer.
    pub scratch: i16,
}

impl ReadEmitter<'_> {
    /// Sets R0 to an id in the machine's pid namespace; 0 if the task has none there.
    pub fn task_id(&mut self, id: TaskId) {
        match (self.machine.pid_namespace, id) {
            (None, TaskId::Process) => {
                self.asm.call(helper::GET_CURRENT_PID_TGID);
                self.asm.alu_imm(Alu::Rsh, Reg::R0, 32);
            }
            (None, TaskId::Thread) => {
                self.asm.call(helper::GET_CURRENT_PID_TGID);
                self.asm.alu32(Alu::Mov, Reg::R0, Reg::R0);
            }
            (Some(namespace), id) => {
                let (elsewhere, done) = (self.asm.label(), self.asm.label());
                self.ids_in(namespace);
                self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, elsewhere);
                self.load_id(Reg::R0, id);
                self.asm.jump(done);
                self.asm.place(elsewhere);
                self.id_within(namespace, id);
                self.asm.place(done);
            }
        }
    }

    /// Sets R0 to process << 32 | thread, both in the machine's pid namespace; 0 if the task has none there.
    pub fn task_ids(&mut self) {
        if self.machine.pid_namespace.is_none() {
            return self.asm.call(helper::GET_CURRENT_PID_TGID);
        }
        let process = self.scratch + 8;
        self.task_id(TaskId::Process);
        self.asm.alu_imm(Alu::Lsh, Reg::R0, 32);
        self.asm.stx(Size::Dw, Reg::FP, process, Reg::R0);
        self.task_id(TaskId::Thread);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::FP, process);
        self.asm.alu(Alu::Or, Reg::R0, Reg::R1);
    }

    /// Sets R0 to an id of a task whose own namespace is within this one; 0 if it is not, or if that is not known.
    fn id_within(&mut self, namespace: PidNamespace, id: TaskId) {
        let Some(within) = namespace.within else { return self.asm.mov_imm(Reg::R0, 0) };
        let (none, done) = (self.asm.label(), self.asm.label());
        let leader = (id == TaskId::Process).then_some(within.group_leader);
        let to_pid: Vec<u32> = leader.into_iter().chain([within.pid]).collect();
        // Of a task outside of the namespace, this is not its number there.
        self.follow(&[&to_pid[..], &[within.namespace, within.inode]].concat(), none);
        self.asm.ldx(Size::W, Reg::R0, Reg::FP, self.scratch);
        self.asm.mov_imm(Reg::R1, namespace.inode as i64);
        self.asm.jump_if(Cond::Ne, Reg::R0, Reg::R1, none);
        self.follow(&[&to_pid[..], &[within.number]].concat(), none);
        self.asm.ldx(Size::W, Reg::R0, Reg::FP, self.scratch);
        self.asm.jump(done);
        self.asm.place(none);
        self.asm.mov_imm(Reg::R0, 0);
        self.asm.place(done);
    }

    /// Reads the word at the last of these offsets, following pointers from the current task at the others; jumps to
    /// `none` if one cannot be read.
    fn follow(&mut self, offsets: &[u32], none: Label) {
        self.asm.call(helper::GET_CURRENT_TASK);
        for offset in offsets {
            self.asm.mov(Reg::R3, Reg::R0);
            self.asm.alu_imm(Alu::Add, Reg::R3, *offset as i32);
            self.address(Reg::R1, 0);
            self.asm.mov_imm(Reg::R2, 8);
            self.asm.call(helper::PROBE_READ_KERNEL);
            self.asm.jump_if_imm(Cond::Ne, Reg::R0, 0, none);
            self.asm.ldx(Size::Dw, Reg::R0, Reg::FP, self.scratch);
        }
    }

    /// Stores `struct bpf_pidns_info { u32 pid; u32 tgid; }` in the scratch bytes: the thread, then
    /// the process.
    fn ids_in(&mut self, namespace: PidNamespace) {
        self.asm.mov_imm(Reg::R1, namespace.device as i64);
        self.asm.mov_imm(Reg::R2, namespace.inode as i64);
        self.address(Reg::R3, 0);
        self.asm.mov_imm(Reg::R4, 8);
        self.asm.call(helper::GET_NS_CURRENT_PID_TGID);
    }

    fn load_id(&mut self, to: Reg, id: TaskId) {
        let at = if id == TaskId::Process { 4 } else { 0 };
        self.asm.ldx(Size::W, to, Reg::FP, self.scratch + at);
    }

    /// Sets R0 to the word of the current stack, or [`stack_word::EMPTY`] if there is none. Jumps
    /// to `lost` if the stack map could not store it. `context` is the program's context, `stacks`
    /// the stack map. `callers` are given for user frames at a function's first instruction.
    pub fn stack(&mut self, frames: StackSide, context: Reg, stacks: BpfMapId, callers: Option<Callers>, lost: Label) {
        let (taken, done) = (self.asm.label(), self.asm.label());
        self.asm.mov(Reg::R1, context);
        self.asm.ld_map(Reg::R2, stacks);
        self.asm.mov_imm(Reg::R3, i64::from(if frames == StackSide::User { helper::STACK_USER } else { 0 }));
        self.asm.call(helper::GET_STACKID);
        self.asm.jump_if_imm(Cond::Ne, Reg::R0, -EFAULT, taken);
        self.asm.mov_imm(Reg::R0, stack_word::EMPTY as i64);
        self.asm.jump(done);
        self.asm.place(taken);
        self.asm.jump_if_imm(Cond::Slt, Reg::R0, 0, lost);
        self.asm.alu32(Alu::Mov, Reg::R0, Reg::R0);
        if let Some(callers) = callers {
            callers.add(self.asm, context, [0, 8, 16].map(|it| self.scratch + it), lost);
        }
        match frames {
            StackSide::User => self.owner(),
            StackSide::Kernel => self.source(stack_word::KERNEL),
        }
        self.asm.place(done);
    }

    /// Adds source and owner of a user stack to R0. The exec generation distinguishes the programs
    /// that one process ran.
    fn owner(&mut self) {
        let (id, exec) = (self.scratch + 8, self.scratch + 16);
        self.asm.stx(Size::Dw, Reg::FP, id, Reg::R0);
        self.asm.st_imm(Size::Dw, Reg::FP, exec, 0);
        if let Some(offset) = self.machine.exec_id_offset {
            self.asm.call(helper::GET_CURRENT_TASK);
            self.asm.mov(Reg::R3, Reg::R0);
            self.asm.alu_imm(Alu::Add, Reg::R3, offset as i32);
            self.address(Reg::R1, 16);
            self.asm.mov_imm(Reg::R2, 4);
            self.asm.call(helper::PROBE_READ_KERNEL);
        }
        self.task_id(TaskId::Process);
        self.asm.alu_imm(Alu::And, Reg::R0, stack_word::PROCESS_MASK as i32);
        self.asm.alu_imm(Alu::Lsh, Reg::R0, stack_word::PROCESS_SHIFT as i32);
        self.asm.ldx(Size::B, Reg::R1, Reg::FP, exec);
        self.asm.alu_imm(Alu::Lsh, Reg::R1, stack_word::EXEC_SHIFT as i32);
        self.asm.alu(Alu::Or, Reg::R0, Reg::R1);
        self.asm.ldx(Size::Dw, Reg::R1, Reg::FP, id);
        self.asm.alu(Alu::Or, Reg::R0, Reg::R1);
        self.source(stack_word::USER);
    }

    fn source(&mut self, bits: u64) {
        self.asm.mov_imm(Reg::R1, bits as i64);
        self.asm.alu(Alu::Or, Reg::R0, Reg::R1);
    }

    fn address(&mut self, to: Reg, offset: i16) {
        self.asm.stack_address(to, self.scratch + offset);
    }
}
