//! Programs that run in kernels of their own, once, in a context of the program's: what the tracer has of a compiled object.
//!
//! ```text
//! a context is created ─▶ worker: block ─▶ tracer ─▶ worker: loads the kernels, launches them in a stream of ours
//! with each copy of the blocks ─▶ worker: have they ended?
//! ```
//! They may take long to compile. Where their context ends meanwhile, they run in the next one; where there is none, the tracer
//! is told nothing, and runs them itself.
//!
//! Nobody waits for them but the end of the context and of the program, for a while, and who asks for it
//! ([`Agent::wait_for_programs`]).

use super::code::{DriverResult, GONE, GridShape, INVALID};
use super::lease::Lease;
use super::own::{Ending, Launched, Phase};
use super::state::Twins;
use crate::cupti::functions::Handle;
use crate::cupti::run::{CuptiBackend, Run};
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};
use xputrace_agent::{Agent, Context};
use xputrace_wire::device::{ImageOutcome, MOST_CONTEXTS, ProgramLaunch, Programs, ProgramsState};
use xputrace_wire::record::UNKNOWN;

/// How long the end of their context, or of the run, waits for them: less than for the last copy, which comes behind it.
const ENDS_WITHIN: Duration = Duration::from_millis(1500);
/// How often it is looked whether they have ended, where somebody waits.
const LOOKS_EVERY: Duration = Duration::from_millis(1);

/// How often contexts are tried that could not be prepared: they may just be created.
const MOST_ATTEMPTS: u32 = 50;

impl Run {
    /// Has programs run in a context that the program has just created, if the tracer has any.
    #[cold]
    pub(super) fn offer_context(&self, twins: &'static Twins, handle: Handle) {
        let (backend, agent) = (self.backend, self.agent);
        let id = backend.id_of_context(handle).filter(|_| agent.has_programs());
        if twins.slot_of(id.map(|id| Context { id, handle })).is_some() {
            agent.work_later(move || _ = twins.poll_programs(backend, agent));
        }
    }
}

impl Twins {
    /// Prepares a context for programs, and uses it, by its slot. The first will do. Returns whether none is left to be tried.
    fn with_context(&self, backend: &CuptiBackend, agent: &Agent, use_it: impl FnOnce(usize)) -> bool {
        let mut slots = (0..MOST_CONTEXTS).filter(|it| self.may_be_prepared(*it)).peekable();
        if slots.peek().is_none() {
            return true;
        }
        let prepare = |it: &usize| {
            self.prepare(backend, agent, *it, self.newest.load(Ordering::Acquire));
            self.has_block(*it)
        };
        match slots.find(prepare) {
            Some(slot) => {
                use_it(slot);
                false
            }
            None => self.programs.attempts.fetch_add(1, Ordering::Relaxed) >= MOST_ATTEMPTS,
        }
    }

    /// Whether there is a context in this slot, of a GPU that is recorded as far as is known.
    fn may_be_prepared(&self, slot: usize) -> bool {
        let state = self.contexts.state(slot);
        state.handle().is_some() && state.prepared.load(Ordering::Acquire) != u32::MAX
    }

    /// Tells the tracer that there is a context.
    fn ask_for_programs(&'static self, backend: &'static CuptiBackend, agent: &'static Agent) {
        *self.programs.phase() = Phase::Asked;
        agent.ask_for_programs(move |answer| self.take_programs(backend, agent, answer));
    }

    /// Runs what the tracer has sent, in the context that it was told of or, if that is gone, in another one.
    fn take_programs(&self, backend: &CuptiBackend, agent: &Agent, answer: Result<Programs, ImageOutcome>) {
        // The run may be over.
        if *self.programs.phase() != Phase::Asked {
            return;
        }
        let Ok(programs) = answer else { return *self.programs.phase() = Phase::Over };
        let programs = Arc::new(programs);
        *self.programs.phase() = Phase::Sent(Arc::clone(&programs));
        self.with_context(backend, agent, |slot| self.run_programs(backend, agent, slot, &programs));
    }

    /// Runs programs in a context. If it is gone before one was launched, they stay for another one.
    fn run_programs(&self, backend: &CuptiBackend, agent: &Agent, slot: usize, programs: &Programs) {
        match self.launch_programs(backend, agent, slot, programs) {
            Ok(launched) => {
                agent.tell_of_programs(ProgramsState::Running, 0);
                *self.programs.phase() = Phase::Running(launched);
            }
            Err(GONE) => {}
            Err(failure) => self.end_programs(agent, Ending { state: ProgramsState::NotLoaded, failure }),
        }
    }

    /// Launches programs one after another, up to one that CUDA refuses.
    ///
    /// # Errors
    /// Their code was not loaded, or the context is gone and none was launched.
    fn launch_programs(
        &self,
        backend: &CuptiBackend,
        agent: &Agent,
        slot: usize,
        programs: &Programs,
    ) -> DriverResult<Launched> {
        let lease = Lease::new(self).in_context(slot);
        let load = || self.load_programs(backend, lease, slot, programs);
        let (stream, functions) = lease.run(backend, load)?;
        let mut n_launched = 0;
        let launch = || {
            for (ProgramLaunch { grid, block, .. }, function) in programs.launches.iter().zip(functions) {
                let shape = GridShape { grid: *grid, block: *block };
                lease.call(|| {
                    // SAFETY: our own kernel, which has no parameters, and stream; in the context.
                    unsafe { backend.driver.code.launch(function, shape, &mut [], stream) }?;
                    // The context may be about to end: it was launched all the same.
                    agent.count_program(slot);
                    n_launched += 1;
                    Ok(())
                })?;
            }
            Ok(())
        };
        let ending = match lease.run(backend, launch) {
            Ok(()) => Ending::DONE,
            Err(GONE) if n_launched == 0 => return Err(GONE),
            Err(failure) => Ending::of(ProgramsState::NotLaunched, failure),
        };
        Ok(Launched { slot, stream, ending })
    }

    /// Loads the kernels of programs into the current context; returns their stream, and their functions in order.
    fn load_programs(
        &self,
        backend: &CuptiBackend,
        lease: Lease<'_>,
        slot: usize,
        programs: &Programs,
    ) -> DriverResult<(Handle, Vec<u64>)> {
        let code = &backend.driver.code;
        // PTX ends with a 0; behind a cubin it does no harm.
        let text = [&programs.code[..], &[0]].concat();
        // SAFETY: the code lives during the call; a library of ours, here and below.
        let library = lease.call(|| unsafe { code.load(&text) })?;
        self.switch_on(backend, lease, slot, library)?;
        let function = |it: &ProgramLaunch| {
            let name = CString::new(it.symbol.as_str()).map_err(|_| INVALID)?;
            // SAFETY: as above.
            let kernel = lease.call(|| unsafe { code.kernel(library, &name) })?;
            // SAFETY: as above, in the context.
            lease.call(|| unsafe { code.function(kernel) })
        };
        let functions = programs.launches.iter().map(function).collect::<DriverResult<Vec<u64>>>()?;
        // SAFETY: in the context.
        let (stream, id) = self.stream_with_id(backend, slot, lease, || unsafe { code.stream() })?;
        // Without its id, what runs there would be taken for the program's.
        if id == UNKNOWN {
            return Err(INVALID);
        }
        self.contexts.state(slot).programs_stream_id.store(id, Ordering::Release);
        Ok((stream, functions))
    }

    /// Does what can be done for programs at this moment; returns whether there is nothing more to wait for.
    pub(in super::super) fn poll_programs(
        &'static self,
        backend: &'static CuptiBackend,
        agent: &'static Agent,
    ) -> bool {
        let phase = self.programs.phase().clone();
        match phase {
            Phase::Unasked if !agent.has_programs() => true,
            Phase::Unasked => self.with_context(backend, agent, |_| self.ask_for_programs(backend, agent)),
            Phase::Asked => false,
            Phase::Sent(programs) => {
                self.with_context(backend, agent, |slot| self.run_programs(backend, agent, slot, &programs))
            }
            Phase::Running(launched) => self.have_ended(backend, agent, launched),
            Phase::Over => true,
        }
    }

    /// Looks whether programs have ended that were launched.
    fn have_ended(&self, backend: &CuptiBackend, agent: &Agent, launched: Launched) -> bool {
        let Launched { slot, stream, ending } = launched;
        let lease = Lease::new(self).in_context(slot);
        // SAFETY: our own stream, in its context.
        let has_ended = lease.run(backend, || lease.call(|| unsafe { backend.driver.code.is_done(stream) }));
        let ending = match has_ended {
            Ok(false) => return false,
            Ok(true) => ending,
            Err(failure) => Ending::of(ProgramsState::Failed, failure),
        };
        self.end_programs(agent, ending);
        true
    }

    /// Waits for a while until programs have ended whose context is about to, by its slot.
    pub(super) fn finish_programs(&self, backend: &CuptiBackend, agent: &Agent, ends: impl Fn(usize) -> bool) {
        let until = Instant::now() + ENDS_WITHIN;
        let running = || match *self.programs.phase() {
            Phase::Running(launched) if ends(launched.slot) => Some(launched),
            _ => None,
        };
        while let Some(launched) = running() {
            if self.have_ended(backend, agent, launched) {
                return;
            }
            if Instant::now() >= until {
                return self.end_programs(agent, Ending::CUT_OFF);
            }
            sleep(LOOKS_EVERY);
        }
    }

    /// Stops launching programs, and waits for a while for those that run.
    pub(super) fn leave_programs(&self, backend: &CuptiBackend, agent: &Agent) {
        self.finish_programs(backend, agent, |_| true);
        *self.programs.phase() = Phase::Over;
    }

    fn end_programs(&self, agent: &Agent, Ending { state, failure }: Ending) {
        agent.tell_of_programs(state, failure);
        *self.programs.phase() = Phase::Over;
    }
}
