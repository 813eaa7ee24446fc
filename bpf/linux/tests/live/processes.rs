//! Which processes' events are seen: one process, its children, a tree, the whole system.

use crate::need_root;
use crate::plans::*;
use crate::target::*;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use xputrace_bytecode::insn::{Cond, Size};
use xputrace_bytecode::{Assembler, BpfMapId, MapKind, ProgramKind, Reg};
use xputrace_bytecode::{helper, targets};
use xputrace_linux::{Linux, News, ProcessEvent, Scope, StoppedChild};
use xputrace_model::plan::{Plan, Probe, ProbePlace, ProbeScope};
use xputrace_model::process_name::ProcessName;
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;

#[test]
fn a_tracepoint_fires_for_the_process_tree_alone() {
    need_root!();
    let (plan, calls) = getppid_plan();
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["forking-syscalls", "1000"]), &[], None).unwrap();
    let report = linux.attach(&plan, &child.scope()).unwrap();
    assert_eq!(places(&report), [1], "{report:?}");
    assert!(report.warnings.is_empty(), "{report:?}");
    let mut other = StoppedChild::spawn(&words(&["syscalls", "3000"]), &[], None).unwrap();
    other.resume().unwrap();
    child.wait().unwrap();
    other.wait().unwrap();
    assert_eq!(read_counter(&linux, calls), 3000, "three children, each from its first instruction on");
    // Linux frees them shortly after they have ended.
    poll_until(&mut linux, |linux| n_targets(linux, &plan) == 0);
}

fn n_targets(linux: &Linux, plan: &Plan) -> usize {
    let mut n = 0;
    let bits = |word: &[u8]| word.iter().map(|it| it.count_ones() as usize).sum::<usize>();
    linux
        .map(plan.targets.unwrap())
        .unwrap()
        .for_each(&mut |_, words| n += words.iter().map(|it| bits(it)).sum::<usize>())
        .unwrap();
    n
}

#[test]
fn samples_come_with_user_stacks() {
    need_root!();
    let mut plan = Plan::default();
    let samples = counter(&mut plan, "samples");
    let stacks = add_map(&mut plan, "stacks", MapKind::StackTrace, 4, 127 * 8, 1024);
    let ids = add_map(&mut plan, "ids", MapKind::Hash, 8, 8, 1024);
    plan.linux_stacks = Some(stacks);
    plan.targets = Some(plan.image.add_map(targets::map("targets")));
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    in_targets(&mut asm, &plan, out);
    asm.mov(Reg::R1, Reg::R6);
    asm.ld_map(Reg::R2, stacks);
    asm.mov_imm(Reg::R3, helper::STACK_USER.into());
    asm.call(helper::GET_STACKID);
    asm.jump_if_imm(Cond::Slt, Reg::R0, 0, out);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    asm.st_imm(Size::Dw, Reg::FP, -16, 1);
    asm.ld_map(Reg::R1, ids);
    frame_address(&mut asm, Reg::R2, -8);
    frame_address(&mut asm, Reg::R3, -16);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, samples, out);
    let program = add_program_ending_at(&mut plan, "sample", ProgramKind::PerfEvent, asm, out);
    plan.probes.push(probe(Event::Profile, ProbePlace::Profile { hz: 997 }, program));
    let (linux, report) = run(&plan, &["burn", "200000000"]);
    assert!(places(&report)[0] >= 1, "one a CPU: {report:?}");
    assert!(read_counter(&linux, samples) > 0);
    let mut found = Vec::new();
    linux
        .map(ids)
        .unwrap()
        .for_each(&mut |key, _| found.push(u32::from_ne_bytes(*key.first_chunk().unwrap())))
        .unwrap();
    let stack = StackKey::LinuxUser { pid: 1, exec: 0, id: found[0] };
    let addresses = linux.stack_addresses(stack).unwrap();
    assert!(!addresses.is_empty() && addresses.iter().all(|it| *it != 0), "{addresses:x?}");
    assert_eq!(linux.stack_addresses(StackKey::Lost), None);
}

#[test]
fn children_get_their_own_probes() {
    need_root!();
    let AtWork { mut linux, mut child, work, fifo, directory: _kept } = at_work("children", "1000");
    let mut linked = Vec::new();
    poll_until(&mut linux, |linux| {
        linked.extend(linux.news().into_iter().filter_map(|it| match it {
            News::Child(it) => Some(it),
            _ => None,
        }));
        linked.len() == 3
    });
    assert!(linked.iter().all(|it| it.failed.is_none()), "{linked:?}");
    let _writer = feed(&fifo, 3);
    child.wait().unwrap();
    assert_eq!(read_counter(&linux, work), 3000);
    poll_until(&mut linux, |linux| linux.processes().iter().any(|it| matches!(it, ProcessEvent::Exit { .. })));
}

/// A process and its probes outlive its main thread.
#[test]
fn a_process_ends_with_its_last_thread() {
    need_root!();
    let AtWork { mut linux, mut child, work, fifo, directory: _kept } = at_work("headless", "300");
    let pid = child.pid();
    poll_until(&mut linux, |_| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") Z ") && std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() == 2
    });
    let early: Vec<_> = linux.processes();
    assert!(!early.iter().any(|it| matches!(it, ProcessEvent::Exit { .. })), "{early:?}");
    let is_told = |it: &News| matches!(it, News::Warning(it) if it.text.contains("goes on without its main thread"));
    poll_until(&mut linux, |linux| linux.news().iter().any(is_told));
    let _writer = feed(&fifo, 1);
    poll_until(&mut linux, |linux| {
        linux.processes().iter().any(|it| matches!(it, ProcessEvent::Exit { pid: ended, .. } if *ended == pid))
    });
    child.wait().unwrap();
    assert_eq!(read_counter(&linux, work), 300);
    assert!(!linux.news().iter().any(is_told), "it is told of once");
}

/// The thread that calls `exec` becomes the main thread; the previous one has ended.
#[test]
fn a_process_goes_on_when_another_thread_than_the_main_one_calls_exec() {
    need_root!();
    let AtWork { mut linux, mut child, work, fifo, directory: _kept } = at_work("exec-by-thread", "300");
    let pid = child.pid();
    let mut linked = Vec::new();
    poll_until(&mut linux, |linux| {
        linked.extend(linux.news());
        linked.iter().any(|it| matches!(it, News::Child(it) if it.pid == pid && it.failed.is_none()))
    });
    let early: Vec<_> = linux.processes();
    assert!(!early.iter().any(|it| matches!(it, ProcessEvent::Exit { .. })), "{early:?}");
    let _writer = feed(&fifo, 1);
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&linux, work), 300);
    poll_until(&mut linux, |linux| {
        linux.processes().iter().any(|it| matches!(it, ProcessEvent::Exit { pid: ended, .. } if *ended == pid))
    });
}

#[test]
fn processes_that_are_too_many_to_be_followed_are_counted() {
    need_root!();
    let (plan, calls) = getppid_plan();
    let mut linux = Linux::load_following(&plan, 2).unwrap();
    let (mut child, fifo, _directory) = stopped_with_fifo("children");
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    let mut unfollowed = 0;
    poll_until(&mut linux, |linux| {
        let counts = linux.news().into_iter().map(|it| if let News::Unfollowed(n) = it { n } else { 0 });
        unfollowed += counts.sum::<u64>();
        unfollowed == 2
    });
    let _writer = feed(&fifo, 3);
    child.wait().unwrap();
    assert!(linux.news().is_empty(), "each of them is told of once");
    assert_eq!(read_counter(&linux, calls), 0);
}

/// There is only room for the main thread.
#[test]
fn threads_that_are_too_many_to_be_followed_are_counted() {
    need_root!();
    let (plan, _) = getppid_plan();
    let (mut linux, report) = run_in(Linux::load_following(&plan, 1).unwrap(), &plan, &["threads", "1"]);
    assert!(report.warnings.is_empty(), "{report:?}");
    let news = linux.news();
    assert!(matches!(news[..], [News::Unfollowed(4)]), "{news:?}");
}

/// More events than a ring holds, because nothing reads them.
#[test]
fn lost_process_events_are_told_of_once() {
    need_root!();
    let (plan, _) = getppid_plan();
    let mut linux = Linux::load(&plan).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&directory);
    let script = format!(
        "i=0; while [ $i -lt 800 ]; do /bin/true; i=$((i+1)); done; read x <{}; /bin/true; /bin/true",
        fifo.display()
    );
    let command: Vec<_> = ["taskset", "-c", "0", "sh", "-c", &script].map(Into::into).to_vec();
    let mut child = StoppedChild::spawn(&command, &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    // Opening blocks until the reader opens it, after its children have ended.
    let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    linux.processes();
    std::io::Write::write_all(&mut writer, b"\n").unwrap();
    assert!(child.wait().unwrap().success());
    linux.processes();
    let told = |linux: &mut Linux| linux.news().iter().filter(|it| matches!(it, News::Warning(_))).count();
    assert_eq!((told(&mut linux), told(&mut linux)), (1, 0));
}

#[test]
fn a_whole_system_scope_sees_processes_that_start_later() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    // A separate copy: other tests run the same program at the same time.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("target-copy");
    std::fs::copy(target(), &copy).unwrap();
    uprobe(&mut plan, &copy, "work", work);
    let mut linux = Linux::load(&plan).unwrap();
    let report = linux.attach(&plan, &Scope::System).unwrap();
    assert_eq!(places(&report), [1], "{report:?}");
    let status = Command::new(&copy).args(["work", "123"]).status().unwrap();
    assert!(status.success());
    assert_eq!(read_counter(&linux, work), 123);
}

/// Returns the target before its first instruction, and the FIFO that it will wait for, in a directory to keep.
fn stopped_with_fifo(mode: &str) -> (StoppedChild, PathBuf, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&directory);
    let child = StoppedChild::spawn(&words(&[mode, "1", fifo.to_str().unwrap()]), &[], None).unwrap();
    (child, fifo, directory)
}

fn getppid_plan() -> (Plan, BpfMapId) {
    let mut plan = Plan::default();
    let calls = counter(&mut plan, "calls");
    plan.targets = Some(plan.image.add_map(targets::map("targets")));
    let (category, name) = ("syscalls".to_owned(), "sys_enter_getppid".to_owned());
    let mut asm = Assembler::new();
    let out = asm.label();
    in_targets(&mut asm, &plan, out);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, calls, out);
    let kind = ProgramKind::Tracepoint { category: category.clone(), name: name.clone() };
    let program = add_program_ending_at(&mut plan, "getppid", kind, asm, out);
    plan.probes.push(probe(Event::Tracepoint, ProbePlace::Tracepoint { category, name }, program));
    (plan, calls)
}

/// Children that end before they could have links of their own.
#[test]
fn a_tree_is_seen_from_every_childs_first_instruction_and_nobody_else() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    plan.targets = Some(plan.image.add_map(targets::map("targets")));
    let mut asm = Assembler::new();
    let out = asm.label();
    in_targets(&mut asm, &plan, out);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, work, out);
    let program = add_program_ending_at(&mut plan, "work", ProgramKind::Uprobe, asm, out);
    plan.probes.push(Probe { scope: ProbeScope::Tree, ..function_probe(target(), "work", program) });
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["brief", "10"]), &[], None).unwrap();
    let report = linux.attach(&plan, &child.scope()).unwrap();
    assert_eq!(places(&report), [1], "{report:?}");
    child.resume().unwrap();
    assert!(Command::new(target()).args(["work", "1000"]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&linux, work), 200 * 10);
    linux.processes();
    let children: Vec<_> = linux.news().into_iter().filter(|it| matches!(it, News::Child(_))).collect();
    assert!(children.is_empty(), "no child needs links of its own: {children:?}");
}

/// The thread that calls `exec` takes the main thread's id, and gives up its own.
#[test]
fn an_exec_by_another_thread_leaves_no_bit_behind() {
    need_root!();
    let (plan, _) = getppid_plan();
    let mut linux = Linux::load(&plan).unwrap();
    let (mut child, fifo, _directory) = stopped_with_fifo("exec-by-thread");
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    let _writer = feed(&fifo, 1);
    poll_until(&mut linux, |linux| n_targets(linux, &plan) <= 1);
    child.wait().unwrap();
    poll_until(&mut linux, |linux| n_targets(linux, &plan) == 0);
}

#[test]
fn a_process_that_gives_up_the_scopes_name_is_left_with_all_its_threads() {
    need_root!();
    let (plan, calls) = getppid_plan();
    let mut linux = Linux::load(&plan).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("xt-first-name");
    std::fs::copy(target(), &copy).unwrap();
    let fifo = make_fifo(&directory);
    linux.attach(&plan, &Scope::Named(ProcessName::parse("xt-first-name").unwrap())).unwrap();
    let mut child = Command::new(&copy).args(["renamed", "100"]).arg(&fifo).spawn().unwrap();
    poll_until(&mut linux, |linux| n_targets(linux, &plan) == 1);
    let _first = feed(&fifo, 1);
    poll_until(&mut linux, |linux| {
        linux.processes();
        std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() == 2 && n_targets(linux, &plan) == 0
    });
    let _second = feed(&fifo, 1);
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&linux, calls), 0);
}

/// As if an id had been given away at the moment in which its last thread's bit was cleared.
#[test]
fn a_bit_that_is_left_behind_makes_nobody_a_target() {
    need_root!();
    let (plan, calls) = getppid_plan();
    let linux = &mut Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["forking-syscalls", "1000"]), &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    let targets = linux.map(plan.targets.unwrap()).unwrap();
    let next = child.pid() / u64::BITS;
    for word in next..next + 128 {
        let unused = (0..u64::BITS).filter(|bit| !is_running(word * u64::BITS + bit)).map(|bit| 1u64 << bit);
        targets.update(&word.to_ne_bytes(), &unused.sum::<u64>().to_ne_bytes(), 0).unwrap();
    }
    for _ in 0..20 {
        let mut other = StoppedChild::spawn(&words(&["forking-syscalls", "1000"]), &[], None).unwrap();
        other.resume().unwrap();
        other.wait().unwrap();
    }
    assert_eq!(read_counter(linux, calls), 0, "nothing of others");
    child.resume().unwrap();
    child.wait().unwrap();
    assert_eq!(read_counter(linux, calls), 3000);
}

fn is_running(thread: u32) -> bool {
    std::path::Path::new(&format!("/proc/{thread}")).exists()
}
