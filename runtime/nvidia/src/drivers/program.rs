//! A program, which a process runs from one exec to the next, and its use of CUDA.

use super::INJECTION_VARIABLE;
use super::given::Look;

/// A program that has loaded CUDA's driver library.
#[derive(Debug)]
pub(super) struct TrackedProgram {
    pub(super) comm: String,
    /// When its process executed it, or was forked.
    begun_nanos: u64,
    /// The result of examining its process, and when that was.
    found: Look,
    looked_nanos: u64,
    fate: Fate,
    /// Whether it has been handed out to be attached to.
    pub(super) is_handed_out: bool,
    /// The system call that keeps its collector from connecting.
    denied: Option<&'static str>,
}

/// How far a program has come; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It has loaded the driver library, and CUDA has not been seen to run.
    Loaded,
    /// CUDA runs in it, but has not loaded the collector.
    Started,
    /// CUDA has loaded the collector, which connects next.
    CollectorLoaded,
    Connected,
}

impl TrackedProgram {
    /// Creates a program that has loaded the driver library.
    pub(super) fn new(comm: String, begun_nanos: u64, found: Look, looked_nanos: u64) -> Self {
        TrackedProgram {
            comm,
            begun_nanos,
            found,
            looked_nanos,
            fate: Fate::Loaded,
            is_handed_out: false,
            denied: None,
        }
    }

    /// Notes that it has come at least this far.
    pub(super) fn reaches(&mut self, fate: Fate) {
        self.fate = self.fate.max(fate);
    }

    /// Notes which system call its collector may not make.
    pub(super) fn is_denied(&mut self, call: &'static str) {
        self.denied = Some(call);
    }

    /// Notes its end. An examination after that time saw another program.
    pub(super) fn ends(&mut self, at_nanos: u64) {
        if self.looked_nanos > at_nanos && self.found != Look::Attached {
            self.found = Look::Ended;
        }
    }

    /// Returns how likely a connection accepted at this time is its collector's; `None` if it
    /// cannot be. If Linux dropped records, it may have loaded the collector unseen.
    pub(super) fn rank_of_connection(&self, accepted_nanos: u64) -> Option<Fate> {
        (self.fate != Fate::Connected && self.begun_nanos <= accepted_nanos).then_some(self.fate)
    }

    /// Whether it may have made CUDA calls that are missing.
    pub(super) fn is_missing(&self) -> bool {
        match self.fate {
            Fate::Loaded => matches!(self.found, Look::Hindered(_)),
            Fate::Started | Fate::CollectorLoaded => true,
            Fate::Connected => false,
        }
    }

    /// Whether it could have loaded the collector, but used no CUDA.
    pub(super) fn is_idle(&self) -> bool {
        self.fate == Fate::Loaded && !self.is_missing() && self.found != Look::Attached
    }

    /// Whether it certainly used CUDA.
    pub(super) fn used_driver(&self) -> bool {
        self.fate > Fate::Loaded
    }

    /// Returns why its collector has not connected, if known.
    pub(super) fn reason(&self) -> Option<String> {
        if let Some(call) = self.denied {
            return Some(format!("its seccomp filter forbids `{call}`, which tracing needs"));
        }
        match (&self.found, self.fate) {
            (Look::Hindered(why), _) => Some(why.clone()),
            (Look::Attached, _) => Some("it ended before it was attached to".into()),
            (Look::Ended, Fate::Started) => Some("it ended before its environment could be read".into()),
            (Look::Finds, Fate::Started) => Some(format!(
                "{INJECTION_VARIABLE} was taken out of its environment, or the library that it names could not be loaded"
            )),
            _ => None,
        }
    }
}
