//! Everything that a program can reach by pointer, with the checks.

use super::env::Atomic;
use super::map::Map;
use super::pointer::{self, CTX, RECORDS, STACK, VALUES};
use crate::insn::STACK_BYTES;

/// A run's memory.
pub(super) struct RunMemory<'a> {
    pub(super) local: Local<'a>,
    pub(super) maps: &'a mut [Map],
}

/// The memory outside maps: separate, so that it can be read while a map changes.
pub(super) struct Local<'a> {
    pub(super) stack: [u8; STACK_BYTES],
    pub(super) calls: &'a mut OpenCalls,
    pub(super) ctx: &'a [u8],
    pub(super) records: &'a mut ReservedRecords,
}

/// Calls of functions that have not returned, the outermost first.
#[derive(Default)]
pub(super) struct OpenCalls {
    pub(super) callers: Vec<Caller>,
    /// Stacks of the called functions. They follow the outermost one's in the address space.
    pub(super) stacks: Vec<u8>,
}

/// What a called function gives back to its caller.
pub(super) struct Caller {
    /// R6 to R10.
    pub(super) saved: [u64; 5],
    pub(super) pc: usize,
}

impl OpenCalls {
    /// Forgets calls of a run that did not end well.
    #[inline]
    pub(super) fn forget(&mut self) {
        self.callers.clear();
        self.stacks.clear();
    }
}

impl RunMemory<'_> {
    #[inline(always)]
    pub(super) fn load<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        self.bytes(address, N)?.first_chunk().copied()
    }

    #[inline(always)]
    pub(super) fn store<const N: usize>(&mut self, address: u64, value: [u8; N]) -> Option<()> {
        *self.bytes_mut(address, N)?.first_chunk_mut()? = value;
        Some(())
    }

    /// Runs an atomic instruction where a map lives; `None` if that is here.
    #[inline(always)]
    pub(super) fn atomic_elsewhere(&mut self, address: u64, bytes: u8, atomic: Atomic) -> Option<u64> {
        self.maps.get_mut(map_of(address)?)?.atomic_elsewhere(pointer::offset(address), bytes, atomic)
    }

    #[inline(always)]
    pub(super) fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        match map_of(address) {
            Some(map) => self.maps.get(map)?.bytes(pointer::offset(address), len),
            None => self.local.bytes(address, len),
        }
    }

    #[inline(always)]
    pub(super) fn bytes_mut(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        match map_of(address) {
            Some(map) => self.maps.get_mut(map)?.bytes_mut(pointer::offset(address), len),
            None => self.local.bytes_mut(address, len),
        }
    }
}

#[inline(always)]
fn map_of(address: u64) -> Option<usize> {
    pointer::region(address).checked_sub(VALUES).map(|it| it as usize)
}

impl Local<'_> {
    #[inline(always)]
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let offset = pointer::offset(address) as usize;
        match pointer::region(address) {
            STACK => match self.stack.get(offset..offset.checked_add(len)?) {
                None => self.calls.stacks.get(in_called(offset, len)?),
                own => own,
            },
            CTX => self.ctx.get(offset..offset.checked_add(len)?),
            RECORDS => self.records.range(offset, len).map(|(data, range)| &data[range]),
            _ => None,
        }
    }

    #[inline(always)]
    fn bytes_mut(&mut self, address: u64, len: usize) -> Option<&mut [u8]> {
        let offset = pointer::offset(address) as usize;
        match pointer::region(address) {
            STACK => match self.stack.get_mut(offset..offset.checked_add(len)?) {
                None => self.calls.stacks.get_mut(in_called(offset, len)?),
                own => own,
            },
            RECORDS => self.records.bytes_mut(offset, len),
            _ => None,
        }
    }

    /// Returns bytes that stay readable while maps change: a map's bytes are copied to `copy`.
    #[inline(always)]
    pub(super) fn argument<'s>(
        &'s self,
        maps: &[Map],
        copy: &'s mut Vec<u8>,
        address: u64,
        len: usize,
    ) -> Option<&'s [u8]> {
        let Some(map) = map_of(address) else { return self.bytes(address, len) };
        copy.clear();
        copy.extend_from_slice(maps.get(map)?.bytes(pointer::offset(address), len)?);
        Some(copy)
    }
}

/// Returns the place in the stacks of called functions, unless it spans two of them.
#[cold]
fn in_called(offset: usize, len: usize) -> Option<std::ops::Range<usize>> {
    let start = offset.checked_sub(STACK_BYTES)?;
    let end = start.checked_add(len)?;
    (len == 0 || start / STACK_BYTES == (end - 1) / STACK_BYTES).then_some(start..end)
}

/// Ring buffer records that a run has reserved and not yet submitted.
#[derive(Default)]
pub(super) struct ReservedRecords {
    list: Vec<ReservedRecord>,
}

struct ReservedRecord {
    /// Index of the ring buffer; `None` once the record is submitted or discarded.
    map: Option<usize>,
    data: Vec<u8>,
}

impl ReservedRecords {
    #[inline]
    pub(super) fn forget(&mut self) {
        self.list.iter_mut().for_each(|it| it.map = None);
    }

    /// Returns the address of a new, zeroed record; `None` if too many are reserved.
    pub(super) fn reserve(&mut self, map: usize, len: usize) -> Option<u64> {
        let at = match self.list.iter().position(|it| it.map.is_none()) {
            Some(at) => at,
            None if self.list.len() == pointer::MAX_RECORDS => return None,
            None => {
                self.list.push(ReservedRecord { map: None, data: Vec::new() });
                self.list.len() - 1
            }
        };
        let record = &mut self.list[at];
        record.map = Some(map);
        record.data.clear();
        record.data.resize(len, 0);
        Some(pointer::make(RECORDS, (at as u64) << pointer::RECORD_SHIFT))
    }

    /// Ends the reservation at `address`; returns its ring buffer and bytes.
    pub(super) fn take(&mut self, address: u64) -> Option<(usize, &[u8])> {
        let (at, within) = split(pointer::offset(address) as usize);
        let record = self.list.get_mut(at)?;
        if pointer::region(address) != RECORDS || within != 0 {
            return None;
        }
        Some((record.map.take()?, &record.data))
    }

    fn range(&self, offset: usize, len: usize) -> Option<(&[u8], std::ops::Range<usize>)> {
        let (at, within) = split(offset);
        let record = self.list.get(at).filter(|it| it.map.is_some())?;
        let range = within..within.checked_add(len)?;
        (range.end <= record.data.len()).then_some((&record.data, range))
    }

    fn bytes_mut(&mut self, offset: usize, len: usize) -> Option<&mut [u8]> {
        let (at, within) = split(offset);
        let record = self.list.get_mut(at).filter(|it| it.map.is_some())?;
        record.data.get_mut(within..within.checked_add(len)?)
    }
}

fn split(offset: usize) -> (usize, usize) {
    (offset >> pointer::RECORD_SHIFT, offset & ((1 << pointer::RECORD_SHIFT) - 1))
}
