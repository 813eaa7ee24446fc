//! What recording adds to a program's calls, as measured on an H200: medians of the rounds in `docs/data/costs.csv`, each less
//! the bare stretch right before it. Tests compare the figures here, and those of docs/BENCHMARKS.md, with that file.

use std::fmt::Write;
use xputrace_model::plan::{Activity, Calls, Demand, Detail, HostEvent};

/// What a call costs more while something is recorded.
struct Cost {
    /// What was recorded, and the call, as in the file.
    #[cfg_attr(not(test), expect(dead_code, reason = "names the row and column for the test"))]
    measured: (&'static str, &'static str),
    nanos: u32,
    per: &'static str,
}

const fn cost(way: &'static str, operation: &'static str, nanos: u32, per: &'static str) -> Cost {
    Cost { measured: (way, operation), nanos, per }
}

const KERNEL: Cost = cost("kernel", "launch", 902, "launch");
const LAUNCH: Cost = cost("launch", "launch", 855, "launch");
const JOINED: Cost = cost("kernel with its launch", "launch", 1518, "launch");
const STACK: Cost = cost("kernel with its stack", "launch", 1807, "launch");
const COPY: Cost = cost("memcpy", "copy", 667, "copy");
const COPY_STACK: Cost = cost("memcpy with its stack", "copy", 1064, "copy");
const SET: Cost = cost("memset", "set", 481, "memory set");
const WAIT: Cost = cost("wait", "wait", 654, "wait");
const ALLOCATION: Cost = cost("alloc and free", "malloc and free", 1222, "allocation with its free");
const RANGE: Cost = cost("nvtx", "range", 70, "NVTX range");
const CALL: Cost = cost("api(cudaGetDevice)", "cudaGetDevice", 302, "call of `api`");

/// Says what this demand costs, for what was measured.
pub(super) fn costs(demand: &Demand) -> Option<String> {
    let all: Vec<&Cost> =
        [launch(demand), copy(demand), set(demand), wait(demand), allocation(demand), range(demand), call(demand)]
            .into_iter()
            .flatten()
            .collect();
    let mut text = String::new();
    for (at, it) in all.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(text, "{comma}{:.2} us per {}", f64::from(it.nanos) / 1000.0, it.per)
            .expect("writing to a string does not fail");
    }
    (!all.is_empty()).then(|| format!("measured on an H200, more than bare: {text} (docs/BENCHMARKS.md)"))
}

fn launch(demand: &Demand) -> Option<&'static Cost> {
    let is_called = demand.calls.intersects(Calls::LAUNCHES);
    match (demand.activities.contains(Activity::Kernel), is_called, demand.has(Detail::Stacks)) {
        (true, true, true) => Some(&STACK),
        (true, true, false) => Some(&JOINED),
        (true, false, _) => Some(&KERNEL),
        (false, true, _) => Some(&LAUNCH),
        (false, false, _) => None,
    }
}

fn copy(demand: &Demand) -> Option<&'static Cost> {
    let has_stack = demand.has(Detail::Stacks) && demand.joins(Activity::Memcpy);
    demand.activities.contains(Activity::Memcpy).then_some(if has_stack { &COPY_STACK } else { &COPY })
}

fn set(demand: &Demand) -> Option<&'static Cost> {
    demand.activities.contains(Activity::Memset).then_some(&SET)
}

fn wait(demand: &Demand) -> Option<&'static Cost> {
    has(demand, HostEvent::Wait).then_some(&WAIT)
}

fn allocation(demand: &Demand) -> Option<&'static Cost> {
    (has(demand, HostEvent::Alloc) && has(demand, HostEvent::Free)).then_some(&ALLOCATION)
}

fn range(demand: &Demand) -> Option<&'static Cost> {
    has(demand, HostEvent::Range).then_some(&RANGE)
}

fn call(demand: &Demand) -> Option<&'static Cost> {
    has(demand, HostEvent::Api).then_some(&CALL)
}

fn has(demand: &Demand, event: HostEvent) -> bool {
    demand.host_events.contains(event)
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
        for it in [KERNEL, LAUNCH, JOINED, STACK, COPY, COPY_STACK, SET, WAIT, ALLOCATION, RANGE, CALL] {
            let at = measured.operations.iter().position(|name| *name == it.measured.1).unwrap();
            assert_eq!(f64::from(it.nanos), measured.added(it.measured.0)[at], "{:?}", it.measured);
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
