//! `xputrace definitions`: the functions of scripts as a definition file of Rhai, for editors.
//!
//! Source: "Definition files" in Rhai's book: `module static;` for functions that need no import, then their heads.

use crate::console;
use anyhow::Result;
use std::fmt::Write;
use std::process::ExitCode;
use xputrace_model::schema::Event;

/// Words that the language server keeps for itself: a definition of theirs ends its reading of the file.
const RESERVED: &[&str] = &["exit", "module"];

/// The functions that declare no event: head and meaning.
const FUNCTIONS: &[(&str, &str)] = &[
    ("map(options: Map)", "Declares a map: `#{name: \"calls\", size: 1_000_000, evict: true}`."),
    ("stacks(size: int)", "Declares how many different stacks Linux keeps."),
    (
        "arg(name: String, otherwise: ?, help: String) -> ?",
        "Declares an argument of the script, and returns its value.",
    ),
    ("interpret(handler: Fn) -> Fn", "Makes a handler run in the interpreter."),
    ("flamegraph(path: String, map: ?)", "Draws a map whose first key is a stack."),
    ("str(address: int) -> String", "Reads a string of the program, of up to 128 bytes."),
    ("str(address: int, length: int) -> String", "Reads a string of the program."),
    ("print(value: ?)", "Prints a text, a number, a map, or, as JSON, an object."),
    ("fit(texts: Array, beside: int) -> Array", "Shortens texts to what a line of the terminal has room for."),
    ("min(a: ?, b: ?) -> ?", "Returns the lesser of two values."),
    ("max(a: ?, b: ?) -> ?", "Returns the greater of two values."),
    ("abs(x: ?) -> ?", "Returns a number without its sign."),
];

/// Prints the definitions.
///
/// # Errors
/// Standard output cannot be written.
pub fn print() -> Result<ExitCode> {
    let mut text = String::from("module static;\n");
    for it in Event::all().filter(|it| !RESERVED.contains(&it.name())) {
        event(&mut text, it);
    }
    for (head, meaning) in FUNCTIONS {
        let _ = write!(text, "\n/// {meaning}\nfn {head};\n");
    }
    for number in xputrace_script::RunNumber::ALL {
        let _ = write!(text, "\n/// A number about the run.\nfn {}() -> int;\n", number.name());
    }
    console::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes an event's function: without options, and with them.
fn event(text: &mut String, event: Event) {
    let place = place(event.about().usage);
    for options in ["", "options: Map, "] {
        let _ = write!(text, "\n/// Fires when {}.\n", event.about().fires);
        for field in event.fields() {
            let _ = writeln!(text, "/// - `{}` ({}): {}", field.name, field.type_text(), field.doc);
        }
        let _ = writeln!(text, "fn {}({place}{options}handler: Fn) -> Probe;", event.name());
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
