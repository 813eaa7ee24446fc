//! Feeds everything that reads what others write with damaged input (docs/FUZZING.md).
//!
//! ```text
//! cargo test ─▶ one test for each target ─starts─▶ itself, with that target alone: seeds ─mutate─▶ target
//!                        │                                        │ dies of an input
//!                        ◀────────── the input, in shared memory ─┘
//!                        minimise ─▶ corpus/TARGET/HASH, which is replayed first from then on
//! ```

mod harness;
mod targets;

use harness::{child, memory, parent};

#[global_allocator]
static ALLOCATOR: memory::Limited = memory::Limited;

fn main() -> std::process::ExitCode {
    let targets = targets::all();
    match child::Task::of_environment() {
        Some(task) => task.run(&targets),
        None => parent::run(targets),
    }
}
