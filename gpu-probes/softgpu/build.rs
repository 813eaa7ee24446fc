//! Links the library with symbol versions of an old glibc: the demo takes it along.

use xputrace_old_glibc::{Linked, link};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    link(Linked::Library);
}
