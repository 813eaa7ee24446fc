//! Which parts of an activity's event its handlers read: the others are not filled.

use crate::context::ALWAYS_FILLED;
use crate::handler::GpuHandler;
use xputrace_model::context::ContextWords;
use xputrace_model::plan::{Activity, Plan};
use xputrace_wire::events::{Column, Launch};

/// The parts of an event that may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FieldsRead {
    /// What the activity's record says, except its start and end.
    pub(crate) record: bool,
    /// What the launch's record says.
    pub(crate) launch_record: bool,
    /// What else is known of the launch, except its thread.
    pub(crate) launch_facts: bool,
}

impl FieldsRead {
    pub(crate) const ALL: FieldsRead = FieldsRead { record: true, launch_record: true, launch_facts: true };

    /// Returns what these handlers read. Those of which that isn't known, such as interpreted ones, may read everything.
    pub(crate) fn of<'a>(plan: &Plan, handlers: impl Iterator<Item = &'a GpuHandler>) -> FieldsRead {
        let reads = |it: &GpuHandler| plan.probes.get(it.probe.index())?.reads;
        let read = handlers.map(reads).try_fold(ContextWords::default(), |all, it| Some(all.with(it?)));
        let Some(read) = read else { return FieldsRead::ALL };
        let read = read.without(ALWAYS_FILLED.into_iter().collect());
        let records = filled_by(Activity::ALL.iter().flat_map(|it| it.columns()));
        let launch = filled_by(Launch::COLUMNS.iter());
        let others = read.without(records).without(launch);
        FieldsRead { record: read.meets(records), launch_record: read.meets(launch), launch_facts: !others.is_empty() }
    }
}

/// Returns the words that columns fill.
fn filled_by<'a>(columns: impl Iterator<Item = &'a Column>) -> ContextWords {
    let meanings = columns.filter_map(|it| Some((it.count, it.meaning?)));
    meanings.filter_map(|(count, it)| Some(it.from.word()?..it.from.word()? + count)).flatten().collect()
}
