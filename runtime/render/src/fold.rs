//! Tables of stacks → folded lines → flame graphs.
//!
//! A folded line is `outermost;…;innermost WEIGHT`, as Brendan Gregg's scripts made common.
//! Further keys of the map become frames on top: `main;forward;cudaLaunchKernel;matmul 1234`.

use crate::cells::printable;
use crate::rows::{LOST_STACK, Part, merged};
use std::collections::BTreeMap;
use xputrace_model::output::StackNames;
use xputrace_model::schema::Unit;
use xputrace_model::table::{Cell, Table, Value};

/// Why a map cannot be drawn as stacks.
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

/// The map's stacks with their weights, a line each, sorted; stacks of the same names are one.
/// Weights are the map's integers (an average's is its total); those below 1 cannot be drawn
/// and are left out.
///
/// # Errors
/// The first key is no stack, or values are not numbers.
pub fn folded(table: &Table, names: &mut dyn StackNames) -> Result<String, FoldError> {
    let def = &table.def;
    if !def.keys.first().is_some_and(|it| it.kind == xputrace_model::table::Scalar::Stack) {
        return Err(FoldError::NoStack { map: def.name.clone() });
    }
    let mut weights: BTreeMap<String, i64> = BTreeMap::new();
    for row in merged(table, names) {
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

fn path(key: &[Part]) -> String {
    let frames: Vec<String> = key.iter().flat_map(frames).collect();
    if frames.is_empty() { LOST_STACK.into() } else { frames.join(";") }
}

/// A key part's frames, outermost first.
fn frames(part: &Part) -> Vec<String> {
    match part {
        Part::Stack(stack) => stack.0.iter().rev().map(|it| frame(&it.function)).collect(),
        Part::Missing => vec!["-".into()],
        Part::Int(it, _) => vec![it.to_string()],
        Part::Bool(it) => vec![it.to_string()],
        Part::Text(it) => vec![frame(it)],
    }
}

/// A name that neither ends a frame nor a line.
fn frame(name: &str) -> String {
    match printable(name).replace(';', ":") {
        it if it.is_empty() => "-".into(),
        it => it,
    }
}

/// Draws folded lines as an SVG. `unit` says what the weights are, for its labels.
///
/// # Errors
/// There is nothing to draw, or more than 64 bits can sum up.
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
    // The same stacks give the same bytes.
    options.deterministic = true;
    options.hash = true;
    let mut svg = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut svg)
        .map_err(|it| FoldError::Draw(it.to_string()))?;
    Ok(svg)
}

/// A stack and its share of all weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// Frames, outermost first.
    pub frames: Vec<String>,
    pub weight: u64,
    /// Of the sum of all weights, 0 to 1.
    pub share: f64,
}

/// The `n` heaviest stacks of folded lines, heaviest first. Lines without a weight are passed over.
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

/// A folded line's path and weight.
fn parse(line: &str) -> Option<(&str, u64)> {
    let (path, weight) = line.rsplit_once(' ')?;
    Some((path, weight.parse().ok()?))
}
