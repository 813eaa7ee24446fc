//! The command line: the words as typed ([`typed`], sorted by [`words`]), and what they ask for ([`Invocation`]).
//!
//! Options may be anywhere before `--`, mixed with the script's own arguments: a `--name=value` that the verb does not
//! know belongs to the script, which refuses arguments that it does not declare.

mod typed;
mod words;

pub use typed::{
    CompletionsOptions, DoctorOptions, ExportOptions, FileWish, HelpOptions, ListOptions, ManOptions, ObjectOptions,
    OnConflict, Range, Shell, TranslateOptions, UsageError, WindowOptions,
};

use crate::stacks::Naming;
use clap::CommandFactory;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use typed::{CommandOptions, RecordOptions, RunOptions, ScriptOptions, Typed, Verb, usage};
use words::TypedWords;
use xputrace_bytecode::object::Loaders;
use xputrace_model::diagnostic::nearest;
use xputrace_model::process_name::ProcessName;
use xputrace_render::Format;

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    Run(Run),
    Record(Run),
    List(ListOptions),
    Check(Run),
    Explain(Run),
    Build(Run),
    Export(ExportOptions),
    Translate(TranslateOptions),
    Doctor(DoctorOptions),
    Scripts,
    Demo,
    Help(HelpOptions),
    Completions(CompletionsOptions),
    Definitions,
    Man(ManOptions),
}

impl Invocation {
    /// Whether what it writes is root's although sudo was used; `None` if it writes no files.
    pub fn writes_as_root(&self) -> Option<bool> {
        match self {
            Invocation::Run(run) | Invocation::Record(run) | Invocation::Build(run) => Some(run.options.as_root),
            Invocation::Demo | Invocation::Export(_) | Invocation::Man(_) => Some(false),
            _ => None,
        }
    }
}

/// Returns the verb that a word may be meant as.
pub fn nearest_verb(word: &str) -> Option<String> {
    let table = table();
    nearest(word, table.get_subcommands().map(clap::Command::get_name)).map(str::to_owned)
}

/// Returns the table of verbs and options.
pub fn table() -> clap::Command {
    Typed::command()
}

/// A script, its arguments, and what to run it on.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// `None` without a script.
    pub script: Option<Script>,
    pub script_arguments: Vec<String>,
    pub command: Vec<OsString>,
    pub options: Options,
    /// Whether `--help` came after a script, and so asks for its arguments.
    pub help: bool,
}

impl Run {
    /// Whether it names what to trace: a command or processes.
    pub fn has_target(&self) -> bool {
        !self.command.is_empty() || self.attaches()
    }

    /// Whether it names running processes.
    fn attaches(&self) -> bool {
        !self.options.pids.is_empty() || self.options.all_processes
    }

    /// Whether it traces programs that it starts, or would.
    pub fn starts_programs(&self) -> bool {
        !self.attaches() && self.options.replay.is_none() && self.options.loaders.is_none()
    }
}

/// The options of all verbs that take a script; options that a verb lacks have their defaults.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub quiet: bool,
    pub verbose: bool,
    pub pids: Vec<u32>,
    /// Whether all processes are traced, or all of this name.
    pub all_processes: bool,
    pub name: Option<ProcessName>,
    pub replay: Option<PathBuf>,
    pub format: &'static Format,
    pub output: Option<PathBuf>,
    pub files: Vec<FileWish>,
    pub run_for: Option<Duration>,
    pub window: WindowOptions,
    /// The GPUs that are recorded, as the user calls them; empty for all.
    pub gpus: Vec<String>,
    pub on_conflict: OnConflict,
    pub as_root: bool,
    /// Of `build`: who loads the object in place of xputrace.
    pub loaders: Option<Loaders>,
    pub naming: Naming,
    /// Of a compiled object.
    pub object: ObjectOptions,
}

impl Options {
    /// Returns which running processes are traced.
    pub fn chosen(&self) -> Chosen {
        Chosen { pids: self.pids.clone(), name: self.name.clone() }
    }
}

/// Which running processes a run traces.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    /// Those that `-p` names, with their descendants; all processes if none.
    pub pids: Vec<u32>,
    /// Only processes of this name.
    pub name: Option<ProcessName>,
}

/// Where a script's text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    Inline(String),
    /// A path, or the name of a bundled script.
    Named(String),
}

/// A command line error, and whether the command line would have run anything.
pub struct Misunderstood {
    pub error: UsageError,
    pub runs_something: bool,
}

/// Parses a command line, program name first.
pub fn parse(arguments: Vec<OsString>) -> Result<Invocation, Misunderstood> {
    let (ours, command) = split_command(help_behind(arguments));
    let mut words = TypedWords::new(ours);
    let invocation = words.understand().and_then(|typed| meaning(typed, &words, &command));
    let runs_something = matches!(words.intended_verb(), None | Some("run" | "record" | "demo"));
    invocation.map_err(|error| Misunderstood { error, runs_something })
}

/// Turns `help VERB` and `help SCRIPT` into `VERB --help` and `SCRIPT --help`.
fn help_behind(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let has_help = |topic: Option<&OsString>| topic.is_none_or(|it| has_help_option(&it.to_string_lossy()));
    if arguments.get(1).is_some_and(|it| it == "help") && has_help(arguments.get(2)) {
        arguments[1] = "--help".into();
        let end = arguments.len().min(3);
        arguments[1..end].rotate_left(1);
    }
    arguments
}

/// Whether a word is a verb or a script, which take `--help`.
fn has_help_option(word: &str) -> bool {
    let is_script = || xputrace_script::scripts().iter().any(|it| it.name == word) || Path::new(word).is_file();
    word.starts_with('-') || table().find_subcommand(word).is_some() || is_script()
}

fn split_command(mut arguments: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
    match arguments.iter().position(|it| it == "--") {
        Some(at) => {
            let command = arguments.split_off(at + 1);
            arguments.pop();
            (arguments, command)
        }
        None => (arguments, Vec::new()),
    }
}

fn meaning(typed: Typed, words: &TypedWords, command: &[OsString]) -> Result<Invocation, UsageError> {
    let verb = typed.verb.unwrap_or(Verb::Run(typed.run));
    if let (Some(word), false) =
        (command.first(), matches!(verb, Verb::Run(_) | Verb::Record(_) | Verb::List(_) | Verb::Explain(_)))
    {
        let (verb, word) = (words.intended_verb().unwrap_or_default(), word.to_string_lossy());
        return Err(usage(format!("`{verb}` takes no command: leave out `-- {word}`")));
    }
    let run = |script: ScriptOptions, options| script.meaning(words, command, options);
    Ok(match verb {
        Verb::Run(it) => {
            let (script, options) = it.split();
            if options.replay.is_some() && options.window.is_limited() {
                return Err(usage("--replay goes over a whole recording: leave out --after and --range".into()));
            }
            if options.replay.is_some() && !options.gpus.is_empty() {
                return Err(usage(
                    "--replay goes over a whole recording: leave out --device, and test k.gpu.uuid".into(),
                ));
            }
            Invocation::Run(run(script, options)?)
        }
        Verb::Record(it) => {
            let (script, options) = it.split();
            Invocation::Record(run(script, options)?)
        }
        Verb::Check(it) => Invocation::Check(run(it.script, Options { object: *it.object, ..Options::default() })?),
        Verb::Explain(it) => {
            let (naming, object) = (it.python.into(), *it.object);
            let options = Options { verbose: it.verbose, pids: it.pids, naming, object, ..Options::default() };
            Invocation::Explain(run(it.script, options)?)
        }
        Verb::Build(it) => {
            let options = Options { output: it.output, loaders: Some(it.loader.into()), ..Options::default() };
            Invocation::Build(run(it.script, options)?)
        }
        Verb::List(options) => Invocation::List(ListOptions { command: command.to_vec(), ..options }),
        Verb::Export(options) => Invocation::Export(options),
        Verb::Translate(options) => Invocation::Translate(options),
        Verb::Doctor(options) => Invocation::Doctor(options),
        Verb::Scripts => Invocation::Scripts,
        Verb::Demo => Invocation::Demo,
        Verb::Help(options) => Invocation::Help(options),
        Verb::Completions(options) => Invocation::Completions(options),
        Verb::Definitions => Invocation::Definitions,
        Verb::Man(options) => Invocation::Man(options),
    })
}

impl From<CommandOptions> for Options {
    fn from(CommandOptions { run_for, window, gpus, on_conflict, as_root }: CommandOptions) -> Self {
        Options { run_for, window, gpus, on_conflict, as_root, ..Options::default() }
    }
}

impl RunOptions {
    fn split(self) -> (ScriptOptions, Options) {
        let options = Options {
            pids: self.pids,
            all_processes: self.all_processes || self.name.is_some(),
            name: self.name,
            replay: self.replay,
            format: self.format.0,
            output: self.output,
            files: self.files.0,
            naming: self.names.into(),
            object: *self.object,
            ..self.command.into()
        };
        (self.script, options)
    }
}

impl RecordOptions {
    fn split(self) -> (ScriptOptions, Options) {
        let options = Options {
            output: Some(self.output),
            naming: Naming { lines: self.lines.lines, ..Naming::default() },
            ..self.command.into()
        };
        (self.script, options)
    }
}

impl ScriptOptions {
    fn meaning(self, words: &TypedWords, command: &[OsString], options: Options) -> Result<Run, UsageError> {
        let script = match (self.script, self.one_liner) {
            (Some(name), Some(_)) => {
                return Err(usage(format!(
                    "a script was given twice: -e and `{name}`; put the command after `--`: -- {name}"
                )));
            }
            (Some(name), None) => Some(Script::Named(name)),
            (None, text) => text.map(Script::Inline),
        };
        let options = Options { quiet: self.quiet, ..options };
        let script_arguments = words.scripts.clone();
        Ok(Run { script, script_arguments, command: command.to_vec(), options, help: words.help })
    }
}

/// Whether a file is a program rather than a script.
pub fn is_program(path: &str) -> bool {
    let mut magic = [0; 4];
    let file = xputrace_boundary::read::open(Path::new(path));
    let read = file.and_then(|mut it| std::io::Read::read_exact(&mut it, &mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}

/// Whether a word is a command: a file that can be executed, in the directories of PATH if it names none.
pub fn is_command(word: &str) -> bool {
    let is_executable = |it: &Path| it.metadata().is_ok_and(|it| it.is_file() && it.mode() & 0o111 != 0);
    match word.contains('/') {
        true => is_executable(Path::new(word)),
        false => std::env::var_os("PATH")
            .is_some_and(|it| std::env::split_paths(&it).any(|it| is_executable(&it.join(word)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Run {
        let words = line.split_whitespace().map(OsString::from).collect();
        match parse(words) {
            Ok(Invocation::Run(run)) => run,
            Ok(other) => panic!("{other:?}"),
            Err(it) => panic!("{}", it.error),
        }
    }

    #[test]
    fn script_arguments_stand_among_ours() {
        let it = run("xputrace -f json over100ms --ms=50 --for 2s -o out --name x -- ./train --ms=7");
        assert_eq!(it.script, Some(Script::Named("over100ms".into())));
        assert_eq!(it.script_arguments, ["--ms=50", "--name", "x"]);
        assert_eq!(it.command, ["./train", "--ms=7"]);
        assert_eq!((it.options.format.name, it.options.run_for), ("json", Some(Duration::from_secs(2))));
    }

    #[test]
    fn verbs_win_over_script_names_and_no_script_is_fine() {
        assert_eq!(run("xputrace -- ./train").script, None);
        assert_eq!(run("xputrace run x.rhai -p 7 -p 8").options.pids, [7, 8]);
        let words = ["xputrace", "check", "-e", "kernel(1)"].map(OsString::from).to_vec();
        assert!(matches!(parse(words), Ok(Invocation::Check(Run { script: Some(Script::Inline(_)), .. }))));
    }

    #[test]
    fn help_behind_a_script_is_the_scripts() {
        assert!(run("xputrace over100ms --help").help);
        assert!(parse(vec!["xputrace".into(), "--help".into()]).is_err());
    }

    #[test]
    fn words_that_are_not_understood_are_explained() {
        let refused = |line: &[&str]| {
            let words = line.iter().map(OsString::from).collect();
            let Err(Misunderstood { error, .. }) = parse(words) else { panic!("{line:?} is no mistake") };
            let error = error.to_string();
            error.lines().next().unwrap_or_default().to_owned()
        };
        for (line, message) in [
            (
                &["xputrace", "-e", "begin(1)", "true"][..],
                "a script was given twice: -e and `true`; put the command after `--`: -- true",
            ),
            (
                &["xputrace", "-e", "begin(1)", "python3", "-c", "1"],
                "put the command and its options after `--`: -- python3 …",
            ),
            (
                &["xputrace", "/proc/self/exe", "-c", "1"],
                "put the command and its options after `--`: -- /proc/self/exe …",
            ),
            (&["xputrace", "--flamegrah", "x.svg", "over100ms"], "unexpected argument '--flamegrah' found"),
            (
                &["xputrace", "check", "x", "--folded", "q"],
                "`check` has no option `--folded`; `xputrace check --help` lists those it has",
            ),
            (&["xputrace", "check", "x", "--", "./train"], "`check` takes no command: leave out `-- ./train`"),
            (&["xputrace", "--perfetto", "t.json", "--", "./train"], "--perfetto is not implemented yet"),
            (&["xputrace", "-f", "csv", "--", "./train"], "-f csv is not implemented yet"),
            (&["xputrace", "check", "x", "-p", "7"], "unexpected argument '-p' found"),
            (
                &["xputrace", "check", "x", "--comm", "train"],
                "`check` has no option `--comm`; `xputrace check --help` lists those it has",
            ),
            (&["xputrace", "export", "ndjson", "x", "--", "./t"], "`export` takes no command: leave out `-- ./t`"),
            (&["xputrace", "demo", "-q"], "unexpected argument '-q' found"),
            (&["xputrace", "demo", "--ms=5"], "unexpected argument '--ms' found"),
            (&["xputrace", "over100ms", "check"], "a verb comes before the script: put `over100ms` after it"),
        ] {
            assert_eq!(refused(line), format!("error: {message}"));
        }
        assert!(
            matches!(parse(["xputrace", "-q", "check", "x"].map(OsString::from).to_vec()), Ok(Invocation::Check(it)) if it.options.quiet)
        );
        assert!(refused(&["xputrace", "help", "record"]).starts_with("Record all GPU events"));
        assert!(refused(&["xputrace", "help"]).starts_with("bpftrace for programs"));
        assert!(run("xputrace help over100ms").help);
    }
}
