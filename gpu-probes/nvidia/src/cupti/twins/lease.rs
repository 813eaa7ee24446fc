//! What the worker uses of the program's: contexts and code, which the program may end at any time.
//!
//! ```text
//! worker                                      a thread of the program
//! is it alive? then mark it as used           forget it: it is dead
//! one call of the driver                      wait until it is not used, for a while
//! mark it as not used ───────────────────────▶ end it
//! ```
//! So no call begins with what is gone; one that is stuck with it may return later, and its result is dropped.

use super::code::{DriverResult, GONE};
use super::loaded::{Images, InUse};
use super::state::Twins;
use crate::cupti::functions::Handle;
use crate::cupti::run::CuptiBackend;
use std::sync::atomic::{AtomicBool, Ordering};

/// Until when the program's code stays.
#[derive(Clone, Copy)]
enum Stays<'a> {
    /// As long as the thread that loads it waits: until this flag is set.
    WhileLoading(&'a AtomicBool),
    /// As long as there is an image with this number.
    WithImage(u32),
}

/// The right to call the driver with a context or code of the program's, as long as they stay.
#[derive(Clone, Copy)]
pub(super) struct Lease<'a> {
    twins: &'a Twins,
    slot: Option<usize>,
    code: Option<(usize, Stays<'a>)>,
}

impl<'a> Lease<'a> {
    /// Of nothing so far.
    pub(super) fn new(twins: &'a Twins) -> Self {
        Lease { twins, slot: None, code: None }
    }

    /// Also of a context, by its slot.
    pub(super) fn in_context(self, slot: usize) -> Self {
        Lease { slot: Some(slot), ..self }
    }

    /// Also of code that is being loaded, until this flag is set.
    pub(super) fn of_loading(self, code: usize, is_given_up: &'a AtomicBool) -> Self {
        Lease { code: Some((code, Stays::WhileLoading(is_given_up))), ..self }
    }

    /// Also of an image's code.
    pub(super) fn of_image(self, code: usize, number: u32) -> Self {
        Lease { code: Some((code, Stays::WithImage(number))), ..self }
    }

    /// Makes one call of the driver, if what it needs is alive, and returns what it says if that still is afterwards.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        {
            let mut images = self.twins.images();
            self.check(&images)?;
            images.in_use = InUse { slot: self.slot, code: self.code.map(|it| it.0) };
        }
        let result = call();
        let mut images = self.twins.images();
        images.in_use = InUse::default();
        self.twins.released.notify_all();
        self.check(&images)?;
        result
    }

    /// Runs something with the context current.
    pub(super) fn run<T>(&self, backend: &CuptiBackend, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
        let code = &backend.driver.code;
        let context = self.context().ok_or(GONE)?;
        // SAFETY: a context that is alive.
        self.call(|| unsafe { code.enter(context) })?;
        let result = run();
        // SAFETY: no context.
        unsafe { code.leave() };
        result
    }

    fn context(&self) -> Option<Handle> {
        self.twins.contexts.state(self.slot?).handle()
    }

    fn check(&self, images: &Images) -> DriverResult<()> {
        let has_context = self.slot.is_none() || self.context().is_some();
        let has_code = self.code.is_none_or(|it| match it.1 {
            Stays::WhileLoading(is_given_up) => !is_given_up.load(Ordering::Acquire),
            Stays::WithImage(number) => images.all.iter().any(|it| it.number == number),
        });
        if has_context && has_code && !images.is_over { Ok(()) } else { Err(GONE) }
    }
}
