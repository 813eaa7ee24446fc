//! The engine's own maps.
//!
//! A map's values are in one arena, each at a multiple of 8 bytes; a hash finds a value's slot
//! through an open-addressing index. An element keeps its slot while it lives, so a program's
//! pointer stays valid when the arena grows. After a delete it points to bytes that the next
//! element may use, as it may in Linux.

use std::hash::Hasher as _;
use std::ops::Range;

use rustc_hash::FxHasher;

use super::env::{Atomic, E2BIG, EEXIST, EINVAL, ENOENT, Modification, Number, RemoteMap};
use super::pointer::OFFSET_BITS;
use crate::helper::{UPDATE_EXIST, UPDATE_NOEXIST};
use crate::image::{MapKind, MapSpec, READ_ONLY};

/// Maximum size of a full native map.
const MAX_MAP_BYTES: u64 = 1 << 30;
/// Maximum number of remote values that a run may hold.
const MAX_REMOTE_VALUES: usize = 1024;
/// Maximum key size, Linux's own limit for a program's stack.
const MAX_KEY_BYTES: u32 = 512;

/// A map as the engine's programs see it.
pub(super) struct Map {
    pub(super) key_size: usize,
    pub(super) value_size: usize,
    pub(super) max_entries: u32,
    /// Bytes from one value to the next in `values`.
    stride: usize,
    /// Log2 of the distance between values in the programs' address space: more than twice the
    /// value, so that an overrun on either side never reaches another one.
    pub(super) shift: u32,
    values: Vec<u8>,
    /// Whether programs can't change it.
    pub(super) is_read_only: bool,
    pub(super) store: Store,
}

/// How a map stores its values. One byte says which it is, which is read at each access.
#[repr(u8)]
pub(super) enum Store {
    Array,
    PerThread(Threads),
    Hash(HashIndex),
    /// Positions of the inner maps in the list of all maps.
    Maps(Range<usize>),
    /// Position of the inner map that every key returns.
    OneMap(usize),
    Remote(Remote),
    /// Ring buffers and stack traces, whose contents the environment holds.
    Outside,
    /// Not used by any program of the engine.
    Unused,
}

/// The threads of an array with a value for each. Slots are those of the first thread, then those of the next.
#[derive(Clone, Copy)]
pub(super) struct Threads {
    /// The thread that the program runs in; it may have no slots.
    current: u64,
    /// Maximum number of threads with slots.
    most: u64,
}

/// The result of a program's lookup.
pub(super) enum LookedUp {
    /// The slot of a value.
    Value(u32),
    /// Position of an inner map.
    Map(usize),
    Nothing,
    /// More values of a remote map than a run may hold.
    TooMany,
}

impl Map {
    /// Creates a map that lives elsewhere.
    pub(super) fn remote(spec: &MapSpec, handle: Box<dyn RemoteMap>) -> Result<Map, String> {
        Map::empty(spec, Store::Remote(Remote::new(handle)))
    }

    /// Creates a map that no program uses.
    pub(super) fn unused(spec: &MapSpec) -> Map {
        Map {
            key_size: spec.key_size as usize,
            value_size: 0,
            max_entries: 0,
            stride: 8,
            shift: 4,
            values: Vec::new(),
            is_read_only: false,
            store: Store::Unused,
        }
    }

    /// Creates a map of the engine; `inner` gives the positions of an array's inner maps.
    pub(super) fn native(spec: &MapSpec, inner: Range<usize>) -> Result<Map, String> {
        match spec.kind {
            MapKind::Array | MapKind::PercpuArray => Map::array(spec),
            MapKind::Hash | MapKind::PercpuHash => Map::empty(spec, Store::Hash(HashIndex::new(false))),
            MapKind::LruHash | MapKind::LruPercpuHash => Map::empty(spec, Store::Hash(HashIndex::new(true))),
            MapKind::ArrayOfMaps => Ok(Map { store: Store::Maps(inner), ..Map::array_shape(spec)? }),
            MapKind::StackTrace | MapKind::Ringbuf => {
                Ok(Map { max_entries: spec.max_entries, store: Store::Outside, ..Map::unused(spec) })
            }
            MapKind::EventRing => {
                let (value_size, max_entries) = (spec.value_size as usize, spec.max_entries);
                Ok(Map { value_size, max_entries, store: Store::Outside, ..Map::unused(spec) })
            }
            MapKind::PerThreadArray => Map::per_thread(spec),
            MapKind::PerfEventArray | MapKind::Foreign => {
                Err("only programs in Linux can use a map of its type".into())
            }
            // Others decide at run time which maps a hash holds. Here every key returns the same
            // one; an engine that must tell them apart is given a handle.
            MapKind::HashOfMaps => Ok(Map { max_entries: 1, store: Store::OneMap(inner.start), ..Map::unused(spec) }),
        }
    }

    fn array(spec: &MapSpec) -> Result<Map, String> {
        let mut map = Map::array_shape(spec)?;
        map.values = vec![0; map.stride * spec.max_entries as usize];
        Ok(map)
    }

    /// Creates an array with a value for each of as many threads as there is room for.
    fn per_thread(spec: &MapSpec) -> Result<Map, String> {
        let map = Map::array_shape(spec)?;
        let entries = u64::from(spec.max_entries);
        let by_size = MAX_MAP_BYTES / (map.stride as u64 * entries);
        let by_address = (1 << (OFFSET_BITS - map.shift)) / entries;
        let by_slot = u64::from(u32::MAX) / entries;
        let most = by_size.min(by_address).min(by_slot);
        Ok(Map { store: Store::PerThread(Threads { current: 0, most }), ..map })
    }

    /// Sets the GPU thread that the following accesses are in.
    pub(super) fn set_thread(&mut self, number: u64) {
        if let Store::PerThread(threads) = &mut self.store {
            threads.current = number;
        }
    }

    fn array_shape(spec: &MapSpec) -> Result<Map, String> {
        if spec.key_size != 4 {
            return Err(format!("an array's key has 4 bytes, not {}", spec.key_size));
        }
        Map::empty(spec, Store::Array)
    }

    fn empty(spec: &MapSpec, store: Store) -> Result<Map, String> {
        if spec.key_size == 0 || spec.value_size == 0 || spec.max_entries == 0 {
            return Err("key size, value size and capacity must be larger than 0".into());
        }
        if spec.key_size > MAX_KEY_BYTES {
            return Err(format!("a key of {} bytes is longer than {MAX_KEY_BYTES}", spec.key_size));
        }
        let stride = u64::from(spec.value_size).next_multiple_of(8);
        let bytes = (stride + u64::from(spec.key_size)) * u64::from(spec.max_entries);
        let shift = stride.next_power_of_two().trailing_zeros() + 1;
        let slots = u64::from(spec.max_entries).max(MAX_REMOTE_VALUES as u64);
        if bytes > MAX_MAP_BYTES || slots.saturating_mul(1 << shift) > 1 << OFFSET_BITS {
            return Err(format!("{bytes} bytes when full are more than {MAX_MAP_BYTES}"));
        }
        Ok(Map {
            key_size: spec.key_size as usize,
            value_size: spec.value_size as usize,
            max_entries: spec.max_entries,
            stride: stride as usize,
            shift,
            values: Vec::new(),
            is_read_only: spec.flags & READ_ONLY != 0,
            store,
        })
    }

    /// Returns the arena range of `len` bytes at an offset of the programs' address space.
    #[inline(always)]
    fn range(&self, offset: u64, len: usize) -> Option<Range<usize>> {
        let slot = (offset >> self.shift) as usize;
        let within = (offset & ((1 << self.shift) - 1)) as usize;
        if within.checked_add(len)? > self.value_size {
            return None;
        }
        let start = slot * self.stride + within;
        Some(start..start + len)
    }

    #[inline(always)]
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.values.get(self.range(offset, len)?)
    }

    /// Returns bytes for the caller to change.
    #[inline(always)]
    pub(super) fn bytes_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        let range = self.range(offset, len)?;
        if self.is_read_only {
            return None;
        }
        if let Store::Remote(remote) = &mut self.store {
            *remote.dirty.get_mut((offset >> self.shift) as usize)? = true;
        }
        self.values.get_mut(range)
    }

    fn value(&self, slot: u32) -> Range<usize> {
        let start = slot as usize * self.stride;
        start..start + self.value_size
    }

    /// Looks up a key of the map's key size for a program.
    #[inline(always)]
    pub(super) fn find(&mut self, key: &[u8]) -> LookedUp {
        let found = match &mut self.store {
            Store::Hash(index) => index.touch(key),
            Store::Array => array_slot(key, self.max_entries),
            _ => return self.find_elsewhere(key),
        };
        found.map_or(LookedUp::Nothing, LookedUp::Value)
    }

    #[inline(never)]
    fn find_elsewhere(&mut self, key: &[u8]) -> LookedUp {
        let found = match &self.store {
            Store::PerThread(_) => self.thread_slot(key),
            Store::Maps(inner) => {
                return match array_slot(key, self.max_entries) {
                    Some(at) => LookedUp::Map(inner.start + at as usize),
                    None => LookedUp::Nothing,
                };
            }
            Store::OneMap(inner) => return LookedUp::Map(*inner),
            Store::Remote(_) => return self.fetch(key),
            Store::Hash(_) | Store::Array | Store::Outside | Store::Unused => None,
        };
        found.map_or(LookedUp::Nothing, LookedUp::Value)
    }

    /// Returns the current thread's slot of an index, and makes room for it; `None` if there is none.
    fn thread_slot(&mut self, key: &[u8]) -> Option<u32> {
        let Store::PerThread(threads) = self.store else { return None };
        let index = array_slot(key, self.max_entries)?;
        if threads.current >= threads.most {
            return None;
        }
        let first = threads.current as usize * self.max_entries as usize;
        let end = (first + self.max_entries as usize) * self.stride;
        if self.values.len() < end {
            self.values.resize(end, 0);
        }
        u32::try_from(first + index as usize).ok()
    }

    fn fetch(&mut self, key: &[u8]) -> LookedUp {
        self.write_back();
        let (stride, size) = (self.stride, self.value_size);
        let Store::Remote(remote) = &mut self.store else { return LookedUp::Nothing };
        let slot = remote.slot_of(key).unwrap_or(remote.dirty.len());
        if slot >= MAX_REMOTE_VALUES {
            return LookedUp::TooMany;
        }
        let start = slot * stride;
        if self.values.len() < start + stride {
            self.values.resize(start + stride, 0);
        }
        if !remote.handle.lookup(key, &mut self.values[start..start + size]) {
            return LookedUp::Nothing;
        }
        if slot == remote.dirty.len() {
            remote.keys.extend_from_slice(key);
            remote.dirty.push(false);
        }
        LookedUp::Value(slot as u32)
    }

    /// Writes changed copies of remote values back. An element deleted meanwhile stays deleted.
    pub(super) fn write_back(&mut self) {
        let (stride, size) = (self.stride, self.value_size);
        let Store::Remote(remote) = &mut self.store else { return };
        let keys = remote.keys.chunks_exact(self.key_size);
        for (slot, (key, dirty)) in keys.zip(&mut remote.dirty).enumerate() {
            if std::mem::take(dirty) {
                let value = &self.values[slot * stride..][..size];
                remote.handle.update(key, value, UPDATE_EXIST as u64);
                remote.has_overwritten = true;
            }
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        matches!(self.store, Store::Remote(_))
    }

    /// Whether it is a hash of the engine that programs can change.
    pub(super) fn is_own_hash(&self) -> bool {
        matches!(self.store, Store::Hash(_)) && !self.is_read_only
    }

    /// Adds to a word of a value, wrapping around.
    #[inline(always)]
    pub(super) fn add_to_slot(&mut self, slot: u32, offset: usize, number: u64) {
        let start = slot as usize * self.stride + offset;
        if let Some(word) = self.values.get_mut(start..).and_then(|it| it.first_chunk_mut()) {
            *word = u64::from_le_bytes(*word).wrapping_add(number).to_le_bytes();
        }
    }

    pub(super) fn has_overwritten(&self) -> bool {
        matches!(&self.store, Store::Remote(remote) if remote.has_overwritten)
    }

    /// Runs an atomic instruction on a remote value, and reads the copy that the run holds again. `None` if the map is not
    /// remote, or can't.
    #[inline(always)]
    pub(super) fn atomic_elsewhere(&mut self, offset: u64, bytes: u8, atomic: Atomic) -> Option<u64> {
        if !self.is_remote() {
            return None;
        }
        self.atomic_remote(offset, bytes, atomic)
    }

    #[cold]
    fn atomic_remote(&mut self, offset: u64, bytes: u8, atomic: Atomic) -> Option<u64> {
        self.range(offset, bytes.into())?;
        self.write_back();
        let slot = (offset >> self.shift) as usize;
        let at = u32::try_from(offset & ((1 << self.shift) - 1)).ok()?;
        let (stride, size) = (self.stride, self.value_size);
        let Store::Remote(remote) = &mut self.store else { return None };
        let key = remote.keys.chunks_exact(self.key_size).nth(slot)?;
        let old = remote.handle.atomic(key, Number { at, bytes }, atomic)?;
        remote.handle.lookup(key, &mut self.values[slot * stride..][..size]);
        Some(old)
    }

    /// Forgets the last run's remote values before a run.
    pub(super) fn forget_remote_values(&mut self) {
        if let Store::Remote(remote) = &mut self.store {
            remote.keys.clear();
            remote.dirty.clear();
        }
    }

    /// Returns 0 or a negative errno, checking in Linux's order.
    pub(super) fn update(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        if key.len() != self.key_size || value.len() != self.value_size {
            return EINVAL;
        }
        let slot = match &mut self.store {
            Store::Remote(_) => return self.update_remote(key, value, flags),
            Store::Maps(_) | Store::OneMap(_) | Store::Outside | Store::Unused => return EINVAL,
            _ if flags > UPDATE_EXIST as u64 => return EINVAL,
            Store::PerThread(_) => match self.thread_slot(key) {
                None => return E2BIG,
                Some(_) if flags == UPDATE_NOEXIST as u64 => return EEXIST,
                Some(slot) => slot,
            },
            Store::Array => match array_slot(key, self.max_entries) {
                None => return E2BIG,
                Some(_) if flags == UPDATE_NOEXIST as u64 => return EEXIST,
                Some(slot) => slot,
            },
            Store::Hash(index) => match index.slot_to_write(key, flags, self.max_entries) {
                Ok(slot) => slot,
                Err(errno) => return errno,
            },
        };
        let range = self.value(slot);
        let end = range.start + self.stride;
        if self.values.len() < end {
            self.values.resize(end, 0);
        }
        self.values[range].copy_from_slice(value);
        0
    }

    fn update_remote(&mut self, key: &[u8], value: &[u8], flags: u64) -> i64 {
        self.write_back();
        let Store::Remote(remote) = &mut self.store else { return EINVAL };
        let answer = remote.handle.update(key, value, flags);
        if let (0, Some(slot)) = (answer, remote.slot_of(key)) {
            let range = self.value(slot as u32);
            self.values[range].copy_from_slice(value);
        }
        answer
    }

    /// Returns 0 or a negative errno.
    pub(super) fn modify(&mut self, key: &[u8], change: Modification) -> i64 {
        if key.len() != self.key_size || self.value_size < size_of::<u64>() {
            return EINVAL;
        }
        match &self.store {
            Store::Remote(_) => self.modify_remote(key, change),
            Store::Array | Store::PerThread(_) | Store::Hash(_) => self.modify_own(key, change),
            Store::Maps(_) | Store::OneMap(_) | Store::Outside | Store::Unused => EINVAL,
        }
    }

    fn modify_own(&mut self, key: &[u8], change: Modification) -> i64 {
        if let LookedUp::Nothing = self.find(key) {
            let zeros = vec![0; self.value_size];
            match self.update(key, &zeros, UPDATE_NOEXIST as u64) {
                0 => {}
                errno => return errno,
            }
        }
        let LookedUp::Value(slot) = self.find(key) else { return EINVAL };
        let range = self.value(slot);
        change.apply_to(&mut self.values[range]);
        0
    }

    /// Reads a copy that the run holds again afterwards.
    fn modify_remote(&mut self, key: &[u8], change: Modification) -> i64 {
        self.write_back();
        let (stride, size) = (self.stride, self.value_size);
        let Store::Remote(remote) = &mut self.store else { return EINVAL };
        let answer = remote.handle.modify(key, size, change);
        if let Some(slot) = remote.slot_of(key) {
            remote.handle.lookup(key, &mut self.values[slot * stride..][..size]);
        }
        answer
    }

    /// Returns 0 or a negative errno.
    pub(super) fn delete(&mut self, key: &[u8]) -> i64 {
        if key.len() != self.key_size {
            return EINVAL;
        }
        self.write_back();
        match &mut self.store {
            Store::Hash(index) => match index.remove(key) {
                Some(_) => 0,
                None => ENOENT,
            },
            Store::Remote(remote) => remote.handle.delete(key),
            Store::Array | Store::PerThread(_) | Store::Maps(_) | Store::OneMap(_) | Store::Outside | Store::Unused => {
                EINVAL
            }
        }
    }

    /// Returns a value by key, for the engine's owner.
    pub(super) fn peek(&self, key: &[u8]) -> Option<&[u8]> {
        if key.len() != self.key_size {
            return None;
        }
        let slot = match &self.store {
            Store::Hash(index) => index.find(key)?,
            Store::Array => array_slot(key, self.max_entries)?,
            _ => return None,
        };
        self.values.get(self.value(slot))
    }

    pub(super) fn for_each(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        match &self.store {
            Store::Hash(index) => {
                for (slot, key) in index.elements(self.key_size) {
                    f(key, &self.values[self.value(slot)]);
                }
            }
            Store::Array => {
                for slot in 0..self.max_entries {
                    f(&slot.to_le_bytes(), &self.values[self.value(slot)]);
                }
            }
            Store::PerThread(_) => {
                let n_slots = self.values.len() / self.stride;
                for slot in 0..n_slots as u32 {
                    let (thread, index) = (slot / self.max_entries, slot % self.max_entries);
                    let key = [index.to_le_bytes(), thread.to_le_bytes()].concat();
                    f(&key, &self.values[self.value(slot)]);
                }
            }
            _ => {}
        }
    }

    pub(super) fn evicted(&self) -> u64 {
        match &self.store {
            Store::Hash(index) => index.evicted,
            _ => 0,
        }
    }

    /// Removes the elements of a hash, zeroes the values of an array.
    pub(super) fn clear(&mut self) {
        match &mut self.store {
            Store::Hash(index) => {
                index.clear();
                self.values.clear();
            }
            Store::Array | Store::PerThread(_) => self.values.fill(0),
            _ => {}
        }
    }

    /// Returns the number of elements of a hash or entries of an array.
    pub(super) fn len(&self) -> usize {
        match &self.store {
            Store::Hash(index) => index.live,
            Store::Array | Store::Maps(_) => self.max_entries as usize,
            _ => 0,
        }
    }
}

fn array_slot(key: &[u8], max_entries: u32) -> Option<u32> {
    let index = u32::from_le_bytes(key.try_into().ok()?);
    (index < max_entries).then_some(index)
}

/// Copies of elements that live elsewhere: slot `i` has the `i`-th key.
pub(super) struct Remote {
    handle: Box<dyn RemoteMap>,
    keys: Vec<u8>,
    dirty: Vec<bool>,
    /// Whether a copy was ever written back.
    has_overwritten: bool,
}

impl Remote {
    fn new(handle: Box<dyn RemoteMap>) -> Self {
        Remote { handle, keys: Vec::new(), dirty: Vec::new(), has_overwritten: false }
    }

    fn slot_of(&self, key: &[u8]) -> Option<usize> {
        self.keys.chunks_exact(key.len()).position(|it| it == key)
    }
}

/// Maps keys to slots: linear probing over `(hash, slot + 1)` pairs, at most half full. Deletion
/// moves followers back, so there are no tombstones.
pub(super) struct HashIndex {
    buckets: Vec<u64>,
    /// Key of each slot, one after another.
    keys: Vec<u8>,
    slots: Vec<SlotUse>,
    free: Vec<u32>,
    live: usize,
    evicts: bool,
    /// Elements evicted so far, including before the map was cleared.
    evicted: u64,
    /// Where the search for an eviction candidate continues (second chance).
    hand: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotUse {
    Free,
    Live,
    /// Live and used since the hand last passed.
    Used,
}

impl HashIndex {
    fn new(evicts: bool) -> Self {
        HashIndex {
            buckets: vec![0; 16],
            keys: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
            evicts,
            evicted: 0,
            hand: 0,
        }
    }

    fn clear(&mut self) {
        self.buckets.fill(0);
        self.keys.clear();
        self.slots.clear();
        self.free.clear();
        self.live = 0;
        self.hand = 0;
    }

    fn mask(&self) -> usize {
        self.buckets.len() - 1
    }

    #[inline(always)]
    fn key(&self, slot: u32, len: usize) -> &[u8] {
        &self.keys[slot as usize * len..][..len]
    }

    /// Returns the bucket that holds the key, or the empty one where it would go.
    #[inline(always)]
    fn bucket(&self, key: &[u8], hash: u32) -> (usize, Option<u32>) {
        let mut at = hash as usize & self.mask();
        loop {
            let entry = self.buckets[at];
            if entry == 0 {
                return (at, None);
            }
            let slot = (entry as u32).wrapping_sub(1);
            if (entry >> 32) as u32 == hash && same(self.key(slot, key.len()), key) {
                return (at, Some(slot));
            }
            at = (at + 1) & self.mask();
        }
    }

    #[inline(always)]
    fn find(&self, key: &[u8]) -> Option<u32> {
        let find = |key: &[u8]| self.bucket(key, hash(key)).1;
        // Where the compiler knows the length, it needs no loops over words.
        match key.len() {
            8 => find(&key[..8]),
            16 => find(&key[..16]),
            24 => find(&key[..24]),
            32 => find(&key[..32]),
            _ => find(key),
        }
    }

    #[inline(always)]
    fn touch(&mut self, key: &[u8]) -> Option<u32> {
        let slot = self.find(key)?;
        if self.evicts {
            self.slots[slot as usize] = SlotUse::Used;
        }
        Some(slot)
    }

    fn slot_to_write(&mut self, key: &[u8], flags: u64, max_entries: u32) -> Result<u32, i64> {
        match self.touch(key) {
            Some(_) if flags == UPDATE_NOEXIST as u64 => Err(EEXIST),
            Some(slot) => Ok(slot),
            None if flags == UPDATE_EXIST as u64 => Err(ENOENT),
            None => self.insert(key, max_entries),
        }
    }

    fn insert(&mut self, key: &[u8], max_entries: u32) -> Result<u32, i64> {
        if self.live >= max_entries as usize {
            if !self.evicts {
                return Err(E2BIG);
            }
            self.evict(key.len());
        }
        if (self.live + 1) * 2 > self.buckets.len() {
            self.grow();
        }
        let slot = self.take_slot(key);
        let hash = hash(key);
        let (at, _) = self.bucket(key, hash);
        self.buckets[at] = entry(hash, slot);
        self.live += 1;
        Ok(slot)
    }

    fn take_slot(&mut self, key: &[u8]) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.keys[slot as usize * key.len()..][..key.len()].copy_from_slice(key);
            self.slots[slot as usize] = SlotUse::Live;
            return slot;
        }
        self.keys.extend_from_slice(key);
        self.slots.push(SlotUse::Live);
        self.slots.len() as u32 - 1
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.buckets);
        self.buckets = vec![0; old.len() * 2];
        for entry in old.into_iter().filter(|it| *it != 0) {
            let mut at = (entry >> 32) as usize & self.mask();
            while self.buckets[at] != 0 {
                at = (at + 1) & self.mask();
            }
            self.buckets[at] = entry;
        }
    }

    fn remove(&mut self, key: &[u8]) -> Option<u32> {
        let (at, slot) = self.bucket(key, hash(key));
        let slot = slot?;
        self.close_gap(at);
        self.slots[slot as usize] = SlotUse::Free;
        self.free.push(slot);
        self.live -= 1;
        Some(slot)
    }

    /// Moves back every follower that the gap would make unreachable.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.mask();
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.buckets[at];
            if entry == 0 {
                self.buckets[gap] = 0;
                return;
            }
            let home = (entry >> 32) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.buckets[gap] = entry;
                gap = at;
            }
        }
    }

    /// Evicts an element that was not used since the hand last passed it.
    fn evict(&mut self, key_len: usize) {
        for _ in 0..=2 * self.slots.len() {
            let at = self.hand % self.slots.len().max(1);
            self.hand = at + 1;
            match self.slots[at] {
                SlotUse::Free => {}
                SlotUse::Used => self.slots[at] = SlotUse::Live,
                SlotUse::Live => {
                    let key = self.key(at as u32, key_len).to_vec();
                    self.remove(&key);
                    self.evicted += 1;
                    return;
                }
            }
        }
    }

    /// Iterates over live slots and their keys, lowest slot first.
    fn elements(&self, key_len: usize) -> impl Iterator<Item = (u32, &[u8])> {
        let slots = self.slots.iter().enumerate().filter(|(_, it)| **it != SlotUse::Free);
        slots.map(move |(slot, _)| (slot as u32, self.key(slot as u32, key_len)))
    }
}

fn entry(hash: u32, slot: u32) -> u64 {
    u64::from(hash) << 32 | (u64::from(slot) + 1)
}

/// Keys are short and of equal length: comparing words is faster than a call.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    let ((a_words, a_rest), (b_words, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    a_words.iter().zip(b_words).all(|(a, b)| a == b) && a_rest.iter().zip(b_rest).all(|(a, b)| a == b)
}

#[inline(always)]
fn hash(key: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    let (words, rest) = key.as_chunks::<8>();
    for word in words {
        hasher.write_u64(u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hasher.write_u64(u64::from_le_bytes(word));
    }
    let hash = hasher.finish();
    (hash ^ (hash >> 32)) as u32
}
