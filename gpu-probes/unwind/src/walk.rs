//! A thread's stack: walked where it is new, proved where it is old.
//!
//! Between two launches most of a stack stays as it is. A frame follows from the registers in it
//! and the words of memory that its rule reads; so where a frame is met again with equal address,
//! rsp and registers, and each word that the rules from there to the root read still has its
//! value, all frames to the root are what they were. Reading those words is far cheaper than
//! finding the rules, and leaves nothing to chance.

use crate::rule::{Cfa, RIP, Rule};
use crate::tables::{File, NO_FILE, NoRule, RuleId, Tables};
use crate::{Bounds, Registers, SAVED};

/// Frames of a stack that are kept, the inner ones.
pub const MOST_FRAMES: usize = 256;

/// Why a stack ends where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum End {
    /// At its root: the program's or the thread's first function.
    Root,
    /// No table covers the last frame's address.
    NoTable,
    /// The rule of the last frame is of a form that is not known, or its table is damaged.
    Unsupported,
    /// The next frame would not be on the thread's own stack.
    OffStack,
    /// There are more frames than are kept.
    TooDeep,
}

/// One thread's last stack: about 48 KiB, of which stacks of usual depth touch a third. One whose
/// bytes are all 0 remembers nothing.
#[derive(Debug)]
#[repr(C)]
pub struct Walker {
    /// The last stack at the array's end, its root last; at the array's beginning what is new in
    /// the one that is being walked.
    frames: [Frame; MOST_FRAMES],
    /// The addresses of the last stack, at the array's end.
    addresses: [u64; MOST_FRAMES],
    /// Frames of the last stack.
    len: usize,
    /// What the last stack follows from, the root's first.
    slots: [Slot; MOST_SLOTS],
    last: Ended,
    /// The files that the last stacks' frames lay in.
    files: [File; MOST_FILES],
    n_files: usize,
    /// Those that this walk has seen to be still there, as bits.
    seen: u32,
}

/// A word of the stack.
#[derive(Clone, Copy, Debug)]
struct Slot {
    address: u64,
    value: u64,
    /// The index of the frame whose rule reads it.
    frame: usize,
}

/// Words of a stack that can be proved.
const MOST_SLOTS: usize = 3 * MOST_FRAMES;
const NO_SLOT: Slot = Slot { address: 0, value: 0, frame: 0 };

/// Files of a stack that can be proved.
const MOST_FILES: usize = 32;

/// A frame's registers, and how they lead to its caller's.
#[derive(Clone, Copy, Debug)]
struct Frame {
    registers: Registers,
    /// Leads to the next frame; of no meaning in the last.
    rule: RuleId,
    /// The registers that the rules from here to the root read, as bits.
    needed: u8,
    /// How many of [`Walker::slots`] the frames from here to the root follow from.
    slots: u16,
    /// Its file, and those of the frames to the root, as bits of [`Walker::files`].
    files: u32,
    /// A signal interrupted it here: its address is that of the next instruction, not one behind a call.
    is_interrupted: bool,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    end: End,
    /// The address of the word whose being 0 ended it; else 0.
    zero_at: u64,
    /// All that it follows from can be proved again.
    is_provable: bool,
}

/// What came of a walk: so many new frames, and the remembered ones from there on.
struct Walked {
    new: usize,
    rest: usize,
    ended: Ended,
}

/// The part of a walk that is new.
struct New {
    /// The one that is looked at.
    frame: Frame,
    /// Those before it.
    count: usize,
    is_provable: bool,
    /// The last one's.
    file: Option<File>,
    file_bit: Option<u32>,
}

impl New {
    fn walked(&self, rest: usize, ended: Ended) -> Walked {
        Walked { new: self.count, rest, ended }
    }

    /// Only what leads to the root is remembered: elsewhere it may be different the next time.
    fn ended(&self, end: End) -> Walked {
        let is_provable = self.is_provable && end == End::Root;
        self.walked(MOST_FRAMES, Ended { end, zero_at: 0, is_provable })
    }
}

const NO_FRAME: Frame = Frame {
    registers: Registers { rip: 0, rsp: 0, saved: [0; SAVED] },
    rule: 0,
    needed: 0,
    slots: 0,
    files: 0,
    is_interrupted: false,
};
const NOTHING: Ended = Ended { end: End::Root, zero_at: 0, is_provable: false };

impl Default for Walker {
    fn default() -> Self {
        Walker::new()
    }
}

impl Walker {
    /// Remembers nothing yet.
    pub const fn new() -> Self {
        Walker {
            frames: [NO_FRAME; MOST_FRAMES],
            addresses: [0; MOST_FRAMES],
            len: 0,
            slots: [NO_SLOT; MOST_SLOTS],
            last: NOTHING,
            files: [NO_FILE; MOST_FILES],
            n_files: 0,
            seen: 0,
        }
    }

    /// The addresses of a stack, innermost first, and why it ends. All but the first are return
    /// addresses, or were interrupted by a signal.
    ///
    /// # Safety
    /// `registers` are the calling thread's, of a function that has not returned, and the words
    /// from `registers.rsp` to `bounds.high` are readable where `registers.rsp` lies within `bounds`.
    pub unsafe fn walk(&mut self, tables: &Tables, registers: Registers, bounds: Bounds) -> (&[u64], End) {
        let bounds = Bounds { low: bounds.low.max(registers.rsp & !7), ..bounds };
        let walked = self.extend(tables, registers, Stack(bounds));
        self.splice(tables, &walked);
        (self.last(), walked.ended.end)
    }

    /// Forgets the last stack.
    pub fn forget(&mut self) {
        self.last = NOTHING;
    }

    /// The addresses of the last stack.
    pub fn last(&self) -> &[u64] {
        &self.addresses[MOST_FRAMES - self.len..]
    }

    /// The frames of the last stack: their addresses, and where on the stack they begin (rsp).
    #[inline]
    pub fn frames(&self) -> impl Iterator<Item = (u64, u64)> {
        self.frames[MOST_FRAMES - self.len..].iter().map(|it| (it.registers.rip, it.registers.rsp))
    }

    /// Walks until a remembered frame is proved, or to the end.
    fn extend(&mut self, tables: &Tables, registers: Registers, stack: Stack) -> Walked {
        self.seen = 0;
        if !self.last.is_provable {
            self.n_files = 0;
        }
        let mut old = if self.last.is_provable { MOST_FRAMES - self.len } else { MOST_FRAMES };
        let mut new =
            New { frame: Frame { registers, ..NO_FRAME }, count: 0, is_provable: true, file: None, file_bit: None };
        loop {
            match self.proved(&new.frame, &mut old, stack) {
                Some(rest) => return new.walked(rest, Ended { is_provable: new.is_provable, ..self.last }),
                // What is new is written where nothing is remembered any more.
                None if new.count == old => old = MOST_FRAMES,
                None => {}
            }
            if new.count == MOST_FRAMES {
                return new.ended(End::TooDeep);
            }
            let rule = self.rule(tables, &mut new);
            self.frames[new.count] = new.frame;
            new.count += 1;
            let caller = match rule {
                Ok(rule) => stack.caller(&rule, &new.frame.registers).map(|it| (it, rule.is_signal())),
                Err(end) => Err(end),
            };
            match caller {
                Ok((Caller::Frame(registers), is_interrupted)) => {
                    new.frame = Frame { registers, is_interrupted, ..NO_FRAME };
                }
                Ok((Caller::None, _)) => return new.ended(End::Root),
                Ok((Caller::Zero(at), _)) => {
                    let walked = new.ended(End::Root);
                    return Walked { ended: Ended { zero_at: at, ..walked.ended }, ..walked };
                }
                Err(end) => return new.ended(end),
            }
        }
    }

    /// The rule of a new frame, whose file and rule's number are noted in it.
    #[inline]
    fn rule(&mut self, tables: &Tables, new: &mut New) -> Result<Rule, End> {
        // A call may be the last instruction of its function.
        let address = new.frame.registers.rip.wrapping_sub(u64::from(!new.frame.is_interrupted));
        if new.file.is_none_or(|it| !it.object.holds(address)) {
            let (file, bit) = self.file(tables, address).ok_or(End::NoTable)?;
            (new.file, new.file_bit) = (Some(file), bit);
        }
        let known = new.file.map_or(Err(NoRule::NoTable), |it| tables.rule(&it, address));
        let known = known.map_err(|it| match it {
            NoRule::NoTable => End::NoTable,
            NoRule::Unsupported => End::Unsupported,
        })?;
        match (new.file_bit, known.id) {
            (Some(files), Some(rule)) => new.frame = Frame { files, rule, ..new.frame },
            _ => new.is_provable = false,
        }
        Ok(known.rule)
    }

    /// The index of this frame among the remembered ones, where it is proved that all from there to
    /// the root are what they were. `old` is the first that may still be met.
    #[inline]
    fn proved(&mut self, frame: &Frame, old: &mut usize, stack: Stack) -> Option<usize> {
        while *old < MOST_FRAMES && self.frames[*old].registers.rsp < frame.registers.rsp {
            *old += 1;
        }
        let remembered = *self.frames.get(*old).filter(|it| it.is_as(frame))?;
        let slots = &self.slots[..usize::from(remembered.slots)];
        if let Some(changed) = slots.iter().find(|it| stack.word(it.address) != Some(it.value)) {
            *old = changed.frame + 1;
            return None;
        }
        // Their addresses are on the stack, so their files stay mapped while they are looked at: if
        // they are other files by now, equal words have another meaning.
        if !(0..self.n_files).all(|at| remembered.files & 1 << at == 0 || self.is_still_there(at)) {
            *old = MOST_FRAMES;
            return None;
        }
        Some(*old)
    }

    /// Whether one of the files is still there. While a walk lasts it stays: the stack returns into it.
    #[inline]
    fn is_still_there(&mut self, at: usize) -> bool {
        if self.seen & 1 << at == 0 && self.files[at].object.is_still_there() {
            self.seen |= 1 << at;
        }
        self.seen & 1 << at != 0
    }

    /// The file at an address of the stack, and its bit; it has none where there is no room, or
    /// another file was there.
    fn file(&mut self, tables: &Tables, address: u64) -> Option<(File, Option<u32>)> {
        let known = self.files[..self.n_files].iter().position(|it| it.object.holds(address));
        if let Some(at) = known.filter(|at| self.is_still_there(*at)) {
            return Some((self.files[at], Some(1 << at)));
        }
        let file = tables.file(address)?;
        match self.files.get_mut(self.n_files).filter(|_| known.is_none()) {
            Some(free) => {
                *free = file;
                self.seen |= 1 << self.n_files;
                self.n_files += 1;
                Some((file, Some(1 << (self.n_files - 1))))
            }
            None => Some((file, None)),
        }
    }

    /// Puts what is new before what is proved. What is new fits there: nothing was written over
    /// what is remembered.
    fn splice(&mut self, tables: &Tables, walked: &Walked) {
        let Walked { new, rest, ended } = *walked;
        let first = rest - new;
        self.frames.copy_within(..new, first);
        self.len = MOST_FRAMES - first;
        self.last = ended;
        for at in (first..rest).rev() {
            self.addresses[at] = self.frames[at].registers.rip;
            self.last.is_provable = self.last.is_provable && self.note_slots(tables, at);
        }
    }

    /// Notes what of its registers and words a new frame's callers follow from; whether there was room.
    fn note_slots(&mut self, tables: &Tables, at: usize) -> bool {
        let Some(next) = self.frames.get(at + 1).copied() else {
            // The last frame's callers are none, because of its address or of a word that is 0.
            self.frames[at].slots = match self.last.zero_at {
                0 => 0,
                address => self.note(0, Slot { address, value: 0, frame: at }),
            };
            return true;
        };
        let Frame { registers, rule, .. } = self.frames[at];
        let Some(rule) = tables.known(rule).map(|it| it.rule) else { return false };
        let mut n = next.slots;
        if usize::from(n) + RIP + 2 > MOST_SLOTS {
            return false;
        }
        let cfa = next.registers.rsp;
        if let Cfa::IsAt(address) = rule.cfa(&registers) {
            n = self.note(n, Slot { address, value: cfa, frame: at });
        }
        let in_memory = rule.in_memory();
        for register in (0..=RIP).filter(|it| in_memory & (next.needed | 1 << RIP) & 1 << it != 0) {
            let address = rule.slot(register, &registers, cfa);
            let value = if register == RIP { next.registers.rip } else { next.registers.saved[register] };
            n = self.note(n, Slot { address, value, frame: at });
        }
        let frame = &mut self.frames[at];
        frame.needed = rule.reads() | next.needed & !in_memory;
        frame.slots = n;
        frame.files |= next.files;
        true
    }

    #[inline]
    fn note(&mut self, at: u16, slot: Slot) -> u16 {
        self.slots[usize::from(at)] = slot;
        at + 1
    }
}

impl Frame {
    /// Whether it is the same frame as a new one, as far as its callers follow from its registers.
    #[inline]
    fn is_as(&self, new: &Frame) -> bool {
        let (ours, theirs) = (&self.registers, &new.registers);
        ours.rip == theirs.rip
            && ours.rsp == theirs.rsp
            && self.is_interrupted == new.is_interrupted
            && (0..SAVED).all(|at| self.needed & 1 << at == 0 || ours.saved[at] == theirs.saved[at])
    }
}

/// What a frame leads to.
enum Caller {
    Frame(Registers),
    /// Nothing: it is the first.
    None,
    /// Nothing, for the return address at this place is 0.
    Zero(u64),
}

/// The thread's own stack, the only memory that is read.
#[derive(Clone, Copy)]
struct Stack(Bounds);

impl Stack {
    #[inline]
    fn word(self, address: u64) -> Option<u64> {
        // SAFETY: within the stack and above the walk's first rsp, as its caller promised.
        self.0.holds_word(address).then(|| unsafe { *(address as *const u64) })
    }

    #[inline]
    fn caller(self, rule: &Rule, registers: &Registers) -> Result<Caller, End> {
        if rule.is_root() {
            return Ok(Caller::None);
        }
        let cfa = match rule.cfa(registers) {
            Cfa::Is(address) => address,
            Cfa::IsAt(address) => self.word(address).ok_or(End::OffStack)?,
        };
        // A caller's frame lies outside its callee's.
        if cfa <= registers.rsp {
            return Err(End::OffStack);
        }
        let rip_at = rule.slot(RIP, registers, cfa);
        let mut caller = Registers { rip: self.word(rip_at).ok_or(End::OffStack)?, rsp: cfa, ..*registers };
        if caller.rip == 0 {
            return Ok(Caller::Zero(rip_at));
        }
        let mut in_memory = rule.in_memory() & !(1 << RIP);
        while in_memory != 0 {
            let at = in_memory.trailing_zeros() as usize;
            caller.saved[at] = self.word(rule.slot(at, registers, cfa)).ok_or(End::OffStack)?;
            in_memory &= in_memory - 1;
        }
        Ok(Caller::Frame(caller))
    }
}
