//! The words of the command line as they are typed: clap's table of verbs and their options.

use crate::stacks::Naming;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use std::path::{Path, PathBuf};
use std::time::Duration;
use xputrace_bytecode::object::Loaders;
use xputrace_model::plan::DeviceWay;
use xputrace_model::process_name::ProcessName;
use xputrace_model::stack::PythonFrames;
use xputrace_render::{EVENT_FORMATS, EventFormat, FILES, FORMATS, FileOutput, Format};

/// A command line error; clap prints it with usage and hint.
pub type UsageError = clap::Error;

/// Creates an error that clap itself cannot detect.
pub(super) fn usage(message: String) -> UsageError {
    Typed::command().error(ErrorKind::ArgumentConflict, message)
}

/// Planned options: using one is an error that says so.
pub(super) const NOT_YET: &[&str] = &["perfetto", "fail-if"];
/// Planned formats, likewise.
const FORMATS_NOT_YET: &[&str] = &["csv", "perfetto"];

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
pub(super) struct Typed {
    #[command(subcommand)]
    pub(super) verb: Option<Verb>,
    #[command(flatten)]
    pub(super) run: RunOptions,
}

#[derive(Subcommand, Debug)]
pub(super) enum Verb {
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
    /// Write all events of a recording for other programs: xputrace export ndjson T.xpt -o F
    Export(ExportOptions),
    /// Write a program for bpftrace as a script; what has no equivalent is a comment at its place
    Translate(TranslateOptions),
    /// Diagnose this machine and suggest fixes
    Doctor(DoctorOptions),
    /// List the bundled scripts
    Scripts,
    /// Run a demo (no GPU needed)
    Demo,
    /// Explain an event (kernel, uprobe), a verb or a script
    Help(HelpOptions),
    /// Print completions for a shell
    Completions(CompletionsOptions),
    /// Print a definition file of the functions of scripts, for editors that know Rhai
    Definitions,
    /// Print a manual page, as `man -l` shows it
    Man(ManOptions),
}

/// Options of `xputrace help`.
#[derive(clap::Args, Debug)]
pub struct HelpOptions {
    /// An event, a verb or a script
    pub topic: Option<String>,
}

/// Options of `xputrace completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsOptions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell that has completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Options of `xputrace man`.
#[derive(clap::Args, Debug)]
pub struct ManOptions {
    /// The verb whose page is printed; otherwise the one of xputrace itself
    pub verb: Option<String>,
    /// Write all pages to this directory instead
    #[arg(short = 'o', value_name = "DIRECTORY", value_hint = ValueHint::DirPath, conflicts_with = "verb")]
    pub directory: Option<PathBuf>,
}

/// Options of `xputrace list`.
#[derive(clap::Args, Debug)]
pub struct ListOptions {
    /// An event (kernel, launch), uprobe:LIBRARY:FUNCTION, uretprobe:LIBRARY:FUNCTION, usdt:FILE:PROVIDER:NAME,
    /// tracepoint:CATEGORY:NAME, api:CALL, or device:KERNEL with -p or -- CMD; * matches any text
    pub pattern: Option<String>,
    /// Of device:KERNEL and usdt: list what is in the files that this process has mapped
    #[arg(short = 'p', value_name = "PID", value_parser = pid)]
    pub pid: Option<u32>,
    /// The command behind `--`: run it, and list the kernels that it runs
    #[arg(skip)]
    pub command: Vec<std::ffi::OsString>,
    /// Show fields, and what cannot be probed
    #[arg(short = 'v', long)]
    pub verbose: bool,
}

/// Options of `xputrace export`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit status: 0 if all was written, 1 if the recording is damaged and its readable part was written, \
    2 on an error."
)]
pub struct ExportOptions {
    /// What is written
    #[arg(value_name = "FORMAT", value_parser = event_formats())]
    pub format: &'static EventFormat,
    /// The recording
    #[arg(value_name = "RECORDING", value_hint = ValueHint::FilePath, required_unless_present = "schema")]
    pub recording: Option<PathBuf>,
    /// The file to write; without it, or with -, standard output
    #[arg(short = 'o', value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Instead of events, write what their fields are: names, types, units and meanings
    #[arg(long, conflicts_with = "recording")]
    pub schema: bool,
}

impl ExportOptions {
    /// Returns the file to write; `None` for standard output.
    pub fn file(&self) -> Option<&Path> {
        self.output.as_deref().filter(|it| *it != Path::new("-"))
    }
}

/// Takes the formats of [`EVENT_FORMATS`] by their names.
fn event_formats() -> impl TypedValueParser<Value = &'static EventFormat> {
    let names = EVENT_FORMATS.iter().map(|it| PossibleValue::new(it.name).help(it.help));
    let named = |name: String| EVENT_FORMATS.iter().find(|it| it.name == name).ok_or("no such format");
    PossibleValuesParser::new(names).try_map(named)
}

/// Options of `xputrace translate`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Exit status: 0 if everything was translated, 1 if something was not, 2 on an error.")]
pub struct TranslateOptions {
    /// A program for bpftrace; - reads standard input
    #[arg(value_name = "FILE", required_unless_present = "one_liner", conflicts_with = "one_liner")]
    pub file: Option<PathBuf>,
    /// A program on the command line
    #[arg(short = 'e', value_name = "TEXT")]
    pub one_liner: Option<String>,
}

/// The script of a verb that takes one.
#[derive(clap::Args, Debug)]
pub(super) struct ScriptOptions {
    /// A script file, the name of a bundled script, or for `run`, `check` and `explain` an object
    /// compiled from C (FILE.bpf.o)
    #[arg(value_name = "SCRIPT", value_hint = ValueHint::FilePath)]
    pub(super) script: Option<String>,
    /// A script on the command line
    #[arg(short = 'e', value_name = "TEXT")]
    pub(super) one_liner: Option<String>,
    /// Suppress notes and warnings
    #[arg(short = 'q', long)]
    pub(super) quiet: bool,
}

/// How long a command is traced, and as which user it runs.
#[derive(clap::Args, Debug)]
pub(super) struct CommandOptions {
    /// Stop tracing after this long, such as 10s or 500ms; CMD keeps running (`-- timeout 10 CMD` ends it too)
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(super) run_for: Option<Duration>,
    #[command(flatten)]
    pub(super) window: WindowOptions,
    /// Record only what is launched on this GPU: its number in its process, or its UUID or the beginning of that;
    /// repeat for several (--comm chooses processes by their name)
    #[arg(long = "device", value_name = "GPU", value_parser = gpu)]
    pub(super) gpus: Vec<String>,
    /// What to do when another tool in the program uses CUPTI, such as torch.profiler, and CUPTI serves one at a time
    /// (up to 13.4)
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub(super) on_conflict: OnConflict,
    /// Under sudo, run CMD as root instead of as the invoking user
    #[arg(long)]
    pub(super) as_root: bool,
}

/// `--on-conflict`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnConflict {
    /// Let it have CUPTI's records while it uses them; the result says what is missing
    #[default]
    Yield,
    /// Tell it that CUPTI is in use; it may work without, or fail
    Keep,
    /// End tracing of the program, which keeps running
    Fail,
}

/// The part of a run that is recorded.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct WindowOptions {
    /// Record only after this long; --for counts from then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub after: Option<Duration>,
    /// Record only within the program's own ranges: `nvtx:NAME`, or `cudaProfiler` (from cudaProfilerStart to Stop);
    /// --for counts from the first
    #[arg(long, value_name = "RANGE", value_parser = range)]
    pub range: Option<Range>,
}

impl WindowOptions {
    /// Whether only a part of a run is recorded.
    pub fn is_limited(&self) -> bool {
        self.after.is_some() || self.range.is_some()
    }
}

/// The program's own ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Range {
    /// From `cudaProfilerStart` or `cuProfilerStart` to the next stop.
    Profiler,
    /// NVTX ranges of this name, of any thread and domain.
    Named(String),
}

impl Range {
    /// Returns the name of ranges that have one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Range::Profiler => None,
            Range::Named(name) => Some(name),
        }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Range::Profiler => f.write_str("cudaProfiler"),
            Range::Named(name) => write!(f, "nvtx:{name}"),
        }
    }
}

fn gpu(text: &str) -> Result<String, String> {
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let kind = text.get(..4).map(str::to_ascii_uppercase);
    match is_number || matches!(kind.as_deref(), Some("GPU-" | "MIG-")) && !text.contains(',') {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is no GPU: write its number, such as 0, or its UUID, such as GPU-1a2b3c4d")),
    }
}

fn range(text: &str) -> Result<Range, String> {
    match text.strip_prefix("nvtx:") {
        Some("") => Err("the name of the range is missing: write nvtx:NAME".into()),
        Some(name) => Ok(Range::Named(name.to_owned())),
        None if text == "cudaProfiler" => Ok(Range::Profiler),
        None => Err(format!("`{text}` is no range: write nvtx:NAME or cudaProfiler")),
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct RunOptions {
    #[command(flatten)]
    pub(super) script: ScriptOptions,
    #[command(flatten)]
    pub(super) command: CommandOptions,
    /// Attach to a running process; repeat for several
    #[arg(short = 'p', value_name = "PID", value_parser = pid, conflicts_with = "all_processes")]
    pub(super) pids: Vec<u32>,
    /// Attach to every process that uses CUDA or has the probed code, also to those that start later
    #[arg(short = 'a', long = "all-processes")]
    pub(super) all_processes: bool,
    /// Like -a, for processes of this name (as in /proc/PID/comm); `NAME*` is a beginning
    #[arg(long = "comm", value_name = "NAME", conflicts_with_all = ["all_processes", "pids"], value_parser = ProcessName::parse)]
    pub(super) name: Option<ProcessName>,
    /// Run the script over a recording: no root, no GPU
    #[arg(long, value_name = "FILE")]
    pub(super) replay: Option<PathBuf>,
    #[command(flatten)]
    pub(super) format: FormatOption,
    #[command(flatten)]
    pub(super) names: NameOptions,
    /// Write the results to a file
    #[arg(short = 'o', value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) files: FileOptions,
    #[command(flatten)]
    pub(super) object: Box<ObjectOptions>,
}

/// Of a compiled object in place of a script.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of compiled objects (xputrace run FILE.bpf.o)")]
pub struct ObjectOptions {
    /// Print this map at the end; without --dump and --poll, all maps are printed
    #[arg(long, value_name = "MAP")]
    pub dump: Vec<String>,
    /// Print the records of this ring as they arrive; RING=STRUCT gives their type
    #[arg(long, value_name = "RING")]
    pub poll: Vec<String>,
    /// Before the run, fill a map or a global variable: MAP[KEY]=VALUE, MAP=@FILE, VARIABLE=VALUE
    #[arg(long, value_name = "PLACE=VALUE")]
    pub set: Vec<String>,
    /// Attach a program as if it were in this section: f=kprobe/KERNEL, f=uprobe/FILE:FUNCTION, f=perf_event/99
    #[arg(long, value_name = "PROGRAM=SECTION")]
    pub attach: Vec<String>,
    /// Run a program on the GPU though its name doesn't begin with cuda__
    #[arg(long, value_name = "PROGRAM")]
    pub on_gpu: Vec<String>,
    /// Launch a program of kprobe/__directly_run as a kernel of this shape; without it, each runs in one thread
    #[arg(long, value_name = "PROGRAM=GRID:BLOCK")]
    pub launch: Vec<String>,
    /// Let programs end threads of kernels (bpf_cuda_exit)
    #[arg(long = "unsafe")]
    pub allows_exit: bool,
    /// How programs get into kernels of real GPUs: by a copy made from PTX, or by patches of any machine code
    #[arg(long, value_name = "WAY", value_parser = ways())]
    pub via: Option<DeviceWay>,
}

impl ObjectOptions {
    /// Returns the first option that was given.
    pub fn given(&self) -> Option<&'static str> {
        let ObjectOptions { dump, poll, set, attach, on_gpu, launch, allows_exit, via } = self;
        let lists =
            [("dump", dump), ("poll", poll), ("set", set), ("attach", attach), ("on-gpu", on_gpu), ("launch", launch)];
        let list = lists.into_iter().find(|it| !it.1.is_empty()).map(|it| it.0);
        list.or(allows_exit.then_some("unsafe")).or(via.map(|_| "via"))
    }
}

/// Takes the ways by the names that scripts have for them.
fn ways() -> impl TypedValueParser<Value = DeviceWay> {
    let names = PossibleValuesParser::new(DeviceWay::NAMES.map(|it| it.0));
    names.try_map(|name| DeviceWay::named(&name).ok_or("no such way"))
}

#[derive(clap::Args, Debug)]
pub(super) struct PythonOptions {
    /// How `launch.ustack` shows the lines of Python programs
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    python: PythonOption,
}

/// How functions and kernels are named.
#[derive(clap::Args, Debug)]
pub(super) struct NameOptions {
    #[command(flatten)]
    python: PythonOptions,
    /// How tables and flame graphs show the names of kernels and functions
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    names: NamesOption,
    #[command(flatten)]
    lines: LinesOption,
}

/// Of `run` and `record`.
#[derive(clap::Args, Debug)]
pub(super) struct LinesOption {
    /// Show lines and inlined functions of native code in stacks, where debug information has them
    #[arg(long)]
    pub(super) lines: bool,
}

impl From<PythonOptions> for Naming {
    fn from(it: PythonOptions) -> Self {
        Naming { python: it.python.into(), ..Naming::default() }
    }
}

impl From<NameOptions> for Naming {
    fn from(it: NameOptions) -> Self {
        Naming { whole_names: it.names == NamesOption::Full, lines: it.lines.lines, ..it.python.into() }
    }
}

/// `--names`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum NamesOption {
    /// Without namespaces of template arguments, and without arguments that don't fit
    #[default]
    Short,
    /// With all template arguments
    Full,
}

/// `--python`.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum PythonOption {
    /// Among native frames, in place of the interpreter's own
    #[default]
    Merge,
    /// Without native frames
    Only,
    /// Not at all, and nothing is read
    Off,
}

impl From<PythonOption> for PythonFrames {
    fn from(it: PythonOption) -> Self {
        match it {
            PythonOption::Merge => PythonFrames::Merge,
            PythonOption::Only => PythonFrames::Only,
            PythonOption::Off => PythonFrames::Off,
        }
    }
}

#[derive(clap::Args, Debug)]
pub(super) struct RecordOptions {
    #[command(flatten)]
    pub(super) script: ScriptOptions,
    #[command(flatten)]
    pub(super) command: CommandOptions,
    #[command(flatten)]
    pub(super) lines: LinesOption,
    /// The recording
    #[arg(short = 'o', value_name = "FILE", default_value = "recording.xpt")]
    pub(super) output: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(super) struct CheckOptions {
    #[command(flatten)]
    pub(super) script: ScriptOptions,
    #[command(flatten)]
    pub(super) object: Box<ObjectOptions>,
}

#[derive(clap::Args, Debug)]
pub(super) struct ExplainOptions {
    #[command(flatten)]
    pub(super) script: ScriptOptions,
    /// Say which kernels of a running process device handlers reach; `-- CMD`: of a program. Neither is traced
    #[arg(short = 'p', value_name = "PID", value_parser = pid)]
    pub(super) pids: Vec<u32>,
    #[command(flatten)]
    pub(super) python: PythonOptions,
    /// Show the bytecode too
    #[arg(short = 'v', long)]
    pub(super) verbose: bool,
    #[command(flatten)]
    pub(super) object: Box<ObjectOptions>,
}

#[derive(clap::Args, Debug)]
pub(super) struct BuildOptions {
    #[command(flatten)]
    pub(super) script: ScriptOptions,
    /// The object file; by default the script's name with .bpf.o
    #[arg(short = 'o', value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Who loads the object
    #[arg(long, value_name = "WHO", value_enum, default_value_t)]
    pub(super) loader: LoaderOption,
}

/// `--loader`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LoaderOption {
    /// libbpf from 1.1 on, bpftool, aya: a link for each function
    #[default]
    Any,
    /// libbpf from 1.3 on: a link for all functions of a pattern; handlers of GPU events are loaded too
    Libbpf,
}

impl From<LoaderOption> for Loaders {
    fn from(it: LoaderOption) -> Self {
        match it {
            LoaderOption::Any => Loaders::Any,
            LoaderOption::Libbpf => Loaders::Libbpf,
        }
    }
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
        self.format.0.machine_readable
    }
}

/// `-f`: one of [`FORMATS`].
#[derive(Clone, Copy, Debug)]
pub(super) struct FormatOption(pub(super) &'static Format);

impl clap::Args for FormatOption {
    fn augment_args(command: clap::Command) -> clap::Command {
        let planned = FORMATS_NOT_YET.iter().map(|it| PossibleValue::new(*it).hide(true));
        let names = PossibleValuesParser::new(FORMATS.iter().map(|it| PossibleValue::new(it.name)).chain(planned));
        let option = Arg::new("format").short('f').value_name("FORMAT").help("Output format");
        command.arg(option.value_parser(names).default_value(FORMATS[0].name))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FormatOption {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, UsageError> {
        let name = matches.get_one::<String>("format").map_or(FORMATS[0].name, String::as_str);
        let format = FORMATS.iter().find(|it| it.name == name);
        format.map(FormatOption).ok_or_else(|| usage(format!("-f {name} is not implemented yet")))
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
pub(super) struct FileOptions(pub(super) Vec<FileWish>);

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

/// Reads a process id.
fn pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("a process id is a number; `--comm {text}` takes the processes of a name"))
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
