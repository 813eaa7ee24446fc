//! What is wrong with a text, and where.

/// A text that is not PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX, line {line}, column {column}: {what}")]
pub struct ParseError {
    /// From 1 on.
    pub line: usize,
    /// In bytes, from 1 on.
    pub column: usize,
    pub what: String,
}
