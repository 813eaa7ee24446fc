//! Measures the time from a plan to attached probes; needs root.
//!
//! `cargo run --release -p xputrace-linux --example attach_time -- FILE FUNCTION [ROUNDS]` prints
//! medians: loading the object into Linux (load); everything up to the last link (attach); the same
//! again right afterwards, when Linux does not wait for readers to register a uprobe, so that only
//! our own part remains (again).

#![allow(clippy::exit, clippy::print_stderr, clippy::print_stdout, reason = "a measurement prints its result")]

#[path = "../tests/fixtures/plans.rs"]
mod plans;

use std::time::{Duration, Instant};
use xputrace_bytecode::insn::{Cond, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, MapKind, ProgramKind, Reg, helper};
use xputrace_linux::{Linux, Scope};
use xputrace_model::plan::Plan;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(object), Some(function)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: attach_time FILE FUNCTION [ROUNDS]");
        std::process::exit(2);
    };
    let rounds = arguments.next().and_then(|it| it.parse().ok()).unwrap_or(21);
    let plan = plan(&object, &function);
    let scope = Scope::Processes(vec![std::process::id()]);
    let (mut loads, mut attaches, mut again) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (loaded, _first) = timed(&plan, &scope, &mut attaches);
        loads.push(loaded);
        timed(&plan, &scope, &mut again);
    }
    let [load, attach, again] = [loads, attaches, again].map(median);
    println!("load {load:.2?}, attach {attach:.2?}, again {again:.2?} (medians of {rounds})");
}

/// Returns how long loading took; adds how long attaching took to `attaches`.
fn timed(plan: &Plan, scope: &Scope, attaches: &mut Vec<Duration>) -> (Duration, Linux) {
    let start = Instant::now();
    let mut linux = match Linux::load(plan) {
        Ok(linux) => linux,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let loaded = start.elapsed();
    let start = Instant::now();
    let report = linux.attach(plan, scope).unwrap();
    attaches.push(start.elapsed());
    assert_eq!(report.places(), 2, "{report:?}");
    (loaded, linux)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Two uprobes that count by thread, as a small script would have.
fn plan(object: &str, function: &str) -> Plan {
    let mut plan = Plan::default();
    for name in ["calls_0", "calls_1"] {
        let map = plans::add_map(&mut plan, name, MapKind::PercpuHash, 8, 8, 65536);
        plan.image.maps[map].flags = xputrace_bytecode::image::NO_PREALLOC;
        let program = plans::add_program(&mut plan, &format!("count_{name}"), ProgramKind::Uprobe, count(map));
        plan.probes.push(plans::function_probe(object, function, program));
    }
    plan.image.sources.push(("calls.rhai".into(), "uprobe(…, |e| @calls[e.tid].count());".into()));
    plan
}

fn count(map: BpfMapId) -> Assembler {
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.line(0, 1, 1);
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    asm.ld_map(Reg::R1, map);
    plans::frame_address(&mut asm, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(out);
    asm
}
