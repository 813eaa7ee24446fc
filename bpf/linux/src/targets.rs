//! Maintains the map of target threads inside Linux.
//!
//! A new thread becomes a target before its first instruction, and remains one until Linux frees
//! it. So probes, tracepoints and samples miss neither its start nor its exit.
//!
//! ```text
//! task_newtask        if the current thread is in targets: add the new thread. In a scope of a name: if this is a
//!                     main thread, add it by its name instead
//!                     else if the new thread's bit is set, and tasks[thread] is another task: remove the old thread
//! sched_process_exec  if the thread had another id, and tasks[that id] is this task: remove that id, and
//!                     tasks[its id now] = its task, if that bit is set
//! sched_process_free  if tasks[thread] is this task: remove the thread
//! iter/task           add each thread of a process: what ran before
//! iter/task           remove each thread of a process that has lost the scope's name
//!
//! iter/task           awaited = the task of the stopped command
//! task_rename         if awaited is this task: awaited = 0, add the thread
//!
//! task_rename         if this is a main thread: add or remove it, by the new name
//!
//! to add a thread     tasks[thread] = its task, and set its bit in targets; or refused += 1
//! to remove it        clear its bit in targets, and delete tasks[thread]
//! ```
//! The last `task_rename` is for a scope of all processes of a name. An `exec` names its process, too. Another thread than
//! the main one that calls `exec` takes the main one's id (`de_thread` in Linux's fs/exec.c), which is a target already.
//!
//! Between Linux's last use of an id and its freeing of the task, the id may go to another thread, even while
//! `sched_process_free` looks at it. So a bit may be left behind, but the id's next thread does not inherit it.
//!
//! Handlers test the bit (`xputrace_bytecode::targets`), which takes them no search. `tasks` is needed only here: a value is
//! the address of the thread's `task_struct`, because Linux reuses an id before it frees the thread that had it.
//!
//! Until its `exec`, a stopped command still runs our code. It becomes a target in the middle of
//! that call, when Linux gives the process its new name. It has had that name since its fork, so
//! everything that is counted has the command's name.
//!
//! Threads have their ids of the initial pid namespace, which every program can read, whatever the
//! namespaces of the tracer and the threads.

use crate::btf;
use crate::map::MapHandle;
use crate::sys;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use xputrace_bytecode::image::NO_PREALLOC;
use xputrace_bytecode::insn::{Alu, Cond, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, Label, MapKind, MapSpec, Reg, helper, targets};
use xputrace_model::process_name::{COMM_BYTES, ProcessName};

/// Maximum number of threads that are followed at a time.
pub const MOST_THREADS: u32 = 131_072;

/// Stack slots in the programs.
const KEY: i16 = -4;
const ZERO: i16 = -8;
const TASK: i16 = -16;
/// A name of `COMM_BYTES`.
const NAME: i16 = -32;
/// For [`targets::find_word`].
const WORD: i16 = NAME - targets::SCRATCH_BYTES;

/// The loaded programs.
#[derive(Debug)]
pub(crate) struct Targets {
    task: TaskType,
    birth: OwnedFd,
    free: OwnedFd,
    exec: OwnedFd,
    /// Adds the threads visited by an iteration.
    add: OwnedFd,
    /// Removes the threads visited by an iteration.
    remove: OwnedFd,
    /// Stores the thread visited by an iteration, for `rename`.
    await_exec: OwnedFd,
    rename: OwnedFd,
    targets: OwnedFd,
    tasks: OwnedFd,
    awaited: OwnedFd,
    refused: MapHandle,
    /// The number of refused threads already reported.
    reported: u64,
}

impl Targets {
    /// Loads the programs for a map of targets, of which there may be so many at a time. Errors are sentences.
    pub(crate) fn load(targets: BorrowedFd<'_>, most_threads: u32) -> Result<Targets, String> {
        let spec = MapSpec::number("xt_refused", MapKind::Array);
        let failed = |what: &str, answer: io::Error| format!("cannot {what}: {answer}");
        let create = |spec: &MapSpec| sys::map_create(spec).map_err(|it| failed("create a map", it));
        let refused = create(&spec)?;
        let awaited = create(&MapSpec::number("xt_awaited", MapKind::Array))?;
        let tasks = create(&tasks_map(most_threads))?;
        let task = TaskType::of_linux().ok_or_else(btf::why_missing)?;
        let maps = [targets, tasks.as_fd(), refused.as_fd(), awaited.as_fd()];
        let load = |name, asm| load_program(name, asm, maps);
        let birth = load(c"xt_birth", on_birth(&task, None))?;
        let free = load(c"xt_free", on_free(&task))?;
        let exec = load(c"xt_exec", on_exec(&task))?;
        let rename = load(c"xt_rename", on_rename(&task))?;
        let visit = |name, asm| {
            sys::load_iterator(name, task.iterator, &insns(asm, maps)?)
                .map_err(|it| failed("load an iterator over tasks, which Linux has from 6.1 on", it))
        };
        let add = visit(c"xt_add", on_visit(&task))?;
        let remove = visit(c"xt_remove", on_visit_removed(&task))?;
        let await_exec = visit(c"xt_await", on_visit_awaited())?;
        let refused = MapHandle::new(spec, refused).map_err(|it| it.to_string())?;
        let targets = targets.try_clone_to_owned().map_err(|it| failed("share a map", it))?;
        Ok(Targets {
            task,
            birth,
            free,
            exec,
            add,
            remove,
            await_exec,
            rename,
            targets,
            tasks,
            awaited,
            refused,
            reported: 0,
        })
    }

    /// From here on, children and threads of targets become targets. With a name, processes that begin with it do, whatever
    /// their parents are.
    pub(crate) fn watch_births(&mut self, name: Option<&ProcessName>) -> Result<OwnedFd, String> {
        if name.is_some() {
            self.birth = self.load_more(c"xt_birth", on_birth(&self.task, name))?;
        }
        link(c"task_newtask", &self.birth)
    }

    /// From here on, targets that Linux frees are removed.
    pub(crate) fn watch_frees(&self) -> Result<OwnedFd, String> {
        link(c"sched_process_free", &self.free)
    }

    /// From here on, a target that takes its main thread's id is one by that id alone.
    pub(crate) fn watch_takeovers(&self) -> Result<OwnedFd, String> {
        link(c"sched_process_exec", &self.exec)
    }

    /// From here on, the process passed to [`Targets::await_exec`] becomes a target at its `exec`.
    pub(crate) fn watch_exec(&self) -> Result<OwnedFd, String> {
        link(c"task_rename", &self.rename)
    }

    /// From here on, processes that get this name become targets, and those that get another one no longer are.
    pub(crate) fn watch_name(&self, name: &ProcessName) -> Result<OwnedFd, String> {
        link(c"task_rename", &self.load_more(c"xt_name", on_new_name(&self.task, name))?)
    }

    fn load_more(&self, name: &CStr, asm: Assembler) -> Result<OwnedFd, String> {
        let refused = self.refused.fd();
        load_program(name, asm, [self.targets.as_fd(), self.tasks.as_fd(), refused.as_fd(), self.awaited.as_fd()])
    }

    /// Makes a single-threaded process become a target at its next `exec`. Not an error if it has
    /// ended.
    pub(crate) fn await_exec(&self, pid: u32) -> Result<(), String> {
        visit(&self.await_exec, Some(pid))
    }

    /// Makes every thread of a running process a target, or every thread if `None`. Not an error if
    /// the process has ended.
    pub(crate) fn add(&self, pid: Option<u32>) -> Result<(), String> {
        visit(&self.add, pid)
    }

    /// Stops targeting every thread of a running process. Not an error if the process has ended.
    pub(crate) fn remove(&self, pid: u32) -> Result<(), String> {
        visit(&self.remove, Some(pid))
    }

    /// Returns how many threads were refused because the map is full, since the last call. Includes
    /// births that the program missed.
    pub(crate) fn newly_refused(&mut self) -> u64 {
        let missed = sys::prog_misses(self.birth.as_fd()).unwrap_or_default();
        let count = self.refused.lookup(&[0; 4]).ok().flatten().and_then(|it| it.first()?.first_chunk().copied());
        let all = missed + count.map_or(0, u64::from_ne_bytes);
        let new = all.saturating_sub(self.reported);
        self.reported += new;
        new
    }
}

/// `maps` are in the order of [`Map`].
fn load_program(name: &CStr, asm: Assembler, maps: [BorrowedFd<'_>; 4]) -> Result<OwnedFd, String> {
    sys::load_raw_tracepoint(name, &insns(asm, maps)?).map_err(|it| format!("cannot load a program: {it}"))
}

/// Describes the map from a thread's id to the address of its `task_struct`.
fn tasks_map(most_threads: u32) -> MapSpec {
    MapSpec {
        name: "xt_tasks".into(),
        kind: MapKind::Hash,
        key_size: 4,
        value_size: 8,
        max_entries: most_threads,
        flags: NO_PREALLOC,
        home: Home::Linux,
        inner: None,
    }
}

fn visit(program: &OwnedFd, pid: Option<u32>) -> Result<(), String> {
    match sys::iterate_tasks(program.as_fd(), pid) {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => {
            Err(format!("cannot look at the threads of running processes: {error}"))
        }
        _ => Ok(()),
    }
}

/// Facts about `task_struct` that the programs need.
#[derive(Clone, Copy, Debug)]
struct TaskType {
    /// Offset of the thread's id in the initial pid namespace.
    pid: i32,
    /// Offset of the process's id there, which is that of its main thread.
    tgid: i32,
    /// Offset of the thread's name.
    comm: i32,
    /// The BTF type id of the iterator over tasks.
    iterator: u32,
}

impl TaskType {
    fn of_linux() -> Option<TaskType> {
        btf::with(|it| {
            let offset = |member| Some(it.offset("task_struct", member)? as i32);
            Some(TaskType {
                pid: offset("pid")?,
                tgid: offset("tgid")?,
                comm: offset("comm")?,
                iterator: it.function("bpf_iter_task")?,
            })
        })
    }
}

/// Arguments: the new task, its clone flags. Runs in the thread that creates it.
fn on_birth(task: &TaskType, name: Option<&ProcessName>) -> Assembler {
    let mut asm = Assembler::new();
    let (out, refused, of_other, stale) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    let is_target = asm.label();
    if let Some(name) = name {
        let is_thread = asm.label();
        only_main_threads(&mut asm, task, is_thread, of_other);
        asm.mov(Reg::R7, Reg::R6);
        asm.alu_imm(Alu::Add, Reg::R7, task.comm);
        only_named(&mut asm, name, of_other);
        asm.jump(is_target);
        asm.place(is_thread);
    }
    targets::leave_out_others(&mut asm, Map::Targets.id(), WORD, Reg::R6, &[], of_other);
    asm.place(is_target);
    read_thread_id(&mut asm, task, refused);
    add_thread(&mut asm, out);
    asm.place(refused);
    count_refused(&mut asm, out);
    asm.jump(out);

    asm.place(of_other);
    read_thread_id(&mut asm, task, out);
    leave_out_others(&mut asm, out);
    // An iteration may have added it already.
    leave_out_unowned(&mut asm, stale);
    asm.jump(out);
    asm.place(stale);
    remove_thread(&mut asm, out);
    finish(asm, out)
}

/// Arguments: the task, which is the current thread; the id that it had before.
fn on_exec(task: &TaskType) -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.ldx(Size::Dw, Reg::R7, Reg::R1, 8);
    asm.alu32(Alu::Mov, Reg::R7, Reg::R7);
    read_thread_id(&mut asm, task, out);
    asm.ldx(Size::W, Reg::R8, Reg::FP, KEY);
    asm.jump_if(Cond::Eq, Reg::R7, Reg::R8, out);
    asm.stx(Size::W, Reg::FP, KEY, Reg::R7);
    leave_out_unowned(&mut asm, out);
    remove_thread(&mut asm, out);
    // Its new name may have made it no target.
    asm.stx(Size::W, Reg::FP, KEY, Reg::R8);
    leave_out_others(&mut asm, out);
    add_thread(&mut asm, out);
    count_refused(&mut asm, out);
    finish(asm, out)
}

/// Argument: the task, which nothing refers to now.
fn on_free(task: &TaskType) -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    remove_task(&mut asm, task, out);
    finish(asm, out)
}

/// Context: as for [`on_visit`].
fn on_visit_removed(task: &TaskType) -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    only_visited(&mut asm, out);
    remove_task(&mut asm, task, out);
    finish(asm, out)
}

/// Context: that of an iterator over tasks.
fn on_visit(task: &TaskType) -> Assembler {
    let mut asm = Assembler::new();
    let (out, refused) = (asm.label(), asm.label());
    only_visited(&mut asm, out);
    read_thread_id(&mut asm, task, refused);
    add_thread(&mut asm, out);
    asm.place(refused);
    count_refused(&mut asm, out);
    finish(asm, out)
}

/// Context: as for [`on_visit`].
fn on_visit_awaited() -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    only_visited(&mut asm, out);
    asm.find_only(Map::Awaited.id(), ZERO, out);
    asm.stx(Size::Dw, Reg::R0, 0, Reg::R6);
    finish(asm, out)
}

/// Arguments: the task to be renamed, which is the current thread; its new name. In an `exec`, the
/// process already has its new memory.
fn on_rename(task: &TaskType) -> Assembler {
    let mut asm = Assembler::new();
    let (out, refused) = (asm.label(), asm.label());
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.find_only(Map::Awaited.id(), ZERO, out);
    asm.ldx(Size::Dw, Reg::R1, Reg::R0, 0);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R6, out);
    asm.st_imm(Size::Dw, Reg::R0, 0, 0);
    read_thread_id(&mut asm, task, refused);
    add_thread(&mut asm, out);
    asm.place(refused);
    count_refused(&mut asm, out);
    finish(asm, out)
}

/// Arguments: the task to be renamed, its new name. Other threads than the main one have names of their own.
fn on_new_name(task: &TaskType, name: &ProcessName) -> Assembler {
    let mut asm = Assembler::new();
    let (out, other) = (asm.label(), asm.label());
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 0);
    asm.ldx(Size::Dw, Reg::R7, Reg::R1, 8);
    only_main_threads(&mut asm, task, out, out);
    only_named(&mut asm, name, other);
    add_thread(&mut asm, out);
    count_refused(&mut asm, out);
    asm.jump(out);
    asm.place(other);
    remove_thread(&mut asm, out);
    finish(asm, out)
}

/// Sets R6 to the task that an iteration visits: the second word of `struct bpf_iter__task`. Jumps to `end` after the last
/// one, when it is null.
fn only_visited(asm: &mut Assembler, end: Label) {
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 8);
    asm.jump_if_imm(Cond::Eq, Reg::R6, 0, end);
}

/// Jumps to `others` if the task in R6 is not the main thread of its process.
fn only_main_threads(asm: &mut Assembler, task: &TaskType, others: Label, unreadable: Label) {
    read_member(asm, task.tgid, ZERO, unreadable);
    read_thread_id(asm, task, unreadable);
    asm.ldx(Size::W, Reg::R1, Reg::FP, KEY);
    asm.ldx(Size::W, Reg::R2, Reg::FP, ZERO);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R2, others);
}

/// Jumps to `others` if the name at the address in R7 is another one.
fn only_named(asm: &mut Assembler, name: &ProcessName, others: Label) {
    asm.st_imm(Size::Dw, Reg::FP, NAME, 0);
    asm.st_imm(Size::Dw, Reg::FP, NAME + 8, 0);
    asm.stack_address(Reg::R1, NAME);
    asm.mov_imm(Reg::R2, COMM_BYTES as i64);
    asm.mov(Reg::R3, Reg::R7);
    asm.call(helper::PROBE_READ_KERNEL_STR);
    for (at, byte) in (NAME..).zip(name.bytes()) {
        asm.ldx(Size::B, Reg::R1, Reg::FP, at);
        asm.jump_if_imm(Cond::Ne, Reg::R1, byte.into(), others);
    }
}

/// Copies the id of the task in R6 to its stack slot.
fn read_thread_id(asm: &mut Assembler, task: &TaskType, unreadable: Label) {
    read_member(asm, task.pid, KEY, unreadable);
}

/// Copies a number of four bytes from the task in R6 to a stack slot.
fn read_member(asm: &mut Assembler, offset: i32, slot: i16, unreadable: Label) {
    asm.mov(Reg::R3, Reg::R6);
    asm.alu_imm(Alu::Add, Reg::R3, offset);
    asm.stack_address(Reg::R1, slot);
    asm.mov_imm(Reg::R2, 4);
    asm.call(helper::PROBE_READ_KERNEL);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, unreadable);
}

/// Makes the task in R6, whose id is in its stack slot, a target. Jumps to `done`, or falls through
/// if there are too many.
fn add_thread(asm: &mut Assembler, done: Label) {
    let full = asm.label();
    asm.stx(Size::Dw, Reg::FP, TASK, Reg::R6);
    asm.stack_address(Reg::R3, TASK);
    asm.mov_imm(Reg::R4, helper::UPDATE_ANY.into());
    call_with_key(asm, Map::Tasks, KEY, helper::MAP_UPDATE_ELEM);
    asm.jump_if_imm(Cond::Ne, Reg::R0, 0, full);
    find_bit(asm, done);
    asm.atomic(atomic::OR, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.jump(done);
    asm.place(full);
}

/// Stops targeting the task in R6. Its id may belong to a newer thread, which stays one.
fn remove_task(asm: &mut Assembler, task: &TaskType, out: Label) {
    read_thread_id(asm, task, out);
    leave_out_unowned(asm, out);
    remove_thread(asm, out);
}

/// Stops targeting the thread whose id is in its stack slot. Jumps to `out` if there is no such id.
fn remove_thread(asm: &mut Assembler, out: Label) {
    find_bit(asm, out);
    asm.alu_imm(Alu::Xor, Reg::R1, -1);
    asm.atomic(atomic::AND, Size::Dw, Reg::R0, 0, Reg::R1);
    call_with_key(asm, Map::Tasks, KEY, helper::MAP_DELETE_ELEM);
}

/// Jumps to `out` if the thread whose id is in its stack slot is no target.
fn leave_out_others(asm: &mut Assembler, out: Label) {
    find_bit(asm, out);
    asm.ldx(Size::Dw, Reg::R0, Reg::R0, 0);
    asm.alu(Alu::And, Reg::R0, Reg::R1);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
}

/// Jumps to `out` if the id in its stack slot is not that of a target which is the task in R6.
fn leave_out_unowned(asm: &mut Assembler, out: Label) {
    asm.find(Map::Tasks.id(), KEY);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.ldx(Size::Dw, Reg::R1, Reg::R0, 0);
    asm.jump_if(Cond::Ne, Reg::R1, Reg::R6, out);
}

/// Sets R0 to the address of the word of the thread whose id is in its stack slot, and R1 to its bit. Jumps to `out` if
/// there is no such id.
fn find_bit(asm: &mut Assembler, out: Label) {
    asm.ldx(Size::W, Reg::R0, Reg::FP, KEY);
    targets::find_word(asm, Map::Targets.id(), WORD);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
}

fn count_refused(asm: &mut Assembler, out: Label) {
    asm.find_only(Map::Refused.id(), ZERO, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
}

/// The programs' maps, by the number that refers to them in instructions.
#[derive(Clone, Copy)]
enum Map {
    Targets,
    Tasks,
    Refused,
    Awaited,
}

impl Map {
    fn id(self) -> BpfMapId {
        BpfMapId(self as u32)
    }
}

/// Preserves R3 and R4.
fn call_with_key(asm: &mut Assembler, map: Map, key: i16, function: i32) {
    asm.ld_map(Reg::R1, map.id());
    asm.stack_address(Reg::R2, key);
    asm.call(function);
}

fn finish(mut asm: Assembler, out: Label) -> Assembler {
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    asm
}

fn insns(asm: Assembler, maps: [BorrowedFd<'_>; 4]) -> Result<Vec<[u8; 8]>, String> {
    let mut done = asm.finish().map_err(|it| it.to_string())?;
    for (slot, map) in done.map_refs {
        done.insns[slot].imm = maps[map.index()].as_raw_fd();
    }
    Ok(done.insns.into_iter().map(|it| it.to_bytes()).collect())
}

fn link(tracepoint: &std::ffi::CStr, program: &OwnedFd) -> Result<OwnedFd, String> {
    sys::link_raw_tracepoint(tracepoint, program.as_fd())
        .map_err(|it| format!("cannot attach to {}: {it}", tracepoint.to_string_lossy()))
}
