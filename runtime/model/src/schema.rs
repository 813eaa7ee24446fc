//! The events of the language and their fields: one table for the compiler, interpreted handlers,
//! `explain`, diagnostics and the language reference.

pub use xputrace_events::host::WAITED_FOR;
pub use xputrace_events::table::{GPU, LAUNCH_GPU};
pub use xputrace_events::{
    About, Activity, Call, Column, CostClass, DeviceEvent, Field, FieldType, From, HostEvent, Launch as LaunchRecord,
    MeasuredCost, Unit,
};

macro_rules! events {
    ($( $Event:ident $name:literal { fields: $fields:expr, about: $about:expr $(,)? } )*) => {
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
            $( $Event, )*
        }

        impl Event {
            /// Those of the CPU and of the run.
            const OTHERS: &'static [Event] = &[$( Event::$Event, )*];

            /// Returns the function that declares a handler for it.
            pub const fn name(self) -> &'static str {
                match self {
                    Event::Activity(kind) => kind.name(),
                    Event::Launch => "launch",
                    Event::Host(kind) => kind.name(),
                    Event::Device(place) => place.name(),
                    $( Event::$Event => $name, )*
                }
            }

            /// Returns the fields of its event, except tracepoint fields, which the running Linux kernel
            /// defines.
            pub const fn fields(self) -> &'static [Field] {
                match self {
                    Event::Activity(kind) => kind.fields(),
                    Event::Launch => LAUNCH,
                    Event::Host(kind) => kind.fields(),
                    Event::Device(place) => place.fields(),
                    $( Event::$Event => $fields, )*
                }
            }

            /// What is said of it.
            pub const fn about(self) -> &'static About {
                match self {
                    Event::Activity(kind) => kind.about(),
                    Event::Launch => const { &LaunchRecord::ABOUT },
                    Event::Host(kind) => kind.about(),
                    Event::Device(place) => place.about(),
                    $( Event::$Event => const { &$about }, )*
                }
            }
        }
    };
}

events! {
    Uprobe "uprobe" {
        fields: UPROBE,
        about: About {
            usage: "uprobe(\"libc:malloc\", |e| …)",
            fires: "a function of a library or program is entered: `library:function`, `./program:function`, `*` in either",
            example: "uprobe(\"libc:malloc\", |e| @bytes[e.comm].hist(e.arg0));",
            more: Some("Functions that can be probed: xputrace list 'uprobe:libc:mem*'"),
            ..About::AT_ONCE
        },
    }
    Uretprobe "uretprobe" {
        fields: URETPROBE,
        about: About {
            usage: "uretprobe(\"libc:read\", |e| …)",
            fires: "a function returns; paired with its entry",
            example: "uretprobe(\"libc:read\", |e| @us.hist(e.duration / 1.us));",
            more: Some("Functions that can be probed: xputrace list 'uprobe:libc:mem*'"),
            ..About::AT_ONCE
        },
    }
    Usdt "usdt" {
        fields: USDT,
        about: About {
            usage: "usdt(\"./server:shop:sold\", |e| …)",
            fires: "a probe that the program's author put into the code is passed: `file:provider:name`, `*` in provider and name; \
               `file::name` if one provider has it",
            example: "usdt(\"./server:shop:sold\", |e| @price.hist(e.arg0));",
            more: Some("Probes of a file, and their arguments: xputrace list -v 'usdt:libstdc++:*'"),
            ..About::AT_ONCE
        },
    }
    Tracepoint "tracepoint" {
        fields: CPU,
        about: About {
            usage: "tracepoint(\"sched:sched_switch\", |e| …)",
            fires: "a tracepoint of Linux is hit: `category:name`, `*` in either",
            example: "tracepoint(\"sched:sched_switch\", |e| @switches[e.prev_comm].count());",
            more: Some("A tracepoint's own fields: xputrace list -v 'tracepoint:sched:*'"),
            ..About::AT_ONCE
        },
    }
    Profile "profile" {
        fields: CPU,
        about: About {
            usage: "profile(99.hz, |e| …)",
            fires: "the given number of times per second, on each CPU that runs the target",
            example: "profile(99.hz, |e| @cpu[e.ustack].count());",
            ..About::AT_ONCE
        },
    }
    Interval "interval" {
        fields: &[],
        about: About {
            usage: "interval(1.s, || …)",
            fires: "the given time has passed, in the tracer",
            example: "kernel(|k| @kernels[k.name].count());\ninterval(1.s, || { print(@kernels); @kernels.clear(); });",
            ..About::IN_TRACER
        },
    }
    Begin "begin" {
        fields: &[],
        about: About {
            usage: "begin(|| …)",
            fires: "all probes are attached",
            example: "kernel(|k| @kernels.count());\nbegin(|| print(\"tracing\"));",
            ..About::IN_TRACER
        },
    }
    End "end" {
        fields: &[],
        about: About {
            usage: "end(|| …)",
            fires: "the run is over",
            example: "kernel(|k| @time[k.name].sum(k.duration));\nend(|| print(@time.top(5)));",
            ..About::IN_TRACER
        },
    }
}

impl Event {
    /// A kernel ran.
    pub const KERNEL: Event = Event::Activity(Activity::Kernel);

    /// Returns every event, in the order of the reference.
    pub fn all() -> impl Iterator<Item = Event> {
        let activities = Activity::ALL.iter().map(|it| Event::Activity(*it));
        let host = HostEvent::ALL.iter().map(|it| Event::Host(*it));
        let device = DeviceEvent::ALL.iter().map(|it| Event::Device(*it));
        activities.chain([Event::Launch]).chain(host).chain(device).chain(Event::OTHERS.iter().copied())
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

    /// Returns the members of the record that it is made from, if it is made from one.
    pub const fn columns(self) -> &'static [Column] {
        match self {
            Event::Activity(kind) => kind.columns(),
            Event::Launch => LaunchRecord::COLUMNS,
            Event::Host(kind) => kind.columns(),
            _ => &[],
        }
    }

    /// Whether Linux reports it, of what the CPU does.
    pub fn is_of_cpu(self) -> bool {
        self.has_places() || self == Event::Profile
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

    #[test]
    fn what_is_said_of_an_event_declares_it() {
        for event in Event::all() {
            let (about, call) = (event.about(), format!("{}(", event.name()));
            assert!(about.usage.starts_with(&call) && about.example.contains(&call), "{}", event.name());
            assert!(!about.fires.is_empty(), "{}", event.name());
            let is_late = matches!(event, Event::Activity(_) | Event::Launch | Event::Host(_));
            assert_eq!(is_late, !about.changed.is_empty() && !about.in_time.is_empty(), "{}", event.name());
        }
    }
}
