//! A script's own command line: `--ms=200`, `--ms 200`, `--verbose`.

use crate::stage::{ArgumentSpec, ArgumentValue};
use crate::units;
use xputrace_model::diagnostic::nearest;

/// Options of the command line itself: a script cannot have arguments of these names.
pub(crate) const TAKEN: &[&str] = &[
    "after",
    "all-processes",
    "as-root",
    "comm",
    "device",
    "fail-if",
    "flamegraph",
    "folded",
    "for",
    "format",
    "help",
    "output",
    "perfetto",
    "pid",
    "quiet",
    "replay",
    "version",
];

/// What the command line gave, and what of it was asked for.
#[derive(Default)]
pub(crate) struct Arguments {
    words: Vec<Word>,
}

struct Word {
    text: String,
    used: bool,
}

impl Arguments {
    pub(crate) fn new(args: &[String]) -> Self {
        let words = args.iter().map(|it| Word { text: it.clone(), used: matches!(&**it, "--help" | "-h") }).collect();
        Arguments { words }
    }

    /// The value given for `name`, typed as its default; the last one counts. The error is a sentence.
    pub(crate) fn take(&mut self, name: &str, default: &ArgumentValue) -> Result<Option<ArgumentValue>, String> {
        let mut found = None;
        for at in 0..self.words.len() {
            if let Some(text) = self.text(at, name, default)? {
                found = Some(parse(name, &text, default)?);
            }
        }
        Ok(found)
    }

    /// The text of the value, when word `at` gives it.
    fn text(&mut self, at: usize, name: &str, default: &ArgumentValue) -> Result<Option<String>, String> {
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
                    return Err(format!("`--{name}` needs a value"));
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

    /// What nothing asked for, each with what to do about it.
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

fn parse(name: &str, text: &str, default: &ArgumentValue) -> Result<ArgumentValue, String> {
    match default {
        ArgumentValue::Str(_) => Ok(ArgumentValue::Str(text.to_owned())),
        ArgumentValue::Int(_) => units::parse(text)
            .map(ArgumentValue::Int)
            .ok_or_else(|| format!("`--{name}` takes an integer or a duration such as 10ms, not `{text}`")),
        ArgumentValue::Bool(_) => match text {
            "true" | "yes" | "1" => Ok(ArgumentValue::Bool(true)),
            "false" | "no" | "0" => Ok(ArgumentValue::Bool(false)),
            _ => Err(format!("`--{name}` takes true or false, not `{text}`")),
        },
    }
}

/// The arguments as `--help` lists them, a line each; empty where there are none.
pub fn help(arguments: &[ArgumentSpec]) -> String {
    let left: Vec<String> = arguments.iter().map(usage).collect();
    let width = left.iter().map(|it| it.len()).max().unwrap_or(0);
    let lines = arguments.iter().zip(&left).map(|(spec, left)| {
        let default = match &spec.default {
            ArgumentValue::Int(n) => format!("default {n}"),
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
        ArgumentValue::Str(_) => format!("--{}=TEXT", spec.name),
        ArgumentValue::Bool(true) => format!("--no-{}", spec.name),
        ArgumentValue::Bool(false) => format!("--{}", spec.name),
    }
}
