//! `xputrace completions SHELL`: clap's completions, and the names that its table doesn't have: scripts and events.

use crate::cli::{self, CompletionsOptions, Shell};
use crate::console;
use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, Command, ValueHint};
use clap_complete::aot;
use std::process::ExitCode;
use xputrace_model::schema::Event;

const NAME: &str = "xputrace";
/// The argument that may be a file too.
const SCRIPT: &str = "script";

/// Prints the completions for a shell.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(options: &CompletionsOptions) -> Result<ExitCode> {
    console::print(match options.shell {
        Shell::Bash => bash(),
        Shell::Zsh => zsh(),
        Shell::Fish => fish(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A name and what it stands for.
struct Candidate {
    name: String,
    meaning: String,
}

impl Candidate {
    fn new(name: &str, meaning: impl ToString) -> Self {
        Candidate { name: name.into(), meaning: meaning.to_string() }
    }
}

/// Returns the names that a verb's argument may have.
fn names(argument: &Arg) -> Vec<Candidate> {
    match argument.get_id().as_str() {
        SCRIPT => scripts().collect(),
        "topic" => Event::all().map(event).chain(verbs()).chain(scripts()).collect(),
        "verb" => verbs().collect(),
        _ => argument.get_possible_values().iter().map(possible_value).collect(),
    }
}

fn event(it: Event) -> Candidate {
    Candidate::new(it.name(), it.about().fires.replace('`', ""))
}

fn scripts() -> impl Iterator<Item = Candidate> {
    xputrace_script::scripts().iter().map(|it| Candidate::new(it.name, it.summary()))
}

fn verbs() -> impl Iterator<Item = Candidate> {
    let about = |it: &Command| it.get_about().map(ToString::to_string).unwrap_or_default();
    cli::table().get_subcommands().map(|it| Candidate::new(it.get_name(), about(it))).collect::<Vec<_>>().into_iter()
}

fn possible_value(it: &PossibleValue) -> Candidate {
    Candidate::new(it.get_name(), it.get_help().map(ToString::to_string).unwrap_or_default())
}

/// bash has no descriptions, and falls back to files by itself.
fn bash() -> String {
    let table = without_positionals(&cli::table()).mut_subcommands(|verb| verb.mut_args(with_names));
    let scripts = cli::table().get_positionals().cloned().map(with_names).collect::<Vec<_>>();
    generated(aot::Bash, table.args(scripts))
}

/// A script may be a file, or have one of these names: a function of ours offers both.
fn zsh() -> String {
    const FUNCTION: &str = "_xputrace_scripts";
    const VERBS: &str = "(( $+functions[_xputrace_commands] ))";
    const DESCRIBE: &str = "    _describe -t commands 'xputrace commands' commands \"$@\"\n";
    let with_names = |it: Arg| if it.get_id() == SCRIPT { it } else { with_names(it) };
    let text =
        generated(aot::Zsh, without_positionals(&cli::table()).mut_subcommands(|verb| verb.mut_args(with_names)));
    let is_script = |line: &str| line.starts_with(&format!("'::{SCRIPT} -- "));
    let lines = text.lines().map(|line| match is_script(line) {
        true => line.replace(":_files'", &format!(":{FUNCTION}'")) + "\n",
        false => format!("{line}\n"),
    });
    let quoted = |it: &Candidate| format!("'{}:{}'", it.name, it.meaning.replace('\'', "'\\''"));
    let scripts: Vec<String> = cli::table().get_positionals().flat_map(names).map(|it| quoted(&it)).collect();
    let function = format!(
        "(( $+functions[{FUNCTION}] )) ||\n{FUNCTION}() {{\n    local scripts; scripts=(\n{}\n    )\n    \
         _describe -t scripts 'bundled script' scripts\n    _files\n}}\n\n",
        scripts.join("\n")
    );
    let text: String = lines.collect();
    text.replacen(VERBS, &format!("{function}{VERBS}"), 1).replacen(DESCRIBE, &format!("{DESCRIBE}    {FUNCTION}\n"), 1)
}

/// clap's completions for fish leave out what isn't an option.
fn fish() -> String {
    let table = cli::table();
    // An option whose value is being typed is none that can be parsed: no verb has come yet.
    let mut text = generated(aot::Fish, table.clone()).replacen("    or return\n", "    or return 0\n", 1);
    let first = format!("__fish_{NAME}_needs_command");
    text += &fish_words(&first, &table);
    for verb in table.get_subcommands() {
        text += &fish_words(&format!("__fish_{NAME}_using_subcommand {}", verb.get_name()), verb);
    }
    text
}

/// Completes a verb's words. fish offers files beside them, unless it is told not to.
fn fish_words(when: &str, verb: &Command) -> String {
    let takes_files = verb.get_positionals().any(|it| it.get_value_hint() == ValueHint::FilePath);
    verb.get_positionals().map(|it| fish_names(when, it, takes_files)).collect()
}

fn fish_names(when: &str, argument: &Arg, takes_files: bool) -> String {
    let files = if takes_files { "" } else { " -f" };
    let line = |Candidate { name, meaning }: Candidate| {
        let meaning = meaning.replace('\\', "\\\\").replace('\'', "\\'");
        format!("complete -c {NAME} -n \"{when}\"{files} -a \"{name}\" -d '{meaning}'\n")
    };
    names(argument).into_iter().map(line).collect()
}

/// Returns the table with options and verbs alone: generators take the script for the first word, and a verb for the second.
fn without_positionals(table: &Command) -> Command {
    let options = table.get_arguments().filter(|it| !it.is_positional());
    let verbs = table.get_subcommands();
    Command::new(NAME).args(options.cloned()).subcommands(verbs.cloned()).disable_help_subcommand(true)
}

/// Returns an argument that has its names in the table, if it isn't an option and has any.
fn with_names(argument: Arg) -> Arg {
    let names = if argument.is_positional() { names(&argument) } else { Vec::new() };
    if names.is_empty() {
        return argument;
    }
    argument.value_parser(PossibleValuesParser::new(
        names.into_iter().map(|it| PossibleValue::new(it.name).help(it.meaning)),
    ))
}

fn generated(shell: impl aot::Generator, mut table: Command) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut table, NAME, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}
