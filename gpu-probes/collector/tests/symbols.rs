//! Checks the built library: what it needs of glibc, what it exports, and how its marker begins.

use object::{Object, ObjectSection, ObjectSymbol};
use std::path::PathBuf;

fn library() -> Vec<u8> {
    let name = "libxputrace_collector.so";
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join(name), deps.join("..").join(name)];
    let path: &PathBuf = candidates.iter().find(|it| it.exists()).expect("cargo builds the library with this test");
    std::fs::read(path).unwrap()
}

#[test]
fn no_symbol_is_newer_than_the_glibc_that_is_promised() {
    let needs = xputrace_old_glibc::check::needs(&library()).unwrap();
    assert_eq!(needs.newer, <[&str; 0]>::default());
    assert!(needs.symbols > 20, "{needs:?}");
}

#[test]
fn it_exports_its_entry_points_and_nothing_else() {
    let bytes = library();
    let file = object::File::parse(&*bytes).unwrap();
    let defined = file.dynamic_symbols().filter(|it| it.is_definition());
    let mut names: Vec<_> = defined.map(|it| it.name().unwrap().to_string()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "InitializeInjection",
            "InitializeInjectionNvtx2",
            "InitializeInjectionNvtxExtension",
            "xputrace_arm",
            xputrace_wire::marker::SYMBOL,
            xputrace_wire::WAIT_FOR_PROGRAMS,
        ]
    );
}

#[test]
fn the_marker_begins_with_a_nop_of_five_bytes() {
    let bytes = library();
    let file = object::File::parse(&*bytes).unwrap();
    let marker = file.dynamic_symbols().find(|it| it.name() == Ok(xputrace_wire::marker::SYMBOL)).unwrap();
    let code = file.section_by_index(marker.section_index().unwrap()).unwrap();
    let at = (marker.address() - code.address()) as usize;
    assert_eq!(code.data().unwrap()[at..at + 6], [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3]);
}
