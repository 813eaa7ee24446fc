//! Programs of `kprobe/__directly_run`: where they run, and what has become of them. They run once in a run.
//!
//! ```text
//! no GPU, or nothing that makes a context ─▶ the tracer's engine, when the run begins
//! a GPU ─▶ the first process whose collector tells of a context ─▶ its GPU
//!          no such process by the end, or it ended too early    ─▶ the tracer's engine, then
//! ```

use crate::{drivers, twins};
use std::fmt;
use xputrace_model::object::{DirectLaunch, Object};
use xputrace_model::plan::Plan;
use xputrace_pipeline::ProcessIndex;
use xputrace_rendezvous::ProgramsOutcome;
use xputrace_wire::device::ProgramsState;

/// Who runs them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Turn {
    /// The tracer's engine, when the run begins.
    Here(Why),
    /// A process with a context, if one comes.
    Awaited,
    /// This process.
    Given(ProcessIndex),
    /// They have run, or there are none.
    #[default]
    Over,
}

/// Why they run in the tracer's engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Linux has no driver of a GPU loaded.
    NoGpu,
    /// The process uses the software GPU.
    SoftwareGpu,
    /// They run over a recording.
    Recording,
    /// There is no command that could make a context.
    NoCommand,
    /// No process has made one.
    NoContext,
    /// The process with the context ended before they were launched.
    Late,
    /// A GPU can't run them, or xputrace's own process made no context, as this says.
    Said(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NoGpu => "no GPU was found",
            Why::SoftwareGpu => "the command uses the software GPU",
            Why::Recording => "a recording has no GPU",
            Why::NoCommand => "there is no command (-- CMD) in whose context they could run",
            Why::NoContext => "no process of the command made a CUDA context in which they could run",
            Why::Late => "the process with the CUDA context ended before they could be launched there",
            Why::Said(what) => what,
        })
    }
}

impl Turn {
    /// Returns whose turn it is when a run begins that has a command or not.
    pub fn first(plan: &Plan, has_command: bool) -> Self {
        match Turn::with_a_command(plan) {
            Turn::Awaited if !has_command => Turn::Here(Why::NoCommand),
            turn => turn,
        }
    }

    /// Returns whose turn it is over a recording.
    pub fn of_recording(plan: &Plan) -> Self {
        if has_programs(plan) { Turn::Here(Why::Recording) } else { Turn::Over }
    }

    /// Returns whose turn it is where a command may make a context.
    pub fn with_a_command(plan: &Plan) -> Self {
        if !has_programs(plan) {
            return Turn::Over;
        }
        if !drivers::is_loaded() {
            return Turn::Here(Why::NoGpu);
        }
        match twins::refusal(plan) {
            Some(what) => Turn::Here(Why::Said(format!("a real GPU can't run {what}"))),
            None => Turn::Awaited,
        }
    }
}

fn has_programs(plan: &Plan) -> bool {
    plan.object.as_ref().is_some_and(|it| !it.launches.is_empty())
}

/// Says where they run; empty if there are none.
pub fn explain(plan: &Plan) -> String {
    let launches = plan.object.iter().flat_map(|it| &it.launches);
    let all: String = launches.map(|it| format!("  {}\n", launch(it, plan))).collect();
    if all.is_empty() { all } else { format!("programs of kprobe/__directly_run, once\n{all}{WHERE}") }
}

/// Where programs run that no kernel has.
const WHERE: &str = concat!(
    "  each in a kernel of its own on the GPU: in the first process of the command\n",
    "  that makes a CUDA context, or where there is nothing to trace in a process of\n",
    "  xputrace's; with -p or -a, without a command but with programs in Linux, and\n",
    "  where there is no GPU, in xputrace's engine\n",
);

/// What went wrong, and how many have not run to their end, as far as that is known.
#[derive(Debug, PartialEq, Eq)]
pub struct ProgramsFailure {
    pub what: String,
    pub n_unfinished: u64,
}

/// Says what went wrong; `None` if all have run to their end.
pub fn failure(object: &Object, plan: &Plan, outcome: ProgramsOutcome) -> Option<ProgramsFailure> {
    let ProgramsOutcome { state, launched, failure, .. } = outcome;
    let all = object.launches.len() as u64;
    let of_all = |what: String| Some(ProgramsFailure { what, n_unfinished: all });
    match state {
        ProgramsState::Done => None,
        ProgramsState::NotLoaded => of_all(format!(
            "loading the programs of kprobe/__directly_run as kernels failed: CUDA answered error {failure}"
        )),
        ProgramsState::NotLaunched => {
            let refused = object.launches.get(launched as usize).map(|it| launch(it, plan)).unwrap_or_default();
            let what = format!("launching the program {refused} as a kernel failed: CUDA answered error {failure}");
            Some(ProgramsFailure { what, n_unfinished: all.saturating_sub(launched) })
        }
        ProgramsState::Failed => of_all(format!(
            "a kernel failed while programs of kprobe/__directly_run ran on the GPU: CUDA answered error {failure}"
        )),
        ProgramsState::CutOff | ProgramsState::Running | ProgramsState::Waiting => of_all(
            "programs of kprobe/__directly_run ran on the GPU, and had not ended when their process or the run did"
                .into(),
        ),
    }
}

/// Names a launch as `--launch` does.
fn launch(DirectLaunch { program, shape, .. }: &DirectLaunch, plan: &Plan) -> String {
    let extents = |it: [u32; 3]| it.map(|it| it.to_string()).join(",");
    let (name, grid, block) = (&plan.image.programs[*program].name, extents(shape.grid), extents(shape.block));
    format!("`{name}` (--launch {name}={grid}:{block})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_bytecode::{Program, ProgramKind};
    use xputrace_model::object::LaunchShape;
    use xputrace_model::plan::ProbeId;

    fn plan() -> Plan {
        let mut plan = Plan::default();
        let launches = ["add", "gemm"].map(|name| {
            let (insns, map_refs, lines) = Default::default();
            let program = Program { name: name.into(), kind: ProgramKind::Syscall, insns, map_refs, lines };
            let shape = LaunchShape { grid: [4, 2, 1], block: [32, 1, 1] };
            DirectLaunch { probe: ProbeId(0), program: plan.image.add_program(program), shape }
        });
        plan.object = Some(std::sync::Arc::new(Object { launches: launches.to_vec(), ..Object::default() }));
        plan
    }

    #[test]
    fn what_failed_is_said_with_what_cuda_answered() {
        let plan = plan();
        let of = |state, launched, failure| {
            let outcome = ProgramsOutcome { state, launched, failure, slot: 0 };
            super::failure(plan.object.as_ref().unwrap(), &plan, outcome).map(|it| (it.n_unfinished, it.what))
        };
        assert_eq!(of(ProgramsState::Done, 2, 0), None);
        let said = of(ProgramsState::NotLaunched, 1, 701).unwrap();
        let expected =
            "launching the program `gemm` (--launch gemm=4,2,1:32,1,1) as a kernel failed: CUDA answered error 701";
        assert_eq!(said, (1, expected.to_owned()));
        let said = of(ProgramsState::NotLoaded, 0, 218).unwrap();
        assert!(said.0 == 2 && said.1.ends_with("CUDA answered error 218"), "{said:?}");
        let said = of(ProgramsState::Failed, 2, 700).unwrap();
        assert!(said.0 == 2 && said.1.ends_with("CUDA answered error 700"), "{said:?}");
        for state in [ProgramsState::CutOff, ProgramsState::Running] {
            assert_eq!(of(state, 2, 0).unwrap().0, 2);
        }
        // What a process writes is not trusted.
        assert_eq!(of(ProgramsState::NotLaunched, u64::MAX, 1).unwrap().0, 0);
    }
}
