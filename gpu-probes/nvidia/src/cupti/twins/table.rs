//! Which handle to launch in place of which: looked up at each launch, from any thread, without a lock.
//!
//! A handle may be another kernel's after its module is unloaded. So whoever reads an entry looks again whether it is
//! still the handle's.

use super::choosing::KernelNumber;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use xputrace_agent::zeroed::{ZeroIsValid, Zeroed};

const ENTRIES: usize = 1 << 14;
const PROBES: usize = 32;
/// The choice of an entry is above its handle, an address in the program, and the context above that.
const HANDLE_BITS: u32 = 48;
const CONTEXT_SHIFT: u32 = 56;
/// Where an entry was.
const REMOVED: u64 = 1;

/// A handle in a context, by the number of its slot, for launches at which some conditions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwinKey(u64);

impl TwinKey {
    /// For launches at which no condition holds; `None` if it is no handle.
    #[inline]
    pub(crate) fn new(handle: u64, slot: usize) -> Option<Self> {
        let is_handle = handle > REMOVED && handle >> HANDLE_BITS == 0;
        is_handle.then_some(TwinKey((slot as u64 + 1) << CONTEXT_SHIFT | handle))
    }

    /// For launches at which these conditions of the kernel hold, and no other.
    #[inline]
    pub(crate) fn holding(self, holding: u8) -> Self {
        TwinKey(self.0 | u64::from(holding) << HANDLE_BITS)
    }

    /// In whatever context.
    #[inline]
    pub(crate) fn anywhere(handle: u64) -> Option<Self> {
        TwinKey::new(handle, 0xfe)
    }

    fn first(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
    }
}

/// What is known of a handle. All of it may be asked for at any time; a handle's entry is gone when it says 0.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct TwinEntry {
    key: AtomicU64,
    /// The handle in its place; 0 if its own is launched.
    other: AtomicU64,
    /// Bytes of dynamic shared memory with which it can be launched.
    pub(crate) most_shared: AtomicU32,
    /// Threads of a block with which it can be launched.
    pub(crate) most_threads: AtomicU32,
    /// 1 if the twin refused an attribute.
    pub(crate) is_refused: AtomicU32,
    /// 1 if the twin takes more of a multiprocessor than its original.
    pub(crate) takes_more: AtomicU32,
    /// 1 if the handles are kernels', for all contexts; else they are functions', of one.
    pub(crate) is_kernel: AtomicU32,
    /// What counts its launches.
    pub(crate) kernel: AtomicU32,
}

// SAFETY: atomics.
unsafe impl ZeroIsValid for TwinEntry {}

/// What an entry begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct New {
    pub(crate) other: u64,
    pub(crate) most_shared: u32,
    pub(crate) most_threads: u32,
    pub(crate) is_refused: bool,
    pub(crate) takes_more: bool,
    pub(crate) is_kernel: bool,
    pub(crate) kernel: KernelNumber,
}

/// Entries by key.
#[derive(Debug)]
pub(crate) struct TwinTable(Zeroed<TwinEntry>);

impl TwinTable {
    pub(crate) fn new() -> io::Result<Self> {
        Zeroed::new(ENTRIES).map(TwinTable)
    }

    fn probes(&self, key: TwinKey) -> impl Iterator<Item = &TwinEntry> {
        let first = key.first();
        (0..PROBES).map(move |it| &self.0[(first + it) % ENTRIES])
    }

    fn entry(&self, key: TwinKey) -> Option<&TwinEntry> {
        for entry in self.probes(key) {
            match entry.key.load(Ordering::Acquire) {
                0 => return None,
                it if it == key.0 => return Some(entry),
                _ => {}
            }
        }
        None
    }

    /// Returns the handle in place of another, and what is known of it.
    #[inline]
    pub(crate) fn find(&self, key: TwinKey) -> Option<(u64, &TwinEntry)> {
        let entry = self.entry(key)?;
        let other = entry.other.load(Ordering::Acquire);
        fence(Ordering::Acquire);
        (entry.key.load(Ordering::Relaxed) == key.0).then_some((other, entry))
    }

    /// Adds an entry, or changes that of the key; returns false if there is no room. One thread at a time.
    pub(crate) fn insert(&self, key: TwinKey, new: New) -> bool {
        let free = || self.probes(key).find(|it| it.key.load(Ordering::Acquire) <= REMOVED);
        let Some(entry) = self.entry(key).or_else(free) else { return false };
        entry.key.store(REMOVED, Ordering::Release);
        fence(Ordering::Release);
        entry.other.store(new.other, Ordering::Release);
        entry.most_shared.store(new.most_shared, Ordering::Release);
        entry.most_threads.store(new.most_threads, Ordering::Release);
        entry.is_refused.store(new.is_refused.into(), Ordering::Release);
        entry.takes_more.store(new.takes_more.into(), Ordering::Release);
        entry.is_kernel.store(new.is_kernel.into(), Ordering::Release);
        entry.kernel.store(new.kernel, Ordering::Release);
        entry.key.store(key.0, Ordering::Release);
        true
    }

    /// Removes an entry. One thread at a time.
    pub(crate) fn remove(&self, key: TwinKey) {
        if let Some(entry) = self.entry(key) {
            entry.key.store(REMOVED, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(other: u64) -> New {
        New { other, ..New::default() }
    }

    #[test]
    fn a_handle_is_known_in_its_context_until_it_is_removed() {
        let table = TwinTable::new().unwrap();
        let key = |slot| TwinKey::new(0x7f00_1234_5678, slot).unwrap();
        assert!(table.insert(key(0), to(0x10)) && table.insert(key(1), to(0x20)));
        let found = |slot| table.find(key(slot)).map(|it| it.0);
        assert_eq!([found(0), found(1), found(2)], [Some(0x10), Some(0x20), None]);
        table.remove(key(0));
        assert_eq!([found(0), found(1)], [None, Some(0x20)]);
        assert!(table.insert(key(0), to(0x30)) && table.insert(key(1), to(0x40)));
        assert_eq!([found(0), found(1)], [Some(0x30), Some(0x40)]);
    }

    #[test]
    fn a_handle_has_an_entry_for_each_choice() {
        let table = TwinTable::new().unwrap();
        let key = TwinKey::new(0x7f00_1234_5678, 3).unwrap();
        (0..8).for_each(|it| assert!(table.insert(key.holding(it), to(0x10 + u64::from(it)))));
        table.remove(key.holding(3));
        let found = |it| table.find(key.holding(it)).map(|it| it.0);
        assert_eq!([found(0), found(3), found(7)], [Some(0x10), None, Some(0x17)]);
    }

    #[test]
    fn what_is_no_handle_has_no_entry() {
        for handle in [0, 1, 1 << 48, u64::MAX] {
            assert_eq!(TwinKey::new(handle, 0), None, "{handle:#x}");
        }
        assert_ne!(TwinKey::new(2, 15), TwinKey::anywhere(2));
    }

    #[test]
    fn a_full_table_refuses_and_keeps_what_it_has() {
        let table = TwinTable::new().unwrap();
        let keys: Vec<TwinKey> = (1..=2 * ENTRIES as u64).map(|it| TwinKey::new(it << 4, 0).unwrap()).collect();
        let kept: Vec<bool> = keys.iter().map(|it| table.insert(*it, to(it.0))).collect();
        assert!(kept.iter().filter(|it| **it).count() <= ENTRIES && kept[..100].iter().all(|it| *it));
        for (key, kept) in keys.iter().zip(kept) {
            assert_eq!(table.find(*key).map(|it| it.0), kept.then_some(key.0));
        }
    }

    /// Readers see a handle's own entry, or none.
    #[test]
    fn entries_that_come_and_go_are_never_mixed() {
        let table = TwinTable::new().unwrap();
        let key = |it: u64| TwinKey::new(it << 4 | 1 << 20, 0).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for it in 0..64 {
                        assert!(table.find(key(it)).is_none_or(|found| found.0 % 64 == it));
                    }
                }
            });
            for round in 0..2000 {
                (0..64).for_each(|it| assert!(table.insert(key(it), to(round * 64 + it))));
                (0..64).for_each(|it| table.remove(key(it)));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
