//! Interns names, stacks and Python's code objects as small ids, from any number of launching threads.
//!
//! Fixed capacity, no lock, no allocation. An id is a slot's number, so two threads with the same
//! new text or stack agree on the id before either has told the tracer. Whoever finds a slot not
//! yet told tells it again; repeating the record does not change its meaning.

use super::zeroed::{ZeroIsValid, Zeroed};
use std::ffi::{CStr, c_char};
use std::hint::cold_path;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use xputrace_python::Code;
use xputrace_wire::record::{CodeHead, MAX_CODE, MAX_NAME, MAX_NAME_BYTES, MAX_NAMES};
use zerocopy::IntoBytes;

/// Maximum number of distinct launch stacks per process.
pub(crate) const STACKS: usize = 64 << 10;
/// Maximum number of files, by where they were mapped, that a process's stacks were in.
pub(crate) const OBJECTS: usize = 8 << 10;
/// Maximum number of Python's code objects per process.
pub(crate) const CODES: usize = 16 << 10;
const CODE_BYTES: usize = 16 << 20;
const PROBES: usize = 64;

/// The path of NVTX ranges for which there is no room.
pub const UNKNOWN_RANGE: &CStr = c"\x1f[unknown]";

/// Why there is no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoId {
    TableFull,
    /// The record that defines the id did not fit into the ring.
    NotTold,
}

/// The kind of text behind a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    /// A kernel's mangled name.
    Symbol,
    /// An API call's name; a suffix such as `_v7000` is not part of it.
    Call,
}

/// Byte strings by id, which are told once.
#[derive(Debug)]
pub struct Store {
    entries: Zeroed<StoreEntry>,
    bytes: Zeroed<AtomicU8>,
    used: AtomicUsize,
}

#[derive(Debug)]
#[repr(C)]
struct StoreEntry {
    /// Hash of the bytes; 0 while the slot is free.
    hash: AtomicU64,
    /// `offset << 16 | len + 1` in the store's bytes; 0 while they are being copied.
    place: AtomicU64,
    told: AtomicU32,
    _reserved: u32,
}

// SAFETY: atomics and an integer.
unsafe impl ZeroIsValid for StoreEntry {}

/// The bytes did not fit.
const NO_PLACE: u64 = u64::MAX;
const LEN_BITS: u32 = 16;
const _: () = assert!(MAX_CODE + 1 < 1 << LEN_BITS && MAX_NAME + 1 < 1 << LEN_BITS);

impl Store {
    /// Makes room for so many byte strings, a power of two, and for their bytes together.
    pub fn new(entries: usize, bytes: usize) -> io::Result<Self> {
        assert!(entries.is_power_of_two(), "slots are found by a mask");
        Ok(Store { entries: Zeroed::new(entries)?, bytes: Zeroed::new(bytes)?, used: AtomicUsize::new(0) })
    }

    /// Returns the id of these parts together.
    #[cold]
    pub fn find(&self, parts: &[&[u8]]) -> Result<u32, NoId> {
        let hash = parts.iter().fold(0, |hash, it| hash_bytes(hash, it));
        for probe in 0..PROBES {
            let slot = self.slot((hash as usize).wrapping_add(probe));
            let entry = &self.entries[slot];
            let id = slot as u32 + 1;
            match entry.hash.compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.place(entry, parts).map(|()| id),
                Err(seen) if seen != hash => {}
                // Another thread is copying bytes with this hash: its id will be this one.
                Err(_) if entry.place.load(Ordering::Acquire) == 0 => return Ok(id),
                Err(_) if entry.place.load(Ordering::Acquire) == NO_PLACE => return Err(NoId::TableFull),
                Err(_) if self.is(id, parts) => return Ok(id),
                Err(_) => {}
            }
        }
        Err(NoId::TableFull)
    }

    fn place(&self, entry: &StoreEntry, parts: &[&[u8]]) -> Result<(), NoId> {
        let len: usize = parts.iter().map(|it| it.len()).sum();
        // Take room only if they fit: taking and returning it could give it out twice.
        let fits = |used: usize| Some(used + len + 1).filter(|end| *end <= self.bytes.len());
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        let Some((offset, room)) = taken.ok().and_then(|at| Some((at, self.bytes.get(at..at + len + 1)?))) else {
            entry.place.store(NO_PLACE, Ordering::Release);
            return Err(NoId::TableFull);
        };
        for (to, from) in room.iter().zip(parts.iter().copied().flatten()) {
            to.store(*from, Ordering::Relaxed);
        }
        entry.place.store((offset as u64) << LEN_BITS | (len as u64 + 1), Ordering::Release);
        Ok(())
    }

    /// Whether these parts together are the bytes of `id`.
    #[inline]
    fn is(&self, id: u32, parts: &[&[u8]]) -> bool {
        let Some(mut ours) = self.get(id) else { return false };
        for part in parts {
            match ours.split_at_checked(part.len()) {
                Some((begin, rest)) if begin == *part => ours = rest,
                _ => return false,
            }
        }
        ours.is_empty()
    }

    /// The bytes of `id`.
    #[inline(always)]
    fn get(&self, id: u32) -> Option<&[u8]> {
        self.get_with_nul(id).map(|it| &it[..it.len() - 1])
    }

    /// The bytes of `id` and a 0 behind them.
    #[inline(always)]
    pub fn get_with_nul(&self, id: u32) -> Option<&[u8]> {
        let place = self.entry(id).place.load(Ordering::Acquire);
        if place == 0 || place == NO_PLACE {
            return None;
        }
        let (offset, len) = ((place >> LEN_BITS) as usize, (place & ((1 << LEN_BITS) - 1)) as usize);
        let bytes = self.bytes.get(offset..offset + len)?;
        // SAFETY: same size and alignment; the bytes were written before `place` was stored and
        // never change after.
        Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), len) })
    }

    /// Returns the id of these parts, whose id was `known` if those are still its bytes; `tell` was
    /// called for it before and returned true.
    #[inline]
    fn intern(
        &self,
        known: Option<u32>,
        parts: &[&[u8]],
        tell: impl FnMut(u32, &[&[u8]]) -> bool,
    ) -> Result<u32, NoId> {
        let id = match known {
            Some(id) => id,
            None => self.find(parts)?,
        };
        if self.is_told(id) {
            return Ok(id);
        }
        self.tell(id, parts, tell)
    }

    #[inline]
    fn is_told(&self, id: u32) -> bool {
        self.entry(id).told.load(Ordering::Acquire) != 0
    }

    #[cold]
    fn tell(&self, id: u32, parts: &[&[u8]], mut tell: impl FnMut(u32, &[&[u8]]) -> bool) -> Result<u32, NoId> {
        if !tell(id, parts) {
            return Err(NoId::NotTold);
        }
        self.entry(id).told.store(1, Ordering::Release);
        Ok(id)
    }

    #[inline]
    fn entry(&self, id: u32) -> &StoreEntry {
        &self.entries[self.slot((id as usize).wrapping_sub(1))]
    }

    /// Returns the number modulo that of the entries.
    #[inline]
    fn slot(&self, number: usize) -> usize {
        number & (self.entries.len() - 1)
    }
}

/// Ids by the addresses at which their contents were last seen. Another content may have an address by
/// now, so it is compared every time.
#[derive(Debug)]
struct Addresses(Zeroed<AtomicU64>);

const ADDRESSES: usize = 16 << 10;
/// Address in the low 48 bits, id above.
const ADDRESS_BITS: u32 = 48;
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;
const _: () = assert!(MAX_NAMES < 1 << (64 - ADDRESS_BITS) && CODES < 1 << (64 - ADDRESS_BITS));

impl Addresses {
    fn new() -> io::Result<Self> {
        Ok(Addresses(Zeroed::new(ADDRESSES)?))
    }

    #[inline]
    fn slot(&self, address: u64) -> &AtomicU64 {
        &self.0[spread(address & ADDRESS_MASK) as usize % ADDRESSES]
    }

    #[inline(always)]
    fn id(&self, address: u64) -> Option<u32> {
        let word = self.slot(address).load(Ordering::Relaxed);
        (word >> ADDRESS_BITS != 0 && word & ADDRESS_MASK == address & ADDRESS_MASK)
            .then_some((word >> ADDRESS_BITS) as u32)
    }

    /// Notes which id an address has now.
    #[inline]
    fn keep(&self, address: u64, id: Result<u32, NoId>) -> Result<u32, NoId> {
        let id = id?;
        let word = address & ADDRESS_MASK | u64::from(id) << ADDRESS_BITS;
        let slot = self.slot(address);
        if slot.load(Ordering::Relaxed) != word {
            slot.store(word, Ordering::Relaxed);
        }
        Ok(id)
    }
}

/// The table of names.
#[derive(Debug)]
pub(crate) struct NameTable {
    addresses: Addresses,
    store: Store,
}

impl NameTable {
    pub(crate) fn new() -> io::Result<Self> {
        let store = Store::new(MAX_NAMES, MAX_NAME_BYTES)?;
        // Kept for when there is no room.
        let _ = store.find(&[UNKNOWN_RANGE.to_bytes()]);
        Ok(NameTable { addresses: Addresses::new()?, store })
    }

    /// Returns the id of the text at `pointer`; `tell` was called for it before and returned true.
    ///
    /// # Safety
    /// `pointer` is a C string.
    #[inline(always)]
    pub(crate) unsafe fn intern(
        &self,
        pointer: *const c_char,
        text: TextKind,
        mut tell: impl FnMut(u32, &[u8]) -> bool,
    ) -> Result<u32, NoId> {
        let mut known = self.addresses.id(pointer as u64);
        if let Some(id) = known {
            // SAFETY: the caller promises that `pointer` is a C string.
            match unsafe { self.is_text(id, pointer, text) } {
                true if self.store.is_told(id) => return Ok(id),
                true => {}
                false => known = None,
            }
        }
        cold_path();
        // SAFETY: the caller promises that `pointer` is a C string, which lives through this call.
        let bytes = unsafe { bytes(pointer, text) };
        self.addresses.keep(pointer as u64, self.store.intern(known, &[bytes], |id, _| tell(id, bytes)))
    }

    /// Whether the C string at `pointer` equals the text of `id`.
    ///
    /// # Safety
    /// `pointer` is a C string.
    #[inline(always)]
    unsafe fn is_text(&self, id: u32, pointer: *const c_char, text: TextKind) -> bool {
        let Some(ours) = self.store.get(id) else { return false };
        // SAFETY: the bytes are in the store, and strncmp stops at the end of the caller's string.
        if unsafe { libc::strncmp(pointer, ours.as_ptr().cast(), ours.len()) } != 0 {
            return false;
        }
        // SAFETY: equal over `ours.len()` bytes that are not NUL, so the next one is in the string.
        let ends = || unsafe { *pointer.add(ours.len()) } == 0;
        // SAFETY: the caller promises that `pointer` is a C string. Whatever goes on may be cut, or a suffix.
        text == TextKind::Symbol && ends() || unsafe { bytes(pointer, text) }.len() == ours.len()
    }
}

/// The table of Python's code objects, by their contents: an object that has the address of a freed
/// one is another one.
#[derive(Debug)]
pub(crate) struct Codes {
    addresses: Addresses,
    store: Store,
}

impl Codes {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Codes { addresses: Addresses::new()?, store: Store::new(CODES, CODE_BYTES)? })
    }

    /// Returns the id of a code object; `tell` was called for it before and returned true.
    #[inline]
    pub(crate) fn intern(&self, code: &Code<'_>, tell: impl FnMut(u32, &[&[u8]]) -> bool) -> Result<u32, NoId> {
        let Code { address, first_line, file, name, lines } = *code;
        let room = MAX_CODE - size_of::<CodeHead>() - file.bytes.len() - name.bytes.len();
        let lines = &lines[..lines.len().min(room)];
        let head = CodeHead {
            first_line,
            file_len: file.bytes.len() as u16,
            name_len: name.bytes.len() as u16,
            lines_len: lines.len() as u16,
            file_width: file.width,
            name_width: name.width,
        };
        let parts = [head.as_bytes(), file.bytes, name.bytes, lines];
        let known = self.addresses.id(address).filter(|it| self.store.is(*it, &parts));
        self.addresses.keep(address, self.store.intern(known, &parts, tell))
    }
}

/// Returns the text at `pointer`, cut at [`MAX_NAME`], without a call's version suffix.
///
/// # Safety
/// `pointer` is a C string that lives as long as the result is used.
unsafe fn bytes<'a>(pointer: *const c_char, text: TextKind) -> &'a [u8] {
    // SAFETY: the caller promises that `pointer` is a C string that lives as long as the result is used.
    let all = unsafe { CStr::from_ptr(pointer) }.to_bytes();
    let text = match text {
        TextKind::Symbol => all,
        TextKind::Call => without_version(&all[..all.len().min(MAX_NAME)]),
    };
    &text[..text.len().min(MAX_NAME)]
}

fn without_version(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|it| it.is_ascii_digit()).count();
    let stem = &name[..name.len() - digits];
    match stem.strip_suffix(b"_v") {
        Some(stem) if digits >= 4 => stem,
        _ => name,
    }
}

/// The table of stacks, identified by 128-bit fingerprints of their words and of the files that these are in: with
/// 65,536 different stacks the probability of a collision is below 1e-28.
#[derive(Debug)]
pub(crate) struct StackIds(Fingerprints);

/// The table of the files that stacks were in, by where they were mapped. Its fingerprints are those of
/// [`xputrace_unwind::MappedObject::key`].
#[derive(Debug)]
pub(crate) struct ObjectIds(Fingerprints);

/// Things that are known by fingerprints, and told once.
#[derive(Debug)]
struct Fingerprints {
    entries: Zeroed<Entry128>,
}

#[derive(Debug)]
#[repr(C)]
struct Entry128 {
    key: AtomicU64,
    /// The second half of the fingerprint; briefly 0 after `key` is set.
    check: AtomicU64,
    told: AtomicU64,
}

// SAFETY: atomics.
unsafe impl ZeroIsValid for Entry128 {}

impl StackIds {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(StackIds(Fingerprints::new(STACKS)?))
    }

    /// Returns the id of a stack; `tell` was called for it before and returned true. `files` tells the files that the
    /// frames are in from those that are or were at the same addresses.
    #[inline]
    pub(crate) fn intern(
        &self,
        frames: &[u64],
        end: u16,
        files: u64,
        tell: impl FnOnce(u32) -> bool,
    ) -> Result<u32, NoId> {
        self.0.intern(fingerprint([frames, &[files]], frames.len() as u64 | u64::from(end) << 32), tell)
    }
}

impl ObjectIds {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(ObjectIds(Fingerprints::new(OBJECTS)?))
    }

    /// Returns the id of a file by its key; `tell` was called for it before and returned true.
    pub(crate) fn intern(&self, key: u64, tell: impl FnOnce(u32) -> bool) -> Result<u32, NoId> {
        self.0.intern((key, key), tell)
    }
}

impl Fingerprints {
    fn new(entries: usize) -> io::Result<Self> {
        Ok(Fingerprints { entries: Zeroed::new(entries)? })
    }

    #[inline]
    fn intern(&self, (key, check): (u64, u64), tell: impl FnOnce(u32) -> bool) -> Result<u32, NoId> {
        for probe in 0..PROBES {
            let slot = (key as usize).wrapping_add(probe) % self.entries.len();
            let entry = &self.entries[slot];
            if !entry.is(key, check) {
                continue;
            }
            let id = slot as u32 + 1;
            if entry.told.load(Ordering::Acquire) == 0 {
                if !tell(id) {
                    return Err(NoId::NotTold);
                }
                entry.told.store(1, Ordering::Release);
            }
            return Ok(id);
        }
        Err(NoId::TableFull)
    }
}

impl Entry128 {
    /// Whether this slot has, or now takes, this fingerprint.
    #[inline]
    fn is(&self, key: u64, check: u64) -> bool {
        let mut seen = self.key.load(Ordering::Acquire);
        if seen == 0 {
            seen = match self.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => key,
                Err(seen) => seen,
            };
        }
        if seen != key {
            return false;
        }
        match self.check.load(Ordering::Acquire) {
            0 => match self.check.compare_exchange(0, check, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => true,
                Err(seen) => seen == check,
            },
            seen => seen == check,
        }
    }
}

/// The fingerprint of words; `about` tells what they are, and how many of each part.
///
/// Every word goes into a sum of each half. There are four of them side by side, so that no word waits
/// for the multiplication of the one before it.
#[inline]
pub(crate) fn fingerprint<const N: usize>(parts: [&[u64]; N], about: u64) -> (u64, u64) {
    let mut sums = [(about ^ 0x9e37_79b9_7f4a_7c15, 0x2545_f491_4f6c_dd1d_u64); 4];
    for words in parts {
        let (fours, rest) = words.as_chunks::<4>();
        for four in fours {
            sums.iter_mut().zip(four).for_each(|(sum, word)| add(sum, *word));
        }
        sums.iter_mut().zip(rest).for_each(|(sum, word)| add(sum, *word));
    }
    let (mut key, mut check) = (0u64, 0u64);
    for (of_key, of_check) in sums {
        key = spread(key ^ of_key).rotate_left(29);
        check = spread(check.rotate_left(23) ^ of_check);
    }
    (spread(key) | 1, spread(check) | 1)
}

#[inline]
fn add((key, check): &mut (u64, u64), word: u64) {
    *key = (*key ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    *check = (check.rotate_left(23) ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
}

/// Never 0.
fn hash_bytes(before: u64, text: &[u8]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15 ^ before ^ text.len() as u64;
    for chunk in text.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    spread(hash) | 1
}

#[inline]
fn spread(mut it: u64) -> u64 {
    it ^= it >> 33;
    it = it.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    it ^ (it >> 29)
}

/// Maximum number of distinct calls of a backend.
pub const MOST_CALLS: usize = 512;

/// The ids of call names that the tracer knows. Each of the backend's call numbers has one name, so
/// it need not be compared at each launch.
#[derive(Debug)]
pub(crate) struct CallNames([AtomicU32; MOST_CALLS]);

impl CallNames {
    pub(crate) const fn new() -> Self {
        CallNames([const { AtomicU32::new(0) }; MOST_CALLS])
    }

    /// Returns the known id, or the result of `intern`; 0 means none.
    #[inline(always)]
    pub(crate) fn id(&self, call: usize, intern: impl FnOnce() -> u32) -> u32 {
        let Some(known) = self.0.get(call) else { return intern() };
        match known.load(Ordering::Acquire) {
            0 => {
                cold_path();
                let id = intern();
                known.store(id, Ordering::Release);
                id
            }
            id => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(names: &NameTable, text: &CStr, kind: TextKind, told: &mut Vec<(u32, String)>) -> Result<u32, NoId> {
        // SAFETY: a C string.
        unsafe {
            names.intern(text.as_ptr(), kind, |id, text| {
                told.push((id, String::from_utf8_lossy(text).into_owned()));
                true
            })
        }
    }

    #[test]
    fn equal_texts_have_one_id_and_are_told_once() {
        let (names, mut told) = (NameTable::new().unwrap(), Vec::new());
        let copy = c"_Z3nopv".to_owned();
        let first = name(&names, c"_Z3nopv", TextKind::Symbol, &mut told).unwrap();
        assert_eq!(name(&names, &copy, TextKind::Symbol, &mut told), Ok(first));
        assert_eq!(name(&names, c"_Z3nopv", TextKind::Symbol, &mut told), Ok(first));
        assert_eq!(told, [(first, "_Z3nopv".to_string())]);
    }

    #[test]
    fn ranges_without_room_have_a_name() {
        let (names, mut told) = (NameTable::new().unwrap(), Vec::new());
        let all = (0..MAX_NAMES * 2).map(|it| std::ffi::CString::new(format!("range {it}")).unwrap());
        let refused = all.filter(|it| name(&names, it, TextKind::Symbol, &mut told) == Err(NoId::TableFull)).count();
        assert!(refused > 0);
        assert!(name(&names, UNKNOWN_RANGE, TextKind::Symbol, &mut told).is_ok());
        assert_eq!(told.last().unwrap().1.as_bytes(), UNKNOWN_RANGE.to_bytes());
    }

    #[test]
    fn a_pointer_whose_text_changed_is_a_new_name() {
        let (names, mut told) = (NameTable::new().unwrap(), Vec::new());
        let mut buffer = *b"first\0";
        let id = |names: &NameTable, buffer: &[u8], told: &mut Vec<_>| {
            name(names, CStr::from_bytes_with_nul(buffer).unwrap(), TextKind::Symbol, told).unwrap()
        };
        let first = id(&names, &buffer, &mut told);
        buffer.copy_from_slice(b"other\0");
        let other = id(&names, &buffer, &mut told);
        buffer.copy_from_slice(b"oth\0\0\0");
        let shorter = id(&names, &buffer[..4], &mut told);
        assert!(first != other && other != shorter && first != shorter);
        assert_eq!(told.len(), 3);
    }

    #[test]
    fn a_call_has_no_version_suffix() {
        let (names, mut told) = (NameTable::new().unwrap(), Vec::new());
        let plain = name(&names, c"cudaLaunchKernel", TextKind::Call, &mut told);
        for _ in 0..2 {
            assert_eq!(name(&names, c"cudaLaunchKernel_v7000", TextKind::Call, &mut told), plain);
        }
        assert_ne!(name(&names, c"cuMemFree_v2", TextKind::Call, &mut told), plain);
        let texts: Vec<_> = told.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["cudaLaunchKernel", "cuMemFree_v2"]);
    }

    #[test]
    fn long_names_are_cut_and_still_equal() {
        let (names, mut told) = (NameTable::new().unwrap(), Vec::new());
        let long = std::ffi::CString::new("x".repeat(MAX_NAME + 50)).unwrap();
        let first = name(&names, &long, TextKind::Symbol, &mut told);
        assert_eq!(name(&names, &long, TextKind::Symbol, &mut told), first);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].1.len(), MAX_NAME);
    }

    #[test]
    fn what_could_not_be_told_is_told_later() {
        let names = NameTable::new().unwrap();
        // SAFETY: a C string.
        let intern = |room| unsafe { names.intern(c"f".as_ptr(), TextKind::Symbol, |_, _| room) };
        assert_eq!(intern(false), Err(NoId::NotTold));
        assert!(intern(true).is_ok());
        assert!(intern(false).is_ok());
        let stacks = StackIds::new().unwrap();
        assert_eq!(stacks.intern(&[1, 2], 0, 7, |_| false), Err(NoId::NotTold));
        let id = stacks.intern(&[1, 2], 0, 7, |_| true).unwrap();
        assert_eq!(stacks.intern(&[1, 2], 0, 7, |_| false), Ok(id));
        assert_ne!(stacks.intern(&[1, 2], 1, 7, |_| true), Ok(id), "it ends for another reason");
        assert_ne!(stacks.intern(&[1, 2], 0, 8, |_| true), Ok(id), "other files are at these addresses");
    }

    #[test]
    fn a_code_object_in_the_place_of_another_is_another() {
        let codes = Codes::new().unwrap();
        let text = |it: &'static str| xputrace_python::PyString { width: 1, bytes: it.as_bytes() };
        let code = |name: &'static str, lines: &'static [u8]| Code {
            address: 0x1000,
            first_line: 1,
            file: text("a.py"),
            name: text(name),
            lines,
        };
        let told = std::cell::RefCell::new(Vec::new());
        let id = |it: Code<'_>| {
            let tell = |_, parts: &[&[u8]]| {
                told.borrow_mut().push(parts.concat().len());
                true
            };
            codes.intern(&it, tell).unwrap()
        };
        let first = id(code("f", &[1, 2]));
        let others = [code("g", &[1, 2]), code("f", &[1, 3]), Code { first_line: 2, ..code("f", &[1, 2]) }].map(id);
        assert!(!others.contains(&first) && others[0] != others[1] && others[1] != others[2]);
        assert_eq!(id(Code { address: 0x2000, ..code("f", &[1, 2]) }), first, "wherever it is");
        assert_eq!(*told.borrow(), [size_of::<CodeHead>() + 4 + 1 + 2; 4], "each once");
    }

    #[test]
    fn full_tables_say_so() {
        let (names, stacks) = (NameTable::new().unwrap(), StackIds::new().unwrap());
        let mut full = 0;
        for n in 0..MAX_NAMES + 100 {
            let text = std::ffi::CString::new(format!("name {n}")).unwrap();
            full += usize::from(name(&names, &text, TextKind::Symbol, &mut Vec::new()).is_err());
        }
        assert!(full >= 100, "{full}");
        let full = (0..STACKS as u64 + 100).filter(|&n| stacks.intern(&[n], 0, 7, |_| true).is_err()).count();
        assert!(full >= 100, "{full}");
    }

    #[test]
    fn threads_agree_on_ids() {
        let names = std::sync::Arc::new(NameTable::new().unwrap());
        let texts: Vec<_> = (0..500).map(|n| std::ffi::CString::new(format!("kernel{n}")).unwrap()).collect();
        let run = |names: &NameTable| -> Vec<u32> {
            texts.iter().map(|it| name(names, it, TextKind::Symbol, &mut Vec::new()).unwrap()).collect()
        };
        let all: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&names))).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert!(all.iter().all(|ids| *ids == all[0]));
        let mut unique = all[0].clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), texts.len());
    }
}
