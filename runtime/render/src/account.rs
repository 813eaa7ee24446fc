//! Losses, and what to do about them.

use crate::cells::wrapped;
use crate::{Context, human};
use std::io::{self, Write};
use std::sync::Arc;
use xputrace_model::diagnostic::{Site, Sources};
use xputrace_model::loss::{Account, Arrived, Balance, Cause, Loss, Losses};
use xputrace_model::plan::{Activity, Call, Calls};
use xputrace_model::schema::Unit;
use xputrace_model::table::TableDef;

/// Returns what a loss means, then what to do about it, as sentences without a final dot.
pub fn meaning(loss: Loss) -> (&'static str, &'static str) {
    match loss {
        Loss::LaunchRingFull => (
            "launch records that did not fit into a thread's ring",
            "record less per launch (no stack), or sample with `every`",
        ),
        Loss::NoRingForThread => (
            "launches, and other records, of threads that found every ring of their process taken",
            "have fewer threads of one process launch at the same time",
        ),
        Loss::ActivityRingFull => (
            "GPU activity records that did not fit into a ring, even after waiting",
            "give the tracer a CPU of its own",
        ),
        Loss::ActivityUnread => (
            "GPU activity records discarded unread (a lower bound): all buffers for CUPTI were in use",
            "give the tracer a CPU of its own",
        ),
        Loss::CuptiDropped => {
            ("GPU activity records that CUPTI dropped", "have fewer launches in flight, or trace for less time")
        }
        Loss::NoTimestamps => ("GPU activities without times from CUPTI; sums leave out their durations", "nothing"),
        Loss::StackTableFull => {
            ("launch stacks that did not fit into the collector's table", "trace for less time, or without stacks")
        }
        Loss::MappingTableFull => (
            "mappings of processes that did not fit into the tracer's table; stacks have no names there",
            "trace for less time, or without stacks",
        ),
        Loss::NameTableFull => ("names that did not fit into the collector's table", "trace for less time"),
        Loss::Unjoined => (
            "GPU activities whose launch was never seen",
            "either launch records were lost too, or they were launched before tracing began, or by a conditional node of a graph",
        ),
        Loss::LostAtExit => (
            "launches whose kernel record had not arrived when the process ended or called exec",
            "CUPTI delivers records up to 100 ms late: let the program wait that long, or end it with exit()",
        ),
        Loss::Unreconciled => (
            "GPU activity records that the collector sent and that did not arrive",
            "this is a bug in xputrace; please report it",
        ),
        Loss::LaunchEvicted => (
            "launches dropped because too many were waiting for their kernels",
            "look for a kernel that does not finish",
        ),
        Loss::GraphWithoutRecord => (
            "graph launches without a kernel record; whether their graphs launch a kernel is not known",
            "start the program under xputrace, which then sees its graphs being made; conditional nodes, and nodes that \
             are switched off, stay unknown",
        ),
        Loss::OutOfOrder => (
            "events that CUPTI delivered after later ones had been handled; sums are complete",
            "if order matters, read `.launch` in the handler: launches tell which kernels to wait for",
        ),
        Loss::ClockStep => (
            "steps of the wall clock during the run; GPU times near them may be wrong",
            "don't set the clock during a run",
        ),
        Loss::Malformed => (
            "records of a traced process that could not be decoded",
            "either the process overwrote memory that it shares with the tracer, or this is a bug in xputrace; please \
             report it if the process does not",
        ),
        Loss::RecordingDamaged => (
            "blocks of the recording that are damaged or missing",
            "copy the file again, or record again; the message on standard error says where the damage begins",
        ),
        Loss::MapFull => {
            ("updates refused because a map was full", "declare a larger size: `map(#{name: …, size: …})`")
        }
        Loss::MapEvicted => (
            "elements evicted with their values to make room; a key that returns starts anew",
            "declare a larger size: `map(#{name: …, size: …, evict: true})`",
        ),
        Loss::UpdateRefused => (
            "updates that Linux refused temporarily although there was room",
            "ignore small numbers: only the first hits of a new key are missing",
        ),
        Loss::CasFailed => (
            "minima or maxima not stored because other threads kept changing them",
            "add a key that fewer threads share, such as `tid`",
        ),
        Loss::TextCut => ("texts cut to their capacity", "pass a length to `str()`"),
        Loss::LinuxStack => ("stacks that Linux could not store", "declare a larger table: `stacks(65_536);`"),
        Loss::StackCollision => (
            "stacks dropped because another stack has the same hash slot",
            "declare a larger table, where fewer stacks share a slot: `stacks(65_536);`",
        ),
        Loss::LinuxRingFull => (
            "printed lines, and hits that `record` keeps, that did not fit into Linux's ring buffer",
            "print less often, or aggregate; with `record`, probe something less frequent",
        ),
        Loss::MissingValue => {
            ("handlers that ended because they used a missing value", "test the value first: `??`, `in`, `== ()`")
        }
        Loss::DivisionByZero => ("handlers that ended because they divided by zero", "test the divisor first"),
        Loss::SkippedUnjoined => {
            ("events that a handler skipped because their launch is unknown", "to handle them, test `.launch == ()`")
        }
        Loss::UnreadableMemory => (
            "handlers that ended because the program's memory was unreadable",
            "check the address. Linux reads only memory that is loaded: text that the program has not touched yet can be \
             read later, such as at the function's return",
        ),
        Loss::NoEntry => (
            "returns without a probed entry: the calls started before the probe was attached, or in the parent of a forked process",
            "nothing",
        ),
        Loss::ReturnTooDeep => (
            "returns that Linux did not report: their thread already had 64 probed calls open",
            "probe fewer functions that call each other, or drop `return: \"trampoline\"`",
        ),
        Loss::NoReturn => (
            "calls without a return: they ended by an exception, `longjmp` or `exit`, or were still running",
            "nothing",
        ),
        Loss::TailCall => (
            "calls that ended in a jump to another function, which returned instead",
            "probe that function, or only the entry",
        ),
        Loss::LinuxMissed => (
            "hits that Linux skipped because a handler was already running on that CPU",
            "probe something less frequent",
        ),
        Loss::UnprobedProcess => (
            "processes that ran without their uprobes, for some milliseconds or throughout",
            "name the library by its path; if the probe has another scope, use `#{scope: \"tree\"}`",
        ),
        Loss::UntracedProcess => (
            "processes that used CUDA, or may have, and were not traced: their launches are not in the result",
            "run without `-q` to see which and why: the notes are on standard error",
        ),
        Loss::NoLastFlush => (
            "processes killed, or ended by `_exit` or exec: GPU activities of up to their last 100 ms are missing, how many is unknown",
            "end the program with exit(); or read `.launch` in the handler, and the launches that lack a kernel are counted",
        ),
        Loss::StillRunning => (
            "processes that the traced program left running; what they do from here on is not in the result",
            "let the command wait for them (`sh -c '… & wait'`), or trace them by `-p PID` or `-a`",
        ),
        Loss::InstructionLimit => ("handlers stopped by the instruction limit", "make the loop shorter"),
    }
}

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
    for (loss, at, n) in losses.iter() {
        let (what, advice) = meaning(loss);
        let map = at.and_then(|it| map_of(it, context.tables)).map(|it| format!(" of {it}")).unwrap_or_default();
        let place = at.map(|it| format!("{map} at {}", place(it.site, context.sources))).unwrap_or_default();
        write_wrapped(out, &format!("{} {n}{place}: {what}", loss.name()), 2, context)?;
        if advice != "nothing" {
            write_advice(out, advice, context)?;
        }
    }
    Ok(())
}

/// `script.rhai:3`.
pub(crate) fn place(site: Site, sources: &Sources) -> String {
    let file = sources.files.get(site.file.0 as usize).map_or("script", |it| it.name.as_str());
    format!("{file}:{}", site.line)
}

/// Returns the name of the map that lost something at a place in a script.
pub(crate) fn map_of(cause: Cause, tables: &[Arc<TableDef>]) -> Option<&str> {
    tables.get(cause.table?.index()).map(|it| it.name.as_str())
}

/// Returns a line for launches of kernels and graphs together, and one for each other kind of call
/// if the calls or their activities were recorded.
fn balances(account: &Account, losses: &Losses) -> Vec<String> {
    let launches = account.calls.and(Calls::LAUNCHES);
    let noun = if launches == Calls::of(&[Call::Graph]) { "graph launches" } else { "launches" };
    let mut lines = Vec::new();
    lines.extend(balance(noun, launches, Activity::Kernel, account));
    for call in Call::ALL.iter().copied().filter(|it| !Calls::LAUNCHES.contains(*it)) {
        let Some(activity) = call.activity() else { continue };
        let asked = account.calls.and(Calls::of(&[call]));
        lines.extend(balance(&format!("{} calls", call.name()), asked, activity, account));
    }
    if losses.is_empty() && is_balanced(account) {
        lines.last_mut().into_iter().for_each(|it| *it += "; 0 lost");
    }
    lines
}

/// Whether nothing was lost and every recorded kind balances against its calls.
fn is_balanced(account: &Account) -> bool {
    let adds_up = |call: Call| {
        let told = call.activity().unwrap_or(Activity::Kernel);
        let is_joined = account.activities.contains(told) && account.calls.contains_all(told.causes());
        !is_joined || account.call(call).sum() == account.call(call).made
    };
    Call::ALL.iter().all(|it| account.call(*it).lost == 0 && adds_up(*it))
}

/// Formats `launches 200 = joined 198 + failed 2`; returns `None` if neither these calls nor their
/// activities were recorded.
fn balance(noun: &str, calls: Calls, activity: Activity, account: &Account) -> Option<String> {
    let records = account.activities.contains(activity);
    if calls.is_empty() {
        let n = account.activity(activity).records;
        return records.then(|| format!("{}s {n} ({} not recorded)", activity.name(), noun));
    }
    let it = account.balance(calls);
    let Balance { made, joined, failed, lost, without_kernel, without_record, captured } = it;
    if !records {
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        return Some(format!("{noun} {made}{failed} ({}s not recorded)", activity.name()));
    }
    if !account.calls.contains_all(activity.causes()) {
        // The calls that could have caused them were not all recorded, so nothing was joined.
        let n = account.activity(activity).records;
        return Some(format!("{noun} {made}, {}s {n} (not joined)", activity.name()));
    }
    let mut line = format!("{noun} {made} {} joined {joined}", if it.sum() == made { "=" } else { "≠" });
    let parts = [
        ("failed", failed),
        ("lost", lost),
        ("without a kernel", without_kernel),
        ("without a kernel record", without_record),
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
    Some(line)
}

/// Returns a line for each kind whose received records differ from the collector's count.
fn disagreements(account: &Account) -> impl Iterator<Item = String> {
    let time = |nanos: u64| human(i64::try_from(nanos).unwrap_or(i64::MAX), Unit::Nanos);
    account.activities.iter().filter(|it| !account.activity(*it).agrees()).map(move |kind| {
        let Arrived { records, nanos, told_records, told_nanos } = *account.activity(kind);
        format!("{}s {records} ({}) ≠ collector's {told_records} ({})", kind.name(), time(nanos), time(told_nanos))
    })
}

/// Writes what to do below its loss.
fn write_advice(out: &mut dyn Write, advice: &str, context: &Context<'_>) -> io::Result<()> {
    let indent = 4.min(context.width / 2);
    let text = wrapped(&format!("help: {advice}"), context.width - indent, 2);
    text.lines().try_for_each(|it| writeln!(out, "{}{it}", " ".repeat(indent)))
}

fn write_wrapped(out: &mut dyn Write, text: &str, indent: usize, context: &Context<'_>) -> io::Result<()> {
    writeln!(out, "{}", wrapped(text, context.width, indent))
}
