//! Rules of addresses that were met before, for all threads at once.
//!
//! Fixed capacity, no lock, no allocation after [`UnwindTables::new`]. An address is remembered as a
//! place in a file's content, never as a bare address: a file that is unloaded, and another
//! loaded in its place, cannot be taken for each other.

use crate::objects::{MappedObject, NO_OBJECT, mix, prepare};
use crate::rule::{Bytes, Rule, WORDS};
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, NativeEndian, Register, RegisterRule, UnwindContext, UnwindSection};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Files whose addresses are remembered.
const FILES: usize = 4096;
/// Addresses that are remembered; a newer one takes an older one's place.
const ADDRESSES: usize = 32 << 10;
/// Different rules.
const RULES: usize = 16 << 10;
const PROBES: usize = 32;

/// What all threads of a process share to unwind: about 1 MiB where everything is in use.
#[derive(Debug)]
pub struct UnwindTables {
    /// Identities of files; the index is the file's number.
    files: Box<[AtomicU64]>,
    /// Rule, file and place in the file of an address.
    addresses: Box<[AtomicU64]>,
    rules: Box<[SharedRule]>,
}

#[derive(Debug, Default)]
struct SharedRule {
    /// [`FREE`], [`WRITING`] or [`READY`].
    state: AtomicU32,
    words: [AtomicU64; WORDS],
}

const FREE: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

/// The number of a rule in the tables.
pub(crate) type RuleId = u16;

/// The rule of an address, and its number where it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownRule {
    pub(crate) rule: Rule,
    pub(crate) id: Option<RuleId>,
}

/// Why an address has no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRule {
    /// No table covers it.
    NoTable,
    /// A form that is not known, or a damaged table.
    Unsupported,
}

/// A file, and its number where it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) object: MappedObject,
    number: Option<u16>,
}

/// A place where no file is.
pub(crate) const NO_FILE: File = File { object: NO_OBJECT, number: None };

impl File {
    /// What an address in it is remembered by: a place in a file's content, never 0.
    #[inline]
    pub(crate) fn key(&self, address: u64) -> Option<u64> {
        key(self.number?, address - self.object.start)
    }
}

impl Default for UnwindTables {
    fn default() -> Self {
        UnwindTables::new()
    }
}

impl UnwindTables {
    /// Empty tables. Allocates all that they will ever need.
    pub fn new() -> Self {
        prepare();
        let words = |len: usize| (0..len).map(|_| AtomicU64::new(0)).collect();
        UnwindTables {
            files: words(FILES),
            addresses: words(ADDRESSES),
            rules: (0..RULES).map(|_| SharedRule::default()).collect(),
        }
    }

    /// The file at an address.
    pub(crate) fn file(&self, address: u64) -> Option<File> {
        let object = MappedObject::at(address)?;
        Some(File { object, number: self.number(object.identity) })
    }

    fn number(&self, identity: u64) -> Option<u16> {
        let slots = (0..PROBES).map(|probe| (identity as usize).wrapping_add(probe) % FILES);
        slots.into_iter().find_map(|slot| {
            let claimed = self.files[slot].compare_exchange(0, identity, Ordering::AcqRel, Ordering::Acquire);
            (claimed.is_ok() || claimed == Err(identity)).then_some(slot as u16)
        })
    }

    /// The rule of a frame at `address`, which lies in `file`.
    #[inline]
    pub(crate) fn rule(&self, file: &File, address: u64) -> Result<KnownRule, NoRule> {
        let Some(key) = file.key(address) else {
            return read(&file.object, address).map(|rule| KnownRule { rule, id: None });
        };
        let slot = &self.addresses[mix(key) as usize % ADDRESSES];
        let word = slot.load(Ordering::Acquire);
        if word >> RULE_BITS == key
            && let Some(known) = self.known((word & RULE_MASK) as RuleId)
        {
            return Ok(known);
        }
        let known = self.read(&file.object, address)?;
        if let Some(id) = known.id {
            slot.store(key << RULE_BITS | u64::from(id), Ordering::Release);
        }
        Ok(known)
    }

    #[cold]
    fn read(&self, object: &MappedObject, address: u64) -> Result<KnownRule, NoRule> {
        let rule = read(object, address)?;
        Ok(KnownRule { rule, id: self.share(&rule) })
    }

    #[inline]
    pub(crate) fn known(&self, id: RuleId) -> Option<KnownRule> {
        let shared = self.rules.get(usize::from(id))?;
        (shared.state.load(Ordering::Acquire) == READY).then(|| KnownRule { rule: Rule(shared.load()), id: Some(id) })
    }

    /// The number of a rule; `None` where the table is full, or another thread is writing there.
    fn share(&self, rule: &Rule) -> Option<RuleId> {
        let words = rule.0;
        let hash = words.iter().fold(0, |sum, it| mix(sum ^ it));
        for probe in 0..PROBES {
            let slot = (hash as usize).wrapping_add(probe) % RULES;
            let shared = &self.rules[slot];
            match shared.state.compare_exchange(FREE, WRITING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    shared.store(words);
                    return Some(slot as RuleId);
                }
                Err(READY) if shared.load() == words => return Some(slot as RuleId),
                Err(READY) => {}
                Err(_) => return None,
            }
        }
        None
    }
}

impl SharedRule {
    #[inline]
    fn load(&self) -> [u64; WORDS] {
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }

    fn store(&self, words: [u64; WORDS]) {
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.state.store(READY, Ordering::Release);
    }
}

const RULE_BITS: u32 = 14;
const RULE_MASK: u64 = (1 << RULE_BITS) - 1;
const PLACE_BITS: u32 = 37;

const _: () = assert!(RULES == 1 << RULE_BITS && FILES as u64 <= 1 << (64 - RULE_BITS - PLACE_BITS - 1));

/// File and place in one number that is never 0.
#[inline]
fn key(file: u16, place: u64) -> Option<u64> {
    (place < 1 << PLACE_BITS).then_some((u64::from(file) << PLACE_BITS | place) + 1)
}

/// Room for one row in work and those that it remembers, on the stack: a few KiB.
struct Storage;

impl gimli::UnwindContextStorage<usize> for Storage {
    // x86-64 has 17 registers in rules; vector registers are seldom named.
    type Rules = [(Register, RegisterRule<usize>); 24];
    type Stack = [gimli::UnwindTableRow<usize, Self>; 4];
}

/// Reads the tables of a file.
#[inline(never)]
pub(crate) fn read(object: &MappedObject, address: u64) -> Result<Rule, NoRule> {
    if object.header == 0 {
        return Err(NoRule::NoTable);
    }
    // SAFETY: from the header to the end of its segment, mapped while the stack returns into the file.
    let header = unsafe { bytes(object.header, object.header_end) };
    let bases = BaseAddresses::default().set_eh_frame_hdr(object.header);
    let header = EhFrameHdr::new(header, NativeEndian).parse(&bases, 8).map_err(|_| NoRule::Unsupported)?;
    let eh_frame = header.eh_frame_ptr().direct().map_err(|_| NoRule::Unsupported)?;
    if !(object.start..object.header_end).contains(&eh_frame) {
        return Err(NoRule::Unsupported);
    }
    // SAFETY: in the same segment: linkers put the two beside each other.
    let section: EhFrame<Bytes<'_>> = EhFrame::new(unsafe { bytes(eh_frame, object.header_end) }, NativeEndian);
    let bases = bases.set_eh_frame(eh_frame);
    let table = header.table().ok_or(NoRule::NoTable)?;
    let fde = table.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).map_err(|error| {
        if error == gimli::Error::NoUnwindInfoForAddress { NoRule::NoTable } else { NoRule::Unsupported }
    })?;
    let mut context: UnwindContext<usize, Storage> = UnwindContext::new_in();
    let row = fde.unwind_info_for_address(&section, &bases, &mut context, address).map_err(|_| NoRule::Unsupported)?;
    Rule::from_row(row, &section, fde.is_signal_trampoline()).ok_or(NoRule::Unsupported)
}

/// # Safety
/// The bytes from `start` to `end`, which is not before it, are mapped and stay so while the result is used.
unsafe fn bytes<'a>(start: u64, end: u64) -> &'a [u8] {
    // SAFETY: the caller promises that the bytes are mapped, and stay so while the result is used.
    unsafe { std::slice::from_raw_parts(start as *const u8, (end - start) as usize) }
}
