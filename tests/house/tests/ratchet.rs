//! What counts as worse or better than the limits, and what the file says.

use xputrace_house::limits::Limits;
use xputrace_house::ratchet::{Differences, compare};
use xputrace_house::sources::Sources;
use xputrace_house::{House, measure};

/// A circle of files `m0` to the given number, of which each uses the next.
fn circle(files: usize) -> String {
    let modules = (0..files).map(|it| format!("mod m{it};")).collect::<String>();
    let file = |it: usize| format!("//- a/src/m{it}.rs\npub fn f{it}() {{ crate::m{0}::f{0}() }}\n", (it + 1) % files);
    format!("//- a/src/lib.rs\n{modules}\n{}", (0..files).map(file).collect::<String>())
}

/// A function of that many lines.
fn function(lines: usize) -> String {
    format!("//- a/src/lib.rs\nfn long() {{\n{}}}\n", "f();\n".repeat(lines - 2))
}

/// As many types of a name, in a file that names a vendor's thing.
fn types(count: usize) -> String {
    let modules = (0..count).map(|it| format!("mod m{it} {{ struct Same; }}\n")).collect::<String>();
    format!("//- a/src/lib.rs\n{modules}fn cuda() {{}}\n")
}

/// A crate with nothing to say about, of one line.
const SMALL: &str = "//- a/src/lib.rs\nfn f() {}\n";

fn house(text: &str) -> House {
    measure(&Sources::from_text(text)).unwrap()
}

fn limits(text: &str) -> Limits {
    Limits::of(&house(text), &Limits::default())
}

/// Compares a tree with the limits that another one had.
fn compared(before: &str, now: &str) -> Differences {
    compare(&house(now), &limits(before))
}

#[test]
fn what_is_as_it_was_passes() {
    for text in [circle(6), function(100), types(5)] {
        assert_eq!(compared(&text, &text), Differences::default());
    }
}

#[test]
fn a_circle_may_not_grow() {
    let it = compared(&circle(5), &circle(6));
    assert_eq!(
        it.worse,
        ["a circle of 5 files has got 1 more, of 6 now; cut at one of these:\n    \
          a/src/m4.rs -> a/src/m5.rs: f5\n    a/src/m5.rs -> a/src/m0.rs: f0"]
    );
    assert_eq!(it.better, [""; 0]);
    let it = compared(&circle(4), &circle(5));
    assert!(it.worse[0].starts_with("a new circle of 5 files; cut it at one of these:\n    a/src/m0.rs -> "), "{it}");
}

#[test]
fn a_circle_that_shrank_is_to_be_blessed() {
    let it = compared(&circle(6), &circle(5));
    assert_eq!(it.better, ["the circle of 6 files with a/src/m0.rs has 5 files now; out of it: a/src/m5.rs"]);
    assert_eq!(it.worse, [""; 0]);
    let it = compared(&circle(5), &circle(4));
    assert!(
        it.better[0].starts_with("the circle of 5 files with a/src/m0.rs is none any more; out of it: a/src/m0.rs, "),
        "{it}"
    );
    assert!(it.to_string().contains("bless it: BLESS=1 cargo test -p xputrace-house"));
}

#[test]
fn functions_may_not_grow() {
    assert_eq!(compared(SMALL, &function(80)), Differences::default());
    let it = compared(SMALL, &function(81));
    assert_eq!(it.worse, ["a/src/lib.rs:1: `long` has 81 lines, of at most 80; split it"]);
    let it = compared(&function(90), &function(91));
    assert_eq!(it.worse, ["a/src/lib.rs:1: `long` has 91 lines, of at most 90; split it"]);
    let it = compared(&function(90), &function(89));
    assert_eq!(it.better, ["a/src/lib.rs: `long` has 89 lines, no longer 90"]);
    let it = compared(&function(90), &function(80));
    assert_eq!(it.better, ["a/src/lib.rs: `long` is no long function any more"]);
}

#[test]
fn names_and_vendor_files_may_not_grow() {
    let it = compared(SMALL, &types(4));
    assert_eq!(
        it.worse,
        [
            "`Same`: 4 types, of at most 3; find another name for one of \
             a/src/lib.rs:1, a/src/lib.rs:2, a/src/lib.rs:3, a/src/lib.rs:4",
            "a/src/lib.rs:5: names `cuda`; keep them in the vendor's folders"
        ]
    );
    assert_eq!(compared(&types(5), &types(4)).better, ["`Same` is the name of 4 types, no longer of 5"]);
    let it = compared(&types(5), SMALL);
    assert_eq!(
        it.better,
        ["`Same` is the name of few types, no longer of 5", "a/src/lib.rs: names nothing of a vendor's"]
    );
}

#[test]
fn of_lines_only_too_many_count() {
    let lines = |count: usize| format!("//- a/src/lib.rs\n{}", "const A: u8 = 1;\n".repeat(count));
    assert_eq!(
        limits(&lines(12_001)).lines.into_iter().collect::<Vec<_>>(),
        [("a".into(), 12_200), ("all".into(), 13_000)]
    );
    assert_eq!(compared(&lines(12_001), &lines(12_200)), Differences::default());
    assert_eq!(compared(&lines(12_001), &lines(100)), Differences::default());
    assert_eq!(
        compared(&lines(11_900), &lines(12_001)).worse,
        [
            "a: 12001 net lines, of at most 12000; make it smaller, or move a part out",
            "all: 12001 net lines, of at most 12000; make it smaller, or move a part out"
        ]
    );
}

#[test]
fn the_file_is_read_as_written_and_keeps_reasons() {
    let text = [circle(5), function(100).replace("a/", "b/"), types(4).replace("a/", "c/")].concat();
    let house = house(&text);
    let mut limits = Limits::of(&house, &Limits::default());
    assert_eq!(Limits::parse(&limits.to_string()).unwrap(), limits);
    *limits.vendor_files.get_mut("c/src/lib.rs").unwrap() = "the call's name".into();
    assert!(limits.to_string().ends_with("\nc/src/lib.rs | the call's name\n"));
    let again = Limits::of(&house, &Limits::parse(&limits.to_string()).unwrap());
    assert_eq!(again, limits);
    let error = format!("{:#}", Limits::parse("[names]\nmany Same\n").unwrap_err());
    assert!(error.starts_with("limits.txt:2: \"many Same\": "), "{error}");
}
