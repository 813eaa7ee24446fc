//! `xputrace definitions`: the functions of scripts as a definition file of Rhai, for editors.
//!
//! Source: "Definition files" in Rhai's book: `module static;` for functions that need no import, then their heads.

use crate::console;
use anyhow::Result;
use std::fmt::Write;
use std::process::ExitCode;
use xputrace_model::manual::{EVENTS, Entry};

/// An event whose name is a word of Rhai's: there it can't be a function.
const RESERVED: &str = "module";

/// The functions that declare no event: head and meaning.
const FUNCTIONS: &[(&str, &str)] = &[
    ("map(options: Map)", "Declares a map: `#{name: \"calls\", size: 1_000_000, evict: true}`."),
    ("stacks(size: int)", "Declares how many different stacks Linux keeps."),
    ("arg(name: String, default: ?, help: String) -> ?", "Declares an argument of the script, and returns its value."),
    ("interpret(handler: Fn) -> Fn", "Makes a handler run in the interpreter."),
    ("flamegraph(path: String, map: ?)", "Draws a map whose first key is a stack."),
    ("exit()", "Ends the tracing."),
    ("exit(code: int)", "Ends the tracing with this exit status."),
    ("str(address: int) -> String", "Reads a string of the program, of up to 128 bytes."),
    ("str(address: int, length: int) -> String", "Reads a string of the program."),
];

/// Prints the definitions.
///
/// # Errors
/// Standard output cannot be written.
pub fn print() -> Result<ExitCode> {
    let mut text = String::from("module static;\n");
    for entry in EVENTS.iter().filter(|it| it.event.name() != RESERVED) {
        event(&mut text, entry);
    }
    for (head, meaning) in FUNCTIONS {
        let _ = write!(text, "\n/// {meaning}\nfn {head};\n");
    }
    for name in xputrace_script::NUMBERS {
        let _ = write!(text, "\n/// A number about the run.\nfn {name}() -> int;\n");
    }
    console::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes an event's function: without options, and with them.
fn event(text: &mut String, entry: &Entry) {
    let place = place(entry.declaration);
    for options in ["", "options: Map, "] {
        let _ = write!(text, "\n/// Fires when {}.\n", entry.meaning);
        for field in entry.event.fields() {
            let _ = writeln!(text, "/// - `{}` ({}): {}", field.name, field.type_text(), field.doc);
        }
        let _ = writeln!(text, "fn {}({place}{options}handler: Fn) -> Probe;", entry.event.name());
    }
}

/// Returns the parameter before the handler, if the declaration has one: a pattern, or a time.
fn place(declaration: &str) -> &'static str {
    let before = declaration.split(['(', '|']).nth(1).unwrap_or_default();
    match before.chars().next() {
        None => "",
        Some('"') => "target: String, ",
        Some(_) => "rate_or_period: int, ",
    }
}
