//! Sets of kinds.

use crate::host::HostEvent;
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
    pub const OF_CUDA: HostEvents = HostEvents::ALL
        .without(HostEvents::of(&[HostEvent::Nvtx]))
        .without(HostEvents::OF_RECORDS)
        .without(HostEvents::OF_RESOURCES);

    /// What CUPTI makes records of. They have its times, and arrive late and in no order.
    pub const OF_RECORDS: HostEvents = HostEvents::of(&[HostEvent::Overhead, HostEvent::Migration]);

    /// What recordings have, whatever the script reads.
    pub const KEPT: HostEvents =
        HostEvents::ALL.without(HostEvents::OF_RECORDS).without(HostEvents::of(&[HostEvent::Api]));

    /// What CUPTI tells of in calls, without saying which.
    pub const OF_RESOURCES: HostEvents = HostEvents::of(&[HostEvent::Module, HostEvent::ContextChange]);
}

impl Activities {
    /// Those that are nodes of graphs.
    pub const NODES: Activities = Activities::ALL.without(Activities::of(&[Activity::Graph]));
}

impl Calls {
    /// The default kinds of launches: calls that submit a kernel or a graph.
    pub const LAUNCHES: Calls = Calls::of(&[Call::Kernel, Call::Graph]);
}
