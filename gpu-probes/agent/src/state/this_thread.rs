//! What the library keeps for a thread that makes CUDA calls.
//!
//! In a library that is loaded later, each variable of a thread is found by a call (`__tls_get_addr`). So those of the
//! launch path are one, which a callback looks up once and hands on.

use super::forks;
use super::host_call::HostCallState;
use super::launch::LaunchState;
use super::output::Output;
use super::run_address::RunAddress;
use std::cell::{Cell, RefCell};

/// The calling thread's. Nothing in it has a destructor, because callbacks occur while threads end.
pub struct ThisThread {
    /// The number of its slot (`crate::presence`).
    pub(crate) slot: Cell<usize>,
    /// 0 if it is not known yet.
    pub(crate) id: Cell<u32>,
    is_untraced: Cell<bool>,
    pub(crate) output: RefCell<Output>,
    pub(crate) launch: RefCell<LaunchState>,
    pub(crate) host_call: RefCell<HostCallState>,
}

/// The number in [`ThisThread::slot`] while none was looked for.
pub(crate) const SLOT_UNKNOWN: usize = usize::MAX;

const _: () = assert!(!std::mem::needs_drop::<ThisThread>());

thread_local! {
    static THIS: ThisThread = const {
        ThisThread {
            slot: Cell::new(SLOT_UNKNOWN),
            id: Cell::new(0),
            is_untraced: Cell::new(false),
            output: RefCell::new(Output::NONE),
            launch: RefCell::new(LaunchState::new()),
            host_call: RefCell::new(HostCallState::new(RunAddress::NONE, None)),
        }
    };
}

/// Returns what is kept for the calling thread.
#[inline(always)]
pub fn this_thread() -> &'static ThisThread {
    // SAFETY: without a destructor, it lives as long as the thread, which it can't leave: it is not `Sync`.
    THIS.with(|it| unsafe { &*std::ptr::from_ref(it) })
}

/// Runs something of ours that calls CUDA: its calls are not the program's, and no events.
pub fn untraced<R>(run: impl FnOnce() -> R) -> R {
    let before = this_thread().is_untraced.replace(true);
    let result = run();
    this_thread().is_untraced.set(before);
    result
}

impl ThisThread {
    /// Returns the thread's id.
    #[inline]
    pub fn id(&self) -> u32 {
        let known = self.id.get();
        if known != 0 && !forks::is_forked() {
            return known;
        }
        self.ask_id()
    }

    #[cold]
    fn ask_id(&self) -> u32 {
        // SAFETY: no arguments, no effects.
        let id = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
        self.id.set(id);
        id
    }

    /// Whether it runs something of ours ([`untraced`]).
    #[inline]
    pub fn is_untraced(&self) -> bool {
        self.is_untraced.get()
    }
}
