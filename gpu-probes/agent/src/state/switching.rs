//! What is to be recorded, and what the backend has been asked for.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xputrace_wire::api::Functions;

/// What is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Bits of `message::demand`.
    pub demand: u64,
    /// The functions whose calls are `api` events.
    pub api: Functions,
}

impl Order {
    /// Nothing.
    pub const NONE: Order = Order { demand: 0, api: Functions::NONE };

    pub(crate) fn with(&self, other: &Order) -> Order {
        Order { demand: self.demand | other.demand, api: self.api.with(&other.api) }
    }
}

/// What is recorded now, and what the backend has been asked for.
#[derive(Debug)]
pub(crate) struct Switching {
    /// The demand under which launches that begin now are recorded.
    pub(crate) demand: AtomicU64,
    /// How often the runtime's calls began to be watched: those under way then are not seen to begin.
    pub(crate) layers_added: AtomicU32,
    /// Held for as long as it takes to copy orders.
    orders: Mutex<Orders>,
}

#[derive(Debug)]
pub(crate) struct Orders {
    /// What the tracer asked for last, if that has not been done.
    pub(crate) asked: Option<Order>,
    /// Under which launches are recorded.
    pub(crate) now: Order,
    /// What the backend records while it is resumed: more than `now` for a while after a switch.
    pub(crate) armed: Order,
    /// CLOCK_MONOTONIC nanoseconds.
    pub(crate) switched_at: u64,
}

impl Switching {
    pub(crate) fn new(first: Order) -> Self {
        let orders = Orders { asked: None, now: first, armed: first, switched_at: 0 };
        Switching { demand: AtomicU64::new(first.demand), layers_added: AtomicU32::new(0), orders: Mutex::new(orders) }
    }

    /// Returns the demand under which what begins now is recorded.
    #[inline]
    pub(crate) fn demand(&self) -> u64 {
        self.demand.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn layers_added(&self) -> u32 {
        self.layers_added.load(Ordering::Relaxed)
    }

    pub(crate) fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the backend records while it is resumed.
    pub(crate) fn armed(&self) -> Order {
        self.orders().armed
    }
}
