//! What `xputrace help EVENT` says of an event.

use crate::listing::{FieldRow, row, rows};
use std::fmt::Write;
use xputrace_model::schema::{About, Event, FieldType};

/// Explains an event: when it fires, its fields with their types and units, and an example.
pub fn event_help(event: Event) -> String {
    let About { usage, fires, example, more, cost, measured, .. } = event.about();
    let mut text = format!("{usage}\n    fires when {}\n    costs the program {}\n", plain(fires), cost.text());
    if let Some(it) = measured {
        let _ = writeln!(text, "    on an H200: {} (docs/BENCHMARKS.md)", plain(&it.text()));
    }
    let fields = fields(event);
    if !fields.is_empty() {
        text.push_str("\nFields:\n");
        rows(&mut text, &fields);
    }
    if let Some(more) = more {
        let _ = writeln!(text, "\n{more}");
    }
    text.push_str("\nExample:\n");
    for line in example.lines() {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// Returns a clause without the marks of code.
fn plain(markdown: &str) -> String {
    markdown.replace('`', "")
}

/// Returns a row for each field, and for each part of a field that has no value of its own.
fn fields(event: Event) -> Vec<FieldRow> {
    let mut all = Vec::new();
    for field in event.fields() {
        all.push(row(field, field.name.to_owned()));
        if let FieldType::Parts(parts) = field.kind {
            all.extend(parts.iter().map(|it| row(it, format!("{}.{}", field.name, it.name))));
        }
    }
    all
}
