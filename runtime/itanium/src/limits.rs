//! What reading and printing a symbol may cost. Beyond any of these there is no name.

/// Bytes of a symbol. Longer ones have no name.
pub const LONGEST_SYMBOL: usize = 16 << 10;
/// How deep types, expressions and functions may be in each other in a symbol.
pub const DEEPEST: usize = 128;
/// Bytes of a name, with what is written on the way and taken back. Symbols of longer ones have none.
pub const LONGEST_NAME: usize = 64 << 10;
/// Nodes that are visited for one name.
pub const MOST_STEPS: usize = 1 << 17;
/// How deep nodes may be in each other in a name, with substitutions in place.
pub const DEEPEST_PRINTED: usize = 512;
