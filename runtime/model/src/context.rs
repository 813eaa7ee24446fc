//! What a GPU handler is given: words of the table of GPU events ([`xputrace_events::word`]).

pub use xputrace_events::device::{self, DeviceContext};
pub use xputrace_events::host::MOST_ARGUMENTS;
pub use xputrace_events::word;
pub use xputrace_events::{GpuContext, WORDS};
