//! What is the same for all targets.

pub(crate) mod child;
mod coverage;
pub(crate) mod memory;
mod minimise;
mod mutate;
pub(crate) mod parent;
mod shared;

/// Something that reads what others write.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Reads an input. It panics where the answer is wrong, too.
    pub(crate) read: fn(&[u8]),
    /// Real inputs.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// What the format has between other bytes.
    pub(crate) words: &'static [&'static str],
    pub(crate) bound: Bound,
}

/// How much memory an input may take at a time.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) bytes: usize,
    /// For each byte of the input, besides.
    pub(crate) per_byte: usize,
}

impl Bound {
    fn of(self, input: &[u8]) -> usize {
        self.bytes + self.per_byte * input.len()
    }
}

/// Inputs are cut to this size: most damage that larger ones can do, several small ones can do faster.
pub(crate) const MOST_INPUT_BYTES: usize = 1 << 18;
