//! Stacks that a thread had before: proved to be the same again, without a walk.
//!
//! A program in a loop comes back to the same stacks. Each is kept with all that its frames follow from
//! (see [`crate::walk`]), and with a number by which its owner knows it. If the innermost frame has the
//! address and registers that it had then, all words of the stack that the rules read have their values, and
//! the files are still mapped, then all frames to the root are the same, and so is the number. The words
//! are read at known addresses, so none waits for another, as in a walk.
//!
//! Which of the kept stacks it may be, a [`StackMemoryKey`] tells. A wrong guess costs little: the inner words are
//! compared first.

use crate::registers::{Bounds, Registers};
use crate::walk::{Files, Proof, StackWord, Walker};
use std::ops::Range;

/// What tells stacks apart before they are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackMemoryKey {
    /// What the number of a stack depends on, beside its frames.
    pub about: [u64; 2],
    /// Anything that likely differs where stacks do, as what is called.
    pub hint: u64,
}

/// A thread's stacks of before: 368 KiB, of which each stack that is kept touches about one. If all its bytes are
/// 0, it keeps nothing. A newer stack takes the place of an older one.
#[derive(Debug)]
#[repr(C)]
pub struct StackMemory {
    /// The hash of each stack, 0 for none. A stack is in the window that begins where its hash says.
    tags: [u64; STACKS],
    ages: [Age; STACKS],
    /// Meaningless where only the tag is there.
    stacks: [Kept; STACKS],
    /// The words of all stacks, one stack's after another's.
    words: [Words; WORDS],
    /// How many of `words` were written, or left out at the end, since the beginning.
    written: u64,
}

const STACKS: usize = 512;
const WINDOW: usize = 16;
const WORDS: usize = 8192;

/// A stack.
#[derive(Clone, Copy, Debug)]
struct Kept {
    about: [u64; 2],
    rip: u64,
    rsp: u64,
    /// Meaningless unless `needs_rbp`.
    rbp: u64,
    /// Where the thread's stack ends.
    high: u64,
    files: Files,
    /// How many of [`StackMemory::words`] it has.
    len: u32,
    value: u32,
    needs_rbp: bool,
}

/// When a stack came, and whether it was kept then. It is only when it comes again, so that a program that never
/// comes back to a stack doesn't write the words of each.
#[derive(Clone, Copy, Debug)]
struct Age(u64);

impl Age {
    fn noted(written: u64) -> Self {
        Age(written << 1)
    }

    fn kept(begin: u64) -> Self {
        Age(begin << 1 | 1)
    }

    fn is_kept(self) -> bool {
        self.0 & 1 != 0
    }

    /// Value of [`StackMemory::written`] before its words were.
    fn begin(self) -> u64 {
        self.0 >> 1
    }
}

/// Words of a stack, the inner ones first.
#[derive(Clone, Copy, Debug)]
struct Words {
    /// Their places, in words from rsp.
    places: [u16; EACH],
    values: [u64; EACH],
}

const EACH: usize = 4;

const NO_WORDS: Words = Words { places: [0; EACH], values: [0; EACH] };
const NOTHING: Kept =
    Kept { about: [0; 2], rip: 0, rsp: 0, rbp: 0, high: 0, files: Files::NONE, len: 0, value: 0, needs_rbp: false };

impl Default for StackMemory {
    fn default() -> Self {
        StackMemory::new()
    }
}

impl StackMemory {
    /// Keeps nothing yet.
    pub const fn new() -> Self {
        StackMemory {
            tags: [0; STACKS],
            ages: [Age(0); STACKS],
            stacks: [NOTHING; STACKS],
            words: [NO_WORDS; WORDS],
            written: 0,
        }
    }

    /// Returns the number that a stack was kept with, if it is proved that the thread has this stack.
    ///
    /// # Safety
    /// As for [`Walker::walk`].
    #[inline]
    pub unsafe fn recall(
        &self,
        walker: &mut Walker,
        key: &StackMemoryKey,
        registers: &Registers,
        bounds: Bounds,
    ) -> Option<u32> {
        let tag = tag(key, registers.rsp);
        let mut kept = self.with_tag(tag).filter(|at| self.ages[*at].is_kept());
        kept.find_map(|at| {
            let kept = Some(&self.stacks[at]).filter(|it| it.may_be(key, registers, bounds))?;
            let words = self.words_of(at)?;
            // SAFETY: the caller promises a stack that is readable within the bounds: the words were within them, from
            // this rsp on.
            let is_same = unsafe { are_equal(words, registers.rsp) } && walker.are_still_there(kept.files);
            is_same.then_some(kept.value)
        })
    }

    /// Keeps a number with the walker's last stack, if that can be proved later, and such a stack came before. `key`
    /// and `bounds` are those of the call.
    pub fn keep(&mut self, walker: &Walker, key: &StackMemoryKey, bounds: Bounds, value: u32) {
        if let Some(proof) = walker.proof().filter(|it| it.rsp.is_multiple_of(8)) {
            self.keep_proof(&proof, key, bounds, value);
        }
    }

    fn keep_proof(&mut self, proof: &Proof<'_>, key: &StackMemoryKey, bounds: Bounds, value: u32) {
        let tag = tag(key, proof.rsp);
        let Some(at) = self.with_tag(tag).find(|at| !self.ages[*at].is_kept()) else {
            let at = self.oldest(window(tag));
            (self.tags[at], self.ages[at]) = (tag, Age::noted(self.written));
            return;
        };
        let len = proof.slots.len().div_ceil(EACH);
        let Some(begin) = self.add(proof, len) else { return };
        self.ages[at] = Age::kept(begin);
        self.stacks[at] = Kept {
            about: key.about,
            rip: proof.rip,
            rsp: proof.rsp,
            rbp: proof.rbp.unwrap_or(0),
            high: bounds.high,
            files: proof.files,
            len: len as u32,
            value,
            needs_rbp: proof.rbp.is_some(),
        };
    }

    /// The places of the stacks with this hash.
    #[inline]
    fn with_tag(&self, tag: u64) -> impl Iterator<Item = usize> {
        let window = window(tag);
        // Windows are filled from their beginning, and nothing is removed.
        let tags = self.tags[window.clone()].iter().zip(window).take_while(|(theirs, _)| **theirs != 0);
        tags.filter(move |(theirs, _)| **theirs == tag).map(|(_, at)| at)
    }

    /// Writes the words of a stack, and returns where they begin; `None` if they don't fit, or lie too far apart.
    fn add(&mut self, proof: &Proof<'_>, len: usize) -> Option<u64> {
        let at = (self.written % WORDS as u64) as usize;
        let left_out = if at + len > WORDS { WORDS - at } else { 0 };
        let begin = self.written + left_out as u64;
        let room = self.words.get_mut((at + left_out) % WORDS..)?.get_mut(..len)?;
        // What is overwritten is no longer found, whether all of this is written or not.
        self.written = begin + len as u64;
        let mut slots = proof.slots.iter().rev();
        for words in room {
            // The last ones are repeated where there are fewer.
            let mut last = StackWord { address: proof.rsp, value: 0 };
            for at in 0..EACH {
                last = match slots.next() {
                    Some(next) => *next,
                    None if at == 0 => return None,
                    None => last,
                };
                words.places[at] = u16::try_from(last.address.checked_sub(proof.rsp)? / 8).ok()?;
                words.values[at] = last.value;
            }
        }
        Some(begin)
    }

    /// The first free place of a window, or the one whose stack came longest ago.
    fn oldest(&self, window: Range<usize>) -> usize {
        let begin = window.start;
        let came = |at: &usize| if self.tags[*at] == 0 { 0 } else { self.ages[*at].begin() + 1 };
        window.min_by_key(came).unwrap_or(begin)
    }

    /// The words of a stack that was kept; `None` if they were overwritten.
    #[inline]
    fn words_of(&self, at: usize) -> Option<&[Words]> {
        let begin = self.ages[at].begin();
        let is_there = self.written - begin <= WORDS as u64;
        let words = self.words.get((begin % WORDS as u64) as usize..)?;
        words.get(..self.stacks[at].len as usize).filter(|_| is_there)
    }
}

impl Kept {
    /// Whether the innermost frame is the same, on the same stack.
    #[inline]
    fn may_be(&self, key: &StackMemoryKey, registers: &Registers, bounds: Bounds) -> bool {
        self.about == key.about
            && self.rip == registers.rip
            && self.rsp == registers.rsp
            && self.high == bounds.high
            && bounds.low <= registers.rsp
            && (!self.needs_rbp || self.rbp == registers.saved[crate::rule::RBP])
    }
}

/// # Safety
/// The words of the stack from `rsp` on are readable at these places.
#[inline]
unsafe fn are_equal(all: &[Words], rsp: u64) -> bool {
    let stack = rsp as *const u64;
    all.iter().all(|words| {
        // SAFETY: the caller promises that the words of the stack from `rsp` on are readable at these places.
        let differs = |at: usize| unsafe { *stack.add(usize::from(words.places[at])) } ^ words.values[at];
        (0..EACH).fold(0, |bits, at| bits | differs(at)) == 0
    })
}

/// Never 0.
#[inline]
fn tag(key: &StackMemoryKey, rsp: u64) -> u64 {
    let parts = [key.about[0], key.about[1], key.hint, rsp];
    let factors = [0x9e37_79b9_7f4a_7c15, 0xc4ce_b9fe_1a85_ec53, 0xff51_afd7_ed55_8ccd, 0x9fb2_1c65_1e98_df25_u64];
    let sum =
        parts.iter().zip(factors).fold(0, |sum, (part, factor)| (sum ^ part.wrapping_mul(factor)).rotate_left(17));
    crate::objects::mix(sum) | 1
}

#[inline]
fn window(tag: u64) -> Range<usize> {
    const BEGINS: u64 = (STACKS - WINDOW + 1) as u64;
    let begin = (((tag >> 32) * BEGINS) >> 32) as usize;
    begin..begin + WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    impl StackMemory {
        /// Keeps a stack that comes for the second time.
        fn keep_again(&mut self, proof: &Proof<'_>, key: &StackMemoryKey, bounds: Bounds, value: u32) {
            (0..2).for_each(|_| self.keep_proof(proof, key, bounds, value));
        }
    }

    const DEPTH: usize = 40;

    /// A stack whose words are all different, and what it follows from: every third word, as they are.
    struct Made {
        words: Box<[u64; 3 * DEPTH]>,
        slots: Vec<StackWord>,
    }

    impl Made {
        fn new(seed: u64) -> Self {
            let words = Box::new(std::array::from_fn(|at| seed << 32 | at as u64));
            let mut made = Made { words, slots: Vec::new() };
            let slot = |at| StackWord { address: made.rsp() + 8 * at as u64, value: made.words[at] };
            made.slots = (1..DEPTH).rev().map(|frame| slot(3 * frame)).collect();
            made
        }

        fn rsp(&self) -> u64 {
            self.words.as_ptr() as u64
        }

        fn bounds(&self) -> Bounds {
            Bounds { low: self.rsp(), high: self.rsp() + 8 * self.words.len() as u64 }
        }

        fn proof(&self, rbp: Option<u64>) -> Proof<'_> {
            Proof { rip: 0x1000, rsp: self.rsp(), rbp, slots: &self.slots, files: Files::NONE }
        }

        fn registers(&self) -> Registers {
            Registers { rip: 0x1000, rsp: self.rsp(), saved: [0, 7, 0, 0, 0, 0] }
        }

        fn recalled(&self, memory: &StackMemory, key: &StackMemoryKey) -> Option<u32> {
            // SAFETY: the words are there up to `bounds().high`.
            unsafe { memory.recall(&mut Walker::new(), key, &self.registers(), self.bounds()) }
        }
    }

    const KEY: StackMemoryKey = StackMemoryKey { about: [1, 2], hint: 3 };

    #[test]
    fn every_word_that_frames_follow_from_is_compared_and_no_other() {
        let (mut memory, mut made) = (Box::new(StackMemory::new()), Made::new(1));
        memory.keep_again(&made.proof(Some(7)), &KEY, made.bounds(), 5);
        assert_eq!(made.recalled(&memory, &KEY), Some(5));
        for at in 0..made.words.len() {
            made.words[at] ^= 1 << 40;
            let is_needed = at % 3 == 0 && at > 0;
            assert_eq!(made.recalled(&memory, &KEY), (!is_needed).then_some(5), "word {at}");
            made.words[at] ^= 1 << 40;
        }
        assert_eq!(made.recalled(&memory, &KEY), Some(5));
    }

    #[test]
    fn a_stack_is_kept_when_it_comes_again() {
        let (mut memory, made) = (Box::new(StackMemory::new()), Made::new(1));
        memory.keep_proof(&made.proof(None), &KEY, made.bounds(), 5);
        assert_eq!((made.recalled(&memory, &KEY), memory.written), (None, 0));
        memory.keep_proof(&made.proof(None), &KEY, made.bounds(), 5);
        assert_eq!(made.recalled(&memory, &KEY), Some(5));
    }

    #[test]
    fn registers_bounds_and_what_the_number_depends_on_are_compared() {
        let (mut memory, made) = (Box::new(StackMemory::new()), Made::new(1));
        memory.keep_again(&made.proof(Some(7)), &KEY, made.bounds(), 5);
        let recalled = |key: &StackMemoryKey, change: fn(&mut Registers, &mut Bounds)| {
            let (mut registers, mut bounds) = (made.registers(), made.bounds());
            change(&mut registers, &mut bounds);
            // SAFETY: the words are there up to `bounds().high`.
            unsafe { memory.recall(&mut Walker::new(), key, &registers, bounds) }
        };
        assert_eq!(recalled(&KEY, |_, _| {}), Some(5));
        assert_eq!(recalled(&KEY, |it, _| it.saved[0] = 9), Some(5), "no rule reads it");
        assert_eq!(recalled(&KEY, |it, _| it.saved[1] = 9), None);
        assert_eq!(recalled(&KEY, |it, _| it.rip += 1), None);
        assert_eq!(recalled(&KEY, |it, _| it.rsp += 8), None);
        assert_eq!(recalled(&KEY, |_, it| it.high -= 8), None);
        assert_eq!(recalled(&StackMemoryKey { about: [1, 3], ..KEY }, |_, _| {}), None);
        assert_eq!(recalled(&StackMemoryKey { about: [9, 2], ..KEY }, |_, _| {}), None);
    }

    #[test]
    fn rbp_is_compared_only_where_a_rule_reads_it() {
        let (mut memory, made) = (Box::new(StackMemory::new()), Made::new(1));
        memory.keep_again(&made.proof(None), &KEY, made.bounds(), 5);
        let registers = Registers { saved: [0, 9, 0, 0, 0, 0], ..made.registers() };
        // SAFETY: the words are there up to `bounds().high`.
        let recalled = unsafe { memory.recall(&mut Walker::new(), &KEY, &registers, made.bounds()) };
        assert_eq!(recalled, Some(5));
    }

    #[test]
    fn words_too_far_apart_are_not_kept() {
        let (mut memory, made) = (Box::new(StackMemory::new()), Made::new(1));
        let far = StackWord { address: made.rsp() + 8 * (1 + u64::from(u16::MAX)), value: 1 };
        let slots = [&[far], &made.slots[..]].concat();
        memory.keep_again(&Proof { slots: &slots, ..made.proof(None) }, &KEY, made.bounds(), 5);
        assert_eq!(made.recalled(&memory, &KEY), None);
    }

    #[test]
    fn newer_stacks_take_the_places_of_older_ones_and_none_is_taken_for_another() {
        let mut memory = Box::new(StackMemory::new());
        let stacks: Vec<_> = (0..3000).map(Made::new).collect();
        for (value, made) in stacks.iter().enumerate() {
            // Of one hash in a hundred, so that windows overflow too.
            let key = StackMemoryKey { hint: value as u64 / 100, ..KEY };
            memory.keep_again(&made.proof(Some(7)), &key, made.bounds(), value as u32);
            assert_eq!(made.recalled(&memory, &key), Some(value as u32));
            let before = value.saturating_sub(1000)..value;
            for (value, made) in before.clone().zip(&stacks[before]).step_by(37) {
                let found = made.recalled(&memory, &StackMemoryKey { hint: value as u64 / 100, ..KEY });
                assert!(found.is_none_or(|it| it == value as u32), "{value}: {found:?}");
            }
        }
        let key = |value: usize| StackMemoryKey { hint: value as u64 / 100, ..KEY };
        let is_kept = |value: &usize| stacks[*value].recalled(&memory, &key(*value)).is_some();
        let kept = (0..stacks.len()).filter(is_kept).count();
        assert!((300..=STACKS).contains(&kept), "{kept}");
        assert_eq!((0..2000).filter(is_kept).count(), 0, "their words were overwritten");
    }
}
