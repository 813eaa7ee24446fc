//! `xputrace list 'device:…'`: the kernels of a program, where they are, and which ways lead into them.
//!
//! ```text
//! -p PID    files that it has mapped ──▶ kernels in them
//! -- CMD    runs it: kernels that it ran, and files that it has mapped ──▶ where those are
//! ```

use crate::cli::{ListOptions, Options, Run};
use crate::compiled::Compiled;
use crate::console;
use crate::run::observer::Observer;
use crate::run::{self, RunState};
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xputrace_model::plan::{Activities, Activity, KernelPattern};
use xputrace_model::stack::StackKey;
use xputrace_nvidia_tracer::kernels::{Kernels, Mapped, matches, search};
use xputrace_nvidia_tracer::twins::files::mapped_programs;
use xputrace_pipeline::{ProcessIndex, ProcessInfo};
use xputrace_symbols::demangle;
use xputrace_wire::record::{ActivityRecord, Record, records};
use xputrace_wire::totals::CollectorTotals;

/// How often it is looked at what a program has mapped while it runs.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// Lists the kernels of a program that match the pattern.
pub fn list(pattern: &str, options: &ListOptions) -> Result<ExitCode> {
    let kernels = KernelPattern::new(pattern);
    match (options.pid, options.command.is_empty()) {
        (Some(_), false) => bail!("-p lists the kernels of a running process: leave out the command"),
        (Some(pid), true) => of_process(&kernels, pid),
        (None, false) => of_command(&kernels, options),
        (None, true) => {
            super::list_places_in_kernels(options.verbose)?;
            bail!("the kernels of a program are listed with -p PID or -- CMD: xputrace list 'device:{pattern}' -- CMD")
        }
    }
}

fn of_process(pattern: &KernelPattern, pid: u32) -> Result<ExitCode> {
    let found = search(pid, &mapped_programs(pid).with_context(|| format!("process {pid}"))?);
    found.notes.iter().for_each(console::say);
    if found.has_software_gpu {
        bail!(
            "process {pid} runs the software GPU, whose kernels are in no file: xputrace list 'device:{}' -- CMD",
            pattern.text()
        );
    }
    let in_file = |(path, kernels): (&PathBuf, &Kernels)| {
        let here = kernels.iter().filter(|it| matches(pattern, it.0));
        module(&path.to_string_lossy(), here.map(|(symbol, ways)| (symbol.as_str(), ways.text())))
    };
    let text: String = found.files.iter().map(in_file).collect();
    if text.is_empty() {
        bail!(
            "no file that process {pid} has mapped has a kernel that `device:{}` matches; those that it compiled itself \
             are in none",
            pattern.text()
        );
    }
    console::print(text)?;
    console::say(format_args!(
        "patches reach only modules that are loaded after xputrace has attached: start the program under it for them"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Returns the lines of a module: its kernels, by way and name. Empty without any.
fn module<'k>(name: &str, kernels: impl Iterator<Item = (&'k str, String)>) -> String {
    let mut by_way: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    kernels.for_each(|(symbol, way)| _ = by_way.entry(way).or_default().insert(demangle(symbol).name.to_string()));
    let lines = |(way, names): (&String, &BTreeSet<String>)| {
        format!("  {way}\n{}", names.iter().map(|it| format!("    {it}\n")).collect::<String>())
    };
    let text: String = by_way.iter().map(lines).collect();
    if text.is_empty() { text } else { format!("{name}\n{text}") }
}

/// Runs a command, and lists the kernels that it ran.
fn of_command(pattern: &KernelPattern, options: &ListOptions) -> Result<ExitCode> {
    let ran = Rc::new(RefCell::new(Ran::default()));
    let run = Run {
        script: None,
        script_arguments: Vec::new(),
        command: options.command.clone(),
        // The program's own output is all that is shown meanwhile.
        options: Options { quiet: true, output: Some("/dev/null".into()), ..Options::default() },
        help: false,
    };
    let mut compiled = Compiled::of_no_script();
    compiled.plan.demand.activities = Activities::of(&[Activity::Kernel]);
    let status = run::traced(&run, compiled, Some(Box::new(Watch { ran: ran.clone(), ..Watch::default() })))?;
    let text = ran.borrow().text(pattern);
    if text.is_empty() {
        let how =
            if status.number() == 0 { String::new() } else { format!(", and ended with status {}", status.number()) };
        bail!("the program ran no kernel that `device:{}` matches{how}", pattern.text());
    }
    console::print(text)?;
    Ok(status.code())
}

/// What a program has run, and where that may be.
#[derive(Debug, Default)]
struct Ran {
    /// Symbols of kernels.
    kernels: BTreeSet<String>,
    /// Those of processes that ended before it could be looked at what they had mapped.
    unseen: BTreeSet<String>,
    files: BTreeMap<PathBuf, Kernels>,
    has_software_gpu: bool,
}

impl Ran {
    fn text(&self, pattern: &KernelPattern) -> String {
        let all = || self.kernels.union(&self.unseen);
        let matching = || all().filter(|it| matches(pattern, it)).map(String::as_str);
        if self.has_software_gpu {
            return module("the software GPU", matching().map(|it| (it, "the tracer runs the handlers".into())));
        }
        let in_file = |(path, kernels): (&PathBuf, &Kernels)| {
            let here = matching().filter_map(|it| Some((it, kernels.get(it)?.text())));
            module(&path.to_string_lossy(), here)
        };
        let elsewhere = || matching().filter(|it| !self.files.values().any(|kernels| kernels.contains_key(*it)));
        let (unseen, in_memory): (Vec<&str>, Vec<&str>) = elsewhere().partition(|it| !self.kernels.contains(*it));
        let module_of = |name, all: Vec<&str>, way: &str| module(name, all.into_iter().map(|it| (it, way.to_owned())));
        let others = [module_of("in memory", in_memory, IN_MEMORY), module_of("not known", unseen, ENDED_TOO_SOON)];
        self.files.iter().map(in_file).chain(others).collect()
    }
}

const IN_MEMORY: &str = "twin where it was loaded as PTX, or Triton's cache has it, patch";
const ENDED_TOO_SOON: &str = "not known: the process ended before it could be looked at which files these are in";

/// Collects the kernels that a program runs, and the files that it has mapped.
#[derive(Debug, Default)]
struct Watch {
    ran: Rc<RefCell<Ran>>,
    /// Ids of processes.
    pids: HashMap<ProcessIndex, u32>,
    looked: Option<Instant>,
    /// Files that were searched.
    paths: BTreeSet<PathBuf>,
    /// Kernels that ran, by process and id of the name.
    kernels: BTreeSet<(u32, u32)>,
    names: HashMap<(u32, u32), String>,
    /// Processes that have run kernels since they were looked at last.
    unseen: BTreeSet<u32>,
    stacks: BTreeSet<StackKey>,
}

impl Watch {
    /// Searches the files that a process has mapped since it was looked at.
    fn look(&mut self, process: ProcessIndex) {
        let Some(pid) = self.pids.get(&process).copied() else { return };
        self.looked = Some(Instant::now());
        // One that has ended has nothing mapped.
        let Some(mapped) = mapped_programs(pid).ok().filter(|it| !it.is_empty()) else { return };
        let new: BTreeSet<PathBuf> = mapped.difference(&self.paths).cloned().collect();
        let Mapped { files, has_software_gpu, notes } = search(pid, &new);
        notes.iter().for_each(console::say);
        self.paths.extend(new);
        let mut ran = self.ran.borrow_mut();
        ran.files.extend(files);
        ran.has_software_gpu |= has_software_gpu;
        self.unseen.remove(&process.0);
    }
}

impl Observer for Watch {
    fn process(&mut self, process: ProcessIndex, info: &ProcessInfo) -> Result<()> {
        self.pids.insert(process, info.pid);
        self.look(process);
        Ok(())
    }

    fn rings(&mut self, process: ProcessIndex, rings: &[Vec<u8>]) -> Result<()> {
        for record in rings.iter().flat_map(|it| records(it)).flatten() {
            match record {
                Record::Activity(ActivityRecord::Kernel(it)) if self.kernels.insert((process.0, it.symbol)) => {
                    self.unseen.insert(process.0);
                }
                Record::Name { id, text } => {
                    _ = self.names.insert((process.0, id), String::from_utf8_lossy(text).into_owned());
                }
                _ => {}
            }
        }
        if self.unseen.contains(&process.0) || self.looked.is_none_or(|it| it.elapsed() >= LOOKS_EVERY) {
            self.look(process);
        }
        Ok(())
    }

    fn end_process(&mut self, process: ProcessIndex, _: &CollectorTotals) -> Result<()> {
        self.look(process);
        Ok(())
    }

    fn hit(&mut self, _: &[u8], _: &RunState) -> Result<()> {
        Ok(())
    }

    fn stacks(&self) -> &BTreeSet<StackKey> {
        &self.stacks
    }

    fn end(self: Box<Self>, _: &mut RunState) -> Result<()> {
        let mut ran = self.ran.borrow_mut();
        for kernel in &self.kernels {
            let Some(name) = self.names.get(kernel) else { continue };
            let into = if self.unseen.contains(&kernel.0) { &mut ran.unseen } else { &mut ran.kernels };
            into.insert(name.clone());
        }
        Ok(())
    }
}
