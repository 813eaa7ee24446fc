//! Lets programs of `kprobe/__directly_run` run where it is their turn, and says so.

use super::running::Running;
use xputrace_model::loss::Loss;
use xputrace_model::output::Output;
use xputrace_nvidia_tracer::programs::{ProgramsFailure, Turn, Why, failure};
use xputrace_pipeline::ProcessIndex;
use xputrace_render::counted;
use xputrace_rendezvous::ProgramsOutcome;
use xputrace_wire::device::ProgramsState;

impl Running {
    /// Gives them to a process that has a context, if nobody else has them; returns whether it does.
    pub fn give_programs(&mut self, process: ProcessIndex) -> bool {
        let is_its = *self.programs() == Turn::Awaited;
        if is_its {
            *self.programs() = Turn::Given(process);
        }
        is_its
    }

    /// Takes them back from a process that gets none, and runs them in the tracer's engine.
    pub fn take_programs_back(&mut self, why: String) {
        *self.programs() = Turn::Awaited;
        self.run_programs_here(Why::Said(why));
    }

    /// Takes over what has become of them in a process that has ended, or been left.
    pub fn end_programs(&mut self, process: ProcessIndex, outcome: ProgramsOutcome) {
        if *self.programs() != Turn::Given(process) {
            return;
        }
        if outcome.state == ProgramsState::Waiting {
            *self.programs() = Turn::Awaited;
            return self.run_programs_here(Why::Late);
        }
        *self.programs() = Turn::Over;
        let Some(object) = self.plan().object.clone() else { return };
        match failure(&object, self.plan(), outcome) {
            None => {
                let n = counted(object.launches.len() as u64, "program", "programs");
                self.state().emit(&Output::Note(format!("{n} of kprobe/__directly_run ran on the GPU")));
            }
            Some(ProgramsFailure { what, n_unfinished }) => {
                self.state().losses.add(Loss::DeviceProgramUnfinished, n_unfinished);
                self.report().fail(&what);
            }
        }
    }

    /// Runs them in the tracer's engine, if nobody else has; says why.
    pub fn run_programs_here(&mut self, why: Why) {
        if *self.programs() == Turn::Awaited {
            *self.programs() = Turn::Here(why);
            self.begin_programs();
        }
    }

    /// Runs them, if it is the engine's turn.
    pub(super) fn begin_programs(&mut self) {
        let Turn::Here(why) = self.programs().clone() else { return };
        *self.programs() = Turn::Over;
        self.state().emit(&Output::Note(format!("programs of kprobe/__directly_run run in xputrace's engine: {why}")));
        self.run_launches();
    }
}
