//! Random programs do on the device what they do in the tracer's engine: here with their PTX run by an interpreter, so
//! that it is tested without a GPU. `examples/on_gpu.rs` does the same on one.

mod common;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use common::generate::{self, AXES, Case, Outcome, PID_TGID};
use common::ptx::{Code, GLOBAL, Warp};
use common::{assemble, module, ptxas};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use xputrace_device::arena::{Arena, MapBytes, Needs, RingBytes, RingReader};
use xputrace_device::layout::header;
use xputrace_device::{Kind, Options, Request, translate};

const N_CASES: u32 = 400;
/// Of so many programs, the assembler is asked for one.
const ASSEMBLE_ONE_IN: usize = 40;

fn arena(n_sites: u32) -> Arena {
    Arena::new(Needs { maps: generate::maps(), n_sites, ring_slots: 1024, n_threads: 1 }).expect("fits")
}

fn word(memory: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(memory[at as usize..][..8].try_into().expect("8 bytes"))
}

fn translated(case: &Case) -> Result<xputrace_device::Block, TestCaseError> {
    let program = generate::build(case, true);
    let options = Options { allow_exit: true, result: Some("%result".into()), architecture: 90, ..Options::default() };
    let (maps, context) = (generate::maps(), generate::context());
    let request = Request { program: &program, maps: &maps, context: &context, options: &options };
    translate(request).map_err(|it| TestCaseError::fail(format!("{it}: {:?}", program.insns[it.insn])))
}

/// Runs a block on the interpreter.
fn actual(case: &Case, block: &xputrace_device::Block) -> Outcome {
    let arena = arena(block.sites.len() as u32);
    let ctx_at = arena.n_bytes();
    let mut memory = vec![0; ctx_at as usize];
    let mut table = arena.table();
    table[header::PID_TGID as usize..][..8].copy_from_slice(&PID_TGID.to_le_bytes());
    memory[..table.len()].copy_from_slice(&table);
    memory.extend(case.ctx.iter().flat_map(|it| it.to_le_bytes()));
    let code = Code::parse(&block.text);
    let mut warp = Warp::new(&code, 1, memory);
    warp.set_register(0, "%ctx", GLOBAL + ctx_at);
    for (_, name, values) in AXES {
        for (axis, value) in ["x", "y", "z"].into_iter().zip(values) {
            warp.threads[0].special.insert(format!("{name}.{axis}"), value);
        }
    }
    warp.run_in_turn();
    let result = if warp.threads[0].has_exited { 0 } else { warp.threads[0].result(&code) };
    outcome(result, &arena, &warp.global)
}

/// Reads what a run left in memory.
fn outcome(result: u64, arena: &Arena, memory: &[u8]) -> Outcome {
    let part = |range: &std::ops::Range<u64>| &memory[range.start as usize..range.end as usize];
    let mut maps = BTreeMap::new();
    for (at, map) in generate::maps().iter().enumerate().filter(|(_, it)| it.kind != Kind::Ring) {
        let parts = arena.parts(at).expect("is there");
        let bytes = MapBytes { map, states: part(&parts.states), keys: part(&parts.keys), values: part(&parts.values) };
        bytes.for_each(|key, value| {
            maps.insert((at, key.to_vec()), value.to_vec());
        });
    }
    let (slots, marks) = arena.ring_parts();
    let head = word(memory, arena.ring_words().0);
    let mut records = Vec::new();
    let ring = RingBytes { marks: part(&marks), slots: part(&slots), head };
    let mut reader = RingReader::new(1024);
    reader.read(ring, true, |it| records.push(it.data.to_vec()));
    Outcome { result, maps, records }
}

#[test]
fn the_device_does_what_the_engine_does() {
    let seen = RefCell::new(BTreeSet::new());
    let assembler = ptxas("assembling random programs");
    let n_run = RefCell::new(0);
    let config = Config { cases: N_CASES, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&generate::case(), |case| {
        generate::coverage(&generate::build(&case, true).insns, &mut seen.borrow_mut());
        let block = translated(&case)?;
        let (expected, actual) = (generate::expected(&case), actual(&case, &block));
        if expected != actual {
            return Err(TestCaseError::fail(format!("expected {expected:?}, but it was {actual:?}")));
        }
        *n_run.borrow_mut() += 1;
        match &assembler {
            Some(ptxas) if *n_run.borrow() % ASSEMBLE_ONE_IN == 1 => {
                assemble(ptxas, &module(&[&block.text])).map_err(TestCaseError::fail)?;
            }
            _ => {}
        }
        Ok(())
    });
    if let Err(error) = tested {
        panic!("{error}");
    }
    let (all, seen) = (generate::everything(), seen.into_inner());
    let missed: Vec<&String> = all.difference(&seen).collect();
    println!("covered {} of {} instructions, helpers, loops and calls", all.len() - missed.len(), all.len());
    assert!(missed.is_empty(), "never covered: {missed:?}");
    let unlisted: Vec<&String> = seen.difference(&all).collect();
    assert!(unlisted.is_empty(), "missing in the list: {unlisted:?}");
}
