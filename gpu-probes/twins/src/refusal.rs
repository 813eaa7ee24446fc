//! Why kernels get no handlers.

use crate::text::TextError;
use std::collections::BTreeMap;
use xputrace_device::arena::ArenaError;
use xputrace_wire::device::MOST_KERNEL_CONDITIONS;

/// Copies of functions that a twin has at most: they are compiled while the program waits.
pub(crate) const MOST_COPIES: usize = 512;

/// Why an image, or one of its kernels, has no twin, although handlers want it.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("its PTX can't be read")]
    Parse(#[from] xputrace_ptx::ParseError),
    #[error("its PTX is for {target}: handlers need sm_70 and PTX 7.0 or later")]
    TooOld { target: String },
    #[error("it can't be copied faithfully: {0}")]
    Obstacles(String),
    #[error("a handler can't run there: {0}")]
    Refused(xputrace_device::Refusal),
    #[error("its PTX doesn't say which lines it was compiled from, as it does with nvcc's option -lineinfo")]
    NoLines,
    #[error("with it, more than {MOST_COPIES} functions would be copied that kernels with other handlers call, too")]
    Copies,
    #[error(
        "its handlers run at {n} different choices of launches; the limit is {MOST_KERNEL_CONDITIONS}: handlers with the same \
         `every` and `tag`, of one declaration if it is switched, share one"
    )]
    Conditions { n: usize },
    #[error("weaving")]
    Weave(#[from] xputrace_ptx::WeaveError),
    #[error("its variables can't be shared")]
    Redirect(#[from] xputrace_ptx::RedirectError),
    #[error("naming the twin")]
    Rename(#[from] xputrace_ptx::RenameError),
}

/// Kernels without a twin that should get handlers, by their symbols.
pub type Refused = BTreeMap<String, NoTwin>;

/// Why kernels have no twin together.
pub(crate) enum Failure {
    /// These have none, each for its reason.
    Of(Refused),
    /// One of them has none; which one is not known.
    OfOne(NoTwin),
}

impl<E: Into<NoTwin>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure::OfOne(error.into())
    }
}

/// Why no kernel at all can get these handlers.
#[derive(Debug, thiserror::Error)]
pub enum MakerError {
    #[error("handler {handler}: {refusal}")]
    Handler { handler: usize, refusal: xputrace_device::Refusal },
    #[error("the map `{0}` is of a kind that GPUs don't have")]
    Map(String),
    #[error(transparent)]
    Arena(#[from] ArenaError),
}
