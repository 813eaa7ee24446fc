//! The ranges that the program marks, as events: written by the thread that ends a range.

use super::clock::now;
use super::output;
use super::state::this_thread::this_thread;
use super::surroundings::range_name;
use super::{Agent, current};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use xputrace_wire::events::host;
use xputrace_wire::events::{HostEvent, HostEvents, PayloadFloat, RangeKind};
use xputrace_wire::message::demand;
use xputrace_wire::region::Lost;

/// What the program says of a range besides its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeDetails {
    /// 0 without a category.
    pub category: u32,
    /// Alpha, red, green and blue, from the highest byte on.
    pub color: Option<u32>,
    /// A number, or the first size of payloads with a schema; others are left out.
    pub payload: Option<Payload>,
}

/// A payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload {
    /// An integer, or the bits of a floating-point number.
    pub bits: i64,
    /// `None` of an integer.
    pub float: Option<PayloadFloat>,
}

impl Payload {
    pub const fn integer(bits: i64) -> Self {
        Payload { bits, float: None }
    }
}

/// A range that ends now, or a mark.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    pub kind: RangeKind,
    /// The names of the ranges around it and its own, each with a separator before it.
    pub path: &'a CStr,
    /// Likewise; empty for the default domain.
    pub domain: &'a CStr,
    /// `None` if it is a mark.
    pub start: Option<u64>,
    pub details: RangeDetails,
    /// The thread that opened it.
    pub tid: u32,
}

/// Ranges that ended without being recorded since the last [`publish`].
static UNRECORDED: AtomicU64 = AtomicU64::new(0);
/// The run that published last.
static LAST: AtomicPtr<Agent> = AtomicPtr::new(std::ptr::null_mut());

/// Counts the end of a range whose beginning was not seen, or did not fit.
pub fn count_unrecorded() {
    UNRECORDED.fetch_add(1, Ordering::Relaxed);
}

/// Counts in a run what it lacks. Ranges between two runs are none of either.
pub(crate) fn publish(agent: &Agent) {
    let this = std::ptr::from_ref(agent).cast_mut();
    let last = LAST.swap(this, Ordering::AcqRel);
    let n = UNRECORDED.swap(0, Ordering::Relaxed);
    if (last.is_null() || std::ptr::eq(last, this)) && wants(agent.demand()) {
        agent.count_lost(Lost::RangeUnrecorded, n);
    }
}

fn wants(demand: u64) -> bool {
    demand::host_events_of(demand).contains(HostEvent::Range)
}

/// Records a range in the armed run, if that wants it.
pub fn record(range: &Range<'_>) {
    let Some(agent) = current().filter(|it| it.is_ours() && it.is_recording()) else {
        return count_unrecorded();
    };
    if !wants(agent.demand_now()) || !agent.window.contains_now() {
        return;
    }
    let Some(_inside) = agent.enter(this_thread()) else { return };
    // Not before: see `Agent::settled_until`.
    let end = now();
    output::record_host_events(agent, HostEvents::of(&[HostEvent::Range]), |event, out| {
        // SAFETY: C strings that stay for ever.
        let mut id = |text: &CStr| unsafe { if text.is_empty() { 0 } else { range_name(agent, out, text) } };
        let (path, domain) = (id(range.path), id(range.domain));
        let details = range.details;
        let record = host::Range {
            start: range.start.unwrap_or(end),
            end,
            payload: details.payload.map_or(0, |it| it.bits),
            path,
            domain,
            kind: range.kind as u32,
            category: details.category,
            color: details.color.unwrap_or(0),
            has_color: details.color.is_some().into(),
            has_payload: details.payload.is_some_and(|it| it.float.is_none()).into(),
            payload_float: details.payload.and_then(|it| it.float).map_or(0, |it| it as u32),
            tid: range.tid,
            unused: 0,
        };
        out.write(event.record_kind(), &record, &[])
    });
}
