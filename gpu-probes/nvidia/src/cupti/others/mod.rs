//! Other users of CUPTI in the program, such as torch.profiler: what they asked of it.
//!
//! Where subscribers share CUPTI, each is on its own: [`scoped`]. Otherwise a process has one subscriber and one pair of
//! buffer callbacks. So the calls that claim these are redirected to [`calls`] ([`redirect`]), and both are shared:
//!
//! ```text
//! launch ─▶ CUPTI ─▶ our subscription ─┬─ ids that we enabled ──▶ launches
//!                                      └─ ids that it enabled ──▶ its callback
//! buffer ─▶ CUPTI ─▶ our callbacks ────┬─ a buffer of our pool ─▶ delivery
//!                                      └─ a buffer of its own ──▶ its callback
//! ```
//! A record goes to one of them, so while the other has enabled a kind of record, it gets all of
//! them: [`yielding`](super::yielding). Nothing here refers to a run: the other's subscription may
//! outlive ours.

pub(super) mod calls;
pub(super) mod clock;
mod other;
mod redirect;
pub(super) mod scoped;

pub(super) use other::{OTHER, OURS, TWINS, WantedBy};
pub(super) use redirect::{install, is_installed, undo};
