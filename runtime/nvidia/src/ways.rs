//! `xputrace explain`: which way device handlers take into the kernels of a program, as far as that is known before it runs.

use crate::choosing::{self, of_gpu, patterns};
use crate::kernels::{Kernels, Mapped, gpus, matches, search};
use crate::twins::files::mapped_programs;
use crate::twins::unpatchable;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xputrace_model::plan::{DeviceWay, DeviceWays, KernelPattern, Plan};
use xputrace_rendezvous::Chosen;

/// What a run would trace, as far as ways into kernels depend on it.
#[derive(Clone, Debug, Default)]
pub struct WaySubject<'a> {
    /// The program of a command.
    pub program: Option<&'a OsStr>,
    /// Running processes.
    pub pids: &'a [u32],
    /// Whether what is traced starts under xputrace.
    pub starts_programs: bool,
}

/// Describes the way; empty for a script without device handlers. Returns also what was not searched to its end.
///
/// # Errors
/// There is no such program, or a process cannot be looked at.
pub fn explain(plan: &Plan, subject: &WaySubject<'_>) -> Result<(String, Vec<String>)> {
    let patterns = patterns(plan);
    if patterns.is_empty() {
        return Ok(Default::default());
    }
    let searched = files_of(subject)?;
    let files = searched.as_ref().map(|it| &it.files);
    // Asked once: all of it is said of the same GPU.
    let gpu = gpus::capability();
    let mut lines = vec![way(plan, subject, files, gpu)];
    match files {
        None => lines.push("which kernels that reaches is known with -p PID or -- CMD".into()),
        Some(files) => lines.extend(patterns.iter().flat_map(|it| reached(it, files, gpu, plan, subject))),
    }
    let text = lines.iter().fold("\nway into kernels\n".into(), |text, it| format!("{text}  {it}\n"));
    Ok((text, searched.map(|it| it.notes).unwrap_or_default()))
}

/// Says which way it is, or how it is chosen.
fn way(plan: &Plan, subject: &WaySubject<'_>, files: Option<&BTreeMap<PathBuf, Kernels>>, gpu: Option<u32>) -> String {
    match (&plan.device_ways, files) {
        (DeviceWays::One(DeviceWay::Patch), _) => "patches of machine code".into(),
        (DeviceWays::One(DeviceWay::Twin), _) if !subject.starts_programs => {
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
fn files_of(subject: &WaySubject<'_>) -> Result<Option<Mapped>> {
    let mut mapped = Mapped::default();
    if let Some(program) = subject.program {
        let path = find_program(program).with_context(|| format!("there is no program `{}`", program.display()))?;
        let file = xputrace_boundary::read::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        mapped.add(&file, &path);
        return Ok(Some(mapped));
    }
    for pid in subject.pids {
        let paths = mapped_programs(*pid).with_context(|| format!("process {pid}"))?;
        let Mapped { files, notes, .. } = search(*pid, &paths);
        mapped.files.extend(files);
        mapped.notes.extend(notes);
    }
    Ok((!subject.pids.is_empty()).then_some(mapped))
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
    subject: &WaySubject<'_>,
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
        let where_else =
            if subject.program.is_none() { "that it has mapped" } else { "of the command, before it runs" };
        lines.push(format!("{}: none in the files {where_else}: decided when code is loaded", pattern.text()));
    }
    if plan.device_ways == DeviceWays::One(DeviceWay::Patch) && subject.program.is_none() {
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
        let subject = WaySubject { program: Some("program".as_ref()), ..WaySubject::default() };
        let said = |gpu| {
            (
                way(&plan, &subject, Some(&files), gpu),
                reached(&KernelPattern::new("scale"), &files, gpu, &plan, &subject),
            )
        };
        let (way, reached) = said(Some(90));
        assert!(way.contains("the kernel that matches `scale` has no PTX for sm_90"), "{way}");
        assert_eq!(reached, ["scale: 1 in program, 1 without PTX for sm_90"]);
        let (way, reached) = said(Some(80));
        assert!(way.contains("the kernel that matches `scale` has PTX for sm_80"), "{way}");
        assert_eq!(reached, ["scale: 1 in program"]);
    }
}
