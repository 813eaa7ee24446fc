//! Mistakes that more than one step can find, each with one wording.

use crate::words::{SWITCHING, elsewhere, numbers, suggested};
use xputrace_model::diagnostic::{Diagnostic, Label, nearest};
use xputrace_model::schema::Event;

/// Reports a call to an unknown function.
pub fn unknown_function(name: &str, label: Label) -> Diagnostic {
    let diagnostic = Diagnostic::error("unknown-function", format!("there is no function `{name}`"), label);
    if let Some(help) = elsewhere(name) {
        return diagnostic.help(help);
    }
    match nearest(name, suggested().chain(numbers())) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic,
    }
}

/// The diagnostic for an exit status that a process cannot have.
pub fn no_exit_status(code: i64, label: Label) -> Diagnostic {
    Diagnostic::error("exit-code", format!("{code} is not a valid exit status"), label)
        .help("an exit status is from 0 to 255")
}

/// Reports that a probe of this event is switched.
pub fn never_switched(event: Event, at: Label) -> Diagnostic {
    let message = format!("an `{}` handler runs once, so it cannot be switched off and on", event.name());
    let message = if event == Event::Begin { message.replacen("an ", "a ", 1) } else { message };
    Diagnostic::error("never-switched", message, at).help("test a map in the handler: `if @on == 1 { … }`")
}

/// Reports a method that probes do not have.
pub fn no_probe_method(name: &str, at: Label) -> Diagnostic {
    let diagnostic = Diagnostic::error("unknown-method", format!("a probe has no method `{name}`"), at);
    match nearest(name, SWITCHING) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic.help("it has `enable()` and `disable()`"),
    }
}

/// Reports that something else than a probe is switched.
pub fn no_probe(method: &str, got: &str, at: Label) -> Diagnostic {
    Diagnostic::error("not-a-probe", format!("only a probe has `{method}`, not {got}"), at)
        .help(format!("keep the probe in a variable: `let detail = kernel(|k| …);`, then `detail.{method}()`"))
}

/// Reports that `noun` has no such field, and suggests one of those that it has.
pub fn no_field(noun: &str, field: &str, known: &[&str], label: Label) -> Diagnostic {
    let mut diagnostic = Diagnostic::error("unknown-field", format!("{noun} has no field `{field}`"), label);
    if let Some(near) = synonym(field, known).or_else(|| nearest(field, known.iter().copied())) {
        diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
    }
    match known {
        [] => diagnostic,
        known => diagnostic.help(format!("it has: {}", known.join(" "))),
    }
}

/// What other tools call a field, and what it is called here, the likelier first.
const SYNONYMS: &[(&str, &[&str])] = &[
    ("size", &["bytes", "dynamic_shared"]),
    ("len", &["bytes"]),
    ("length", &["bytes"]),
    ("count", &["copies", "bytes"]),
    ("elapsed", &["duration"]),
    ("latency", &["duration"]),
    ("took", &["duration"]),
    ("dur", &["duration"]),
    ("time", &["start", "duration"]),
    ("timestamp", &["time"]),
    ("ts", &["time"]),
    ("nsecs", &["time"]),
    ("thread", &["tid"]),
    ("process", &["pid"]),
    ("addr", &["address"]),
    ("ptr", &["address"]),
    ("stack", &["ustack", "capture"]),
    ("backtrace", &["ustack"]),
    ("ret", &["retval", "result"]),
    ("return", &["retval", "result"]),
    ("status", &["result", "retval"]),
    ("function", &["func", "api", "name"]),
    ("gpu_id", &["device"]),
    ("kernel", &["name"]),
];

/// Returns the field that is meant by another tool's word for it.
fn synonym<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let (_, meant) = SYNONYMS.iter().find(|it| it.0 == word)?;
    meant.iter().find_map(|it| known.iter().find(|known| *known == it)).copied()
}

/// Names an event with its article: "a `kernel` event", "an `api` event".
pub fn an_event(name: &str) -> String {
    let article = if name.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} `{name}` event")
}
