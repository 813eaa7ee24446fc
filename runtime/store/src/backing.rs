//! What an engine offers to the store: maps of bytes.

/// Called with the key and a value of each element; with each CPU's value where a map has one per CPU.
pub type OnValue<'f> = dyn FnMut(&[u8], &[u8]) + 'f;

/// An engine that keeps values of the script's maps: Linux, or the tracer's own.
///
/// `map` is an index into [`Image::maps`](xputrace_model::plan::Image::maps). Errors are sentences.
pub trait Backing {
    /// Hands out every value of every element. What changes meanwhile may or may not be seen.
    fn for_each(&self, map: usize, f: &mut OnValue<'_>) -> Result<(), String>;
    /// Hands out every value and leaves the map empty. No update is lost in between.
    fn drain(&mut self, map: usize, f: &mut OnValue<'_>) -> Result<(), String>;
    /// The first value of an element.
    fn lookup(&self, map: usize, key: &[u8]) -> Option<Vec<u8>>;
    /// Creates or changes an element.
    fn update(&mut self, map: usize, key: &[u8], value: &[u8]) -> Result<(), Refusal>;
    /// Adds to the integer of an element, which begins with 0, in one step.
    fn add(&mut self, map: usize, key: &[u8], delta: i64) -> Result<(), Refusal>;
    /// Removes an element, if it is there.
    fn delete(&mut self, map: usize, key: &[u8]) -> Result<(), String>;
    /// Removes all elements; the entries of an array become zero.
    fn clear(&mut self, map: usize) -> Result<(), String>;
}

/// Why an update was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The map holds as many elements as it can.
    Full,
    /// A sentence.
    Other(String),
}
