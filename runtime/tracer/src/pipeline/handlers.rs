//! The script's GPU handlers that run here, and the texts that their events refer to.

use super::process::Wanted;
use crate::context::Symbol;
use crate::names::{Demangle, Names};
use rustc_hash::FxHashMap;
use xputrace_model::plan::{Place, Plan, Probe, StringId};
use xputrace_model::schema::Event;

/// GPU handlers, in the order of the script.
pub(super) struct Handlers {
    pub(super) kernel: Vec<Handler>,
    pub(super) launch: Vec<Handler>,
    pub(super) wanted: Wanted,
}

#[derive(Clone, Copy)]
pub(super) struct Handler {
    pub(super) probe: usize,
    /// `None` for interpreted ones.
    pub(super) program: Option<usize>,
}

impl Handlers {
    pub(super) fn of(plan: &Plan) -> Self {
        let of = |event: Event| {
            let here = |(_, it): &(usize, &Probe)| it.event == event && it.place != Place::Linux;
            let handler = |(probe, it): (usize, &Probe)| Handler {
                probe,
                program: it.program.filter(|_| it.place == Place::Tracer),
            };
            plan.probes.iter().enumerate().filter(here).map(handler).collect::<Vec<_>>()
        };
        Handlers {
            kernel: of(Event::Kernel),
            launch: of(Event::Launch),
            wanted: Wanted { kernels: plan.demand.kernels, launches: plan.demand.launches },
        }
    }

    pub(super) fn programs(&self) -> Vec<usize> {
        self.kernel.iter().chain(&self.launch).filter_map(|it| it.program).collect()
    }
}

/// Ids of texts that events refer to.
pub(super) struct Strings {
    demangle: Demangle,
    demangled: FxHashMap<StringId, Symbol>,
    pub(super) kernel: u64,
    pub(super) graph: u64,
    pub(super) unnamed: StringId,
}

impl Strings {
    pub(super) fn new(demangle: Demangle, names: &mut Names) -> Self {
        Strings {
            demangle,
            demangled: FxHashMap::default(),
            kernel: names.intern("kernel").into(),
            graph: names.intern("graph").into(),
            unnamed: names.intern("(launch record lost)"),
        }
    }

    pub(super) fn symbol(&mut self, text: &str, names: &mut Names) -> Symbol {
        let id = names.intern(text);
        let demangle = self.demangle;
        *self.demangled.entry(id).or_insert_with(|| {
            let (name, short_name) = demangle(text);
            Symbol { symbol: id.into(), name: names.intern(&name).into(), short_name: names.intern(&short_name).into() }
        })
    }
}
