//! Handlers: whose they are, where in a kernel they run, and their sites.

use std::collections::BTreeMap;
use xputrace_bytecode::Program;
use xputrace_device::{RecordKind, SiteKind};
use xputrace_events::DeviceEvent;
use xputrace_events::device::{self, SPACES};
use xputrace_ptx::{Point, Site};

/// A handler, and where in a kernel it runs.
#[derive(Clone, Debug)]
pub struct Handler {
    pub place: DeviceEvent,
    pub program: Program,
    /// The number of the condition on which it runs; `None` if it runs at every launch.
    pub condition: Option<u8>,
}

/// What a kernel gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Handlers by their index, in the order in which they run.
    pub handlers: Vec<usize>,
}

/// Whose handlers they are, and what they may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A script's: their context has the words of a device event.
    Script,
    /// A compiled object's: they have no context.
    Object {
        /// Whether they may end threads of kernels (helper 507).
        allows_exit: bool,
    },
}

impl Origin {
    pub(crate) fn allows_exit(self) -> bool {
        self == Origin::Object { allows_exit: true }
    }
}

/// A place in a handler that counts losses, or writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandlerSite {
    /// The handler's index.
    pub handler: usize,
    /// Index of the instruction in its program.
    pub insn: usize,
    /// What its records are, if it writes any; other sites count runs that were ended.
    pub record: Option<RecordKind>,
}

impl HandlerSite {
    pub(crate) fn new(handler: usize, xputrace_device::Site { insn, what }: xputrace_device::Site) -> Self {
        let record = match what {
            SiteKind::Record(kind) => Some(kind),
            SiteKind::OutOfFuel | SiteKind::BadAccess => None,
        };
        HandlerSite { handler, insn, record }
    }
}

/// String ids of what handlers read of accesses; 0 for what the script doesn't have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts(BTreeMap<&'static str, u64>);

impl Texts {
    pub(crate) fn new(id: &dyn Fn(&str) -> Option<u64>) -> Self {
        let all = device::Access::ALL.iter().map(|it| it.text()).chain(SPACES.iter().copied());
        Texts(all.filter_map(|it| Some((it, id(it)?))).collect())
    }

    pub(crate) fn id(&self, text: &str) -> u64 {
        self.0.get(text).copied().unwrap_or(0)
    }
}

/// Returns the element of the twin's variable that switches a handler.
pub(crate) fn switch_of(handler: &Handler) -> usize {
    handler.condition.map_or(0, |it| usize::from(it) + 1)
}

/// Returns how many switches handlers have.
pub(crate) fn switches_of(handlers: &[Handler]) -> usize {
    handlers.iter().map(|it| switch_of(it) + 1).max().unwrap_or(1)
}

/// Returns the events at a point of a kernel's code, in their order.
pub(crate) fn places_of(site: &Site<'_>) -> &'static [DeviceEvent] {
    match site.point {
        Point::Entry => &[DeviceEvent::BlockBegin, DeviceEvent::Entry],
        Point::Exit => &[DeviceEvent::Exit, DeviceEvent::BlockEnd],
        Point::BeforeAccess(_) => &[DeviceEvent::Memory],
        Point::BeforeBarrier => &[DeviceEvent::Barrier],
        Point::BeforeCall => &[DeviceEvent::Call],
        Point::Line => &[DeviceEvent::Line],
        _ => &[],
    }
}

/// Whether handlers of this place run so often that their sums are kept.
pub(crate) fn keeps(place: DeviceEvent) -> bool {
    matches!(place, DeviceEvent::Memory | DeviceEvent::Barrier | DeviceEvent::Call | DeviceEvent::Line)
}
