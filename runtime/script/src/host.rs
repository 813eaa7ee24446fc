//! What interpreted handlers see of the run: its maps, its output, its counters.

use std::sync::Arc;
use xputrace_model::context::GpuContext;
use xputrace_model::output::Output;
use xputrace_model::schema::{Event, Unit};
use xputrace_model::table::{Table, TableKind, Value};

/// The run, as interpreted handlers use it. Maps are named as the user writes them, with `@`.
///
/// The interpreter keeps no values of its own: every read asks here, every change goes here.
pub trait Host {
    /// One consistent snapshot of a map; `None` where the script never fills it.
    fn table(&mut self, name: &str) -> Option<Arc<Table>>;
    /// A plain value; [`Value::Missing`] where the element is not there.
    fn get(&mut self, name: &str, key: &[Value]) -> Value;
    /// Whether the element is there.
    fn contains(&mut self, name: &str, key: &[Value]) -> bool;
    /// Stores a plain value; storing [`Value::Missing`] removes the element. The error is a sentence.
    fn set(&mut self, name: &str, key: &[Value], value: Value) -> Result<(), String>;
    /// Adds to a plain integer, from 0 where the element is not there. Wraps.
    fn add(&mut self, name: &str, key: &[Value], delta: i64) -> Result<(), String>;
    /// Feeds one value into an aggregation; `value` is 1 for [`TableKind::Count`].
    fn update(&mut self, name: &str, key: &[Value], kind: TableKind, value: i64) -> Result<(), String>;
    /// Removes one element; nothing happens where it is not there.
    fn remove(&mut self, name: &str, key: &[Value]);
    /// Removes all elements of the last snapshot.
    fn clear(&mut self, name: &str);
    /// One thing to print.
    fn output(&mut self, out: Output);
    /// A value as text: stacks get names, and with `human` numbers get their unit.
    fn text(&mut self, value: &Value, unit: Unit, human: bool) -> String;
    /// Texts cut to what the output's width leaves beside `beside` columns; different ones stay different.
    fn fit(&mut self, texts: &[String], beside: usize) -> Vec<String>;
    /// Draws the map `name`, whose first key is a stack, into `path`. The error is a sentence.
    fn flamegraph(&mut self, path: &str, name: &str) -> Result<(), String>;
    /// A number of the run itself, such as `launches` or `own_cost_ns`; `None` where unknown.
    fn builtin(&mut self, name: &str) -> Option<Value>;
    /// Ends the run with this exit status.
    fn exit(&mut self, code: i64);
}

/// A GPU event, for `interpret(|k| …)`.
#[derive(Clone, Copy)]
pub struct EventView<'a> {
    /// Which event it is; decides its fields.
    pub event: Event,
    /// Its words, as every engine sees them.
    pub words: &'a GpuContext,
    /// The run's string table: the text of an id in `words`.
    pub strings: &'a dyn Fn(u64) -> Option<Arc<str>>,
}
