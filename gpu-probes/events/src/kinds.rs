//! Sets of kinds.

use crate::host::{EventSource, HostEvent};
use crate::table::{Activity, Call};

macro_rules! set_of {
    ($(#[$doc:meta])* $Set:ident of $Kind:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $Set(u16);

        impl $Set {
            pub const NONE: $Set = $Set(0);
            pub const ALL: $Set = $Set::of($Kind::ALL);

            /// These.
            pub const fn of(kinds: &[$Kind]) -> $Set {
                let (mut bits, mut at) = (0, 0);
                while at < kinds.len() {
                    bits |= 1 << kinds[at] as u16;
                    at += 1;
                }
                $Set(bits)
            }

            #[inline]
            pub const fn contains(self, kind: $Kind) -> bool {
                self.0 & 1 << kind as u16 != 0
            }

            pub const fn contains_all(self, others: $Set) -> bool {
                self.0 & others.0 == others.0
            }

            pub const fn intersects(self, others: $Set) -> bool {
                self.0 & others.0 != 0
            }

            #[must_use]
            pub const fn with(self, others: $Set) -> $Set {
                $Set(self.0 | others.0)
            }

            #[must_use]
            pub const fn without(self, others: $Set) -> $Set {
                $Set(self.0 & !others.0)
            }

            /// Returns the kinds in both sets.
            #[must_use]
            pub const fn and(self, others: $Set) -> $Set {
                $Set(self.0 & others.0)
            }

            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Iterates over the kinds in the order of the table.
            pub fn iter(self) -> impl Iterator<Item = $Kind> + Clone {
                $Kind::ALL.iter().copied().filter(move |it| self.contains(*it))
            }

            /// Returns one bit per kind, at the kind's number.
            pub const fn bits(self) -> u16 {
                self.0
            }

            /// Inverse of `bits`; drops bits that are not a kind's.
            pub const fn from_bits(bits: u16) -> $Set {
                $Set(bits & $Set::ALL.0)
            }
        }

        impl std::fmt::Debug for $Set {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_set().entries(self.iter()).finish()
            }
        }
    };
}

set_of! {
    /// Kinds of activities.
    Activities of Activity
}
set_of! {
    /// Kinds of calls.
    Calls of Call
}
set_of! {
    /// Kinds of host events.
    HostEvents of HostEvent
}

impl HostEvents {
    /// Those that are CUDA calls.
    pub const OF_CALLS: HostEvents = HostEvents::told_by(EventSource::Call);

    /// What CUPTI makes records of.
    pub const OF_RECORDS: HostEvents = HostEvents::told_by(EventSource::Record);

    /// What CUPTI tells of in calls, without saying which.
    pub const OF_RESOURCES: HostEvents = HostEvents::told_by(EventSource::Resource);

    /// What recordings have, whatever the script reads.
    pub const KEPT: HostEvents =
        HostEvents::ALL.without(HostEvents::OF_RECORDS).without(HostEvents::of(&[HostEvent::Api]));

    const fn told_by(source: EventSource) -> HostEvents {
        let (mut bits, mut at) = (0, 0);
        while at < HostEvent::ALL.len() {
            let it = HostEvent::ALL[at];
            bits |= ((it.source() as u8 == source as u8) as u16) << it as u16;
            at += 1;
        }
        HostEvents(bits)
    }
}

impl Activities {
    /// Those that are nodes of graphs.
    pub const NODES: Activities = Activities::ALL.without(Activities::of(&[Activity::Graph]));
}

impl Calls {
    /// The default kinds of launches: calls that submit a kernel or a graph.
    pub const LAUNCHES: Calls = Calls::of(&[Call::Kernel, Call::Graph]);
}

impl Activity {
    /// Returns the calls that may submit it.
    pub const fn causes(self) -> Calls {
        Calls::of(&[self.call(), Call::Graph])
    }
}

impl Call {
    /// Returns the activities whose records show that it was carried out. A graph may contain anything: its own
    /// record shows it, or its kernels'.
    pub const fn shown_by(self) -> Activities {
        match self {
            Call::Graph => Activities::of(&[Activity::Kernel, Activity::Graph]),
            other => Activities::of(&[other.activity()]),
        }
    }
}
