//! Twins and patches with scripts' handlers.

use super::*;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use xputrace_compiler::{Wishes, compile};
use xputrace_model::catalog::MiniCatalog;
use xputrace_model::diagnostic::SourceFile;
use xputrace_model::plan::Detail;
use xputrace_script::{Bundled, BundledLoader, load, scripts};
use xputrace_twins::{Gpu, TwinText, Wanted};
use xputrace_wire::device::{Codec, Portability, PortableCode};

/// PTX with source lines, of one kernel.
const LINES: &str = include_str!("../../../../gpu-probes/ptx/tests/fixtures/lines.ptx");

fn bundled(script: &Bundled, arguments: &[String]) -> Plan {
    let loaded = load(script.source(), arguments, Rc::new(BundledLoader));
    compile(&loaded.staged, &MiniCatalog, Wishes::default()).0
}

pub fn plan(script: &str) -> Plan {
    let source = SourceFile { name: "script.rhai".into(), text: script.into() };
    let loaded = load(source, &[], Rc::new(BundledLoader));
    let (plan, diagnostics) = compile(&loaded.staged, &MiniCatalog, Wishes::default());
    assert!(diagnostics.is_empty() && loaded.diagnostics.is_empty(), "{diagnostics:?}");
    plan
}

/// Returns the twin of the kernel with all of a plan's device handlers; `None` if it has none.
fn twin(plan: &Plan) -> Option<TwinText> {
    let twins = Twins::of(plan).expect("a GPU can run the handlers")?;
    let handlers: Vec<usize> = (0..plan.device_handlers().count()).collect();
    let stored = LINES.as_bytes().into();
    let text_bytes = LINES.len() as u64;
    let image = [PortableCode { codec: Codec::Plain, portability: Portability::Later, sm: 90, text_bytes, stored }];
    let gpu = Gpu { capability: 90 };
    let made = twins.making.maker.twins(&image, gpu, &mut |_| Some(Wanted { handlers: handlers.clone() }));
    let made = made.expect("its PTX can be read");
    assert!(made.refused.is_empty(), "{:?}", made.refused);
    { made }.texts.pop()
}

/// Assembles PTX with the `ptxas` that the variable PTXAS names, or that is on the PATH.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
pub fn assemble(name: &str, text: &str, options: &[&str]) {
    let ptxas = std::env::var_os("PTXAS").map_or_else(|| PathBuf::from("ptxas"), PathBuf::from);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("twin.ptx");
    std::fs::write(&path, text).unwrap();
    match Command::new(&ptxas).args(["-arch=sm_90a", "-o", "/dev/null"]).args(options).arg(&path).output() {
        Ok(it) => assert!(it.status.success(), "{name}: {}\n{text}", String::from_utf8_lossy(&it.stderr)),
        Err(error) => eprintln!("skipped: no GPU toolkit to assemble what {name} makes: {}: {error}", ptxas.display()),
    }
}

#[test]
fn bundled_scripts_fit_into_a_kernel() {
    let mut n = 0;
    for script in scripts() {
        let Some(twin) = twin(&bundled(script, &[])) else { continue };
        n += 1;
        assert_eq!(twin.kernels, ["lines"], "{}", script.name);
        assert!(twin.text.contains("[xpt_device]"), "{} has code there", script.name);
        assemble(script.name, &twin.text, &[]);
    }
    assert_eq!(n, 9, "scripts with handlers inside kernels");
}

#[test]
fn sums_of_accesses_are_kept_in_registers() {
    let script = r#"
        device_mem("lines", |t| { @n.count(); @bytes[t.space, t.access].sum(t.bytes ?? 0); @last.max(t.bytes ?? 0) });
        device_mem("lines", |t| if t.space == "global" { @low.min(t.address) });
        device_exit("lines", |t| @n.count());
    "#;
    let by_thread = r#"
        device_mem("lines", |t| { @n[t.kernel].count(); @mean[t.blockIdx.x, t.laneid].avg(t.bytes ?? 0) });
        device_mem("lines", |t| @low[t.arg1].min(t.address));
    "#;
    let by_thread = twin(&plan(by_thread)).unwrap();
    assert!(by_thread.text.contains("%xpt_sum2_there"), "{}", by_thread.text);
    assemble("sums by thread", &by_thread.text, &[]);
    let made = twin(&plan(script)).unwrap();
    for kept in 0..4 {
        assert!(made.text.contains(&format!(".reg .b32 %xpt_sum{kept}_there;")), "{}", made.text);
    }
    assemble("sums in registers", &made.text, &[]);
}

/// What is not the same wherever a thread comes by, or what is done in some threads of a warp alone, goes to the map at once.
#[test]
fn other_sums_are_not_kept() {
    for handler in [
        "|t| @n[t.smid].count()",
        "|t| @n[t.launch.ustack].count()",
        "|t| @n[t.pid].count()",
        "|t| @first.min(t.time)",
        "|t| { @n.count(); @h.hist(t.address) }",
        "|t| if t.address > 100 { @n.count() }",
        "#{per: \"warp\"}, |t| @n.count()",
    ] {
        let made = twin(&plan(&format!("device_mem(\"lines\", {handler});"))).unwrap();
        assert!(!made.text.contains("%xpt_sum"), "{handler}: {}", made.text);
        assemble(handler, &made.text, &[]);
    }
}

const PATCHES: [&str; 7] = [
    r#"device_entry("reduce", #{via: "patch"}, |t| { @n.count(); @k[t.kernel].count(); }); device_exit("reduce", |t| @x.count());"#,
    r#"device_mem("reduce", #{via: "patch"}, |t| { @n[t.space, t.access].count(); @b[t.space].sum(t.bytes ?? 0) });"#,
    r#"device_barrier("reduce", #{via: "patch"}, |t| @barriers.count());"#,
    r#"device_call("reduce", #{via: "patch"}, |t| { @calls.count(); @by[t.callee].count(); if t.callee == () { @unnamed.count() } });"#,
    r#"device_exit("reduce", #{via: "patch"}, |t| { @n[t.arg2].count(); if t.arg0 == () { @without.count() } });"#,
    r#"device_mem("*", #{via: "patch", per: "warp"}, |t| if t.access == "store" { @h.hist(t.bytes ?? 0); @last.max(t.time) });"#,
    r#"device_mem("*", #{via: "patch", per: "block"}, |t| print(`${t.kernel} ${t.access} ${t.address.hex}`));"#,
];

#[test]
fn patches_of_scripts_are_compiled() {
    for script in PATCHES {
        assemble(script, &patches(&plan(script)), &["--compile-as-tools-patch"]);
    }
}

/// Bundled scripts that can patch.
const CAN_PATCH: [&str; 5] = ["smbusy", "hotlines", "memcoalesce", "bankconflict", "warpdiv"];

#[test]
fn bundled_scripts_patch() {
    for name in CAN_PATCH {
        let script = scripts().iter().find(|it| it.name == name).unwrap();
        assemble(name, &patches(&bundled(script, &["--patch".into()])), &["--compile-as-tools-patch"]);
    }
}

fn patches(plan: &Plan) -> String {
    assert_eq!(plan.device_ways, DeviceWays::One(DeviceWay::Patch));
    let twins = Twins::of(plan).unwrap().unwrap();
    twins.making.maker.patches(90, plan.demand.has(Detail::PatchedKernels)).unwrap().text
}

#[test]
fn what_handlers_print_goes_through_a_ring() {
    let script = r#"
        device_entry("lines", |t| if t.threadIdx.x == 0 { print(`${t.kernel} ${t.arg0}: ${t.time}`); exit(2); });
        device_mem("lines", #{per: "warp"}, |t| { print(#{line: t.line, access: t.access}); @n.count(); });
    "#;
    let plan = plan(script);
    let twins = Twins::of(&plan).unwrap().unwrap();
    let lines: Vec<u32> = twins.layout.sites.iter().filter(|it| it.record.is_some()).map(|it| it.at.line).collect();
    assert_eq!(lines, [2, 2, 3], "two prints, and the end of the run");
    assert!(twins.layout.sites.iter().all(|it| it.record.is_none() || it.loss.is_none()), "the script counts them");
    assert!(twins.block(None).unwrap().ring.is_some());
    let made = twin(&plan).unwrap();
    assert!(!made.names.is_empty());
    assemble("a script that prints", &made.text, &[]);
    assert_eq!(
        Twins::of(&self::plan("device_entry(\"lines\", |t| @n.count());")).unwrap().unwrap().block(None).unwrap().ring,
        None
    );
}
