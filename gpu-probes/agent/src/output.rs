//! The ring of the calling thread: claimed at its first record, released when it ends.
//!
//! Unread records stay in a released ring; the next owner writes after them.

use super::Agent;
use super::state::output::{Output, Patience};
use super::state::run_address::RunAddress;
use super::state::this_thread::{ThisThread, this_thread};
use std::cell::RefMut;
use std::sync::atomic::Ordering;
use std::time::Duration;
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::region::Lost;

/// How long to wait for room in a ring that the tracer does not read, per buffer of activities.
pub(crate) const BUFFER_PATIENCE: Duration = Duration::from_millis(250);
/// Rings that launching threads leave for the threads that write activities and flushes.
const RESERVED_RINGS: u32 = 2;

thread_local! {
    static GUARD: RingGuard = const { RingGuard };
}

/// Who needs a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingRole {
    Launch,
    /// The backend's worker, the control thread, a thread at exit.
    Service,
}

/// Runs `with` on the calling thread's ring; returns `None` if it has none, or if the ring is in
/// use further up the stack.
#[inline(always)]
pub(crate) fn with<R>(agent: &'static Agent, role: RingRole, with: impl FnOnce(&mut Output) -> R) -> Option<R> {
    of(this_thread(), agent, role).map(|mut it| with(&mut it))
}

/// Returns the calling thread's end of its ring; `None` if it has none, or if that is in use further up the stack.
#[inline(always)]
pub(crate) fn of(
    thread: &'static ThisThread,
    agent: &'static Agent,
    role: RingRole,
) -> Option<RefMut<'static, Output>> {
    let mut output = thread.output.try_borrow_mut().ok()?;
    output.attach(agent, role).then_some(output)
}

/// Returns the calling thread as pthreads calls it, cut to the 32 bits that a backend may have for it.
fn pthread() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::pthread_self() as u32 }
}

fn thread_word(pthread: u32, tid: u32) -> u64 {
    u64::from(pthread) << 32 | u64::from(tid)
}

impl Output {
    #[inline(always)]
    fn attach(&mut self, agent: &'static Agent, role: RingRole) -> bool {
        if self.run.is_of(agent) && self.writer.is_some() {
            return agent.is_ours();
        }
        self.claim(agent, role)
    }

    #[cold]
    fn claim(&mut self, agent: &'static Agent, role: RingRole) -> bool {
        if !agent.is_ours() {
            return false;
        }
        if !self.run.is_of(agent) {
            // A ring of an earlier run needs no release: that run is over.
            *self = Output { run: RunAddress::of(agent), tid: this_thread().id(), ..Output::NONE };
        }
        let released = agent.memory.released.load(Ordering::Acquire);
        let ending = GUARD.try_with(|_| ()).is_err();
        // A ring claimed this late would never be released, so only the last flush may claim one.
        let refused = ending && role == RingRole::Launch && self.tid != agent.life.pid;
        if self.released_seen == Some(released) || refused {
            return false;
        }
        match claim_ring(agent, role, self.tid) {
            Some(ring) => {
                self.ring = ring;
                agent.memory.threads[ring as usize].store(thread_word(pthread(), self.tid), Ordering::Release);
                // SAFETY: this thread owns the ring from now on, and has one writer of it.
                self.writer = Some(unsafe { agent.memory.region.writer(ring) });
                self.write_comm();
                true
            }
            None => {
                self.released_seen = Some(released);
                false
            }
        }
    }

    fn release(&mut self) {
        // SAFETY: null, or an agent, which is never freed.
        let Some(agent) = (unsafe { self.run.pointer::<Agent>().as_ref() }) else { return };
        let had_ring = self.writer.take().is_some();
        if let (true, Some(_inside)) = (had_ring && agent.is_surely_ours(), agent.enter(this_thread())) {
            agent.memory.threads[self.ring as usize].store(0, Ordering::Release);
            agent.memory.region.ring(self.ring).owner.store(0, Ordering::Release);
            agent.memory.released.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Agent {
    /// How long a writer off the launch path may wait for room.
    pub(crate) fn patience(&'static self, at_most: Duration) -> Patience {
        Patience::new(&self.life.tracer_gone, at_most)
    }

    /// Writes a record, waiting for room. Never called on the launch path.
    pub(crate) fn write_waiting<T: zerocopy::IntoBytes + zerocopy::Immutable>(
        &'static self,
        kind: u16,
        body: &T,
        tail: &[u8],
    ) {
        let mut patience = self.patience(BUFFER_PATIENCE);
        match with(self, RingRole::Service, |out| out.write_waiting(&mut patience, kind, body, tail)) {
            Some(true) => {}
            Some(false) => self.memory.region.count_lost(Lost::ActivityRingFull, 1),
            None => count_no_ring(self, 1),
        }
    }

    /// Returns the id of the thread that pthreads calls this, if it has a ring.
    pub(crate) fn thread_called(&self, pthread: u32) -> Option<u32> {
        let is_it = |it: &u64| it >> 32 == u64::from(pthread);
        self.memory.threads.iter().map(|it| it.load(Ordering::Acquire)).find(is_it).map(|it| it as u32)
    }
}

fn claim_ring(agent: &Agent, role: RingRole, tid: u32) -> Option<u32> {
    let rings = agent.memory.region.shape().rings;
    let fresh = match role {
        RingRole::Launch if rings > RESERVED_RINGS => rings - RESERVED_RINGS,
        _ => rings,
    };
    let claimed = &agent.memory.region.control().rings_claimed;
    let take = |ring: u32| {
        let owner = &agent.memory.region.ring(ring).owner;
        owner.compare_exchange(0, tid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let known = claimed.load(Ordering::Acquire).min(rings);
    if let Some(ring) = (0..known).find(|&ring| take(ring)) {
        return Some(ring);
    }
    loop {
        let next =
            claimed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |it| (it < fresh).then_some(it + 1)).ok()?;
        // Another thread may have found it free in between.
        if take(next) {
            return Some(next);
        }
    }
}

/// Releases the thread's ring when the thread ends.
struct RingGuard;

impl Drop for RingGuard {
    fn drop(&mut self) {
        if let Ok(mut output) = this_thread().output.try_borrow_mut() {
            output.release();
        }
    }
}

/// Counts `n` records without a ring.
pub(crate) fn count_no_ring(agent: &Agent, n: u64) {
    if agent.is_ours() {
        agent.memory.region.count_lost(Lost::NoRing, n);
    }
}

/// Records host events of the calling thread, which `write` writes; it returns whether the record fitted.
#[inline]
pub(crate) fn record_host_events(
    agent: &'static Agent,
    events: HostEvents,
    mut write: impl FnMut(HostEvent, &mut Output) -> bool,
) {
    let mut lost = events;
    let ring = with(agent, RingRole::Launch, |out| {
        let written = events.iter().filter(|it| write(*it, out));
        lost = written.fold(lost, |lost, it| lost.without(HostEvents::of(&[it])));
        out.ring()
    });
    count_host_events(agent, events, lost, ring);
}

/// Counts host events, and those of them that did not fit into the ring, or that had none.
pub(crate) fn count_host_events(agent: &Agent, events: HostEvents, lost: HostEvents, ring: Option<u32>) {
    let n_lost = lost.iter().count() as u64;
    match ring {
        Some(_) => agent.count_lost(Lost::HostEventRingFull, n_lost),
        None => count_no_ring(agent, n_lost),
    }
    if lost.contains(HostEvent::EventRecord) {
        agent.lost_event_record();
    }
    agent.counters_of(ring).add_host_events(events);
}
