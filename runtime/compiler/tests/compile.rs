//! The compiler from the outside: how it answers mistakes, what its programs compute, and whether
//! Linux accepts them.

#[path = "compile/agree.rs"]
mod agree;
#[path = "compile/device.rs"]
mod device;
#[path = "compile/engine.rs"]
mod engine;
#[allow(dead_code, reason = "other tests use all of it")]
#[path = "../../script/tests/fake_host/mod.rs"]
mod fake_host;
#[path = "compile/goldens.rs"]
mod goldens;
#[path = "compile/odd.rs"]
mod odd;
#[path = "compile/support.rs"]
mod support;
#[path = "compile/verifier.rs"]
mod verifier;
