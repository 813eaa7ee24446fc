//! In which context a launch runs: that of its stream, or of its node, which need not be the calling thread's.

use super::Twins;
use super::calls::Kernel;
use super::choosing::AskLaunch;
use crate::cupti::functions::{Handle, STREAM_PER_THREAD};
use crate::cupti::run::Run;
use std::cell::Cell;
use std::ptr::{null, null_mut};
use xputrace_agent::untraced;
use xputrace_agent::{Agent, Context, Library, launch};

const SLOTS: usize = 16;

/// The context that a stream was created in.
#[derive(Clone, Copy)]
struct StreamContext {
    /// [`Agent::stream_epoch`] at that time: a handle may be another stream's after it.
    epoch: u64,
    /// The run that it is known in, never freed.
    agent: *const Agent,
    stream: u64,
    context: Context,
}

const NOTHING: StreamContext =
    StreamContext { epoch: 0, agent: null(), stream: 0, context: Context { id: 0, handle: null_mut() } };

thread_local! {
    static KNOWN: [Cell<StreamContext>; SLOTS] = const { [const { Cell::new(NOTHING) }; SLOTS] };
}

impl Run {
    /// Returns the context in which a launch runs that is made while another may be current; `None` if it is not known.
    #[inline]
    pub(super) fn context_of(&self, twins: &Twins, current: Option<Context>, kernel: &Kernel) -> Option<Context> {
        match (kernel.context, kernel.stream.map_or(0, |it| it.handle as u64)) {
            (0, 0..=PER_THREAD) => current,
            (0, stream) => self.context_of_stream(twins, current, stream),
            (handle, _) => self.context_by_handle(twins, current, handle as Handle),
        }
    }

    fn context_of_stream(&self, twins: &Twins, current: Option<Context>, stream: u64) -> Option<Context> {
        let (epoch, agent) = (self.agent.stream_epoch(), std::ptr::from_ref(self.agent));
        let slot = (stream >> 4 ^ stream) as usize % SLOTS;
        let known = KNOWN.with(|it| it[slot].get());
        if epoch != 0 && (known.epoch, known.agent, known.stream) == (epoch, agent, stream) {
            return Some(known.context);
        }
        // SAFETY: the stream of the launch that is being made.
        let handle = untraced(|| unsafe { self.backend.driver.code.context_of_stream(stream as Handle) }).ok()?;
        let context = self.context_by_handle(twins, current, handle)?;
        KNOWN.with(|it| it[slot].set(StreamContext { epoch, agent, stream, context }));
        Some(context)
    }

    fn context_by_handle(&self, twins: &Twins, current: Option<Context>, handle: Handle) -> Option<Context> {
        if let Some(it) = current.filter(|it| it.handle == handle) {
            return Some(it);
        }
        let id = match twins.contexts.find_handle(handle) {
            Some(slot) => twins.contexts.id(slot),
            None => self.backend.id_of_context(handle)?,
        };
        Some(Context { id, handle })
    }
}

/// A launch, as conditions ask for it.
pub(super) struct Launching<'a> {
    pub(super) run: &'a Run,
    pub(super) kernel: &'a Kernel,
    pub(super) context: Option<Context>,
}

impl AskLaunch for Launching<'_> {
    fn tag(&self) -> Option<i64> {
        launch::tag()
    }

    fn stream(&self) -> Option<u32> {
        untraced(|| self.run.backend.stream_of(self.context?, self.kernel.stream?))
    }
}

/// Special streams, which are of the current context, come up to here.
const PER_THREAD: u64 = STREAM_PER_THREAD as u64;
