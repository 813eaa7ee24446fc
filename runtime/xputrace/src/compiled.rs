//! Compiles the named script to a plan; and the verbs that need no more than that.

use crate::cli::{Run, Script};
use crate::console;
use crate::machine;
use crate::run::objects;
use crate::status::Said;
use crate::translate::{self, MOST_SCRIPT_BYTES};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use xputrace_boundary::read;
use xputrace_bytecode::disasm;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, Severity, SourceFile, Sources};
use xputrace_model::plan::{Plan, ProbeScope, ReturnWay};
use xputrace_model::stack::PythonFrames;
use xputrace_nvidia_tracer::programs;
use xputrace_nvidia_tracer::twins;
use xputrace_nvidia_tracer::ways::{self, WaySubject};
use xputrace_script::{ArgumentSpec, BundledLoader, Clocks, Interpreter, Loader};

/// A script without errors: ready to run.
pub struct Compiled {
    pub plan: Plan,
    pub interpreter: Interpreter,
}

impl Compiled {
    /// Returns the empty script of a recording without a script: no handlers.
    pub fn of_no_script() -> Self {
        let nothing = SourceFile { name: String::new(), text: String::new() };
        let loaded = xputrace_script::load(nothing, &[], Rc::new(BundledLoader));
        Compiled { plan: Plan::default(), interpreter: loaded.interpreter }
    }

    /// Returns the programs of a compiled object: without a script, and so without handlers to interpret.
    pub fn of_object(plan: Plan) -> Self {
        Compiled { plan, ..Compiled::of_no_script() }
    }

    /// Refuses to run a script that declares nothing.
    pub fn refuse_empty(&self) -> Result<()> {
        if self.plan.probes.is_empty() {
            bail!("the script declares no handler, such as kernel(|k| @time[k.name].sum(k.duration))");
        }
        Ok(())
    }
}

/// Compiles the script of an invocation (`summary` by default) for this machine, and prints its
/// diagnostics.
pub fn compile_script(run: &Run, catalog: &dyn Catalog) -> Result<Compiled> {
    if let Some(option) = run.options.object.given() {
        bail!("--{option} is for compiled objects: xputrace run FILE.bpf.o --{option} … -- CMD");
    }
    let (source, directory) = source_of(run.script.as_ref())?;
    let name = typed_name(run.script.as_ref());
    let clocks = run.options.replay.is_none().then(machine::clocks);
    let loader = Rc::new(FileLoader { directory, clocks });
    let mut loaded = xputrace_script::load(source, &run.script_arguments, loader);
    for handler in &mut loaded.staged.handlers {
        let scope = &mut handler.options.scope;
        if run.options.name.is_some() {
            // The processes of a name are filtered as those of a tree are.
            *scope = scope.filter(|it| *it == ProbeScope::System).or(Some(ProbeScope::Tree));
        } else if run.options.all_processes {
            *scope = Some(ProbeScope::System);
        } else if !run.options.pids.is_empty() {
            // Attaching to a process should not affect others; its children may miss a moment. Linux finds a process's
            // own uprobes by its main thread.
            let is_without = run.options.pids.iter().any(|it| xputrace_linux::is_leaderless(*it));
            scope.get_or_insert(if is_without { ProbeScope::Tree } else { ProbeScope::Process });
        } else if run.options.loaders.is_some() {
            // Other loaders neither know which processes belong to a command, nor where functions return.
            scope.get_or_insert(ProbeScope::System);
            handler.options.returns = ReturnWay::Trampoline;
        }
    }
    if run.help {
        console::print(help(&name, &loaded.staged.sources, &loaded.arguments))?;
        bail!(Said::Help);
    }
    // Python frames beside native ones are shown if a recording has them; a script that names them needs them.
    let python = run.options.naming.python != PythonFrames::Off && run.options.replay.is_none();
    let wishes = Wishes {
        python,
        window: run.options.window.is_limited(),
        hits: run.has_target() && !run.options.quiet,
        some_gpus: !run.options.gpus.is_empty(),
        other_loaders: run.options.loaders.is_some(),
        chooses_way: run.starts_programs(),
    };
    let (plan, compiled) = compile(&loaded.staged, catalog, wishes);
    let diagnostics: Vec<Diagnostic> = loaded.diagnostics.into_iter().chain(compiled).collect();
    console::diagnose(&diagnostics, &loaded.staged.sources, run.options.quiet);
    if diagnostics.iter().any(|it| it.severity == Severity::Error) {
        bail!(Said::Mistakes);
    }
    Ok(Compiled { plan, interpreter: loaded.interpreter })
}

/// `xputrace check`: prints errors and warnings only.
pub fn check(run: &Run) -> Result<ExitCode> {
    let catalog = machine::catalog(run).as_of_now();
    let compiled = read_given(run, &catalog)?;
    twins::check(&compiled.plan)?;
    console::print(programs::explain(&compiled.plan))?;
    Ok(ExitCode::SUCCESS)
}

/// `xputrace explain`: prints where each handler runs and why; with -v also the bytecode.
pub fn explain(run: &Run) -> Result<ExitCode> {
    let compiled = read_given(run, &machine::catalog(run))?;
    twins::check(&compiled.plan)?;
    let mut text = xputrace_render::explain(&compiled.plan);
    let programs = programs::explain(&compiled.plan);
    if !programs.is_empty() {
        text += &format!("\n{programs}");
    }
    text.push_str(&explain_way(&compiled.plan, run)?);
    if run.options.verbose {
        for program in &compiled.plan.image.programs {
            text += &format!("\n{}\n", disasm::text(program, &compiled.plan.image));
        }
    }
    console::print(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Says which way device handlers take into kernels; empty for a script without any.
fn explain_way(plan: &Plan, run: &Run) -> Result<String> {
    if !run.command.is_empty() && !run.options.pids.is_empty() {
        bail!("-p explains what is reached in a running process: leave out the command");
    }
    if plan.device_handlers().next().is_none() && run.has_target() {
        bail!(
            "`explain` takes a process or a command for handlers inside kernels, and the script has none: leave it out"
        );
    }
    let program = run.command.first().map(OsString::as_os_str);
    let subject = WaySubject { program, pids: &run.options.pids, starts_programs: run.starts_programs() };
    let (text, notes) = ways::explain(plan, &subject)?;
    notes.iter().for_each(console::say);
    Ok(text)
}

/// `xputrace scripts`: lists the bundled scripts.
pub fn scripts() -> Result<ExitCode> {
    let scripts = xputrace_script::scripts();
    let width = scripts.iter().map(|it| it.name.len()).max().unwrap_or(0);
    let line = |it: &xputrace_script::Bundled| format!("{:<width$} {}\n", it.name, it.summary());
    console::print(scripts.iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// As [`compile_given`], but takes compiled objects too.
fn read_given(run: &Run, catalog: &dyn Catalog) -> Result<Compiled> {
    match objects::named(run) {
        Some(file) => Ok(Compiled::of_object(objects::plan(run, file)?)),
        None => compile_given(run, catalog),
    }
}

/// Compiles a script that must be given, for this machine.
pub fn compile_named(run: &Run) -> Result<Compiled> {
    compile_given(run, &machine::catalog(run))
}

/// Compiles the script that the command line must name.
fn compile_given(run: &Run, catalog: &dyn Catalog) -> Result<Compiled> {
    if run.script.is_none() {
        bail!("no script was given: name a file or a bundled script, or use -e 'TEXT'");
    }
    compile_script(run, catalog)
}

/// Returns the text of a script and the directory that its imports are relative to.
fn source_of(script: Option<&Script>) -> Result<(SourceFile, PathBuf)> {
    let here = PathBuf::from(".");
    match script {
        None => Ok((bundled("summary").context("the script summary is bundled")?, here)),
        Some(Script::Inline(text)) => Ok((SourceFile { name: "-e".into(), text: text.clone() }, here)),
        Some(Script::Named(name)) => named(name),
    }
}

/// Returns the script's name as typed.
fn typed_name(script: Option<&Script>) -> String {
    match script {
        None => "summary".into(),
        Some(Script::Inline(_)) => "-e '…'".into(),
        Some(Script::Named(name)) => name.clone(),
    }
}

fn named(name: &str) -> Result<(SourceFile, PathBuf)> {
    let path = Path::new(name);
    if path.extension().is_some_and(|it| it == "o") {
        bail!("{name} is a compiled object: only `xputrace run`, `check` and `explain` take one");
    }
    if crate::cli::is_program(name) {
        bail!("{name} is a program, not a script: put the command after `--`, as in `xputrace -- {name}`");
    }
    match read::named(path, MOST_SCRIPT_BYTES) {
        Ok(bytes) => {
            let text = String::from_utf8(bytes).map_err(|e| anyhow::anyhow!("{name} is not UTF-8 text: {e}"))?;
            translate::refuse_broken(path, &text)?;
            let directory = path.parent().unwrap_or(Path::new(".")).to_path_buf();
            Ok((SourceFile { name: name.into(), text }, directory))
        }
        Err(error) => match bundled(name) {
            Some(source) => Ok((source, PathBuf::from("."))),
            None if crate::cli::is_command(name) => {
                bail!(
                    "no script is called {name}, but a program is: put the command after `--`, as in `xputrace -- {name}`"
                )
            }
            None => bail!("cannot read the script {name}: {error}{}", similar(name)),
        },
    }
}

fn bundled(name: &str) -> Option<SourceFile> {
    // As messages call it, too.
    let scripts = xputrace_script::scripts();
    scripts.iter().find(|it| it.name == name || it.source().name == name).map(|it| it.source())
}

fn similar(name: &str) -> String {
    let names: Vec<&str> = xputrace_script::scripts().iter().map(|it| it.name).collect();
    match (xputrace_model::diagnostic::nearest(name, names.iter().copied()), crate::cli::nearest_verb(name)) {
        (Some(near), _) => format!("; a bundled script is called `{near}`"),
        (None, Some(verb)) => format!("; did you mean the verb `{verb}`?"),
        (None, None) => format!("; the bundled scripts are {}", names.join(", ")),
    }
}

fn help(name: &str, sources: &Sources, arguments: &[ArgumentSpec]) -> String {
    let mut out = manual(sources);
    out.push_str(&format!("\nUsage: xputrace {name} [ARGUMENTS] -- CMD …\n"));
    match arguments {
        [] => out.push_str("\nIt takes no arguments of its own.\n"),
        some => out.push_str(&format!("\nArguments:\n{}", xputrace_script::argument_help(some))),
    }
    out
}

/// Returns the script's first comment, which is its manual.
fn manual(sources: &Sources) -> String {
    let text = sources.files.first().map_or("", |it| it.text.as_str());
    let lines = text.lines().take_while(|it| it.starts_with("//"));
    lines
        .map(|it| format!("{}\n", it.trim_start_matches('/').strip_prefix(' ').unwrap_or(it.trim_start_matches('/'))))
        .collect()
}

/// Finds imports beside the script; the bundle provides the standard library.
struct FileLoader {
    directory: PathBuf,
    clocks: Option<Clocks>,
}

impl Loader for FileLoader {
    fn clocks(&self) -> Option<Clocks> {
        self.clocks
    }

    fn load(&self, name: &str) -> Result<SourceFile, String> {
        let path = self.directory.join(name).with_extension("rhai");
        let text = read::named(&path, MOST_SCRIPT_BYTES);
        match text.and_then(|it| String::from_utf8(it).map_err(std::io::Error::other)) {
            Ok(text) => Ok(SourceFile { name: path.display().to_string(), text }),
            Err(error) => BundledLoader.load(name).map_err(|known| format!("{known}; {}: {error}", path.display())),
        }
    }
}
