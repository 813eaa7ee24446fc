//! Processes that were started without us: which of them are attached to, and when.
//!
//! Those in which CUDA runs already are attached to before the run begins, the others as soon as CUDA starts in them.

use super::{Collectors, untraced};
use crate::attach::{Attachable, Attempt, Attempts, refusal};
use crate::cli::Chosen;
use crate::machine::deadline;
use crate::run::Running;
use anyhow::{Result, anyhow, bail};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use xputrace_linux::{all_processes, is_over, with_descendants};
use xputrace_model::plan::Detail;
use xputrace_model::process_name::ProcessName;
use xputrace_nvidia_tracer::drivers;
use xputrace_render::one_line;
use xputrace_rendezvous::comm_of;
use xputrace_wire::marker;

/// How long the run waits for the processes that `-p` names; longer than an attempt can take.
const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// How long it waits for others; they may be attached to later.
const OTHERS_WITHIN: Duration = Duration::from_secs(2);

/// The processes that are attached to.
pub(super) struct Attaching {
    attempts: Attempts,
    chosen: Chosen,
    admitted: Admitted,
}

/// Processes whose collector may connect, under any user.
#[derive(Clone, Debug, Default)]
pub(super) struct Admitted(Arc<Mutex<HashSet<u32>>>);

impl Admitted {
    fn insert(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
    }

    pub(super) fn contains(&self, pid: u32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
    }
}

impl Chosen {
    fn is_named(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Returns those in which the driver has started.
    fn started(&self) -> Vec<u32> {
        let all = if self.pids.is_empty() { all_processes() } else { with_descendants(&self.pids) };
        all.into_iter().filter(|it| drivers::has_started(*it)).collect()
    }
}

impl Attaching {
    pub(super) fn new(chosen: Chosen, socket: String) -> Self {
        Attaching { attempts: Attempts::new(socket), chosen, admitted: Admitted::default() }
    }

    pub(super) fn admitted(&self) -> Admitted {
        self.admitted.clone()
    }

    pub(super) fn name(&self) -> Option<ProcessName> {
        self.chosen.name.clone()
    }
}

impl Collectors {
    /// Attaches to the processes in which CUDA runs.
    ///
    /// # Errors
    /// One of those that `-p` names cannot be attached to.
    pub fn attach(&mut self, running: &mut Running) -> Result<()> {
        let Some(attaching) = &self.attaching else { return Ok(()) };
        let chosen = attaching.chosen.clone();
        let found = chosen.started();
        {
            let drivers = &mut running.state().drivers;
            drivers.take();
            found.iter().for_each(|it| drivers.found(*it));
        }
        self.attach_where_started(running)?;
        self.finish_attempts(running, deadline(if chosen.pids.is_empty() { OTHERS_WITHIN } else { NAMED_WITHIN }))?;
        chosen.pids.iter().filter(|it| !found.contains(it)).try_for_each(|it| wait_for(*it, running))
    }

    /// Attaches to the processes in which CUDA has started, and handles attempts that are over.
    pub(super) fn attach_later(&mut self, running: &mut Running) {
        let outcome = self.attach_where_started(running);
        let outcome = outcome.and_then(|()| self.finish_attempts(running, Instant::now()));
        if let Err(error) = outcome {
            running.report().fail(&format!("{error:#}"));
        }
    }

    /// Lets the attempts end that were begun, and begins no other.
    pub(super) fn stop_attaching(&mut self, running: &mut Running) {
        if let Some(attaching) = &mut self.attaching {
            attaching.attempts.stop();
            if let Err(error) = self.finish_attempts(running, deadline(OTHERS_WITHIN)) {
                running.report().fail(&format!("{error:#}"));
            }
        }
    }

    fn attach_where_started(&mut self, running: &mut Running) -> Result<()> {
        let started = running.state().drivers.take_started();
        started.into_iter().try_for_each(|it| self.begin_attempt(it, running))
    }

    fn begin_attempt(&mut self, pid: u32, running: &mut Running) -> Result<()> {
        let process = Attachable::prepare(pid).and_then(|it| self.admit(&it, running).map(|()| it));
        let Some(attaching) = &mut self.attaching else { return Ok(()) };
        match process {
            Ok(process) => attaching.attempts.begin(process),
            Err(error) => return self.take_attempt(Attempt { pid, comm: comm_of(pid), result: Err(error) }, running),
        }
        Ok(())
    }

    /// Prepares for the connection of a process's collector.
    fn admit(&mut self, process: &Attachable, running: &mut Running) -> Result<()> {
        if let Some(attaching) = &self.attaching {
            attaching.admitted.insert(process.pid);
        }
        if let Some(acceptor) = &mut self.acceptor {
            acceptor.also_reach(process.pid)?;
        }
        let plan = running.plan().clone();
        if plan.demand.has(Detail::Marker)
            && !self.files.iter().any(|it| is_same_file(it, &process.collector))
            && let Some(linux) = &mut running.state().linux
        {
            linux.attach_marker(&plan, &process.collector, marker::SYMBOL)?;
            self.files.push(process.collector.clone());
        }
        Ok(())
    }

    fn finish_attempts(&mut self, running: &mut Running, until: Instant) -> Result<()> {
        while let Some(attempt) = self.attaching.as_mut().and_then(|it| it.attempts.next(until)) {
            self.take_attempt(attempt, running)?;
        }
        Ok(())
    }

    /// Reports a failed attempt: as a loss, or as an error if `-p` names the process. One that has ended meanwhile is
    /// counted with those that CUDA was seen in, at the end.
    fn take_attempt(&mut self, Attempt { pid, comm, result }: Attempt, running: &mut Running) -> Result<()> {
        let Err(error) = result else { return Ok(()) };
        let is_named = self.attaching.as_ref().is_some_and(|it| it.chosen.is_named(pid));
        if is_over(pid) && !is_named {
            return Ok(());
        }
        running.state().drivers.account_for(pid);
        let text = refusal(pid, &comm, &error);
        if is_named {
            bail!(text);
        }
        untraced(pid, &text, running);
        Ok(())
    }
}

/// Whether two paths lead to one file, whose probes fire for both.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |it: &Path| fs::metadata(it).map(|it| (it.dev(), it.ino())).ok();
    one == other || identity(one).is_some_and(|it| Some(it) == identity(other))
}

/// Announces that a process will be attached to once CUDA starts in it.
///
/// # Errors
/// Nothing can be loaded into it.
fn wait_for(pid: u32, running: &mut Running) -> Result<()> {
    let comm = comm_of(pid);
    xputrace_inject::examine(pid).map_err(|it| anyhow!(refusal(pid, &comm, &it.into())))?;
    running.report().note(&format!("process {pid} ({}) has not used CUDA yet; waiting", one_line(&comm)));
    Ok(())
}
