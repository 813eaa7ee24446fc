//! Text output in bpftrace's style, fitted to the terminal.
//!
//! ```text
//! @time[matmul]: 3.10 ms
//!
//! @latency:
//! [8.19 us, 16.4 us)      12 |@@@@@@@@                                           |
//! ```
//! Histogram bounds of times are rounded to three digits (`[8.19 us, 16.4 us)`). Bounds of sizes
//! and plain numbers (`[4 KiB, 8 KiB)`, `[4K, 8K)`), bounds of linear histograms, and keys are
//! exact. Values with a unit are rounded to three digits.

use crate::account::write_end;
use crate::cells::{alike, columns, filled, padded, printable, quantiles, shorten, shown_text, told_apart};
use crate::context::Context;
use crate::datum;
use crate::export::{Exporter, Format};
use crate::human::{binary, exact, human};
use crate::print::{object, printed};
use crate::rows::{KeyPart, MapRow, NamedStack, named, rows, shorten_names};
use std::io::{self, Write};
use xputrace_model::bucket::Bounds;
use xputrace_model::gap::Gap;
use xputrace_model::output::{Output, View};
use xputrace_model::schema::Unit;
use xputrace_model::table::{Cell, TableDef, TableKind, Value, average};

/// `-f text`.
pub const FORMAT: Format = Format { name: "text", machine_readable: false, open: || Box::new(TextOutput) };

/// Writes tables for a terminal.
struct TextOutput;

impl Exporter for TextOutput {
    fn output(&mut self, out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
        text(out, output, context)
    }
}

/// Writes one output. Lines fit the context's width, except what a script prints.
///
/// # Errors
/// I/O errors of `out`.
pub fn text(out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
    match output {
        Output::Attached { probes: 1 } => writeln!(out, "Attached 1 probe"),
        Output::Attached { probes } => writeln!(out, "Attached {probes} probes"),
        Output::Print(pieces) => writeln!(out, "{}", printed(pieces, context.names)),
        Output::Object(members) => writeln!(out, "{}", object(members, context.names)),
        Output::Note(text) => writeln!(out, "{text}"),
        Output::Gap(it) => writeln!(out, "{}", gap(it)),
        Output::Table(view) => table(out, view, context),
        Output::Dump(it) => datum::lines(it).iter().try_for_each(|it| writeln!(out, "{it}")),
        Output::Record { map, value } => writeln!(out, "{map}: {}", datum::text(value)),
        Output::End { losses, account } => write_end(out, losses, account.as_deref(), context),
    }
}

/// Returns the sentence about a gap.
fn gap(it: &Gap) -> String {
    let library = shown_text(&it.holder);
    let holder = it.tool().map_or(library.to_string(), |tool| format!("{tool} ({library})"));
    let process = format!("process {} ({})", it.pid, shown_text(&it.comm));
    if it.was_refused {
        return format!("refused: {holder} asked for CUPTI in {process}, and was told that it is in use");
    }
    let time = human(i64::try_from(it.end.saturating_sub(it.start)).unwrap_or(i64::MAX), Unit::Nanos);
    let least = if it.saw_all { "" } else { "at least " };
    let launches = if it.launches == 1 { "launch" } else { "launches" };
    format!("gap: {time}, {least}{} {launches}: {holder} had CUPTI in {process}", it.launches)
}

/// Writes a map's rows in ascending order, and an empty line after a map of several lines.
fn table(out: &mut dyn Write, view: &View, context: &mut Context<'_>) -> io::Result<()> {
    let def = &*view.table.def;
    let mut rows = rows(view, context.names);
    shorten_names(&mut rows, def, context.names, room_of_name(def, context.width));
    if rows.is_empty() {
        return writeln!(out, "{}", shorten(&format!("{}: empty", def.name), context.width));
    }
    let values: Vec<ShownValue> = rows.iter().map(|it| shown_value(def, it, context)).collect();
    let keys = shown_keys(def, &rows, &values, context.width);
    let mut lines = Vec::new();
    for (i, ((row, key), value)) in rows.iter().zip(keys).zip(values).enumerate() {
        if i > 0 && is_histogram(def.kind) {
            lines.push(String::new());
        }
        lines.extend(headed(def, row, &key, &value.suffix, context.width));
        lines.extend(value.below);
    }
    if def.kind == TableKind::Quantiles {
        lines.push(shorten(&format!("    (quantiles of {}: error ≤ 1/32)", def.name), context.width));
    }
    if lines.len() > 1 {
        lines.push(String::new());
    }
    lines.iter().try_for_each(|it| writeln!(out, "{it}"))
}

/// Returns about how many columns a name in a key has, beside the map's name and a value.
fn room_of_name(def: &TableDef, width: usize) -> usize {
    /// Columns of `[]: 3.10 ms`, and a few for a longer value.
    const BESIDE: usize = 14;
    width.saturating_sub(columns(&def.name) + BESIDE)
}

fn is_histogram(kind: TableKind) -> bool {
    matches!(kind, TableKind::Hist { .. } | TableKind::Lhist { .. })
}

/// A value, next to its key or below it.
struct ShownValue {
    /// What follows the key on the same line: `: 3.10 ms`, or `:`.
    suffix: String,
    below: Vec<String>,
}

fn shown_value(def: &TableDef, row: &MapRow, context: &mut Context<'_>) -> ShownValue {
    let width = context.width;
    let below = |below| ShownValue { suffix: ":".into(), below };
    match &row.cell {
        Cell::Buckets(buckets) if def.kind != TableKind::Quantiles => below(histogram(def, &filled(buckets), width)),
        Cell::Plain(Value::Stack(stack)) => {
            below(frame_lines(&named(*stack, context.names).shortened(context.names), width))
        }
        cell => {
            let parts = value_parts(cell, def);
            match fits_beside(def, row, &parts, width) {
                true => ShownValue { suffix: format!(": {}", parts.join(", ")), below: Vec::new() },
                false => below(value_lines(&parts, width)),
            }
        }
    }
}

/// Whether a value fits next to its key; otherwise it goes on the next line.
fn fits_beside(def: &TableDef, row: &MapRow, parts: &[String], width: usize) -> bool {
    const LEAST_KEY: usize = 24;
    let value = parts.iter().map(|it| columns(it) + 2).sum::<usize>();
    value + LEAST_KEY.min(columns(&def.name) + key_columns(row)) <= width
}

/// Formats a value on its own indented lines, broken between its parts.
fn value_lines(parts: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let comma = if i + 1 < parts.len() { "," } else { "" };
        match lines.last_mut().filter(|it| columns(it) + 1 + columns(part) + comma.len() <= width) {
            Some(line) => line.push_str(&format!(" {part}{comma}")),
            None => lines.push(format!("    {part}{comma}")),
        }
    }
    lines.iter().map(|it| shorten(it, width)).collect()
}

/// Returns each row's key words, cut to the room on its line; different keys stay different.
fn shown_keys(def: &TableDef, rows: &[MapRow], values: &[ShownValue], width: usize) -> Vec<Vec<String>> {
    let room = |value: &ShownValue| width.saturating_sub(columns(&def.name) + 2 + columns(&value.suffix));
    let rooms: Vec<Vec<usize>> = rows.iter().zip(values).map(|(row, it)| word_widths(row, room(it))).collect();
    let cut =
        |row: &MapRow, rooms: &[usize]| row.key.iter().zip(rooms).map(|(it, n)| shorten(&word_text(it), *n)).collect();
    let mut shown: Vec<Vec<String>> = rows.iter().zip(&rooms).map(|(row, it)| cut(row, it)).collect();
    for group in alike(&shown) {
        for part in 0..shown[group[0]].len() {
            let texts: Vec<String> = group.iter().map(|it| word_text(&rows[*it].key[part])).collect();
            if texts.iter().all(|it| *it == texts[0]) {
                continue;
            }
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let widths: Vec<usize> = group.iter().map(|it| rooms[*it][part]).collect();
            group.iter().zip(told_apart(&texts, &widths)).for_each(|(at, it)| shown[*at][part] = it);
        }
    }
    shown
}

/// Formats the element's name followed by `suffix`. Keys are cut to fit the width, the suffix is
/// not. A stack in the key takes one line per frame.
fn headed(def: &TableDef, row: &MapRow, words: &[String], suffix: &str, width: usize) -> Vec<String> {
    if row.key.is_empty() {
        return vec![shorten(&format!("{}{suffix}", def.name), width)];
    }
    let mut lines = vec![format!("{}[", shorten(&def.name, width.saturating_sub(1)))];
    for (i, (part, word)) in row.key.iter().zip(words).enumerate() {
        let separator = if i > 0 { ", " } else { "" };
        match part {
            KeyPart::Stack(stack) => {
                lines.last_mut().expect("never empty").push_str(separator.trim_end());
                lines.extend(frame_lines(stack, width));
                lines.push(String::new());
            }
            _ => lines.last_mut().expect("never empty").push_str(&format!("{separator}{word}")),
        }
    }
    lines.last_mut().expect("never empty").push_str(&format!("]{suffix}"));
    // Reached only on a very narrow terminal, or with very many keys.
    lines.iter().map(|it| shorten(it, width)).collect()
}

/// Returns the width of each key word, so that all of them and the separators take `room`; long
/// words shrink first.
fn word_widths(row: &MapRow, room: usize) -> Vec<usize> {
    const SHORTEST: usize = 8;
    let mut widths: Vec<usize> = row.key.iter().map(|it| columns(&word_text(it))).collect();
    let room = room.saturating_sub(2 * widths.len().saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let Some(longest) = (0..widths.len()).max_by_key(|it| widths[*it]) else { break };
        if widths[longest] <= SHORTEST {
            break;
        }
        let excess = widths.iter().sum::<usize>() - room;
        let second = widths.iter().copied().filter(|it| *it < widths[longest]).max().unwrap_or(0);
        let target = widths[longest].saturating_sub(excess).max(second).max(SHORTEST);
        widths[longest] = target.min(widths[longest] - 1);
    }
    widths
}

fn key_columns(row: &MapRow) -> usize {
    if row.key.is_empty() {
        return 0;
    }
    row.key.iter().map(|it| columns(&word_text(it)) + 2).sum()
}

fn word_text(part: &KeyPart) -> String {
    match part {
        KeyPart::Missing => "-".into(),
        // Rounding could make different keys read the same.
        KeyPart::Int(it, unit) => exact(*it, *unit),
        KeyPart::Bool(it) => it.to_string(),
        KeyPart::Text(it) => printable(it),
        KeyPart::Stack(_) => String::new(),
    }
}

fn frame_lines(stack: &NamedStack, width: usize) -> Vec<String> {
    let indent = " ".repeat(4.min(width / 2));
    let room = width - indent.len();
    stack.0.iter().map(|it| format!("{indent}{}", shorten(&it.text(), room))).collect()
}

/// Returns a value's parts, with units.
fn value_parts(cell: &Cell, def: &TableDef) -> Vec<String> {
    let unit = |n: i64| human(n, def.unit);
    let one = |text: String| vec![text];
    match cell {
        Cell::Plain(Value::Missing) => one("-".into()),
        Cell::Plain(Value::Bool(it)) => one(it.to_string()),
        Cell::Plain(Value::Int(it)) => one(unit(*it)),
        Cell::Plain(Value::Str(it)) => one(printable(it)),
        Cell::Plain(Value::Stack(_)) => one(String::new()),
        Cell::Number(it) if def.kind == TableKind::Count => one(it.to_string()),
        Cell::Number(it) => one(unit(*it)),
        Cell::Avg { .. } => one(unit(cell.weight())),
        Cell::Stats { count, total, min, max } => vec![
            format!("count {count}"),
            format!("average {}", unit(average(*total, *count).unwrap_or(0))),
            // A value beyond 64 bits has no fitting unit either.
            format!("total {}", i64::try_from(*total).map_or_else(|_| total.to_string(), &unit)),
            format!("min {}", unit(*min)),
            format!("max {}", unit(*max)),
        ],
        Cell::Buckets(buckets) => match quantiles(buckets) {
            Some(q) => vec![
                format!("count {}", q.count),
                format!("p50 {}", unit(q.p50)),
                format!("p90 {}", unit(q.p90)),
                format!("p99 {}", unit(q.p99)),
                format!("max {}", unit(q.max)),
            ],
            None => one("count 0".into()),
        },
    }
}

/// Column widths of bpftrace's histograms: bounds, count, bar.
const BOUNDS_WIDTH: usize = 16;
const COUNT_WIDTH: usize = 8;
const BAR_WIDTH: usize = 52;
/// Empty buckets in a row that are shown as one line.
const LEAST_GAP: usize = 16;

fn histogram(def: &TableDef, rows: &[(i64, u64)], width: usize) -> Vec<String> {
    let labels: Vec<String> = rows.iter().map(|(index, _)| label(def, *index)).collect();
    let counts: Vec<String> = rows.iter().map(|(_, n)| n.to_string()).collect();
    let longest = |texts: &[String], least: usize| texts.iter().map(|it| columns(it)).max().unwrap_or(0).max(least);
    let label_width = longest(&labels, BOUNDS_WIDTH);
    let count_width = longest(&counts, COUNT_WIDTH - 1) + 1;
    let bar_width = width.saturating_sub(label_width + count_width + 3).min(BAR_WIDTH);
    let largest = rows.iter().map(|(_, n)| *n).max().unwrap_or(0);
    let line = |at: usize| {
        let bar = "@".repeat(bar_columns(rows[at].1, largest, bar_width));
        let (label, count) = (padded(&labels[at], label_width), &counts[at]);
        shorten(&format!("{label}{count:>count_width$} |{}|", padded(&bar, bar_width)), width)
    };
    let mut lines = Vec::with_capacity(rows.len());
    let mut at = 0;
    for run in rows.chunk_by(|a, b| (a.1 == 0) == (b.1 == 0)) {
        match run[0].1 {
            0 if run.len() >= LEAST_GAP => lines.push(shorten(&format!("... {} empty", run.len()), width)),
            _ => lines.extend((at..at + run.len()).map(line)),
        }
        at += run.len();
    }
    lines
}

fn bar_columns(n: u64, largest: u64, width: usize) -> usize {
    let scaled = (u128::from(n) * width as u128).checked_div(u128::from(largest)).unwrap_or(0);
    usize::try_from(scaled).unwrap_or(width).min(width)
}

/// Formats a bucket: `[2, 4)`, `[0]`, `(..., 0)`, `[10, ...)`.
fn label(def: &TableDef, index: i64) -> String {
    let number = |n: i64| bound_text(n, def);
    match def.kind.bucket_bounds(index) {
        Bounds { min: None, max } => format!("(..., {})", number(max.unwrap_or(i64::MAX).saturating_add(1))),
        Bounds { min: Some(min), max: None } => format!("[{}, ...)", number(min)),
        Bounds { min: Some(min), max: Some(max) } if min == max => format!("[{}]", number(min)),
        Bounds { min: Some(min), max: Some(i64::MAX) } => format!("[{}, ...)", number(min)),
        Bounds { min: Some(min), max: Some(max) } => format!("[{}, {})", number(min), number(max + 1)),
    }
}

fn bound_text(n: i64, def: &TableDef) -> String {
    let logarithmic = !matches!(def.kind, TableKind::Lhist { .. });
    match def.unit {
        // With more sub-buckets than three digits can distinguish, bounds must be exact.
        Unit::Nanos if logarithmic && def.kind.bucket_bits() <= 5 => human(n, Unit::Nanos),
        Unit::None | Unit::Clock | Unit::Mixed if logarithmic => binary(n),
        unit => exact(n, unit),
    }
}
