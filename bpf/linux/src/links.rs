//! Open links, and how to close them.
//!
//! Closing a uprobe link waits about 10 ms for Linux's readers. So many are closed concurrently,
//! during a run by a separate thread.
//!
//! Closing the last event of a tracepoint waits about 40 ms, and Linux does that for one event at a
//! time (`perf_trace_destroy` under `event_mutex`): 350 tracepoints would delay the end of a run by
//! 14 s. Their programs are detached with their links; a child process closes the events and does
//! nothing else.

use crate::resolve::FileId;
use crate::sys;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use xputrace_model::plan::ProbeId;

/// Number of links closed concurrently: each waits for Linux, not for us.
const CLOSERS: usize = 256;

/// An open link, its probe, and the file whose places it probes, if any.
#[derive(Debug)]
struct Link {
    probe: ProbeId,
    file: Option<FileId>,
    fd: OwnedFd,
}

/// Links by process; `None` means all processes.
#[derive(Debug, Default)]
pub(crate) struct Links {
    by_process: HashMap<Option<u32>, Vec<Link>>,
    /// Events of tracepoints, whose programs are in `by_process`.
    events: Vec<(ProbeId, OwnedFd)>,
    closer: Closer,
}

impl Links {
    /// Adds links for all processes.
    pub(crate) fn add(&mut self, probe: ProbeId, links: Vec<OwnedFd>) {
        self.hold(None, probe, None, links);
    }

    /// Adds links to places of a file.
    pub(crate) fn add_of_file(&mut self, pid: Option<u32>, probe: ProbeId, file: FileId, links: Vec<OwnedFd>) {
        self.hold(pid, probe, Some(file), links);
    }

    fn hold(&mut self, pid: Option<u32>, probe: ProbeId, file: Option<FileId>, links: Vec<OwnedFd>) {
        let links = links.into_iter().map(|fd| Link { probe, file, fd });
        self.by_process.entry(pid).or_default().extend(links);
    }

    /// Keeps the event of a tracepoint open while there are links.
    pub(crate) fn add_event(&mut self, probe: ProbeId, event: OwnedFd) {
        self.events.push((probe, event));
    }

    pub(crate) fn take_over(&mut self, mut others: Links) {
        others.by_process.drain().for_each(|(pid, links)| self.by_process.entry(pid).or_default().extend(links));
        self.events.append(&mut others.events);
    }

    /// Whether a process's links are bound to a task that is no longer its main one because another
    /// thread called `exec` and took its place. They never fire again. False where Linux does not tell.
    pub(crate) fn are_void(&self, pid: u32) -> bool {
        let links = self.by_process.get(&Some(pid)).map(Vec::as_slice).unwrap_or_default();
        let bound_to = |link: &Link| sys::uprobe_link_pid(link.fd.as_fd()).ok().flatten();
        links.iter().any(|it| bound_to(it).is_some_and(|it| it != pid))
    }

    /// Whether a process has links of its own.
    pub(crate) fn has_own(&self, pid: u32) -> bool {
        self.by_process.get(&Some(pid)).is_some_and(|it| !it.is_empty())
    }

    /// Closes an ended process's links in the background.
    pub(crate) fn remove(&mut self, pid: u32) {
        if let Some(links) = self.by_process.remove(&Some(pid)) {
            self.closer.close(descriptors(links).collect());
        }
    }

    /// Closes a process's links before returning.
    pub(crate) fn remove_now(&mut self, pid: u32) {
        close_all(descriptors(self.by_process.remove(&Some(pid)).unwrap_or_default()).collect());
    }

    /// Closes a probe's links before returning, and its events in the background.
    pub(crate) fn remove_probe(&mut self, probe: ProbeId) {
        let all = self.by_process.values_mut();
        let of_probe = all.flat_map(|it| it.extract_if(.., |link| link.probe == probe));
        close_all(descriptors(of_probe).collect());
        let events = self.events.extract_if(.., |it| it.0 == probe);
        self.closer.close(events.map(|it| it.1).collect());
    }

    /// Closes all links to places of a file before returning.
    pub(crate) fn remove_file(&mut self, file: FileId) {
        let all = self.by_process.values_mut();
        let of_file = all.flat_map(|it| it.extract_if(.., |link| link.file == Some(file)));
        close_all(descriptors(of_file).collect());
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let mut all: Vec<OwnedFd> = self.by_process.drain().flat_map(|(_, it)| descriptors(it)).collect();
        all.append(&mut self.closer.queue().links);
        close_all(all);
        sys::close_in_child(self.events.drain(..).map(|it| it.1).collect());
    }
}

fn descriptors(links: impl IntoIterator<Item = Link>) -> impl Iterator<Item = OwnedFd> {
    links.into_iter().map(|it| it.fd)
}

/// Closes links concurrently; returns when all are closed.
fn close_all(mut links: Vec<OwnedFd>) {
    let each = links.len().div_ceil(CLOSERS).max(1);
    thread::scope(|scope| {
        while links.len() > each {
            let part = links.split_off(links.len() - each);
            // If no thread can be created, the part is dropped with its closure and so closed right
            // here.
            let _ = thread::Builder::new().spawn_scoped(scope, move || drop(part));
        }
        drop(links);
    });
}

/// Closes links in the background.
pub(crate) fn close_behind(links: Vec<OwnedFd>) {
    if !links.is_empty() {
        // As in `close_all`.
        let _ = thread::Builder::new().spawn(move || close_all(links));
    }
}

/// Closes links during a run, on a thread that ends when nothing is left to close.
#[derive(Debug, Default)]
struct Closer {
    queue: Arc<Mutex<Queue>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    links: Vec<OwnedFd>,
    /// Whether a thread will look at `links` again.
    served: bool,
}

impl Closer {
    fn close(&mut self, links: Vec<OwnedFd>) {
        let mut queue = self.queue();
        queue.links.extend(links);
        if std::mem::replace(&mut queue.served, true) {
            return;
        }
        drop(queue);
        let shared = self.queue.clone();
        match thread::Builder::new().spawn(move || while close_queued(&shared) {}) {
            Ok(thread) => self.thread = Some(thread),
            Err(_) => while close_queued(&self.queue) {},
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Closes what is queued; returns `false` if there was nothing.
fn close_queued(queue: &Mutex<Queue>) -> bool {
    let links = {
        let mut queue = lock(queue);
        queue.served = !queue.links.is_empty();
        std::mem::take(&mut queue.links)
    };
    let some = !links.is_empty();
    close_all(links);
    some
}

/// The queue is consistent at every moment, so a thread that panicked left nothing half done.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Command;

    /// Returns `n` write ends of one pipe; its reader sees the end once all are closed.
    fn links(n: usize) -> (std::io::PipeReader, Vec<OwnedFd>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let links = (0..n).map(|_| OwnedFd::from(writer.try_clone().unwrap())).collect();
        (reader, links)
    }

    fn are_closed(mut reader: std::io::PipeReader) -> bool {
        reader.read(&mut [0]).unwrap() == 0
    }

    fn all_ways_close() {
        for n in [0, 1, CLOSERS, 3 * CLOSERS + 1] {
            let (reader, some) = links(n);
            close_all(some);
            assert!(are_closed(reader), "{n}");
            let (reader, some) = links(n);
            close_behind(some);
            assert!(are_closed(reader), "{n}");
        }
        let mut held = Links::default();
        let (reader, some) = links(2);
        held.hold(Some(1), ProbeId(1), None, some);
        held.remove_now(1);
        assert!(are_closed(reader));
        let file = |inode| FileId { device: 1, inode, born_nanos: 0 };
        let (of_file, some) = links(2);
        held.add_of_file(None, ProbeId(1), file(1), some);
        let (_of_another, some) = links(2);
        held.add_of_file(None, ProbeId(1), file(2), some);
        held.remove_file(file(1));
        assert!(are_closed(of_file));
        let readers: Vec<_> = (0..100)
            .map(|pid| {
                let (reader, some) = links(2);
                held.hold(Some(pid), ProbeId(1), None, some);
                held.remove(pid);
                reader
            })
            .collect();
        assert!(readers.into_iter().all(are_closed), "while the others are held");
        let (of_probe, some) = links(2);
        held.add(ProbeId(3), some);
        let (its_event, some) = links(1);
        some.into_iter().for_each(|it| held.add_event(ProbeId(3), it));
        held.remove_probe(ProbeId(3));
        assert!(are_closed(of_probe) && are_closed(its_event));
        let (reader, some) = links(2);
        held.add(ProbeId(2), some);
        let (of_events, some) = links(3);
        some.into_iter().for_each(|it| held.add_event(ProbeId(2), it));
        drop(held);
        assert!(are_closed(reader) && are_closed(of_events));
    }

    #[test]
    fn what_is_taken_out_is_closed() {
        all_ways_close();
    }

    const NO_THREADS: &str = "XPUTRACE_TEST_NO_THREADS";

    /// Runs in a separate process, which gives up the right to create threads.
    #[test]
    fn where_no_thread_can_be_made_links_are_closed_all_the_same() {
        if std::env::var_os(NO_THREADS).is_some() {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: the structure lives through the call.
            let limited = unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &none) == 0 && libc::setuid(65_534) == 0 };
            assert!(limited && thread::Builder::new().spawn(|| ()).is_err());
            all_ways_close();
            return;
        }
        // SAFETY: the call only returns a number.
        if unsafe { libc::geteuid() } != 0 {
            println!("skipped: not root");
            return;
        }
        let name = "links::tests::where_no_thread_can_be_made_links_are_closed_all_the_same";
        let mut test = Command::new(std::env::current_exe().unwrap());
        let done = test.args([name, "--exact", "--test-threads=1"]).env(NO_THREADS, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && said.contains("1 passed"),
            "{said}\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
