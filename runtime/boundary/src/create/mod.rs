//! Creates files.
//!
//! A file is written as a *draft* beside its place, under a random name that did not exist, and then renamed. So what was
//! there before stays until the new file is whole, a reader never sees half of it, and a link or a pipe that another user
//! has laid in its way is replaced, not followed.
//!
//! ```text
//! path ──Creator──▶ Destination ─┬─ Place ──▶ Draft ──finish──▶ the file
//!                                └─ Stream: a device, a pipe or a descriptor of ours, written as it is
//! ```
//!
//! | module | job |
//! |---|---|
//! | [`creator`] | Whose rights are taken, and when root stands in for a user |
//! | [`place`] | What is at the end of a path, and whether it may be written or replaced |
//! | [`draft`] | The file that is being written: its mode, its group, and how it takes its place |
//! | [`stream`] | What is written as it is |
//! | [`directory`] | Directories and links |

mod creator;
mod directory;
mod draft;
mod place;
mod stream;
#[cfg(test)]
mod tests;

pub use creator::{Creator, FileAccess};
pub use draft::Draft;
pub use place::{Destination, Place};
pub use stream::Stream;
