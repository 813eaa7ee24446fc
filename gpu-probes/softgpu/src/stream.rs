//! Streams: each has a queue of work and a thread that runs it in order.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::abi::error;
use crate::capture::Capture;
use crate::threads::spawn;

type Task = Box<dyn FnOnce() + Send>;

/// One stream.
pub(crate) struct Stream {
    /// CUPTI's stream id.
    pub(crate) id: u32,
    /// CUPTI's context id.
    pub(crate) context: u32,
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) role: StreamRole,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
    capture: Mutex<Option<Arc<Capture>>>,
}

/// How a stream relates to the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamRole {
    /// Waits for all blocking streams, and they wait for it.
    Legacy,
    Blocking,
    NonBlocking,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    submitted: u64,
    completed: u64,
    started: bool,
    closed: bool,
}

/// A point in a stream's queue.
#[derive(Clone)]
pub(crate) struct Mark {
    stream: Arc<Stream>,
    count: u64,
}

/// Threads of the program that wait.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// How many threads wait for the GPU in a call of CUDA, for kernels that run until one does.
#[unsafe(no_mangle)]
pub extern "C" fn softgpu_waiting_threads() -> u32 {
    WAITING.load(Ordering::SeqCst)
}

impl Mark {
    pub(crate) fn is_reached(&self) -> bool {
        self.stream.lock().completed >= self.count
    }

    /// Makes the program's thread wait.
    pub(crate) fn wait(&self) {
        WAITING.fetch_add(1, Ordering::SeqCst);
        self.reach();
        WAITING.fetch_sub(1, Ordering::SeqCst);
    }

    fn reach(&self) {
        let mut queue = self.stream.lock();
        while queue.completed < self.count {
            queue = self.stream.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Orders submissions over all streams: waits only point to earlier work, so there are no cycles.
static SUBMISSION: Mutex<()> = Mutex::new(());

impl Stream {
    /// Creates a stream of a context, given by its CUPTI id and its device.
    pub(crate) fn new(
        id: u32,
        (context, device): (u32, i32),
        role: StreamRole,
        flags: u32,
        priority: i32,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            context,
            device,
            role,
            flags,
            priority,
            queue: Mutex::default(),
            changed: Condvar::new(),
            capture: Mutex::new(None),
        })
    }

    /// Queues work; `others` are the streams of the same context.
    pub(crate) fn submit(self: &Arc<Self>, others: &[Arc<Stream>], task: impl FnOnce() + Send + 'static) -> Mark {
        let _order = SUBMISSION.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = self.implicit_waits(others);
        self.push(Box::new(move || {
            waits.iter().for_each(Mark::reach);
            task();
        }))
    }

    /// Returns the work that must finish first by the legacy default stream's rules.
    fn implicit_waits(self: &Arc<Self>, others: &[Arc<Stream>]) -> Vec<Mark> {
        let bound = |other: &&Arc<Stream>| match self.role {
            StreamRole::Legacy => other.role == StreamRole::Blocking,
            StreamRole::Blocking => other.role == StreamRole::Legacy,
            StreamRole::NonBlocking => false,
        };
        others.iter().filter(bound).map(Stream::mark).filter(|mark| !mark.is_reached()).collect()
    }

    fn push(self: &Arc<Self>, task: Task) -> Mark {
        let mut queue = self.lock();
        queue.tasks.push_back(task);
        queue.submitted += 1;
        if !queue.started {
            let stream = self.clone();
            queue.started = spawn("softgpu-stream", move || stream.run());
        }
        self.changed.notify_all();
        Mark { stream: self.clone(), count: queue.submitted }
    }

    /// Marks everything submitted so far.
    pub(crate) fn mark(self: &Arc<Self>) -> Mark {
        Mark { stream: self.clone(), count: self.lock().submitted }
    }

    /// Ends the thread once its queue is empty.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            let Some(task) = queue.tasks.pop_front() else {
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            task();
            queue = self.lock();
            queue.completed += 1;
            self.changed.notify_all();
        }
    }

    pub(crate) fn capture(&self) -> Option<Arc<Capture>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_capture(&self, capture: Option<Arc<Capture>>) {
        *self.capture.lock().unwrap_or_else(PoisonError::into_inner) = capture;
    }

    /// Fails if the stream is being captured: its work cannot be waited for.
    pub(crate) fn refuse_capture(&self) -> Result<(), i32> {
        if self.capture().is_some() { Err(error::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
