//! The events of the language and their fields: one table for the compiler, interpreted handlers,
//! `explain`, diagnostics and the language reference.

pub use xputrace_events::host::WAITED_FOR;
pub use xputrace_events::table::{GPU, LAUNCH_GPU};
pub use xputrace_events::{
    Activity, Call, DeviceEvent, Field, FieldType, From, HostEvent, Launch as LaunchRecord, Unit,
};

/// An event source of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A GPU activity.
    Activity(Activity),
    Launch,
    /// A CUDA call or an NVTX range.
    Host(HostEvent),
    /// A place in a kernel, in each of its threads.
    Device(DeviceEvent),
    Uprobe,
    Uretprobe,
    Usdt,
    Tracepoint,
    Profile,
    Interval,
    Begin,
    End,
}

impl Event {
    /// A kernel ran.
    pub const KERNEL: Event = Event::Activity(Activity::Kernel);

    /// Returns every event, GPU activities first.
    pub fn all() -> impl Iterator<Item = Event> {
        const OTHERS: &[Event] = &[
            Event::Launch,
            Event::Uprobe,
            Event::Uretprobe,
            Event::Usdt,
            Event::Tracepoint,
            Event::Profile,
            Event::Interval,
            Event::Begin,
            Event::End,
        ];
        let host = HostEvent::ALL.iter().map(|it| Event::Host(*it));
        let device = DeviceEvent::ALL.iter().map(|it| Event::Device(*it));
        Activity::ALL
            .iter()
            .map(|it| Event::Activity(*it))
            .chain(OTHERS[..1].iter().copied())
            .chain(host)
            .chain(device)
            .chain(OTHERS[1..].iter().copied())
    }

    /// Returns the function that declares a handler for it.
    pub fn name(self) -> &'static str {
        match self {
            Event::Activity(kind) => kind.name(),
            Event::Launch => "launch",
            Event::Host(kind) => kind.name(),
            Event::Device(place) => place.name(),
            Event::Uprobe => "uprobe",
            Event::Uretprobe => "uretprobe",
            Event::Usdt => "usdt",
            Event::Tracepoint => "tracepoint",
            Event::Profile => "profile",
            Event::Interval => "interval",
            Event::Begin => "begin",
            Event::End => "end",
        }
    }

    /// Whether it comes from the GPU side, so that its handlers get an array of words: a
    /// [`crate::context::GpuContext`] or, in device code, a [`crate::context::DeviceContext`].
    pub fn is_gpu(self) -> bool {
        matches!(self, Event::Activity(_) | Event::Launch | Event::Host(_) | Event::Device(_))
    }

    /// Whether it is a function's entry or return.
    pub fn is_function(self) -> bool {
        matches!(self, Event::Uprobe | Event::Uretprobe)
    }

    /// Whether its probes are in the code of files.
    pub fn is_in_code(self) -> bool {
        self.is_function() || self == Event::Usdt
    }

    /// Whether its probes are many and have names of their own: functions, tracepoints.
    pub fn has_places(self) -> bool {
        self.is_in_code() || self == Event::Tracepoint
    }

    /// Whether Linux reports it, of what the CPU does.
    pub fn is_of_cpu(self) -> bool {
        self.has_places() || self == Event::Profile
    }

    /// Returns the fields of its event, except tracepoint fields, which the running Linux kernel
    /// defines.
    pub fn fields(self) -> &'static [Field] {
        match self {
            Event::Activity(kind) => kind.fields(),
            Event::Launch => LAUNCH,
            Event::Host(kind) => kind.fields(),
            Event::Device(place) => place.fields(),
            Event::Uprobe => UPROBE,
            Event::Uretprobe => URETPROBE,
            Event::Usdt => USDT,
            Event::Tracepoint | Event::Profile => CPU,
            Event::Interval | Event::Begin | Event::End => &[],
        }
    }
}

const fn probe(name: &'static str, kind: FieldType, unit: Unit, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Probe, doc, texts: &[] }
}

use FieldType::{Comm, Entry, Int, Name, Stack};
use Unit::{Clock, Nanos, None};

/// Fields of a `launch` event, and of an activity's `.launch`.
pub const LAUNCH: &[Field] = LaunchRecord::FIELDS;

macro_rules! cpu_fields {
    ($($more:expr),* $(,)?) => {
        &[
            probe("time", Int, Clock, "time of the hit"),
            probe("pid", Int, None, "process id"),
            probe("tid", Int, None, "thread id"),
            probe("comm", Comm, None, "name of the thread"),
            probe("cpu", Int, None, "CPU that it ran on"),
            probe("uid", Int, None, "user id"),
            probe("gid", Int, None, "group id"),
            probe("cgroup", Int, None, "cgroup id"),
            probe("probe", Name, None, "the probe's full name"),
            probe("func", Name, None, "the probed function's name"),
            probe("ustack", Stack, None, "user stack"),
            probe("kstack", Stack, None, "Linux kernel stack"),
            $($more),*
        ]
    };
}

/// Fields that every CPU event has.
pub const CPU: &[Field] = cpu_fields![];
/// Fields of a `uprobe` event.
pub const UPROBE: &[Field] = cpu_fields![
    probe("arg0", Int, None, "first integer argument"),
    probe("arg1", Int, None, "second integer argument"),
    probe("arg2", Int, None, "third integer argument"),
    probe("arg3", Int, None, "fourth integer argument"),
    probe("arg4", Int, None, "fifth integer argument"),
    probe("arg5", Int, None, "sixth integer argument"),
];
/// Fields of a `uretprobe` event.
pub const URETPROBE: &[Field] = cpu_fields![
    probe("retval", Int, None, "return value of the function"),
    probe("duration", Int, Nanos, "time from entry to return"),
    probe("entry", Entry, None, "the entry event, such as `e.entry.arg0`"),
];
/// Fields of a `usdt` event. Any argument may be missing.
pub const USDT: &[Field] = cpu_fields![
    probe("arg0", Int, None, "first argument; `()` where the place has none"),
    probe("arg1", Int, None, "second argument"),
    probe("arg2", Int, None, "third argument"),
    probe("arg3", Int, None, "fourth argument"),
    probe("arg4", Int, None, "fifth argument"),
    probe("arg5", Int, None, "sixth argument"),
    probe("arg6", Int, None, "seventh argument"),
    probe("arg7", Int, None, "eighth argument"),
    probe("arg8", Int, None, "ninth argument"),
    probe("arg9", Int, None, "tenth argument"),
    probe("arg10", Int, None, "eleventh argument"),
    probe("arg11", Int, None, "twelfth argument"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn field_names_are_unique_in_each_event() {
        for event in [Event::Uprobe, Event::Uretprobe, Event::Usdt, Event::Profile] {
            let names: HashSet<_> = event.fields().iter().map(|it| it.name).collect();
            assert_eq!(names.len(), event.fields().len(), "{}", event.name());
        }
    }
}
