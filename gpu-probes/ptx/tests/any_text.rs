//! Whatever the text: an answer, and no panic.

mod common;

use common::fixtures;
use proptest::prelude::*;
use std::sync::LazyLock;
use xputrace_ptx::{Module, parse_statements};

static FIXTURES: LazyLock<Vec<String>> = LazyLock::new(|| fixtures().into_iter().map(|(_, text)| text).collect());

/// A change to a text: at some place, some bytes go and others come.
#[derive(Clone, Debug)]
struct Change {
    at: prop::sample::Index,
    removed: usize,
    added: String,
}

fn change() -> impl Strategy<Value = Change> {
    let added = prop_oneof![
        "[ -~\\n\\t]{0,6}",
        prop::sample::select(vec!["{", "}", "(", ")", "[", "]", ";", ",", "::", "\"", "/*", "//", "@", ".loc 1", "é"])
            .prop_map(str::to_owned),
    ];
    (any::<prop::sample::Index>(), 0..40usize, added).prop_map(|(at, removed, added)| Change { at, removed, added })
}

fn changed(text: &str, changes: &[Change]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for change in changes {
        let at = change.at.index(bytes.len() + 1);
        let end = (at + change.removed).min(bytes.len());
        bytes.splice(at..end, change.added.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is parsed is printed so that it is parsed the same; and everything can be done with it.
fn check(text: &str) {
    let Ok(module) = Module::parse(text) else { return };
    let printed = module.to_string();
    assert_eq!(Module::parse(&printed).as_ref(), Ok(&module), "{printed}");
    let names: Vec<String> = module.functions().map(|function| function.name.clone()).collect();
    for name in &names {
        module.faithful(name);
        let mut copy = module.clone();
        if copy.only(&[name]).is_ok() {
            let _ = copy.redirect(&mut |_| true);
            let _ = copy.weave(&[name], &mut |_| Some("ret;".to_owned()));
            let _ = copy.rename(name, "another");
            let printed = copy.to_string();
            assert_eq!(Module::parse(&printed).as_ref(), Ok(&copy), "{printed}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_fixtures(which in any::<prop::sample::Index>(), changes in prop::collection::vec(change(), 1..4)) {
        check(&changed(which.get::<String>(&FIXTURES), &changes));
    }

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_statements(text in "[a-c%@!{}\\[\\]():;,.|+*/0-9 -]{0,60}") {
        check(&format!(".version 9.0 .target sm_90 .address_size 64 .entry k() {{ {text} }}"));
        let _ = parse_statements(&text);
    }
}

#[test]
fn nothing_is_nested_without_a_bound() {
    const DEPTH: usize = 1_000_000;
    for (open, close) in [("{", "}"), ("mov.b32 {", "};"), ("ld.b32 r, [", "];"), ("mov.b32 r, (", ");")] {
        let text = format!(".entry k() {{ {} {} }}", open.repeat(DEPTH), close.repeat(DEPTH));
        assert!(Module::parse(&text).is_err(), "{open}");
    }
    let deep = format!("mov.b32 r, {}1{};", "(".repeat(DEPTH), ")".repeat(DEPTH));
    check(&format!(".entry k() {{ {deep} }}"));
}

#[test]
fn errors_say_where() {
    for (text, expected) in [
        ("", None),
        ("version", Some("PTX, line 1, column 1: expected a directive, found `version`")),
        (".version 9.0\n.entry k(", Some("PTX, line 2, column 10: expected a parameter, found the end of the text")),
        (".entry k() {\n\tmov.b32 r, ;\n}", Some("PTX, line 2, column 13: expected an operand, found `;`")),
        (".entry k() {\n  ret\n}", Some("PTX, line 3, column 1: expected an operand, found `}`")),
        (".global .b32 x = \"a", Some("PTX, line 1, column 18: a string without an end")),
        (".section .debug_x {", Some("PTX, line 1, column 19: a section without an end")),
        (".entry k() { .loc 1 2 }", Some("PTX, line 1, column 23: expected the number of a column, found `}`")),
        ("/* a", Some("PTX, line 1, column 1: a comment without an end")),
        (".target é", Some("PTX, line 1, column 9: a character that PTX doesn't have")),
    ] {
        assert_eq!(Module::parse(text).err().map(|error| error.to_string()).as_deref(), expected, "{text}");
    }
}
