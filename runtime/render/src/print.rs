//! What a script prints: texts whose stacks are named here.

use crate::human::human;
use crate::rows::named;
use xputrace_model::output::{Member, Piece, StackNames};
use xputrace_model::stack::StackKey;
use xputrace_model::table::Value;
use xputrace_model::text::{self, Shown};

/// Formats a printed text for people, with its stacks as lines. What a program may have written into it can neither
/// control the terminal nor, where it is known to be the program's, begin a line.
pub fn printed(pieces: &[Piece], names: &mut dyn StackNames) -> String {
    let text = |it: &Piece| match it {
        Piece::Text(text) => text::printed(&whole(text)).into_owned(),
        Piece::Value(text) => Shown { text, one_line: true, distinct: false }.to_string(),
        Piece::Stack(stack) => stack_lines(*stack, names),
    };
    pieces.iter().map(text).collect()
}

/// Formats a printed text for programs, with all that is in it.
pub(crate) fn unescaped(pieces: &[Piece], names: &mut dyn StackNames) -> String {
    let text = |it: &Piece| match it {
        Piece::Text(text) | Piece::Value(text) => whole(text),
        Piece::Stack(stack) => stack_lines(*stack, names),
    };
    pieces.iter().map(text).collect()
}

fn whole(text: &str) -> String {
    Shown { text, one_line: false, distinct: false }.to_string()
}

/// Formats a printed `#{…}` on one line, `a: 3, took: 3.10 ms`, with its stacks below.
pub fn object(members: &[Member], names: &mut dyn StackNames) -> String {
    let (mut line, mut below) = (Vec::new(), String::new());
    for Member { name, value, unit } in members {
        match value {
            Value::Missing => line.push(format!("{name}: -")),
            Value::Bool(on) => line.push(format!("{name}: {on}")),
            Value::Int(n) => line.push(format!("{name}: {}", human(*n, *unit))),
            Value::Str(text) => line.push(format!("{name}: {}", Shown { text, one_line: true, distinct: true })),
            Value::Stack(stack) => below += &format!("\n{name}:\n{}", stack_lines(*stack, names)),
        }
    }
    line.join(", ") + &below
}

/// Returns a stack as indented lines, innermost first, or `-` if it was lost.
pub fn stack_lines(stack: StackKey, names: &mut dyn StackNames) -> String {
    if names.frames(stack).is_none_or(|it| it.is_empty()) {
        return "-".into();
    }
    let lines = named(stack, names).shortened(names).0;
    lines.iter().map(|it| format!("    {}", it.text())).collect::<Vec<_>>().join("\n")
}
