//! What a script prints: texts whose stacks are named here.

use crate::rows::named;
use xputrace_model::output::{Piece, StackNames};
use xputrace_model::stack::StackKey;
use xputrace_model::text::Shown;

/// Formats a printed text, with its stacks as lines.
pub fn printed(pieces: &[Piece], names: &mut dyn StackNames) -> String {
    let text = |it: &Piece| match it {
        Piece::Text(text) => Shown { text, one_line: false, distinct: false }.to_string(),
        Piece::Stack(stack) => stack_lines(*stack, names),
    };
    pieces.iter().map(text).collect()
}

/// Returns a stack as indented lines, innermost first, or `-` if it was lost.
pub fn stack_lines(stack: StackKey, names: &mut dyn StackNames) -> String {
    if names.frames(stack).is_none_or(|it| it.is_empty()) {
        return "-".into();
    }
    let lines = named(stack, names).shortened(names).0;
    lines.iter().map(|it| format!("    {}", it.text())).collect::<Vec<_>>().join("\n")
}
