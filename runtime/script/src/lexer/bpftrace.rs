//! bpftrace's probes, `uprobe:libc:malloc /pid == 1/ { @[comm] = count(); }`: recognized by their
//! shape, and shown as they are written here.

use super::token::{Kind, Token};
use std::ops::Range;
use xputrace_model::table::TableKind;

/// Stands for code that has no simple equivalent.
const ELLIPSIS: &str = "…";
const NO_KPROBES: &str = "Linux kernel function probes are not implemented yet; a tracepoint may see the same:";

/// A probe in bpftrace's notation.
pub(super) struct Probe {
    /// Its tokens; of a probe without a body, only its kind.
    pub(super) tokens: Range<usize>,
    /// How it is written here.
    pub(super) help: String,
}

/// Recognizes a probe at a token outside all brackets.
pub(super) fn probe(text: &str, tokens: &[Token], at: usize) -> Option<Probe> {
    let source = Source { text, tokens };
    let kind = source.slice(at);
    let known = ["uprobe", "u", "uretprobe", "ur", "tracepoint", "t", "rawtracepoint", "profile", "p", "interval", "i"];
    let planned = ["kprobe", "k", "kretprobe", "kr", "fentry", "fexit", "kfunc", "usdt", "U"];
    let is_probe = match source.slice(at + 1) {
        ":" => known.contains(&kind) || planned.contains(&kind),
        "{" => matches!(kind, "BEGIN" | "END" | "begin" | "end"),
        _ => false,
    };
    if !is_probe {
        return None;
    }
    let open = (at..tokens.len()).find(|it| source.slice(*it) == "{" || source.slice(*it) == ";");
    let Some((open, close)) = open.and_then(|open| Some((open, source.closing(open)?))) else {
        let words = text[tokens[at].span.start..].split_whitespace().next().unwrap_or_default();
        let help = source.declared(&Head::parse(kind, words), ELLIPSIS);
        return Some(Probe { tokens: at..at + 1, help });
    };
    let head = Head::parse(kind, text[tokens[at].span.start..tokens[open].span.start].trim());
    let body = source.handler(&head, open + 1..close).unwrap_or_else(|| ELLIPSIS.to_owned());
    Some(Probe { tokens: at..close + 1, help: source.declared(&head, &body) })
}

/// What comes before a probe's body.
struct Head<'a> {
    kind: &'a str,
    /// What is probed, without the kind: `libc:malloc`.
    places: Vec<&'a str>,
    has_condition: bool,
}

impl<'a> Head<'a> {
    fn parse(kind: &'a str, text: &'a str) -> Self {
        let condition = text.ends_with('/').then(|| text.find(" /")).flatten();
        let places = text[..condition.unwrap_or(text.len())].split(',').map(str::trim);
        let places = places.map(|it| it.split_once(':').map_or("", |it| it.1)).filter(|it| !it.is_empty()).collect();
        Head { kind, places, has_condition: condition.is_some() }
    }

    fn has_event(&self) -> bool {
        !matches!(self.kind, "interval" | "i" | "BEGIN" | "END" | "begin" | "end")
    }
}

struct Source<'a> {
    text: &'a str,
    tokens: &'a [Token],
}

impl Source<'_> {
    fn slice(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |it| &self.text[it.span.clone()])
    }

    /// Returns the brace that closes the one at `open`; none if `open` is none.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0usize;
        (open..self.tokens.len())
            .find(|it| {
                match self.slice(*it) {
                    "{" => depth += 1,
                    "}" => depth = depth.saturating_sub(1),
                    _ => {}
                }
                depth == 0
            })
            .filter(|it| *it > open)
    }

    /// Returns the declaration of a probe.
    fn declared(&self, head: &Head, body: &str) -> String {
        let place = |default: &str| match &head.places[..] {
            [] => format!("\"{default}\""),
            [one] => format!("\"{one}\""),
            several => format!("[{}]", several.iter().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ")),
        };
        match head.kind {
            "uprobe" | "u" => format!("write `uprobe({}, |e| {body})`", place("libc:malloc")),
            "uretprobe" | "ur" => format!("write `uretprobe({}, |e| {body})`", place("libc:malloc")),
            "tracepoint" | "t" | "rawtracepoint" => {
                format!("write `tracepoint({}, |e| {body})`", place("sched:sched_switch"))
            }
            "profile" | "p" => format!("write `profile({}, |e| {body})`", period(head, "99.hz")),
            "interval" | "i" => format!("write `interval({}, || {body})`", period(head, "1.s")),
            "BEGIN" | "begin" => format!("write `begin(|| {body})`"),
            "END" | "end" => format!("write `end(|| {body})`"),
            "usdt" | "U" => "`usdt` events are not implemented yet".to_owned(),
            _ => format!("{NO_KPROBES} `tracepoint(\"syscalls:sys_enter_read\", |e| {body})`"),
        }
    }

    /// Translates condition and body; `None` if some of it has no simple equivalent.
    fn handler(&self, head: &Head, body: Range<usize>) -> Option<String> {
        let last = body.end.checked_sub(1).filter(|it| self.slice(*it) == ";" && body.contains(it));
        let statements = body.start..last.unwrap_or(body.end);
        let several = statements.clone().any(|it| self.slice(it) == ";");
        let code = self.code(head, statements)?;
        let end = if several { ";" } else { "" };
        match head.has_condition {
            true => {
                let condition = self.condition(head, body.start - 1)?;
                Some(format!("if {condition} {{ {code}{end} }}"))
            }
            false if several => Some(format!("{{ {code}{end} }}")),
            false => Some(code),
        }
    }

    /// Translates the `/condition/` that ends before the brace at `open`.
    fn condition(&self, head: &Head, open: usize) -> Option<String> {
        let close = open.checked_sub(1).filter(|it| self.slice(*it) == "/")?;
        let begin = (0..close).rev().find(|it| {
            let start = self.tokens[*it].span.start;
            self.slice(*it) == "/" && self.text[..start].ends_with(char::is_whitespace)
        })?;
        let condition = self.code(head, begin + 1..close)?;
        let missing = if self.tokens[begin + 1].kind == Kind::Map { "()" } else { "0" };
        Some(if is_no_comparison(&condition) { format!("{condition} != {missing}") } else { condition })
    }

    /// Translates `delete(@m[k])` and `clear(@m)`.
    fn method_of_map(&self, head: &Head, at: usize) -> Option<(String, usize)> {
        let close = (at + 2..self.tokens.len()).find(|it| self.slice(*it) == ")")?;
        let method = if self.slice(at) == "delete" { "remove" } else { "clear" };
        Some((format!("{}.{method}()", self.code(head, at + 2..close)?), close + 1 - at))
    }

    fn code(&self, head: &Head, range: Range<usize>) -> Option<String> {
        let mut out = String::new();
        let mut at = range.start;
        while at < range.end {
            let gap = at > range.start && self.tokens[at - 1].span.end < self.tokens[at].span.start;
            let (piece, used) = self.piece(head, at)?;
            if gap && !piece.starts_with('.') {
                out.push(' ');
            }
            out.push_str(&piece);
            at += used;
        }
        Some(out)
    }

    /// Translates the tokens at `at`, and says how many they are.
    fn piece(&self, head: &Head, at: usize) -> Option<(String, usize)> {
        let (word, next) = (self.slice(at), self.slice(at + 1));
        let is_call = next == "(";
        match self.tokens[at].kind {
            // `@x = count()`
            Kind::Symbol if word == "=" && self.slice(at + 2) == "(" && TableKind::of_method(next).is_some() => {
                Some((format!(".{next}"), 2))
            }
            Kind::Symbol if matches!(word, "$" | "->" | "?" | "++" | "--") => None,
            Kind::Identifier if word == "args" && matches!(next, "." | "->") && head.has_event() => {
                Some((format!("e.{}", self.slice(at + 2)), 3))
            }
            Kind::Identifier if is_call && matches!(word, "delete" | "clear") => self.method_of_map(head, at),
            Kind::Identifier if is_call => matches!(word, "str" | "print" | "exit").then(|| (word.to_owned(), 1)),
            Kind::Identifier if is_known_in_both(word) => Some((word.to_owned(), 1)),
            Kind::Identifier if head.has_event() => Some((format!("e.{}", field(word)?), 1)),
            Kind::Identifier => None,
            _ => Some((word.to_owned(), 1)),
        }
    }
}

/// Whether a condition is a number or an element, which is a truth in bpftrace.
fn is_no_comparison(condition: &str) -> bool {
    !condition.contains(['=', '<', '>', '!'])
}

fn is_known_in_both(word: &str) -> bool {
    matches!(word, "if" | "else" | "true" | "false" | "return")
}

/// Returns the field of an event that a variable of bpftrace stands for.
fn field(variable: &str) -> Option<&str> {
    match variable {
        "nsecs" => Some("time"),
        "comm" | "pid" | "tid" | "uid" | "gid" | "cpu" | "cgroup" | "probe" | "func" | "ustack" | "kstack"
        | "retval" | "arg0" | "arg1" | "arg2" | "arg3" | "arg4" | "arg5" => Some(variable),
        _ => None,
    }
}

/// Translates `hz:99`, `s:1`, `ms:100`, `us:100`.
fn period(head: &Head, default: &str) -> String {
    match head.places.first().and_then(|it| it.split_once(':')) {
        Some((unit @ ("hz" | "s" | "ms" | "us"), n)) => format!("{n}.{unit}"),
        _ => default.to_owned(),
    }
}
