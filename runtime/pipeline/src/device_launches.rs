//! What the numbers stand for that real GPUs have of their launches (`%gridid`): the tracer learns it from kernels' records.

use crate::process_info::ProcessIndex;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::ops::Range;
use xputrace_bytecode::BpfMapId;
use xputrace_model::context::GpuContext;
use xputrace_model::plan::LaunchPart;

/// Maximum number of launches that are known.
const MOST_LAUNCHES: usize = 1 << 16;
const WORD: usize = size_of::<u64>();

/// Whose launches are numbered: one context of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) process: ProcessIndex,
    /// The vendor's id.
    pub(crate) context: u32,
}

/// The launches of kernels that device code ran in, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct DeviceLaunches {
    parts: Vec<LaunchPart>,
    /// The words of each part, one part behind the other: the flag and the value. `None` if launches that differ in them have
    /// the same number.
    known: FxHashMap<(Owner, u64), Option<Box<[u64]>>>,
    n_unknown: u64,
}

impl DeviceLaunches {
    pub(crate) fn new(parts: Vec<LaunchPart>) -> Self {
        DeviceLaunches { parts, ..DeviceLaunches::default() }
    }

    /// Learns from a kernel's event what the number of its launch stands for. A node of a graph has one number for all
    /// launches of the graph.
    pub(crate) fn learn(&mut self, owner: Owner, number: u64, event: &GpuContext) {
        if self.parts.is_empty() {
            return;
        }
        let words = self.parts.iter().flat_map(|it| [event[it.flag], event[it.value]]).collect::<Box<[u64]>>();
        let has_room = self.known.len() < MOST_LAUNCHES;
        match self.known.get_mut(&(owner, number)) {
            Some(Some(known)) if *known == words => {}
            Some(known) => {
                *known = None;
                self.n_unknown += 1;
            }
            None if has_room => _ = self.known.insert((owner, number), Some(words)),
            None => self.n_unknown += 1,
        }
    }

    /// Returns how many launches are not told of.
    pub(crate) fn n_unknown(&self) -> u64 {
        self.n_unknown
    }

    /// Returns a map's key with what its launch is in place of the launch's number, or with nothing if that is not known.
    pub(crate) fn told<'k>(&self, map: BpfMapId, owner: Owner, key: &'k [u8]) -> Cow<'k, [u8]> {
        let mut told = Cow::Borrowed(key);
        for (at, part) in self.parts.iter().enumerate().filter(|it| it.1.map == map) {
            let [flag, value] = [part.offset, part.offset + WORD].map(|it| it..it + WORD);
            let Some(number) = word(key, &value) else { continue };
            let known = self.known.get(&(owner, number)).and_then(Option::as_deref);
            let is_there = |words: &&[u64]| words[2 * at] != 0;
            let words = known.filter(is_there).map_or([0; 2], |it| [1, it[2 * at + 1]]);
            let told = told.to_mut();
            told[flag].copy_from_slice(&words[0].to_le_bytes());
            told[value].copy_from_slice(&words[1].to_le_bytes());
        }
        told
    }
}

fn word(bytes: &[u8], at: &Range<usize>) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at.clone())?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::context::{WORDS, word};

    const MAP: BpfMapId = BpfMapId(3);
    const HERE: Owner = Owner { process: ProcessIndex(0), context: 1 };

    /// Two parts of a key, with another one before and between them.
    fn launches() -> DeviceLaunches {
        let stack = LaunchPart { map: MAP, offset: 8, flag: word::JOINED, value: word::LAUNCH_USTACK };
        let tag = LaunchPart { map: MAP, offset: 32, flag: word::LAUNCH_TAGGED, value: word::LAUNCH_TAG };
        DeviceLaunches::new(vec![stack, tag])
    }

    fn event(words: &[(usize, u64)]) -> GpuContext {
        let mut ctx = [0; WORDS];
        words.iter().for_each(|(at, value)| ctx[*at] = *value);
        ctx
    }

    fn bytes(words: [u64; 6]) -> Vec<u8> {
        words.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    #[test]
    fn numbers_become_what_they_stand_for() {
        let mut launches = launches();
        let tagged = [(word::JOINED, 1), (word::LAUNCH_USTACK, 70), (word::LAUNCH_TAGGED, 1), (word::LAUNCH_TAG, 9)];
        launches.learn(HERE, 41, &event(&tagged));
        launches.learn(HERE, 42, &event(&[(word::JOINED, 1), (word::LAUNCH_USTACK, 71)]));
        launches.learn(HERE, 43, &event(&[(word::LAUNCH_USTACK, 72)]));
        let told = |number: u64| launches.told(MAP, HERE, &bytes([5, number, number, 6, number, number])).into_owned();
        assert_eq!(told(41), bytes([5, 1, 70, 6, 1, 9]));
        assert_eq!(told(42), bytes([5, 1, 71, 6, 0, 0]), "without a tag");
        assert_eq!(told(43), bytes([5, 0, 0, 6, 0, 0]), "its launch was not joined");
        assert_eq!(told(44), bytes([5, 0, 0, 6, 0, 0]), "nothing was heard of it");
        let key = bytes([5, 41, 41, 6, 41, 41]);
        assert_eq!(*launches.told(BpfMapId(0), HERE, &key), key, "a map of other keys");
        let elsewhere = Owner { context: 2, ..HERE };
        assert_eq!(*launches.told(MAP, elsewhere, &key), bytes([5, 0, 0, 6, 0, 0]), "another context's number");
        assert_eq!(launches.n_unknown(), 0);
    }

    #[test]
    fn a_number_of_different_launches_stands_for_none() {
        let mut launches = launches();
        let from = |stack| event(&[(word::JOINED, 1), (word::LAUNCH_USTACK, stack)]);
        [7, 7, 7].into_iter().for_each(|stack| launches.learn(HERE, 1, &from(stack)));
        assert_eq!(*launches.told(MAP, HERE, &bytes([0, 1, 1, 0, 0, 0])), bytes([0, 1, 7, 0, 0, 0]));
        [8, 7].into_iter().for_each(|stack| launches.learn(HERE, 1, &from(stack)));
        assert_eq!(*launches.told(MAP, HERE, &bytes([0, 1, 1, 0, 0, 0])), bytes([0, 0, 0, 0, 0, 0]));
        assert_eq!(launches.n_unknown(), 2);
    }

    #[test]
    fn no_more_launches_are_kept_than_fit_and_the_others_are_counted() {
        let mut launches = launches();
        let ctx = event(&[(word::JOINED, 1), (word::LAUNCH_USTACK, 70)]);
        (0..MOST_LAUNCHES as u64 + 5).for_each(|number| launches.learn(HERE, number, &ctx));
        assert_eq!((launches.known.len(), launches.n_unknown()), (MOST_LAUNCHES, 5));
    }
}
