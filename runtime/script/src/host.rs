//! What interpreted handlers see of a run: its maps, output and counters.

use std::sync::Arc;
use xputrace_model::context::GpuContext;
use xputrace_model::output::Output;
use xputrace_model::schema::{Event, Unit};
use xputrace_model::table::{Table, TableKind, Value};

/// The run, as interpreted handlers use it. Maps are named as the user writes them, with `@`.
///
/// The interpreter keeps no values of its own: it reads and changes everything through this trait.
pub trait Host {
    /// Returns a consistent snapshot of a map, or `None` if the script never fills it.
    fn table(&mut self, name: &str) -> Option<Arc<Table>>;
    /// Returns a plain value, or [`Value::Missing`] if there is no such element.
    fn get(&mut self, name: &str, key: &[Value]) -> Value;
    /// Whether the element exists.
    fn contains(&mut self, name: &str, key: &[Value]) -> bool;
    /// Stores a plain value; storing [`Value::Missing`] removes the element. Errors are sentences.
    fn set(&mut self, name: &str, key: &[Value], value: Value) -> Result<(), String>;
    /// Adds to a plain integer, from 0 if there is no such element. Wraps.
    fn add(&mut self, name: &str, key: &[Value], delta: i64) -> Result<(), String>;
    /// Adds one value to an aggregation; `value` is 1 for [`TableKind::Count`].
    fn update(&mut self, name: &str, key: &[Value], kind: TableKind, value: i64) -> Result<(), String>;
    /// Removes an element if it exists.
    fn remove(&mut self, name: &str, key: &[Value]);
    /// Removes all elements of the last snapshot.
    fn clear(&mut self, name: &str);
    /// Prints one output.
    fn output(&mut self, out: Output);
    /// Formats a value: names stacks and, if `human`, adds units.
    fn text(&mut self, value: &Value, unit: Unit, human: bool) -> String;
    /// Shortens names of kernels, and cuts texts to the output's width less `beside` columns; different texts stay different.
    fn fit(&mut self, texts: &[String], beside: usize) -> Vec<String>;
    /// Draws the map `name`, whose first key is a stack, to `path`. Errors are sentences.
    fn flamegraph(&mut self, path: &str, name: &str) -> Result<(), String>;
    /// Returns a number about the run; `None` if it isn't known.
    fn number(&mut self, number: RunNumber) -> Option<Value>;
    /// Switches the `declared`-th probe of the script on or off.
    fn switch(&mut self, declared: u32, on: bool);
    /// Returns for how many nanoseconds the GPU with this UUID ran kernels; `None` if it ran none.
    fn busy_nanos_of(&mut self, uuid: &str) -> Option<i64>;
    /// Ends the run with this exit status.
    fn exit(&mut self, code: i64);
}

macro_rules! run_numbers {
    ($($number:ident $name:literal)*) => {
        /// A number about the run, which scripts read by a function without arguments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RunNumber {
            $($number,)*
        }

        impl RunNumber {
            pub const ALL: &[RunNumber] = &[$(RunNumber::$number),*];

            /// Returns the function's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(RunNumber::$number => $name,)*
                }
            }
        }
    };
}

run_numbers! {
    Launches "launches"
    Joined "joined"
    Failed "failed"
    Lost "lost"
    Kernels "kernels"
    Losses "losses"
    GpuBusyNanos "gpu_busy_ns"
    GpuBusyShare "gpu_busy_share"
    GpuTimeNanos "gpu_time_ns"
    CollectorCostNanos "collector_cost_ns"
    TracerCostNanos "tracer_cost_ns"
    StacksTaken "stacks_taken"
    KeptPrograms "kept_programs"
    OwnCostNanos "own_cost_ns"
    ElapsedNanos "elapsed_ns"
    OutputIsJson "output_is_json"
}

/// A GPU event, for `interpret(|k| …)`.
#[derive(Clone, Copy)]
pub struct EventView<'a> {
    /// The kind of event, which determines its fields.
    pub event: Event,
    /// Its words, as every engine sees them.
    pub words: &'a GpuContext,
    /// Looks up the text of an id in `words`.
    pub strings: &'a dyn Fn(u64) -> Option<Arc<str>>,
    /// Names of the parameters that an `api` handler reads, in the order of their words.
    pub arguments: &'a [String],
}
