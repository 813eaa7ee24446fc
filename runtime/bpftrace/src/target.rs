//! What an attach point is here: the function that declares it, and what is probed.

use crate::quoted;

/// A kind of event, as far as handlers differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Begin,
    End,
    Interval,
    Profile,
    Uprobe,
    Uretprobe,
    Usdt,
    Tracepoint,
}

impl Event {
    /// Returns the function that declares such a probe.
    pub(crate) fn function(self) -> &'static str {
        match self {
            Event::Begin => "begin",
            Event::End => "end",
            Event::Interval => "interval",
            Event::Profile => "profile",
            Event::Uprobe => "uprobe",
            Event::Uretprobe => "uretprobe",
            Event::Usdt => "usdt",
            Event::Tracepoint => "tracepoint",
        }
    }

    /// Whether its handlers run in the interpreter, and have no event.
    pub(crate) fn is_interpreted(self) -> bool {
        matches!(self, Event::Begin | Event::End | Event::Interval)
    }

    /// Whether one declaration takes a list of places.
    pub(crate) fn takes_list(self) -> bool {
        matches!(self, Event::Uprobe | Event::Uretprobe | Event::Usdt | Event::Tracepoint)
    }
}

/// An attach point in this language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachPoint {
    pub(crate) event: Event,
    /// Its first argument as code: `"libc:malloc"`, `99.hz`; empty for `begin` and `end`.
    pub(crate) place: String,
    /// The script's parameters that the place names.
    pub(crate) parameters: Vec<u32>,
}

impl AttachPoint {
    /// Reads an attach point.
    ///
    /// # Errors
    /// A reason why it cannot be probed here.
    pub(crate) fn of(point: &str) -> Result<AttachPoint, &'static str> {
        let (kind, rest) = point.split_once(':').unwrap_or((point, ""));
        let at = |event, place: String| Ok(AttachPoint { event, place, parameters: parameters(rest) });
        match kind {
            "BEGIN" | "begin" => at(Event::Begin, String::new()),
            "END" | "end" => at(Event::End, String::new()),
            "interval" | "i" => at(Event::Interval, period(rest)?),
            "profile" | "p" => at(Event::Profile, period(rest)?),
            "tracepoint" | "t" => match rest.contains(':') {
                true => at(Event::Tracepoint, quoted(rest)),
                false => Err("the tracepoint's category is missing: write tracepoint:CATEGORY:NAME"),
            },
            "uprobe" | "u" => at(Event::Uprobe, quoted(&function(rest)?)),
            "uretprobe" | "ur" => at(Event::Uretprobe, quoted(&function(rest)?)),
            "usdt" | "U" => at(Event::Usdt, quoted(&usdt(rest)?)),
            _ => Err(refused(kind)),
        }
    }
}

fn refused(kind: &str) -> &'static str {
    match kind {
        "kprobe" | "k" | "kretprobe" | "kr" | "fentry" | "f" | "fexit" | "fr" | "kfunc" | "kretfunc" => {
            "functions of Linux cannot be probed yet; a tracepoint may see the same"
        }
        "rawtracepoint" | "rt" => {
            "raw tracepoints cannot be probed; `tracepoint` has the same event, with other fields"
        }
        "software" | "s" | "hardware" | "h" => "perf's events cannot be probed; `profile` samples by time",
        "watchpoint" | "w" | "asyncwatchpoint" | "aw" => "memory of the CPU cannot be watched",
        "iter" | "it" => "Linux's structures cannot be read",
        _ => "there is no such event",
    }
}

/// Returns `file:function` without bpftrace's quotes and languages.
fn function(rest: &str) -> Result<String, &'static str> {
    const NO_FILE: &str = "the file is missing: write uprobe:FILE:FUNCTION";
    let plain = rest.replace(":cpp:", ":").replace('"', "");
    let (file, function) = split(&plain).ok_or(NO_FILE)?;
    if file.is_empty() || function.is_empty() || file == "*" {
        return Err(NO_FILE);
    }
    if file.contains('@') && !file.contains('/') {
        return Err("source lines of the CPU's code cannot be probed");
    }
    Ok(match function.split_once('+').map(|(name, offset)| (name, offset.parse::<u64>())) {
        Some((name, Ok(offset))) => format!("{file}:{name}+{offset:#x}"),
        _ => format!("{file}:{function}"),
    })
}

/// Returns `file:provider:name`, or `file::name` where bpftrace leaves the provider out.
fn usdt(rest: &str) -> Result<String, &'static str> {
    const WRONG: &str = "the file is missing: write usdt:FILE:PROVIDER:NAME";
    let plain = rest.replace('"', "");
    let mut parts = plain.rsplitn(3, ':');
    let (name, provider) = (parts.next().unwrap_or_default(), parts.next().ok_or(WRONG)?);
    let (file, provider) = match parts.next() {
        Some(file) => (file, provider),
        None => (provider, ""),
    };
    match file.is_empty() || name.is_empty() || file == "*" {
        true => Err(WRONG),
        false => Ok(format!("{file}:{provider}:{name}")),
    }
}

/// Splits at the last colon that stands alone: names of C++ have pairs.
fn split(text: &str) -> Option<(&str, &str)> {
    let bytes = text.as_bytes();
    let is_alone =
        |at: &usize| bytes[*at] == b':' && bytes.get(at + 1) != Some(&b':') && (*at == 0 || bytes[at - 1] != b':');
    let at = (0..bytes.len()).rev().find(is_alone)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Translates `hz:99`, `s:1`, `ms:$1` and `1s`.
fn period(rest: &str) -> Result<String, &'static str> {
    const WRONG: &str = "its period is not understood: write hz:99, s:1, ms:100 or us:100";
    let digits = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, number) =
        if digits > 0 { (&rest[digits..], &rest[..digits]) } else { rest.split_once(':').ok_or(WRONG)? };
    if !matches!(unit, "hz" | "s" | "ms" | "us") {
        return Err(WRONG);
    }
    match (number.strip_prefix('$'), number.parse::<u64>()) {
        (_, Ok(number)) => Ok(format!("{number}.{unit}")),
        (Some(_), _) if unit == "hz" => Err("a rate cannot be computed: write it as a number"),
        (Some(digits), _) => match digits.parse() {
            Ok(number) => Ok(format!("{} * 1.{unit}", crate::names::parameter(number))),
            Err(_) => Err(WRONG),
        },
        _ => Err(WRONG),
    }
}

/// Returns the numbers of the script's parameters in an attach point.
fn parameters(text: &str) -> Vec<u32> {
    let number = |it: &str| it[..it.find(|it: char| !it.is_ascii_digit()).unwrap_or(it.len())].parse().ok();
    text.split('$').skip(1).filter_map(number).collect()
}

/// Writes a place as a string, with `$1` as the variable that holds it.
fn quoted(place: &str) -> String {
    let numbers = parameters(place);
    if numbers.is_empty() {
        return quoted::quoted(place);
    }
    let names = numbers.iter().fold(quoted::within_backticks(place), |text, it| {
        text.replacen(&format!("${it}"), &format!("${{{}}}", crate::names::parameter(*it)), 1)
    });
    format!("`{names}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |point: &str| AttachPoint::of(point).map(|it| it.place);
        for (point, expected) in [
            ("uprobe:/bin/bash:readline", "\"/bin/bash:readline\""),
            ("u:libc:mem*", "\"libc:mem*\""),
            ("uprobe:./a:cpp:\"ns::f\"", "\"./a:ns::f\""),
            ("uprobe:./a:f+16", "\"./a:f+0x10\""),
            ("uretprobe:./a:0x1139", "\"./a:0x1139\""),
            ("uprobe:./a:$1", "`./a:${p1}`"),
            ("profile:hz:99", "99.hz"),
            ("interval:s:$2", "p2 * 1.s"),
            ("i:500ms", "500.ms"),
            ("t:sched:sched_*", "\"sched:sched_*\""),
            ("usdt:./a:shop:sold", "\"./a:shop:sold\""),
            ("U:libstdc++:*:*", "\"libstdc++:*:*\""),
            ("usdt:./a:sold", "\"./a::sold\""),
            ("usdt:./a::sold", "\"./a::sold\""),
            ("t:a:\"b", "\"a:\\\"b\""),
            ("BEGIN", ""),
        ] {
            assert_eq!(place(point).as_deref(), Ok(expected), "{point}");
        }
        for point in
            ["kprobe:do_nanosleep", "uprobe:f", "tracepoint:x", "profile:99", "usdt:sold", "usdt:*:a:b", "uprobe:*:f"]
        {
            assert!(place(point).is_err(), "{point}");
        }
    }
}
