//! Each measure on small trees of source.

use std::fmt::Write;
use xputrace_house::circles::circles;
use xputrace_house::edges::edges;
use xputrace_house::functions::long_functions;
use xputrace_house::lines::net_lines;
use xputrace_house::modules::Crate;
use xputrace_house::sources::Sources;
use xputrace_house::words::{is_vendors, words};
use xputrace_house::{House, measure};

/// Reads the only crate of a text.
fn only_crate(text: &str) -> Crate {
    Crate::parse(&Sources::from_text(text).crates[0]).unwrap()
}

/// Returns which files use which, a line each, without the folder.
fn used(text: &str) -> String {
    let of = only_crate(text);
    let name = |file: usize| of.files[file].path.rsplit_once("src/").unwrap().1.trim_end_matches(".rs").to_owned();
    let line = |((from, to), names): (&(usize, usize), &std::collections::BTreeSet<String>)| {
        let names = names.iter().cloned().collect::<Vec<_>>().join(", ");
        format!("{} -> {}: {names}", name(*from), name(*to))
    };
    let mut lines: Vec<_> = edges(&of).iter().map(line).collect();
    lines.sort();
    lines.join("\n")
}

/// Returns the net lines of a file.
fn lines(text: &str) -> usize {
    net_lines(&only_crate(&format!("//- a/src/lib.rs\n{text}")).files[0])
}

fn house(text: &str) -> House {
    measure(&Sources::from_text(text)).unwrap()
}

#[test]
fn comments_documentation_and_blanks_are_no_lines() {
    assert_eq!(lines("//! Docs.\n\n/// Docs.\n// Comment.\nfn f() {\n\n    /* a\n    b */ g();\n}\n"), 3);
    assert_eq!(lines("macro_rules! m {\n    /// Docs.\n    () => {};\n}\n"), 3);
    assert_eq!(lines("#[doc(hidden)]\nfn f() {}\n"), 2);
}

#[test]
fn each_line_of_a_text_counts() {
    assert_eq!(lines("const TEXT: &str = \"a\n// no comment\n\nb\";\n"), 4);
    assert_eq!(lines("const TEXT: &str = r#\"a\n\"b\"#;\n"), 2);
}

#[test]
fn what_is_for_tests_is_not_measured() {
    assert_eq!(lines("fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n"), 1);
    assert_eq!(
        lines("#[cfg(all(test, unix))]\nfn f() {}\n#[cfg(not(test))]\nfn g() {}\n#[cfg(any(test, unix))]\nfn h() {}\n"),
        4
    );
    let inside =
        "struct S {\n    a: u8,\n    #[cfg(test)]\n    b: u8,\n}\n\nimpl S {\n    #[cfg(test)]\n    fn f() {}\n}\n";
    assert_eq!(lines(inside), 5);
    assert_eq!(
        lines(
            "fn f() {\n    #[cfg(test)]\n    g();\n    match 1 {\n        #[cfg(test)]\n        1 => {}\n        _ => {}\n    }\n}\n"
        ),
        5
    );
    let files = "//- a/src/lib.rs\nmod b;\n#[cfg(test)]\nmod c;\nmod tests;\n\
                 //- a/src/b.rs\n//- a/src/c.rs\n//- a/src/tests.rs\n//- a/src/nobodys.rs\n";
    assert_eq!(
        only_crate(files).files.iter().map(|it| it.path.as_str()).collect::<Vec<_>>(),
        ["a/src/lib.rs", "a/src/b.rs"]
    );
}

#[test]
fn paths_are_followed_from_the_root_from_here_and_outward() {
    let text = "//- a/src/lib.rs\nmod b; mod d; pub struct Root;\n\
                //- a/src/b/mod.rs\nmod c; use self::c::C; pub struct B;\n\
                //- a/src/b/c.rs\npub struct C; fn f(_: super::B, _: super::super::Root) { crate::d::g() }\n\
                //- a/src/d.rs\nuse super::b; pub fn g() { b::c::later(); h() } fn h() {}\nmod inner { fn f(_: super::super::Root) {} }\n";
    assert_eq!(used(text), "b/c -> b/mod: B\nb/c -> d: g\nb/c -> lib: Root\nb/mod -> b/c: C\nd -> lib: Root");
}

#[test]
fn re_exports_lead_to_the_file_of_the_item() {
    let text = "//- a/src/lib.rs\nmod b; mod d; mod e;\n\
                //- a/src/b.rs\nmod c; pub use c::{C as Renamed, f}; pub use self::c::*;\n\
                //- a/src/b/c.rs\npub struct C; pub fn f() {} pub enum Kind { One }\n\
                //- a/src/d.rs\nuse crate::b::{Renamed, Kind::One};\n\
                //- a/src/e.rs\nuse crate::b::*; fn g() { f(); let _ = Kind::One; }\n";
    assert_eq!(used(text), "b -> b/c: C, f\nd -> b/c: C, Kind\ne -> b/c: Kind, f");
}

#[test]
fn modules_are_no_items() {
    let text = "//- a/src/lib.rs\nmod b; mod c;\n\
                //- a/src/b.rs\nuse crate::c; use crate::c::same; fn f() { same::g() }\n\
                //- a/src/c.rs\npub mod same { pub fn g() {} } pub fn same() {}\n";
    assert_eq!(used(text), "b -> c: g");
}

#[test]
fn macros_name_items() {
    let text = "//- a/src/lib.rs\n#[macro_use] mod b; mod c; mod d;\nmacro_rules! here { () => { $crate::c::f() } }\n\
                //- a/src/b.rs\nmacro_rules! types { ($($name:ident)*) => { $(pub struct $name;)* } }\ntypes! { Made }\n\
                //- a/src/c.rs\npub fn f() { here!(); assert!(crate::d::g(1).is_some()); use crate::b::Made; }\n\
                //- a/src/d.rs\npub fn g() { let f = 1; println!(\"crate::c::f {}\", f); }\n";
    assert_eq!(used(text), "c -> b: Made\nc -> d: g\nc -> lib: here\nlib -> c: f");
}

#[test]
fn names_of_a_block_hide_those_outside() {
    let text = "//- a/src/lib.rs\nmod b; mod c; mod d;\n\
                //- a/src/b.rs\nuse crate::c::*; fn f() { fn g() {} g(); use crate::d::h as other; other(); }\n\
                //- a/src/c.rs\npub fn g() {}\n\
                //- a/src/d.rs\npub fn h() {}\n";
    assert_eq!(used(text), "b -> d: h");
}

#[test]
fn imports_that_lead_to_themselves_lead_nowhere() {
    let text = "//- a/src/lib.rs\nmod b; mod c;\n//- a/src/b.rs\npub use crate::c::x; pub use crate::c::*;\n\
                //- a/src/c.rs\npub use crate::b::x; pub use crate::b::*; fn f() { unknown() }\n";
    assert_eq!(used(text), "");
}

#[test]
fn circles_are_the_files_that_lead_back() {
    let text = "//- a/src/lib.rs\nmod b; mod c; mod d; mod e; mod f; use b::B;\n\
                //- a/src/b.rs\npub struct B(crate::c::C);\n\
                //- a/src/c.rs\npub struct C(crate::d::D);\n\
                //- a/src/d.rs\npub struct D(crate::b::B, crate::e::E);\n\
                //- a/src/e.rs\npub struct E(crate::f::F);\n\
                //- a/src/f.rs\npub struct F(crate::e::E);\n";
    let of = only_crate(text);
    let mut shown = String::new();
    for circle in circles(&of, 1) {
        writeln!(shown, "{}", circle.files.join(" ")).unwrap();
        circle.ties.iter().for_each(|tie| writeln!(shown, "  {tie}").unwrap());
    }
    assert_eq!(
        shown,
        "a/src/b.rs a/src/c.rs a/src/d.rs\n  a/src/b.rs -> a/src/c.rs: C\n  a/src/c.rs -> a/src/d.rs: D\n  \
         a/src/d.rs -> a/src/b.rs: B\na/src/e.rs a/src/f.rs\n  a/src/e.rs -> a/src/f.rs: F\n  a/src/f.rs -> a/src/e.rs: E\n"
    );
    assert_eq!(circles(&of, 2).len(), 1);
}

#[test]
fn functions_are_long_from_fn_to_the_closing_brace() {
    let text = "//- a/src/lib.rs\n/// Docs.\n#[inline]\nfn three(\n) {\n}\nimpl S {\n    fn two() {\n    }\n}\n\
                macro_rules! m {\n    () => { fn four() {\n\n\n    } };\n}\ntype F =\n    fn(\n    )\n;\n";
    let long = long_functions(&only_crate(text).files[0], 2);
    let shown = long.iter().map(|it| format!("{} {} at {}", it.name, it.lines, it.at)).collect::<Vec<_>>();
    assert_eq!(shown, ["four 4 at 11", "three 3 at 3"]);
}

#[test]
fn names_of_many_types_are_found_over_all_crates() {
    let text = "//- a/src/lib.rs\nstruct Same; fn f() { enum Same {} } mod inner { type Same = u8; struct Other; }\n\
                //- b/src/lib.rs\ntrait Same {}\n#[cfg(test)]\nmod tests { struct Same; }\n";
    let names = house(text).names;
    assert_eq!(names.len(), 1);
    assert_eq!(names["Same"], ["a/src/lib.rs:1", "a/src/lib.rs:1", "a/src/lib.rs:1", "b/src/lib.rs:1"]);
}

#[test]
fn names_are_split_into_words() {
    let split = |name: &str| words(name).join(" ");
    assert_eq!(split("cuda_calls"), "cuda calls");
    assert_eq!(split("CudaContext2D"), "cuda context2 d");
    assert_eq!(split("PTXText"), "ptx text");
    assert_eq!(split("_NO_PTX"), "no ptx");
    for name in ["cuda_calls", "Cupti", "PTX", "ptxas", "NoPtx", "libcuda", "cudart", "cupti_file", "xputrace_ptx"] {
        assert!(is_vendors(name), "{name}");
    }
    for name in ["captured", "uptime_cup", "barracuda", "cud_a", "scripts"] {
        assert!(!is_vendors(name), "{name}");
    }
}

#[test]
fn only_code_outside_of_the_vendors_folders_names_its_things() {
    let text = "//- gpu-probes/ptx/src/lib.rs\nstruct Ptx;\n\
                //- a/src/lib.rs\nmod b; mod c;\n\
                //- a/src/b.rs\n/// cuda\nfn f() { let text = \"cuda\"; } // cuda\n\
                //- a/src/c.rs\nfn f(\n    ptx: u8) { ptx + 1; }\n";
    let found = house(text).vendor_files;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].path.as_str(), found[0].at, found[0].names["ptx"]), ("a/src/c.rs", 2, 2));
}
