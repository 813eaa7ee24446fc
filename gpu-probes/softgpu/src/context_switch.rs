//! Switches of contexts: a GPU that runs work of another context than the last one switches to it.

use crate::abi::{ContextSwitch, kind};
use crate::activity;
use crate::devices;
use crate::users::UserId;
use std::sync::atomic::{AtomicU32, Ordering};

/// `CUPTI_COMPUTE_ENGINE_CTX_SWITCH_OPERATION_START` and `…_END`.
const OPERATIONS: [u32; 2] = [1, 2];

/// The context that each GPU has run last; 0 before the first.
static LAST: [AtomicU32; devices::MOST] = [const { AtomicU32::new(0) }; devices::MOST];

/// A GPU begins work of a context.
pub(crate) fn runs(device: i32, context: u32) {
    let before = LAST[device as usize % devices::MOST].swap(context, Ordering::AcqRel);
    if before == context || !activity::enabled(kind::CONTEXT_SWITCH) {
        return;
    }
    for operation in OPERATIONS {
        let timestamp = activity::stamp(UserId::GLOBAL);
        let record = ContextSwitch { kind: kind::CONTEXT_SWITCH, context, timestamp, operation, padding: 0 };
        activity::emit(kind::CONTEXT_SWITCH, &record);
    }
}
