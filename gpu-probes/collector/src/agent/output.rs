//! The ring of the calling thread: claimed at its first record, released when it ends.
//!
//! Unread records stay in a released ring; the next owner writes after them.

use super::Agent;
use super::this_thread::{ThisThread, this_thread};
use std::cell::RefMut;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xputrace_unwind::{Description, FIRST_PAGE};
use xputrace_wire::events::{HostEvent, HostEvents};
use xputrace_wire::record::{self, MAX_BUILD_ID, MAX_NAME, Thread, encode, encode_parts, kind, size_of_record};
use xputrace_wire::region::Lost;
use xputrace_wire::ring::Writer;
use zerocopy::{Immutable, IntoBytes};

// The tracer compares no more of a file than this.
const _: () = assert!(FIRST_PAGE as usize <= record::MAX_CHECKED_BYTES);

/// Rings that launching threads leave for the threads that write activities and flushes.
const RESERVED_RINGS: u32 = 2;

/// Who needs a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Launch,
    /// The backend's worker, the control thread, a thread at exit.
    Service,
}

/// The calling thread's end of its ring.
#[derive(Debug)]
pub(crate) struct Output {
    agent: *const Agent,
    writer: Option<Writer>,
    ring: u32,
    tid: u32,
    /// Value of [`Agent::released`] when no ring was left.
    released_seen: Option<u64>,
}

thread_local! {
    static GUARD: Guard = const { Guard };
}

/// Runs `with` on the calling thread's ring; returns `None` if it has none, or if the ring is in
/// use further up the stack.
#[inline(always)]
pub(crate) fn with<R>(agent: &'static Agent, role: Role, with: impl FnOnce(&mut Output) -> R) -> Option<R> {
    of(this_thread(), agent, role).map(|mut it| with(&mut it))
}

/// Returns the calling thread's end of its ring; `None` if it has none, or if that is in use further up the stack.
#[inline(always)]
pub(super) fn of(thread: &'static ThisThread, agent: &'static Agent, role: Role) -> Option<RefMut<'static, Output>> {
    let mut output = thread.output.try_borrow_mut().ok()?;
    output.attach(agent, role).then_some(output)
}

impl Output {
    /// Of a thread without a ring. `GUARD` releases one.
    pub(super) const NONE: Output =
        Output { agent: std::ptr::null(), writer: None, ring: 0, tid: 0, released_seen: None };

    #[inline(always)]
    fn attach(&mut self, agent: &'static Agent, role: Role) -> bool {
        if std::ptr::eq(self.agent, agent) && self.writer.is_some() {
            return agent.is_ours();
        }
        self.claim(agent, role)
    }

    #[cold]
    fn claim(&mut self, agent: &'static Agent, role: Role) -> bool {
        if !agent.is_ours() {
            return false;
        }
        if !std::ptr::eq(self.agent, agent) {
            // A ring of an earlier run needs no release: that run is over.
            *self = Output { agent, tid: this_thread().id(), ..Output::NONE };
        }
        let released = agent.memory.released.load(Ordering::Acquire);
        let ending = GUARD.try_with(|_| ()).is_err();
        // A ring claimed this late would never be released, so only the last flush may claim one.
        let refused = ending && role == Role::Launch && self.tid != agent.life.pid;
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

    /// Returns the index of the ring, which is also its slot in the tag array.
    pub(crate) fn ring(&self) -> u32 {
        self.ring
    }

    /// Writes a record, or nothing if it does not fit.
    #[inline(always)]
    pub(crate) fn write<T: IntoBytes + Immutable>(&mut self, kind: u16, body: &T, tail: &[u8]) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        writer.write(size_of_record::<T>(tail.len()), |out| encode(kind, body, tail, out))
    }

    /// Writes a record, waiting for the tracer to make room. Never use it on the launch path.
    pub(crate) fn write_waiting<T: IntoBytes + Immutable>(
        &mut self,
        patience: &mut Patience,
        kind: u16,
        body: &T,
        tail: &[u8],
    ) -> bool {
        loop {
            if self.write(kind, body, tail) {
                patience.renew();
                return true;
            }
            if !patience.wait() {
                return false;
            }
        }
    }

    pub(crate) fn write_name(&mut self, id: u32, text: &[u8]) -> bool {
        self.write(kind::NAME, &record::Name { id, len: text.len() as u32 }, text)
    }

    pub(crate) fn write_code(&mut self, id: u32, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|it| it.len()).sum();
        self.write_parts(kind::CODE, &record::Code { id, len: len as u32 }, parts)
    }

    /// Writes a stack; `objects` are the ids of the files that its frames are in.
    pub(crate) fn write_stack(&mut self, id: u32, frames: &[u64], end: u16, objects: &[u32]) -> bool {
        // x86-64 is little endian, as the record is.
        let n_objects = objects.len() as u32;
        let parts = [frames.as_bytes(), n_objects.as_bytes(), objects.as_bytes()];
        self.write_parts(kind::STACK, &record::Stack { id, len: frames.len() as u16, end }, &parts)
    }

    fn write_parts<T: IntoBytes + Immutable>(&mut self, kind: u16, body: &T, parts: &[&[u8]]) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        let len = parts.iter().map(|it| it.len()).sum();
        writer.write(size_of_record::<T>(len), |out| encode_parts(kind, body, parts, out))
    }

    /// Writes what a file is that is mapped; `directory` is where relative paths began when the process was armed.
    pub(crate) fn write_object(&mut self, id: u32, range: Range<u64>, it: &Description<'_>, directory: &[u8]) -> bool {
        let is_relative = !it.path.is_empty() && !it.path.starts_with(b"/");
        let directory = if is_relative && directory.len() <= MAX_NAME { directory } else { &[] };
        let build_id = if it.build_id.len() <= MAX_BUILD_ID { it.build_id } else { &[] };
        let path = &it.path[..it.path.len().min(MAX_NAME)];
        let object = record::Object {
            id,
            build_id_len: build_id.len() as u16,
            path_len: path.len() as u16,
            start: range.start,
            end: range.end,
            base: it.base,
            check: record::check_of_file(it.first_bytes),
            checked_bytes: it.first_bytes.len() as u32,
            directory_len: directory.len() as u32,
        };
        self.write_parts(kind::OBJECT, &object, &[build_id, path, directory])
    }

    fn write_comm(&mut self) {
        let mut comm = [0u8; 16];
        // SAFETY: Linux writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, comm.as_mut_ptr()) };
        self.write(kind::THREAD, &Thread { tid: self.tid, reserved: 0, comm }, &[]);
    }

    fn release(&mut self) {
        // SAFETY: null, or an agent, which is never freed.
        let Some(agent) = (unsafe { self.agent.as_ref() }) else { return };
        let had_ring = self.writer.take().is_some();
        if let (true, Some(_inside)) = (had_ring && agent.is_surely_ours(), agent.come_in(this_thread())) {
            agent.memory.threads[self.ring as usize].store(0, Ordering::Release);
            agent.memory.region.ring(self.ring).owner.store(0, Ordering::Release);
            agent.memory.released.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Returns the calling thread as pthreads calls it, cut to the 32 bits that a backend may have for it.
fn pthread() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::pthread_self() as u32 }
}

fn thread_word(pthread: u32, tid: u32) -> u64 {
    u64::from(pthread) << 32 | u64::from(tid)
}

impl Agent {
    /// Returns the id of the thread that pthreads calls this, if it has a ring.
    pub(crate) fn thread_called(&self, pthread: u32) -> Option<u32> {
        let is_it = |it: &u64| it >> 32 == u64::from(pthread);
        self.memory.threads.iter().map(|it| it.load(Ordering::Acquire)).find(is_it).map(|it| it as u32)
    }
}

fn claim_ring(agent: &Agent, role: Role, tid: u32) -> Option<u32> {
    let rings = agent.memory.region.shape().rings;
    let fresh = match role {
        Role::Launch if rings > RESERVED_RINGS => rings - RESERVED_RINGS,
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
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if let Ok(mut output) = this_thread().output.try_borrow_mut() {
            output.release();
        }
    }
}

/// How long a writer off the launch path may wait for room: for a tracer that does not read. One that does is waited for
/// several times as long.
#[derive(Debug)]
pub(crate) struct Patience {
    agent: &'static Agent,
    /// For the next room.
    at_most: Duration,
    until: Instant,
    /// In total.
    last: Instant,
    has_waited: bool,
}

impl Patience {
    pub(crate) fn new(agent: &'static Agent, at_most: Duration) -> Self {
        const MOST_RENEWALS: u32 = 8;
        let now = Instant::now();
        Patience { agent, at_most, until: now + at_most, last: now + at_most * MOST_RENEWALS, has_waited: false }
    }

    /// Notes that there was room: if it was waited for, the tracer reads.
    #[inline]
    fn renew(&mut self) {
        if std::mem::take(&mut self.has_waited) {
            self.until = (Instant::now() + self.at_most).min(self.last);
        }
    }

    /// Sleeps briefly; returns false if the time is up or nobody reads.
    fn wait(&mut self) -> bool {
        if self.agent.life.tracer_gone.load(Ordering::Relaxed) || Instant::now() >= self.until {
            return false;
        }
        self.has_waited = true;
        std::thread::sleep(Duration::from_micros(200));
        true
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
    let ring = with(agent, Role::Launch, |out| {
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
