//! Losses, and what to do about them.

use crate::cells::wrapped;
use crate::context::Context;
use crate::human::human;
use std::io::{self, Write};
use std::sync::Arc;
use xputrace_model::diagnostic::{Site, Sources};
use xputrace_model::loss::{Account, Arrived, Balance, Cause, HostCounts, Losses};
use xputrace_model::plan::{Activity, Call, Calls, HostEvent};
use xputrace_model::schema::Unit;
use xputrace_model::table::TableDef;

/// Writes one line if nothing was lost, else one line per loss with its meaning.
pub(crate) fn write_end(
    out: &mut dyn Write,
    losses: &Losses,
    account: Option<&Account>,
    context: &Context<'_>,
) -> io::Result<()> {
    if let Some(account) = account {
        for line in balances(account, losses).into_iter().chain(disagreements(account)) {
            write_wrapped(out, &line, 2, context)?;
        }
    } else if losses.is_empty() {
        writeln!(out, "0 lost")?;
    }
    for (loss, cause, n) in losses.iter() {
        let map = map_of(cause, context.tables).map(|it| format!(" of {it}")).unwrap_or_default();
        let place = cause.site.map(|it| format!(" at {}", place(it, context.sources))).unwrap_or_default();
        write_wrapped(out, &format!("{} {n}{map}{place}: {}", loss.name(), loss.meaning()), 2, context)?;
        loss.help().map_or(Ok(()), |help| write_help(out, help, context))?;
    }
    Ok(())
}

/// `script.rhai:3`.
pub(crate) fn place(site: Site, sources: &Sources) -> String {
    let file = sources.files.get(site.file.0 as usize).map_or("script", |it| it.name.as_str());
    format!("{file}:{}", site.line)
}

/// Returns the name of the map that lost something.
pub(crate) fn map_of(cause: Cause, tables: &[Arc<TableDef>]) -> Option<&str> {
    tables.get(cause.table?.index()).map(|it| it.name.as_str())
}

/// Returns a line for launches of kernels and graphs together, and one for each other kind of call
/// if the calls or their activities were recorded.
fn balances(account: &Account, losses: &Losses) -> Vec<String> {
    let launches = account.calls.and(Calls::LAUNCHES);
    let noun = if launches == Calls::of(&[Call::Graph]) { "graph launches" } else { "launches" };
    let mut lines = Vec::new();
    lines.extend(balance(noun, launches, account.shows(Call::Graph), account));
    for call in Call::ALL.iter().copied().filter(|it| !Calls::LAUNCHES.contains(*it)) {
        let activity = call.activity();
        let asked = account.calls.and(Calls::of(&[call]));
        // Records that were asked for beside others, and of which there were none.
        if asked.is_empty() && account.activity(activity).records == 0 && !lines.is_empty() {
            continue;
        }
        lines.extend(balance(&format!("{} calls", call.name()), asked, activity, account));
    }
    lines.extend(account.host_events.iter().map(|it| of_host_events(it, account.host_event(it))));
    if losses.is_empty() && is_balanced(account) {
        lines.last_mut().into_iter().for_each(|it| *it += "; 0 lost");
    }
    lines
}

/// Formats `wait events 14 = handled 12 + lost 2`.
fn of_host_events(kind: HostEvent, it: &HostCounts) -> String {
    let sum = it.handled.saturating_add(it.lost);
    match it.lost {
        0 => format!("{} events {sum}", kind.name()),
        lost => format!("{} events {sum} = handled {} + lost {lost}", kind.name(), it.handled),
    }
}

/// Whether nothing was lost and every recorded kind balances against its calls.
fn is_balanced(account: &Account) -> bool {
    let adds_up = |call: Call| {
        let told = account.shows(call);
        let is_joined = account.activities.contains(told) && account.calls.contains_all(told.causes());
        !is_joined || account.call(call).sum() == account.call(call).made
    };
    let has_all = |it: HostEvent| account.host_event(it).lost == 0;
    Call::ALL.iter().all(|it| account.call(*it).lost == 0 && adds_up(*it)) && account.host_events.iter().all(has_all)
}

/// Formats `launches 200 = joined 198 + failed 2`; returns `None` if neither these calls nor their
/// activities were recorded.
fn balance(noun: &str, calls: Calls, activity: Activity, account: &Account) -> Option<String> {
    let records = account.activities.contains(activity);
    if calls.is_empty() {
        let n = account.activity(activity).records;
        return records.then(|| format!("{} {n} ({noun} not recorded)", activity.plural()));
    }
    let it = account.balance(calls);
    let Balance { made, joined, failed, lost, without_work, without_record, captured, outside } = it;
    if !records {
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        return Some(format!("{noun} {made}{failed} ({} not recorded)", activity.plural()));
    }
    if !account.calls.contains_all(activity.causes()) {
        // The calls that could have caused them were not all recorded, so nothing was joined.
        let n = account.activity(activity).records;
        return Some(format!("{noun} {made}, {} {n} (not joined)", activity.plural()));
    }
    let mut line = format!("{noun} {made} {} joined {joined}", if it.sum() == made { "=" } else { "≠" });
    let are_launches = calls.intersects(Calls::LAUNCHES);
    let parts = [
        ("failed", failed),
        ("lost", lost),
        (if are_launches { "without a kernel" } else { "empty" }, without_work),
        (if are_launches { "without a kernel record" } else { "without a record" }, without_record),
    ];
    for (name, n) in parts {
        if n > 0 {
            line += &format!(" + {name} {n}");
        }
    }
    if it.sum() != made {
        line += &format!("; {} not accounted for", made.abs_diff(it.sum()));
    }
    if captured > 0 {
        line += &format!("; {captured} captured into graphs");
    }
    if outside > 0 {
        line += &format!("; {outside} outside the recorded part");
    }
    Some(line)
}

/// Returns a line for each kind whose received records differ from the collector's count.
fn disagreements(account: &Account) -> impl Iterator<Item = String> {
    let time = |nanos: u64| human(i64::try_from(nanos).unwrap_or(i64::MAX), Unit::Nanos);
    account.activities.iter().filter(|it| !account.activity(*it).agrees()).map(move |kind| {
        let Arrived { records, nanos, told_records, told_nanos } = *account.activity(kind);
        format!("{} {records} ({}) ≠ collector's {told_records} ({})", kind.plural(), time(nanos), time(told_nanos))
    })
}

/// Writes what the user can do below its loss.
fn write_help(out: &mut dyn Write, help: &str, context: &Context<'_>) -> io::Result<()> {
    let indent = 4.min(context.width / 2);
    let text = wrapped(&format!("help: {help}"), context.width - indent, 2);
    text.lines().try_for_each(|it| writeln!(out, "{}{it}", " ".repeat(indent)))
}

fn write_wrapped(out: &mut dyn Write, text: &str, indent: usize, context: &Context<'_>) -> io::Result<()> {
    writeln!(out, "{}", wrapped(text, context.width, indent))
}
