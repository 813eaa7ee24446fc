//! The memory that a process has allocated, so that a free is known by its size.

use rustc_hash::FxHashMap;
use xputrace_wire::events::HostEventRecord;
use xputrace_wire::events::host::AllocKind;

/// Maximum number of allocations remembered per process, about 50 bytes each. Frees of any further ones have no size.
const MOST_ALLOCATIONS: usize = 1 << 18;

/// Live allocations by address.
///
/// A free is seen when its call has returned. By then another thread may have got the same address, and its call may
/// have returned first: an address may have two allocations for a while.
#[derive(Default)]
pub(crate) struct Allocations {
    live: FxHashMap<AllocationKey, Allocation>,
    /// The earlier of two allocations at an address.
    earlier: FxHashMap<AllocationKey, Allocation>,
}

/// Handles, locked memory of the program and mappings may be at the address of something else.
type AllocationKey = (Space, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Space {
    Address,
    Handle,
    Mapping,
    Registered,
}

/// What the memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    /// A number of [`AllocKind`].
    pub(crate) kind: u32,
    /// When its call returned.
    end: u64,
}

impl Allocations {
    /// Notes what a call allocates or frees, in order of their ends; returns what a free has freed, if known.
    pub(crate) fn on_event(&mut self, record: &HostEventRecord) -> Option<Allocation> {
        match record {
            HostEventRecord::Alloc(it) if it.has_address != 0 && it.result == 0 => {
                self.add((space(it.kind), it.address), Allocation { bytes: it.bytes, kind: it.kind, end: it.end });
                None
            }
            HostEventRecord::Free(it) if it.result == 0 => self.remove((space(it.kind), it.address), it.start),
            _ => None,
        }
    }

    fn add(&mut self, key: AllocationKey, allocation: Allocation) {
        if self.live.len() >= MOST_ALLOCATIONS && !self.live.contains_key(&key) {
            return;
        }
        if let Some(before) = self.live.insert(key, allocation) {
            self.earlier.insert(key, before);
        }
    }

    /// A free that began after the later allocation at its address had returned frees that one: the free of the
    /// earlier one was not seen.
    fn remove(&mut self, key: AllocationKey, start: u64) -> Option<Allocation> {
        let earlier = self.earlier.remove(&key);
        let frees_earlier = |live: &Allocation| start < live.end;
        match (earlier, self.live.get(&key)) {
            (Some(earlier), Some(live)) if frees_earlier(live) => Some(earlier),
            _ => self.live.remove(&key),
        }
    }
}

fn space(kind: u32) -> Space {
    match kind {
        it if it == AllocKind::Virtual as u32 => Space::Handle,
        it if it == AllocKind::Mapped as u32 => Space::Mapping,
        it if it == AllocKind::Registered as u32 => Space::Registered,
        _ => Space::Address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_wire::events::host::{Alloc, Free};

    fn alloc(address: u64, bytes: u64, end: u64) -> HostEventRecord {
        Alloc { address, bytes, end, kind: AllocKind::Device as u32, has_address: 1, ..Alloc::default() }.into()
    }

    fn free(address: u64, start: u64) -> HostEventRecord {
        Free { address, start, end: start + 5, kind: AllocKind::Device as u32, ..Free::default() }.into()
    }

    fn freed(memory: &mut Allocations, it: HostEventRecord) -> Option<u64> {
        memory.on_event(&it).map(|it| it.bytes)
    }

    #[test]
    fn a_free_has_the_size_of_its_allocation_once() {
        let mut memory = Allocations::default();
        memory.on_event(&alloc(0x100, 64, 10));
        assert_eq!(freed(&mut memory, free(0x200, 20)), None);
        assert_eq!(freed(&mut memory, free(0x100, 20)), Some(64));
        assert_eq!(freed(&mut memory, free(0x100, 30)), None);
    }

    #[test]
    fn an_address_reused_before_its_free_returned_keeps_both_sizes() {
        let mut memory = Allocations::default();
        memory.on_event(&alloc(0x100, 64, 10));
        // Freed from 18 to 23; allocated again, by another thread, at 20.
        memory.on_event(&alloc(0x100, 128, 20));
        assert_eq!(freed(&mut memory, free(0x100, 18)), Some(64));
        assert_eq!(freed(&mut memory, free(0x100, 30)), Some(128));
    }

    #[test]
    fn an_allocation_whose_free_was_not_seen_is_replaced() {
        let mut memory = Allocations::default();
        memory.on_event(&alloc(0x100, 64, 10));
        memory.on_event(&alloc(0x100, 128, 20));
        assert_eq!(freed(&mut memory, free(0x100, 30)), Some(128));
        assert_eq!(freed(&mut memory, free(0x100, 40)), None);
    }

    #[test]
    fn a_handle_is_no_address_and_a_failed_call_changes_nothing() {
        let mut memory = Allocations::default();
        let handle = Alloc { kind: AllocKind::Virtual as u32, ..into_alloc(alloc(0x100, 64, 10)) };
        memory.on_event(&handle.into());
        assert_eq!(freed(&mut memory, free(0x100, 20)), None);
        memory.on_event(&Alloc { result: 2, has_address: 0, ..into_alloc(alloc(0x300, 64, 10)) }.into());
        assert_eq!(freed(&mut memory, free(0x300, 20)), None);
        memory.on_event(&alloc(0x400, 32, 30));
        let failed = Free { address: 0x400, start: 40, end: 41, kind: 1, result: 1, ..Free::default() };
        assert_eq!(freed(&mut memory, failed.into()), None);
        assert_eq!(freed(&mut memory, free(0x400, 50)), Some(32));
    }

    fn into_alloc(it: HostEventRecord) -> Alloc {
        match it {
            HostEventRecord::Alloc(it) => it,
            other => panic!("{other:?}"),
        }
    }
}
