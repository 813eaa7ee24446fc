//! Programs and maps are loaded into Linux, and removed.

use crate::need_root;
use crate::plans::*;
use crate::target::*;
use std::process::Command;
use std::time::{Duration, Instant};
use xputrace_bytecode::insn::Size;
use xputrace_bytecode::{Assembler, Home, MapKind, ProgramKind, Reg};
use xputrace_linux::{Linux, StoppedChild};
use xputrace_model::plan::Plan;

#[test]
fn nothing_is_left_after_drop() {
    need_root!();
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    let name = format!("xtdrop{}", std::process::id());
    let program = counting(&mut plan, &name, ProgramKind::Uprobe, work);
    plan.probes.push(function_probe(target(), "work", program));
    let mut child = StoppedChild::spawn(&words(&["work", "1"]), &[], None).unwrap();
    let mut linux = Linux::load(&plan).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    let Some(before) = bpftool_programs() else {
        eprintln!("skipped: needs bpftool");
        return;
    };
    assert!(before.contains(&name), "{before}");
    drop(linux);
    // Linux frees a program shortly after its last link is closed.
    let give_up = Instant::now() + Duration::from_secs(120);
    while bpftool_programs().unwrap().contains(&name) {
        assert!(Instant::now() < give_up, "a program is only gone when its links are");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().unwrap();
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
    let error = Linux::load(&plan).err().expect("refused").to_string();
    assert!(error.contains("program bad of bad.rhai:3"), "{error}");
    assert!(error.contains("invalid bpf_context access") && error.contains("a bug in xputrace"), "{error}");
}

/// bpftool shows the object's types and lines.
#[test]
fn linux_knows_lines_and_types() {
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
    let _linux = Linux::load(&plan).unwrap();
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
    let error = Linux::load(&plan).err().expect("refused").to_string();
    assert!(error.starts_with("cannot create the map huge (Array, 4294967295 entries): "), "{error}");
    assert!(error.contains("declare it smaller"), "{error}");
}

/// Skips maps and programs of the tracer's engine; map indices are those of the plan.
#[test]
fn only_the_linux_half_is_loaded() {
    need_root!();
    let mut plan = Plan::default();
    let ours = add_map(&mut plan, "ours", MapKind::Hash, 8, 8, 16);
    plan.image.maps[ours].home = Home::Tracer;
    counting(&mut plan, "handler", ProgramKind::Syscall, ours);
    let work = counter(&mut plan, "work");
    uprobe(&mut plan, target(), "work", work);
    let (linux, _) = run(&plan, &["work", "20"]);
    assert!(linux.map(ours).is_none());
    assert_eq!(read_counter(&linux, work), 20);
}

fn bpftool_programs() -> Option<String> {
    let output = Command::new("bpftool").args(["prog", "list"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
