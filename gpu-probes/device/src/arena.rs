//! Puts a table, its maps and its ring into one piece of memory, and reads copies of them.
//!
//! What a kernel can write is untrusted: the readers accept any bytes, and never return more elements or records than
//! the memory has room for.

use std::ops::Range;

use crate::layout::{DeviceMap, Storage, descriptor, fingerprint, hash, header, key_words, ring, state};

/// What needs memory on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The maps by their [`xputrace_bytecode::BpfMapId`].
    pub maps: Vec<DeviceMap>,
    /// Sites of all programs.
    pub n_sites: u32,
    /// Slots of the ring, a power of two, or 0 for no ring.
    pub ring_slots: u32,
    /// Threads that per-thread arrays have room for.
    pub n_threads: u64,
}

/// Where everything is, in bytes from the start of the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    needs: Needs,
    losses: u64,
    tail: u64,
    marks: u64,
    slots: u64,
    head: u64,
    maps: Vec<Parts>,
    n_bytes: u64,
}

/// The parts of a map, in bytes from the start of the memory; those that its kind lacks are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    pub states: Range<u64>,
    pub keys: Range<u64>,
    pub values: Range<u64>,
}

/// Why memory can't be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    #[error("the maps and the ring need more memory than there are addresses")]
    TooLarge,
    #[error("a ring of {0} slots: the number is not 0 or a power of two")]
    RingSlots(u32),
}

/// Hands out pieces of memory, one after another.
struct Pieces {
    end: u64,
}

/// Largest alignment that anything needs: counters of different maps are in different cache lines.
const ALIGNMENT: u64 = 128;

impl Pieces {
    fn take(&mut self, n_bytes: u64) -> Result<u64, ArenaError> {
        let start = self.end;
        let end = start.checked_add(n_bytes).and_then(|it| it.checked_next_multiple_of(ALIGNMENT));
        self.end = end.filter(|it| *it <= i64::MAX as u64).ok_or(ArenaError::TooLarge)?;
        Ok(start)
    }

    fn range(&mut self, n: u64, each: u32) -> Result<Range<u64>, ArenaError> {
        let n_bytes = n.checked_mul(each.into()).ok_or(ArenaError::TooLarge)?;
        let start = self.take(n_bytes)?;
        Ok(start..start + n_bytes)
    }
}

impl Arena {
    /// Lays out memory.
    ///
    /// # Errors
    /// It would be larger than the address space, or the ring's size is not a power of two.
    pub fn new(needs: Needs) -> Result<Arena, ArenaError> {
        if needs.ring_slots != 0 && !needs.ring_slots.is_power_of_two() {
            return Err(ArenaError::RingSlots(needs.ring_slots));
        }
        let mut pieces = Pieces { end: 0 };
        pieces.take(table_bytes(needs.maps.len()))?;
        let losses = pieces.take(u64::from(needs.n_sites) * 8)?;
        let tail = pieces.take(8)?;
        // In the order in which readers copy them.
        let marks = pieces.range(needs.ring_slots.into(), ring::MARK_BYTES)?.start;
        let slots = match needs.ring_slots {
            0 => pieces.end,
            n => pieces.range(u64::from(n) + u64::from(ring::EXTRA_SLOTS), ring::SLOT_BYTES)?.start,
        };
        let head = pieces.take(8)?;
        let mut maps = Vec::new();
        for map in &needs.maps {
            maps.push(Parts::place(map, needs.n_threads, &mut pieces)?);
        }
        Ok(Arena { needs, losses, tail, marks, slots, head, maps, n_bytes: pieces.end })
    }

    /// Bytes of the memory. It is zeroed before [`Arena::table`] is written to its start.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the table, with programs switched on.
    pub fn table(&self) -> Vec<u8> {
        let mut table = vec![0; table_bytes(self.needs.maps.len()) as usize];
        let mut set = |offset: i64, word: u64| {
            table[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
        };
        set(header::ENABLED, 1);
        set(header::LOSSES, self.losses);
        set(header::RING_SLOTS, self.slots);
        set(header::RING_MARKS, self.marks);
        set(header::RING_HEAD, self.head);
        set(header::RING_TAIL, self.tail);
        set(header::RING_CAPACITY, self.needs.ring_slots.into());
        for (at, parts) in (0..).zip(&self.maps) {
            let start = header::BYTES + at * descriptor::BYTES;
            set(start + descriptor::STATES, parts.states.start);
            set(start + descriptor::KEYS, parts.keys.start);
            set(start + descriptor::VALUES, parts.values.start);
            set(start + descriptor::THREADS, self.needs.n_threads);
        }
        table
    }

    /// Returns where a map is; `None` for a map that isn't there.
    pub fn parts(&self, map: usize) -> Option<&Parts> {
        self.maps.get(map)
    }

    /// Where a site's loss counter is.
    pub fn loss(&self, site: u32) -> u64 {
        self.losses + u64::from(site) * 8
    }

    /// Where one of a map's counters is; see [`descriptor`].
    pub fn counter(&self, map: usize, counter: i64) -> u64 {
        (header::BYTES + map as i64 * descriptor::BYTES + counter) as u64
    }

    /// Slots of the ring; 0 without one.
    pub fn ring_slots(&self) -> u32 {
        self.needs.ring_slots
    }

    /// Returns the ring in a copy that has everything up to the ring's head. The pieces of the copy were made one after
    /// another: what is before the slots, then these, then the head.
    pub fn ring<'a>(&self, copy: &'a [u8]) -> RingBytes<'a> {
        let (slots, marks) = self.ring_parts();
        let part = |it: Range<u64>| copy.get(it.start as usize..it.end as usize).unwrap_or_default();
        RingBytes { marks: part(marks), slots: part(slots), head: word(copy, self.head as usize) }
    }

    /// Where the ring's head and tail are.
    pub fn ring_words(&self) -> (u64, u64) {
        (self.head, self.tail)
    }

    /// Where the ring's slots and marks are.
    pub fn ring_parts(&self) -> (Range<u64>, Range<u64>) {
        let n = u64::from(self.needs.ring_slots);
        let extra = if n == 0 { 0 } else { u64::from(ring::EXTRA_SLOTS) };
        let slots = self.slots..self.slots + (n + extra) * u64::from(ring::SLOT_BYTES);
        (slots, self.marks..self.marks + n * u64::from(ring::MARK_BYTES))
    }
}

fn table_bytes(n_maps: usize) -> u64 {
    (header::BYTES + n_maps as i64 * descriptor::BYTES) as u64
}

impl Parts {
    fn place(map: &DeviceMap, n_threads: u64, pieces: &mut Pieces) -> Result<Parts, ArenaError> {
        let n_slots = u64::from(map.n_slots());
        let n_keys = if map.kind == Storage::Hash { n_slots } else { 0 };
        let n_value_bytes = match map.kind {
            Storage::PerThreadArray => map.value_bytes_in_all().checked_mul(n_threads).ok_or(ArenaError::TooLarge)?,
            Storage::OuterArray => 0,
            _ => map.value_bytes_in_all(),
        };
        Ok(Parts {
            states: pieces.range(n_keys, size_of::<u32>() as u32)?,
            keys: pieces.range(n_keys, map.key_stride())?,
            values: pieces.range(n_value_bytes, 1)?,
        })
    }
}

/// A copy of a map's memory.
#[derive(Clone, Copy, Debug)]
pub struct MapBytes<'a> {
    pub map: &'a DeviceMap,
    pub states: &'a [u8],
    pub keys: &'a [u8],
    pub values: &'a [u8],
}

impl MapBytes<'_> {
    /// Passes each element's key and value to `f`. An array's keys are its indices. Where there are several values for a
    /// key, of threads or of parts, they come one after another. Elements that a copy has no room for are left out.
    pub fn for_each(&self, mut f: impl FnMut(&[u8], &[u8])) {
        let n_copies = self.n_copies();
        for slot in 0..self.map.n_slots() as usize {
            let index = (slot as u32).to_le_bytes();
            let key = match self.map.kind {
                Storage::Hash => self.key(slot).filter(|_| self.is_full(slot)),
                _ => Some(&index[..]),
            };
            let Some(key) = key else { continue };
            match n_copies {
                1 => self.value(slot, 0).into_iter().for_each(|it| f(key, it)),
                _ => {
                    let values: Vec<&[u8]> = (0..n_copies).map_while(|it| self.value(slot, it)).collect();
                    if values.len() == n_copies {
                        f(key, &values.concat());
                    }
                }
            }
        }
    }

    /// Returns how many values each key has.
    fn n_copies(&self) -> usize {
        match self.map.kind {
            Storage::PerThreadArray => {
                let n_values = self.values.len().checked_div(self.map.value_stride() as usize).unwrap_or(0);
                n_values.checked_div(self.map.max_entries as usize).unwrap_or(0)
            }
            _ => self.map.parts as usize,
        }
    }

    fn is_full(&self, slot: usize) -> bool {
        let word = self.states.as_chunks::<4>().0.get(slot).map(|it| u32::from_le_bytes(*it));
        word.is_some_and(|it| it & state::MASK == state::FULL)
    }

    fn key(&self, slot: usize) -> Option<&[u8]> {
        let start = slot.checked_mul(self.map.key_stride() as usize)?;
        self.keys.get(start..)?.get(..self.map.key_bytes as usize)
    }

    /// Returns a value of a slot, by its thread or its part.
    fn value(&self, slot: usize, copy: usize) -> Option<&[u8]> {
        let stride = self.map.value_stride() as usize;
        let start = match self.map.kind {
            Storage::PerThreadArray => slot.checked_mul(self.n_copies())?.checked_add(copy)?.checked_mul(stride)?,
            _ => place_of_value(self.map, slot, copy),
        };
        self.values.get(start..)?.get(..self.map.value_bytes as usize)
    }
}

/// Returns where a part's value of a slot is among the values.
fn place_of_value(map: &DeviceMap, slot: usize, part: usize) -> usize {
    part * map.part_bytes() as usize + slot * map.value_stride() as usize
}

/// A hash's memory while no kernel runs, for the host to change.
#[derive(Debug)]
pub struct HashBytes<'a> {
    pub map: &'a DeviceMap,
    pub states: &'a mut [u8],
    pub keys: &'a mut [u8],
    pub values: &'a mut [u8],
}

impl HashBytes<'_> {
    /// Stores an element where a kernel would; the value has all parts. Returns false if no slot is free, or the sizes are
    /// wrong.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> bool {
        let (key_bytes, value_bytes) = (self.map.key_bytes as usize, self.map.value_bytes as usize);
        let n_parts = self.map.parts as usize;
        if key.len() != key_bytes || value.len() != value_bytes * n_parts || value_bytes == 0 {
            return false;
        }
        let hash = hash(&key_words(key));
        let mask = self.map.n_slots() as usize - 1;
        let n_probes = crate::layout::MAX_PROBES.min(self.map.n_slots()) as usize;
        let mut slots = (0..n_probes).map(|it| (hash as usize + it) & mask);
        let Some(slot) = slots.find(|it| self.is_free_for(*it, key)) else { return false };
        let key_at = slot * self.map.key_stride() as usize;
        let last_value_at = place_of_value(self.map, slot, n_parts.saturating_sub(1));
        let (Some(state_at), Some(key_to), true) = (
            self.states.get_mut(slot * 4..slot * 4 + 4),
            self.keys.get_mut(key_at..key_at + key_bytes),
            self.values.len() >= last_value_at + value_bytes,
        ) else {
            return false;
        };
        state_at.copy_from_slice(&(fingerprint(hash) | state::FULL).to_le_bytes());
        key_to.copy_from_slice(key);
        for (part, value) in value.chunks_exact(value_bytes).enumerate() {
            let at = place_of_value(self.map, slot, part);
            self.values[at..at + value_bytes].copy_from_slice(value);
        }
        true
    }

    fn is_free_for(&self, slot: usize, key: &[u8]) -> bool {
        let word = self.states.as_chunks::<4>().0.get(slot).map(|it| u32::from_le_bytes(*it));
        let start = slot * self.map.key_stride() as usize;
        match word {
            Some(0) => true,
            Some(_) => self.keys.get(start..start + key.len()) == Some(key),
            None => false,
        }
    }

    /// Forgets deleted elements, whose slots are then free again. Returns how many elements are left: the new
    /// [`descriptor::LIVE`].
    pub fn compact(&mut self) -> u64 {
        let mut elements = Vec::new();
        let bytes = MapBytes { map: self.map, states: self.states, keys: self.keys, values: self.values };
        bytes.for_each(|key, value| elements.push((key.to_vec(), value.to_vec())));
        self.states.fill(0);
        self.keys.fill(0);
        self.values.fill(0);
        elements.iter().filter(|(key, value)| self.insert(key, value)).count() as u64
    }
}

/// Reads the ring's records in order.
///
/// The reader knows of a slot that it is dropped by counting: while the reader has not passed a slot, every later record
/// that would lie there is dropped. So this one is, too, once there are as many drops as there were takers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingReader {
    position: u64,
    /// Drops of each slot that were passed by.
    passed: Vec<u64>,
    /// Slots that were passed by because they were dropped.
    pub dropped_slots: u64,
    /// Slots that were passed by because they were never written, or are damaged.
    pub unwritten_slots: u64,
}

/// A copy of the ring, made in this order: marks, slots, head.
#[derive(Clone, Copy, Debug)]
pub struct RingBytes<'a> {
    pub marks: &'a [u8],
    pub slots: &'a [u8],
    pub head: u64,
}

/// A record as it lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRecord<'a> {
    /// Number of the site that wrote it.
    pub site: u32,
    pub data: &'a [u8],
}

/// What one slot turned out to be; numbers of slots where there may be several.
enum RingSlot<'a> {
    Record(DeviceRecord<'a>, u64),
    Discarded(u64),
    Dropped,
    /// Taken, and not written so far.
    Unwritten,
    Damaged,
}

impl RingReader {
    /// Begins to read an empty ring.
    pub fn new(ring_slots: u32) -> RingReader {
        RingReader { position: 0, passed: vec![0; ring_slots as usize], dropped_slots: 0, unwritten_slots: 0 }
    }

    /// The tail: how many slots were read. The device may use them again once it is told.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn capacity(&self) -> u64 {
        self.passed.len() as u64
    }

    /// Passes records to `f`, at most as many as the ring has slots. Stops at a record that is being written, unless
    /// the kernels have ended (`at_end`): then it never will be.
    pub fn read(&mut self, ring: RingBytes<'_>, at_end: bool, mut f: impl FnMut(DeviceRecord<'_>)) {
        let end = ring.head.min(self.position.saturating_add(self.capacity()));
        while self.position < end {
            match self.slot(ring) {
                RingSlot::Record(record, n_slots) => {
                    f(record);
                    self.advance(n_slots);
                }
                RingSlot::Discarded(n_slots) => self.advance(n_slots),
                RingSlot::Dropped => self.pass_drops(1),
                RingSlot::Unwritten if !at_end => return,
                RingSlot::Unwritten | RingSlot::Damaged => {
                    self.unwritten_slots = self.unwritten_slots.saturating_add(1);
                    self.advance(1);
                }
            }
        }
        self.pass_rest(ring, at_end);
    }

    /// Passes by what is behind a whole ring of slots: none of it can be written yet.
    fn pass_rest(&mut self, ring: RingBytes<'_>, at_end: bool) {
        let rest = ring.head.saturating_sub(self.position);
        let all_dropped = (0..self.capacity().min(rest)).all(|it| self.drops(ring, it) == self.takers(ring, it));
        match (all_dropped, at_end) {
            (true, _) => self.pass_drops(rest),
            (false, true) => {
                self.unwritten_slots = self.unwritten_slots.saturating_add(rest);
                self.position = ring.head;
            }
            (false, false) => {}
        }
    }

    fn index(&self, ahead: u64) -> usize {
        (self.position.wrapping_add(ahead) & (self.capacity() - 1)) as usize
    }

    /// Returns how often the slot `ahead` of the position was taken from there on.
    fn takers(&self, ring: RingBytes<'_>, ahead: u64) -> u64 {
        (ring.head - self.position - ahead).div_ceil(self.capacity())
    }

    /// Returns how often it was dropped of these.
    fn drops(&self, ring: RingBytes<'_>, ahead: u64) -> u64 {
        let index = self.index(ahead);
        word(ring.marks, index * ring::MARK_BYTES as usize + ring::DROPPED as usize).wrapping_sub(self.passed[index])
    }

    /// Moves over slots all of which were dropped.
    fn pass_drops(&mut self, n_slots: u64) {
        let capacity = self.capacity();
        for ahead in 0..n_slots.min(capacity) {
            let index = self.index(ahead);
            self.passed[index] = self.passed[index].wrapping_add((n_slots - ahead).div_ceil(capacity));
        }
        self.dropped_slots = self.dropped_slots.saturating_add(n_slots);
        self.advance(n_slots);
    }

    /// Moves on. The ring is the program's memory: what it has there may be any number.
    fn advance(&mut self, n_slots: u64) {
        self.position = self.position.saturating_add(n_slots);
    }

    fn slot<'a>(&self, ring: RingBytes<'a>) -> RingSlot<'a> {
        let index = self.index(0);
        if word(ring.marks, index * ring::MARK_BYTES as usize + ring::WRITTEN as usize) == self.position + 1 {
            let bytes = ring.slots.get(index * ring::SLOT_BYTES as usize..);
            return written(self.position, bytes.unwrap_or_default());
        }
        match self.drops(ring, 0) == self.takers(ring, 0) {
            true => RingSlot::Dropped,
            false => RingSlot::Unwritten,
        }
    }
}

/// Reads a word; bytes that a copy lacks are zeros.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|it| it.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it))
}

/// Reads the record at the start of `bytes`.
fn written(position: u64, bytes: &[u8]) -> RingSlot<'_> {
    let (site_and_len, at) = (word(bytes, ring::SITE as usize), word(bytes, ring::POSITION as usize));
    let (site, len) = (site_and_len as u32, (site_and_len >> 32) as u32);
    let n_bytes = len & !ring::DISCARDED;
    let n_slots = u64::from(ring::RECORD_HEADER_BYTES.saturating_add(n_bytes).div_ceil(ring::SLOT_BYTES));
    let data = bytes.get(ring::RECORD_HEADER_BYTES as usize..).and_then(|it| it.get(..n_bytes as usize));
    match data {
        Some(data) if at == position && n_bytes <= ring::MAX_RECORD_BYTES - ring::RECORD_HEADER_BYTES => {
            match len & ring::DISCARDED {
                0 => RingSlot::Record(DeviceRecord { site, data }, n_slots),
                _ => RingSlot::Discarded(n_slots),
            }
        }
        _ => RingSlot::Damaged,
    }
}
