//! Links the injected library: never unloaded, and with symbol versions of an old glibc.

use xputrace_old_glibc::{Linked, link};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    link(Linked::Library);
}
