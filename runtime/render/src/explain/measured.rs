//! What recording adds to a program's calls, as measured on an H200. The figures are those of `docs/data/costs.csv`, the
//! best of seven rounds less those of the bare program; a test compares them.

use std::fmt::Write;
use xputrace_model::plan::{Activity, Calls, Demand, HostEvent};

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

const KERNEL: Cost = cost("kernel", "launch", 998, "launch");
const LAUNCH: Cost = cost("launch", "launch", 1033, "launch");
const JOINED: Cost = cost("kernel, its launch", "launch", 1724, "launch");
const STACK: Cost = cost("kernel, its stack", "launch", 1762, "launch");
const COPY: Cost = cost("memcpy", "copy", 517, "copy");
const COPY_STACK: Cost = cost("memcpy, its stack", "copy", 1109, "copy");
const SET: Cost = cost("memset", "set", 466, "memory set");
const WAIT: Cost = cost("wait", "wait", 690, "wait");
const ALLOCATION: Cost = cost("alloc, free", "malloc, free", 1141, "allocation with its free");
const RANGE: Cost = cost("nvtx", "range", 39, "NVTX range");
const CALL: Cost = cost("api(\"cudaGetDevice\")", "cudaGetDevice", 270, "call of `api`");

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
    match (demand.activities.contains(Activity::Kernel), is_called, demand.launch_stacks) {
        (true, true, true) => Some(&STACK),
        (true, true, false) => Some(&JOINED),
        (true, false, _) => Some(&KERNEL),
        (false, true, _) => Some(&LAUNCH),
        (false, false, _) => None,
    }
}

fn copy(demand: &Demand) -> Option<&'static Cost> {
    let has_stack = demand.launch_stacks && demand.joins(Activity::Memcpy);
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
    has(demand, HostEvent::Nvtx).then_some(&RANGE)
}

fn call(demand: &Demand) -> Option<&'static Cost> {
    has(demand, HostEvent::Api).then_some(&CALL)
}

fn has(demand: &Demand, event: HostEvent) -> bool {
    demand.host.kinds.iter().any(|it| it == event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Returns the least figure of each way and operation.
    fn best() -> HashMap<(String, String), f64> {
        let mut lines = include_str!("../../../../docs/data/costs.csv").lines().map(cells);
        let names = lines.next().unwrap();
        let mut best = HashMap::new();
        for row in lines {
            for (operation, value) in names.iter().zip(&row).skip(2) {
                let least = best.entry((row[0].clone(), operation.clone())).or_insert(f64::MAX);
                *least = f64::min(*least, value.parse().unwrap());
            }
        }
        best
    }

    /// Splits a row of CSV, in which `"` quotes.
    fn cells(line: &str) -> Vec<String> {
        let (mut cells, mut is_quoted) = (vec![String::new()], false);
        let mut characters = line.chars().peekable();
        while let Some(it) = characters.next() {
            match it {
                '"' if is_quoted && characters.peek() == Some(&'"') => {
                    cells.last_mut().unwrap().extend(characters.next())
                }
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => cells.push(String::new()),
                other => cells.last_mut().unwrap().push(other),
            }
        }
        cells
    }

    #[test]
    fn figures_are_those_that_were_measured() {
        let best = best();
        for it in [KERNEL, LAUNCH, JOINED, STACK, COPY, COPY_STACK, SET, WAIT, ALLOCATION, RANGE, CALL] {
            let of = |way: &str| best[&(way.to_owned(), it.measured.1.to_owned())];
            assert_eq!(f64::from(it.nanos), (of(it.measured.0) - of("bare")).round(), "{:?}", it.measured);
        }
    }
}
