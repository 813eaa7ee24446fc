//! Turns the facts in `gpu-probes/layouts` into tables.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

/// More than the highest callback id of a domain.
const IDS: usize = 1024;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let facts = |name: &str| {
        let path = PathBuf::from("../layouts/cupti-13.0").join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        std::fs::read_to_string(&path).unwrap_or_else(|it| panic!("{}: {it}", path.display()))
    };
    let (layouts, calls) = (facts("layouts.txt"), facts("calls.txt"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("tables.rs");
    std::fs::write(&out, tables(&layouts, &calls)).unwrap_or_else(|it| panic!("{}: {it}", out.display()));
}

fn tables(layouts: &str, calls: &str) -> String {
    [functions(layouts, &described(calls)), errors(calls)].concat()
}

/// The parameters of a call: their size in bytes, and `NAME:KIND:OFFSET` of each.
struct Described<'a> {
    bytes: u8,
    parameters: Vec<&'a str>,
}

/// Returns the calls whose parameters are known, by name.
fn described(calls: &str) -> HashMap<&str, Described<'_>> {
    fn named(line: &str) -> (&str, Described<'_>) {
        let mut words = line.split(' ');
        let mut next = || words.next().expect("a name and a size");
        let (name, bytes) = (next(), next().parse().expect("a small size"));
        (name, Described { bytes, parameters: words.collect() })
    }
    calls.lines().filter_map(|it| it.strip_prefix("params ")).map(named).collect()
}

/// Writes the functions, and by layer and id how large their parameters are, and whether there is one.
fn functions(layouts: &str, described: &HashMap<&str, Described<'_>>) -> String {
    let mut functions = String::new();
    let mut sizes = [[0u8; IDS]; 2];
    let mut exists = [[0u64; IDS / 64]; 2];
    for line in layouts.lines().filter_map(|it| it.strip_prefix("cbid ")) {
        let [layer, id, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let id: usize = id.parse().expect("an id");
        let at = usize::from(layer == "runtime");
        exists[at][id / 64] |= 1 << (id % 64);
        let known = described.get(name);
        sizes[at][id] = known.map_or(0, |it| it.bytes);
        let parameters: String = known.iter().flat_map(|it| &it.parameters).map(|it| parameter(it)).collect();
        let id = format!("FunctionId::of({}, {id})", variant(layer));
        writeln!(functions, "    ApiFunction {{ id: {id}, full_name: {name:?}, parameters: &[{parameters}] }},")
            .unwrap();
    }
    let (words, most_bytes) = (IDS / 64, sizes.as_flattened().iter().max().expect("calls"));
    format!(
        "/// More than the highest callback id of a layer.
pub const MOST_IDS: usize = {IDS};
/// Most bytes of a call's parameters.
pub const MOST_PARAMETER_BYTES: usize = {most_bytes};
pub(crate) static FUNCTIONS: &[ApiFunction] = &[\n{functions}];
pub(crate) static SIZES: [[u8; {IDS}]; 2] = {sizes:?};
pub(crate) static EXISTS: [[u64; {words}]; 2] = {exists:?};\n"
    )
}

fn errors(calls: &str) -> String {
    let mut errors = String::new();
    for line in calls.lines().filter_map(|it| it.strip_prefix("error ")) {
        let [layer, code, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        writeln!(errors, "    ({}, {code}, {name:?}),", variant(layer)).unwrap();
    }
    format!("pub(crate) static ERRORS: &[(Layer, i32, &str)] = &[\n{errors}];\n")
}

fn variant(layer: &str) -> &'static str {
    if layer == "runtime" { "Layer::Runtime" } else { "Layer::Driver" }
}

fn parameter(text: &str) -> String {
    let [name, kind, offset] = text.split(':').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let (letter, width) = kind.split_at(1);
    let kind = match letter {
        "u" => format!("Unsigned({width})"),
        "s" => format!("Signed({width})"),
        "f" => format!("Float({width})"),
        "p" => "Pointer".to_owned(),
        "x" => "Structure".to_owned(),
        _ => panic!("{text}"),
    };
    format!("Parameter {{ name: {name:?}, kind: ParameterKind::{kind}, offset: {offset} }}, ")
}
