//! Decides in which of the programs that a process ran a stack was taken.
//!
//! Linux stores in each stack the low byte of the process's exec count. Fork copies the count and
//! exec increments it. So for all descendants of one process it differs from the count derived from
//! perf's records by a constant, which no record tells. The constant is found from the stacks
//! themselves: a stack's addresses lie in mappings of the program in which it was taken, and rarely
//! in those of another.

use crate::ProcessKey;
use rustc_hash::FxHashMap;

/// The programs of all processes in a run.
#[derive(Debug, Default)]
pub struct Images {
    processes: FxHashMap<u32, ProcessPrograms>,
    /// Possible exec counts of each lineage's first program; `None` while any is possible.
    first_execs: Vec<Option<Vec<u8>>>,
}

/// The programs of one process id.
#[derive(Clone, Copy, Debug)]
struct ProcessPrograms {
    lineage: usize,
    /// Its first generation; greater than 0 if the id was used before.
    first: u32,
    current: u32,
    /// Execs of its ancestors since the start of the lineage.
    inherited: u32,
    has_ended: bool,
}

impl ProcessPrograms {
    /// Returns the execs since the start of the lineage, at a generation.
    fn execs_at(&self, generation: u32) -> u32 {
        self.inherited + generation.saturating_sub(self.first)
    }
}

impl Images {
    /// Returns the program that a process runs now. An unknown process starts a lineage of its own.
    pub fn current(&mut self, pid: u32) -> ProcessKey {
        let generation = self.image(pid).current;
        ProcessKey { pid, generation }
    }

    /// Handles a fork; returns the programs of parent and child.
    pub fn fork(&mut self, parent: u32, child: u32) -> (ProcessKey, ProcessKey) {
        let from = *self.image(parent);
        let first = self.processes.get(&child).map_or(0, |it| it.current + 1);
        let inherited = from.execs_at(from.current);
        let image = ProcessPrograms { lineage: from.lineage, first, current: first, inherited, has_ended: false };
        self.processes.insert(child, image);
        (ProcessKey { pid: parent, generation: from.current }, ProcessKey { pid: child, generation: first })
    }

    /// Handles an exec.
    pub fn exec(&mut self, pid: u32) {
        self.image(pid).current += 1;
    }

    /// Handles the end of a process.
    pub fn exit(&mut self, pid: u32) {
        self.image(pid).has_ended = true;
    }

    /// Drops a process if it has ended: the next one with its id starts anew.
    pub fn forget_ended(&mut self, pid: u32) {
        if self.processes.get(&pid).is_some_and(|it| it.has_ended) {
            self.processes.remove(&pid);
        }
    }

    /// Returns the program in which a stack with this exec count was taken. `n_covered` returns how
    /// many of its addresses a program has mapped. If several programs match, the newest wins.
    pub fn of_stack(&mut self, pid: u32, exec: u8, n_covered: impl Fn(ProcessKey) -> usize) -> ProcessKey {
        let image = *self.image(pid);
        let key = |generation| ProcessKey { pid, generation };
        let first_exec = |generation| exec.wrapping_sub(image.execs_at(generation) as u8);
        let covered: Vec<(u32, usize)> = (0..=image.current).map(|it| (it, n_covered(key(it)))).collect();
        let most = covered.iter().map(|it| it.1).max().unwrap_or(0);
        let fitting: Vec<u32> = covered.iter().filter(|it| it.1 == most).map(|it| it.0).collect();
        let told = self.first_execs[image.lineage].clone();
        let agrees = |generation: &u32| told.as_ref().is_none_or(|it| it.contains(&first_exec(*generation)));
        let agreeing: Vec<u32> = fitting.iter().copied().filter(|it| *it >= image.first).filter(agrees).collect();
        if most > 0 && !agreeing.is_empty() {
            self.first_execs[image.lineage] = Some(agreeing.iter().map(|it| first_exec(*it)).collect());
        }
        key(*agreeing.last().or(fitting.last()).unwrap_or(&image.current))
    }

    fn image(&mut self, pid: u32) -> &mut ProcessPrograms {
        let first_execs = &mut self.first_execs;
        self.processes.entry(pid).or_insert_with(|| {
            first_execs.push(None);
            ProcessPrograms { lineage: first_execs.len() - 1, first: 0, current: 0, inherited: 0, has_ended: false }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;

    /// Covers a stack of three frames in these generations of any process.
    fn in_generations(generations: &[u32]) -> impl Fn(ProcessKey) -> usize {
        move |it| if generations.contains(&it.generation) { 3 } else { 0 }
    }

    fn generation(images: &mut Images, exec: u8, covering: &[u32]) -> u32 {
        images.of_stack(PID, exec, in_generations(covering)).generation
    }

    #[test]
    fn execs_between_two_stacks_and_after_the_last_are_counted() {
        let mut images = Images::default();
        images.current(PID);
        (0..4).for_each(|_| images.exec(PID));
        // The first program had exec count 250; the stacks are from the second and fourth.
        assert_eq!(generation(&mut images, 251, &[1]), 1);
        assert_eq!(generation(&mut images, 253, &[]), 3, "what the first stack told holds for code without a file");
    }

    #[test]
    fn programs_at_the_same_addresses_are_told_apart_by_another_stack() {
        let mut images = Images::default();
        (0..2).for_each(|_| images.exec(PID));
        assert_eq!(generation(&mut images, 10, &[0, 1]), 1, "either fits so far");
        assert_eq!(generation(&mut images, 11, &[1]), 1);
        assert_eq!(generation(&mut images, 10, &[0, 1]), 0);
    }

    #[test]
    fn a_child_goes_on_from_its_parent() {
        let mut images = Images::default();
        images.exec(1);
        let (parent, child) = images.fork(1, PID);
        assert_eq!((parent.generation, child.generation), (1, 0));
        images.exec(PID);
        images.exec(PID);
        images.of_stack(1, 6, in_generations(&[1]));
        assert_eq!(generation(&mut images, 7, &[0, 1, 2]), 1, "one exec after the fork");
        // The id is reused; the mappings of the first process with this id are kept.
        assert_eq!(images.fork(1, PID).1.generation, 3);
        assert_eq!(generation(&mut images, 6, &[0, 1, 2, 3]), 3);
    }

    #[test]
    fn without_exec_counts_the_addresses_alone_decide() {
        let mut images = Images::default();
        (0..2).for_each(|_| images.exec(PID));
        assert_eq!(generation(&mut images, 0, &[0]), 0);
        assert_eq!(generation(&mut images, 0, &[2]), 2);
        assert_eq!(images.current(PID).generation, 2);
    }
}
