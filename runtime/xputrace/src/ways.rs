//! `xputrace explain`: which way device handlers take into the kernels of a program, as far as that is known before it runs.

use crate::choosing::rule::of_gpu;
use crate::choosing::{self, patterns};
use crate::cli::Run;
use crate::kernels::{Kernels, gpus, kernels_in, matches, search};
use crate::twins::files::mapped_programs;
use crate::twins::unpatchable;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xputrace_model::plan::{DeviceWay, DeviceWays, KernelPattern, Plan};
use xputrace_rendezvous::Chosen;

/// Describes the way; empty for a script without device handlers.
///
/// # Errors
/// There is no such program, or a process cannot be looked at.
pub fn explain(plan: &Plan, run: &Run) -> Result<String> {
    let patterns = patterns(plan);
    if !run.command.is_empty() && !run.options.pids.is_empty() {
        bail!("-p explains what is reached in a running process: leave out the command");
    }
    if patterns.is_empty() && run.has_target() {
        bail!(
            "`explain` takes a process or a command for handlers inside kernels, and the script has none: leave it out"
        );
    }
    if patterns.is_empty() {
        return Ok(String::new());
    }
    let files = files_of(run)?;
    // Asked once: all of it is said of the same GPU.
    let gpu = gpus::capability();
    let mut lines = vec![way(plan, run, files.as_ref(), gpu)];
    match &files {
        None => lines.push("which kernels that reaches is known with -p PID or -- CMD".into()),
        Some(files) => lines.extend(patterns.iter().flat_map(|it| reached(it, files, gpu, plan, run))),
    }
    Ok(lines.iter().fold("\nway into kernels\n".into(), |text, it| format!("{text}  {it}\n")))
}

/// Says which way it is, or how it is chosen.
fn way(plan: &Plan, run: &Run, files: Option<&BTreeMap<PathBuf, Kernels>>, gpu: Option<u32>) -> String {
    match (&plan.device_ways, files) {
        (DeviceWays::One(DeviceWay::Patch), _) => "patches of machine code".into(),
        (DeviceWays::One(DeviceWay::Twin), _) if !run.starts_programs() => {
            "twins: copies of kernels, made from their PTX; the contexts of a running process can't be patched".into()
        }
        (DeviceWays::One(DeviceWay::Twin), _) => "twins: copies of kernels, made from their PTX".into(),
        (DeviceWays::Either { .. }, Some(files)) => {
            let Chosen { note, .. } = choosing::for_files(plan, files.values(), gpu);
            format!("decided when CUDA starts; by the command's file, {}", note.unwrap_or_default())
        }
        (DeviceWays::Either { .. }, None) => match unpatchable(plan) {
            Some(why) => format!("twins: copies of kernels, made from their PTX; they are not patched: {why}"),
            None => "decided when CUDA starts, for each process: twins, unless none of the kernels that match has PTX, and they \
                     can be patched"
                .into(),
        },
    }
}

/// The kernels in files of a program; `None` without a program.
fn files_of(run: &Run) -> Result<Option<BTreeMap<PathBuf, Kernels>>> {
    if let Some(program) = run.command.first() {
        let path = find_program(program).with_context(|| format!("there is no program `{}`", program.display()))?;
        let file = xputrace_boundary::read::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        return Ok(Some([(path.clone(), kernels_in(&file, &path))].into()));
    }
    let mut files = BTreeMap::new();
    for pid in &run.options.pids {
        let mapped = mapped_programs(*pid).with_context(|| format!("process {pid}"))?;
        files.extend(search(*pid, &mapped).files);
    }
    Ok((!run.options.pids.is_empty()).then_some(files))
}

/// Returns the file of a command, as execvp(3) finds it.
fn find_program(name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return Some(name.into());
    }
    let directories = env::var_os("PATH")?;
    env::split_paths(&directories).map(|it| it.join(name)).find(|it| it.is_file())
}

/// Says which kernels of these files a pattern names, and what they get on GPUs of this compute capability.
fn reached(
    pattern: &KernelPattern,
    files: &BTreeMap<PathBuf, Kernels>,
    gpu: Option<u32>,
    plan: &Plan,
    run: &Run,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, kernels) in files {
        let named: Vec<_> = kernels.iter().filter(|it| matches(pattern, it.0)).collect();
        if named.is_empty() {
            continue;
        }
        let n_twins = named.iter().filter(|it| it.1.has_twin_on(gpu)).count();
        let (n, path) = (named.len(), path.display());
        let without = match (&plan.device_ways, n - n_twins) {
            (DeviceWays::One(DeviceWay::Patch), _) | (_, 0) => String::new(),
            (_, n) => format!(", {n} without PTX{}", of_gpu(gpu)),
        };
        lines.push(format!("{}: {n} in {path}{without}", pattern.text()));
    }
    if lines.is_empty() {
        let where_else = if run.command.is_empty() { "that it has mapped" } else { "of the command, before it runs" };
        lines.push(format!("{}: none in the files {where_else}: decided when code is loaded", pattern.text()));
    }
    if plan.device_ways == DeviceWays::One(DeviceWay::Patch) && run.command.is_empty() {
        lines.push("patches reach only modules that are loaded after xputrace has attached".into());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::of_text;
    use crate::twins::bundled::plan;

    #[test]
    fn what_has_ptx_is_judged_by_the_gpu_as_the_way_is() {
        let kernels = of_text("twins=sm_80 machine_code=sm_90 ptx=\n scale\n").unwrap();
        let files = BTreeMap::from([("program".into(), kernels)]);
        let mut plan = plan("device_entry(\"scale\", |t| @n.count());");
        plan.device_ways = DeviceWays::Either { unpatchable: None };
        let run = Run { command: vec!["program".into()], ..Run::default() };
        let said = |gpu| {
            (way(&plan, &run, Some(&files), gpu), reached(&KernelPattern::new("scale"), &files, gpu, &plan, &run))
        };
        let (way, reached) = said(Some(90));
        assert!(way.contains("the kernel that matches `scale` has no PTX for sm_90"), "{way}");
        assert_eq!(reached, ["scale: 1 in program, 1 without PTX for sm_90"]);
        let (way, reached) = said(Some(80));
        assert!(way.contains("the kernel that matches `scale` has PTX for sm_80"), "{way}");
        assert_eq!(reached, ["scale: 1 in program"]);
    }
}
