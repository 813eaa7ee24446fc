//! The types that all parts of xputrace share, and nothing else.
//!
//! ```text
//! script ──Plan──▶ Linux, tracer ──Output──▶ render
//!    └──Diagnostic──▶ render      losses ──▶ render
//! ```
//!
//! This crate does no I/O, contains no `unsafe`, and depends only on `bytecode` and `events`.
#![forbid(unsafe_code)]

pub mod api;
pub mod bucket;
pub mod catalog;
pub mod context;
pub mod diagnostic;
pub mod gap;
pub mod gpu;
mod id;
pub mod listing;
pub mod loss;
pub mod names;
pub mod object;
pub mod output;
pub mod plan;
pub mod process_name;
pub mod schema;
pub mod stack;
pub mod style;
pub mod table;
pub mod text;
