//! Net lines: those with code on them.

use crate::modules::File;
use crate::shipped;
use quote::ToTokens;
use std::collections::BTreeSet;

/// Counts a file's lines with a token on them that isn't documentation. Of a text over several lines, each counts.
pub fn net_lines(file: &File) -> usize {
    let mut lines = BTreeSet::new();
    shipped::each_token(file.syntax.to_token_stream(), &mut |_, span| {
        // Line 0 is that of tokens that were written nowhere.
        lines.extend((span.start().line..=span.end().line).filter(|line| *line > 0));
    });
    lines.len()
}
