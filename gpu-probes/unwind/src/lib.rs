//! Unwinds the calling thread's own stack by the tables that compilers leave in `.eh_frame`
//! (System V ABI for x86-64, §4.2.4; DWARF 5, §6.4).
//!
//! For use inside other people's programs, on paths that run often: nothing allocates, nothing
//! locks but the loader's own list where the C library cannot be asked without (before glibc 2.35),
//! memory is bounded, and only the thread's own stack is read. A stack is never guessed: where no
//! table covers an address, or a rule is not understood, it ends there and says why.
//!
//! ```text
//! Memory ── stacks that a thread had before; proves that it has one of them again
//! Walker ── a thread's last stack; proves what has not changed, walks the rest
//!   └▶ Tables ── rules of addresses seen before, shared by all threads
//!        └▶ objects ── which file is mapped there, and where its tables are
//!        └▶ rule ── one row of `.eh_frame` as a few words
//! ```

mod caller;
#[doc(hidden)]
pub mod fuzzing;
mod loaded;
mod memory;
mod objects;
mod registers;
mod rule;
mod tables;
mod walk;

pub use caller::Pushed;
pub use loaded::{Changes, LoadedFile, find_loaded, for_each_loaded, loader_changes};
pub use memory::{StackMemory, StackMemoryKey};
pub use objects::{Description, FIRST_PAGE, MappedObject};
pub use registers::{Bounds, Registers, SAVED};
pub use tables::UnwindTables;
pub use walk::{End, MOST_FRAMES, Walker};
