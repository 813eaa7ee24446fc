//! What recording adds to a program's calls, as measured on an H200: medians of the rounds in `docs/data/costs.csv`, each less
//! the bare stretch right before it. Tests compare the figures here, and those of docs/BENCHMARKS.md, with that file.

use xputrace_model::plan::{Activity, Calls, Demand, Detail, HostEvent};
use xputrace_model::schema::{Event, MeasuredCost};

// What several events cost together.
const JOINED: MeasuredCost = MeasuredCost::new(("kernel with its launch", "launch"), 1518, "launch");
const STACK: MeasuredCost = MeasuredCost::new(("kernel with its stack", "launch"), 1807, "launch");
const COPY_STACK: MeasuredCost = MeasuredCost::new(("memcpy with its stack", "copy"), 1064, "copy");

/// Says what this demand costs, for what was measured.
pub(super) fn costs(demand: &Demand) -> Option<String> {
    let calls = |it| demand.host_events.contains(it);
    let call = |it| calls(it).then(|| of(Event::Host(it))).flatten();
    let set = demand.activities.contains(Activity::Memset).then(|| of(Event::Activity(Activity::Memset))).flatten();
    // Of one alone nothing was measured.
    let allocation = call(HostEvent::Alloc).filter(|_| calls(HostEvent::Free));
    let [wait, range, api] = [HostEvent::Wait, HostEvent::Range, HostEvent::Api].map(call);
    let all = [launch(demand), copy(demand), set, wait, allocation, range, api];
    let all: Vec<String> = all.iter().flatten().map(MeasuredCost::text).collect();
    (!all.is_empty()).then(|| format!("measured on an H200, more than bare: {} (docs/BENCHMARKS.md)", all.join(", ")))
}

fn of(event: Event) -> Option<MeasuredCost> {
    event.about().measured
}

fn launch(demand: &Demand) -> Option<MeasuredCost> {
    let is_called = demand.calls.intersects(Calls::LAUNCHES);
    match (demand.activities.contains(Activity::Kernel), is_called, demand.has(Detail::Stacks)) {
        (true, true, true) => Some(STACK),
        (true, true, false) => Some(JOINED),
        (true, false, _) => of(Event::Activity(Activity::Kernel)),
        (false, true, _) => of(Event::Launch),
        (false, false, _) => None,
    }
}

fn copy(demand: &Demand) -> Option<MeasuredCost> {
    let has_stack = demand.has(Detail::Stacks) && demand.joins(Activity::Memcpy);
    let cost = if has_stack { Some(COPY_STACK) } else { of(Event::Activity(Activity::Memcpy)) };
    cost.filter(|_| demand.activities.contains(Activity::Memcpy))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rounds that were measured, as `tests/h200/costs.py` writes them.
    struct Measured {
        operations: Vec<&'static str>,
        rows: Vec<Row>,
    }

    struct Row {
        armed: &'static str,
        round: &'static str,
        is_armed: bool,
        nanos: Vec<f64>,
    }

    impl Measured {
        fn read() -> Self {
            let mut lines = include_str!("../../../../docs/data/costs.csv").lines().map(|it| it.split(','));
            let operations = lines.next().unwrap().skip(3).collect();
            let row = |mut cells: std::str::Split<'static, char>| {
                let mut cell = || cells.next().unwrap();
                let (armed, round, is_armed) = (cell(), cell(), cell() == "armed");
                Row { armed, round, is_armed, nanos: cells.map(|it| it.parse().unwrap()).collect() }
            };
            Measured { operations, rows: lines.map(row).collect() }
        }

        fn ways(&self) -> Vec<&'static str> {
            let mut ways: Vec<_> = self.rows.iter().map(|it| it.armed).collect();
            ways.dedup();
            ways
        }

        /// Returns what arming adds to each operation: the median of its rounds.
        fn added(&self, way: &str) -> Vec<f64> {
            let of = |is_armed| self.rows.iter().filter(move |it| it.armed == way && it.is_armed == is_armed);
            let pairs = of(false).zip(of(true)).inspect(|(bare, armed)| assert_eq!(bare.round, armed.round));
            let added: Vec<Vec<f64>> =
                pairs.map(|(bare, armed)| armed.nanos.iter().zip(&bare.nanos).map(|(a, b)| a - b).collect()).collect();
            self.medians(&added.iter().collect::<Vec<_>>())
        }

        fn bare(&self) -> Vec<f64> {
            self.medians(&self.rows.iter().filter(|it| !it.is_armed).map(|it| &it.nanos).collect::<Vec<_>>())
        }

        fn medians(&self, rows: &[&Vec<f64>]) -> Vec<f64> {
            (0..self.operations.len()).map(|at| median(rows.iter().map(|it| it[at]).collect())).collect()
        }
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]).round()
    }

    #[test]
    fn figures_are_those_that_were_measured() {
        let measured = Measured::read();
        let of_events: Vec<_> = Event::all().filter_map(of).collect();
        assert_eq!(of_events.len(), 8);
        for it in of_events.into_iter().chain([JOINED, STACK, COPY_STACK]) {
            let at = measured.operations.iter().position(|name| *name == it.from.1).unwrap();
            assert_eq!(f64::from(it.nanos), measured.added(it.from.0)[at], "{:?}", it.from);
        }
    }

    #[test]
    fn the_table_in_the_docs_is_what_was_measured() {
        let measured = Measured::read();
        let row = |name: &str, cells: Vec<String>| format!("| {name} | {} |\n", cells.join(" | "));
        let signed = |value: &f64| format!("{:+}", value + 0.0);
        let mut table = row("armed", measured.operations.iter().map(ToString::to_string).collect());
        table += &format!("|{}\n", "---|".repeat(measured.operations.len() + 1));
        table += &row("nothing", measured.bare().iter().map(ToString::to_string).collect());
        for way in measured.ways() {
            table += &row(way, measured.added(way).iter().map(signed).collect());
        }
        let docs = include_str!("../../../../docs/BENCHMARKS.md");
        assert!(docs.contains(&table), "docs/BENCHMARKS.md should have this table:\n{table}");
    }
}
