//! The kernel side as it is used: programs are loaded, attached to a small C program, counted
//! and taken out again. Needs root; without it every test says so and passes.

mod functions;
mod loading;
mod maps;
#[path = "../fixtures/plans.rs"]
mod plans;
mod processes;
mod target;

#[macro_export]
macro_rules! need_root {
    () => {
        if !$crate::target::is_root() {
            eprintln!("skipped: needs root");
            return;
        }
    };
}
