//! Which parts of an activity's event its handlers read: the others are not filled.

use crate::context::ALWAYS_FILLED;
use crate::handler::GpuHandler;
use xputrace_bytecode::vm::context_reads;
use xputrace_model::context::WORDS;
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

    /// Returns what these handlers read. Interpreted ones may read everything.
    pub(crate) fn of<'a>(plan: &Plan, handlers: impl Iterator<Item = &'a GpuHandler>) -> FieldsRead {
        let of_handler = |it: &GpuHandler| WordSet::read_by(plan, it);
        let read = handlers.map(of_handler).try_fold(WordSet::default(), |all, it| Some(all.with(it?)));
        let Some(read) = read else { return FieldsRead::ALL };
        let read = read.without(WordSet::of(ALWAYS_FILLED.iter().copied()));
        let records = WordSet::of_columns(Activity::ALL.iter().flat_map(|it| it.columns()));
        let launch = WordSet::of_columns(Launch::COLUMNS.iter());
        let others = read.without(records).without(launch);
        FieldsRead {
            record: read.meets(records),
            launch_record: read.meets(launch),
            launch_facts: others != WordSet::default(),
        }
    }
}

/// A set of words of an event.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct WordSet(u128);

const _: () = assert!(WORDS <= u128::BITS as usize);

impl WordSet {
    fn of(words: impl Iterator<Item = usize>) -> WordSet {
        WordSet(words.filter(|it| *it < WORDS).fold(0, |all, it| all | 1 << it))
    }

    /// Returns those that columns fill.
    fn of_columns<'a>(columns: impl Iterator<Item = &'a Column>) -> WordSet {
        let meanings = columns.filter_map(|it| Some((it.count, it.meaning?)));
        WordSet::of(meanings.filter_map(|(count, it)| Some(it.from.word()?..it.from.word()? + count)).flatten())
    }

    /// Returns those that a handler reads; `None` if it may read all.
    fn read_by(plan: &Plan, handler: &GpuHandler) -> Option<WordSet> {
        let program = plan.image.programs.get(handler.program?.index())?;
        let bytes = context_reads(program)?;
        Some(WordSet::of(
            bytes.into_iter().flat_map(|it| it.start / size_of::<u64>()..it.end.div_ceil(size_of::<u64>())),
        ))
    }

    fn with(self, other: WordSet) -> WordSet {
        WordSet(self.0 | other.0)
    }

    fn without(self, other: WordSet) -> WordSet {
        WordSet(self.0 & !other.0)
    }

    fn meets(self, other: WordSet) -> bool {
        self.0 & other.0 != 0
    }
}
