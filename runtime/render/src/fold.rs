//! Tables of stacks → folded lines → flame graphs.
//!
//! A folded line is `outermost;…;innermost WEIGHT`, as in Brendan Gregg's scripts. Further keys of
//! the map become frames on top: `main;forward;cudaLaunchKernel;matmul 1234`.

use crate::cells::printable;
use crate::context::UNLIMITED;
use crate::export::{Exporter, FileOutput, Maps};
use crate::rows::{KeyPart, LOST_STACK, NamedFrame, merged, shorten_names};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use xputrace_model::output::StackNames;
use xputrace_model::schema::Unit;
use xputrace_model::table::{Cell, Scalar, Table, TableDef, TableId, Value};

/// Why a map cannot be folded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    #[error(
        "cannot fold {map}: the first key is not a stack; make it one, as in `{map}[k.launch.ustack, k.name].sum(k.duration)`"
    )]
    NoStack { map: String },
    #[error("cannot fold {map}: {verb} has no single number to weigh a stack by; use `count()` or `sum(x)`")]
    NoWeight { map: String, verb: &'static str },
    #[error("cannot draw a flame graph: there are no stacks with a positive weight")]
    Empty,
    #[error("cannot draw the flame graph: {0}")]
    Draw(String),
}

/// Returns the map's stacks and weights, one per line, sorted; stacks with equal names are merged.
/// A weight is the map's integer (an average's total); weights below 1 cannot be drawn and are left
/// out.
///
/// # Errors
/// The first key is not a stack, or the values are not numbers.
pub fn folded(table: &Table, names: &mut dyn StackNames) -> Result<String, FoldError> {
    let def = &table.def;
    if !def.keys.first().is_some_and(|it| it.kind == Scalar::Stack) {
        return Err(FoldError::NoStack { map: def.name.clone() });
    }
    let mut weights: BTreeMap<String, i64> = BTreeMap::new();
    let mut rows = merged(table, names);
    shorten_names(&mut rows, def, names, UNLIMITED);
    for row in rows {
        let weight =
            weight(&row.cell).ok_or_else(|| FoldError::NoWeight { map: def.name.clone(), verb: def.kind.verb() })?;
        let sum = weights.entry(path(&row.key)).or_default();
        *sum = sum.saturating_add(weight);
    }
    Ok(weights.iter().filter(|(_, n)| **n > 0).map(|(path, n)| format!("{path} {n}\n")).collect())
}

fn weight(cell: &Cell) -> Option<i64> {
    match cell {
        Cell::Plain(Value::Int(n)) | Cell::Number(n) => Some(*n),
        Cell::Avg { total, .. } | Cell::Stats { total, .. } => i64::try_from(*total).ok(),
        Cell::Plain(_) | Cell::Buckets(_) => None,
    }
}

fn path(key: &[KeyPart]) -> String {
    let frames: Vec<String> = key.iter().flat_map(frames).collect();
    if frames.is_empty() { LOST_STACK.into() } else { frames.join(";") }
}

/// Returns the frames of a key part, outermost first.
fn frames(part: &KeyPart) -> Vec<String> {
    match part {
        KeyPart::Stack(stack) => stack.0.iter().rev().map(of_stack).collect(),
        KeyPart::Missing => vec!["-".into()],
        KeyPart::Int(it, _) => vec![it.to_string()],
        KeyPart::Bool(it) => vec![it.to_string()],
        KeyPart::Text(it) => vec![frame(it)],
    }
}

/// The name of a frame; with the file where an address is all that is known of the function.
fn of_stack(it: &NamedFrame) -> String {
    let is_of_file = !it.module.is_empty() && !it.module.starts_with('[');
    match it.function.starts_with("0x") && is_of_file {
        true => frame(&format!("{}+{}", it.module, it.function)),
        false => frame(&it.function),
    }
}

/// Replaces characters that would end the frame or the line.
fn frame(name: &str) -> String {
    match printable(name).replace(';', ":") {
        it if it.trim().is_empty() => "-".into(),
        it => it,
    }
}

/// Draws folded lines as an SVG; `unit` labels the weights.
///
/// # Errors
/// There is nothing to draw, or the sum exceeds 64 bits.
pub fn flamegraph(folded: &str, title: &str, unit: Unit) -> Result<Vec<u8>, FoldError> {
    if folded.trim().is_empty() {
        return Err(FoldError::Empty);
    }
    if total(folded) > i64::MAX as u128 {
        return Err(FoldError::Draw("the sum of its weights is not a 64-bit number".into()));
    }
    let mut options = inferno::flamegraph::Options::default();
    options.title = title.to_string();
    options.count_name = match unit {
        Unit::None | Unit::Mixed => "samples",
        Unit::Nanos | Unit::Clock => "ns",
        Unit::Bytes => "bytes",
    }
    .into();
    // Equal stacks give equal bytes.
    options.deterministic = true;
    options.hash = true;
    let mut svg = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut svg)
        .map_err(|it| FoldError::Draw(it.to_string()))?;
    Ok(svg)
}

/// A stack and its share of the total weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Frames, outermost first.
    pub frames: Vec<String>,
    pub weight: u64,
    /// From 0 to 1.
    pub share: f64,
}

/// Returns the `n` heaviest stacks of folded lines, heaviest first. Skips lines without a weight.
pub fn widest_paths(folded: &str, n: usize) -> Vec<Path> {
    let sum = total(folded);
    let mut all: Vec<(&str, u64)> = folded.lines().filter_map(parse).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    all.truncate(n);
    let path = |(path, weight): (&str, u64)| Path {
        frames: path.split(';').map(str::to_string).collect(),
        weight,
        share: if sum == 0 { 0.0 } else { weight as f64 / sum as f64 },
    };
    all.into_iter().map(path).collect()
}

fn total(folded: &str) -> u128 {
    folded.lines().filter_map(parse).map(|(_, weight)| u128::from(weight)).sum()
}

/// Splits a folded line into path and weight.
fn parse(line: &str) -> Option<(&str, u64)> {
    let (path, weight) = line.rsplit_once(' ')?;
    Some((path, weight.parse().ok()?))
}

/// `--folded`.
pub const FOLDED: FileOutput = FileOutput {
    option: "folded",
    help: "Write folded stacks: FILE, or @name=FILE to choose the map",
    open: |typed, maps| {
        let (map, path) = stack_map(typed, maps)?;
        Ok((Box::new(StackFile { map, is_drawn: false, path: path.clone() }), path))
    },
};

/// `--flamegraph`.
pub const FLAMEGRAPH: FileOutput = FileOutput {
    option: "flamegraph",
    help: "Write a flame graph: FILE.svg, or @name=FILE.svg",
    open: |typed, maps| {
        let (map, path) = stack_map(typed, maps)?;
        Ok((Box::new(StackFile { map, is_drawn: true, path: path.clone() }), path))
    },
};

/// Writes a map's stacks to a file, as folded lines or as a flame graph.
pub struct StackFile {
    pub map: TableId,
    /// Draw a flame graph.
    pub is_drawn: bool,
    /// The file's path, for messages.
    pub path: String,
}

impl StackFile {
    fn bytes(&self, table: &Table, names: &mut dyn StackNames) -> Result<Vec<u8>, String> {
        let def = &table.def;
        let folded = folded(table, names).map_err(|it| it.to_string())?;
        if folded.is_empty() {
            return Err(format!("{} is empty: {} is not written", def.name, self.path));
        }
        match self.is_drawn {
            false => Ok(folded.into_bytes()),
            true => flamegraph(&folded, &format!("xputrace {}", def.name), def.unit).map_err(|it| it.to_string()),
        }
    }
}

impl Exporter for StackFile {
    fn finish(&mut self, out: &mut dyn Write, maps: &mut dyn Maps) -> Result<Option<String>, String> {
        let mut made = Err(String::new());
        let mut name = String::new();
        maps.read(self.map, &mut |table, names| {
            name.clone_from(&table.def.name);
            made = self.bytes(table, names);
        });
        out.write_all(&made?).map_err(|it| format!("cannot write {}: {it}", self.path))?;
        let what = if self.is_drawn { "a flame graph" } else { "folded stacks" };
        Ok(Some(format!("wrote {}: {what} of {name}", self.path)))
    }
}

/// Parses `FILE` or `@name=FILE` into the map and the file.
fn stack_map(typed: &str, maps: &[Arc<TableDef>]) -> Result<(TableId, String), String> {
    let is_stack = |it: &TableDef| it.keys.first().is_some_and(|it| it.kind == Scalar::Stack);
    let stacks: Vec<(TableId, &str)> =
        TableId::each(maps).filter(|(_, it)| is_stack(it)).map(|(id, it)| (id, it.name.as_str())).collect();
    if let Some((name, path)) = typed.split_once('=').filter(|(name, _)| name.starts_with('@')) {
        let found = stacks.iter().find(|(_, it)| *it == name);
        return found.map(|(id, _)| (*id, path.to_owned())).ok_or_else(|| format!("no map {name} begins with a stack"));
    }
    match stacks.as_slice() {
        [(id, _)] => Ok((*id, typed.to_owned())),
        [] => Err("no map of the script has a stack as its first key, as in \
                   @gpu[k.launch.ustack, k.name].sum(k.duration)"
            .into()),
        several => {
            let names: Vec<&str> = several.iter().map(|(_, it)| *it).collect();
            Err(format!(
                "several maps have stacks as their first key ({}); choose one: {}={typed}",
                names.join(", "),
                names[0]
            ))
        }
    }
}
