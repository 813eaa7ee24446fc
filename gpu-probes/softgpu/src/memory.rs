//! Memory: what is allocated, reserved, mapped and registered, and where an address lies.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::abi::{Status, error, memory_kind};

/// Total memory of the device; allocations beyond it fail.
pub(crate) const TOTAL_MEMORY: usize = 8 << 30;

pub(crate) static MEMORY: Memory = Memory {
    device: Mutex::new(BTreeMap::new()),
    pinned: Mutex::new(BTreeMap::new()),
    registered: Mutex::new(BTreeMap::new()),
    created: Mutex::new(BTreeMap::new()),
    reserved: Mutex::new(BTreeMap::new()),
    mapped: Mutex::new(BTreeMap::new()),
    managed: Mutex::new(BTreeMap::new()),
};

/// Device memory (host memory here) and pinned host memory.
pub(crate) struct Memory {
    device: Mutex<BTreeMap<usize, usize>>,
    pinned: Mutex<BTreeMap<usize, usize>>,
    /// Memory of the program that it has registered.
    registered: Mutex<BTreeMap<usize, usize>>,
    /// Sizes of memory without an address, by handle.
    created: Mutex<BTreeMap<usize, usize>>,
    /// Reserved addresses, and those of them where memory is mapped.
    reserved: Mutex<BTreeMap<usize, usize>>,
    mapped: Mutex<BTreeMap<usize, usize>>,
    /// Allocations in `device` that the host uses too.
    managed: Mutex<BTreeMap<usize, usize>>,
}

impl Memory {
    /// Allocates `size` bytes of zeroed device memory.
    pub(crate) fn allocate(&self, size: usize) -> Result<usize, i32> {
        if size == 0 {
            return Err(error::INVALID_VALUE);
        }
        if self.used().saturating_add(size) > TOTAL_MEMORY {
            return Err(error::OUT_OF_MEMORY);
        }
        insert(&self.device, size)
    }

    /// Allocates managed memory, which the host uses too.
    pub(crate) fn allocate_managed(&self, size: usize) -> Result<usize, i32> {
        let address = self.allocate(size)?;
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
        Ok(address)
    }

    /// Returns address and size of each managed allocation.
    pub(crate) fn managed_allocations(&self) -> Vec<(usize, usize)> {
        let managed = self.managed.lock().unwrap_or_else(PoisonError::into_inner);
        managed.iter().map(|(address, size)| (*address, *size)).collect()
    }

    pub(crate) fn free(&self, address: usize) -> Status {
        self.managed.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        if address == 0 { Ok(()) } else { remove(&self.device, address) }
    }

    pub(crate) fn allocate_pinned(&self, size: usize) -> Result<usize, i32> {
        insert(&self.pinned, size)
    }

    pub(crate) fn free_pinned(&self, address: usize) -> Status {
        remove(&self.pinned, address)
    }

    /// Registers memory of the program.
    pub(crate) fn register(&self, address: usize, size: usize) -> Status {
        if address == 0 || size == 0 {
            return Err(error::INVALID_VALUE);
        }
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        match registered.insert(address, size) {
            None => Ok(()),
            Some(before) => {
                registered.insert(address, before);
                Err(error::HOST_MEMORY_ALREADY_REGISTERED)
            }
        }
    }

    pub(crate) fn unregister(&self, address: usize) -> Status {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        registered.remove(&address).map(drop).ok_or(error::HOST_MEMORY_NOT_REGISTERED)
    }

    /// Creates memory without an address; returns its handle. Where it is mapped, the reserved addresses are the
    /// memory.
    pub(crate) fn create(&self, size: usize) -> Result<usize, i32> {
        if size == 0 {
            return Err(error::INVALID_VALUE);
        }
        if self.used().saturating_add(size) > TOTAL_MEMORY {
            return Err(error::OUT_OF_MEMORY);
        }
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = created.keys().next_back().map_or(1, |it| it + 1);
        created.insert(handle, size);
        Ok(handle)
    }

    pub(crate) fn release(&self, handle: usize) -> Status {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        created.remove(&handle).map(drop).ok_or(error::INVALID_VALUE)
    }

    pub(crate) fn reserve(&self, size: usize) -> Result<usize, i32> {
        insert(&self.reserved, size)
    }

    pub(crate) fn unreserve(&self, address: usize, size: usize) -> Status {
        match around(&self.reserved, address) {
            Some(range) if range == (address, size) => remove(&self.reserved, address),
            _ => Err(error::INVALID_VALUE),
        }
    }

    pub(crate) fn map(&self, address: usize, size: usize, handle: usize) -> Status {
        let created = self.created.lock().unwrap_or_else(PoisonError::into_inner).get(&handle).copied();
        let is_reserved = around(&self.reserved, address).is_some_and(|(base, all)| address - base + size <= all);
        if created.is_none_or(|it| it < size) || !is_reserved {
            return Err(error::INVALID_VALUE);
        }
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
        Ok(())
    }

    pub(crate) fn unmap(&self, address: usize, size: usize) -> Status {
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        match mapped.get(&address) {
            Some(it) if *it == size => {
                mapped.remove(&address);
                Ok(())
            }
            _ => Err(error::INVALID_VALUE),
        }
    }

    /// Returns the base and size of the allocation that holds an address.
    pub(crate) fn range(&self, address: usize) -> Option<(usize, usize)> {
        around(&self.device, address).or_else(|| around(&self.mapped, address))
    }

    /// Checks that the whole range lies in one allocation.
    pub(crate) fn check(&self, address: usize, bytes: usize) -> Status {
        let inside = self.range(address).is_some_and(|(base, size)| bytes <= size - (address - base));
        if inside || bytes == 0 { Ok(()) } else { Err(error::INVALID_VALUE) }
    }

    /// Checks a range that the device writes; pinned host memory is allowed.
    pub(crate) fn check_writable(&self, address: usize, bytes: usize) -> Status {
        let pinned = around(&self.pinned, address);
        if pinned.is_some_and(|(base, size)| bytes <= size - (address - base)) {
            return Ok(());
        }
        self.check(address, bytes)
    }

    /// Returns the `CUpti_ActivityMemoryKind` of an address.
    pub(crate) fn kind(&self, address: usize) -> u8 {
        if around(&self.managed, address).is_some() {
            memory_kind::MANAGED
        } else if self.range(address).is_some() {
            memory_kind::DEVICE
        } else if around(&self.pinned, address).is_some() {
            memory_kind::PINNED
        } else {
            memory_kind::PAGEABLE
        }
    }

    pub(crate) fn used(&self) -> usize {
        let sum = |it: &Mutex<BTreeMap<usize, usize>>| -> usize {
            it.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
        };
        sum(&self.device) + sum(&self.created)
    }
}

fn layout(size: usize) -> Result<std::alloc::Layout, i32> {
    std::alloc::Layout::from_size_align(size.max(1), 256).map_err(|_| error::OUT_OF_MEMORY)
}

fn insert(map: &Mutex<BTreeMap<usize, usize>>, size: usize) -> Result<usize, i32> {
    // SAFETY: the layout is not of size 0.
    let address = unsafe { std::alloc::alloc_zeroed(layout(size)?) } as usize;
    if address == 0 {
        return Err(error::OUT_OF_MEMORY);
    }
    map.lock().unwrap_or_else(PoisonError::into_inner).insert(address, size);
    Ok(address)
}

fn remove(map: &Mutex<BTreeMap<usize, usize>>, address: usize) -> Status {
    let size = map.lock().unwrap_or_else(PoisonError::into_inner).remove(&address).ok_or(error::INVALID_VALUE)?;
    // SAFETY: `insert` made it with this layout, and it left the map just now.
    unsafe { std::alloc::dealloc(address as *mut u8, layout(size)?) };
    Ok(())
}

fn around(map: &Mutex<BTreeMap<usize, usize>>, address: usize) -> Option<(usize, usize)> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    let (&base, &size) = map.range(..=address).next_back()?;
    (address - base < size).then_some((base, size))
}
