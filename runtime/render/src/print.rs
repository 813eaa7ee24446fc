//! What a script prints: texts whose stacks are named here.

use crate::human;
use crate::rows::named;
use xputrace_model::output::{Member, Piece, StackNames};
use xputrace_model::stack::StackKey;
use xputrace_model::table::Value;
use xputrace_model::text::Shown;

/// Formats a printed text, with its stacks as lines.
pub fn printed(pieces: &[Piece], names: &mut dyn StackNames) -> String {
    let text = |it: &Piece| match it {
        Piece::Text(text) => Shown { text, one_line: false, distinct: false }.to_string(),
        Piece::Stack(stack) => stack_lines(*stack, names),
    };
    pieces.iter().map(text).collect()
}

/// Formats a printed `#{…}` on one line, `a: 3, took: 3.10 ms`; stacks follow below.
pub fn object(members: &[Member], names: &mut dyn StackNames) -> String {
    let one = |it: &Member| {
        let value = match &it.value {
            Value::Missing => "-".to_owned(),
            Value::Bool(on) => on.to_string(),
            Value::Int(n) => human(*n, it.unit),
            Value::Str(text) => Shown { text, one_line: true, distinct: true }.to_string(),
            Value::Stack(stack) => format!("\n{}", stack_lines(*stack, names)),
        };
        format!("{}: {value}", it.name)
    };
    members.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Returns a stack as indented lines, innermost first, or `-` if it was lost.
pub fn stack_lines(stack: StackKey, names: &mut dyn StackNames) -> String {
    if names.frames(stack).is_none_or(|it| it.is_empty()) {
        return "-".into();
    }
    let lines = named(stack, names).shortened(names).0;
    lines.iter().map(|it| format!("    {}", it.text())).collect::<Vec<_>>().join("\n")
}
