//! Where each handler runs and why, where maps live, and their overhead.

mod measured;

use crate::account::place;
use crate::cells::{padded, wrapped};
use std::fmt::Write;
use xputrace_model::object::{Object, ObjectHome};
use xputrace_model::plan::{Calls, Demand, Detail, HostEvent, Place, Plan, Probe, ProbeScope, SwitchId};
use xputrace_model::schema::Unit;
use xputrace_model::table::{KeyPart, Parts, Scalar, Storage, TableDef, TableKind};

/// Width of the explanation in columns.
const EXPLAIN_WIDTH: usize = 80;

/// How many handlers of one declaration (a loop or pattern) are listed.
const MOST_SHOWN: usize = 8;

/// Describes the plan in at most 80 columns.
pub fn explain(plan: &Plan) -> String {
    let mut text = String::new();
    handlers(plan, &mut text);
    maps(plan, &mut text);
    payers(plan, &mut text);
    text
}

fn handlers(plan: &Plan, text: &mut String) {
    let rows: Vec<HandlerLine> = plan.probes.iter().map(|it| HandlerLine::of(it, plan)).collect();
    let width =
        |text: fn(&HandlerLine) -> &str| rows.iter().map(|it| text(it).chars().count()).max().unwrap_or(0).min(40);
    let (declared, name) = (width(|it| &it.declared), width(|it| &it.name));
    line(text, 0, "handlers");
    let all: Vec<(&HandlerLine, &Probe)> = rows.iter().zip(&plan.probes).collect();
    for of_one_declaration in all.chunk_by(|a, b| (a.1.site, &a.1.why) == (b.1.site, &b.1.why)) {
        let shown = if of_one_declaration.len() > MOST_SHOWN + 1 { MOST_SHOWN } else { of_one_declaration.len() };
        for (row, probe) in &of_one_declaration[..shown] {
            let row = format!("  {}  {}  {}", padded(&row.declared, declared), padded(&row.name, name), row.runs_in);
            line(text, 4, &row);
            for why in &probe.why {
                line(text, 6, &format!("      {why}"));
            }
        }
        if shown < of_one_declaration.len() {
            line(text, 6, &format!("      and {} more like these", of_one_declaration.len() - shown));
        }
    }
}

/// What is shown of a handler.
struct HandlerLine {
    /// Its place in the script.
    declared: String,
    name: String,
    runs_in: &'static str,
}

impl HandlerLine {
    fn of(probe: &Probe, plan: &Plan) -> Self {
        let name = match (plan.object.is_some(), probe.program) {
            (true, Some(program)) => format!("{} in {}", plan.image.programs[program].name, probe.name),
            _ if probe.name.is_empty() => probe.event.name().to_string(),
            _ => probe.name.clone(),
        };
        HandlerLine { declared: place(probe.site, &plan.sources), name, runs_in: probe.place.name() }
    }
}

fn maps(plan: &Plan, text: &mut String) {
    if let Some(object) = plan.object.as_ref().filter(|it| !it.maps.is_empty()) {
        return object_maps(object, text);
    }
    if plan.tables.is_empty() {
        return;
    }
    line(text, 0, "");
    line(text, 0, "maps");
    for def in &plan.tables {
        line(text, 4, &format!("  {}{}: {}", def.name, keys(&def.keys), contents(def)));
        line(text, 6, &format!("      {}", home(def)));
    }
}

/// Says of a compiled object's maps what their definitions say, and where they are.
fn object_maps(object: &Object, text: &mut String) {
    line(text, 0, "");
    line(text, 0, "maps");
    for map in &object.maps {
        let sizes = match map.is_ring() {
            true => String::new(),
            false => format!(
                ", keys of {} bytes, values of {}, at most {}",
                map.key.bytes(),
                map.value.bytes(),
                map.max_entries
            ),
        };
        line(text, 4, &format!("  {}: type {}{sizes}", map.name, map.number));
        let home = match map.home {
            ObjectHome::Linux => "in linux",
            ObjectHome::Shared => "in linux; each access by a program on the GPU is a system call",
            ObjectHome::Gpu => "on the GPU",
        };
        line(text, 6, &format!("      {home}"));
    }
}

fn keys(keys: &[KeyPart]) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let key = |it: &KeyPart| format!("{}{}", scalar(it.kind), if it.optional { " or ()" } else { "" });
    format!("[{}]", keys.iter().map(key).collect::<Vec<_>>().join(", "))
}

fn scalar(kind: Scalar) -> String {
    match kind {
        Scalar::Int => "integer".into(),
        Scalar::Bool => "boolean".into(),
        Scalar::Name => "name".into(),
        Scalar::Text(n) => format!("text up to {n} bytes"),
        Scalar::Stack => "stack".into(),
    }
}

fn contents(def: &TableDef) -> String {
    let what = match def.kind {
        TableKind::Plain(it) => scalar(it),
        kind => kind.verb().to_string(),
    };
    let unit = match def.unit {
        Unit::None | Unit::Mixed => "",
        Unit::Nanos => " in nanoseconds",
        Unit::Clock => ", points in time",
        Unit::Bytes => " in bytes",
    };
    let full = if def.evict { ", evicts the oldest" } else { "" };
    format!("{what}{unit}; capacity {}{full}", def.capacity)
}

fn home(def: &TableDef) -> String {
    if let Storage::Parts(Parts { linux, tracer, gpu }) = def.storage {
        let engines = [(linux, "in linux (one part per CPU)"), (tracer, "in the tracer"), (gpu, "on the GPU")];
        let parts: Vec<&str> = engines.iter().filter(|it| it.0.is_some()).map(|it| it.1).collect();
        return format!("{}; merged when read", parts.join(" and "));
    }
    let home = match def.storage {
        Storage::Linux { .. } if def.kind.is_aggregation() => "in linux, one part per CPU; merged when read",
        Storage::Linux { from_tracer: true, .. } => {
            "in linux; each access by the tracer is a system call (about 0.7 us)"
        }
        Storage::Linux { from_tracer: false, .. } => "in linux",
        Storage::Tracer(_) => "in the tracer",
        Storage::Gpu(_) => "on the GPU",
        Storage::Interpreter | Storage::Parts(_) => "in the interpreter",
    };
    home.to_owned()
}

fn payers(plan: &Plan, text: &mut String) {
    line(text, 0, "");
    line(text, 0, "overhead");
    let mut all = Vec::new();
    if plan.demand.gpu() {
        let first = plan.demand_while(|it| plan.switches[it.index()].begins_on);
        all.push(match demanded(&first) {
            parts if parts.is_empty() => "program: the collector records nothing at first".into(),
            parts => format!("program: the collector records {}", parts.join(", ")),
        });
        all.extend(measured::costs(&first));
        all.extend(switched(plan, &first));
    }
    if plan.demand.has(Detail::Marker) {
        all.push("each launch: a linux handler at the collector's marker function, about 1 us".into());
    }
    if plan.probes.iter().any(|it| it.place == Place::Linux && it.scope != ProbeScope::System) {
        all.push("program and its children: each hit of a linux probe".into());
    }
    let probes = |passes: &dyn Fn(&Probe) -> bool| listed(plan.probes.iter().filter(|it| passes(it)));
    if let Some(probes) = probes(&|it| it.scope == ProbeScope::System) {
        all.push(format!("all processes: each hit of {probes} (system-wide)"));
    }
    if let Some(probes) = probes(&|it| it.scope == ProbeScope::Tree && it.event.is_in_code()) {
        all.push(format!("other processes: about 1 us per hit of {probes}; these hits are filtered out"));
    }
    if plan.device_handlers().next().is_some() {
        all.push("kernels that match: device code, in each of their threads".into());
    }
    if plan.object.as_ref().is_some_and(|it| !it.launches.is_empty()) {
        all.push("GPU: programs of kprobe/__directly_run, once".into());
    }
    if plan.probes.iter().any(|it| !matches!(it.place, Place::Linux | Place::Gpu)) {
        all.push("tracer: all other handlers, outside the program".into());
    }
    if all.is_empty() {
        all.push("none: nothing is attached".into());
    }
    for payer in all {
        line(text, 4, &format!("  {payer}"));
    }
}

/// Lists the first probe names and how many more there are; returns `None` if there are none.
fn listed<'a>(probes: impl Iterator<Item = &'a Probe>) -> Option<String> {
    const NAMED: usize = 3;
    let names: Vec<&str> = probes.map(|it| it.name.as_str()).collect();
    let first = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        n if n > NAMED => Some(format!("{first} and {} more", n - NAMED)),
        _ => Some(first),
    }
}

/// Says what the collector records beyond what it does at first while one more probe is enabled, and what it does not
/// while one is disabled. Probes for which that is the same share a line.
fn switched(plan: &Plan, first: &Demand) -> Vec<String> {
    let first = demanded(first);
    let mut lines: Vec<(bool, Vec<String>, Vec<String>)> = Vec::new();
    for (id, switch) in SwitchId::each(&plan.switches) {
        let turned = demanded(&plan.demand_while(|it| plan.switches[it.index()].begins_on != (it == id)));
        let (more, less) = if switch.begins_on { (&first, &turned) } else { (&turned, &first) };
        let changed: Vec<String> = more.iter().filter(|it| !less.contains(it)).cloned().collect();
        let name = format!("{} ({})", switch.name, place(switch.site, &plan.sources));
        match lines.iter_mut().find(|it| (it.0, &it.2) == (switch.begins_on, &changed)) {
            _ if changed.is_empty() => {}
            Some((_, names, _)) => names.push(name),
            None => lines.push((switch.begins_on, vec![name], changed)),
        }
    }
    let line = |(begins_on, names, changed): (bool, Vec<String>, Vec<String>)| {
        let (state, verb) = if begins_on { ("disabled", "does not record") } else { ("enabled", "also records") };
        format!("program: while {} is {state}, it {verb} {}", names.join(" or "), changed.join(", "))
    };
    lines.into_iter().map(line).collect()
}

fn demanded(demand: &Demand) -> Vec<String> {
    let watched = if demand.has(Detail::Outermost) { "" } else { " (the driver's calls only)" };
    let launches = demand.calls.intersects(Calls::LAUNCHES).then(|| format!("launches{watched}"));
    let other_calls = demand.calls.without(Calls::LAUNCHES);
    launches
        .into_iter()
        .chain(other_calls.iter().map(|it| format!("{} calls{watched}", it.name())))
        .chain(demand.activities.iter().map(|it| it.plural().to_string()))
        .chain(texts(demand, Detail::is_of_launches))
        .chain(demand.host_events.iter().map(|it| host_event(it, demand)))
        .chain(texts(demand, |it| !it.is_of_launches()))
        .collect()
}

/// Lists details of one kind.
fn texts(demand: &Demand, of: impl Fn(Detail) -> bool) -> impl Iterator<Item = String> {
    let text = |it| match it {
        Detail::Captures if demand.only_whole_graphs() => "a stack at each graph that is instantiated",
        Detail::Captures => "a stack at each node of a graph that is captured or added",
        other => other.text(),
    };
    let listed = demand.details.iter().filter(move |it| of(*it)).map(text).filter(|it| !it.is_empty());
    listed.map(str::to_owned)
}

fn host_event(event: HostEvent, demand: &Demand) -> String {
    match (event, event.about().records) {
        (HostEvent::Api, _) => format!("calls of {} CUDA functions", demand.api.iter().count()),
        (_, "") => format!("{} events", event.name()),
        (_, records) => records.to_owned(),
    }
}

fn line(text: &mut String, indent: usize, content: &str) {
    writeln!(text, "{}", hanging(content, indent)).expect("writing to a string does not fail");
}

/// Wraps text, keeping its leading spaces.
fn hanging(content: &str, indent: usize) -> String {
    let lead = content.len() - content.trim_start().len();
    let body = wrapped(content.trim_start(), EXPLAIN_WIDTH - lead, indent.saturating_sub(lead));
    body.lines().map(|it| format!("{}{it}", " ".repeat(lead)).trim_end().to_string()).collect::<Vec<_>>().join("\n")
}
