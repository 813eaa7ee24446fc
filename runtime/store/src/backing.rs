//! What the store needs of an engine: maps of bytes.

use xputrace_model::plan::BpfMapId;

/// Called with the key and a value of each element; once per CPU if the map is per-CPU.
pub type OnValue<'f> = dyn FnMut(&[u8], &[u8]) + 'f;

/// An engine that keeps values of the script's maps: Linux, or the tracer's own. Errors are sentences.
pub trait Backing {
    /// Passes every value of every element to `f`. Concurrent changes may or may not be seen.
    fn for_each(&self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String>;
    /// Passes every value to `f`, and empties the map without losing concurrent updates.
    fn drain(&mut self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String>;
    /// Returns the first value of an element.
    fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>>;
    /// Creates or changes an element.
    fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8]) -> Result<(), UpdateRefusal>;
    /// Adds to an element's integer atomically; a missing element starts from 0.
    fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> Result<(), UpdateRefusal>;
    /// Removes an element if it exists.
    fn delete(&mut self, map: BpfMapId, key: &[u8]) -> Result<(), String>;
    /// Removes all elements; the entries of an array become zero.
    fn clear(&mut self, map: BpfMapId) -> Result<(), String>;
}

/// Why an update was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpdateRefusal {
    /// The map is full.
    Full,
    /// A sentence.
    Other(String),
}
