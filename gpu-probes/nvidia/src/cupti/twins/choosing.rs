//! At which launches a kernel's handlers run. Decided at each launch of a kernel whose handlers have conditions, from any
//! thread, without a lock.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use xputrace_agent::zeroed::{ZeroIsValid, Zeroed};
use xputrace_wire::device::{self, Choice, Condition, Control, MOST_CONDITIONS, MOST_KERNEL_CONDITIONS};

/// What conditions ask of a launch.
pub(crate) trait AskLaunch {
    /// The tag that it was given.
    fn tag(&self) -> Option<i64>;
    /// The id of its stream in records. A node of a graph has none.
    fn stream(&self) -> Option<u32>;
}

/// Kernels whose handlers have conditions.
const MOST_KERNELS: usize = 1 << 14;

/// Number of choices that a kernel's conditions leave.
pub(super) const CHOICES: u8 = device::CHOICES as u8;

/// A kernel whose handlers have conditions, from 1 on; 0 stands for any other.
pub(crate) type KernelNumber = u32;

/// What such a kernel's launches are counted in.
#[derive(Debug)]
#[repr(C)]
struct Counters {
    /// Its conditions, as the word of a [`Choice`].
    conditions: AtomicU32,
    unused: u32,
    /// Launches that met each of them, but for `every`.
    met: [AtomicU64; MOST_KERNEL_CONDITIONS],
}

// SAFETY: atomics and an integer.
unsafe impl ZeroIsValid for Counters {}

/// All of them, by number.
#[derive(Debug)]
pub(crate) struct Kernels {
    all: Zeroed<Counters>,
    n: AtomicU32,
}

impl Kernels {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Kernels { all: Zeroed::new(MOST_KERNELS)?, n: AtomicU32::new(0) })
    }

    /// Numbers a kernel; `None` if they are too many. One thread at a time.
    pub(crate) fn add(&self, choice: Choice) -> Option<KernelNumber> {
        let conditions = u32::from(Choice { holding: 0, ..choice });
        if conditions == 0 {
            return Some(0);
        }
        let at = self.n.load(Ordering::Relaxed);
        self.all.get(at as usize)?.conditions.store(conditions, Ordering::Release);
        self.n.store(at + 1, Ordering::Relaxed);
        Some(at + 1)
    }

    /// Gives a kernel with conditions a number whose kernel is gone.
    pub(crate) fn reuse(&self, number: KernelNumber, choice: Choice) {
        let counters = &self.all[number as usize - 1];
        counters.met.iter().for_each(|it| it.store(0, Ordering::Relaxed));
        counters.conditions.store(Choice { holding: 0, ..choice }.into(), Ordering::Release);
    }

    /// Returns a kernel's conditions, of which these hold.
    pub(crate) fn choice(&self, number: KernelNumber, holding: u8) -> Choice {
        let conditions = number.checked_sub(1).map(|at| &self.all[at as usize].conditions);
        let of_kernel = conditions.and_then(|it| it.load(Ordering::Acquire).try_into().ok()).unwrap_or_default();
        Choice { holding, ..of_kernel }
    }

    /// Returns which conditions hold for all launches at this moment, and which of the others may hold for one: those with `every`,
    /// a tag or a stream.
    pub(crate) fn always(&self, number: KernelNumber, control: &Control) -> (Choice, Choice) {
        let of_kernel = self.choice(number, 0);
        let (mut always, mut sometimes) = (of_kernel, of_kernel);
        for (at, number) in of_kernel.conditions.into_iter().enumerate() {
            let Some(condition) = number.and_then(|it| control.conditions.get(usize::from(it))) else { continue };
            let is_sometimes = condition.every.load(Ordering::Relaxed) > 1
                || [&condition.has_tag, &condition.has_stream].iter().any(|it| it.load(Ordering::Relaxed) != 0);
            let of = if is_sometimes { &mut sometimes } else { &mut always };
            of.holding |= u8::from(condition.is_off.load(Ordering::Relaxed) == 0) << at;
        }
        (always, sometimes)
    }

    /// Decides which conditions hold for a launch, where these switches are off, and counts it.
    #[inline]
    pub(crate) fn choose(&self, number: KernelNumber, control: &Control, off: Off, launch: &impl AskLaunch) -> Choice {
        match number.checked_sub(1) {
            None => Choice::default(),
            Some(at) => self.all[at as usize].choose(control, off, launch),
        }
    }
}

impl Counters {
    #[inline(never)]
    fn choose(&self, control: &Control, off: Off, launch: &impl AskLaunch) -> Choice {
        let mut choice = Choice::try_from(self.conditions.load(Ordering::Acquire)).unwrap_or_default();
        for (at, number) in choice.conditions.into_iter().enumerate() {
            let Some(number) = number.map(usize::from) else { continue };
            let condition = &control.conditions[number];
            // One that was just switched on: its twins would do nothing yet.
            let is_off = condition.is_off.load(Ordering::Relaxed) != 0 || off.has(number);
            if is_off || !has_tag(condition, launch) || !is_in_stream(condition, launch) {
                continue;
            }
            condition.met.fetch_add(1, Ordering::Relaxed);
            let n = self.met[at].fetch_add(1, Ordering::Relaxed);
            if n.is_multiple_of(condition.every.load(Ordering::Relaxed).max(1)) {
                condition.chosen.fetch_add(1, Ordering::Relaxed);
                choice.holding |= 1 << at;
            }
        }
        choice
    }
}

fn has_tag(condition: &Condition, launch: &impl AskLaunch) -> bool {
    let Condition { tag, has_tag, .. } = condition;
    has_tag.load(Ordering::Relaxed) == 0 || launch.tag() == Some(tag.load(Ordering::Relaxed) as i64)
}

fn is_in_stream(condition: &Condition, launch: &impl AskLaunch) -> bool {
    let Condition { stream, has_stream, .. } = condition;
    has_stream.load(Ordering::Relaxed) == 0 || launch.stream() == Some(stream.load(Ordering::Relaxed))
}

/// Counts a launch that ran the original although these conditions held.
#[cold]
pub(crate) fn count_unprobed(control: &Control, choice: Choice) {
    for (at, condition) in choice.conditions.into_iter().enumerate() {
        let condition = condition.filter(|_| choice.holding >> at & 1 == 1);
        if let Some(condition) = condition.and_then(|it| control.conditions.get(usize::from(it))) {
            condition.unprobed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Which switches of twins are off: a bit for each element of their variable for the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Off(u64);

/// The same, for launches to see.
#[derive(Debug, Default)]
pub(super) struct SharedOff(AtomicU64);

impl SharedOff {
    #[inline]
    pub(super) fn get(&self) -> Off {
        Off(self.0.load(Ordering::Acquire))
    }

    pub(super) fn set(&self, off: Off) {
        self.0.store(off.0, Ordering::Release);
    }
}

/// How often in a row the tracer must want a switch off: twins that were launched before may still wait for their turn.
const LOOKS_BEFORE_OFF: u8 = 10;

/// What the tracer has wanted off, each time that it was looked at.
#[derive(Debug, Default)]
pub(super) struct Wanted([u8; MOST_CONDITIONS]);

impl Wanted {
    /// Looks again; returns what is to be off now.
    pub(super) fn look(&mut self, control: &Control) -> Off {
        for (looks, condition) in self.0.iter_mut().zip(&control.conditions) {
            let is_off = condition.is_off.load(Ordering::Relaxed) != 0;
            *looks = if is_off { looks.saturating_add(1) } else { 0 };
        }
        let bit = |at: usize| u64::from(self.0[at] >= LOOKS_BEFORE_OFF) << (at + 1);
        Off((0..MOST_CONDITIONS).fold(0, |all, at| all | bit(at)))
    }
}

impl Off {
    /// All are.
    pub(super) const ALL: Off = Off(u64::MAX);

    fn has(self, condition: usize) -> bool {
        self.0 >> (condition + 1) & 1 == 1
    }

    /// Returns what the variable holds where the block is there.
    pub(super) fn words(self, block: u64) -> [u64; 1 + MOST_CONDITIONS] {
        std::array::from_fn(|at| if self.0 >> at & 1 == 1 { 0 } else { block })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launch with this tag, in this stream.
    struct Launch(Option<i64>, Option<u32>);

    impl AskLaunch for Launch {
        fn tag(&self) -> Option<i64> {
            self.0
        }

        fn stream(&self) -> Option<u32> {
            self.1
        }
    }

    const PLAIN: Launch = Launch(None, None);

    const OF_TWO: Choice = Choice { conditions: [Some(2), Some(5), None], holding: 0 };

    #[test]
    fn each_kernel_and_condition_counts_by_itself() {
        let (kernels, control) = (Kernels::new().unwrap(), Control::default());
        control.conditions[2].every.store(3, Ordering::Relaxed);
        let [a, b] = [OF_TWO; 2].map(|it| kernels.add(it).unwrap());
        assert_eq!(kernels.add(Choice::default()), Some(0));
        let holding = |kernel| {
            (0..4).map(|_| kernels.choose(kernel, &control, Off::default(), &PLAIN).holding).collect::<Vec<_>>()
        };
        assert_eq!((holding(a), holding(b), holding(0)), (vec![3, 2, 2, 3], vec![3, 2, 2, 3], vec![0; 4]));
        let counts = |at: usize| {
            [&control.conditions[at].met, &control.conditions[at].chosen].map(|it| it.load(Ordering::Relaxed))
        };
        assert_eq!([counts(2), counts(5)], [[8, 4], [8, 8]]);
    }

    #[test]
    fn conditions_of_single_launches_do_not_always_hold() {
        let (kernels, control) = (Kernels::new().unwrap(), Control::default());
        control.conditions[2].every.store(3, Ordering::Relaxed);
        let kernel = kernels.add(OF_TWO).unwrap();
        let always = || kernels.always(kernel, &control);
        assert_eq!([always().0.holding, always().1.holding], [2, 1]);
        control.conditions[5].is_off.store(1, Ordering::Relaxed);
        assert_eq!([always().0.holding, always().1.holding], [0, 1]);
        assert_eq!(kernels.always(0, &control), (Choice::default(), Choice::default()));
    }

    #[test]
    fn a_launch_without_the_tag_or_while_it_is_off_does_not_count() {
        let (kernels, control) = (Kernels::new().unwrap(), Control::default());
        let condition = &control.conditions[2];
        condition.every.store(2, Ordering::Relaxed);
        condition.has_tag.store(1, Ordering::Relaxed);
        condition.tag.store(-7i64 as u64, Ordering::Relaxed);
        let kernel = kernels.add(OF_TWO).unwrap();
        let choose = |tag| kernels.choose(kernel, &control, Off::default(), &Launch(tag, None)).holding;
        assert_eq!([None, Some(7), Some(-7), Some(-7), Some(-7)].map(choose), [2, 2, 3, 2, 3]);
        condition.is_off.store(1, Ordering::Relaxed);
        control.conditions[5].is_off.store(1, Ordering::Relaxed);
        assert_eq!([Some(-7); 2].map(choose), [0; 2]);
        assert_eq!(condition.met.load(Ordering::Relaxed), 3);
        count_unprobed(&control, Choice { holding: 2, ..OF_TWO });
        assert_eq!([2, 5].map(|it: usize| control.conditions[it].unprobed.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn a_launch_in_another_stream_does_not_count() {
        let (kernels, control) = (Kernels::new().unwrap(), Control::default());
        control.conditions[2].every.store(2, Ordering::Relaxed);
        control.conditions[2].stream.store(13, Ordering::Relaxed);
        control.conditions[2].has_stream.store(1, Ordering::Relaxed);
        let kernel = kernels.add(OF_TWO).unwrap();
        let choose = |stream| kernels.choose(kernel, &control, Off::default(), &Launch(None, stream)).holding;
        assert_eq!([Some(13), Some(7), None, Some(13), Some(13)].map(choose), [3, 2, 2, 2, 3]);
    }

    #[test]
    fn a_switch_is_the_element_behind_that_of_handlers_without_one() {
        assert_eq!(Off(1 << 2).words(9)[..4], [9, 9, 0, 9]);
        assert_eq!((Off::ALL.words(9), Off::default().words(9)), ([0; 33], [9; 33]));
    }

    #[test]
    fn a_switch_is_off_after_some_looks_and_on_at_once() {
        let (control, mut wanted) = (Control::default(), Wanted::default());
        control.conditions[1].is_off.store(1, Ordering::Relaxed);
        let looks: Vec<Off> = (0..300).map(|_| wanted.look(&control)).collect();
        assert!(looks[..9].iter().all(|it| *it == Off::default()) && looks[9..].iter().all(|it| *it == Off(1 << 2)));
        control.conditions[1].is_off.store(0, Ordering::Relaxed);
        let kernels = Kernels::new().unwrap();
        let kernel = kernels.add(Choice { conditions: [Some(1), None, None], holding: 0 }).unwrap();
        let choose = |off| kernels.choose(kernel, &control, off, &PLAIN).holding;
        assert_eq!([choose(looks[299]), choose(wanted.look(&control))], [0, 1], "until it is on");
    }
}
