//! Losses, and what to do about them.

use crate::cells::wrapped;
use crate::{Context, human};
use std::io::{self, Write};
use xputrace_model::diagnostic::{Site, Sources};
use xputrace_model::loss::{Account, Arrived, Balance, Loss, Losses};
use xputrace_model::plan::{Activity, Call, Calls};
use xputrace_model::schema::Unit;

/// Returns what a loss means, then what to do about it, as sentences without a final dot.
pub fn meaning(loss: Loss) -> (&'static str, &'static str) {
    match loss {
        Loss::LaunchRingFull => (
            "launch records that did not fit into a thread's ring",
            "ask for less with each launch (no stack), or sample with `every`",
        ),
        Loss::NoRingForThread => (
            "threads that launched while all rings were taken; their launches are not seen",
            "trace fewer threads at once",
        ),
        Loss::ActivityRingFull => (
            "records of GPU work that did not fit into a ring although the writer waited",
            "give the tracer a processor of its own",
        ),
        Loss::CuptiDropped => {
            ("records of GPU work that CUPTI itself dropped", "launch less at once, or trace a shorter time")
        }
        Loss::NoTimestamps => {
            ("GPU work whose times CUPTI did not collect", "nothing; their durations are not in any sum")
        }
        Loss::StackTableFull => {
            ("launch stacks that did not fit into the collector's table", "trace a shorter time, or leave stacks out")
        }
        Loss::NameTableFull => ("names that did not fit into the collector's table", "trace a shorter time"),
        Loss::Unjoined => (
            "GPU work whose launch was never seen",
            "where launch records were lost too, their work is this; else it was launched before tracing began",
        ),
        Loss::LostAtExit => (
            "launches whose kernel record had not come when the process ended, or ran another program",
            "CUPTI hands records over some 100 ms late: let the program wait that long, or end by exit()",
        ),
        Loss::Unreconciled => (
            "records of GPU work that the collector passed on and that did not arrive",
            "report it: this should not happen",
        ),
        Loss::LaunchEvicted => {
            ("launches forgotten because too many waited for their kernels", "look for a kernel that does not finish")
        }
        Loss::GraphWithoutRecord => (
            "graph launches without a kernel record; whether their graphs launch a kernel is not known",
            "start the program under xputrace, which then sees its graphs being made; conditional nodes, and nodes that \
             are switched off, stay unknown",
        ),
        Loss::OutOfOrder => (
            "events that CUPTI handed over after later ones had been handled; nothing is missing from sums",
            "read `.launch` in a handler where order matters: launches tell which kernels are to come",
        ),
        Loss::ClockStep => {
            ("steps of the wall clock while recording; times near them may be off", "keep the clock from being set")
        }
        Loss::Malformed => ("records that could not be decoded", "report it: this should not happen"),
        Loss::MapFull => ("updates refused because a map was full", "declare it larger: `map(#{name: …, size: …})`"),
        Loss::MapEvicted => (
            "elements that made room for others, with what they held; a key that comes again begins anew",
            "declare the map larger: `map(#{name: …, size: …, evict: true})`",
        ),
        Loss::UpdateRefused => (
            "updates that Linux refused for a moment, though there was room",
            "nothing where the number is small: the first hits of a new key are missing, later ones are not",
        ),
        Loss::CasFailed => (
            "minima or maxima not stored because others kept changing them",
            "add a key that fewer threads share, such as `tid`",
        ),
        Loss::TextCut => ("texts longer than their capacity, stored cut", "give `str()` a length"),
        Loss::KernelStack => ("stacks that Linux could not store", "declare a larger table: `stacks(65_536);`"),
        Loss::KernelRingFull => (
            "printed lines and events that did not fit into the kernel's ring buffer",
            "print less often, or aggregate",
        ),
        Loss::MissingValue => {
            ("handlers that ended because they used a missing value", "test it first: `??`, `in`, `== ()`")
        }
        Loss::DivisionByZero => ("handlers that ended because they divided by zero", "test the divisor first"),
        Loss::SkippedUnjoined => (
            "events that a handler skipped because their launch is not known",
            "test `.launch == ()` in the handler to see them",
        ),
        Loss::UnreadableMemory => {
            ("handlers that ended because they could not read the program's memory", "check the address that is read")
        }
        Loss::NoEntry => {
            ("returns whose entry was not seen", "nothing: the calls had begun before the probe was there")
        }
        Loss::ReturnTooDeep => (
            "returns that the kernel does not report: a thread had 64 probed calls open around them",
            "probe fewer functions that call each other, or drop `return: \"trampoline\"`",
        ),
        Loss::NoReturn => (
            "calls whose return was not seen: they were left by an exception, `longjmp` or `exit`, or were still running",
            "nothing: such calls have no return",
        ),
        Loss::TailCall => (
            "calls that ended with a jump to another function, which returns in their place",
            "probe that function, or the entry alone",
        ),
        Loss::KernelMissed => (
            "hits that Linux skipped because a program was already running on that processor",
            "probe something less frequent",
        ),
        Loss::UnprobedProcess => (
            "processes that ran without their uprobes, for some milliseconds or until their end",
            "name a library by its path; give the probe `#{scope: \"tree\"}`, if it has another",
        ),
        Loss::UntracedProcess => (
            "processes that started CUDA and were not traced: none of their launches is in the result",
            "the notes say which and why",
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
    for (loss, site, n) in losses.iter() {
        let (what, advice) = meaning(loss);
        let place = site.map(|it| format!(" at {}", place(it, context.sources))).unwrap_or_default();
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
        return records.then(|| format!("{}s {n} ({} not asked for)", activity.name(), noun));
    }
    let it = account.balance(calls);
    let Balance { made, joined, failed, lost, without_kernel, without_record, captured } = it;
    if !records {
        let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
        return Some(format!("{noun} {made}{failed} ({}s not asked for)", activity.name()));
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
