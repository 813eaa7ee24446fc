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
    let described: HashMap<&str, (&str, Vec<&str>)> = calls
        .lines()
        .filter_map(|it| it.strip_prefix("params "))
        .map(|it| {
            let mut words = it.split(' ');
            let mut next = || words.next().expect("a name and a size");
            let (name, size) = (next(), next());
            (name, (size, words.collect()))
        })
        .collect();
    let mut functions = String::from("pub(crate) static FUNCTIONS: &[Function] = &[\n");
    let mut sizes = [[0u8; IDS]; 2];
    let mut exists = [[0u64; IDS / 64]; 2];
    for line in layouts.lines().filter_map(|it| it.strip_prefix("cbid ")) {
        let [layer, id, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let id: usize = id.parse().expect("an id");
        let (size, parameters) = described.get(name).map_or(("0", &[][..]), |it| (it.0, &it.1[..]));
        let is_runtime = layer == "runtime";
        sizes[usize::from(is_runtime)][id] = size.parse().expect("a small size");
        exists[usize::from(is_runtime)][id / 64] |= 1 << (id % 64);
        let layer = if is_runtime { "Runtime" } else { "Driver" };
        let parameters: String = parameters.iter().map(|it| parameter(it)).collect();
        let id = format!("FunctionId::of(Layer::{layer}, {id})");
        writeln!(functions, "    Function {{ id: {id}, full_name: {name:?}, parameters: &[{parameters}] }},").unwrap();
    }
    functions.push_str("];\n");
    let mut errors = String::from("pub(crate) static ERRORS: &[(Layer, i32, &str)] = &[\n");
    for line in calls.lines().filter_map(|it| it.strip_prefix("error ")) {
        let [layer, code, name] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let layer = if layer == "runtime" { "Runtime" } else { "Driver" };
        writeln!(errors, "    (Layer::{layer}, {code}, {name:?}),").unwrap();
    }
    errors.push_str("];\n");
    let words = IDS / 64;
    format!(
        "{functions}{errors}pub(crate) static SIZES: [[u8; {IDS}]; 2] = {sizes:?};
pub(crate) static EXISTS: [[u64; {words}]; 2] = {exists:?};\n"
    )
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
