//! Where goes what handlers ask for.

use xputrace_model::output::Output;
use xputrace_model::plan::MapAction;
use xputrace_model::table::TableId;

/// Receives what handlers print, and what they want done with the run.
pub trait Outputs {
    /// Prints a handler's output.
    fn output(&mut self, output: Output);
    /// A compiled handler wants something done with a whole map, after what it has printed.
    fn map(&mut self, map: TableId, action: MapAction);
    /// A handler called `exit(code)`.
    fn exit(&mut self, code: i64);
    /// Whether the run is over: no further event is handled.
    fn is_over(&self) -> bool {
        false
    }
}
