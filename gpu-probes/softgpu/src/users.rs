//! Who uses CUPTI: one alone, or several subscribers that share it. What excludes what was seen on a real GPU with
//! CUPTI 13.5.

use crate::abi::Handle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// How many users there may be.
pub(crate) const MOST_USERS: usize = 5;
/// Handle of the first one.
const FIRST_HANDLE: Handle = 0x5c00;
const HANDLE_STEP: Handle = 0x10;

/// A user of CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserId(usize);

impl UserId {
    /// The only one, for which functions are that name no subscriber.
    pub(crate) const GLOBAL: UserId = UserId(0);

    pub(crate) fn all() -> impl Iterator<Item = UserId> {
        (0..MOST_USERS).map(UserId)
    }

    /// Those that share CUPTI.
    pub(crate) fn scoped() -> impl Iterator<Item = UserId> {
        Self::all().skip(1)
    }

    pub(crate) fn index(self) -> usize {
        self.0
    }

    pub(crate) fn handle(self) -> Handle {
        FIRST_HANDLE + self.0 * HANDLE_STEP
    }

    pub(crate) fn of(handle: Handle) -> Option<UserId> {
        Self::all().find(|it| it.handle() == handle)
    }
}

/// Which functions records are asked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usage {
    /// Those that name no subscriber.
    Global,
    /// Those that name one.
    Scoped,
}

static USAGE: Mutex<Option<Usage>> = Mutex::new(None);
/// Whether records were asked for by functions that name no subscriber, and no such subscription has ended since.
static RECORDS_ALONE: AtomicBool = AtomicBool::new(false);

/// Decides for the whole process which functions records are asked for by, if that is open; returns whether it is by
/// these. As in 13.5, `cuptiFinalize` does not leave it open again.
pub(crate) fn settle(usage: Usage) -> bool {
    let is_so = *USAGE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(usage) == usage;
    RECORDS_ALONE.fetch_or(is_so && usage == Usage::Global, Ordering::AcqRel);
    is_so
}

pub(crate) fn records_alone() -> bool {
    RECORDS_ALONE.load(Ordering::Acquire)
}

pub(crate) fn end_alone() {
    RECORDS_ALONE.store(false, Ordering::Release);
}
