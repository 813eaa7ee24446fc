//! JSON lines, one object each, in the same format as `bpftrace -f json`.
//!
//! | type | data |
//! |---|---|
//! | `attached_probes` | `{"probes":2}` |
//! | `print` | the text |
//! | `note` | a note about the results, such as that they come from the software GPU |
//! | `gap` | a time in which another tool of a traced program had CUPTI's records: `{"pid":7,"comm":"python3","holder":"libtorch_cpu.so","tool":"torch.profiler","start":…,"end":…,"launches":9,"saw_all":true,"refused":false}`. Times are CLOCK_MONOTONIC; `tool` is null if unknown; `saw_all` is false if there may have been more launches |
//! | `map` | `{"@x":{"KEY":3}}`; a map without a key is the value itself: `{"@n":3}` |
//! | `hist` | `{"@us":{"KEY":[{"min":0,"max":1,"count":4}]}}`, bounds inclusive; open ends have no `min` or no `max` |
//! | `stats` | `{"@s":{"KEY":{"count":1,"average":5,"total":5,"min":5,"max":5}}}`; for `avg()` only the average, as in bpftrace |
//! | `quantiles` | `{"@q":{"KEY":{"count":9,"p50":1,"p90":2,"p99":3,"max":3}}}`, each at most 1/32 too high |
//! | `record` | `{"ring":{"pid":7,"at":[1,2]}}`: a record of a compiled object's ring, by its type |
//! | `losses` | the number of each loss by name; `"lines"`: by line; `"account"`: the outcome of launches, null without a GPU |
//!
//! In the account, `kernels_only` and `launches_only` say that the other kind was not recorded. Each
//! other recorded activity, such as `memset`, has an object of its own in it.
//!
//! A total beyond 64 bits is a string of its digits. Times are integers in nanoseconds, sizes are in
//! bytes, names are whole. As in bpftrace, several keys are joined with a comma, a missing key is `-`,
//! and a stack is one line per frame.

use crate::account::{map_of, place};
use crate::cells::{filled, quantiles, shown_text};
use crate::context::Context;
use crate::datum;
use crate::export::{Exporter, Format};
use crate::print::{stack_lines, unescaped};
use crate::rows::{KeyPart, MapRow, NamedStack, named, rows};
use serde_json::{Map, Value as Json, json};
use std::io::{self, Write};
use xputrace_model::gap::Gap;
use xputrace_model::loss::{Account, Cause, HostCounts, Loss, Losses};
use xputrace_model::object::Dump;
use xputrace_model::output::{Member, Output, View};
use xputrace_model::plan::{Activity, Call, Calls};
use xputrace_model::table::{Cell, TableKind, Value, average};

/// `-f json`.
pub const FORMAT: Format = Format { name: "json", machine_readable: true, open: || Box::new(JsonLines) };

/// Writes one line per output.
struct JsonLines;

impl Exporter for JsonLines {
    fn output(&mut self, out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
        json(out, output, context)
    }
}

/// Writes one output as one line.
///
/// # Errors
/// I/O errors of `out`.
pub fn json(out: &mut dyn Write, output: &Output, context: &mut Context<'_>) -> io::Result<()> {
    let (name, data) = match output {
        Output::Attached { probes } => ("attached_probes", json!({ "probes": probes })),
        Output::Print(pieces) => ("print", json!(unescaped(pieces, context.names))),
        Output::Object(members) => ("print", object(members, context)),
        Output::Note(text) => ("note", json!(text)),
        Output::Gap(it) => ("gap", gap(it)),
        Output::Table(view) => (type_name(view.table.def.kind), table(view, context)),
        Output::Dump(it) => ("map", dump(it)),
        Output::Record { map, value } => ("record", json!({ map: datum::json(value) })),
        Output::End { losses, account } => ("losses", end(losses, account.as_deref(), context)),
    };
    writeln!(out, "{}", json!({ "type": name, "data": data }))
}

/// Returns a printed `#{…}`: integers, booleans, strings and `null`; a stack is a list of its frames.
pub(crate) fn object(members: &[Member], context: &mut Context<'_>) -> Json {
    let value = |it: &Member, context: &mut Context<'_>| match &it.value {
        Value::Missing => Json::Null,
        Value::Bool(on) => json!(on),
        Value::Int(n) => json!(n),
        Value::Str(text) => json!(shown_text(text)),
        Value::Stack(stack) => {
            json!(stack_lines(*stack, context.names).lines().map(str::trim).collect::<Vec<_>>())
        }
    };
    Json::Object(members.iter().map(|it| (it.name.clone(), value(it, context))).collect())
}

pub(crate) fn gap(it: &Gap) -> Json {
    json!({
        "pid": it.pid,
        "comm": shown_text(&it.comm),
        "holder": shown_text(&it.holder),
        "tool": it.tool(),
        "start": it.start,
        "end": it.end,
        "launches": it.launches,
        "saw_all": it.saw_all,
        "refused": it.was_refused,
    })
}

pub(crate) fn type_name(kind: TableKind) -> &'static str {
    match kind {
        TableKind::Hist { .. } | TableKind::Lhist { .. } => "hist",
        TableKind::Stats | TableKind::Avg => "stats",
        TableKind::Quantiles => "quantiles",
        _ => "map",
    }
}

fn table(view: &View, context: &mut Context<'_>) -> Json {
    let def = &view.table.def;
    let rows = rows(view, context.names);
    let contents = match rows.first() {
        Some(row) if def.keys.is_empty() => cell(&row.cell, def.kind, context),
        _ => Json::Object(keyed(&rows, def.kind, context)),
    };
    let mut data = Map::new();
    data.insert(def.name.clone(), contents);
    Json::Object(data)
}

fn dump(it: &Dump) -> Json {
    let mut rows = Map::new();
    for (key, value) in &it.rows {
        rows.insert(unused(&rows, datum::json_key(key)), datum::json(value));
    }
    json!({ &it.map: rows })
}

fn keyed(rows: &[MapRow], kind: TableKind, context: &mut Context<'_>) -> Map<String, Json> {
    let mut all = Map::new();
    for row in rows {
        let text = row.key.iter().map(key_text).collect::<Vec<_>>().join(",");
        all.insert(unused(&all, text), cell(&row.cell, kind, context));
    }
    all
}

/// Returns a key not used yet: keys that differ only in where their commas stand must not replace
/// each other.
fn unused(all: &Map<String, Json>, text: String) -> String {
    if !all.contains_key(&text) {
        return text;
    }
    (2u64..).map(|n| format!("{text} ({n})")).find(|it| !all.contains_key(it)).unwrap_or(text)
}

fn key_text(part: &KeyPart) -> String {
    match part {
        KeyPart::Missing => "-".into(),
        KeyPart::Int(it, _) => it.to_string(),
        KeyPart::Bool(it) => it.to_string(),
        KeyPart::Text(it) => shown_text(it),
        KeyPart::Stack(it) => stack_text(it),
    }
}

fn stack_text(stack: &NamedStack) -> String {
    let lines: String = stack.0.iter().map(|it| format!("\n    {}", it.text())).collect();
    lines + "\n"
}

pub(crate) fn cell(cell: &Cell, kind: TableKind, context: &mut Context<'_>) -> Json {
    match cell {
        Cell::Plain(it) => plain(it, context),
        Cell::Number(it) => json!(it),
        Cell::Avg { .. } => json!(cell.weight()),
        Cell::Stats { count, total, min, max } => json!({
            "count": count,
            "average": average(*total, *count).unwrap_or(0),
            "total": i64::try_from(*total).map_or_else(|_| json!(total.to_string()), |it| json!(it)),
            "min": min,
            "max": max,
        }),
        Cell::Buckets(buckets) if kind == TableKind::Quantiles => match quantiles(buckets) {
            Some(q) => json!({ "count": q.count, "p50": q.p50, "p90": q.p90, "p99": q.p99, "max": q.max }),
            None => json!({ "count": 0 }),
        },
        Cell::Buckets(buckets) => filled(buckets).iter().map(|(index, n)| bucket(kind, *index, *n)).collect(),
    }
}

fn bucket(kind: TableKind, index: i64, count: u64) -> Json {
    let bounds = kind.bucket_bounds(index);
    let mut object = Map::new();
    for (name, bound) in [("min", bounds.min), ("max", bounds.max)] {
        if let Some(bound) = bound {
            object.insert(name.into(), json!(bound));
        }
    }
    object.insert("count".into(), json!(count));
    Json::Object(object)
}

fn plain(value: &Value, context: &mut Context<'_>) -> Json {
    match value {
        Value::Missing => Json::Null,
        Value::Bool(it) => json!(it),
        Value::Int(it) => json!(it),
        Value::Str(it) => json!(shown_text(it)),
        Value::Stack(it) => json!(stack_text(&named(*it, context.names))),
    }
}

pub(crate) fn end(losses: &Losses, account: Option<&Account>, context: &Context<'_>) -> Json {
    let mut data = Map::new();
    for loss in Loss::ALL {
        data.insert(loss.name().into(), json!(losses.of(*loss)));
    }
    let by_script = losses.iter().filter(|(_, cause, _)| *cause != Cause::default());
    data.insert("lines".into(), by_script.map(|it| caused(it, context)).collect());
    data.insert("account".into(), account.map_or(Json::Null, account_json));
    Json::Object(data)
}

/// A loss with the line and the map that it is known to come from.
fn caused((loss, cause, n): (Loss, Cause, u64), context: &Context<'_>) -> Json {
    let mut line = Map::from_iter([("loss".into(), json!(loss.name()))]);
    line.extend(cause.site.map(|it| ("at".into(), json!(place(it, context.sources)))));
    line.insert("count".into(), json!(n));
    line.extend(map_of(cause, context.tables).map(|it| ("map".into(), json!(it))));
    Json::Object(line)
}

/// Returns launches and kernels side by side, and an object for each other recorded activity.
fn account_json(account: &Account) -> Json {
    let (launches, kernels) = (account.launches(), account.activity(Activity::Kernel));
    let mut all = json!({
        "launches": launches.made,
        "joined": launches.joined,
        "failed": launches.failed,
        "lost": launches.lost,
        "without_kernel": launches.without_work,
        "without_record": launches.without_record,
        "captured": launches.captured,
        "outside": launches.outside,
        "kernels_only": !account.calls.intersects(Calls::LAUNCHES),
        "launches_only": !account.activities.contains(Activity::Kernel),
        "kernels": kernels.records,
        "kernel_nanos": kernels.nanos,
        "collector_kernels": kernels.told_records,
        "collector_kernel_nanos": kernels.told_nanos,
    });
    for kind in Activity::ALL.iter().copied().filter(|it| *it != Activity::Kernel) {
        let has_calls = kind.call() != Call::Graph && account.calls.contains(kind.call());
        if has_calls || account.activities.contains(kind) {
            all[kind.name()] = activity_json(account, kind);
        }
    }
    for kind in account.host_events.iter() {
        let HostCounts { handled, lost } = *account.host_event(kind);
        all[kind.name()] = json!({ "events": handled.saturating_add(lost), "handled": handled, "lost": lost });
    }
    all
}

fn activity_json(account: &Account, kind: Activity) -> Json {
    let (calls, records) = (account.call(kind.call()), account.activity(kind));
    json!({
        "calls": calls.made,
        "joined": calls.joined,
        "failed": calls.failed,
        "lost": calls.lost,
        "empty": calls.without_work,
        "without_record": calls.without_record,
        "captured": calls.captured,
        "outside": calls.outside,
        "records_only": !account.calls.contains(kind.call()),
        "calls_only": !account.activities.contains(kind),
        "records": records.records,
        "nanos": records.nanos,
        "collector_records": records.told_records,
        "collector_nanos": records.told_nanos,
    })
}
