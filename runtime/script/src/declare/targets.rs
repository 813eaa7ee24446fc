//! What a declaration probes: its first argument, as patterns or as a rate.

use super::call::{Declaring, Report, text_of};
use crate::maps::kind_of;
use crate::units;
use rhai::Dynamic;
use xputrace_model::api::{self, ApiFunction, Functions};
use xputrace_model::catalog::split_function;
use xputrace_model::diagnostic::nearest;
use xputrace_model::plan::{KernelPattern, PatternOfHandler, ProbePlace, UsdtPattern};
use xputrace_model::schema::{Event, HostEvent};

/// Code of the error for a pattern that is not understood.
pub const PATTERN: &str = "pattern";
/// Maximum samples per second; a higher rate is surely a mistake.
const MOST_SAMPLES: i64 = 20_000;
/// Shortest interval, in nanoseconds.
const SHORTEST_INTERVAL: i64 = 1_000_000;

/// Takes the targets, with their full names, from the first of `arguments` if there is one.
pub(super) fn take_targets(
    call: &Declaring,
    event: Event,
    arguments: &mut Vec<Dynamic>,
) -> Option<Vec<(ProbePlace, String)>> {
    match event {
        Event::Host(HostEvent::Api) | Event::Device(_) => take_patterns(call, event, arguments),
        event if event.has_places() => take_patterns(call, event, arguments),
        Event::Profile | Event::Interval => take_rate(call, event, arguments).map(|it| vec![it]),
        _ => Some(vec![(ProbePlace::None, event.name().to_owned())]),
    }
}

fn take_patterns(call: &Declaring, event: Event, arguments: &mut Vec<Dynamic>) -> Option<Vec<(ProbePlace, String)>> {
    let first = if arguments.is_empty() { Dynamic::UNIT } else { arguments.remove(0) };
    let texts: Option<Vec<String>> = if let Some(text) = text_of(&first) {
        Some(vec![text])
    } else {
        let list = first.as_array_ref().ok();
        list.and_then(|list| list.iter().map(text_of).collect())
    };
    match texts {
        Some(texts) if !texts.is_empty() => match event {
            Event::Host(HostEvent::Api) => texts.iter().map(|it| calls(call, it)).collect(),
            Event::Device(_) => kernels(call, event, texts),
            Event::Usdt => texts.iter().map(|it| usdt(call, it)).collect(),
            _ => texts.iter().map(|it| target(call, event, it)).collect(),
        },
        _ => {
            let message =
                format!("the first argument of `{}` is what to probe: a string or a list of strings", event.name());
            call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
            None
        }
    }
}

/// Finds the CUDA calls that a pattern of `api` matches: by their name, or as programs write it.
fn calls(call: &Declaring, pattern: &str) -> Option<(ProbePlace, String)> {
    let found: Functions = api::functions_like(pattern).map(|it| it.id).collect();
    if !found.is_empty() {
        return Some((ProbePlace::Api(Box::new(found)), format!("api:{pattern}")));
    }
    let help = match nearest(pattern, api::functions().iter().map(ApiFunction::plain_name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "patterns are names of CUDA's runtime or driver, with `*` for any text: \"cudaMalloc*\"".to_owned(),
    };
    call.error("unknown-call", format!("CUDA has no call `{pattern}`")).help(help).report(call);
    None
}

/// Parses the names of kernels; keeps wildcards. Which kernels there are is known once they run.
fn kernels(call: &Declaring, event: Event, patterns: Vec<String>) -> Option<Vec<(ProbePlace, String)>> {
    if !patterns.iter().all(|it| is_of_kernels(call, event, it)) {
        return None;
    }
    let named = |it: PatternOfHandler| {
        let name = format!("{}:{}", event.name(), it.pattern().text());
        (ProbePlace::Kernels(it), name)
    };
    let patterns = patterns.into_iter().map(KernelPattern::new);
    Some(PatternOfHandler::each(patterns).into_iter().map(named).collect())
}

/// Whether a pattern is one of kernels' names; reports one that is not.
fn is_of_kernels(call: &Declaring, event: Event, pattern: &str) -> bool {
    if repeats_kind(call, pattern) {
        return false;
    }
    if pattern.is_empty() || pattern.contains('\0') {
        let message =
            format!("the first argument of `{}` is the name of a kernel, with `*` for any text", event.name());
        call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
        return false;
    }
    if pattern.ends_with(')') && !pattern.ends_with("operator()") {
        let name = pattern.split('(').next().unwrap_or(pattern);
        call.error(PATTERN, format!("names of kernels have no parameters: `{pattern}`"))
            .help(format!("write `\"{name}\"`; for one of several with this name, write its mangled name"))
            .report(call);
        return false;
    }
    true
}

/// Reports a pattern that begins with the name of an event, as bpftrace's do.
fn repeats_kind(call: &Declaring, pattern: &str) -> bool {
    let Some((kind, rest)) = pattern.split_once(':') else { return false };
    let Some(event) = Event::all().find(|it| it.name() == kind && !rest.starts_with(':')) else { return false };
    let message = format!("`{pattern}` repeats the kind of probe");
    call.error(PATTERN, message).help(format!("write `{}(\"{rest}\", …)`", event.name())).report(call);
    true
}

/// Parses `./server:shop:sold`; keeps wildcards.
fn usdt(call: &Declaring, text: &str) -> Option<(ProbePlace, String)> {
    if repeats_kind(call, text) {
        return None;
    }
    let Some((object, pattern)) = UsdtPattern::split(text) else {
        call.error(PATTERN, format!("`{text}` is not file, provider and name separated by colons"))
            .help(format!("write `{}`; `FILE::NAME` if one provider has the probe", Event::Usdt.about().usage))
            .report(call);
        return None;
    };
    Some((ProbePlace::Usdt { object: object.to_owned(), pattern }, format!("{}:{text}", Event::Usdt.name())))
}

/// Parses `libc:malloc` or `sched:sched_switch`; keeps wildcards.
fn target(call: &Declaring, event: Event, pattern: &str) -> Option<(ProbePlace, String)> {
    let name = format!("{}:{pattern}", event.name());
    if repeats_kind(call, pattern) {
        return None;
    }
    let parts = if event == Event::Tracepoint { pattern.split_once(':') } else { split_function(pattern) };
    let (first, second) = match parts {
        Some((first, second)) if !first.is_empty() && !second.is_empty() => (first.to_owned(), second.to_owned()),
        _ => {
            let what = if event == Event::Tracepoint { "category and name" } else { "library and function" };
            let message = format!("`{pattern}` is not {what} separated by a colon");
            call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
            return None;
        }
    };
    let target = match event {
        Event::Tracepoint => ProbePlace::Tracepoint { category: first, name: second },
        _ => ProbePlace::Function { object: first, function: second },
    };
    Some((target, name))
}

fn take_rate(call: &Declaring, event: Event, arguments: &mut Vec<Dynamic>) -> Option<(ProbePlace, String)> {
    let first = if arguments.is_empty() { Dynamic::UNIT } else { arguments.remove(0) };
    let Ok(nanos) = first.as_int() else {
        let message = format!("`{}` takes a rate or a duration first, not {}", event.name(), kind_of(&first));
        call.error("rate", message).help(format!("write `{}`", event.about().usage)).report(call);
        return None;
    };
    if let Some(problem) = rate_problem(event, nanos) {
        let range = match event {
            Event::Profile => format!("from 1 to {MOST_SAMPLES} samples a second"),
            _ => format!("from {} up", units::shown(SHORTEST_INTERVAL)),
        };
        call.error("rate", problem).help(format!("write `{}`: {range}", event.about().usage)).report(call);
        return None;
    }
    Some(match event {
        Event::Profile => {
            let hz = (units::SECOND + nanos / 2) / nanos;
            (ProbePlace::Profile { hz: hz as u64 }, format!("profile:hz:{hz}"))
        }
        _ => {
            let (unit, one) = units::largest(nanos);
            (ProbePlace::Interval { nanos: nanos as u64 }, format!("interval:{unit}:{}", nanos / one))
        }
    })
}

/// Returns what is wrong with the interval between samples or between runs.
fn rate_problem(event: Event, nanos: i64) -> Option<String> {
    let shown = units::shown(nanos);
    // A number without a unit means nanoseconds, which is hardly intended.
    let unit = if nanos < 1_000 { "; a number without a unit means nanoseconds" } else { "" };
    match event {
        _ if nanos <= 0 => Some(format!("{shown} is not a positive time")),
        Event::Profile if nanos < units::SECOND / MOST_SAMPLES => {
            Some(format!("one sample every {shown} is more than {MOST_SAMPLES} a second{unit}"))
        }
        Event::Profile if nanos > units::SECOND => Some(format!("one sample every {shown} is less than one a second")),
        Event::Interval if nanos < SHORTEST_INTERVAL => {
            Some(format!("an interval of {shown} is shorter than {}{unit}", units::shown(SHORTEST_INTERVAL)))
        }
        _ => None,
    }
}
