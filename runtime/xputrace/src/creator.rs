//! Whose files the results are: under sudo those of the user who ran it, else ours.

use crate::target::Invoker;
use anyhow::Result;
use std::sync::OnceLock;
use xputrace_boundary::create::Creator;
use xputrace_boundary::user::is_root;

static CREATOR: OnceLock<Creator> = OnceLock::new();

/// Decides it for this process; `as_root` is the user's option.
///
/// # Errors
/// sudo names a user whom this system does not know: writing as root instead is never intended.
pub fn decide(as_root: bool) -> Result<()> {
    // Whoever is not root writes as they are.
    let invoker = if as_root || !is_root() { None } else { Invoker::of_sudo()? };
    let _ = CREATOR.set(invoker.map_or_else(Creator::own, Invoker::into_creator));
    Ok(())
}

/// Returns who creates the files of results.
pub fn creator() -> &'static Creator {
    CREATOR.get_or_init(Creator::own)
}
