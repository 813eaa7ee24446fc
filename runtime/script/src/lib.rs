//! Reads a script: runs its top level, hands its handlers on to be compiled, and interprets those that need all of Rhai.
//!
//! ```text
//! text ─lexer─▶ Rhai text + position map ─stage─▶ handlers, as syntax ─▶ the crate `compiler`
//!                                          └────▶ Interpreter (interval, end, interpret(…))
//! ```
//!
//! The only crate that runs Rhai; `compiler` knows its syntax trees. What both must know of the language is here: its
//! [`words`], [`units`] and [`width`]s, and [`mistakes`] that either may find. This crate does no I/O: sources come through a
//! [`Loader`], and interpreted handlers reach maps and output through a [`Host`].
//!
//! Every text is rewritten and parsed twice, by one lexer with two settings: the compiler's version
//! is free of what the interpreter needs (see [`lexer::Dialect`]).
#![forbid(unsafe_code)]

mod arguments;
mod bundle;
mod declare;
mod errors;
mod event;
mod failure;
pub mod handler;
mod host;
mod interpreter;
pub mod lexer;
mod maps;
pub mod mistakes;
mod operators;
mod session;
mod source;
mod stage;
mod static_check;
pub mod units;
mod values;
pub mod width;
pub mod words;

pub use arguments::{ArgumentSpec, ArgumentValue, TAKEN, help as argument_help};
pub use bundle::{Bundled, BundledKind, bundled, scripts, stdlib};
pub use declare::PATTERN as PATTERN_MISTAKE;
pub use host::{EventView, Host, RunNumber};
pub use interpreter::Interpreter;
pub use source::{BundledLoader, Clocks, Loader};
pub use stage::{LoadedScript, load};
