//! The language's words: functions, methods and fields that scripts can name, and what other tracers call them.
//!
//! A list of its own, so that whoever reads a text can tell a mistake, and suggest what is meant, without an engine.

use crate::host::RunNumber;
use xputrace_model::plan::HostEvent;
use xputrace_model::schema::Event;
use xputrace_model::table::TableKind;

/// What the function `module` is to Rhai, which reserves that word.
pub const MODULE_FUNCTION: &str = "module_event";

/// Returns the names of all functions that declare, as scripts write them.
pub fn declaring() -> impl Iterator<Item = &'static str> {
    Event::all().map(Event::name).chain(["map", "stacks", "arg", "interpret", "loaded_ns", "clock_ahead_ns"])
}

/// Returns what scripts write for a function of Rhai's.
pub fn as_written(function: &str) -> &str {
    if function == MODULE_FUNCTION { HostEvent::Module.name() } else { function }
}

/// Returns the function of Rhai's that declares a handler of an event.
pub(crate) fn function(event: Event) -> &'static str {
    match event {
        Event::Host(HostEvent::Module) => MODULE_FUNCTION,
        other => other.name(),
    }
}

/// Whether only the interpreter runs handlers of this event.
pub(crate) fn is_interpreted(event: Event) -> bool {
    matches!(event, Event::Interval | Event::Begin | Event::End)
}

/// Whether the interpreter can run handlers of this event: it is in the tracer.
pub fn can_be_interpreted(event: Event) -> bool {
    is_interpreted(event) || event.is_gpu() && !matches!(event, Event::Device(_))
}

/// The methods that switch a probe.
pub const SWITCHING: [&str; 2] = [ENABLE, "disable"];
pub const ENABLE: &str = "enable";

/// Whether probes of this event can be switched off and on.
pub fn can_be_switched(event: Event) -> bool {
    !matches!(event, Event::Begin | Event::End)
}

/// Our own functions in the interpreter, except those that declare.
pub const OWN: &[&str] = &["print", "flamegraph", "exit", "str", "fit"];

/// Returns the names of the numbers about the run, functions without arguments.
pub(crate) fn numbers() -> impl Iterator<Item = &'static str> {
    RunNumber::ALL.iter().map(|it| it.name())
}

/// Every function of Rhai 1.27's standard packages, and those built into its parser.
const RHAI: &str = "\
    E PI abs acos acosh all append as_string asin asinh atan atanh bits blob bytes call ceiling chars chop clear \
    contains cos cosh crop curry debug dedup drain elapsed end ends_with exit exp extract Fn fill_with filter find \
    find_map floor for_each fraction get get_bit get_bits get_fn_metadata_list hypot index_of insert int \
    is_anonymous is_def_fn is_def_var is_empty is_even is_exclusive is_finite is_inclusive is_infinite is_nan \
    is_odd is_shared is_zero keys len ln log make_lower make_upper map max min name order order_by order_desc pad \
    parse_be_float parse_be_int parse_float parse_int parse_json parse_le_float parse_le_int pop print push range \
    reduce reduce_rev remove replace retain reverse round set set_bit set_bits set_tag shift sign sin sinh some \
    sort sort_by sort_desc splice split split_rev sqrt start starts_with sub_string tag take tan tanh to_array \
    to_binary to_blob to_chars to_debug to_degrees to_float to_hex to_int to_json to_lower to_octal to_radians \
    to_string to_upper trim truncate type_of values write_ascii write_be write_le write_utf8 zip";

/// Functions of Rhai that scripts have not: their results would depend on when they run, or their effects on what they load.
pub(crate) const DISABLED: [&str; 4] = ["eval", "sleep", "timestamp", "mixin"];

/// What users of other tracers write, and its equivalent here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("printf", "write `print(`…${x}…`)`"),
    ("println", "write `print(…)`"),
    ("kprobe", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("kretprobe", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("fentry", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("fexit", "Linux kernel function probes are not implemented yet; `tracepoint` is"),
    ("BEGIN", "write `begin(|| …)`"),
    ("END", "write `end(|| …)`"),
    ("delete", "write `@map[key].remove()`"),
    ("nsecs", "write `e.time`"),
    ("ustack", "write `e.ustack`, or `k.launch.ustack` for what launched a kernel"),
    ("kstack", "write `e.kstack`"),
    ("clear", "write `@map.clear()`, in an `interval`, `begin` or `end` handler"),
    ("zero", "write `@map.clear()`, in an `interval`, `begin` or `end` handler"),
    ("time", "write `e.time`"),
    ("join", "write `print(`…${x}…`)`"),
    ("len", "only interpreted handlers can ask for a map's size: `@map.len()`"),
];

/// Returns advice for a function of another tracer.
pub fn elsewhere(name: &str) -> Option<String> {
    let known = ELSEWHERE.iter().find(|(other, _)| *other == name).map(|it| it.1.to_owned());
    known.or_else(|| Some(format!("write `{}`", aggregation_form(TableKind::of_method(name)?))))
}

/// Shows how an aggregation is written.
pub fn aggregation_form(kind: TableKind) -> String {
    let values = match kind {
        TableKind::Count => "",
        TableKind::Lhist { .. } => "x, min, max, step",
        _ => "x",
    };
    format!("@map.{}({values})", kind.method())
}

/// Returns the names that a declaration may start with, for suggestions.
pub fn suggested() -> impl Iterator<Item = &'static str> {
    declaring().chain(OWN.iter().copied())
}

/// Whether a function of this name exists, whatever its arguments.
pub fn is_known(name: &str) -> bool {
    let name = as_written(name);
    declaring().any(|it| it == name)
        || OWN.contains(&name)
        || numbers().any(|it| it == name)
        || RHAI.split_whitespace().any(|it| it == name)
}

/// Functions that take a map or element itself. All others get its value; the value of a map with
/// keys is the map itself.
const TAKE_MAPS: &[&str] = &["print", "flamegraph", "clear", "remove", "len", "is_empty"];

/// Whether a function takes a map itself, and not its value. Such a function stores nothing into it.
pub fn takes_maps(function: &str) -> bool {
    TAKE_MAPS.contains(&function)
}

/// The properties of aggregations.
pub(crate) const PARTS: &[&str] = &[
    "count", "sum", "total", "min", "max", "avg", "average", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95",
    "p99",
];

/// Properties of an element besides its parts.
const ELEMENT: &[&str] = &["value", "human", "hex"];
/// Properties of a row besides its parts.
const ROW: &[&str] = &["key", "keys", "value", "human"];

/// Returns the fields of an element.
pub fn element_fields() -> impl Iterator<Item = &'static str> {
    ELEMENT.iter().chain(PARTS).copied()
}

/// Returns the fields of a row.
pub fn row_fields() -> impl Iterator<Item = &'static str> {
    ROW.iter().chain(PARTS).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_reference_has_every_function_of_our_own() {
        let reference = include_str!("../../../docs/LANGUAGE.md");
        let own = suggested().chain(numbers());
        let is_missing = |it: &&str| !reference.contains(&format!("{it}(")) && !reference.contains(&format!("`{it}`"));
        assert_eq!(own.filter(is_missing).collect::<Vec<_>>(), <[&str; 0]>::default());
    }

    /// What Rhai's parser and its engine know without a package.
    const OF_THE_PARSER: &[&str] = &["Fn", "call", "curry", "is_def_fn", "is_def_var", "is_shared", "type_of"];

    #[test]
    fn the_functions_of_rhai_are_those_of_its_engine() {
        let names = rhai::Engine::new().collect_fn_metadata(None, |it| Some(it.metadata.name.to_string()), true);
        let is_word = |it: &String| it.chars().all(|it| it == '_' || it.is_ascii_alphanumeric());
        let is_disabled = |it: &String| DISABLED.contains(&it.as_str());
        let names = names.into_iter().filter(|it| is_word(it) && !is_disabled(it));
        let in_engine: BTreeSet<String> = names.chain(OF_THE_PARSER.iter().map(|it| (*it).to_owned())).collect();
        let listed: BTreeSet<String> = RHAI.split_whitespace().map(str::to_owned).collect();
        assert_eq!(listed.difference(&in_engine).collect::<Vec<_>>(), <[&String; 0]>::default(), "only listed");
        assert_eq!(in_engine.difference(&listed).collect::<Vec<_>>(), <[&String; 0]>::default(), "not listed");
    }
}
