//! What the agent asks of a vendor before it has a backend: to look for its libraries in this process.

use crate::backend::Backend;
use std::ffi::CStr;
use std::fmt::Debug;

/// The maker of the GPUs that a program uses.
pub trait Vendor: Debug + Sync {
    /// Finds the vendor's libraries in this process.
    fn world(&self, came: Came) -> World;
}

/// When we are asked to arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Came {
    /// Where the vendor's library starts, and no context exists.
    AtInit {
        /// What came of a tool that was to be loaded in our place.
        chained: Option<String>,
    },
    Later,
}

/// Finds a backend, or says why there is none.
pub type FindBackend = fn() -> Result<Box<dyn Backend>, String>;

/// What arming needs; tests provide their own.
#[derive(Debug, Default)]
pub struct World {
    pub backend: Option<Box<dyn Backend>>,
    /// Finds what patches machine code, for runs that want it in place of `backend`.
    pub patches: Option<FindBackend>,
    /// Why it would not find it, as far as that is known before.
    pub no_patches: Option<String>,
    /// The path of the backend's library, or why there is none.
    pub library: String,
    /// What came of a tool that was to be loaded in our place.
    pub chained: Option<String>,
    /// The ranges that the program marks itself.
    pub ranges: Option<&'static dyn Ranges>,
}

/// The ranges that a program marks by the vendor's API.
pub trait Ranges: Debug + Sync {
    /// Returns the names of the ranges that the calling thread is in, outermost first, with `RANGE_SEPARATOR` before each;
    /// `None` outside ranges. They stay for ever. Takes no lock and allocates nothing.
    fn path(&self) -> Option<&'static CStr>;

    /// Whether any thread is in a range that `--range` names.
    fn is_inside(&self) -> bool;

    /// Returns the number of ranges of any name that were opened.
    fn opened(&self) -> u64;
}
