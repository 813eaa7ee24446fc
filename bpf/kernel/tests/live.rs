//! The kernel side as it is used: programs are loaded, attached to a small C program, counted
//! and taken out again. Needs root; without it every test says so and passes.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use xputrace_bytecode::helper;
use xputrace_bytecode::insn::{Alu, Cond, Size, atomic};
use xputrace_bytecode::vm::Change;
use xputrace_bytecode::{Assembler, Home, Line, MapKind, MapSpec, Program, ProgramKind, Reg};
use xputrace_kernel::{AttachError, AttachReport, Kernel, News, Outcome, ProcessEvent, Scope, StoppedChild};
use xputrace_model::diagnostic::Site;
use xputrace_model::plan::{LossSite, Place, Plan, Probe, Target};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;

macro_rules! need_root {
    () => {
        if !is_root() {
            eprintln!("skipped: needs root");
            return;
        }
    };
}

#[test]
fn every_call_is_counted_from_before_main_on() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    let early = counter(&mut plan, "early");
    uprobe(&mut plan, target(), "work", work);
    uprobe(&mut plan, target(), "early", early);
    let (kernel, report) = run(&plan, &["threads", "5000"]);
    assert_eq!(places(&report), [1, 1], "{report:?}");
    assert_eq!(read_counter(&kernel, work), 20_000);
    assert_eq!(read_counter(&kernel, early), 1);
}

#[test]
fn a_running_process_and_only_it_is_probed() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let directory = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&directory);
    let mut other = StoppedChild::spawn(&words(&["work", "1000"]), &[], None).unwrap();
    let mut probed = StoppedChild::spawn(&words(&["waiting", "700", fifo.to_str().unwrap()]), &[], None).unwrap();
    probed.resume().unwrap();
    let writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    let mut kernel = Kernel::load(&plan).unwrap();
    let report = kernel.attach(&plan, &Scope::Processes(vec![probed.pid()]));
    assert_eq!(places(&report), [1], "{report:?}");
    other.wait().unwrap();
    (&writer).write_all(b"x").unwrap();
    probed.wait().unwrap();
    assert_eq!(read_counter(&kernel, work), 700);
    let mapped =
        kernel.processes().into_iter().any(|it| matches!(it, ProcessEvent::Mmap { path, .. } if path == target()));
    assert!(mapped, "what was mapped before attaching is told");
}

#[test]
fn returns_are_paired_with_entries_and_see_the_value() {
    need_root!();
    let mut plan = Plan::default();
    let sum = counter(&mut plan, "sum");
    let entries = counter(&mut plan, "entries");
    let mut asm = Assembler::new();
    // The return value stands in rax, at byte 80 of pt_regs.
    asm.ldx(Size::Dw, Reg::R7, Reg::R1, 80);
    add_r7(&mut asm, sum);
    let program = add_program(&mut plan, "ret", ProgramKind::Uretprobe, asm);
    let entry_program = counting(&mut plan, "entry", ProgramKind::Uprobe, entries);
    let mut probe = function_probe(target(), "work", program);
    probe.event = Event::Uretprobe;
    probe.entry_program = Some(entry_program);
    plan.probes.push(probe);
    let (kernel, _) = run(&plan, &["work", "100"]);
    assert_eq!(read_counter(&kernel, entries), 100);
    assert_eq!(read_counter(&kernel, sum), 2 * (0..100).sum::<u64>());
}

#[test]
fn a_tracepoint_fires_for_the_process_tree_alone() {
    need_root!();
    let (plan, calls) = getppid_plan();
    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["forking-syscalls", "1000"]), &[], None).unwrap();
    let report = kernel.attach(&plan, &child.scope());
    assert_eq!(places(&report), [1], "{report:?}");
    assert!(report.warnings.is_empty(), "{report:?}");
    let mut other = StoppedChild::spawn(&words(&["syscalls", "3000"]), &[], None).unwrap();
    other.resume().unwrap();
    child.wait().unwrap();
    other.wait().unwrap();
    assert_eq!(read_counter(&kernel, calls), 3000, "three children, each from its first instruction on");
    let mut left = Vec::new();
    kernel.map(plan.targets.unwrap()).unwrap().for_each(&mut |key, _| left.push(key.to_vec())).unwrap();
    assert!(left.is_empty(), "ended processes are taken out: {left:?}");
}

#[test]
fn samples_come_with_user_stacks() {
    need_root!();
    let mut plan = Plan::default();
    let samples = counter(&mut plan, "samples");
    let stacks = add_map(&mut plan, "stacks", MapKind::StackTrace, 4, 127 * 8, 1024);
    let ids = add_map(&mut plan, "ids", MapKind::Hash, 8, 8, 1024);
    plan.kernel_stacks = Some(stacks);
    plan.targets = Some(add_map(&mut plan, "targets", MapKind::Hash, 4, 4, 1024));
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
    plan.probes.push(probe(Event::Profile, Target::Profile { hz: 997 }, program));
    let (kernel, report) = run(&plan, &["burn", "200000000"]);
    assert!(places(&report)[0] >= 1, "one a CPU: {report:?}");
    assert!(read_counter(&kernel, samples) > 0);
    let mut found = Vec::new();
    kernel
        .map(ids)
        .unwrap()
        .for_each(&mut |key, _| found.push(u32::from_ne_bytes(*key.first_chunk().unwrap())))
        .unwrap();
    let stack = StackKey::KernelUser { pid: 1, exec: 0, id: found[0] };
    let addresses = kernel.stack_addresses(stack).unwrap();
    assert!(!addresses.is_empty() && addresses.iter().all(|it| *it != 0), "{addresses:x?}");
    assert_eq!(kernel.stack_addresses(StackKey::Lost), None);
}

#[test]
fn children_get_their_own_probes() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let directory = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&directory);
    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["children", "1000", fifo.to_str().unwrap()]), &[], None).unwrap();
    kernel.attach(&plan, &child.scope());
    child.resume().unwrap();
    let mut linked = Vec::new();
    poll_until(&mut kernel, |kernel| {
        linked.extend(kernel.news().into_iter().filter_map(|it| match it {
            News::Child(it) => Some(it),
            _ => None,
        }));
        linked.len() == 3
    });
    assert!(linked.iter().all(|it| it.failed.is_none()), "{linked:?}");
    let _writer = feed(&fifo, 3);
    child.wait().unwrap();
    assert_eq!(read_counter(&kernel, work), 3000);
    poll_until(&mut kernel, |kernel| kernel.processes().iter().any(|it| matches!(it, ProcessEvent::Exit { .. })));
}

/// A process goes on when its main thread has ended, and so do its probes.
#[test]
fn a_process_ends_with_its_last_thread() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let directory = tempfile::tempdir().unwrap();
    let fifo = make_fifo(&directory);
    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["headless", "300", fifo.to_str().unwrap()]), &[], None).unwrap();
    let pid = child.pid();
    kernel.attach(&plan, &child.scope());
    child.resume().unwrap();
    poll_until(&mut kernel, |_| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") Z ") && std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() == 2
    });
    let early: Vec<_> = kernel.processes();
    assert!(!early.iter().any(|it| matches!(it, ProcessEvent::Exit { .. })), "{early:?}");
    let _writer = feed(&fifo, 1);
    poll_until(&mut kernel, |kernel| {
        kernel.processes().iter().any(|it| matches!(it, ProcessEvent::Exit { pid: ended, .. } if *ended == pid))
    });
    child.wait().unwrap();
    assert_eq!(read_counter(&kernel, work), 300);
}

#[test]
fn names_of_functions_can_come_from_the_runs_own_table() {
    need_root!();
    let mut plan = Plan { strings: vec![String::new(), "many_f007".into()], ..Plan::default() };
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "many_f00?", work);
    let mut kernel = Kernel::load(&plan).unwrap();
    let asked = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let names = asked.clone();
    kernel.intern_with(move |name| {
        names.borrow_mut().push(name.to_owned());
        1000 + names.borrow().len() as u32
    });
    let mut child = StoppedChild::spawn(&words(&["many"]), &[], None).unwrap();
    let report = kernel.attach(&plan, &child.scope());
    assert_eq!(places(&report), [10], "{report:?}");
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&kernel, work), 10);
    assert_eq!(asked.borrow().len(), 9, "the plan has one of them: {:?}", asked.borrow());
    assert_eq!(kernel.functions(), *asked.borrow());
}

#[test]
fn what_is_here_is_listed() {
    let functions = xputrace_kernel::list(&format!("uprobe:{}:many_f00*", target().display())).unwrap();
    assert_eq!(functions.len(), 10);
    assert!(functions[7].starts_with("uprobe:/") && functions[7].ends_with("/target:many_f007"), "{functions:?}");
    need_root!();
    let tracepoints = xputrace_kernel::list("tracepoint:sched:sched_process_*").unwrap();
    assert!(tracepoints.contains(&"tracepoint:sched:sched_process_fork".to_owned()), "{tracepoints:?}");
}

#[test]
fn a_thousand_functions_in_one_link_each_with_its_name() {
    need_root!();
    let mut plan = Plan { strings: vec![String::new(), "many_f007".into()], ..Plan::default() };
    let by_cookie = add_map(&mut plan, "by_cookie", MapKind::PercpuHash, 8, 8, 2048);
    let mut asm = Assembler::new();
    asm.call(helper::GET_ATTACH_COOKIE);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    asm.st_imm(Size::Dw, Reg::FP, -16, 1);
    asm.ld_map(Reg::R1, by_cookie);
    frame_address(&mut asm, Reg::R2, -8);
    frame_address(&mut asm, Reg::R3, -16);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::MAP_UPDATE_ELEM);
    let program = add_program(&mut plan, "cookies", ProgramKind::Uprobe, asm);
    plan.probes.push(function_probe(target(), "many_*", program));
    let (kernel, report) = run(&plan, &["many"]);
    assert_eq!(places(&report), [1000], "{report:?}");
    assert_eq!(kernel.functions().len(), 999);
    let mut hits = std::collections::BTreeSet::new();
    let map = kernel.map(by_cookie).unwrap();
    map.for_each(&mut |key, cpus| {
        assert_eq!(cpus.iter().map(|it| it[0]).sum::<u8>(), 1);
        hits.insert(u64::from_ne_bytes(*key.first_chunk().unwrap()));
    })
    .unwrap();
    assert_eq!(hits.len(), 1000);
    assert!(hits.contains(&1), "a name that the plan has keeps its id");
    assert!(!hits.contains(&0));
}

#[test]
fn nothing_is_left_after_drop() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    let name = format!("xtdrop{}", std::process::id());
    let program = counting(&mut plan, &name, ProgramKind::Uprobe, work);
    plan.probes.push(function_probe(target(), "work", program));
    let mut child = StoppedChild::spawn(&words(&["work", "1"]), &[], None).unwrap();
    let mut kernel = Kernel::load(&plan).unwrap();
    kernel.attach(&plan, &child.scope());
    let Some(before) = bpftool_programs() else {
        eprintln!("skipped: needs bpftool");
        return;
    };
    assert!(before.contains(&name), "{before}");
    drop(kernel);
    // The kernel frees a program a moment after its last link is closed.
    let give_up = Instant::now() + Duration::from_secs(20);
    while bpftool_programs().unwrap().contains(&name) {
        assert!(Instant::now() < give_up, "a program is only gone when its links are");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().unwrap();
}

#[test]
fn swapping_generations_under_load_loses_nothing() {
    need_root!();
    let mut plan = Plan::default();
    let inner = map_spec("generation", MapKind::PercpuHash, 8, 8, 64);
    let outer = MapSpec { inner: Some(Box::new(inner)), ..map_spec("outer", MapKind::ArrayOfMaps, 4, 4, 1) };
    plan.image.maps.push(outer);
    let mut asm = Assembler::new();
    let (out, first) = (asm.label(), asm.label());
    asm.st_imm(Size::W, Reg::FP, -4, 0);
    asm.ld_map(Reg::R1, 0);
    frame_address(&mut asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov(Reg::R6, Reg::R0);
    asm.st_imm(Size::Dw, Reg::FP, -16, 7);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, first);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.jump(out);
    asm.place(first);
    // The element is made with zeros first: another CPU may make it at the same time.
    asm.st_imm(Size::Dw, Reg::FP, -24, 0);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    frame_address(&mut asm, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    let program = add_program_ending_at(&mut plan, "count", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));

    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["threads", "100000"]), &[], None).unwrap();
    kernel.attach(&plan, &child.scope());
    child.resume().unwrap();
    let (mut total, mut filled) = (0u64, 0);
    let mut ended = false;
    while !ended {
        // The last swap comes after the end, so that nothing is left behind.
        ended = child.try_wait().unwrap().is_some();
        let before = total;
        kernel
            .swap(0, &mut |_, cpus| {
                total += cpus.iter().map(|it| u64::from_ne_bytes(*it.first_chunk().unwrap())).sum::<u64>()
            })
            .unwrap();
        filled += u32::from(total > before);
    }
    assert_eq!(total, 400_000);
    assert!(filled > 1, "more than one generation had something");
}

#[test]
fn a_refused_program_names_the_script_line() {
    need_root!();
    let mut plan = Plan::default();
    plan.image.sources.push(("bad.rhai".into(), "uprobe(…)\n\n@x = 1".into()));
    let mut asm = Assembler::new();
    asm.line(0, 1, 1);
    asm.mov_imm(Reg::R0, 0);
    asm.line(0, 3, 1);
    asm.ldx(Size::Dw, Reg::R0, Reg::R1, 4000);
    let program = add_program(&mut plan, "bad", ProgramKind::Uprobe, asm);
    plan.probes.push(function_probe(target(), "work", program));
    let error = Kernel::load(&plan).err().expect("refused").to_string();
    assert!(error.contains("program bad of bad.rhai:3"), "{error}");
    assert!(error.contains("invalid bpf_context access") && error.contains("a bug in xputrace"), "{error}");
}

/// What bpftool shows comes from the object's types and lines.
#[test]
fn the_kernel_knows_lines_and_types() {
    need_root!();
    let mut plan = Plan::default();
    plan.image.sources.push(("calls.rhai".into(), "// one\nuprobe(…, |e| @calls.count());".into()));
    let name = format!("xtl{}", std::process::id());
    let calls = counter(&mut plan, &name);
    let mut asm = Assembler::new();
    asm.line(0, 2, 1);
    asm.mov_imm(Reg::R7, 1);
    add_r7(&mut asm, calls);
    add_program(&mut plan, &format!("{name}p"), ProgramKind::Uprobe, asm);
    let _kernel = Kernel::load(&plan).unwrap();
    let bpftool = |args: &[&str]| {
        let output = Command::new("bpftool").args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(program) = bpftool(&["prog", "dump", "xlated", "name", &format!("{name}p"), "linum"]) else {
        eprintln!("skipped: needs bpftool");
        return;
    };
    assert!(program.contains("@calls.count()); [file:calls.rhai line_num:2"), "{program}");
    let map = bpftool(&["map", "dump", "name", &name]).unwrap();
    assert!(map.contains("\"value\": 0"), "a number, not bytes: {map}");
}

#[test]
fn a_map_that_cannot_be_made_is_named() {
    need_root!();
    let mut plan = Plan::default();
    counter(&mut plan, "small");
    add_map(&mut plan, "huge", MapKind::Array, 4, 1 << 20, u32::MAX);
    let error = Kernel::load(&plan).err().expect("refused").to_string();
    assert!(error.starts_with("cannot create the map huge (Array, 4294967295 entries): "), "{error}");
    assert!(error.contains("declare it smaller"), "{error}");
}

/// Maps and programs of the tracer's engine stay out, and numbers of maps are those of the plan.
#[test]
fn only_the_kernels_half_is_loaded() {
    need_root!();
    let mut plan = Plan::default();
    let ours = add_map(&mut plan, "ours", MapKind::Hash, 8, 8, 16);
    plan.image.maps[ours].home = Home::Tracer;
    counting(&mut plan, "handler", ProgramKind::Syscall, ours);
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let (kernel, _) = run(&plan, &["work", "20"]);
    assert!(kernel.map(ours).is_none());
    assert_eq!(read_counter(&kernel, work), 20);
}

/// Several threads hit a probe that adds to the very element that we add to.
#[test]
fn a_number_is_changed_exactly_while_probes_change_it() {
    need_root!();
    let mut plan = Plan::default();
    let sums = add_map(&mut plan, "sums", MapKind::Hash, 8, 8, 4);
    plan.image.maps[sums].flags = xputrace_bytecode::image::NO_PREALLOC;
    let mut asm = Assembler::new();
    let (out, hit) = (asm.label(), asm.label());
    asm.st_imm(Size::Dw, Reg::FP, -8, 7);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    for _ in 0..2 {
        asm.ld_map(Reg::R1, sums);
        frame_address(&mut asm, Reg::R2, -8);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        asm.ld_map(Reg::R1, sums);
        frame_address(&mut asm, Reg::R2, -8);
        frame_address(&mut asm, Reg::R3, -16);
        asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
        asm.call(helper::MAP_UPDATE_ELEM);
    }
    asm.jump(out);
    asm.place(hit);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    let program = add_program_ending_at(&mut plan, "add", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));

    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["threads", "50000"]), &[], None).unwrap();
    kernel.attach(&plan, &child.scope());
    let map = kernel.map(sums).unwrap();
    let key = 7u64.to_ne_bytes();
    let add = Change::new(atomic::ADD, 1000).unwrap();
    map.modify(&key, add).unwrap();
    child.resume().unwrap();
    let mut ours = 1000;
    while child.try_wait().unwrap().is_none() {
        map.modify(&key, add).unwrap();
        ours += 1000;
    }
    let sum = u64::from_ne_bytes(*map.lookup(&key).unwrap().unwrap()[0].first_chunk().unwrap());
    assert_eq!(sum, ours + 200_000);
    assert!(ours > 20_000, "the two went on at the same time");

    for (op, operand, expected) in [(atomic::XOR, 5, 5), (atomic::OR, 2, 7), (atomic::AND, 6, 6)] {
        map.modify(&8u64.to_ne_bytes(), Change::new(op, operand).unwrap()).unwrap();
        assert_eq!(map.lookup(&8u64.to_ne_bytes()).unwrap().unwrap()[0][0], expected);
    }
    map.modify(&9u64.to_ne_bytes(), add).unwrap();
    map.modify(&10u64.to_ne_bytes(), add).unwrap();
    let full = map.modify(&11u64.to_ne_bytes(), add).unwrap_err().to_string();
    assert!(full.contains("Argument list too long"), "the map is full: {full}");
}

#[test]
fn a_library_that_is_opened_later_is_probed_then() {
    need_root!();
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("liblateone.so");
    compile("late.c", &library, &["-shared", "-fPIC"]);
    let fifo = make_fifo(&directory);
    let mut plan = Plan::default();
    let late = counter(&mut plan, "late");
    uprobe(&mut plan, "liblateone", "late_function", late);
    let mut kernel = Kernel::load(&plan).unwrap();
    let arguments = ["dlopen", "50", fifo.to_str().unwrap(), library.to_str().unwrap()];
    let mut child = StoppedChild::spawn(&words(&arguments), &[], None).unwrap();
    let report = kernel.attach(&plan, &child.scope());
    assert!(matches!(report.probes[0].outcome, Outcome::Pending), "{report:?}");
    child.resume().unwrap();
    let mut attached = false;
    poll_until(&mut kernel, |kernel| {
        attached |= kernel
            .news()
            .iter()
            .any(|it| matches!(it, News::Probe(it) if matches!(it.outcome, Outcome::Attached { functions: 1, .. })));
        attached
    });
    let _writer = feed(&fifo, 1);
    child.wait().unwrap();
    assert_eq!(read_counter(&kernel, late), 50);
    let events = kernel.processes();
    assert!(events.iter().any(|it| matches!(it, ProcessEvent::Exec { comm, .. } if comm == "target")), "{events:?}");
    let build_id = events.iter().find_map(|it| match it {
        ProcessEvent::Mmap { path, build_id, .. } if *path == target() => Some(build_id.clone()),
        _ => None,
    });
    assert_eq!(build_id.map(|it| it.len()), Some(20), "mappings come with build ids");
}

#[test]
fn records_come_through_the_ring_in_order() {
    need_root!();
    let mut plan = Plan::default();
    let ring = add_map(&mut plan, "ring", MapKind::Ringbuf, 0, 0, 4096);
    plan.kernel_ring = Some(ring);
    let lost = add_map(&mut plan, "losses", MapKind::PercpuArray, 4, 8, 1);
    plan.kernel_losses = Some(lost);
    plan.loss_sites.push(LossSite {
        loss: xputrace_model::loss::Loss::KernelRingFull,
        site: Site::default(),
        table: None,
    });
    let mut asm = Assembler::new();
    let out = asm.label();
    // The first argument stands in rdi, at byte 112 of pt_regs.
    asm.ldx(Size::Dw, Reg::R2, Reg::R1, 112);
    asm.stx(Size::Dw, Reg::FP, -24, Reg::R2);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    asm.st_imm(Size::Dw, Reg::FP, -8, 0);
    asm.ld_map(Reg::R1, ring);
    frame_address(&mut asm, Reg::R2, -24);
    asm.mov_imm(Reg::R3, 20);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::RINGBUF_OUTPUT);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, lost, out);
    let program = add_program_ending_at(&mut plan, "out", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));
    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["work", "3000"]), &[], None).unwrap();
    kernel.attach(&plan, &child.scope());
    child.resume().unwrap();
    let mut seen = Vec::new();
    let mut ended = false;
    while !ended {
        ended = child.try_wait().unwrap().is_some();
        kernel
            .poll(Duration::from_millis(10), &mut |record| {
                assert_eq!(record.len(), 20);
                seen.push(u64::from_ne_bytes(*record.first_chunk().unwrap()));
            })
            .unwrap();
    }
    let lost = kernel.loss_counts()[0];
    assert_eq!(seen.len() as u64 + lost, 3000, "received and lost are all");
    assert!(seen.is_sorted() && seen.len() > 100);
}

#[test]
fn tag_arrays_are_shared_pages_of_one_process() {
    need_root!();
    let mut plan = Plan::default();
    let mut inner = map_spec("tags", MapKind::Array, 4, 16, xputrace_model::plan::TAG_SLOTS);
    inner.flags = xputrace_bytecode::image::MMAPABLE;
    plan.image.maps.push(MapSpec { inner: Some(Box::new(inner)), ..map_spec("by_pid", MapKind::HashOfMaps, 4, 4, 64) });
    plan.tags = Some(0);
    // Marker handler: tags[pid][3].tag += 1.
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.alu_imm(Alu::Rsh, Reg::R0, 32);
    asm.stx(Size::W, Reg::FP, -4, Reg::R0);
    asm.ld_map(Reg::R1, 0);
    frame_address(&mut asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov(Reg::R1, Reg::R0);
    asm.st_imm(Size::W, Reg::FP, -8, 3);
    frame_address(&mut asm, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 8, Reg::R1);
    let program = add_program_ending_at(&mut plan, "marker", ProgramKind::Uprobe, asm, out);
    plan.probes.push(probe(Event::Launch, Target::None, program));
    let mut kernel = Kernel::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["work", "40"]), &[], None).unwrap();
    assert!(kernel.attach(&plan, &child.scope()).probes.is_empty(), "the marker is attached apart");
    let array = kernel.add_tag_array(child.pid()).unwrap();
    let offset = symbol_offset(&target(), "work");
    assert_eq!(kernel.attach_marker(&plan, child.pid(), &target(), offset).unwrap(), 1);
    child.wait().unwrap();
    let len = 16 * xputrace_model::plan::TAG_SLOTS as usize;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, array.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: slot 3 is inside the mapping; the program that wrote to it has ended.
    let tag = unsafe { base.cast::<u64>().add(3 * 2 + 1).read_volatile() };
    assert_eq!(tag, 40);
}

#[test]
fn what_cannot_be_attached_says_why_and_the_rest_is() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    for (object, function) in [
        (target(), "wrok"),
        ("/no/such/file".into(), "f"),
        (target(), "work+100000"),
        ("libnothing".into(), "f"),
        (target(), "work"),
    ] {
        uprobe(&mut plan, object, function, work);
    }
    let program = counting(
        &mut plan,
        "tp",
        ProgramKind::Tracepoint { category: "sched".into(), name: "sched_swich".into() },
        work,
    );
    let target_ = Target::Tracepoint { category: "sched".into(), name: "sched_swich".into() };
    plan.probes.push(probe(Event::Tracepoint, target_, program));
    let (kernel, report) = run(&plan, &["work", "10"]);
    let texts: Vec<String> = report
        .probes
        .iter()
        .map(|it| match &it.outcome {
            Outcome::Failed(error) => error.to_string(),
            other => format!("{other:?}"),
        })
        .collect();
    assert!(texts[0].contains("no function `wrok`") && texts[0].contains("similar: work"), "{texts:#?}");
    assert_eq!(texts[1], "there is no file /no/such/file");
    assert!(texts[2].contains("not inside the function"), "{texts:#?}");
    assert_eq!(texts[3], "Pending");
    assert!(texts[4].starts_with("Attached"), "{texts:#?}");
    assert!(texts[5].contains("similar: sched:sched_switch"), "{texts:#?}");
    assert!(matches!(report.probes[0].outcome, Outcome::Failed(AttachError::NoSuchFunction { .. })));
    assert_eq!(read_counter(&kernel, work), 10);
}

#[test]
fn a_whole_system_scope_sees_processes_that_start_later() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    // A copy of its own: other tests run the same program at the same time.
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("target-copy");
    std::fs::copy(target(), &copy).unwrap();
    uprobe(&mut plan, &copy, "work", work);
    let mut kernel = Kernel::load(&plan).unwrap();
    let report = kernel.attach(&plan, &Scope::System);
    assert_eq!(places(&report), [1], "{report:?}");
    let status = Command::new(&copy).args(["work", "123"]).status().unwrap();
    assert!(status.success());
    assert_eq!(read_counter(&kernel, work), 123);
}

fn is_root() -> bool {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// The compiled test program.
fn target() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("target");
            compile("target.c", &path, &["-pthread", "-ldl"]);
            path
        })
        .clone()
}

fn compile(source: &str, to: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(source);
    let built = to.with_extension(format!("{}.new", std::process::id()));
    let status = Command::new("cc")
        .args(["-O1", "-fno-omit-frame-pointer", "-Wl,--build-id=sha1", "-o"])
        .arg(&built)
        .arg(source)
        .args(flags)
        .status()
        .expect("cc");
    assert!(status.success());
    std::fs::rename(built, to).unwrap();
}

fn words(arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(target().into_os_string()).chain(arguments.iter().map(OsString::from)).collect()
}

/// Runs the test program to its end with the plan attached from before its `exec`.
fn run(plan: &Plan, arguments: &[&str]) -> (Kernel, AttachReport) {
    let mut kernel = Kernel::load(plan).unwrap();
    let mut child = StoppedChild::spawn(&words(arguments), &[], None).unwrap();
    let report = kernel.attach(plan, &child.scope());
    assert!(child.wait().unwrap().success());
    (kernel, report)
}

fn places(report: &AttachReport) -> Vec<usize> {
    let places = |it: &Outcome| match it {
        Outcome::Attached { functions, .. } => *functions,
        _ => 0,
    };
    report.probes.iter().map(|it| places(&it.outcome)).collect()
}

fn poll_until(kernel: &mut Kernel, mut done: impl FnMut(&mut Kernel) -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !done(kernel) {
        assert!(Instant::now() < give_up, "it did not happen");
        kernel.poll(Duration::from_millis(100), &mut |_| {}).unwrap();
    }
}

fn make_fifo(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// Lets `readers` processes that wait for the FIFO go on; keep the file until they have ended, so
/// that none of them finds an end instead of its byte.
fn feed(fifo: &Path, readers: usize) -> std::fs::File {
    let mut writer = std::fs::OpenOptions::new().write(true).open(fifo).unwrap();
    writer.write_all(&vec![b'x'; readers]).unwrap();
    writer
}

fn bpftool_programs() -> Option<String> {
    let output = Command::new("bpftool").args(["prog", "list"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

fn symbol_offset(file: &Path, name: &str) -> u64 {
    let output = Command::new("nm").arg(file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|it| it.ends_with(&format!(" {name}"))).unwrap();
    // Text of these programs lies at its address in the file.
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

fn getppid_plan() -> (Plan, usize) {
    let mut plan = Plan::default();
    let calls = counter(&mut plan, "calls");
    plan.targets = Some(add_map(&mut plan, "targets", MapKind::Hash, 4, 4, 1024));
    let (category, name) = ("syscalls".to_owned(), "sys_enter_getppid".to_owned());
    let mut asm = Assembler::new();
    let out = asm.label();
    in_targets(&mut asm, &plan, out);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, calls, out);
    let kind = ProgramKind::Tracepoint { category: category.clone(), name: name.clone() };
    let program = add_program_ending_at(&mut plan, "getppid", kind, asm, out);
    plan.probes.push(probe(Event::Tracepoint, Target::Tracepoint { category, name }, program));
    (plan, calls)
}

/// Jumps to `out` unless the current process is a target.
fn in_targets(asm: &mut Assembler, plan: &Plan, out: xputrace_bytecode::Label) {
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.alu_imm(Alu::Rsh, Reg::R0, 32);
    asm.stx(Size::W, Reg::FP, -4, Reg::R0);
    asm.ld_map(Reg::R1, plan.targets.unwrap());
    frame_address(asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
}

fn map_spec(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapSpec {
    MapSpec { name: name.into(), kind, key_size, value_size, max_entries, flags: 0, home: Home::Kernel, inner: None }
}

fn add_map(plan: &mut Plan, name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> usize {
    plan.image.maps.push(map_spec(name, kind, key_size, value_size, max_entries));
    plan.image.maps.len() - 1
}

/// A map of one number.
fn counter(plan: &mut Plan, name: &str) -> usize {
    add_map(plan, name, MapKind::Array, 4, 8, 1)
}

fn read_counter(kernel: &Kernel, map: usize) -> u64 {
    let value = kernel.map(map).unwrap().lookup(&[0; 4]).unwrap().unwrap();
    u64::from_ne_bytes(*value[0].first_chunk().unwrap())
}

fn frame_address(asm: &mut Assembler, reg: Reg, offset: i32) {
    asm.mov(reg, Reg::FP);
    asm.alu_imm(Alu::Add, reg, offset);
}

/// `map[0] += r7`, then on to `out`.
fn add_r7_to(asm: &mut Assembler, map: usize, out: xputrace_bytecode::Label) {
    asm.st_imm(Size::W, Reg::FP, -4, 0);
    asm.ld_map(Reg::R1, map);
    frame_address(asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R7);
}

fn add_r7(asm: &mut Assembler, map: usize) {
    let out = asm.label();
    add_r7_to(asm, map, out);
    asm.place(out);
}

/// A program that adds one to a counter.
fn counting(plan: &mut Plan, name: &str, kind: ProgramKind, map: usize) -> usize {
    let mut asm = Assembler::new();
    asm.mov_imm(Reg::R7, 1);
    add_r7(&mut asm, map);
    add_program(plan, name, kind, asm)
}

fn add_program(plan: &mut Plan, name: &str, kind: ProgramKind, mut asm: Assembler) -> usize {
    let out = asm.label();
    add_program_ending_at(plan, name, kind, asm, out)
}

fn add_program_ending_at(
    plan: &mut Plan,
    name: &str,
    kind: ProgramKind,
    mut asm: Assembler,
    out: xputrace_bytecode::Label,
) -> usize {
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let done = asm.finish().unwrap();
    let lines: Vec<Line> = done.lines;
    plan.image.programs.push(Program { name: name.into(), kind, insns: done.insns, map_refs: done.map_refs, lines });
    plan.image.programs.len() - 1
}

fn uprobe(plan: &mut Plan, object: impl AsRef<Path>, function: &str, count_in: usize) {
    let name = format!("p{}", plan.image.programs.len());
    let program = counting(plan, &name, ProgramKind::Uprobe, count_in);
    plan.probes.push(function_probe(object, function, program));
}

fn function_probe(object: impl AsRef<Path>, function: &str, program: usize) -> Probe {
    let object = object.as_ref().to_str().unwrap().to_owned();
    probe(Event::Uprobe, Target::Function { object, function: function.into() }, program)
}

fn probe(event: Event, target: Target, program: usize) -> Probe {
    Probe {
        event,
        target,
        name: "test".into(),
        place: Place::Linux,
        program: Some(program),
        entry_program: None,
        closure: None,
        system_wide: false,
        sees_unjoined: false,
        site: Site::default(),
        why: Vec::new(),
    }
}
