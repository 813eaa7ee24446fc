//! Twins with the bundled scripts' handlers.

use super::*;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use xputrace_model::catalog::MiniCatalog;
use xputrace_script::compile::{Wishes, compile};
use xputrace_script::{Bundled, BundledLoader, load, scripts};
use xputrace_twins::{Gpu, TwinText, Wanted};
use xputrace_wire::device::{Codec, Portability, Ptx};

/// PTX with source lines, of one kernel.
const LINES: &str = include_str!("../../../../gpu-probes/ptx/tests/fixtures/lines.ptx");

fn plan(script: &Bundled) -> Plan {
    let loaded = load(script.source(), &[], Rc::new(BundledLoader));
    compile(&loaded.staged, &MiniCatalog, Wishes::default()).0
}

/// Returns the twin of the kernel with all of a plan's device handlers; `None` if it has none.
fn twin(plan: &Plan) -> Option<TwinText> {
    let twins = Twins::of(plan).expect("a GPU can run the handlers")?;
    let handlers: Vec<usize> = (0..plan.device_handlers().count()).collect();
    let stored = LINES.as_bytes().into();
    let text_bytes = LINES.len() as u64;
    let image = [Ptx { codec: Codec::Plain, portability: Portability::Later, sm: 90, text_bytes, stored }];
    let gpu = Gpu { capability: 90 };
    let made = twins.making.maker.twin(&image, gpu, &mut |_| Some(Wanted { handlers: handlers.clone() }));
    made.expect("the kernel takes them")
}

/// Assembles PTX with the `ptxas` that the variable PTXAS names, or that is on the PATH.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn assemble(name: &str, text: &str) {
    let ptxas = std::env::var_os("PTXAS").map_or_else(|| PathBuf::from("ptxas"), PathBuf::from);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("twin.ptx");
    std::fs::write(&path, text).unwrap();
    match Command::new(&ptxas).args(["-arch=sm_90a", "-o", "/dev/null"]).arg(&path).output() {
        Ok(it) => assert!(it.status.success(), "{name}: {}\n{text}", String::from_utf8_lossy(&it.stderr)),
        Err(error) => eprintln!("skipped: no GPU toolkit to assemble what {name} makes: {}: {error}", ptxas.display()),
    }
}

#[test]
fn bundled_scripts_fit_into_a_kernel() {
    let mut n = 0;
    for script in scripts() {
        let Some(twin) = twin(&plan(script)) else { continue };
        n += 1;
        assert_eq!(twin.kernels, ["lines"], "{}", script.name);
        assert!(twin.text.contains("[xpt_device]"), "{} has code there", script.name);
        assemble(script.name, &twin.text);
    }
    assert_eq!(n, 8, "scripts with handlers inside kernels");
}
