//! `xputrace help TOPIC` and `xputrace man`.

use crate::cli::{self, HelpOptions, ManOptions};
use crate::console;
use crate::creator::creator;
use anyhow::{Context, Result, bail};
use clap::Command;
use clap_mangen::Man;
use std::path::Path;
use std::process::ExitCode;
use xputrace_boundary::create::FileAccess;
use xputrace_model::diagnostic::nearest;
use xputrace_model::schema::Event;

/// Explains an event. Verbs and scripts explain themselves: `VERB --help`.
///
/// # Errors
/// There is no such topic.
pub fn explain_topic(options: &HelpOptions) -> Result<ExitCode> {
    let topic = options.topic.as_deref().unwrap_or_default();
    match Event::all().find(|it| it.name() == topic) {
        Some(event) => console::print(xputrace_render::event_help(event))?,
        None => return Err(unknown(topic)),
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown(topic: &str) -> anyhow::Error {
    let table = cli::table();
    let verbs = table.get_subcommands().map(Command::get_name);
    let scripts = xputrace_script::scripts().iter().map(|it| it.name);
    let mut topics: Vec<&str> = Event::all().map(Event::name).collect();
    topics.extend(verbs.chain(scripts));
    let hint = match nearest(topic, topics) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "`xputrace list` lists events, `xputrace scripts` scripts, `xputrace help` verbs".into(),
    };
    anyhow::anyhow!("there is no event, verb or script called `{topic}`; {hint}")
}

/// Prints a manual page, or writes them all.
///
/// # Errors
/// There is no such verb, or the directory cannot be written.
pub fn page(options: &ManOptions) -> Result<ExitCode> {
    let mut table = cli::table();
    // Gives verbs their whole names: `xputrace list`.
    table.build();
    match (&options.verb, &options.directory) {
        (_, Some(directory)) => write_pages(&table, directory)?,
        (None, None) => console::print(roff(&table)?)?,
        (Some(verb), None) => match table.find_subcommand(verb) {
            Some(command) => console::print(roff(command)?)?,
            None => bail!("there is no verb `{verb}`: `xputrace help` lists them"),
        },
    }
    Ok(ExitCode::SUCCESS)
}

fn write_pages(table: &Command, directory: &Path) -> Result<()> {
    for command in std::iter::once(table).chain(table.get_subcommands()) {
        let path = directory.join(Man::new(command.clone()).get_filename());
        let written = creator().write(&path, roff(command)?.as_bytes(), FileAccess::Usual);
        written.with_context(|| format!("cannot write {}", path.display()))?;
        console::print(format_args!("{}\n", path.display()))?;
    }
    Ok(())
}

/// Returns the page of a verb, or of the whole, in the language of man(7).
fn roff(command: &Command) -> Result<String> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend_from_slice(synopsis(command).as_bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend_from_slice(more(command).as_bytes());
    Ok(String::from_utf8(page)?)
}

/// Returns the section with the usage, as `--help` has it.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.lines().map(|it| it.trim_start_matches("Usage:").trim());
    let lines: Vec<String> = lines.map(escaped).collect();
    format!(".SH SYNOPSIS\n{}\n", lines.join("\n.br\n"))
}

/// Returns the section with what `--help` says after the options, in its own lines.
fn more(command: &Command) -> String {
    let Some(text) = command.get_after_help() else { return String::new() };
    let lines: Vec<String> = text.to_string().lines().map(escaped).collect();
    format!(".SH MORE\n.nf\n{}\n.fi\n", lines.join("\n"))
}

/// Returns a line that roff takes as text.
///
/// Source: groff(7): a backslash begins an escape; a dot or apostrophe at the start of a line, a request; `\\-` is the ASCII minus.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}
