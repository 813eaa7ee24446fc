//! `xputrace demo`: shows the main features on any machine, each with the command that a user would
//! type.
//!
//! Each step says whether it is real (traced now), recorded (on an H200, replayed here) or software
//! (traced now, on the software GPU, whose times mean nothing).

use crate::console;
use crate::creator::creator;
use crate::payload::{Payload, SERVER, SOFTGPU};
use anyhow::{Context, Result, bail};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use xputrace_boundary::create::FileAccess;
use xputrace_boundary::read;
use xputrace_nvidia_tracer::drivers;

/// A small LLM's inference on an H200; see tests/h200/llm.cu.
static LLM: &[u8] = include_bytes!("../../../tests/replay/llm.xpt");
/// Six training steps of a PyTorch transformer on an H200; see tests/h200/transformer.py.
static PYTORCH: &[u8] = include_bytes!("../../../tests/replay/pytorch.xpt");
/// The program of step 5, recorded on an H200, for machines that may not load eBPF.
static REQUESTS: &[u8] = include_bytes!("../../../tests/replay/requests.xpt");

/// Names under which programs load CUDA's libraries.
const LIBRARY_NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "libcudart.so.13", "libcudart.so", "libcupti.so.13", "libcupti.so"];

const TAGS: &str = r#"// A CPU probe, a launch tag and a GPU probe that share a map: GPU time by request.
uprobe("SERVER:handle_request", |e| @request[e.tid] = e.arg0);
launch(|l| l.tag = @request[l.tid]);
kernel(|k| { @kernels[k.launch.tag].count(); @gpu_time[k.launch.tag].sum(k.duration) });
"#;
const TOP_KERNELS: &str = "kernel(|k| @time[k.name].sum(k.duration)); launch(|l| @calls[l.api].count());";
const TYPO: &str = "kernel(|k| if k.duraton > 100.ms { print(k.name) })";

/// More than the folded stacks of the recording take.
const MOST_FOLDED_BYTES: u64 = 64 << 20;

/// Runs all steps; fails if one of them does.
pub fn demo() -> Result<ExitCode> {
    let stage = Stage::set()?;
    let mut failed = Vec::new();
    for (number, step) in STEPS.iter().enumerate() {
        if let Err(error) = step(&stage, number + 1) {
            line(format_args!("this step failed: {error:#}"))?;
            failed.push(number + 1);
        }
    }
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => bail!("steps {failed:?} of the demo failed"),
    }
}

type DemoStep = fn(&Stage, usize) -> Result<()>;

const STEPS: &[DemoStep] = &[top_kernels, long_kernels, latency, flame, tags, typo, explain, next];

/// Where the demo's files are, and what this machine can do.
struct Stage {
    directory: PathBuf,
    has_gpu: bool,
    has_bpf: Result<(), String>,
}

impl Stage {
    fn set() -> Result<Self> {
        let directory = std::env::current_dir()?.join("xputrace-demo");
        creator().directory(&directory).with_context(|| format!("creating {}", directory.display()))?;
        let stage = Stage { has_gpu: drivers::is_loaded(), has_bpf: can_load_bpf(), directory };
        stage.write("llm.xpt", LLM)?;
        stage.write("pytorch.xpt", PYTORCH)?;
        stage.write("requests.xpt", REQUESTS)?;
        line(format_args!(
            "xputrace demo: eight steps. The files are in {}; the commands run there",
            stage.directory.display()
        ))?;
        Ok(stage)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn write(&self, name: &str, contents: &[u8]) -> Result<()> {
        let path = self.path(name);
        creator().write(&path, contents, FileAccess::Usual).with_context(|| format!("writing {}", path.display()))
    }

    /// Runs this program in the demo's directory as a user would, and shows its output, or the
    /// first lines of a long one. `libraries` is a directory there with the program's own
    /// libraries.
    fn xputrace(&self, arguments: &[&str], libraries: Option<&str>, lines: usize) -> Result<bool> {
        let searched = libraries.map_or_else(String::new, |it| format!("LD_LIBRARY_PATH=$PWD/{it} "));
        let words = arguments.iter().map(|it| quoted(it)).collect::<Vec<_>>().join(" ");
        line(format_args!("$ {searched}xputrace {words}"))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).current_dir(&self.directory).stdin(Stdio::null());
        if let Some(libraries) = libraries {
            command.env("LD_LIBRARY_PATH", self.path(libraries));
        }
        let done = command.output().context("running xputrace")?;
        let text = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        let all: Vec<&str> = text.lines().collect();
        all.iter().take(lines).try_for_each(line)?;
        if all.len() > lines {
            line(format_args!("… and {} more lines", all.len() - lines))?;
        }
        Ok(done.status.success())
    }

    /// Does the same for steps that must succeed.
    fn show(&self, arguments: &[&str], lines: usize) -> Result<()> {
        match self.xputrace(arguments, None, lines)? {
            true => Ok(()),
            false => bail!("xputrace ended with an error"),
        }
    }
}

/// Prints a line.
fn line(text: impl Display) -> std::io::Result<()> {
    console::print(format_args!("{text}\n"))
}

fn title(number: usize, text: &str, kind: &str) -> std::io::Result<()> {
    line(format_args!("\n── {number}. {text} [{kind}]"))
}

/// The software GPU's directory in the demo's.
const SOFTWARE_GPU: &str = "softgpu";

const RECORDED: &str = "recorded on an H200";

fn top_kernels(stage: &Stage, number: usize) -> Result<()> {
    title(number, "A small LLM: kernels by GPU time, every launch joined", RECORDED)?;
    stage.show(&["-q", "-e", TOP_KERNELS, "--replay", "llm.xpt"], 24)
}

fn long_kernels(stage: &Stage, number: usize) -> Result<()> {
    title(number, "Only kernels over 100 ms, with the code that launched them", RECORDED)?;
    stage.show(&["-q", "over100ms", "--replay", "llm.xpt"], 24)
}

fn latency(stage: &Stage, number: usize) -> Result<()> {
    title(number, "From the launch call to the first instruction on the GPU", RECORDED)?;
    stage.show(&["-q", "launchlat", "--replay", "llm.xpt"], 40)
}

fn flame(stage: &Stage, number: usize) -> Result<()> {
    title(number, "PyTorch, from the line of the model to the GPU's kernel", RECORDED)?;
    stage.show(&["-q", "flame", "--svg=train.svg", "--folded", "train.folded", "--replay", "pytorch.xpt"], 6)?;
    let folded = read::open(&stage.path("train.folded")).and_then(|it| read::contents(&it, MOST_FOLDED_BYTES))?;
    let folded = String::from_utf8(folded)?;
    line(format_args!("{}\nthe five widest paths:", stage.path("train.svg").display()))?;
    for path in xputrace_render::widest_paths(&folded, 5) {
        line(format_args!("{:5.1} %  {}", path.share * 100.0, ends(&path.frames).join(";")))?;
    }
    Ok(())
}

/// The outer frames of a deep stack, and the inner ones.
fn ends(frames: &[String]) -> Vec<&str> {
    const OUTER: usize = 3;
    const INNER: usize = 3;
    let names = || frames.iter().map(String::as_str);
    match frames.len() > OUTER + INNER + 1 {
        true => names().take(OUTER).chain(["…"]).chain(names().skip(frames.len() - INNER)).collect(),
        false => names().collect(),
    }
}

fn tags(stage: &Stage, number: usize) -> Result<()> {
    let text = "A uprobe, a launch tag and a kernel handler share a map: GPU work by request";
    if let Err(reason) = &stage.has_bpf {
        title(number, text, RECORDED)?;
        line(format_args!("(eBPF cannot be loaded here: {reason}; so this step replays a recording)"))?;
        let script = TAGS.replace("SERVER", "./requests");
        stage.write("request.rhai", script.as_bytes())?;
        return stage.show(&["-q", "request.rhai", "--replay", "requests.xpt"], 30);
    }
    let server = copy(stage, SERVER, "server")?;
    let script = TAGS.replace("SERVER", &server.display().to_string());
    stage.write("request.rhai", script.as_bytes())?;
    if !stage.has_gpu {
        software_gpu(stage)?;
    }
    let libraries = (!stage.has_gpu).then_some(SOFTWARE_GPU);
    title(number, text, if stage.has_gpu { "live, real GPU" } else { "live, software GPU: its times mean nothing" })?;
    console::print(script)?;
    let done = stage.xputrace(&["-q", "request.rhai", "--", "./server", "--requests=8"], libraries, 40)?;
    line(format_args!("(the line in braces is the program's own count)"))?;
    if done { Ok(()) } else { bail!("xputrace ended with an error") }
}

fn typo(stage: &Stage, number: usize) -> Result<()> {
    title(number, "A typo, before anything is attached", "real")?;
    match stage.xputrace(&["check", "-e", TYPO], None, 20)? {
        false => Ok(()),
        true => bail!("the mistake was not detected"),
    }
}

fn explain(stage: &Stage, number: usize) -> Result<()> {
    title(number, "Where each handler of step 5 runs, and why", "real")?;
    stage.show(&["explain", "request.rhai"], 40)
}

fn next(stage: &Stage, number: usize) -> Result<()> {
    title(number, "Your turn", "real")?;
    line(format_args!("Edit {} and run it on your own program:", stage.path("request.rhai").display()))?;
    line(format_args!("  xputrace {} -- ./your-program", stage.path("request.rhai").display()))?;
    if !stage.has_gpu {
        line(format_args!(
            "(programs of the software GPU need LD_LIBRARY_PATH={})",
            stage.path(SOFTWARE_GPU).display()
        ))?;
    }
    line(format_args!("or see where the time goes:\n  xputrace -- ./your-program"))?;
    Ok(())
}

/// Copies a bundled file to the demo's directory, under a readable name.
fn copy(stage: &Stage, payload: Payload, name: &str) -> Result<PathBuf> {
    let at = stage.path(name);
    let written = creator().write(&at, payload.bytes(), FileAccess::Program);
    written.with_context(|| format!("writing {}", at.display()))?;
    Ok(at)
}

/// Installs the software GPU under the names of CUDA's libraries: one file, so that a program that
/// opens several of them has one GPU.
fn software_gpu(stage: &Stage) -> Result<()> {
    let directory = stage.path(SOFTWARE_GPU);
    creator().directory(&directory)?;
    copy(stage, SOFTGPU, &format!("{SOFTWARE_GPU}/softgpu.so"))?;
    for name in LIBRARY_NAMES {
        let at = directory.join(name);
        creator().link(Path::new("softgpu.so"), &at).with_context(|| format!("linking {}", at.display()))?;
    }
    Ok(())
}

/// Returns why Linux does not accept programs from us, if so.
fn can_load_bpf() -> Result<(), String> {
    let missing = xputrace_linux::facts().into_iter().find(|it| it.standing == xputrace_linux::Standing::Missing);
    match missing {
        None => Ok(()),
        Some(fact) => Err(format!("{}: {}", fact.name, fact.found)),
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:".contains(c);
    if word.chars().all(plain) { word.into() } else { format!("'{word}'") }
}
