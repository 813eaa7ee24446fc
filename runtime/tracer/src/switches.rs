//! Which of a script's probes are switched on, and since when.
//!
//! Each turn has the time of what turned it, and an event is the probe's if that is on when the event begins: a launch
//! with what it causes, a call, a range. So it does not matter that events of the GPU arrive long after they began.

use std::collections::VecDeque;
use xputrace_model::plan::{Plan, SwitchId};

/// Turns that are remembered of each switch. Events that began before the oldest are taken to be as it left them.
const MOST_TURNS: usize = 1 << 14;

/// The script's switches.
#[derive(Clone, Debug, Default)]
pub struct Switches {
    all: Vec<Switch>,
    /// Whether any was turned since [`Switches::take`].
    is_changed: bool,
    /// Whether any was turned that Linux's programs have not been told of.
    is_changed_for_linux: bool,
}

#[derive(Clone, Debug)]
struct Switch {
    /// Before the first of `turns`.
    began_on: bool,
    /// By time.
    turns: VecDeque<Turn>,
    /// Whether it was on at any time since [`Switches::take`].
    was_on: bool,
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    /// CLOCK_MONOTONIC nanoseconds.
    at: u64,
    on: bool,
}

/// Which switches are on, and which were at any time since the last such answer.
#[derive(Clone, Debug, Default)]
pub struct Turned(Vec<(bool, bool)>);

impl Turned {
    /// Whether the probe is on.
    pub fn is_on(&self, switch: SwitchId) -> bool {
        self.0.get(switch.index()).is_some_and(|it| it.0)
    }

    /// Whether it is, or was.
    pub fn was_on(&self, switch: SwitchId) -> bool {
        self.0.get(switch.index()).is_some_and(|it| it.1)
    }
}

impl Switch {
    fn is_on(&self) -> bool {
        self.turns.back().map_or(self.began_on, |it| it.on)
    }

    #[inline]
    fn is_on_at(&self, time: u64) -> bool {
        match self.turns.back() {
            None => self.began_on,
            Some(last) if last.at <= time => last.on,
            Some(_) => {
                let before = self.turns.partition_point(|it| it.at <= time);
                before.checked_sub(1).map_or(self.began_on, |it| self.turns[it].on)
            }
        }
    }

    fn turn(&mut self, on: bool, at: u64) {
        self.was_on |= on;
        // Who turns it later may have seen an earlier event.
        let at = self.turns.back().map_or(at, |it| it.at.max(at));
        self.turns.push_back(Turn { at, on });
        if self.turns.len() > MOST_TURNS
            && let Some(oldest) = self.turns.pop_front()
        {
            self.began_on = oldest.on;
        }
    }
}

impl Switches {
    /// Returns them as they are when the run begins.
    pub fn new(plan: &Plan) -> Self {
        let switch = |on: bool| Switch { began_on: on, turns: VecDeque::new(), was_on: on };
        Switches { all: plan.switches.iter().map(|it| switch(it.begins_on)).collect(), ..Switches::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the probe is on.
    pub fn is_on(&self, switch: SwitchId) -> bool {
        self.all.get(switch.index()).is_some_and(Switch::is_on)
    }

    /// Whether the probe was on then.
    #[inline]
    pub fn is_on_at(&self, switch: SwitchId, time: u64) -> bool {
        self.all.get(switch.index()).is_some_and(|it| it.is_on_at(time))
    }

    /// Turns one, for what begins from `at` on (CLOCK_MONOTONIC nanoseconds).
    pub fn turn(&mut self, switch: SwitchId, on: bool, at: u64) {
        self.is_changed_for_linux |= self.set(switch, on, at);
    }

    /// Notes that a program of Linux has turned one, which Linux's programs know already.
    pub fn turned_by_linux(&mut self, switch: SwitchId, on: bool, at: u64) {
        self.set(switch, on, at);
    }

    /// Returns whether that is a change.
    fn set(&mut self, switch: SwitchId, on: bool, at: u64) -> bool {
        let Some(it) = self.all.get_mut(switch.index()).filter(|it| it.is_on() != on) else { return false };
        it.turn(on, at);
        self.is_changed = true;
        true
    }

    /// Iterates over all of them, with whether they are on.
    pub fn all(&self) -> impl Iterator<Item = (SwitchId, bool)> + '_ {
        SwitchId::each(&self.all).map(|(id, it)| (id, it.is_on()))
    }

    /// Says which are on, if any was turned since the last call; perhaps it was turned back.
    pub fn take(&mut self) -> Option<Turned> {
        std::mem::take(&mut self.is_changed).then(|| {
            let turned = self.all.iter().map(|it| (it.is_on(), it.was_on)).collect();
            self.all.iter_mut().for_each(|it| it.was_on = it.is_on());
            Turned(turned)
        })
    }

    /// Returns which are on.
    pub fn now(&self) -> Turned {
        Turned(self.all.iter().map(|it| (it.is_on(), it.is_on())).collect())
    }

    /// Whether any was turned, by others than Linux's programs, since the last call.
    pub fn take_changes_for_linux(&mut self) -> bool {
        std::mem::take(&mut self.is_changed_for_linux)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::diagnostic::Site;
    use xputrace_model::plan::{Demand, Switch as Declared};

    const IT: SwitchId = SwitchId(0);

    fn one(begins_on: bool) -> Switches {
        let declared = Declared {
            declared: 0,
            name: "kernel".into(),
            begins_on,
            demand: Demand::default(),
            site: Site::default(),
        };
        Switches::new(&Plan { switches: vec![declared], ..Plan::default() })
    }

    #[test]
    fn an_event_is_the_probes_if_that_was_on_when_it_began() {
        let mut switches = one(false);
        switches.turn(IT, true, 100);
        switches.turn(IT, true, 150);
        switches.turn(IT, false, 200);
        switches.turn(IT, true, 300);
        let on = [0, 99, 100, 199, 200, 299, 300, u64::MAX].map(|at| switches.is_on_at(IT, at));
        assert_eq!(on, [false, false, true, true, false, false, true, true]);
        assert!(!switches.is_on_at(SwitchId(1), 100), "there is no such switch");
    }

    #[test]
    fn a_turn_that_is_heard_of_late_counts_from_the_last_one_on() {
        let mut switches = one(false);
        switches.turn(IT, true, 100);
        switches.turned_by_linux(IT, false, 50);
        assert_eq!([99, 100, 101].map(|at| switches.is_on_at(IT, at)), [false; 3]);
    }

    #[test]
    fn turns_and_turning_back_are_told_once() {
        let mut switches = one(true);
        assert!(switches.take().is_none());
        switches.turn(IT, false, 1);
        switches.turn(IT, true, 2);
        switches.turn(IT, false, 3);
        let turned = switches.take().unwrap();
        assert_eq!((turned.is_on(IT), turned.was_on(IT)), (false, true));
        assert!(switches.take().is_none());
        switches.turned_by_linux(IT, true, 4);
        assert!(switches.take_changes_for_linux() && !switches.take_changes_for_linux());
        switches.turned_by_linux(IT, false, 5);
        assert!(!switches.take_changes_for_linux(), "Linux knows");
    }

    #[test]
    fn memory_is_bounded() {
        let mut switches = one(false);
        let n = 3 * MOST_TURNS as u64 + 1;
        (0..n).for_each(|it| switches.turn(IT, it % 2 == 0, 10 * it));
        assert_eq!(switches.all[0].turns.len(), MOST_TURNS);
        let last = 10 * (n - 1);
        assert!(switches.is_on_at(IT, last) && !switches.is_on_at(IT, last - 1) && switches.is_on_at(IT, last - 20));
    }
}
