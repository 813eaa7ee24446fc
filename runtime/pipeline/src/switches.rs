//! Which of a script's probes are switched on, and since when.
//!
//! Each turn has the time of what turned it, and an event is the probe's if that is on when the event begins: a launch
//! with what it causes, a call, a range. So it does not matter that events of the GPU arrive long after they began, nor
//! in which order turns are heard of.

use std::collections::VecDeque;
use xputrace_model::plan::{Plan, SwitchId};

/// Turns that are remembered of each switch: 2 MiB.
const MOST_TURNS: usize = 1 << 17;

/// The script's switches.
#[derive(Clone, Debug, Default)]
pub struct Switches {
    all: Vec<Switch>,
    /// Whether any was turned since [`Switches::drain_changes`].
    is_changed: bool,
}

#[derive(Clone, Debug)]
struct Switch {
    /// Before the first of `turns`.
    began_on: bool,
    /// By time. A turn may leave the switch as it was: an earlier one, heard of later, may then come before it.
    turns: VecDeque<Turn>,
    /// When the last turn was that has been forgotten; 0 if none has. How it was earlier is unknown.
    known_since: u64,
    /// Whether it was on at any time since [`Switches::drain_changes`].
    was_on: bool,
    /// Whether it was turned since [`Switches::drain_turned`].
    is_turned: bool,
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
    fn new(on: bool) -> Self {
        Switch { began_on: on, turns: VecDeque::new(), known_since: 0, was_on: on, is_turned: false }
    }

    fn is_on(&self) -> bool {
        self.turns.back().map_or(self.began_on, |it| it.on)
    }

    /// Whether it was on then; `None` if that has been forgotten.
    #[inline]
    fn is_on_at(&self, time: u64) -> Option<bool> {
        match self.turns.back() {
            Some(last) if last.at <= time => Some(last.on),
            _ => (time >= self.known_since).then(|| self.is_on_before(self.n_until(time))),
        }
    }

    /// Returns the number of turns until then.
    fn n_until(&self, time: u64) -> usize {
        self.turns.partition_point(|it| it.at <= time)
    }

    /// Whether it was on before the turn at this place.
    fn is_on_before(&self, place: usize) -> bool {
        place.checked_sub(1).map_or(self.began_on, |it| self.turns[it].on)
    }

    /// Returns whether that is a change.
    fn turn(&mut self, on: bool, at: u64) -> bool {
        if at < self.known_since {
            return false;
        }
        let place = self.n_until(at);
        let is_change = self.is_on_before(place) != on;
        self.turns.insert(place, Turn { at, on });
        self.was_on |= on;
        self.is_turned = true;
        if self.turns.len() > MOST_TURNS {
            self.make_room();
        }
        is_change
    }

    /// Forgets turns that left the switch as it was, except for the newest; and the oldest, if those are too few.
    fn make_room(&mut self) {
        let n_old = self.turns.len() / 4 * 3;
        let newest = self.turns.split_off(n_old);
        let mut on = self.began_on;
        self.turns.retain(|it| std::mem::replace(&mut on, it.on) != it.on);
        self.turns.extend(newest);
        let n_forgotten = self.turns.len().saturating_sub(MOST_TURNS / 4 * 3);
        if let Some(last) = self.turns.drain(..n_forgotten).next_back() {
            (self.began_on, self.known_since) = (last.on, last.at);
        }
    }
}

impl Switches {
    /// Returns them as they are when the run begins.
    pub fn new(plan: &Plan) -> Self {
        let all = plan.switches.iter().map(|it| Switch::new(it.begins_on)).collect();
        Switches { all, is_changed: false }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the probe is on.
    pub fn is_on(&self, switch: SwitchId) -> bool {
        self.all.get(switch.index()).is_some_and(Switch::is_on)
    }

    /// Whether the probe was on then; `None` if it has been switched so often since that this has been forgotten.
    #[inline]
    pub fn is_on_at(&self, switch: SwitchId, time: u64) -> Option<bool> {
        self.all.get(switch.index()).map_or(Some(false), |it| it.is_on_at(time))
    }

    /// Turns one, for what begins from `at` on (CLOCK_MONOTONIC nanoseconds), until its next turn by that clock.
    pub fn turn(&mut self, switch: SwitchId, on: bool, at: u64) {
        if let Some(it) = self.all.get_mut(switch.index()) {
            self.is_changed |= it.turn(on, at);
        }
    }

    /// Iterates over all of them, with whether they are on.
    pub fn all(&self) -> impl Iterator<Item = (SwitchId, bool)> + '_ {
        SwitchId::each(&self.all).map(|(id, it)| (id, it.is_on()))
    }

    /// Says which are on, if any was turned since the last call; perhaps it was turned back.
    pub fn drain_changes(&mut self) -> Option<Turned> {
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

    /// Returns the switches turned since the last call, with whether they are on.
    pub fn drain_turned(&mut self) -> Vec<(SwitchId, bool)> {
        let take =
            |(at, it): (usize, &mut Switch)| std::mem::take(&mut it.is_turned).then(|| (SwitchId::at(at), it.is_on()));
        self.all.iter_mut().enumerate().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_model::diagnostic::Site;
    use xputrace_model::loss::Loss;
    use xputrace_model::plan::{Demand, Switch as Declared};

    const IT: SwitchId = SwitchId(0);

    fn one(begins_on: bool) -> Switches {
        let declared = Declared {
            declared: 0,
            name: "kernel".into(),
            begins_on,
            is_turned_elsewhere: false,
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
        assert_eq!(on, [false, false, true, true, false, false, true, true].map(Some));
        assert_eq!(switches.is_on_at(SwitchId(1), 100), Some(false), "there is no such switch");
    }

    #[test]
    fn turns_count_from_their_own_times_whenever_they_are_heard_of() {
        let mut switches = one(false);
        switches.turn(IT, true, 300);
        switches.turn(IT, true, 100);
        switches.turn(IT, false, 200);
        let on = [99, 100, 199, 200, 299, 300].map(|at| switches.is_on_at(IT, at));
        assert_eq!(on, [false, true, true, false, false, true].map(Some));
    }

    #[test]
    fn turns_and_turning_back_are_told_once() {
        let mut switches = one(true);
        assert!(switches.drain_changes().is_none());
        switches.turn(IT, false, 1);
        switches.turn(IT, true, 2);
        switches.turn(IT, false, 3);
        let turned = switches.drain_changes().unwrap();
        assert_eq!((turned.is_on(IT), turned.was_on(IT)), (false, true));
        assert!(switches.drain_changes().is_none());
        assert_eq!((switches.drain_turned(), switches.drain_turned()), (vec![(IT, false)], vec![]));
        switches.turn(IT, false, 4);
        assert!(switches.drain_changes().is_none(), "it was off");
    }

    #[test]
    fn what_does_not_fit_is_unknown() {
        let mut switches = one(false);
        let n = 3 * MOST_TURNS as u64 + 1;
        (0..n).for_each(|it| switches.turn(IT, it % 2 == 0, 10 * it));
        assert!(switches.all[0].turns.len() <= MOST_TURNS);
        let last = 10 * (n - 1);
        let on = [last, last - 1, last - 20, 5].map(|at| switches.is_on_at(IT, at));
        assert_eq!(on, [Some(true), Some(false), Some(true), None]);
        switches.turn(IT, true, 7);
        assert_eq!(switches.is_on_at(IT, 8), None, "the next turn has been forgotten");
    }

    #[test]
    fn as_many_periods_are_remembered_as_the_manual_says() {
        const LEAST_PERIODS: u64 = 32_000;
        assert!(Loss::EnabledForgotten.help().unwrap().contains("at least 32,000 periods"));
        let mut switches = one(false);
        // Those that change nothing take most room where they are the newest.
        let (n, n_changes) = (MOST_TURNS as u64 + 1, MOST_TURNS as u64 / 4 * 3);
        (0..n).for_each(|it| switches.turn(IT, it < n_changes && it % 2 == 0, 10 * it));
        assert_eq!(switches.is_on_at(IT, 0), None, "room was made");
        let first = 10 * (n_changes - 2 * LEAST_PERIODS);
        assert_eq!([first, first + 10].map(|at| switches.is_on_at(IT, at)), [Some(true), Some(false)]);
    }

    #[test]
    fn turns_that_change_nothing_displace_none_that_do() {
        let mut switches = one(false);
        switches.turn(IT, true, 10);
        let n = 3 * MOST_TURNS as u64;
        (2..n).for_each(|it| switches.turn(IT, false, 10 * it));
        assert!(switches.all[0].turns.len() <= MOST_TURNS);
        assert_eq!([9, 10, 19, 20].map(|at| switches.is_on_at(IT, at)), [false, true, true, false].map(Some));
    }
}
