//! A thread's stack: walked where it is new, proved unchanged where it is old.
//!
//! Most of a stack stays the same between two launches. A frame's caller follows from the frame's
//! registers and the words of memory that its rule reads. So if a frame has the same address, rsp
//! and registers as before, and every word that the rules from there to the root read still has its
//! value, all frames to the root are the same. Reading those words is far cheaper than finding the
//! rules, and it is a proof, not a guess.

use crate::objects::MappedObject;
use crate::registers::{Bounds, Registers, SAVED};
use crate::rule::{Cfa, RBP, RIP, Rule, Step};
use crate::tables::{File, NO_FILE, NoRule, RuleId, UnwindTables};

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

/// One thread's last stack: about 60 KiB, of which stacks of usual depth touch a third. If all its
/// bytes are 0, it remembers nothing.
#[derive(Debug)]
#[repr(C)]
pub struct Walker {
    /// At the array's end the last stack, its root last; at its beginning the new frames of the walk
    /// under way.
    frames: [WalkedFrame; MOST_FRAMES],
    /// The addresses of the last stack, at the array's end, and where on the stack they begin (rsp).
    addresses: [u64; MOST_FRAMES],
    places: [u64; MOST_FRAMES],
    /// Frames of the last stack.
    len: usize,
    /// The words that the last stack follows from, the root's first.
    slots: [StackWord; MOST_SLOTS],
    last: Ending,
    /// The files in which the frames of the last stacks were.
    files: [File; MOST_FILES],
    n_files: usize,
    /// Whether a file had no room there, or another one's place: the next walk begins with none.
    are_files_stale: bool,
    /// How often that happened.
    files_epoch: u64,
    /// The files that are known to be still mapped during this walk, as bits.
    seen: u32,
    /// Steps of addresses that the thread met before.
    steps: [Remembered; STEPS],
}

/// The step of an address, by [`File::key`]; 0 is none.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    key: u64,
    step: Step,
}

const STEPS: usize = 2048;
const NOT_REMEMBERED: Remembered = Remembered { key: 0, step: Step::NONE };

/// A word of the stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackWord {
    pub(crate) address: u64,
    pub(crate) value: u64,
}

impl Files {
    pub(crate) const NONE: Files = Files { bits: 0, epoch: 0 };
}

/// What the frames of a stack follow from, all the way to its root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof<'a> {
    /// Registers of the innermost frame.
    pub(crate) rip: u64,
    pub(crate) rsp: u64,
    /// `None` if no rule reads it.
    pub(crate) rbp: Option<u64>,
    /// The root's first.
    pub(crate) slots: &'a [StackWord],
    pub(crate) files: Files,
}

/// Some of a walker's files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    /// Bits of [`Walker::files`].
    bits: u32,
    /// Value of [`Walker::files_epoch`] while those are the files.
    epoch: u64,
}

/// Words of a stack that can be proved.
const MOST_SLOTS: usize = SLOTS_OF_FRAME * MOST_FRAMES;
/// A frame's: the word that says where its caller's begins, the return address, rbp.
const SLOTS_OF_FRAME: usize = 3;
const NO_SLOT: StackWord = StackWord { address: 0, value: 0 };

/// Files of a stack that can be proved.
const MOST_FILES: usize = 32;

/// A frame, and what leads to its caller. Small, because between two launches a program displaces it
/// from the processor's nearer caches; so it has only the registers from which nearly all rules count.
#[derive(Clone, Copy, Debug)]
struct WalkedFrame {
    rip: u64,
    rsp: u64,
    rbp: u64,
    /// Leads to the caller; if it is [`Step::NONE`], `rule` does. Meaningless in the last frame.
    step: Step,
    /// Its file, and those of the frames to the root, as bits of [`Walker::files`].
    files: u32,
    /// How many of [`Walker::slots`] the frames from here to the root follow from.
    slots: u16,
    rule: RuleId,
    /// Whether the rules from here to the root read rbp.
    needs_rbp: bool,
    /// Whether a signal interrupted it: its address is that of the next instruction, not of the one after a call.
    is_interrupted: bool,
}

/// What a frame and its callers up to the root follow from; see the fields of [`WalkedFrame`].
#[derive(Clone, Copy)]
struct Basis {
    rip: u64,
    rsp: u64,
    needs_rbp: bool,
    slots: u16,
    files: u32,
}

/// How a walk ended.
#[derive(Clone, Copy, Debug)]
struct Ending {
    end: End,
    /// The address of the null return address that ended it; else 0.
    zero_at: u64,
    /// Whether the next walk can prove the stack unchanged.
    is_provable: bool,
}

/// The result of a walk: new frames, then remembered ones.
struct Walked {
    n_new: usize,
    /// Index of the first remembered frame.
    rest: usize,
    ending: Ending,
}

/// The frames that a walk has found so far.
struct NewFrames {
    count: usize,
    is_provable: bool,
    /// The file of the last one, and its bit in [`Walker::files`].
    file: Option<File>,
    file_bit: Option<u32>,
}

impl NewFrames {
    /// Ends the walk where the remembered frames begin.
    fn joined(&self, rest: usize, ending: Ending) -> Walked {
        Walked { n_new: self.count, rest, ending }
    }

    fn ended(&self, end: End) -> Walked {
        self.ended_by(end, 0)
    }

    fn ended_by(&self, end: End, zero_at: u64) -> Walked {
        // Only a stack that leads to its root is remembered: another one may end elsewhere the next time.
        let is_provable = self.is_provable && end == End::Root;
        self.joined(MOST_FRAMES, Ending { end, zero_at, is_provable })
    }
}

const NO_FRAME: WalkedFrame = WalkedFrame {
    rip: 0,
    rsp: 0,
    rbp: 0,
    step: Step::NONE,
    files: 0,
    slots: 0,
    rule: 0,
    needs_rbp: false,
    is_interrupted: false,
};
const NOTHING: Ending = Ending { end: End::Root, zero_at: 0, is_provable: false };

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
            places: [0; MOST_FRAMES],
            len: 0,
            slots: [NO_SLOT; MOST_SLOTS],
            last: NOTHING,
            files: [NO_FILE; MOST_FILES],
            n_files: 0,
            are_files_stale: false,
            files_epoch: 0,
            seen: 0,
            steps: [NOT_REMEMBERED; STEPS],
        }
    }

    /// The addresses of a stack, innermost first, and why it ends. All but the first are return
    /// addresses, or were interrupted by a signal.
    ///
    /// # Safety
    /// `registers` are the calling thread's, of a function that has not returned, and the words
    /// from `registers.rsp` to `bounds.high` are readable where `registers.rsp` lies within `bounds`.
    pub unsafe fn walk(&mut self, tables: &UnwindTables, registers: Registers, bounds: Bounds) -> (&[u64], End) {
        let bounds = Bounds { low: bounds.low.max(registers.rsp & !7), ..bounds };
        let stack = Stack(bounds);
        let mut walked = self.extend(tables, registers, stack);
        if self.are_files_stale {
            // Another file is in one's place, or there was no room: walk again, with none kept from before.
            self.forget();
            walked = self.extend(tables, registers, stack);
        }
        self.splice(tables, &walked, stack);
        (self.last(), walked.ending.end)
    }

    /// Forgets the last stack.
    pub fn forget(&mut self) {
        self.last = NOTHING;
    }

    /// The addresses of the last stack.
    pub fn last(&self) -> &[u64] {
        &self.addresses[MOST_FRAMES - self.len..]
    }

    /// Where on the stack the frames of the last stack begin (rsp).
    pub fn places(&self) -> &[u64] {
        &self.places[MOST_FRAMES - self.len..]
    }

    /// The file that a frame of the last stack is in, by its address.
    #[inline]
    pub fn file_at(&self, address: u64) -> Option<MappedObject> {
        let address = address.wrapping_sub(1);
        if self.are_files_stale {
            // More files than are kept.
            return MappedObject::at(address);
        }
        self.files[..self.n_files].iter().map(|it| &it.object).find(|it| it.holds(address)).copied()
    }

    /// Calls `each` for the files that the last stack's frames are in, all but the innermost `skipped`. Where they are
    /// more than are kept, a file may come several times.
    #[inline]
    pub fn for_each_file(&self, skipped: usize, mut each: impl FnMut(&MappedObject)) {
        if self.are_files_stale {
            return self.for_each_frames_file(skipped, each);
        }
        let frames = &self.frames[(MOST_FRAMES - self.len + skipped).min(MOST_FRAMES)..];
        // The first frame has the files of those outside it too, if the stack can be proved.
        let frames = if self.last.is_provable { frames.get(..1).unwrap_or_default() } else { frames };
        let mut bits = frames.iter().fold(0, |bits, it| bits | it.files);
        while bits != 0 {
            each(&self.files[bits.trailing_zeros() as usize].object);
            bits &= bits - 1;
        }
    }

    #[cold]
    fn for_each_frames_file(&self, skipped: usize, mut each: impl FnMut(&MappedObject)) {
        let mut last: Option<MappedObject> = None;
        for address in self.last().iter().skip(skipped) {
            let address = address.wrapping_sub(1);
            if last.is_none_or(|it| !it.holds(address)) {
                last = MappedObject::at(address);
                last.iter().for_each(&mut each);
            }
        }
    }

    /// What the last stack follows from; `None` if that isn't known.
    pub(crate) fn proof(&self) -> Option<Proof<'_>> {
        let innermost = self.frames.get(MOST_FRAMES - self.len).filter(|_| self.last.is_provable)?;
        let WalkedFrame { rip, rsp, rbp, needs_rbp, slots, files, .. } = *innermost;
        let files = Files { bits: files, epoch: self.files_epoch };
        Some(Proof { rip, rsp, rbp: needs_rbp.then_some(rbp), slots: &self.slots[..usize::from(slots)], files })
    }

    /// Whether all of these files are still there, for a stack that has returns into each.
    #[inline]
    pub(crate) fn are_still_there(&mut self, files: Files) -> bool {
        self.seen = 0;
        files.epoch == self.files_epoch && self.all_are_still_there(files.bits)
    }

    /// Walks until a remembered frame is proved, or to the end.
    fn extend(&mut self, tables: &UnwindTables, mut registers: Registers, stack: Stack) -> Walked {
        self.seen = 0;
        if self.are_files_stale {
            // A stack of such a file is not provable: no frame refers to the files now.
            (self.n_files, self.are_files_stale) = (0, false);
            self.files_epoch += 1;
        }
        let mut old = if self.last.is_provable { MOST_FRAMES - self.len } else { MOST_FRAMES };
        let mut new = NewFrames { count: 0, is_provable: true, file: None, file_bit: None };
        let mut is_interrupted = false;
        loop {
            match self.proved(&registers, is_interrupted, &mut old, stack) {
                Some(rest) => return new.joined(rest, Ending { is_provable: new.is_provable, ..self.last }),
                // What is new is written where nothing is remembered now.
                None if new.count == old => old = MOST_FRAMES,
                None => {}
            }
            let Some(frame) = self.frames.get_mut(new.count) else { return new.ended(End::TooDeep) };
            new.count += 1;
            (frame.rip, frame.rsp, frame.rbp) = (registers.rip, registers.rsp, registers.saved[RBP]);
            frame.is_interrupted = is_interrupted;
            // A call may be the last instruction of its function.
            let address = registers.rip.wrapping_sub(u64::from(!is_interrupted));
            let caller = match self.step(tables, address, &mut new) {
                Some(step) => {
                    is_interrupted = false;
                    stack.stepped(step, &registers)
                }
                None => self.caller_by_rule(tables, address, registers, &mut new, stack).map(|(caller, is_signal)| {
                    is_interrupted = is_signal;
                    caller
                }),
            };
            match caller {
                Ok(Caller::Frame(it)) => registers = it,
                Ok(Caller::None) => return new.ended(End::Root),
                Ok(Caller::Zero(at)) => return new.ended_by(End::Root, at),
                Err(end) => return new.ended(end),
            }
        }
    }

    /// Returns the remembered step of the last new frame's address, and notes it in the frame, with the file.
    #[inline]
    fn step(&mut self, tables: &UnwindTables, address: u64, new: &mut NewFrames) -> Option<Step> {
        if new.file.is_none_or(|it| !it.object.holds(address)) {
            (new.file, new.file_bit) = match self.file(tables, address) {
                Some((file, bit)) => (Some(file), bit),
                None => (None, None),
            };
        }
        new.is_provable &= new.file_bit.is_some();
        let frame = &mut self.frames[new.count - 1];
        frame.files = new.file_bit.unwrap_or(0);
        let key = new.file.as_ref()?.key(address)?;
        let remembered = &self.steps[place(key)];
        let step = if remembered.key == key { remembered.step } else { Step::NONE };
        frame.step = step;
        step.is_some().then_some(step)
    }

    /// Finds the caller of the last new frame by its full rule: of an address that the thread meets for the first
    /// time, or whose rule has no [`Step`]. Also returns whether a signal interrupted that caller.
    #[inline(never)]
    fn caller_by_rule(
        &mut self,
        tables: &UnwindTables,
        address: u64,
        registers: Registers,
        new: &mut NewFrames,
        stack: Stack,
    ) -> Result<(Caller, bool), End> {
        let file = new.file.as_ref().ok_or(End::NoTable)?;
        let known = tables.rule(file, address).map_err(|it| match it {
            NoRule::NoTable => End::NoTable,
            NoRule::Unsupported => End::Unsupported,
        })?;
        let frame = &mut self.frames[new.count - 1];
        frame.step = Step::NONE;
        match (known.rule.step(), file.key(address), known.id) {
            (Some(step), Some(key), _) => {
                frame.step = step;
                self.steps[place(key)] = Remembered { key, step };
            }
            (_, _, Some(rule)) if known.rule.reads() & !(1 << RBP) == 0 => frame.rule = rule,
            // It reads a register that is not remembered.
            (_, _, _) => new.is_provable = false,
        }
        Ok((stack.caller(&known.rule, &registers)?, known.rule.is_signal()))
    }

    /// The index of this frame among the remembered ones, where it is proved that all from there to
    /// the root are what they were. `old` is the first that may still be met.
    #[inline]
    fn proved(&mut self, registers: &Registers, is_interrupted: bool, old: &mut usize, stack: Stack) -> Option<usize> {
        while *old < MOST_FRAMES && self.places[*old] < registers.rsp {
            *old += 1;
        }
        let remembered = self.frames.get(*old).filter(|it| it.is_as(registers, is_interrupted))?;
        let files = remembered.files;
        let slots = &self.slots[..usize::from(remembered.slots)];
        if let Some(changed) = slots.iter().find(|it| stack.word(it.address) != Some(it.value)) {
            // Frames within that word's follow from it.
            while *old < MOST_FRAMES && self.places[*old] <= changed.address {
                *old += 1;
            }
            return None;
        }
        // Their addresses are on the stack, so their files stay mapped while they are looked at: if
        // they are other files by now, equal words have another meaning.
        if !self.all_are_still_there(files) {
            *old = MOST_FRAMES;
            return None;
        }
        Some(*old)
    }

    #[inline]
    fn all_are_still_there(&mut self, mut files: u32) -> bool {
        while files != 0 {
            if !self.is_still_there(files.trailing_zeros() as usize) {
                return false;
            }
            files &= files - 1;
        }
        true
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
    fn file(&mut self, tables: &UnwindTables, address: u64) -> Option<(File, Option<u32>)> {
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
            None => {
                self.are_files_stale = true;
                Some((file, None))
            }
        }
    }

    /// Puts the new frames before the remembered ones, and notes what they follow from. They fit there: the walk wrote
    /// over nothing that is remembered.
    fn splice(&mut self, tables: &UnwindTables, walked: &Walked, stack: Stack) {
        let Walked { n_new, rest, ending } = *walked;
        let first = rest - n_new;
        self.frames.copy_within(..n_new, first);
        self.len = MOST_FRAMES - first;
        self.last = ending;
        let mut outer = self.frames.get(rest).map(Basis::of);
        for at in (first..rest).rev() {
            let frame = &self.frames[at];
            (self.addresses[at], self.places[at]) = (frame.rip, frame.rsp);
            if !self.last.is_provable {
                continue;
            }
            let noted = match outer {
                None => Some(self.note_last(at)),
                Some(outer) if frame.step.is_some() => self.note_step(at, &outer, stack),
                Some(outer) => self.note_rule(tables, at, &outer, stack),
            };
            self.last.is_provable = noted.is_some();
            if let Some(noted) = noted {
                let frame = &mut self.frames[at];
                (frame.needs_rbp, frame.slots, frame.files) = (noted.needs_rbp, noted.slots, noted.files);
                outer = Some(noted);
            }
        }
    }

    /// Notes that the last frame has no callers, because of its address or of a word that is 0.
    fn note_last(&mut self, at: usize) -> Basis {
        let slots = match self.last.zero_at {
            0 => 0,
            address => self.note(0, StackWord { address, value: 0 }),
        };
        Basis { needs_rbp: false, slots, ..Basis::of(&self.frames[at]) }
    }

    /// Notes which registers and words a new frame's callers follow from; `None` if there is no room.
    #[inline]
    fn note_step(&mut self, at: usize, outer: &Basis, stack: Stack) -> Option<Basis> {
        let step = self.frames[at].step;
        let mut slots = room(outer)?;
        slots = self.note(slots, StackWord { address: step.return_address(outer.rsp), value: outer.rip });
        let keeps_rbp = step.in_memory() & 1 << RBP != 0;
        if keeps_rbp && outer.needs_rbp {
            slots = self.note_word(slots, step.slot(RBP, outer.rsp), stack)?;
        }
        let WalkedFrame { rip, rsp, files, .. } = self.frames[at];
        let needs_rbp = step.reads_rbp() || outer.needs_rbp && !keeps_rbp;
        Some(Basis { rip, rsp, needs_rbp, slots, files: files | outer.files })
    }

    /// Does the same for a rule of another form that reads no register other than rbp.
    #[inline(never)]
    fn note_rule(&mut self, tables: &UnwindTables, at: usize, outer: &Basis, stack: Stack) -> Option<Basis> {
        let WalkedFrame { rip, rsp, rbp, files, rule, .. } = self.frames[at];
        let rule = tables.known(rule)?.rule;
        let mut registers = Registers { rip, rsp, saved: [0; SAVED] };
        registers.saved[RBP] = rbp;
        let mut slots = room(outer)?;
        if let Cfa::IsAt(address) = rule.cfa(&registers) {
            slots = self.note(slots, StackWord { address, value: outer.rsp });
        }
        slots = self.note(slots, StackWord { address: rule.slot(RIP, &registers, outer.rsp), value: outer.rip });
        let keeps_rbp = rule.in_memory() & 1 << RBP != 0;
        if keeps_rbp && outer.needs_rbp {
            slots = self.note_word(slots, rule.slot(RBP, &registers, outer.rsp), stack)?;
        }
        let needs_rbp = rule.reads() != 0 || outer.needs_rbp && !keeps_rbp;
        Some(Basis { rip, rsp, needs_rbp, slots, files: files | outer.files })
    }

    /// Notes a word as it is.
    #[inline]
    fn note_word(&mut self, at: u16, address: u64, stack: Stack) -> Option<u16> {
        Some(self.note(at, StackWord { address, value: stack.word(address)? }))
    }

    #[inline]
    fn note(&mut self, at: u16, slot: StackWord) -> u16 {
        self.slots[usize::from(at)] = slot;
        at + 1
    }
}

/// Where the step of this key is remembered.
#[inline]
fn place(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - STEPS.ilog2())) as usize
}

impl WalkedFrame {
    /// Whether it is the same frame as a new one, as far as its callers follow from its registers.
    #[inline]
    fn is_as(&self, theirs: &Registers, is_interrupted: bool) -> bool {
        self.rsp == theirs.rsp
            && self.rip == theirs.rip
            && self.is_interrupted == is_interrupted
            && (!self.needs_rbp || self.rbp == theirs.saved[RBP])
    }
}

impl Basis {
    fn of(frame: &WalkedFrame) -> Self {
        let WalkedFrame { rip, rsp, needs_rbp, slots, files, .. } = *frame;
        Basis { rip, rsp, needs_rbp, slots, files }
    }
}

/// Where a frame's slots begin, if there is room for as many as one may have.
#[inline]
fn room(outer: &Basis) -> Option<u16> {
    (usize::from(outer.slots) + SLOTS_OF_FRAME <= MOST_SLOTS).then_some(outer.slots)
}

/// A frame's caller.
enum Caller {
    Frame(Registers),
    /// There is none: the frame is that of the program's or the thread's first function.
    None,
    /// There is none: the return address, which is at this address, is null.
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
    fn stepped(self, step: Step, registers: &Registers) -> Result<Caller, End> {
        let cfa = step.cfa(registers);
        // A caller's frame lies outside its callee's. All words that are read lie between the two that
        // are looked at here.
        if cfa <= registers.rsp || !self.0.holds_word(step.lowest(cfa)) || !self.0.holds_word(cfa.wrapping_sub(8)) {
            return Err(End::OffStack);
        }
        // SAFETY: between the lowest word of the step and the one below `cfa`, which are the stack's.
        let word = |address: u64| unsafe { *(address as *const u64) };
        let rip = word(step.return_address(cfa));
        if rip == 0 {
            return Ok(Caller::Zero(step.return_address(cfa)));
        }
        let mut saved = registers.saved;
        for (at, saved) in saved.iter_mut().enumerate() {
            // No branch, which would be mispredicted often: for a register that is not in memory, reads
            // a word that is there, and discards it.
            let is_there = step.in_memory() & 1 << at != 0;
            let found = word(if is_there { step.slot(at, cfa) } else { step.return_address(cfa) });
            *saved = if is_there { found } else { *saved };
        }
        Ok(Caller::Frame(Registers { rip, rsp: cfa, saved }))
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
