//! The nouns that every part of xputrace shares, and nothing else.
//!
//! ```text
//! script ──Plan──▶ kernel, tracer ──Row──▶ render
//!    └──Diagnostic──▶ render      losses ──▶ render
//! ```
//!
//! This crate does no IO, contains no `unsafe`, and depends on `bytecode` and `events` alone.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod catalog;
pub mod context;
pub mod diagnostic;
pub mod loss;
pub mod names;
pub mod output;
pub mod plan;
pub mod schema;
pub mod stack;
pub mod table;
