//! The compiler from the outside: what it says of mistakes, what its programs compute, and
//! whether the kernel takes them.

#[path = "compile/engine.rs"]
mod engine;
#[path = "compile/goldens.rs"]
mod goldens;
#[path = "compile/odd.rs"]
mod odd;
#[path = "compile/support.rs"]
mod support;
#[path = "compile/verifier.rs"]
mod verifier;
