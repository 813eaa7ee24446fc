//! One handler on its way through the compiler, with what each step finds out about it.

use super::placement;
use super::scan::{self, Scan};
use super::typed::Checked;
use xputrace_model::plan::Place;
use xputrace_model::schema::Event;
use xputrace_script::handler::{Handler, Staged};

/// A handler: its syntax, its use of maps, where it runs, and its typed form.
pub(super) struct Unit<'a> {
    pub(super) handler: &'a Handler,
    pub(super) scan: Scan<'a>,
    pub(super) place: Place,
    /// Why it runs there, for `explain`: sentences without a final dot.
    pub(super) why: Vec<String>,
    /// Its typed form; `None` for interpreted handlers.
    pub(super) checked: Option<Checked>,
}

/// Returns a placed unit for each handler.
pub(super) fn units(staged: &Staged) -> Vec<Unit<'_>> {
    let mut units: Vec<Unit> = staged.handlers.iter().map(|it| scanned(staged, it)).collect();
    let cpu_maps = placement::CpuMaps::of(units.iter().map(|it| (it.handler, &it.scan)));
    for unit in &mut units {
        (unit.place, unit.why) = placement::place(unit.handler, &unit.scan, &cpu_maps);
    }
    units
}

fn scanned<'a>(staged: &'a Staged, handler: &'a Handler) -> Unit<'a> {
    let scan = scan::scan(staged, handler);
    Unit { handler, scan, place: Place::Interpreter, why: Vec::new(), checked: None }
}

impl Unit<'_> {
    pub(super) fn is_compiled(&self) -> bool {
        self.place != Place::Interpreter
    }

    /// Whether it runs in Linux and calls `exit`.
    pub(super) fn ends_in_linux(&self) -> bool {
        self.place == Place::Linux && self.scan.calls.contains(&"exit")
    }

    /// Whether it sees kernels without a known launch.
    pub(super) fn sees_unjoined(&self) -> bool {
        matches!(self.handler.event, Event::Launch | Event::Host(_))
            || self.scan.tests_launch
            || !self.scan.reads.of_launch()
    }
}
