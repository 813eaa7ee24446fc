//! All forms of output, by name: a new one is a file of this crate and a line here.

use crate::export::{EventFormat, FileOutput, Format};
use crate::{fold, json, ndjson, text};

/// The choices of `-f`; the first is the default.
pub const FORMATS: &[Format] = &[text::FORMAT, json::FORMAT, ndjson::FORMAT];

/// The options that write a file at the end of a run.
pub const FILES: &[FileOutput] = &[fold::FOLDED, fold::FLAMEGRAPH];

/// The formats of `xputrace export`.
pub const EVENT_FORMATS: &[EventFormat] = &[ndjson::EVENTS];

impl Default for &Format {
    fn default() -> Self {
        &FORMATS[0]
    }
}
