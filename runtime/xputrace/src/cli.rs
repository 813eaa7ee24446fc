//! The command line: what was typed (`Typed`, clap's table) and what it means (`Invocation`).
//!
//! A script's own arguments stand among ours: every `--name=value` before `--` that is not in our
//! table is the script's, and the script refuses those it does not declare.

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use xputrace_model::diagnostic::nearest;

/// bpftrace for programs that use a CPU and a GPU.
#[derive(Parser, Debug)]
#[command(name = "xputrace", version, disable_help_subcommand = true, args_conflicts_with_subcommands = false)]
#[command(after_help = "Examples:\n  \
    xputrace -- ./train                            where the time goes (the script `summary`)\n  \
    xputrace -e 'kernel(|k| @time[k.name].sum(k.duration))' -- ./train\n  \
    xputrace over100ms --ms=50 -- ./train          a bundled script with an argument\n  \
    xputrace scripts                               the bundled scripts, a line each\n  \
    xputrace demo                                  the main job, on any machine\n\n\
Exit status of a run: what a handler said in exit(code), else the command's own (128 + the signal that killed it). \
    125 where that would be 0 and something of ours failed (a handler, the output, a recording, every probe), and where nothing \
    was run (script error, usage, rights). `check` and the others that run nothing: 2 for a mistake.\n\n\
Ctrl-C ends the run and prints; a second one quits at once. A reader that has had enough (`| head`) ends the \
    tracing too, which is no failure; the command runs on to its end.")]
pub struct Typed {
    #[command(subcommand)]
    pub verb: Option<Verb>,
    #[command(flatten)]
    pub options: Options,
    /// A script file, or the name of a bundled script
    #[arg(value_name = "SCRIPT")]
    pub script: Option<String>,
}

#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Run a script (the default)
    Run {
        /// A script file, or the name of a bundled script
        script: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Record all GPU events, and what SCRIPT's CPU probes read, into a file
    Record {
        script: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// What can be probed here: xputrace list 'uprobe:libc:mem*'
    List { pattern: Option<String> },
    /// A script's errors and warnings, and nothing else
    Check {
        script: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Where each handler will run, and why
    Explain {
        script: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Write the compiled script as an eBPF object (-o x.bpf.o)
    Build {
        script: Option<String>,
        #[command(flatten)]
        options: Options,
    },
    /// What works on this machine, and the exact fix for what does not
    Doctor {
        #[command(flatten)]
        options: Options,
    },
    /// The bundled scripts, a line each
    Scripts,
    /// The main job, on any machine
    Demo,
}

#[derive(clap::Args, Debug, Default, Clone)]
pub struct Options {
    /// A script on the command line
    #[arg(short = 'e', value_name = "TEXT")]
    pub one_liner: Option<String>,
    /// Attach to a running process (several -p allowed; CPU probes only so far)
    #[arg(short = 'p', value_name = "PID")]
    pub pids: Vec<u32>,
    /// Every process that has the probed code (CPU probes only so far)
    #[arg(short = 'a', long = "all-processes")]
    pub all_processes: bool,
    /// Run the script over a recording: no root, no GPU
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Output format
    #[arg(short = 'f', value_name = "FORMAT", value_parser = ["text", "json", "csv"], default_value = "text")]
    pub format: String,
    /// Write the output (of record and build: the file) here
    #[arg(short = 'o', value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write folded stacks: FILE, or @name=FILE where several maps begin with a stack
    #[arg(long, value_name = "FILE")]
    pub folded: Vec<String>,
    /// Write a flame graph: FILE.svg, or @name=FILE.svg
    #[arg(long, value_name = "FILE")]
    pub flamegraph: Vec<String>,
    /// Write a time line for Perfetto (not yet)
    #[arg(long, value_name = "FILE")]
    pub perfetto: Option<PathBuf>,
    /// Stop after this long, such as 10s or 500ms
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub run_for: Option<Duration>,
    /// Begin after this long (not yet)
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub after: Option<Duration>,
    /// Only this GPU (not yet)
    #[arg(long, value_name = "ID")]
    pub device: Option<u32>,
    /// Only processes of this name (not yet)
    #[arg(long, value_name = "NAME")]
    pub comm: Option<String>,
    /// End with status 3 when a condition holds (not yet)
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Option<String>,
    /// Under sudo, run CMD as root instead of as the invoking user
    #[arg(long)]
    pub as_root: bool,
    /// Only the results: no notes
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Say more (the bytecode in explain, the verifier's log in errors)
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// What was asked for.
#[derive(Debug)]
pub enum Invocation {
    Run(Run),
    Record(Run),
    List { pattern: Option<String> },
    Check(Run),
    Explain(Run),
    Build(Run),
    Doctor(Options),
    Scripts,
    Demo,
}

impl Invocation {
    /// Its options, where it takes any.
    pub fn options(&self) -> Option<&Options> {
        match self {
            Invocation::Run(run)
            | Invocation::Record(run)
            | Invocation::Check(run)
            | Invocation::Explain(run)
            | Invocation::Build(run) => Some(&run.options),
            Invocation::Doctor(options) => Some(options),
            Invocation::List { .. } | Invocation::Scripts | Invocation::Demo => None,
        }
    }
}

/// A script, its arguments, and what to run it on.
#[derive(Debug, Clone)]
pub struct Run {
    /// `None`: no script was given.
    pub script: Option<Script>,
    pub script_arguments: Vec<String>,
    pub command: Vec<OsString>,
    pub options: Options,
    /// `--help` stood behind a script: its arguments are asked for.
    pub help: bool,
}

/// Where a script's text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Script {
    Inline(String),
    /// A path, or the name of a bundled script.
    Named(String),
}

/// Why the command line was not understood; printed by clap with usage and hint.
pub type UsageError = clap::Error;

/// Reads a command line, program name first.
pub fn parse(arguments: Vec<OsString>) -> Result<Invocation, UsageError> {
    let (ours, command) = split_command(help_first(arguments));
    let words = Words::split(ours);
    understand(&words, &command).map_err(|error| words.explain(error))
}

/// `help VERB` is `VERB --help`.
fn help_first(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|it| it == "help") {
        let help = arguments.remove(1);
        let at = arguments.len().min(2);
        arguments.insert(at, OsString::from(format!("--{}", help.to_string_lossy())));
    }
    arguments
}

fn understand(words: &Words, command: &[OsString]) -> Result<Invocation, UsageError> {
    let Words { ours, scripts: script_arguments, help, .. } = words;
    let (help, command) = (*help, command.to_vec());
    let mut typed = Typed::from_arg_matches(&Typed::command().try_get_matches_from(ours)?)?;
    let verb = typed.verb.take();
    let outer = typed.options.clone();
    let run = |script: Option<String>, options: Options| -> Result<Run, UsageError> {
        let options = options.over(&outer);
        let (script, help) = choose_script(script.or(typed.script.clone()), &options, help)?;
        Ok(Run { script, script_arguments: script_arguments.clone(), command: command.clone(), options, help })
    };
    Ok(match verb {
        None => Invocation::Run(run(None, Options::default())?),
        Some(Verb::Run { script, options }) => Invocation::Run(run(script, options)?),
        Some(Verb::Record { script, options }) => Invocation::Record(run(script, options)?),
        Some(Verb::Check { script, options }) => Invocation::Check(run(script, options)?),
        Some(Verb::Explain { script, options }) => Invocation::Explain(run(script, options)?),
        Some(Verb::Build { script, options }) => Invocation::Build(run(script, options)?),
        // The others know no script, whose arguments and command these could be.
        Some(_) if let Some(word) = script_arguments.first() => return Err(unexpected(word)),
        Some(_) if let Some(word) = command.first() => return Err(unexpected(&word.to_string_lossy())),
        Some(Verb::List { pattern }) => Invocation::List { pattern },
        Some(Verb::Doctor { options }) => Invocation::Doctor(options.over(&outer)),
        Some(Verb::Scripts) => Invocation::Scripts,
        Some(Verb::Demo) => Invocation::Demo,
    })
}

fn unexpected(word: &str) -> UsageError {
    usage(format!("unexpected argument '{word}' found"))
}

fn choose_script(named: Option<String>, options: &Options, help: bool) -> Result<(Option<Script>, bool), UsageError> {
    match (named, &options.one_liner) {
        (Some(name), Some(_)) => Err(usage(format!(
            "a script was given twice: -e and `{name}`; a program to run stands behind `--`: -- {name}"
        ))),
        (Some(name), None) => Ok((Some(Script::Named(name)), help)),
        (None, Some(text)) => Ok((Some(Script::Inline(text.clone())), help)),
        (None, None) => Ok((None, help)),
    }
}

/// A mistake in the command line that clap itself cannot see.
pub fn usage(message: String) -> UsageError {
    Typed::command().error(clap::error::ErrorKind::ArgumentConflict, message)
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

/// What stands before `--`, sorted.
struct Words {
    ours: Vec<OsString>,
    /// Long options that are not ours, each with the word behind it when it has no `=` and a script stands
    /// before it.
    scripts: Vec<String>,
    /// `--help` stands behind a script: it is the script's too.
    help: bool,
    /// The first word that is neither an option nor a verb.
    script: Option<String>,
    /// An option that is not ours, stands before the script, and is spelled nearly as one of ours.
    misspelled: Option<(String, String)>,
    one_liner: bool,
}

impl Words {
    fn split(arguments: Vec<OsString>) -> Self {
        let known = known_long_options();
        let takes_value = options_with_value();
        let mut it = Words {
            ours: Vec::new(),
            scripts: Vec::new(),
            help: false,
            script: None,
            misspelled: None,
            one_liner: false,
        };
        let mut words = arguments.into_iter().enumerate().peekable();
        while let Some((index, word)) = words.next() {
            let text = word.to_string_lossy().into_owned();
            let name = text.strip_prefix("--").map(|it| it.split('=').next().unwrap_or(it).to_string());
            let have_script = it.script.is_some() || it.one_liner;
            match name {
                Some(name) if name == "help" && have_script => it.help = true,
                Some(name) if name != "help" && name != "version" && !known.contains(&name) => {
                    it.scripts.push(text.clone());
                    if have_script {
                        let value = |(_, next): &(usize, OsString)| !next.to_string_lossy().starts_with('-');
                        let detached = words.next_if(|next| !text.contains('=') && value(next));
                        it.scripts.extend(detached.map(|(_, value)| value.to_string_lossy().into_owned()));
                    } else if let Some(near) = nearest(&name, known.iter().map(String::as_str)) {
                        it.misspelled.get_or_insert((name, near.to_owned()));
                    }
                }
                _ => {
                    it.one_liner |= text.starts_with("-e");
                    if index > 0 && !text.starts_with('-') && !is_verb(&text) {
                        it.script.get_or_insert(text.clone());
                    }
                    it.ours.push(word);
                    if takes_value.contains(&text) {
                        it.ours.extend(words.next().map(|(_, value)| value));
                    }
                }
            }
        }
        it
    }

    /// A better reason why the words were not understood, where there is one.
    fn explain(&self, error: UsageError) -> UsageError {
        if !error.use_stderr() {
            return error;
        }
        if let Some((name, near)) = &self.misspelled {
            return usage(format!("there is no option `--{name}`; did you mean `--{near}`?"));
        }
        match (error.kind(), &self.script) {
            (clap::error::ErrorKind::UnknownArgument, Some(name)) if self.one_liner || is_program(name) => {
                usage(format!("a program and its options stand behind `--`: -- {name} …"))
            }
            _ => error,
        }
    }
}

/// Whether a file is a program rather than a script.
pub fn is_program(path: &str) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut it| std::io::Read::read_exact(&mut it, &mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}

fn known_long_options() -> Vec<String> {
    Typed::command().get_arguments().filter_map(|it| it.get_long().map(str::to_string)).collect()
}

fn options_with_value() -> Vec<String> {
    let command = Typed::command();
    let valued = command.get_arguments().filter(|it| it.get_action().takes_values());
    valued
        .flat_map(|it| [it.get_long().map(|l| format!("--{l}")), it.get_short().map(|s| format!("-{s}"))])
        .flatten()
        .collect()
}

fn is_verb(word: &str) -> bool {
    Typed::command().get_subcommands().any(|it| it.get_name() == word)
}

/// `--folded` and `--flamegraph`: files of stacks to write at the end, each `FILE` or `@name=FILE`.
#[derive(Clone, Debug, Default)]
pub struct StackFiles {
    pub folded: Vec<String>,
    pub flamegraphs: Vec<String>,
}

impl StackFiles {
    /// Whether none is wanted.
    pub fn is_empty(&self) -> bool {
        self.folded.is_empty() && self.flamegraphs.is_empty()
    }
}

impl Options {
    /// The files of stacks that were asked for.
    pub fn stack_files(&self) -> StackFiles {
        StackFiles { folded: self.folded.clone(), flamegraphs: self.flamegraph.clone() }
    }

    /// These options, and where they say nothing, those that stood before the verb.
    fn over(mut self, outer: &Options) -> Options {
        let format_is_default = self.format.is_empty() || self.format == "text";
        self.one_liner = self.one_liner.or_else(|| outer.one_liner.clone());
        self.pids.extend(&outer.pids);
        self.replay = self.replay.or_else(|| outer.replay.clone());
        self.output = self.output.or_else(|| outer.output.clone());
        self.folded.extend(outer.folded.iter().cloned());
        self.flamegraph.extend(outer.flamegraph.iter().cloned());
        self.perfetto = self.perfetto.or_else(|| outer.perfetto.clone());
        self.run_for = self.run_for.or(outer.run_for);
        self.after = self.after.or(outer.after);
        self.device = self.device.or(outer.device);
        self.comm = self.comm.or_else(|| outer.comm.clone());
        self.fail_if = self.fail_if.or_else(|| outer.fail_if.clone());
        self.all_processes |= outer.all_processes;
        self.as_root |= outer.as_root;
        self.quiet |= outer.quiet;
        self.verbose |= outer.verbose;
        if format_is_default && !outer.format.is_empty() {
            self.format.clone_from(&outer.format);
        }
        self
    }

    /// The first option given that this version only names; a sentence for the user.
    pub fn not_yet(&self) -> Option<String> {
        let given = [
            (self.perfetto.is_some(), "--perfetto"),
            (self.after.is_some(), "--after"),
            (self.device.is_some(), "--device"),
            (self.comm.is_some(), "--comm"),
            (self.fail_if.is_some(), "--fail-if"),
            (self.format == "csv", "-f csv"),
        ];
        let (_, name) = given.into_iter().find(|(given, _)| *given)?;
        Some(format!("{name} is not there yet: it is planned, and this version does not have it"))
    }
}

/// `10s`, `500ms`, `100us`, `2m`.
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
        match parse(words).expect(line) {
            Invocation::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn script_arguments_stand_among_ours() {
        let it = run("xputrace -f json over100ms --ms=50 --for 2s -o out --name x -- ./train --ms=7");
        assert_eq!(it.script, Some(Script::Named("over100ms".into())));
        assert_eq!(it.script_arguments, ["--ms=50", "--name", "x"]);
        assert_eq!(it.command, ["./train", "--ms=7"]);
        assert_eq!((it.options.format.as_str(), it.options.run_for), ("json", Some(Duration::from_secs(2))));
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
            let error = parse(words).expect_err("a mistake").to_string();
            error.lines().next().unwrap_or_default().to_owned()
        };
        for (line, message) in [
            (
                &["xputrace", "-e", "begin(1)", "true"][..],
                "a script was given twice: -e and `true`; a program to run stands behind `--`: -- true",
            ),
            (
                &["xputrace", "-e", "begin(1)", "python3", "-c", "1"],
                "a program and its options stand behind `--`: -- python3 …",
            ),
            (
                &["xputrace", "/proc/self/exe", "-c", "1"],
                "a program and its options stand behind `--`: -- /proc/self/exe …",
            ),
            (
                &["xputrace", "--flamegrah", "x.svg", "over100ms"],
                "there is no option `--flamegrah`; did you mean `--flamegraph`?",
            ),
        ] {
            assert_eq!(refused(line), format!("error: {message}"));
        }
        assert!(refused(&["xputrace", "help", "record"]).starts_with("Record all GPU events"));
        assert!(refused(&["xputrace", "help"]).starts_with("bpftrace for programs"));
        assert!(run("xputrace help over100ms").help);
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert!(duration("10").is_err());
    }
}
