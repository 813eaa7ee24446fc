//! The command line: the typed words (`Typed`, clap's table of verbs) and their meaning
//! (`Invocation`).
//!
//! Options may be anywhere before `--`, mixed with the script's own arguments: every `--name=value`
//! that the verb does not know belongs to the script, which refuses arguments that it does not
//! declare.

use clap::builder::PossibleValuesParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use xputrace_model::diagnostic::nearest;
use xputrace_render::{FILES, FORMATS, FileOutput, Format};

/// Planned options: using one is an error that says so.
const NOT_YET: &[&str] = &["perfetto", "after", "device", "comm", "fail-if"];
/// Planned formats, likewise.
const FORMATS_NOT_YET: &[&str] = &["csv"];

/// bpftrace for programs that use a CPU and a GPU.
#[derive(Parser, Debug)]
#[command(name = "xputrace", version, disable_help_subcommand = true)]
#[command(override_usage = "xputrace [OPTIONS] [SCRIPT] [ARGS] -- CMD …\n       xputrace VERB …")]
#[command(after_help = "Examples:\n  \
    xputrace -- ./train                            show where the time goes (the script `summary`)\n  \
    xputrace -e 'kernel(|k| @time[k.name].sum(k.duration))' -- ./train\n  \
    xputrace over100ms --ms=50 -- ./train          run a bundled script with an argument\n  \
    xputrace scripts                               list the bundled scripts\n  \
    xputrace demo                                  run a demo (no GPU needed)\n\n\
Exit status of a run: what a handler passed to exit(code), else the command's own (128 + the signal that killed it). \
    125 if xputrace failed or ran nothing. Verbs that run nothing exit with 2 on an error.\n\n\
Ctrl-C ends the run and prints the results; a second one quits at once. Where the command handles Ctrl-C itself, tracing \
    goes on; two within a second end it. A closed pipe (`| head`) stops tracing; this is not an error.")]
struct Typed {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run a script (the default)
    #[command(override_usage = "xputrace run [OPTIONS] [SCRIPT] [ARGS] -- CMD …")]
    Run(RunOptions),
    /// Record all GPU events, and what SCRIPT's CPU probes read, into a file
    #[command(override_usage = "xputrace record [OPTIONS] [SCRIPT] [ARGS] -- CMD …")]
    Record(RecordOptions),
    /// List events and available probes: xputrace list 'uprobe:libc:mem*'
    List(ListOptions),
    /// Check a script without running it
    Check(CheckOptions),
    /// Show where each handler will run, and why
    Explain(ExplainOptions),
    /// Write the compiled script as an eBPF object
    Build(BuildOptions),
    /// Diagnose this machine and suggest fixes
    Doctor(DoctorOptions),
    /// List the bundled scripts
    Scripts,
    /// Run a demo (no GPU needed)
    Demo,
}

/// Options of `xputrace list`.
#[derive(clap::Args, Debug)]
pub struct ListOptions {
    /// An event (kernel, launch), uprobe:LIBRARY:FUNCTION, uretprobe:LIBRARY:FUNCTION or tracepoint:CATEGORY:NAME; *
    /// matches any text
    pub pattern: Option<String>,
    /// Show fields, and what cannot be probed
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// The script of a verb that takes one.
#[derive(clap::Args, Debug)]
struct ScriptOptions {
    /// A script file, or the name of a bundled script
    #[arg(value_name = "SCRIPT")]
    script: Option<String>,
    /// A script on the command line
    #[arg(short = 'e', value_name = "TEXT")]
    one_liner: Option<String>,
    /// Suppress notes and warnings
    #[arg(short = 'q', long)]
    quiet: bool,
}

/// How long a command is traced, and as which user it runs.
#[derive(clap::Args, Debug)]
struct CommandOptions {
    /// Stop tracing after this long, such as 10s or 500ms; CMD keeps running (`-- timeout 10 CMD` ends it too)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    run_for: Option<Duration>,
    /// Under sudo, run CMD as root instead of as the invoking user
    #[arg(long)]
    as_root: bool,
}

#[derive(clap::Args, Debug)]
struct RunOptions {
    #[command(flatten)]
    script: ScriptOptions,
    #[command(flatten)]
    command: CommandOptions,
    /// Attach to a running process; repeat for several (CPU probes only)
    #[arg(short = 'p', value_name = "PID", conflicts_with = "all_processes")]
    pids: Vec<u32>,
    /// Attach to every process that has the probed code (CPU probes only)
    #[arg(short = 'a', long = "all-processes")]
    all_processes: bool,
    /// Run the script over a recording: no root, no GPU
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    format: FormatOption,
    /// Write the results to a file
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    files: FileOptions,
}

#[derive(clap::Args, Debug)]
struct RecordOptions {
    #[command(flatten)]
    script: ScriptOptions,
    #[command(flatten)]
    command: CommandOptions,
    /// The recording
    #[arg(short = 'o', value_name = "FILE", default_value = "recording.xpt")]
    output: PathBuf,
}

#[derive(clap::Args, Debug)]
struct CheckOptions {
    #[command(flatten)]
    script: ScriptOptions,
}

#[derive(clap::Args, Debug)]
struct ExplainOptions {
    #[command(flatten)]
    script: ScriptOptions,
    /// Show the bytecode too
    #[arg(short = 'v', long)]
    verbose: bool,
}

#[derive(clap::Args, Debug)]
struct BuildOptions {
    #[command(flatten)]
    script: ScriptOptions,
    /// The object file; by default the script's name with .bpf.o
    #[arg(short = 'o', value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Options of `xputrace doctor`.
#[derive(clap::Args, Debug)]
pub struct DoctorOptions {
    #[command(flatten)]
    format: FormatOption,
}

impl DoctorOptions {
    /// Whether the output is for programs.
    pub fn is_json(&self) -> bool {
        self.format.0.is_for_programs
    }
}

/// `-f`: one of [`FORMATS`].
#[derive(Clone, Copy, Debug)]
struct FormatOption(&'static Format);

impl clap::Args for FormatOption {
    fn augment_args(command: clap::Command) -> clap::Command {
        let names = PossibleValuesParser::new(FORMATS.iter().map(|it| it.name));
        let option = Arg::new("format").short('f').value_name("FORMAT").help("Output format");
        command.arg(option.value_parser(names).default_value(FORMATS[0].name))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FormatOption {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, UsageError> {
        let name = matches.get_one::<String>("format").map_or("", String::as_str);
        Ok(FormatOption(FORMATS.iter().find(|it| it.name == name).unwrap_or(&FORMATS[0])))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), UsageError> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A file to write at the end of a run: an option of [`FILES`] and its argument.
#[derive(Clone, Debug)]
pub struct FileWish {
    pub output: &'static FileOutput,
    pub typed: String,
}

/// The options of [`FILES`].
#[derive(Clone, Debug, Default)]
struct FileOptions(Vec<FileWish>);

impl clap::Args for FileOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        let option = |it: &FileOutput| {
            Arg::new(it.option).long(it.option).value_name("FILE").help(it.help).action(ArgAction::Append)
        };
        FILES.iter().fold(command, |command, it| command.arg(option(it)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FileOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, UsageError> {
        let typed = |output: &'static FileOutput| {
            let values = matches.get_many::<String>(output.option).into_iter().flatten();
            values.map(move |typed| FileWish { output, typed: typed.clone() })
        };
        Ok(FileOptions(FILES.iter().flat_map(typed).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), UsageError> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    Run(Run),
    Record(Run),
    List(ListOptions),
    Check(Run),
    Explain(Run),
    Build(Run),
    Doctor(DoctorOptions),
    Scripts,
    Demo,
}

/// A script, its arguments, and what to run it on.
#[derive(Debug, Clone)]
pub struct Run {
    /// `None` without a script.
    pub script: Option<Script>,
    pub script_arguments: Vec<String>,
    pub command: Vec<OsString>,
    pub options: Options,
    /// Whether `--help` came after a script, and so asks for its arguments.
    pub help: bool,
}

/// The options of all verbs that take a script; options that a verb lacks have their defaults.
#[derive(Clone, Debug)]
pub struct Options {
    pub quiet: bool,
    pub verbose: bool,
    pub pids: Vec<u32>,
    pub all_processes: bool,
    pub replay: Option<PathBuf>,
    pub format: &'static Format,
    pub output: Option<PathBuf>,
    pub files: Vec<FileWish>,
    pub run_for: Option<Duration>,
    pub as_root: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            quiet: false,
            verbose: false,
            pids: Vec::new(),
            all_processes: false,
            replay: None,
            format: &FORMATS[0],
            output: None,
            files: Vec::new(),
            run_for: None,
            as_root: false,
        }
    }
}

/// Where a script's text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    Inline(String),
    /// A path, or the name of a bundled script.
    Named(String),
}

/// A command line error; clap prints it with usage and hint.
pub type UsageError = clap::Error;

/// A command line error, and whether the command line would have run anything.
pub struct Misunderstood {
    pub error: UsageError,
    pub runs_something: bool,
}

/// Parses a command line, program name first.
pub fn parse(arguments: Vec<OsString>) -> Result<Invocation, Misunderstood> {
    let (ours, command) = split_command(help_first(arguments));
    let words = Words::split(ours);
    let runs_something = matches!(words.verb.as_deref(), None | Some("run" | "record" | "demo"));
    understand(&words, &command).map_err(|error| Misunderstood { error: words.explain(error), runs_something })
}

/// Turns `help VERB` into `VERB --help`.
fn help_first(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|it| it == "help") {
        let help = arguments.remove(1);
        let at = arguments.len().min(2);
        arguments.insert(at, OsString::from(format!("--{}", help.to_string_lossy())));
    }
    arguments
}

fn understand(words: &Words, command: &[OsString]) -> Result<Invocation, UsageError> {
    words.refuse_what_is_not_ours()?;
    let typed = Typed::from_arg_matches(&Typed::command().try_get_matches_from(&words.ours)?)?;
    let verb = typed.verb.unwrap_or(Verb::Run(typed.run));
    let none = || refuse_command(words.verb.as_deref().unwrap_or_default(), command);
    Ok(match verb {
        Verb::Run(it) => Invocation::Run(it.meaning(words, command)?),
        Verb::Record(it) => Invocation::Record(it.meaning(words, command)?),
        Verb::Check(it) => {
            none()?;
            Invocation::Check(it.script.meaning(words, &[], Options::default())?)
        }
        Verb::Explain(it) => {
            none()?;
            let options = Options { verbose: it.verbose, ..Options::default() };
            Invocation::Explain(it.script.meaning(words, &[], options)?)
        }
        Verb::Build(it) => {
            none()?;
            let options = Options { output: it.output, ..Options::default() };
            Invocation::Build(it.script.meaning(words, &[], options)?)
        }
        // The other verbs take no script that these could belong to.
        _ if let Some(word) = words.scripts.first() => return Err(unexpected(word)),
        Verb::List(options) => {
            none()?;
            Invocation::List(options)
        }
        Verb::Doctor(options) => {
            none()?;
            Invocation::Doctor(options)
        }
        Verb::Scripts => {
            none()?;
            Invocation::Scripts
        }
        Verb::Demo => {
            none()?;
            Invocation::Demo
        }
    })
}

fn refuse_command(verb: &str, command: &[OsString]) -> Result<(), UsageError> {
    match command.first() {
        None => Ok(()),
        Some(word) => Err(usage(format!("`{verb}` takes no command: leave out `-- {}`", word.to_string_lossy()))),
    }
}

fn unexpected(word: &str) -> UsageError {
    usage(format!("unexpected argument '{word}' found"))
}

impl RunOptions {
    fn meaning(self, words: &Words, command: &[OsString]) -> Result<Run, UsageError> {
        let options = Options {
            pids: self.pids,
            all_processes: self.all_processes,
            replay: self.replay,
            format: self.format.0,
            output: self.output,
            files: self.files.0,
            run_for: self.command.run_for,
            as_root: self.command.as_root,
            ..Options::default()
        };
        self.script.meaning(words, command, options)
    }
}

impl RecordOptions {
    fn meaning(self, words: &Words, command: &[OsString]) -> Result<Run, UsageError> {
        let options = Options {
            output: Some(self.output),
            run_for: self.command.run_for,
            as_root: self.command.as_root,
            ..Options::default()
        };
        self.script.meaning(words, command, options)
    }
}

impl ScriptOptions {
    fn meaning(self, words: &Words, command: &[OsString], options: Options) -> Result<Run, UsageError> {
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
        let (script_arguments, help) = (words.scripts.clone(), words.help);
        Ok(Run { script, script_arguments, command: command.to_vec(), options, help })
    }
}

/// Creates an error that clap itself cannot detect.
pub fn usage(message: String) -> UsageError {
    Typed::command().error(ErrorKind::ArgumentConflict, message)
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

/// The words before `--`, sorted.
struct Words {
    /// For clap: program name, verb, and everything that the verb knows or that is not a long
    /// option.
    ours: Vec<OsString>,
    verb: Option<String>,
    /// Long options that are not the verb's. Each is followed by the next word if it has no `=` and
    /// comes after a script.
    scripts: Vec<String>,
    /// Whether `--help` came after a script.
    help: bool,
    /// The script's name.
    script: Option<String>,
    /// An option before any script that resembles this one of ours.
    misspelled: Option<(String, String)>,
    one_liner: bool,
}

impl Words {
    fn split(mut arguments: Vec<OsString>) -> Words {
        let verb = take_verb(&mut arguments);
        let options = KnownOptions::of(verb.as_deref());
        let mut it = Words {
            ours: arguments.drain(..arguments.len().min(1)).chain(verb.iter().map(OsString::from)).collect(),
            verb,
            scripts: Vec::new(),
            help: false,
            script: None,
            misspelled: None,
            one_liner: false,
        };
        let mut words = arguments.into_iter().peekable();
        while let Some(word) = words.next() {
            let text = word.to_string_lossy().into_owned();
            let have_script = it.script.is_some() || it.one_liner;
            match long_name(&text) {
                Some("help") if have_script => it.help = true,
                Some(name) if !matches!(name, "help" | "version") && !options.long.iter().any(|it| it == name) => {
                    it.scripts.push(text.clone());
                    if have_script {
                        let value = |next: &OsString| !next.to_string_lossy().starts_with('-');
                        let detached = words.next_if(|next| !text.contains('=') && value(next));
                        it.scripts.extend(detached.map(|value| value.to_string_lossy().into_owned()));
                    } else if let Some(near) = nearest(name, options.long.iter().map(String::as_str)) {
                        it.misspelled.get_or_insert((name.to_owned(), near.to_owned()));
                    }
                }
                _ => {
                    it.one_liner |= text.starts_with("-e");
                    if !text.starts_with('-') {
                        it.script.get_or_insert(text.clone());
                    }
                    it.ours.push(word);
                    if options.with_value.contains(&text) {
                        it.ours.extend(words.next());
                    }
                }
            }
        }
        it
    }

    /// Refuses options of other verbs and planned options: they do not belong to a script.
    fn refuse_what_is_not_ours(&self) -> Result<(), UsageError> {
        let verb = self.verb.as_deref().unwrap_or("run");
        let of_run = KnownOptions::of(None).long;
        for name in self.scripts.iter().filter_map(|it| long_name(it)) {
            if NOT_YET.contains(&name) {
                return Err(usage(format!("--{name} is not implemented yet")));
            }
            if of_run.iter().any(|it| it == name) {
                return Err(usage(format!(
                    "`{verb}` has no option `--{name}`; `xputrace {verb} --help` lists those it has"
                )));
            }
        }
        let format = self.ours.windows(2).find(|it| it[0] == "-f").and_then(|it| it[1].to_str());
        match format.filter(|it| FORMATS_NOT_YET.contains(it)) {
            Some(format) => Err(usage(format!("-f {format} is not implemented yet"))),
            None => Ok(()),
        }
    }

    /// Returns a better explanation of an error if there is one.
    fn explain(&self, error: UsageError) -> UsageError {
        if !error.use_stderr() {
            return error;
        }
        if let Some((name, near)) = &self.misspelled {
            return usage(format!("there is no option `--{name}`; did you mean `--{near}`?"));
        }
        let takes_command = matches!(self.verb.as_deref(), None | Some("run"));
        match (error.kind(), &self.script) {
            (ErrorKind::UnknownArgument, Some(name)) if takes_command && (self.one_liner || is_program(name)) => {
                usage(format!("put the command and its options after `--`: -- {name} …"))
            }
            _ => error,
        }
    }
}

/// Returns `name` of `--name` and `--name=value`.
fn long_name(word: &str) -> Option<&str> {
    word.strip_prefix("--").map(|it| it.split('=').next().unwrap_or(it))
}

/// Removes the verb from the words, even if options precede it.
fn take_verb(arguments: &mut Vec<OsString>) -> Option<String> {
    let options = KnownOptions::of(None);
    let mut at = 1;
    while let Some(word) = arguments.get(at) {
        let text = word.to_string_lossy().into_owned();
        if !text.starts_with('-') {
            let is_verb = Typed::command().get_subcommands().any(|it| it.get_name() == text);
            return is_verb.then(|| arguments.remove(at).to_string_lossy().into_owned());
        }
        at += if options.with_value.contains(&text) { 2 } else { 1 };
    }
    None
}

/// The options of a verb, from clap's table.
struct KnownOptions {
    /// Names of the long options.
    long: Vec<String>,
    /// Options that take a value, as typed.
    with_value: Vec<String>,
}

impl KnownOptions {
    fn of(verb: Option<&str>) -> Self {
        let all = Typed::command();
        let command = verb.and_then(|it| all.find_subcommand(it)).unwrap_or(&all);
        let valued = command.get_arguments().filter(|it| it.get_action().takes_values());
        let names = |it: &Arg| [it.get_long().map(|it| format!("--{it}")), it.get_short().map(|it| format!("-{it}"))];
        KnownOptions {
            long: command.get_arguments().filter_map(|it| it.get_long().map(str::to_owned)).collect(),
            with_value: valued.flat_map(names).flatten().collect(),
        }
    }
}

/// Whether a file is a program rather than a script.
pub fn is_program(path: &str) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut it| std::io::Read::read_exact(&mut it, &mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}

/// Parses `10s`, `500ms`, `100us`, `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| format!("`{text}` is not a time: write 10s or 500ms"))?;
    let unit = match &text[digits..] {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{text}` has no unit: write 10s, 500ms or 2m")),
    };
    Duration::try_from_secs_f64(number * unit).map_err(|e| format!("`{text}`: {e}"))
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
            (
                &["xputrace", "--flamegrah", "x.svg", "over100ms"],
                "there is no option `--flamegrah`; did you mean `--flamegraph`?",
            ),
            (
                &["xputrace", "check", "x", "--folded", "q"],
                "`check` has no option `--folded`; `xputrace check --help` lists those it has",
            ),
            (&["xputrace", "check", "x", "--", "./train"], "`check` takes no command: leave out `-- ./train`"),
            (&["xputrace", "--perfetto", "t.json", "--", "./train"], "--perfetto is not implemented yet"),
            (&["xputrace", "-f", "csv", "--", "./train"], "-f csv is not implemented yet"),
            (&["xputrace", "check", "x", "-p", "7"], "unexpected argument '-p' found"),
            (&["xputrace", "demo", "-q"], "unexpected argument '-q' found"),
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

    #[test]
    fn scripts_cannot_declare_our_options() {
        let all = Typed::command();
        let verbs = all.get_subcommands().chain([&all]).flat_map(clap::Command::get_arguments);
        let long = verbs.filter_map(Arg::get_long).chain(NOT_YET.iter().copied()).chain(["help", "version"]);
        let mut ours: Vec<&str> = long.collect();
        ours.sort_unstable();
        ours.dedup();
        assert_eq!(xputrace_script::TAKEN, ours);
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(duration("10").is_err());
    }
}
