//! Builds what the binary carries inside: the collector, the software GPU, and the demo's program.
//!
//! They are other artifacts of this workspace (two shared libraries, one executable) that a plain
//! dependency cannot provide, so cargo is run once more, always optimized, into a target
//! directory of its own, which builds of all profiles share. All, and the binary itself, are linked with symbol versions of an old glibc.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};
use xputrace_old_glibc::{Linked, link};

/// (package, file that cargo leaves, name under which it is embedded)
const PAYLOAD: &[(&str, &str, &str)] = &[
    ("xputrace-collector", "libxputrace_collector.so", "collector.so"),
    ("xputrace-softgpu", "libxputrace_softgpu.so", "softgpu.so"),
    ("xputrace-workloads", "server", "server"),
];

fn main() {
    link(Linked::Program("xputrace"));
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(variable("OUT_DIR"));
    // Cargo gives no path of its target directory; this is TARGET/PROFILE/build/PACKAGE/out.
    let target = out.ancestors().nth(4).expect("cargo's directories").join("payload");
    for directory in ["gpu-probes", "tests/workloads", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(directory).display());
    }
    build(&root, &target);
    for (package, file, name) in PAYLOAD {
        let from = target.join("release").join(file);
        fs::copy(&from, out.join(name)).unwrap_or_else(|e| panic!("{package} left no {}: {e}", from.display()));
    }
}

fn build(root: &Path, target: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(root).args(["build", "--release", "--quiet", "--target-dir"]).arg(target);
    for (package, _, _) in PAYLOAD {
        cargo.args(["-p", package]);
    }
    // Flags meant for the outer build (coverage, target) must not leak in.
    cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env_remove("RUSTFLAGS");
    // The demo's functions are probed by name.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    let status = cargo.status().unwrap_or_else(|e| panic!("cargo could not be run for the payload: {e}"));
    assert!(status.success(), "the payload did not build: {status}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}
