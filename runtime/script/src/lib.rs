//! Rhai text to a `Plan`, and the interpreter for handlers that need all of Rhai.
//!
//! ```text
//! text ─lexer─▶ Rhai text + position map ─stage─▶ Handlers ─compile─▶ Plan
//!                                          └────▶ Interpreter (interval, end, interpret(…))
//! ```
//!
//! The only crate that knows Rhai. It does no IO: sources come through a `Loader`, the machine
//! through a `Catalog`, and interpreted handlers see maps and output through a `Host`.
#![forbid(unsafe_code)]

pub mod handler;
