//! Lets another user of CUPTI have the records, and takes them back when it is done.
//!
//! ```text
//! its thread:      enables a kind ─▶ begin_yield: our kinds off, flush ─▶ CUPTI enables it
//! its thread:      disables its last kind, flushes ─▶ wakes the control thread
//! control thread:  tend: none of its kinds on, none of its buffers with CUPTI ─▶ our kinds on
//! ```
//! Callbacks stay ours meanwhile, since both share one subscription ([`others`]): so launches are
//! still seen.

use super::functions::{ATTRIBUTE_ZEROED_BUFFERS, Handle};
use super::others::{self, OTHER, OURS, TWINS};
use super::records::RecordedKinds;
use super::run::{CuptiBackend, POOL};
use super::sharing::{ATTRIBUTES, UNREAD};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use xputrace_agent::clock::now;
use xputrace_agent::{Agent, ArmRefusal, Flushing, Order};
use xputrace_wire::events::{Activity, Calls, HostEvent};
use xputrace_wire::message::demand;

/// The first version with `cuptiActivityEnable_v2` and the like.
const SUBSCRIBER_FUNCTIONS_SINCE: u32 = 130_200;

/// How long a run that ends for another user may take for it.
const LEAVES_WITHIN: Duration = Duration::from_secs(3);

/// How long another user may take from its first call, such as a new clock, to the first kind that it enables; in
/// nanoseconds.
const PREPARES_WITHIN: u64 = 1_000_000_000;

/// How long it may take from its last kind that it disables to its flush; in nanoseconds.
const FLUSHES_WITHIN: u64 = 10_000_000_000;

impl CuptiBackend {
    /// Whether records are part of the demand.
    pub(super) fn wants_records(&self, agent: &Agent) -> bool {
        !RecordedKinds::of(agent.demand()).is_empty()
    }

    pub(super) fn is_subscribed(&self) -> bool {
        !self.subscriber.load(Ordering::Acquire).is_null()
    }

    /// Whether another user has the records.
    pub(super) fn is_yielding(&self) -> bool {
        self.sharing.is_yielding.load(Ordering::Acquire)
    }

    /// Whether records are the run's: of the demand, and not with another user.
    pub(super) fn has_records(&self, agent: &Agent) -> bool {
        self.wants_records(agent) && !self.is_yielding()
    }

    /// Whether this CUPTI has functions for each subscriber, which need a subscription of one's own.
    pub(super) fn has_subscriber_functions(&self) -> bool {
        self.cupti.version() >= SUBSCRIBER_FUNCTIONS_SINCE
    }

    /// Notes that a call of the other user begins or ends, during which the records must stay with it.
    pub(super) fn set_busy(&self, busy: bool) {
        if busy {
            self.sharing.busy.fetch_add(1, Ordering::AcqRel);
        } else {
            self.sharing.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Records what an order asks for from now on, and nothing else; or as soon as another user is done with them.
    pub(super) fn want_activities(&'static self, agent: &'static Agent, order: &Order) -> Result<(), ArmRefusal> {
        let _change = self.sharing.change();
        let is_wanted = *order != Order::NONE;
        self.sharing.wanted.store(RecordedKinds::of(order.demand).bits(), Ordering::Release);
        self.sharing.is_wanted.store(is_wanted, Ordering::Release);
        if is_wanted && !self.is_yielding() && OTHER.gets_records() {
            self.yield_from_start(agent);
        }
        if self.is_yielding() { Ok(()) } else { self.enable_wanted(agent) }
    }

    /// Enables the kinds of records that are wanted, and disables others.
    fn enable_wanted(&self, agent: &Agent) -> Result<(), ArmRefusal> {
        let wanted = RecordedKinds::from_bits(self.sharing.wanted.load(Ordering::Acquire));
        match self.enable_recorded(agent, self.recorded(wanted)) {
            // A CUPTI without records of whole graphs.
            Err(_) if self.whole_graphs.swap(false, Ordering::Relaxed) => {
                self.enable_recorded(agent, self.recorded(wanted))
            }
            done => done,
        }
    }

    fn enable_recorded(&self, agent: &Agent, recorded: RecordedKinds) -> Result<(), ArmRefusal> {
        let enabled = RecordedKinds::from_bits(self.sharing.enabled.fetch_or(recorded.bits(), Ordering::AcqRel));
        self.enable_kinds(agent, recorded.without(enabled), enabled.is_empty())?;
        self.disable_kinds(agent, enabled.without(recorded));
        Ok(())
    }

    /// Whether we record unified memory now, or will as soon as CUDA has started.
    pub(super) fn records_unified_memory(&self) -> bool {
        RecordedKinds::from_bits(self.sharing.enabled.load(Ordering::Acquire)).events.contains(HostEvent::Migration)
    }

    /// Disables all kinds of records.
    fn disable_all(&self, agent: &Agent) {
        let enabled = RecordedKinds::from_bits(self.sharing.enabled.load(Ordering::Acquire));
        self.disable_kinds(agent, enabled);
    }

    fn disable_kinds(&self, agent: &Agent, recorded: RecordedKinds) {
        if !self.has_records_on(agent) {
            return;
        }
        for (kind, _) in recorded.kinds() {
            let _ = self.disable_kind(kind);
        }
        let before = self.sharing.enabled.fetch_and(!recorded.bits(), Ordering::AcqRel);
        if before & !recorded.bits() == 0 {
            // Graphs that are made from now on must not meet them.
            self.whole_graphs.store(false, Ordering::Relaxed);
            self.restore_attributes();
        }
    }

    /// Stops recording activities.
    pub(super) fn want_no_activities(&self, agent: &Agent) {
        let _change = self.sharing.change();
        if self.sharing.is_wanted.swap(false, Ordering::AcqRel) && !self.is_yielding() {
            self.disable_all(agent);
        }
    }

    /// Hands the records over to another user, in the library `holder`; returns when CUPTI has no buffer of ours.
    pub(super) fn begin_yield(&'static self, agent: &'static Agent, holder: &str) {
        let Some(_change) = self.sharing.change() else { return agent.count_unexpected() };
        if self.is_yielding() {
            // After it has unloaded CUPTI: kinds must not be enabled before somebody subscribes.
            if !self.is_subscribed() && OTHER.alone().is_none() && self.subscribe_again(agent).is_err() {
                agent.gap_is_blind();
            }
            return;
        }
        agent.begin_gap();
        OTHER.begins();
        self.sharing.yielded_at.store(now(), Ordering::Release);
        if self.watch_launches(agent).is_err() {
            agent.gap_is_blind();
        }
        if self.sharing.is_wanted.load(Ordering::Acquire) {
            self.hand_over(agent);
        }
        self.sharing.is_yielding.store(true, Ordering::Release);
        agent.gap_began(holder);
    }

    /// Leaves the records to another user, who had them before this run.
    fn yield_from_start(&'static self, agent: &'static Agent) {
        agent.begin_gap();
        OTHER.begins();
        self.whole_graphs.store(false, Ordering::Relaxed);
        self.sharing.is_yielding.store(true, Ordering::Release);
        agent.gap_began("a tool that was there before");
    }

    /// Watches the calls that cause the recorded activities, if they are not watched anyway.
    fn watch_launches(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        if !self.is_subscribed() {
            self.subscribe()?;
        }
        self.enable_ids(self.watched_in_gaps(agent), true)
    }

    /// Delivers what is recorded, and disables our kinds. No buffer of ours is left, for the other user's records.
    fn hand_over(&self, agent: &Agent) {
        self.flush_activities(agent, Flushing::Regular);
        self.disable_all(agent);
        self.flush_activities(agent, Flushing::HandingOver);
    }

    /// Takes the records back, if the other user is done with them.
    pub(super) fn tend_to_other(&'static self, agent: &'static Agent) {
        if !self.is_yielding() || !self.is_other_done() {
            return self.sharing.done_since.store(0, Ordering::Release);
        }
        if !OTHER.has_lent() {
            self.sharing.done_since.store(0, Ordering::Release);
        } else if OTHER.has_flushed() || self.has_been_done_long() {
            // It may not flush again, and records of ours must not go into its buffer. But its own flush comes first:
            // torch.profiler takes its records only if that delivers them.
            self.cupti.flush_all.inspect(|flush| {
                // SAFETY: from the control thread, no lock held.
                unsafe { flush(0) };
            });
        }
        let Some(_change) = self.sharing.change() else { return };
        if self.is_yielding() && self.is_other_done() && !OTHER.has_lent() {
            match self.take_back(agent) {
                Ok(()) => agent.end_gap(),
                Err(ArmRefusal { result, text }) => {
                    let text = format!("taking CUPTI back from another tool in the process: {text}");
                    agent.end_with(ArmRefusal { result, text });
                }
            }
        }
    }

    /// Whether the other user has left its records unflushed for long.
    fn has_been_done_long(&self) -> bool {
        let since = self.sharing.done_since.compare_exchange(0, now(), Ordering::AcqRel, Ordering::Acquire);
        since.is_err_and(|since| now().saturating_sub(since) > FLUSHES_WITHIN)
    }

    fn is_other_done(&self) -> bool {
        let is_busy = self.sharing.busy.load(Ordering::Acquire) != 0;
        let has_had_time = || now().saturating_sub(self.sharing.yielded_at.load(Ordering::Acquire)) > PREPARES_WITHIN;
        !is_busy && !OTHER.gets_records() && OTHER.alone().is_none() && (OTHER.has_enabled() || has_had_time())
    }

    fn take_back(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        if !self.is_subscribed() {
            self.subscribe_again(agent)?;
        }
        self.sharing.is_yielding.store(false, Ordering::Release);
        if self.sharing.is_wanted.load(Ordering::Acquire) {
            self.enable_wanted(agent)?;
        }
        self.enable_ids(self.watched_in_gaps(agent), false)
    }

    /// Subscribes after another user has unloaded CUPTI.
    fn subscribe_again(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        self.subscribe_and_prepare(agent)?;
        if self.is_yielding() {
            self.enable_ids(self.watched_in_gaps(agent), true)?;
        }
        if self.sharing.is_wanted.load(Ordering::Acquire) || !self.wants_records(agent) {
            self.enable_all_calls(agent, &agent.armed())?;
        }
        Ok(())
    }

    /// Notes that CUPTI was unloaded by another user.
    pub(super) fn was_finalized(&self, agent: &Agent) {
        self.subscriber.store(std::ptr::null_mut(), Ordering::Release);
        OURS.drain(|_, _| ());
        TWINS.drain(|_, _| ());
        self.sharing.enabled.store(0, Ordering::Release);
        if let Some(pool) = POOL.get() {
            pool.take_all_back();
        }
        self.sharing.attributes.iter().for_each(|it| it.store(UNREAD, Ordering::Release));
        agent.gap_is_blind();
    }

    /// Returns our subscription for another user to share; `None` if CUPTI gives us none.
    pub(super) fn shared_subscription(&'static self, agent: &'static Agent) -> Option<Handle> {
        let _change = self.sharing.change()?;
        if !self.is_subscribed() {
            self.subscribe_again(agent).ok()?;
        }
        Some(self.subscriber.load(Ordering::Acquire))
    }

    /// Ends the run before another user, in the library `holder`, goes on.
    pub(super) fn give_up(&self, agent: &Agent, holder: &str) {
        agent.end_with(ArmRefusal {
            result: 0,
            text: format!("{holder} uses CUPTI too, and --on-conflict fail ends tracing then"),
        });
        let until = Instant::now() + LEAVES_WITHIN;
        while !agent.has_said_bye() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Sets our attributes, and remembers what they were.
    pub(super) fn set_attributes(&self) {
        for ((attribute, ours), kept) in ATTRIBUTES.into_iter().zip(&self.sharing.attributes) {
            // Subscribers share the attributes too, and the buffers of others may not be zeroed.
            if attribute == ATTRIBUTE_ZEROED_BUFFERS && self.scope().is_some() {
                continue;
            }
            if kept.load(Ordering::Acquire) == UNREAD {
                kept.store(self.attribute(attribute).unwrap_or(UNREAD), Ordering::Release);
            }
            let _ = self.set_attribute(attribute, ours);
        }
    }

    /// Sets our attributes to what they were.
    pub(super) fn restore_attributes(&self) {
        for ((attribute, _), kept) in ATTRIBUTES.into_iter().zip(&self.sharing.attributes) {
            match kept.swap(UNREAD, Ordering::AcqRel) {
                UNREAD => {}
                before => _ = self.set_attribute(attribute, before),
            }
        }
    }

    /// Keeps the other user's value of an attribute of ours for when it has the records; returns whether it is one.
    ///
    /// # Safety
    /// `size` is null or points to a number; `value` is null or points to so many bytes.
    pub(super) unsafe fn keep_attribute(&self, attribute: u32, size: *mut usize, value: *mut u8) -> bool {
        let Some(kept) = self.kept(attribute) else { return false };
        // SAFETY: the caller promises that `size` is null or points to a number and `value` is null or points to so
        // many bytes.
        let given = unsafe { size.as_ref().filter(|it| **it > 0).and(value.as_ref()) };
        given.inspect(|it| kept.store(**it, Ordering::Release)).is_some()
    }

    /// Returns the other user's value of an attribute of ours.
    pub(super) fn kept_attribute(&self, attribute: u32) -> Option<u8> {
        Some(self.kept(attribute)?.load(Ordering::Acquire))
    }

    fn kept(&self, attribute: u32) -> Option<&AtomicU8> {
        let at = ATTRIBUTES.iter().position(|it| it.0 == attribute)?;
        Some(&self.sharing.attributes[at]).filter(|it| it.load(Ordering::Acquire) != UNREAD)
    }

    /// Returns the calls that are watched in gaps alone: those that cause the activities of a script that does not
    /// look at launches.
    fn watched_in_gaps(&self, agent: &Agent) -> Calls {
        let asked = demand::calls_of(agent.demand());
        let causes = |it: Activity| it.causes();
        let caused = demand::activities_of(agent.demand()).iter().map(causes).fold(Calls::NONE, Calls::with);
        if asked.is_empty() { caused } else { Calls::NONE }
    }
}

/// Redirects the calls of other users to us; returns why that is impossible.
pub(super) fn share(cupti: &super::Cupti) -> Result<(), String> {
    match cupti.subscribe {
        Some(function) => others::install(function as *const () as u64),
        None => Ok(()),
    }
}
