//! A script's own command line: `--ms=200`, `--ms 200`, `--verbose`.

use crate::units;
use xputrace_model::diagnostic::{Label, nearest};

/// Long options of the command line itself, also planned ones, sorted; scripts cannot declare arguments with these
/// names.
pub const TAKEN: &[&str] = &[
    "after",
    "all-processes",
    "as-root",
    "attach",
    "comm",
    "device",
    "dump",
    "fail-if",
    "flamegraph",
    "folded",
    "for",
    "help",
    "launch",
    "lines",
    "loader",
    "names",
    "on-conflict",
    "on-gpu",
    "perfetto",
    "poll",
    "python",
    "quiet",
    "range",
    "replay",
    "schema",
    "set",
    "unsafe",
    "verbose",
    "version",
    "via",
];

/// A script argument, as declared by `arg(name, default, help)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgumentSpec {
    /// The name without dashes.
    pub name: String,
    /// Determines the type of the value on the command line.
    pub default: ArgumentValue,
    pub help: String,
    pub declared_at: Label,
}

/// A script argument's value.
#[derive(Clone, Debug, PartialEq)]
pub enum ArgumentValue {
    /// A number without a unit.
    Int(i64),
    /// A time, or the period of a rate: its default has a unit in the script.
    Time {
        nanos: i64,
        /// As written in the script or on the command line: `100ms`, `99hz`.
        written: String,
    },
    Bool(bool),
    Str(String),
}

/// The command line's arguments, and which of them the script asked for.
#[derive(Default)]
pub(crate) struct ScriptArguments {
    words: Vec<Word>,
}

struct Word {
    text: String,
    used: bool,
}

impl ScriptArguments {
    pub(crate) fn new(args: &[String]) -> Self {
        let words = args.iter().map(|it| Word { text: it.clone(), used: matches!(&**it, "--help" | "-h") }).collect();
        ScriptArguments { words }
    }

    /// Returns the value given for `name`, parsed like its default; the last occurrence counts.
    pub(crate) fn take(&mut self, name: &str, default: &ArgumentValue) -> Result<Option<ArgumentValue>, Refused> {
        let mut found = None;
        for at in 0..self.words.len() {
            if let Some(text) = self.text(at, name, default)? {
                found = Some(parse(name, text, default)?);
            }
        }
        Ok(found)
    }

    /// Returns the value's text if word `at` supplies it.
    fn text(&mut self, at: usize, name: &str, default: &ArgumentValue) -> Result<Option<String>, Refused> {
        let Some(word) = self.words[at].text.strip_prefix("--") else { return Ok(None) };
        let is_flag = matches!(default, ArgumentValue::Bool(_));
        let (given, value) = match word.split_once('=') {
            Some((given, value)) => (given, Some(value.to_owned())),
            None => (word, None),
        };
        let value = match (given == name, value) {
            (true, Some(value)) => value,
            (true, None) if is_flag => "true".to_owned(),
            (true, None) => {
                let Some(next) = self.words.get_mut(at + 1).filter(|it| !it.text.starts_with("--")) else {
                    return Err(Refused {
                        message: format!("`--{name}` needs a value"),
                        help: format!("write `{}`", form(name, default)),
                    });
                };
                next.used = true;
                next.text.clone()
            }
            (false, None) if is_flag && given.strip_prefix("no-") == Some(name) => "false".to_owned(),
            _ => return Ok(None),
        };
        self.words[at].used = true;
        Ok(Some(value))
    }

    /// Returns the arguments that the script did not ask for, each with advice.
    pub(crate) fn unknown(&self, declared: &[ArgumentSpec]) -> Vec<(String, String)> {
        let names: Vec<&str> = declared.iter().map(|it| &*it.name).collect();
        self.words.iter().filter(|it| !it.used).map(|it| (it.text.clone(), advice(&it.text, &names))).collect()
    }
}

fn advice(word: &str, names: &[&str]) -> String {
    let bare = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    match nearest(bare, names.iter().copied()) {
        Some(name) if word.starts_with("--") => format!("did you mean `--{name}`?"),
        _ if names.is_empty() => "this script takes no arguments".to_owned(),
        _ => format!("this script takes --{}", names.join(", --")),
    }
}

/// An invalid value: what is wrong, and what to write.
pub(crate) struct Refused {
    pub(crate) message: String,
    pub(crate) help: String,
}

/// Refuses a number or a time below what the script declares as the least, and a text of fewer characters.
pub(crate) fn at_least(least: i64, name: &str, given: Option<ArgumentValue>) -> Result<Option<ArgumentValue>, Refused> {
    let message = match &given {
        Some(ArgumentValue::Int(n)) if *n < least => format!("`--{name}` takes {least} or more, not `{n}`"),
        Some(ArgumentValue::Time { nanos, written }) if *nanos < least => {
            format!("`--{name}` takes {least} ns or more, not `{written}`")
        }
        Some(ArgumentValue::Str(text)) if (text.chars().count() as i64) < least => match least {
            1 => format!("`--{name}` takes a text, and it is empty"),
            _ => format!("`--{name}` takes a text of {least} characters or more, not `{text}`"),
        },
        _ => return Ok(given),
    };
    Err(Refused { message, help: "leave it out for its default".to_owned() })
}

fn parse(name: &str, text: String, default: &ArgumentValue) -> Result<ArgumentValue, Refused> {
    let (takes, help) = match default {
        ArgumentValue::Str(_) => return Ok(ArgumentValue::Str(text)),
        ArgumentValue::Int(_) => match units::integer(&text) {
            Some(n) => return Ok(ArgumentValue::Int(n)),
            None => ("an integer without a unit", integer_help(name, &text, default)),
        },
        ArgumentValue::Time { .. } => match units::parse(&text) {
            Some(nanos) => return Ok(ArgumentValue::Time { nanos, written: text }),
            None => ("a time with its unit", time_help(name, &text, default)),
        },
        ArgumentValue::Bool(_) => match &*text {
            "true" | "yes" | "1" => return Ok(ArgumentValue::Bool(true)),
            "false" | "no" | "0" => return Ok(ArgumentValue::Bool(false)),
            _ => ("true or false", format!("write `--{name}` or `--no-{name}`")),
        },
    };
    Err(Refused { message: format!("`--{name}` takes {takes}, not `{text}`"), help })
}

/// Suggests `--ms=2000` for `--ms=2s` if the name contains the unit.
fn integer_help(name: &str, text: &str, default: &ArgumentValue) -> String {
    let counted = units::parse(text).zip(units::whole(1, name)).filter(|(nanos, one)| nanos % one == 0);
    match counted {
        Some((nanos, one)) if name != "hz" => format!("it counts {name}: write `--{name}={}`", nanos / one),
        _ if units::parse(text).is_some() => {
            format!("write `{}`; its help text should say the unit", form(name, default))
        }
        _ => format!("write `{}`", form(name, default)),
    }
}

fn time_help(name: &str, text: &str, default: &ArgumentValue) -> String {
    match units::integer(text) {
        Some(n) => format!("write `--{name}={n}ms`, or another of the units {}", units::names()),
        None => format!("write `{}`; the units are {}", form(name, default), units::names()),
    }
}

/// Shows how to pass an argument, with its default.
fn form(name: &str, default: &ArgumentValue) -> String {
    match default {
        ArgumentValue::Int(n) => format!("--{name}={n}"),
        ArgumentValue::Time { written, .. } => format!("--{name}={written}"),
        ArgumentValue::Str(text) => format!("--{name}={text:?}"),
        ArgumentValue::Bool(_) => format!("--{name}"),
    }
}

/// Formats the arguments for `--help`, one per line; empty if there are none.
pub fn help(arguments: &[ArgumentSpec]) -> String {
    let left: Vec<String> = arguments.iter().map(usage).collect();
    let width = left.iter().map(|it| it.len()).max().unwrap_or(0);
    let lines = arguments.iter().zip(&left).map(|(spec, left)| {
        let default = match &spec.default {
            ArgumentValue::Int(n) => format!("default {n}"),
            ArgumentValue::Time { written, .. } => format!("default {written}"),
            ArgumentValue::Str(text) => format!("default \"{text}\""),
            ArgumentValue::Bool(on) => format!("default {}", if *on { "on" } else { "off" }),
        };
        let gap = if spec.help.is_empty() { "" } else { " " };
        format!("  {left:width$}  {}{gap}({default})\n", spec.help)
    });
    lines.collect()
}

fn usage(spec: &ArgumentSpec) -> String {
    match &spec.default {
        ArgumentValue::Int(_) => format!("--{}=N", spec.name),
        ArgumentValue::Time { .. } => format!("--{}=TIME", spec.name),
        ArgumentValue::Str(_) => format!("--{}=TEXT", spec.name),
        ArgumentValue::Bool(true) => format!("--no-{}", spec.name),
        ArgumentValue::Bool(false) => format!("--{}", spec.name),
    }
}
