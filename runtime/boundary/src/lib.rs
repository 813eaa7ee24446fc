//! Everything between the tracer and what another user controls: their files, their directories, their programs.
//!
//! The tracer often runs as root and looks at processes of anybody. What these can change is never trusted, and each way
//! of touching it has one module here, so that its rule is kept everywhere:
//!
//! | module | rule |
//! |---|---|
//! | [`read`] | Only regular files are opened, nothing waits, and no more is read than the caller allows |
//! | [`copied`] | A file is never mapped: who truncates a mapped file ends its readers by SIGBUS. Parts are copied when needed |
//! | [`create`] | A file is made under a name that nobody can guess, then renamed; nobody else's link is followed |
//! | [`child`] | A program of another user runs as that user, in a session of its own, with nothing of ours |
//! | [`memory`] | What a child is given, and a reader that insists on a path, is a file without a name |
//! | [`trust`] | Who can change a file is decided by its owner, mode and access list, the same way everywhere |
//! | [`user`] | Acting with the rights of another user, in one thread |
//!
//! A test (`tests/plain_calls.rs`) forbids the plain calls in the rest of the tracer.

pub mod child;
pub mod copied;
pub mod create;
pub mod memory;
pub mod read;
pub mod trust;
pub mod user;
mod walk;

/// Returns what a system call has answered: those used here return -1 if they fail.
fn answer(result: impl Into<i64>) -> std::io::Result<()> {
    if result.into() < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
