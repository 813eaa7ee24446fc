//! Chooses the way into a process's kernels before it is armed, where the script does not say it.
//!
//! ```text
//! HELLO ──▶ what the process has mapped ──looking──▶ kernels that handlers name ──rule──▶ way, and why
//!                                          │   ▲
//!                                          ▼   └─ kept on disk, by file
//! ```

mod looking;
pub mod rule;

use crate::drivers::is_software_gpu;
use crate::kernels::{Kernels, gpus};
use crate::twins::{cache, no_compiler, unpatchable};
use looking::{Kept, Search};
use rule::{Facts, Named};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use xputrace_cubins::Account;
use xputrace_model::plan::{KernelPattern, Plan};
use xputrace_tracer::rendezvous::{ChooseWay, Chosen, Newcomer};

/// How long a process waits for the choice. It waits for 10 s in all, with what else arming takes.
const CHOSEN_WITHIN: Duration = Duration::from_secs(8);
/// How long its files are searched, for the next run if not for this one.
const SEARCHED_WITHIN: Duration = Duration::from_secs(60);

/// What a run's choices depend on, but for the processes.
#[derive(Debug)]
pub struct Chooser(Arc<Shared>);

/// What searches use that outlive their process's wait.
#[derive(Debug)]
struct Shared {
    patterns: BTreeSet<KernelPattern>,
    unpatchable: Option<String>,
    takes_times: bool,
    is_script: bool,
    files: Kept,
}

impl Chooser {
    pub fn of(plan: &Plan) -> Self {
        Chooser(Arc::new(Shared::of(plan)))
    }
}

/// Returns what would be chosen for a program that has no other files, if it can be patched.
pub fn for_files<'k>(plan: &Plan, files: impl IntoIterator<Item = &'k Kernels>, gpu: Option<u32>) -> Chosen {
    let shared = Shared::of(plan);
    let named = Named::among(files, &shared.patterns, gpu);
    shared.choose(Some(named), gpu, None)
}

/// Returns the patterns of a script's device handlers.
pub fn patterns(plan: &Plan) -> BTreeSet<KernelPattern> {
    plan.device_handlers().map(|it| it.kernels.pattern().clone()).collect()
}

impl Shared {
    fn of(plan: &Plan) -> Self {
        Shared {
            patterns: patterns(plan),
            unpatchable: unpatchable(plan),
            takes_times: plan.demand.patched_kernels,
            is_script: plan.object.is_none(),
            files: Kept::default(),
        }
    }

    fn choose(&self, named: Option<Named>, gpu: Option<u32>, no_patches: Option<&str>) -> Chosen {
        rule::choose(&Facts {
            patterns: &self.patterns,
            named,
            gpu,
            unpatchable: self.unpatchable.as_deref(),
            no_patches,
            takes_times: self.takes_times,
            is_script: self.is_script,
        })
    }
}

impl ChooseWay for Chooser {
    fn at_once(&self, process: &Newcomer) -> Option<Chosen> {
        // There the tracer runs the handlers.
        is_software_gpu(&process.cupti_file).then(Chosen::default)
    }

    fn by_files(&self, Newcomer { peer, no_patches, .. }: &Newcomer) -> Chosen {
        let (sender, found) = channel();
        let (shared, pid, account) = (self.0.clone(), peer.pid, Account { uid: peer.uid, gid: peer.gid });
        let look = move || {
            let (gpu, cache) = (gpus::capability(), cache(account).ok());
            let until = Instant::now() + SEARCHED_WITHIN;
            let looked = shared.files.of_process(pid, Search { gpu, account, cache: cache.as_ref(), until });
            // Who waited may have given up.
            let _ = sender.send((looked.named(&shared.patterns, gpu), gpu));
        };
        let began = std::thread::Builder::new().name("xputrace-files".into()).spawn(look);
        let (named, gpu) = began.ok().and_then(|_| found.recv_timeout(CHOSEN_WITHIN).ok()).unwrap_or_default();
        let no_patches = no_patches.clone().or_else(|| no_compiler(pid, account));
        let Chosen { way, note } = self.0.choose(named, gpu, no_patches.as_deref());
        Chosen { way, note: note.map(|it| format!("process {pid}: {it}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::bundled::plan;

    #[test]
    fn patterns_of_several_handlers_are_named_once() {
        let plan = plan("device_entry([\"b\", \"a*\"], |t| @n.count()); device_exit([\"a*\", \"c\"], |t| @x.count());");
        let note = for_files(&plan, [], None).note.unwrap();
        assert!(note.contains("a kernel that matches `a*`, `b`, `c`. "), "{note}");
    }
}
