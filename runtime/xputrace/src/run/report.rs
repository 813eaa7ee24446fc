//! What a run reports besides its results: notes, failures, and why nothing was seen.

use crate::console;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::PathBuf;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::loss::Account;
use xputrace_model::plan::{Activity, HostEvent};
use xputrace_nvidia_tracer::drivers;
use xputrace_render::{counted, one_line};
use xputrace_wire::limits::advice;

/// Processes that are remembered as not traced.
const MOST_UNTRACED: usize = 1 << 16;
/// Notes that processes can bring about, which are not trusted.
const MOST_OF_PROCESSES: usize = 200;

/// How many processes used CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collectors {
    /// Processes whose collector connected.
    Live(u64),
    /// Processes in a recording.
    Recorded(u64),
}

impl Default for Collectors {
    fn default() -> Self {
        Collectors::Live(0)
    }
}

/// Why a program may not have used CUDA: in parentheses, if it is known.
fn no_driver() -> &'static str {
    if drivers::is_loaded() { "" } else { " (NVIDIA's driver is not loaded here)" }
}

/// Prints each message once, on standard error, and remembers whether anything failed.
#[derive(Default)]
pub struct Report {
    quiet: bool,
    failed: bool,
    said: HashSet<String>,
    /// Notes about processes.
    n_of_processes: usize,
    handler_failures: HashSet<(u32, usize)>,
    tape_failed: bool,
    output_ended: bool,
    software_said: bool,
    /// Whether the machine code of a process's kernels is patched, so that CUPTI tells nothing of it.
    are_patched: bool,
    pub collectors: Collectors,
    /// Whether running processes are attached to, instead of a command being started.
    pub attaches: bool,
    /// Processes that were not traced.
    untraced: HashSet<u32>,
    /// Why they were not: the first few.
    refusals: Vec<String>,
    /// The processes that the program left running.
    pub left_behind: Option<String>,
    /// The part of the run that was recorded, if not all of it.
    pub recorded_part: Option<String>,
    /// Whether that never began.
    never_recorded: bool,
    pub children: u64,
    pub unprobed_micros: u64,
    /// By file: processes that mapped it before its uprobes were attached, and their total time
    /// without them.
    late_files: BTreeMap<PathBuf, (u64, u64)>,
}

impl Report {
    pub fn new(quiet: bool) -> Self {
        Report { quiet, ..Report::default() }
    }

    /// Remembers why a process was not traced.
    pub fn refuse(&mut self, why: &str) {
        const MOST_KEPT: usize = 3;
        if self.refusals.len() < MOST_KEPT {
            self.refusals.push(why.to_owned());
        }
    }

    /// Remembers that the kernels of a process are patched.
    pub fn kernels_are_patched(&mut self) {
        self.are_patched = true;
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether the output could not be written to its end, so that the run ended early.
    pub fn output_ended(&self) -> bool {
        self.output_ended
    }

    /// Whether something of ours failed; see [`crate::status`].
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Reports something that the user may want to know.
    pub fn note(&mut self, text: &str) {
        if !self.quiet && self.is_new(text) {
            console::say(text);
        }
    }

    /// Reports what a process says. The first that says it is named.
    pub fn note_of(&mut self, process: &str, text: &str) {
        if self.n_of_processes <= MOST_OF_PROCESSES && self.is_new(text) {
            self.note_about_process(&format!("{process}: {text}"));
        }
    }

    /// Reports something that a process can bring about as often as it likes.
    pub fn note_about_process(&mut self, text: &str) {
        if self.quiet || self.n_of_processes > MOST_OF_PROCESSES || !self.is_new(text) {
            return;
        }
        self.n_of_processes += 1;
        match self.n_of_processes > MOST_OF_PROCESSES {
            true => console::say(format_args!("{MOST_OF_PROCESSES} notes about processes: further ones are left out")),
            false => console::say(one_line(text)),
        }
    }

    /// Whether a text was not reported before.
    fn is_new(&mut self, text: &str) -> bool {
        self.said.insert(text.to_owned())
    }

    /// Reports a failure after which the run continues, even with notes suppressed.
    pub fn fail(&mut self, text: &str) {
        self.failed = true;
        if self.is_new(text) {
            console::say(text);
        }
    }

    /// Notes that an interpreted handler failed; returns whether it is the first failure at its
    /// place.
    pub fn handler_failed(&mut self, diagnostic: &Diagnostic) -> bool {
        self.failed = true;
        self.handler_failures.insert((diagnostic.primary.file.0, diagnostic.primary.span.start))
    }

    /// Reports the first failure to write the recording; the run continues.
    pub fn tape_result(&mut self, result: anyhow::Result<()>) {
        if let Err(error) = result
            && !std::mem::replace(&mut self.tape_failed, true)
        {
            self.fail(&format!("the recording is incomplete: {error:#}"));
        }
    }

    /// Reports a failure to write the output. A closed pipe is not a failure.
    pub fn output_result(&mut self, result: io::Result<()>) {
        self.output_ended |= result.is_err();
        if let Err(error) = result
            && error.kind() != io::ErrorKind::BrokenPipe
        {
            self.fail(&format!("cannot write the output; it ends here: {error}{}", advice(&error)));
        }
    }

    /// Takes what part of the run was recorded, or why none was: a failure.
    pub fn recorded_part(&mut self, part: Result<String, String>) {
        match part {
            Ok(text) => self.recorded_part = Some(text),
            Err(reason) => {
                self.never_recorded = true;
                self.fail(&reason);
            }
        }
    }

    /// Counts a process whose collector connected.
    pub fn collector_connected(&mut self) {
        if let Collectors::Live(n) = &mut self.collectors {
            *n += 1;
        }
    }

    /// Whether a process has not been counted yet as one that is not traced.
    pub fn is_first_untraced(&mut self, pid: u32) -> bool {
        // More than these are counted as often as they are reported.
        self.untraced.len() >= MOST_UNTRACED || self.untraced.insert(pid)
    }

    /// Whether this is the first software GPU.
    pub fn is_first_software(&mut self) -> bool {
        !std::mem::replace(&mut self.software_said, true)
    }

    /// Notes that a process had a file mapped for this long before the file's uprobes were
    /// attached.
    pub fn late_file(&mut self, file: PathBuf, micros: u64) {
        let (processes, together) = self.late_files.entry(file).or_default();
        *processes += 1;
        *together = together.saturating_add(micros);
    }

    /// Reports what was counted during the run.
    pub fn note_children(&mut self) {
        for (file, (processes, micros)) in std::mem::take(&mut self.late_files) {
            self.note(&format!(
                "{} ran with {} for {micros} us in total before its uprobes were attached: name the file by its path \
                 to attach them from the start",
                counted(processes, "process", "processes"),
                file.display()
            ));
        }
        if self.children > 0 {
            let text = format!(
                "followed {}, without uprobes for {} us in total (`#{{scope: \"tree\"}}` avoids this)",
                counted(self.children, "child process", "child processes"),
                self.unprobed_micros
            );
            self.note(&text);
        }
    }

    /// Returns why no GPU event was seen, and what to do. `are_switched` says that no probe for them was always enabled,
    /// `patches_tell` that patches tell of kernels, where they are.
    pub fn silence(&self, account: &Account, are_switched: bool, patches_tell: bool) -> Option<String> {
        let launches = account.launches();
        let in_part = if self.recorded_part.is_some() { " in the part that was recorded" } else { "" };
        Some(if self.never_recorded {
            return None;
        } else if !self.refusals.is_empty() {
            format!("no GPU events: {}", self.refusals.join("; "))
        } else if self.collectors == Collectors::Recorded(0) {
            "no GPU events: the recording has no process that used CUDA".into()
        } else if self.collectors == Collectors::Live(0) && self.attaches {
            format!(
                "no GPU events: none of the processes used CUDA{}; `xputrace doctor` checks the machine",
                no_driver()
            )
        } else if self.collectors == Collectors::Live(0) {
            format!(
                "no GPU events: no process loaded the collector, which happens at the first CUDA call. Either the \
                 program made no CUDA call{}, or it removes CUDA_INJECTION64_PATH from its environment; `xputrace \
                 doctor` checks the machine",
                no_driver()
            )
        } else if self.are_patched && !patches_tell {
            return None;
        } else if are_switched {
            format!("no GPU events{in_part}: CUDA was used, but nothing happened while a probe for it was enabled")
        } else if !account.activities.is_empty() && !account.activities.contains(Activity::Kernel) {
            let kinds: Vec<&str> = account.activities.iter().map(Activity::name).collect();
            format!("no GPU events{in_part}: CUDA was used, but the GPU ran nothing of this kind: {}", kinds.join(", "))
        } else if account.activities.is_empty() && account.calls.is_empty() {
            let kinds: Vec<&str> = account.host_events.iter().map(HostEvent::name).collect();
            format!("no events{in_part}: CUDA was used, but there was none of these: {}", kinds.join(", "))
        } else if launches.made == 0 {
            format!("no GPU events{in_part}: CUDA was used, but no kernel was launched")
        } else if launches.failed == launches.made {
            format!("no GPU events: all {} launches failed", launches.made)
        } else {
            return None;
        })
    }
}
