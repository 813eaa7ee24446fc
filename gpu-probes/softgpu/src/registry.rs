//! Objects behind handles.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::abi::{Handle, error};

/// Bits that every handle has, so that it looks like an address.
pub(crate) const HANDLES: Handle = 0x5000_0000_0000;
pub(crate) static NEXT_HANDLE: AtomicUsize = AtomicUsize::new(1);

/// Objects by handle. Handles are never reused, so a stale one is an error rather than another
/// object.
pub(crate) struct Registry<T> {
    items: Mutex<BTreeMap<Handle, Arc<T>>>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self { items: Mutex::new(BTreeMap::new()) }
    }

    pub(crate) fn insert(&self, item: T) -> Handle {
        self.insert_shared(Arc::new(item))
    }

    pub(crate) fn insert_shared(&self, item: Arc<T>) -> Handle {
        let handle = HANDLES | NEXT_HANDLE.fetch_add(1, Ordering::Relaxed) << 4;
        self.lock().insert(handle, item);
        handle
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<T>> {
        self.lock().get(&handle).cloned()
    }

    /// Returns the object, or the driver's error for an invalid handle.
    pub(crate) fn find(&self, handle: Handle) -> Result<Arc<T>, i32> {
        self.get(handle).ok_or(error::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, i32> {
        self.lock().remove(&handle).ok_or(error::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Handle, Arc<T>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
