//! Functions are found, probed where they are, named, or refused with a reason.

use crate::need_root;
use crate::plans::*;
use crate::target::*;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use xputrace_bytecode::helper;
use xputrace_bytecode::insn::Size;
use xputrace_bytecode::{Assembler, MapKind, ProgramKind, Reg};
use xputrace_linux::{AttachError, Linux, News, Outcome, ProcessEvent, Scope, StoppedChild};
use xputrace_model::listing::Listed;
use xputrace_model::names::Names;
use xputrace_model::plan::{Plan, ProbePlace};
use xputrace_model::schema::Event;

#[test]
fn every_call_is_counted_from_before_main_on() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    let early = counter(&mut plan, "early");
    uprobe(&mut plan, target(), "work", work);
    uprobe(&mut plan, target(), "early", early);
    let (linux, report) = run(&plan, &["threads", "5000"]);
    assert_eq!(places(&report), [1, 1], "{report:?}");
    assert_eq!((read_counter(&linux, work), read_counter(&linux, early)), (20_000, 1));
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
    let mut linux = Linux::load(&plan).unwrap();
    let report = linux.attach(&plan, &Scope::Processes(vec![probed.pid()])).unwrap();
    assert_eq!(places(&report), [1], "{report:?}");
    other.wait().unwrap();
    (&writer).write_all(b"x").unwrap();
    probed.wait().unwrap();
    assert_eq!(read_counter(&linux, work), 700);
    let mapped =
        linux.processes().into_iter().any(|it| matches!(it, ProcessEvent::Mmap { path, .. } if path == target()));
    assert!(mapped, "what was mapped before attaching is told");
}

#[test]
fn returns_are_paired_with_entries_and_see_the_value() {
    need_root!();
    let mut plan = Plan::default();
    let sum = counter(&mut plan, "sum");
    let entries = counter(&mut plan, "entries");
    let mut asm = Assembler::new();
    // rax, the return value, is at byte 80 of pt_regs.
    asm.ldx(Size::Dw, Reg::R7, Reg::R1, 80);
    add_r7(&mut asm, sum);
    let program = add_program(&mut plan, "ret", ProgramKind::Uretprobe, asm);
    let entry_program = counting(&mut plan, "entry", ProgramKind::Uprobe, entries);
    let mut probe = function_probe(target(), "work", program);
    probe.event = Event::Uretprobe;
    probe.entry_program = Some(entry_program);
    plan.probes.push(probe);
    let (linux, _) = run(&plan, &["work", "100"]);
    assert_eq!(read_counter(&linux, entries), 100);
    assert_eq!(read_counter(&linux, sum), 2 * (0..100).sum::<u64>());
}

#[test]
fn names_of_functions_can_come_from_the_runs_own_table() {
    need_root!();
    let mut plan = Plan { strings: vec![String::new(), "many_f007".into()], ..Plan::default() };
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "many_f00?", work);
    let mut linux = Linux::load(&plan).unwrap();
    let mut names = Names::new(&plan.strings);
    names.intern("something else");
    let mut child = StoppedChild::spawn(&words(&["many"]), &[], None).unwrap();
    let report = linux.lending(&mut names, |linux| linux.attach(&plan, &child.scope()).unwrap());
    assert_eq!(places(&report), [10], "{report:?}");
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&linux, work), 10);
    assert_eq!(names.len(), 3 + 9, "the plan has one of them: {names:?}");
    assert_eq!(linux.names().len(), 2, "none was interned apart: {:?}", linux.names());
}

#[test]
fn what_is_here_is_listed() {
    let names = |found: Vec<Listed>| found.into_iter().map(|it| it.name).collect::<Vec<_>>();
    let pattern = format!("{}:many_f00*", target().display());
    let functions = names(xputrace_linux::list_functions(Event::Uprobe, &pattern).unwrap());
    assert_eq!(functions.len(), 10);
    assert!(functions[7].starts_with("uprobe:/") && functions[7].ends_with("/target:many_f007"), "{functions:?}");
    need_root!();
    let tracepoints = names(xputrace_linux::list_tracepoints("sched:sched_process_*").unwrap());
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
    let (linux, report) = run(&plan, &["many"]);
    assert_eq!(places(&report), [1000], "{report:?}");
    assert_eq!(linux.names().len(), 2 + 999);
    let mut hits = std::collections::BTreeSet::new();
    let map = linux.map(by_cookie).unwrap();
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
fn a_library_that_is_opened_later_is_probed_then() {
    need_root!();
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("liblateone.so");
    compile("late.c", &library, &["-shared", "-fPIC"]);
    let fifo = make_fifo(&directory);
    let mut plan = Plan::default();
    let late = counter(&mut plan, "late");
    uprobe(&mut plan, "liblateone", "late_function", late);
    let mut linux = Linux::load(&plan).unwrap();
    let arguments = ["dlopen", "50", fifo.to_str().unwrap(), library.to_str().unwrap()];
    let mut child = StoppedChild::spawn(&words(&arguments), &[], None).unwrap();
    let report = linux.attach(&plan, &child.scope()).unwrap();
    assert!(matches!(report.probes[0].outcome, Outcome::Pending), "{report:?}");
    child.resume().unwrap();
    let mut attached = false;
    poll_until(&mut linux, |linux| {
        attached |= linux
            .news()
            .iter()
            .any(|it| matches!(it, News::Probe(it) if matches!(it.outcome, Outcome::Attached { functions: 1, .. })));
        attached
    });
    let _writer = feed(&fifo, 1);
    child.wait().unwrap();
    assert_eq!(read_counter(&linux, late), 50);
    let events = linux.processes();
    assert!(events.iter().any(|it| matches!(it, ProcessEvent::Exec { comm, .. } if comm == "target")), "{events:?}");
    let build_id = events.iter().find_map(|it| match it {
        ProcessEvent::Mmap { path, build_id, .. } if *path == target() => Some(build_id.clone()),
        _ => None,
    });
    assert_eq!(build_id.map(|it| it.len()), Some(20), "mappings come with build ids");
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
    let target_ = ProbePlace::Tracepoint { category: "sched".into(), name: "sched_swich".into() };
    plan.probes.push(probe(Event::Tracepoint, target_, program));
    let (linux, report) = run(&plan, &["work", "10"]);
    let texts: Vec<String> = report
        .probes
        .iter()
        .map(|it| match &it.outcome {
            Outcome::Failed(error) => error.to_string(),
            other => format!("{other:?}"),
        })
        .collect();
    assert!(texts[0].contains("no function `wrok`") && texts[0].contains("similar: work"), "{texts:#?}");
    assert!(texts[1].starts_with("there is no file /no/such/file;"), "{texts:#?}");
    assert!(texts[2].contains("not inside the function"), "{texts:#?}");
    assert_eq!(texts[3], "Pending");
    assert!(texts[4].starts_with("Attached"), "{texts:#?}");
    assert!(texts[5].contains("similar: sched:sched_switch"), "{texts:#?}");
    assert!(matches!(report.probes[0].outcome, Outcome::Failed(AttachError::NoSuchFunction { .. })));
    assert_eq!(read_counter(&linux, work), 10);
}

/// The command has yet to map the file, so Linux itself does not report the places that it refuses.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_pattern_probes_what_can_be_probed_and_names_the_rest() {
    need_root!();
    let odd = odd();
    let mut plan = Plan::default();
    let hits = counter(&mut plan, "hits");
    uprobe(&mut plan, &odd, "*odd_*", hits);
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&[odd.into(), "10".into()], &[], None).unwrap();
    let report = linux.attach(&plan, &child.scope()).unwrap();
    assert_eq!(places(&report), [2], "{report:?}");
    let texts: Vec<_> = report.warnings.iter().map(|it| it.text.as_str()).collect();
    let says = |what: &str| texts.iter().any(|it| it.contains(what));
    assert!(says("2 of 5 functions matched by") && says(":*odd_* cannot be probed"), "{texts:#?}");
    assert!(says("first instruction: odd_lock, odd_wide"), "{texts:#?}");
    assert!(says("1 of 5 functions") && says("when it starts: odd_choice"), "{texts:#?}");
    assert!(child.wait().unwrap().success());
    assert_eq!(read_counter(&linux, hits), 20);
    let mut names: Vec<&str> = linux.names().iter().filter(|it| !it.is_empty()).collect();
    names.sort();
    assert_eq!(names, ["odd_a", "odd_b"], "of two names of a place the one for users");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_function_that_cannot_be_probed_is_an_error_with_its_reason() {
    need_root!();
    let odd = odd();
    let mut plan = Plan::default();
    let hits = counter(&mut plan, "hits");
    for function in ["odd_lock", "odd_wide", "odd_data"] {
        uprobe(&mut plan, &odd, function, hits);
    }
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&[odd.into()], &[], None).unwrap();
    let report = linux.attach(&plan, &child.scope()).unwrap();
    let texts: Vec<_> = report.probes.iter().map(|it| format!("{:?}", it.outcome)).collect();
    for (function, at) in [("odd_lock", 0), ("odd_wide", 1)] {
        let Outcome::Failed(error) = &report.probes[at].outcome else { panic!("{texts:#?}") };
        let text = error.to_string();
        assert!(text.starts_with(function) && text.contains("cannot step over the first instruction"), "{text}");
    }
    assert!(matches!(report.probes[2].outcome, Outcome::Failed(AttachError::NoSuchFunction { .. })), "{texts:#?}");
    child.wait().unwrap();
}

/// Run by the test below in a process of its own, because the limit on open files is per process.
#[test]
#[ignore = "run by another test"]
fn attach_with_few_files() {
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let mut children: Vec<_> = (0..8).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect();
    let mut linux = Linux::load(&plan).unwrap();
    // One per CPU and process for process events, plus two links.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let limit = open_files().len() + 8 * cpus + 2;
    let limit = libc::rlimit { rlim_cur: limit as u64, rlim_max: limit as u64 };
    // SAFETY: the pointer is to a complete structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let report =
        linux.attach(&plan, &Scope::Processes(children.iter().map(std::process::Child::id).collect())).unwrap();
    let text = format!("{:?}", report.probes[0].outcome);
    assert!(text.contains("Too many open files"), "{text}");
    let links = open_files().iter().filter(|it| it.to_string_lossy().contains("bpf_link")).count();
    children.iter_mut().for_each(|it| it.kill().unwrap());
    println!("links left: {links}");
}

#[test]
fn a_probe_that_fails_in_one_process_leaves_no_links_in_others() {
    need_root!();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "functions::attach_with_few_files", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("links left: 0"), "{text}");
}

fn open_files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    entries.filter_map(|it| std::fs::read_link(it.path()).ok()).collect()
}
