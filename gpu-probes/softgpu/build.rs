//! Links the library with symbol versions of an old glibc, since the demo takes it along, and turns the facts in
//! `gpu-probes/layouts` into CUPTI's records.

use std::fmt::Write;
use std::path::PathBuf;
use xputrace_old_glibc::{Linked, link};

/// A record that is made from the facts.
struct Record {
    /// Its structure, as CUPTI 13.0 calls it, behind `CUpti_Activity`.
    name: &'static str,
    /// What the facts call it.
    facts: &'static str,
    /// Fields that the facts lack, from CUPTI 13.0's header: name, offset and size.
    others: &'static [(&'static str, usize, usize)],
}

const RECORDS: &[Record] = &[
    Record {
        name: "Kernel10",
        facts: "Kernel",
        others: &[
            ("partitionedGlobalCacheRequested", 8, 4),
            ("partitionedGlobalCacheExecuted", 12, 4),
            ("sharedMemoryExecuted", 140, 4),
            ("channelType", 172, 4),
            ("clusterSchedulingPolicy", 188, 4),
            ("localMemoryTotalV2", 192, 8),
        ],
    },
    Record { name: "Memcpy6", facts: "Memcpy", others: &[] },
    Record { name: "MemcpyPtoP4", facts: "MemcpyPtoP", others: &[] },
    Record { name: "Memset4", facts: "Memset", others: &[] },
    Record { name: "GraphTrace2", facts: "GraphTrace", others: &[] },
    Record { name: "Overhead3", facts: "Overhead", others: &[] },
    Record { name: "UnifiedMemoryCounter3", facts: "UnifiedMemory", others: &[] },
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    link(Linked::Library);
    let path = "../layouts/cupti-13.0/layouts.txt";
    println!("cargo::rerun-if-changed={path}");
    let facts = std::fs::read_to_string(path).unwrap_or_else(|it| panic!("{path}: {it}"));
    let structures: String = RECORDS.iter().map(|it| structure(it, &facts)).collect();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("records.rs");
    std::fs::write(&out, structures).unwrap_or_else(|it| panic!("{}: {it}", out.display()));
}

/// Writes a record's structure. What no field is known of is a field too, so that no byte is padding.
fn structure(record: &Record, facts: &str) -> String {
    let Record { name, .. } = record;
    let mut text = format!(
        "/// `CUpti_Activity{name}`.\n#[repr(C)]\n#[derive(Clone, Copy, Default)]\npub(crate) struct {name} {{\n"
    );
    let mut end = 0;
    for (field, offset, size) in fields(record, facts) {
        gap(&mut text, end, offset);
        writeln!(text, "    pub(crate) {}: {},", snake_case(field), type_of(size)).unwrap();
        end = offset + size;
    }
    gap(&mut text, end, size_of(record.facts, facts));
    text + "}\n\n"
}

/// Returns name, offset and size of a record's fields, in their order. Of a union, the first that is known.
fn fields<'a>(record: &Record, facts: &'a str) -> Vec<(&'a str, usize, usize)> {
    let prefix = format!("field {}.", record.facts);
    let known = facts.lines().filter_map(|it| it.strip_prefix(&prefix)).map(|line| {
        let [name, offset, size] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let number = |it: &str| it.parse::<usize>().expect("a number");
        (name.rsplit('.').next().expect("a name"), number(offset), number(size))
    });
    let mut all: Vec<_> = known.chain(record.others.iter().copied()).collect();
    all.sort_by_key(|it| it.1);
    let mut end = 0;
    all.retain(|(_, offset, size)| {
        let is_first = *offset >= end;
        end = end.max(offset + size);
        is_first
    });
    all
}

fn size_of(record: &str, facts: &str) -> usize {
    let line = facts.lines().find_map(|it| it.strip_prefix(&format!("struct {record} ")));
    line.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("no size of {record}"))
}

fn gap(text: &mut String, from: usize, to: usize) {
    if from < to {
        writeln!(text, "    pub(crate) _{from}: [u8; {}],", to - from).unwrap();
    }
}

fn type_of(size: usize) -> String {
    match size {
        1 | 2 | 4 | 8 => format!("u{}", 8 * size),
        _ => format!("[u64; {}]", size / 8),
    }
}

/// Converts a name such as `channelID`.
fn snake_case(name: &str) -> String {
    let mut out = String::new();
    let mut was_capital = false;
    for it in name.replace("V2", "_v2").chars() {
        if it.is_ascii_uppercase() && !was_capital {
            out.push('_');
        }
        was_capital = it.is_ascii_uppercase();
        out.push(it.to_ascii_lowercase());
    }
    out
}
