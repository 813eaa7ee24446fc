//! Failures of our native functions, as Rhai passes them on.

use rhai::{Dynamic, EvalAltResult, Position};

/// A failure raised by one of our native functions; Rhai adds the position.
#[derive(Clone, Debug)]
pub(crate) struct NativeFailure {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl NativeFailure {
    /// Returns the failure as Rhai's error.
    pub(crate) fn raise<T>(
        code: &'static str,
        message: impl Into<String>,
        help: Option<&str>,
    ) -> Result<T, Box<EvalAltResult>> {
        let failure = NativeFailure { code, message: message.into(), help: help.map(str::to_owned) };
        Err(Box::new(EvalAltResult::ErrorRuntime(Dynamic::from(failure), Position::NONE)))
    }
}
