//! Whatever the text is, the translator answers, and its answers hold.

use proptest::prelude::*;
use std::path::Path;
use xputrace_bpftrace::{is_program, translate};

/// Words that mean something to the parser, to be put anywhere.
const WORDS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "/",
    "*",
    "/*",
    "*/",
    "//",
    "\"",
    "\\",
    "$",
    "$1",
    "$#",
    "@",
    "@m[",
    ",",
    ";",
    ":",
    "..",
    "?",
    "->",
    ".",
    "=",
    "++",
    "#define A(",
    "#if 0\n",
    "#else\n",
    "#endif\n",
    "(struct a *)",
    "0x",
    "1e99",
    "if",
    "else",
    "for",
    "while",
    "unroll",
    "let",
    "macro f($a) {",
    "config = {",
    "enum {",
    "BEGIN",
    "uprobe:",
    "%",
    "${",
    "`",
    "ü",
    "\0",
];

fn corpus() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/compile/bpftrace");
    let files = std::fs::read_dir(folder).expect("the folder is part of the repository");
    let paths = files.map(|it| it.expect("readable").path()).filter(|it| it.extension().is_some_and(|it| it == "bt"));
    let mut texts: Vec<String> = paths.map(|it| std::fs::read_to_string(it).expect("readable")).collect();
    texts.sort();
    assert!(texts.len() >= 5);
    texts
}

/// Translates a text, and checks what must hold of every answer.
fn answer(text: &str) {
    match translate(text) {
        Ok(it) => {
            let missing = it.text.matches("// not translated: ").count();
            assert!(missing <= it.untranslated.len() || text.contains("not translated"), "{text}\n{}", it.text);
            assert!(!is_program(&it.text) || text.contains("//"), "{}", it.text);
            assert_eq!(translate(text).as_ref(), Ok(&it));
        }
        Err(it) => {
            assert!(it.offset <= text.len() && it.line > 0 && it.column > 0, "{it}");
            assert!(!is_program(text));
        }
    }
}

#[test]
fn beginnings_of_programs_are_answered() {
    for text in corpus() {
        for (end, _) in text.char_indices() {
            answer(&text[..end]);
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["(", "-", "!", "{", "[", "if (1) {", "(int8)", "1 + (", "@a[", "1 ? ", "a.b["] {
        let text = format!("BEGIN {{ {} }}", open.repeat(100_000));
        assert!(translate(&text).is_err(), "{open}");
    }
    let chain = format!("BEGIN {{ $x = 1{}; }}", " + 1".repeat(20_000));
    let _ = translate(&chain);
    for (open, close) in
        [("(", " ?: 2)"), ("has_key(@m, ", ")"), ("@m[", "] ?: 3"), ("str(", ")"), ("strncmp(", ", \"a\", 1)")]
    {
        let text = format!("uprobe:./a:f {{ @m[1] = 2; $x = 1; @n = {}$x{}; }}", open.repeat(30), close.repeat(30));
        let _ = translate(&text);
    }
    let choices = format!("BEGIN {{ {} {{ }} }}", "if (1) { } else ".repeat(10_000));
    assert!(translate(&choices).is_err());
}

#[test]
fn macros_do_not_grow_without_bounds() {
    let mut text = String::from("macro f0($x) { $x + $x }\n");
    for level in 1..40 {
        text += &format!("macro f{level}($x) {{ f{}($x) + f{}($x) }}\n", level - 1, level - 1);
    }
    text += "macro endless($x) { endless($x) + 1 }\nBEGIN { $a = f39(1); $b = endless(2); }";
    answer(&text);
}

#[test]
fn nested_calls_of_macros_do_not_grow_without_bounds() {
    let nested = |depth: usize| format!("{}$a{}", "f(".repeat(depth), ")".repeat(depth));
    let doubling = format!("macro f($x) {{ $x + $x }}\nBEGIN {{ $a = 1; $b = {}; }}", nested(40));
    let deep = format!("macro f($x) {{ {}$x }}\nBEGIN {{ $a = 1; $b = {}; }}", "~".repeat(90), nested(90));
    let blocks = format!("{}g();{}", "if (1) { ".repeat(80), " }".repeat(80));
    let statements =
        format!("macro g() {{ @a = 1; }}\nmacro f() {{ {blocks} }}\nBEGIN {{ {} }}", blocks.replace('g', "f"));
    for text in [doubling, deep, statements] {
        answer(&text);
        let script = translate(&text).expect("it is a program");
        assert!(script.untranslated.iter().any(|it| it.because.contains("macros")), "{}", script.text);
    }
}

proptest! {
    #[test]
    fn changed_programs_are_answered(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0usize..40, prop::sample::select(WORDS)), 1..6),
    ) {
        let corpus = corpus();
        let mut text = corpus[which.index(corpus.len())].clone();
        for (place, removed, word) in changes {
            let places: Vec<usize> = text.char_indices().map(|it| it.0).collect();
            let Some(start) = places.get(place.index(places.len().max(1))).copied() else { break };
            let end = places.iter().copied().find(|it| *it >= start + removed).unwrap_or(text.len());
            text.replace_range(start..end, word);
        }
        answer(&text);
    }

    #[test]
    fn words_in_any_order_are_answered(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        answer(&words.concat());
        answer(&format!("BEGIN {{ {} }}", words.join(" ")));
    }
}
