//! `xputrace list`: the events of the language, the probes of this machine, and the kernels of a program.

mod kernels;

use crate::cli::ListOptions;
use crate::console;
use anyhow::{Result, anyhow, bail};
use std::process::ExitCode;
use xputrace_linux::{LiveCatalog, list_functions, list_tracepoints, list_usdt, with_descendants};
use xputrace_model::api::{self, ApiFunction, Parameter};
use xputrace_model::catalog::{Catalog, glob};
use xputrace_model::listing::Listed;
use xputrace_model::schema::{Event, HostEvent};

/// The event of which each call of CUDA is a place.
const API: Event = Event::Host(HostEvent::Api);

/// Lists what matches the pattern.
pub fn list(options: &ListOptions) -> Result<ExitCode> {
    if let Some(pattern) = options.pattern.as_deref().and_then(|it| it.strip_prefix("device:")) {
        return kernels::list(pattern, options);
    }
    let is_usdt = options.pattern.as_deref().is_some_and(|it| it.starts_with("usdt:"));
    if (options.pid.is_some() && !is_usdt) || !options.command.is_empty() {
        bail!(
            "-p is for the kernels and USDT probes of a program, and a command for its kernels: \
             xputrace list 'device:*' -p PID"
        );
    }
    let mut found = matches(options.pattern.as_deref(), options.pid)?;
    let pattern = options.pattern.as_deref().unwrap_or("*");
    match found.iter().find_map(|it| it.refused) {
        Some(why) if !options.verbose && found.iter().all(|it| it.refused.is_some()) => {
            return Err(anyhow!("nothing that `{pattern}` matches can be probed ({why}); `list -v` shows what it is"));
        }
        None if found.is_empty() => return Err(anyhow!("nothing here matches `{pattern}`{}", form(pattern))),
        _ => {}
    }
    if options.verbose {
        read_records(&mut found);
    }
    console::print(xputrace_render::listing(&found, options.verbose))?;
    Ok(ExitCode::SUCCESS)
}

/// Says how patterns are written, if this one is of no event.
fn form(pattern: &str) -> &'static str {
    match pattern.contains(':') {
        true => "",
        false => "; patterns are events and what they are at: 'uprobe:libc:mem*', 'tracepoint:sched:*', 'api:cudaM*'",
    }
}

fn matches(pattern: Option<&str>, pid: Option<u32>) -> Result<Vec<Listed>> {
    let Some(pattern) = pattern else { return every_event(&|_| true) };
    let Some((kind, rest)) = pattern.split_once(':') else { return events(pattern) };
    match Event::all().find(|it| it.name() == kind && (it.has_places() || *it == API)) {
        Some(event) if event.is_function() => list_functions(event, rest).map_err(|it| anyhow!(it)),
        Some(Event::Usdt) => {
            let pids = with_descendants(&pid.into_iter().collect::<Vec<_>>());
            list_usdt(rest, &pids).map_err(|it| anyhow!(it))
        }
        Some(API) => calls(rest),
        Some(_) => list_tracepoints(rest).map_err(|it| anyhow!(it)),
        None => Err(anyhow!(
            "cannot list `{pattern}`: give an event such as kernel, or uprobe:LIBRARY:FUNCTION, \
             uretprobe:LIBRARY:FUNCTION, usdt:FILE:PROVIDER:NAME, tracepoint:CATEGORY:NAME, api:CALL or device:KERNEL, with * for any text"
        )),
    }
}

/// Returns the calls of CUDA that a pattern matches, with their parameters.
fn calls(pattern: &str) -> Result<Vec<Listed>> {
    let parameter = |it: &Parameter| (format!("args.{}", it.name), it.type_text().to_owned());
    let listed = |it: &ApiFunction| Listed {
        own: it.parameters.iter().map(parameter).collect(),
        ..Listed::new(API, format!("api:{}", it.name()))
    };
    Ok(api::functions_like(pattern).map(listed).collect())
}

/// Lists the places in kernels.
fn list_places_in_kernels(is_verbose: bool) -> Result<()> {
    let places = every_event(&|it| matches!(it, Event::Device(_)))?;
    Ok(console::print(xputrace_render::listing(&places, is_verbose))?)
}

/// Returns the events whose name matches a pattern.
fn events(pattern: &str) -> Result<Vec<Listed>> {
    match pattern {
        "device" => every_event(&|it| matches!(it, Event::Device(_))),
        _ => every_event(&|it| glob(pattern, it.name())),
    }
}

/// Returns the events that pass. Functions are too many to list without a library. Tracepoints that
/// cannot be read are an error only if nothing else is listed.
fn every_event(passes: &dyn Fn(Event) -> bool) -> Result<Vec<Listed>> {
    let mut found = Vec::new();
    for event in Event::all().filter(|it| passes(*it)) {
        match event {
            Event::Tracepoint => match list_tracepoints("*") {
                Ok(all) => found.extend(all),
                Err(why) if found.is_empty() => return Err(anyhow!(why)),
                Err(why) => console::say(format_args!("tracepoints are not listed: {why}")),
            },
            Event::Usdt => found.push(Listed::new(event, format!("{}:FILE:PROVIDER:NAME", event.name()))),
            _ if event.is_function() => found.push(Listed::new(event, format!("{}:LIBRARY:FUNCTION", event.name()))),
            _ => found.push(Listed::new(event, event.name())),
        }
    }
    Ok(found)
}

/// Adds the fields of tracepoints.
fn read_records(found: &mut [Listed]) {
    let catalog = LiveCatalog::new();
    for probe in found.iter_mut().filter(|it| it.event == Event::Tracepoint) {
        let names = probe.name.strip_prefix("tracepoint:").and_then(|it| it.split_once(':'));
        let format = names.and_then(|(category, name)| catalog.tracepoint(category, name).ok());
        let own = format.map(|it| it.fields).unwrap_or_default();
        probe.own = own.into_iter().map(|it| (it.name, it.kind.text())).collect();
    }
}
