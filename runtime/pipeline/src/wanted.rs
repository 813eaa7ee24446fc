//! What the script asks of collectors, as the pipeline needs to know it.

use xputrace_model::plan::{Activities, Activity, Call, Calls, Demand, Details};
use xputrace_wire::api::Functions;
use xputrace_wire::events::HostEvents;

/// What the collector was armed to record. A recording may hold more, which is ignored, so that a
/// script gives the same answer live and replayed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedRecords {
    pub(crate) activities: Activities,
    pub(crate) calls: Calls,
    pub(crate) host_events: HostEvents,
    /// The functions whose calls are `api` events.
    pub(crate) api: Functions,
    /// Activities that are joined with their launch.
    pub(crate) joined: Activities,
    /// Calls that an activity can be joined with.
    joining: Calls,
    /// Calls whose records tell when their work is done.
    pub(crate) expected: Calls,
    /// Whether graphs are put together from their nodes' records, where such arrive.
    pub(crate) derives_graphs: bool,
    /// Activities announced by their launches; for others, CUPTI's buffers tell what is
    /// outstanding.
    pub(crate) foretold: Activities,
    pub(crate) reads: Details,
}

impl WantedRecords {
    pub(crate) fn of(demand: &Demand) -> Self {
        let activities = |holds: &dyn Fn(Activity) -> bool| {
            demand
                .activities
                .iter()
                .filter(|it| holds(*it))
                .fold(Activities::NONE, |all, it| all.with(Activities::of(&[it])))
        };
        let expected = demand.calls.iter().filter(|it| demand.expects(*it));
        let expected = expected.fold(Calls::NONE, |all, it| all.with(Calls::of(&[it])));
        WantedRecords {
            activities: demand.activities,
            derives_graphs: demand.activities.contains(Activity::Graph),
            calls: demand.calls,
            host_events: demand.host_events,
            api: demand.api,
            joined: activities(&|it| demand.joins(it)),
            joining: demand
                .activities
                .iter()
                .filter(|it| demand.joins(*it))
                .fold(Calls::NONE, |all, it| all.with(it.causes())),
            expected,
            reads: demand.details,
            foretold: activities(&|it| demand.joins(it) && expected.contains_all(it.causes())),
        }
    }

    /// Whether activities that a call of this kind may submit are recorded.
    pub(crate) fn records(&self, call: Call) -> bool {
        self.activities.iter().any(|it| it.causes().contains(call))
    }

    /// Whether an activity can be joined with a call of this kind.
    #[inline]
    pub(crate) fn joins_with(&self, call: Call) -> bool {
        self.joining.contains(call)
    }
}
