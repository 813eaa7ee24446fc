//! What a script prints: texts whose stacks are named here.

use xputrace_model::output::{Piece, StackNames};
use xputrace_model::stack::{Frame, StackKey};
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
    match names.frames(stack) {
        None => "-".into(),
        Some(frames) if frames.is_empty() => "-".into(),
        Some(frames) => frames.iter().map(line).collect::<Vec<_>>().join("\n"),
    }
}

fn line(frame: &Frame) -> String {
    match frame.module.as_str() {
        "" | Frame::PYTHON => format!("    {}", frame.function),
        module => format!("    {} ({module})", frame.function),
    }
}
