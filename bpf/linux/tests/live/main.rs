//! Uses the Linux side as a run does: loads programs, attaches them to a small C program, reads
//! counts and detaches. Needs root; without it every test prints a line and passes.

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
