//! A recording that a plan runs over, step by step.

use crate::linux_handlers::LinuxHandlers;
use crate::tape::{Cause, Tape, What, launch_at, set_tag};
use xputrace_model::loss::{Loss, Losses};
use xputrace_pipeline::{HandlerState, Pipeline, ProcessIndex, ProcessInfo, Sink};
use xputrace_recording::{Damage, Hit, RecordingEntry};
use xputrace_wire::totals::CollectorTotals;

/// Who uses the results of a replay.
pub trait ReplaySink: Sink {
    /// Hears of a hit of a CPU probe, before the programs that run over it.
    fn hit(&mut self, _hit: &Hit, _state: &mut HandlerState) {}
}

/// What a replay returns besides the handled events.
#[derive(Default)]
pub struct ReplayOutcome {
    /// Processes that used CUDA.
    pub processes: u64,
    /// The collectors' own totals.
    pub totals: Vec<CollectorTotals>,
    /// From the start of the recording to its last event.
    pub span_nanos: u64,
    /// What CPU probes lost during the recording, except stacks (handlers count the stacks that they use), and what of it
    /// is unreadable.
    pub losses: Losses,
    /// The unreadable parts of the recording.
    pub damage: Option<Damage>,
}

/// A recording that a plan runs over.
pub struct Playing {
    tape: Tape,
    /// How many of its entries have been handled.
    at: usize,
    /// What is left of [`Tape::causes`].
    causes: Vec<Cause>,
    handlers: LinuxHandlers,
    clock: Clock,
    totals: Vec<CollectorTotals>,
    /// The start of the recording.
    began: u64,
}

/// The time of the recording, in CLOCK_MONOTONIC nanoseconds.
#[derive(Default)]
struct Clock {
    now: u64,
    /// Of the last two drains.
    drains: [u64; 2],
}

impl Playing {
    /// Begins at the start of the recording, which is at `began` on CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) fn new(tape: Tape, handlers: LinuxHandlers, began: u64) -> Self {
        let causes = tape.causes(handlers.has_no_marker());
        Playing { tape, at: 0, causes, handlers, clock: Clock::default(), totals: Vec::new(), began }
    }

    /// Handles the next drain of a process, and what CPU probes saw before. Returns false once nothing is left.
    pub fn step(&mut self, pipeline: &mut Pipeline, sink: &mut dyn ReplaySink) -> bool {
        if self.at >= self.tape.entries.len() || sink.is_over() {
            return false;
        }
        let until = self.tape.time_of(self.at);
        self.run_causes(until, pipeline, sink);
        let Playing { tape, at, .. } = self;
        let entry = std::mem::replace(&mut tape.entries[*at], RecordingEntry::Symbols(Vec::new()));
        self.at += 1;
        self.replay(pipeline).0.on_entry(&entry, sink);
        true
    }

    /// Handles what is left, and returns what the caller reports.
    pub fn finish(mut self, pipeline: &mut Pipeline, sink: &mut dyn ReplaySink) -> ReplayOutcome {
        self.run_causes(u64::MAX, pipeline, sink);
        pipeline.finish(sink);
        let Playing { mut tape, clock, totals, began, .. } = self;
        if let Some(damage) = &tape.damage {
            tape.losses.add(Loss::RecordingDamaged, u64::from(damage.blocks).max(1));
        }
        ReplayOutcome {
            span_nanos: clock.now.saturating_sub(began),
            totals,
            losses: tape.losses,
            damage: tape.damage,
            processes: tape.pids.len() as u64,
        }
    }

    fn run_causes(&mut self, until: u64, pipeline: &mut Pipeline, sink: &mut dyn ReplaySink) {
        while let Some(cause) = self.causes.pop_if(|it| it.time <= until && !sink.is_over()) {
            let (mut replay, tape) = self.replay(pipeline);
            replay.run(&cause, tape, sink);
        }
    }

    fn replay<'a>(&'a mut self, pipeline: &'a mut Pipeline) -> (Replay<'a>, &'a mut Tape) {
        let Playing { tape, handlers, clock, totals, .. } = self;
        (Replay { handlers, pipeline, clock, totals }, tape)
    }
}

struct Replay<'a> {
    handlers: &'a LinuxHandlers,
    pipeline: &'a mut Pipeline,
    clock: &'a mut Clock,
    totals: &'a mut Vec<CollectorTotals>,
}

impl Replay<'_> {
    fn run(&mut self, cause: &Cause, tape: &mut Tape, sink: &mut dyn ReplaySink) {
        self.advance(cause.time);
        let state = self.pipeline.state_mut();
        if !state.switches_mut().drain_turned().is_empty() {
            state.tell_linux_programs();
        }
        match cause.what {
            What::Hit(at) => {
                sink.hit(&tape.hits[at], state);
                self.handlers.run_hit(&tape.hits[at], state, sink);
            }
            What::Launch { entry, ring, offset } => {
                let RecordingEntry::Wire { process, rings, .. } = &tape.entries[entry] else { return };
                let (process, Some(launch)) = (*process, launch_at(&rings[ring], offset)) else { return };
                let tag = self.handlers.run_marker((process, &launch), tape, state, sink);
                if let (Some(_), RecordingEntry::Wire { rings, .. }) = (tag, &mut tape.entries[entry]) {
                    set_tag(&mut rings[ring], offset, tag);
                }
            }
        }
    }

    fn on_entry(&mut self, entry: &RecordingEntry, sink: &mut dyn ReplaySink) {
        match entry {
            RecordingEntry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos, gpu } => {
                self.fill_up_to(*process);
                self.pipeline.add_process(ProcessInfo {
                    is_attached: false,
                    pid: *pid,
                    pid_in_target: *pid_in_target,
                    comm: comm.clone(),
                    generation: *generation,
                    gpu: *gpu,
                });
                self.advance(*time_nanos);
            }
            RecordingEntry::Wire { process, time_nanos, rings } => {
                self.fill_up_to(process.saturating_add(1));
                self.drain_at(*time_nanos);
                self.pipeline.feed(ProcessIndex(*process), rings, sink);
                self.advance(*time_nanos);
            }
            RecordingEntry::ProcessEnd { process, time_nanos, totals } => {
                self.pipeline.end_process(ProcessIndex(*process), **totals, sink);
                self.totals.push(**totals);
                self.advance(*time_nanos);
            }
            RecordingEntry::Hit(_) | RecordingEntry::Symbols(_) | RecordingEntry::Losses(_) => {}
        }
    }

    /// Adds processes whose start was lost with a damaged block, so that later ones keep their
    /// numbers.
    fn fill_up_to(&mut self, n: u32) {
        while self.pipeline.n_processes() < (n as usize).min(MOST_PROCESSES) {
            self.pipeline.add_process(ProcessInfo { comm: "?".into(), ..ProcessInfo::default() });
        }
    }

    fn advance(&mut self, time: u64) {
        self.clock.now = self.clock.now.max(time);
    }

    /// Says what a run says before it reads the rings: host events that ended before the drain before the last have
    /// been handled.
    fn drain_at(&mut self, time: u64) {
        let state = self.pipeline.state_mut();
        if !state.switches().is_empty() {
            state.set_time(time, self.clock.drains[0]);
        }
        self.clock.drains = [self.clock.drains[1], time];
    }
}

/// Maximum number of such processes: a higher number is damage, and each costs some KiB.
const MOST_PROCESSES: usize = 1 << 12;
