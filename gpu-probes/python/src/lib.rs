//! The Python frames of the calling thread: functions, files and current instructions, read in the
//! process while the thread is inside a call from Python.
//!
//! For use inside other people's programs, on paths that run often: nothing allocates and nothing
//! locks. Of the interpreter, only the function that returns the calling thread's state is called.
//! All else is read: a thread's frames, and the code objects that they hold, stay as they are while
//! that thread is in a call, whether or not it has the GIL; except while the interpreter ends, when
//! they are left alone.
//!
//! ```text
//! Interpreter ── found once; which of its versions it is, and so where things are
//!   └▶ Frames ── the thread's frames, innermost first, and which run of the interpreter each is in
//!        └▶ Code ── what a frame runs, by its contents
//! ```

mod code;
mod find;
mod frames;
mod layout;

pub use code::{Code, PyString};
pub use find::{Interpreter, Unsupported};
pub use frames::{Frames, Item};
