//! Who uses the pipeline's results.

use super::outputs::Outputs;
use super::state::HandlerState;
use xputrace_model::context::GpuContext;
use xputrace_model::plan::ProbeId;

/// Receives the pipeline's results and runs interpreted handlers.
pub trait Sink: Outputs {
    /// Runs an interpreted GPU handler over an event whose strings are ids of `state.names()`. It
    /// also gets activities without a known launch (word `JOINED` is 0); the implementation decides
    /// by what the handler reads, as compiled handlers do themselves.
    fn interpret(&mut self, probe: ProbeId, event: &GpuContext, state: &mut HandlerState);
}
