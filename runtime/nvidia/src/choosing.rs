//! Chooses the way into a process's kernels before it is armed, where the script does not say it.
//!
//! ```text
//! HELLO ──▶ what the process has mapped ──looking──▶ kernels that handlers name ──rule──▶ way, and why
//!                                          │   ▲
//!                                          ▼   └─ kept on disk, by file
//! ```

mod looking;
mod rule;

pub use rule::of_gpu;

use crate::drivers::is_software_gpu;
use crate::kernels::{Kernels, gpus};
use crate::twins::{cache, no_compiler, unpatchable};
use looking::{Search, SearchedFiles};
use rule::{Named, WayFacts};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use xputrace_boundary::user::Account;
use xputrace_cubins::Cache;
use xputrace_model::plan::{Detail, KernelPattern, Plan};
use xputrace_rendezvous::{ChooseWay, Chosen, Newcomer};

/// How long a process waits for the choice. It waits for 10 s in all, with what else arming takes.
const CHOSEN_WITHIN: Duration = Duration::from_secs(8);
/// How long its files are searched, for the next run if not for this one.
const SEARCHED_WITHIN: Duration = Duration::from_secs(60);

/// What a run's choices depend on, but for the processes.
#[derive(Debug)]
pub struct Chooser(Arc<Choice>);

/// The searches of a run, one for each process.
#[derive(Debug, Default)]
struct Searches {
    n_begun: AtomicUsize,
    /// Shared by those that go on, and keep what they find.
    under_way: Arc<()>,
    /// Those after which the next run knows the files.
    n_kept: AtomicUsize,
    /// Those whose process no longer waited.
    n_late: AtomicUsize,
}

/// What a search tells who waits for it: how many kernels are named, if it came to its end, and the GPUs' compute capability.
type SearchResult = (Option<Named>, Option<u32>);

/// What searches use that outlive their process's wait.
#[derive(Debug)]
struct Choice {
    patterns: BTreeSet<KernelPattern>,
    unpatchable: Option<String>,
    takes_times: bool,
    is_script: bool,
    files: SearchedFiles,
    searches: Searches,
}

impl Chooser {
    pub fn of(plan: &Plan) -> Self {
        Chooser(Arc::new(Choice::of(plan)))
    }

    /// Returns how many searches go on, and keep what they find for the next run.
    pub fn n_searching(&self) -> usize {
        let n = Arc::strong_count(&self.0.searches.under_way) - 1;
        // What a search that has ended did is seen from here on.
        fence(Ordering::Acquire);
        n
    }

    /// Says what the next run knows of the files that there was no time to search, if there were any.
    pub fn outcome(&self) -> Option<&'static str> {
        let Searches { n_begun, n_kept, n_late, .. } = &self.0.searches;
        let [n_begun, n_kept, n_late] = [n_begun, n_kept, n_late].map(|it| it.load(Ordering::Acquire));
        (n_late > 0).then_some(match n_kept == n_begun {
            true => "the files that there was no time to search are searched by now: the next run knows their kernels",
            false => {
                "some files were not searched for kernels to their end, or what they have could not be kept: the next run \
                 searches them again"
            }
        })
    }

    /// Searches the files of a process for a while; returns nothing if that takes longer.
    fn search(
        &self,
        pid: u32,
        account: Account,
        cache: impl FnOnce() -> Option<Cache> + Send + 'static,
        within: Duration,
    ) -> SearchResult {
        let searches = &self.0.searches;
        searches.n_begun.fetch_add(1, Ordering::AcqRel);
        let (sender, found) = channel();
        let (shared, under_way) = (self.0.clone(), searches.under_way.clone());
        let look = move || {
            let cache = cache();
            // Of what is not kept, nobody has anything once the process has gone on.
            let _under_way = cache.is_some().then_some(under_way);
            let until = Instant::now() + SEARCHED_WITHIN;
            let gpu = gpus::capability();
            let looked = shared.files.of_process(pid, Search { gpu, account, cache: cache.as_ref(), until });
            shared.searches.n_kept.fetch_add(looked.is_kept().into(), Ordering::AcqRel);
            // Who waited may have given up.
            let _ = sender.send((looked.named(&shared.patterns, gpu), gpu));
        };
        let began = std::thread::Builder::new().name("xputrace-files".into()).spawn(look);
        began.ok().and_then(|_| found.recv_timeout(within).ok()).unwrap_or_else(|| {
            searches.n_late.fetch_add(1, Ordering::AcqRel);
            SearchResult::default()
        })
    }
}

/// Returns what would be chosen for a program that has no other files, if it can be patched.
pub fn for_files<'k>(plan: &Plan, files: impl IntoIterator<Item = &'k Kernels>, gpu: Option<u32>) -> Chosen {
    let shared = Choice::of(plan);
    let named = Named::among(files, &shared.patterns, gpu);
    shared.choose(Some(named), gpu, None)
}

/// Returns the patterns of a script's device handlers.
pub fn patterns(plan: &Plan) -> BTreeSet<KernelPattern> {
    plan.device_handlers().map(|it| it.kernels.pattern().clone()).collect()
}

impl Choice {
    fn of(plan: &Plan) -> Self {
        Choice {
            patterns: patterns(plan),
            unpatchable: unpatchable(plan),
            takes_times: plan.demand.has(Detail::PatchedKernels),
            is_script: plan.object.is_none(),
            files: SearchedFiles::default(),
            searches: Searches::default(),
        }
    }

    fn choose(&self, named: Option<Named>, gpu: Option<u32>, no_patches: Option<&str>) -> Chosen {
        rule::choose(&WayFacts {
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
        is_software_gpu(&process.library_file).then(Chosen::default)
    }

    fn by_files(&self, Newcomer { peer, no_patches, .. }: &Newcomer) -> Chosen {
        let (pid, account) = (peer.pid, Account { uid: peer.uid, gid: peer.gid });
        let (named, gpu) = self.search(pid, account, move || cache(account).ok(), CHOSEN_WITHIN);
        let no_patches = no_patches.clone().or_else(|| no_compiler(pid, account));
        let Chosen { way, note } = self.0.choose(named, gpu, no_patches.as_deref());
        Chosen { way, note: note.map(|it| format!("process {pid}: {it}")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::bundled::plan;
    use crate::twins::files::tests::{Library, machine_code_of};
    use std::sync::mpsc::Sender;

    const OURS: Account = Account { uid: 0, gid: 0 };

    #[test]
    fn patterns_of_several_handlers_are_named_once() {
        let plan = plan("device_entry([\"b\", \"a*\"], |t| @n.count()); device_exit([\"a*\", \"c\"], |t| @x.count());");
        let note = for_files(&plan, [], None).note.unwrap();
        assert!(note.contains("a kernel that matches `a*`, `b`, `c`. "), "{note}");
    }

    /// Has this process searched while nobody waits; its search opens the cache once that is allowed.
    fn search_late(chooser: &Chooser, cache: Option<Cache>) -> Sender<()> {
        let (allow, is_allowed) = channel();
        let open = move || is_allowed.recv().ok().and(cache);
        let told = chooser.search(std::process::id(), OURS, open, Duration::ZERO);
        assert_eq!(told, (None, None));
        allow
    }

    #[test]
    fn a_search_that_nobody_waits_for_goes_on_for_the_next_run() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(directory.path(), 1 << 20).unwrap();
        let _library = Library::with(&machine_code_of("k"));
        let chooser = Chooser::of(&plan("device_entry(\"k\", |t| @n.count());"));
        let allow = search_late(&chooser, Some(cache));
        assert_eq!(chooser.n_searching(), 1);
        assert!(chooser.outcome().unwrap().ends_with("searches them again"));
        allow.send(()).unwrap();
        wait_for(|| chooser.n_searching() == 0);
        assert!(chooser.outcome().unwrap().ends_with("the next run knows their kernels"));
    }

    #[test]
    fn a_search_that_keeps_nothing_is_not_waited_for() {
        let _library = Library::with(&machine_code_of("k"));
        let chooser = Chooser::of(&plan("device_entry(\"k\", |t| @n.count());"));
        let (named, _) = chooser.search(std::process::id(), OURS, || None, SEARCHED_WITHIN);
        assert!(named.is_some() && chooser.outcome().is_none(), "it was not late");
        search_late(&chooser, None).send(()).unwrap();
        wait_for(|| chooser.n_searching() == 0);
        assert!(chooser.outcome().unwrap().ends_with("searches them again"));
    }

    fn wait_for(is_so: impl Fn() -> bool) {
        let until = Instant::now() + SEARCHED_WITHIN;
        while !is_so() {
            assert!(Instant::now() < until, "it takes too long");
            std::thread::yield_now();
        }
    }
}
