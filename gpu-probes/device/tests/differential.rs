//! Random programs do on the device what they do in the tracer's engine: here with their PTX run by an interpreter, so
//! that it is tested without a GPU. `examples/on_gpu.rs` does the same on one.

mod common;

use std::cell::RefCell;
use std::collections::BTreeSet;

use common::generate::{self, AXES, Case, Outcome};
use common::ptx::{Code, GLOBAL, Warp};
use common::{assemble, kernels, ptxas};
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use xputrace_device::PtxBlock;

const N_CASES: u32 = 400;
/// Of so many programs, the assembler is asked for one.
const ASSEMBLE_ONE_IN: usize = 40;

/// Runs a block on the interpreter.
fn actual(case: &Case, block: &PtxBlock) -> Outcome {
    let arena = generate::arena(block.sites.len() as u32);
    let mut memory = generate::memory(&arena);
    let ctx_at = memory.len() as u64;
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
    generate::outcome(result, &arena, &warp.global)
}

#[test]
fn the_device_does_what_the_engine_does() {
    let seen = RefCell::new(BTreeSet::new());
    let assembler = ptxas("assembling random programs");
    let n_run = RefCell::new(0);
    let config = Config { cases: N_CASES, failure_persistence: None, ..Config::default() };
    let tested = TestRunner::new(config).run(&generate::case(), |case| {
        generate::coverage(&generate::build(&case, true).insns, &mut seen.borrow_mut());
        let block = generate::translated(&case, 0).map_err(TestCaseError::fail)?;
        let (expected, actual) = (generate::expected(&case), actual(&case, &block));
        if expected != actual {
            return Err(TestCaseError::fail(format!("expected {expected:?}, but it was {actual:?}")));
        }
        *n_run.borrow_mut() += 1;
        match &assembler {
            Some(ptxas) if *n_run.borrow() % ASSEMBLE_ONE_IN == 1 => {
                assemble(ptxas, &kernels::of_one_thread(&[block])).map_err(TestCaseError::fail)?;
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
