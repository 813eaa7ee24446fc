//! Loads the Linux half of a [`Plan`](xputrace_model::plan::Plan), attaches its probes within a
//! scope, and removes everything on drop.
//!
//! ```text
//! Plan ──load──▶ Linux ──attach(scope)──▶ links ──▶ poll: ring buffer, new children, new files
//!                   └── map, swap, stack_addresses, loss_counts
//! ```
//!
//! Everything depends on file descriptors of [`Linux`]: dropping it, or being killed, detaches and
//! frees everything.
//!
//! The only crate that knows libbpf and perf. It decides nothing about scripts: the plan says what
//! to attach where.

mod attach;
mod btf;
mod catalog;
mod code;
mod compiled;
mod cpus;
mod elf;
mod error;
mod facts;
mod first_insn;
mod foreign;
#[doc(hidden)]
pub mod fuzzing;
mod inherited;
mod libbpf;
mod links;
mod linux;
mod list;
mod load;
mod map;
mod marker;
mod modify;
mod pid_namespace;
mod probes;
mod proc_maps;
mod process;
mod reach;
mod report;
mod resolve;
mod return_type;
mod returns;
mod ring;
mod scope;
mod sideband;
mod spawn;
mod sys;
mod targets;
mod trial;
mod usdt;
mod watch;

pub use catalog::LiveCatalog;
pub use error::{AttachError, Error};
pub use facts::{Fact, Standing, facts};
pub use foreign::place_for_libbpf;
pub use inherited::{was_closed, was_ignored};
pub use linux::Linux;
pub use list::{list_functions, list_tracepoints, list_usdt};
pub use map::{MapHandle, OnElement};
pub use marker::TagArrays;
pub use process::{has_thread, seen_from_here, shares_our_files};
pub use report::{AttachReport, LateFile, News, Outcome, ProbeReport, Unprobed, Warning};
pub use scope::{CommandScope, Scope, all_processes, parent_of, with_descendants};
pub use sideband::{ProcessEvent, Unwatched, has_ended, is_leaderless, is_over};
pub use spawn::{CommandUser, StoppedChild};
pub use sys::{monotonic_nanos, pidfd};
pub use watch::ProcessWatch;
