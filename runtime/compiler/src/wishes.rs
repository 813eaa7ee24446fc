//! What a run wants beside its script.

/// What a run wants beside its script, and what that changes in the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Python frames are shown in launch stacks, so the collector reads them.
    pub python: bool,
    /// Only a part of the run is recorded: handlers in Linux test a flag, and activities are recorded with their
    /// launches, which tell what belongs to the part.
    pub window: bool,
    /// Which probes in Linux were hit is wanted.
    pub hits: bool,
    /// Only some GPUs are recorded: activities are, with their launches, which tell what belongs to them.
    pub some_gpus: bool,
    /// Other loaders run the programs, and nothing reads maps meanwhile: no map needs a second generation.
    pub other_loaders: bool,
    /// Each process can choose how device handlers get into its kernels, where the script does not say: it is started
    /// under xputrace.
    pub chooses_way: bool,
}
