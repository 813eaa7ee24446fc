//! How long it takes from a plan to attached probes; needs root.
//!
//! `cargo run --release -p xputrace-kernel --example attach_time -- FILE FUNCTION [ROUNDS]`
//! prints medians: the object and its maps and programs into the kernel (load), everything else
//! up to the last link (attach), and how much of that one bare link of the kernel takes.

use std::time::{Duration, Instant};
use xputrace_bytecode::insn::{Alu, Cond, Size, atomic};
use xputrace_bytecode::{Assembler, Home, MapKind, MapSpec, Program, ProgramKind, Reg, helper};
use xputrace_kernel::{Kernel, Scope};
use xputrace_model::diagnostic::Site;
use xputrace_model::plan::{Place, Plan, Probe, Target};
use xputrace_model::schema::Event;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(object), Some(function)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: attach_time FILE FUNCTION [ROUNDS]");
        std::process::exit(2);
    };
    let rounds = arguments.next().and_then(|it| it.parse().ok()).unwrap_or(21);
    let plan = plan(object, function);
    let scope = Scope::Processes(vec![std::process::id()]);
    let (mut loads, mut attaches) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let mut kernel = match Kernel::load(&plan) {
            Ok(kernel) => kernel,
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        };
        loads.push(start.elapsed());
        let start = Instant::now();
        let report = kernel.attach(&plan, &scope);
        attaches.push(start.elapsed());
        assert_eq!(report.places(), 2, "{report:?}");
    }
    println!("load {:.2?}, attach {:.2?} (medians of {rounds})", median(loads), median(attaches));
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Two uprobes that count by thread, as a small script has.
fn plan(object: String, function: String) -> Plan {
    let mut plan = Plan::default();
    for index in 0..2 {
        plan.image.maps.push(MapSpec {
            name: format!("calls_{index}"),
            kind: MapKind::PercpuHash,
            key_size: 8,
            value_size: 8,
            max_entries: 65536,
            flags: xputrace_bytecode::image::NO_PREALLOC,
            home: Home::Kernel,
            inner: None,
        });
        plan.image.programs.push(count(index));
        plan.probes.push(Probe {
            event: Event::Uprobe,
            target: Target::Function { object: object.clone(), function: function.clone() },
            name: "uprobe".into(),
            place: Place::Linux,
            program: Some(index),
            entry_program: None,
            closure: None,
            system_wide: false,
            sees_unjoined: false,
            site: Site::default(),
            why: Vec::new(),
        });
    }
    plan.image.sources.push(("calls.rhai".into(), "uprobe(…, |e| @calls[e.tid].count());".into()));
    plan
}

fn count(map: usize) -> Program {
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.line(0, 1, 1);
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let done = asm.finish().expect("a program without open labels");
    Program {
        name: format!("count_{map}"),
        kind: ProgramKind::Uprobe,
        insns: done.insns,
        map_refs: done.map_refs,
        lines: done.lines,
    }
}
