//! What `xputrace help EVENT` says of an event.

use crate::listing::{Row, row, rows};
use std::fmt::Write;
use xputrace_model::manual::Entry;
use xputrace_model::schema::{Event, FieldType, HostEvent};

/// Explains an event: when it fires, its fields with their types and units, and an example.
pub fn event_help(entry: &Entry) -> String {
    let mut text = format!("{}\n    fires when {}\n", entry.declaration, plain(entry.meaning));
    let fields = fields(entry.event);
    if !fields.is_empty() {
        text.push_str("\nFields:\n");
        rows(&mut text, &fields);
    }
    if let Some(more) = more(entry.event) {
        let _ = writeln!(text, "\n{more}");
    }
    text.push_str("\nExample:\n");
    for line in entry.example.lines() {
        let _ = writeln!(text, "    {line}");
    }
    text
}

/// Returns a clause without the marks of code.
fn plain(markdown: &str) -> String {
    markdown.replace('`', "")
}

/// Returns a row for each field, and for each part of a field that has no value of its own.
fn fields(event: Event) -> Vec<Row> {
    let mut all = Vec::new();
    for field in event.fields() {
        all.push(row(field, field.name.to_owned()));
        if let FieldType::Parts(parts) = field.kind {
            all.extend(parts.iter().map(|it| row(it, format!("{}.{}", field.name, it.name))));
        }
    }
    all
}

/// Returns where there is more about it.
fn more(event: Event) -> Option<&'static str> {
    Some(match event {
        Event::Activity(_) => "The fields of `launch` are those of the launch event: xputrace help launch",
        Event::Host(HostEvent::Api) => "Names of calls, and their parameters: xputrace list -v 'api:cudaMalloc*'",
        Event::Tracepoint => "A tracepoint's own fields: xputrace list -v 'tracepoint:sched:*'",
        Event::Uprobe | Event::Uretprobe => "Functions that can be probed: xputrace list 'uprobe:libc:mem*'",
        Event::Usdt => "Probes of a file, and their arguments: xputrace list -v 'usdt:libstdc++:*'",
        _ => return None,
    })
}
