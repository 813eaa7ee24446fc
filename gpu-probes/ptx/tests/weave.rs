//! What is woven, as text; and NVIDIA's assembler accepts it.

mod common;

use common::{assert_assembles, fixture, tests_directory};
use xputrace_ptx::{Module, Point, Site, WeaveError};

/// Weaves into a kernel of a fixture, and compares with the text in `woven`.
#[track_caller]
fn check(fixture_name: &str, kernel: &str, golden: &str, insert: &mut dyn FnMut(&Site) -> Option<String>) {
    let mut module = Module::parse(&fixture(fixture_name)).unwrap();
    let woven = module.weave(kernel, insert).unwrap();
    assert!(woven > 0, "nothing was woven");
    accept(golden, &module);
}

#[track_caller]
fn accept(golden: &str, module: &Module) {
    let text = module.to_string();
    xputrace_golden::assert(&tests_directory().join("woven").join(golden).with_extension("ptx"), &text);
    assert_assembles(golden, &text);
}

#[test]
fn entry_and_exits() {
    check("first", "first", "entry-and-exits", &mut |site| {
        let counter = match site.point {
            Point::Entry => 0,
            Point::Exit => 1,
        };
        Some(format!(".reg .b64 %a; mov.u64 %a, {counter}; bra DONE; DONE: add.u64 %a, %a, 1;"))
    });
}

#[test]
fn a_text_cannot_leave_its_scope() {
    let before = Module::parse(&fixture("first")).unwrap();
    for text in ["}", "ret", "{", "mov.u32 %r, ; }", ".version 9.0"] {
        let mut module = before.clone();
        let error = module.weave("first", &mut |_| Some(text.to_owned())).unwrap_err();
        assert!(matches!(error, WeaveError::Text { .. }), "{text}: {error}");
        assert!(module == before, "{text}");
    }
}

#[test]
fn a_kernel_that_is_not_there_is_named() {
    let mut module = Module::parse(&fixture("first")).unwrap();
    let error = module.weave("weigh", &mut |_| None).unwrap_err();
    assert_eq!(error.to_string(), "the module has no kernel `weigh` with a body");
}
