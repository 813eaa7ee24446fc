//! What the agent needs from a GPU vendor's tracing library. Another vendor is another
//! implementation of [`Backend`]; nothing in the agent changes.
//!
//! ```text
//! agent   ── start, flush, stop, leave ──▶ backend          (slow paths: dynamic calls)
//! backend ── launch::enter / exit, deliver ──▶ agent        (launch path: direct calls)
//! ```

use super::Agent;
use super::device::ImageCode;
use super::library::Library;
use super::state::switching::Order;
use xputrace_wire::device::{ComputeCapabilities, CopyExtent, ImageOutcome};
use xputrace_wire::stored::ReadableMemory;

/// Why arming failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArmRefusal {
    /// The library's result code, 0 if the library was not the cause.
    pub result: u32,
    pub text: String,
}

impl From<String> for ArmRefusal {
    fn from(text: String) -> Self {
        ArmRefusal { result: 0, text }
    }
}

/// Why a flush happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushing {
    Regular,
    /// The run is over, the program continues.
    Leaving,
    /// Another tool gets the records.
    HandingOver,
    /// The program is exiting.
    AtExit,
}

/// A vendor's tracing library, as it records for an agent.
pub trait Backend: Library {
    /// Prepares to record what the agent's demand says, and watches what launches depend on. Called
    /// once; the agent is already recording.
    ///
    /// # Errors
    /// The library refused something. [`Backend::abandon`] is called then.
    fn start(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal>;

    /// Records, from now on, what `to` has; until now it has recorded what `from` has. Nothing is recorded after
    /// [`Backend::start`]. What `to` has in addition is recorded when this returns; of what it lacks, what is still
    /// running is delivered when it has finished. Where nothing is recorded, launches cost as little as possible. Called
    /// on any thread that is not in a launch, also in a callback about another call; by one thread at a time.
    ///
    /// # Errors
    /// The library refused something that `to` has and `from` lacks. Recording then ends for good.
    fn switch(&'static self, agent: &'static Agent, from: &Order, to: &Order) -> Result<(), ArmRefusal>;

    /// Undoes what [`Backend::start`] did, as far as it got.
    fn abandon(&self, agent: &'static Agent);

    /// Delivers everything that has finished, on an ordinary thread without locks; returns whether
    /// all of it was delivered.
    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool;

    /// Does what cannot be done where another tool calls the library. Called by the control thread with each
    /// flush, and after [`Agent::wake`].
    fn tend(&'static self, _agent: &'static Agent) {}

    /// Stops recording activities; launches are still recorded.
    fn stop_activities(&self, agent: &'static Agent);

    /// Releases the library while the program continues, after the last flush; returns what stays
    /// behind, for the user.
    fn leave(&'static self, agent: &'static Agent) -> Option<&'static str>;

    /// Returns what makes handlers run inside kernels, where the vendor has that.
    fn kernel_code(&'static self) -> Option<&'static dyn KernelCode> {
        None
    }

    /// Frees its memory. No callback of this run is running, or will run.
    fn give_back(&self) {}
}

/// Code of ours in the program's kernels, where a vendor's library allows it.
pub trait KernelCode: std::fmt::Debug + Send + Sync {
    /// Finds the code in an image that the program has loaded from this address. Called by the courier.
    ///
    /// # Errors
    /// Why none can be sent.
    fn code_in(&self, image: u64, memory: &mut dyn ReadableMemory) -> Result<ImageCode, ImageOutcome>;

    /// Runs originals from now on.
    fn stop_twins(&self) {}

    /// Stops using the program's handles for twins.
    fn close_twins(&self) {}

    /// Returns what the process's GPUs are.
    fn compute_capabilities(&self) -> ComputeCapabilities;

    /// Copies so much of the blocks of all contexts into the device region. Called by the worker.
    fn copy_blocks(&'static self, agent: &'static Agent, extent: CopyExtent);

    /// Copies them for the last time; `disables` says that twins do nothing from then on. Called by the worker.
    fn leave_blocks(&'static self, agent: &'static Agent, disables: bool);

    /// Advances the tracer's programs that are pending; returns true when none is left. Called by the worker.
    fn poll_programs(&'static self, _agent: &'static Agent) -> bool {
        true
    }
}
