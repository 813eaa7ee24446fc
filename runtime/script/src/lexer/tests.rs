//! Tests of the rewriting: pairs of texts, and properties of every text.

use super::{Dialect, Tokenized};
use proptest::prelude::*;
use xputrace_model::diagnostic::FileId;

fn compiled(text: &str) -> String {
    Tokenized::of(text).rewrite(Dialect::Compiled).text
}

fn interpreted(text: &str) -> String {
    Tokenized::of(text).rewrite(Dialect::Interpreted).text
}

#[test]
fn maps_become_variables() {
    assert_eq!(compiled("@x[k.name].sum(1)"), "_x[k.name].sum(1)");
    assert_eq!(compiled("@x[a, b] += 1"), "_x[[a, b]] += 1");
    assert_eq!(compiled("@ = 1; @[2] = 3"), "__map = 1; __map[2] = 3");
    assert_eq!(compiled("@x[f(a, b)]"), "_x[f(a, b)]");
    assert_eq!(compiled("@x[1, @y[2, 3]]"), "_x[[1, _y[[2, 3]]]]");
    assert_eq!(compiled("`${@x[1, 2]}` \"@x\" '@' // @x"), "`${_x[[1, 2]]}` \"@x\" '@' // @x");
}

#[test]
fn values_are_read_where_they_are_meant() {
    for (text, expected) in [
        ("@x + 1", "_x.value + 1"),
        ("@x[1, @y[2]] + 1", "_x[[1, _y[2].value]].value + 1"),
        ("@x[1] = @y", "_x[1].value = _y.value"),
        ("@x[1] += 2", "_x[1].added = 2"),
        ("@x -= 2", "_x.subtracted = 2"),
        ("@x[1].hist(@y)", "_x[1].hist(_y.value)"),
        ("print(@x)", "print(_x)"),
        ("print(@x, @y[1])", "print(_x, _y[1])"),
        ("print(@x + 1)", "print(_x.value + 1)"),
        ("if (@x) { }", "if (_x.value) { }"),
        ("print((@x))", "print((_x.value))"),
        ("k in @x", "k in _x"),
        ("for r in @x { }", "for r in _x { }"),
        ("f([@x])", "f([_x.value])"),
        ("`${@x} ${@x[1]} ${@x + 1}`", "`${_x} ${_x[1]} ${_x.value + 1}`"),
        ("return @x;", "return _x.value;"),
        ("|e| @r[e.tid] = e.arg0", "|e| _r[e.tid].value = e.arg0"),
    ] {
        assert_eq!(interpreted(text), expected, "{text}");
    }
}

#[test]
fn fields_stand_alone_where_no_event_is_named() {
    for (text, expected) in [
        (
            "uprobe(\"a:b\", || @[comm, pid].count())",
            "uprobe(\"a:b\", |__event| __map[[__event.comm, __event.pid]].count())",
        ),
        ("kernel(interpret(|| print(`${name}`)))", "kernel(interpret(|__event| print(`${__event.name}`)))"),
        (
            "tracepoint(\"a:b\", || if new > args.old { f(e.x) })",
            "tracepoint(\"a:b\", |__event| if __event[\"new\"] > __event.args.old { f(e.x) })",
        ),
        ("uprobe(\"a:b\", || f(#{pid: pid}).comm)", "uprobe(\"a:b\", |__event| f(#{pid: __event.pid}).comm)"),
        ("let pid = 1; uprobe(\"a:b\", || @[pid].count())", "let pid = 1; uprobe(\"a:b\", || __map[pid].count())"),
        (
            "uprobe(\"a:b\", || { let comm = 1; @ = comm + arg0 })",
            "uprobe(\"a:b\", |__event| { let comm = 1; __map = comm + __event.arg0 })",
        ),
        ("interval(1.s, || print(time)); let f = || pid;", "interval(1.s, || print(time)); let f = || pid;"),
        ("x = a || pid; kernel(|k| a || pid)", "x = a || pid; kernel(|k| a || pid)"),
    ] {
        assert_eq!(compiled(text), expected, "{text}");
    }
}

#[test]
fn guarded_actions_have_a_value_for_rhai() {
    for (text, expected) in [
        ("a && @x.count();", "a && { _x.count(); true };"),
        ("a || b && @x[1, f(2)].sum(@y);", "a || b && { _x[[1, f(2)]].sum(_y.value); true };"),
        ("a && print(`${b}`)", "a && { print(`${b}`); true }"),
        ("let f = || @m.take(); g(1, || @m.take())", "let f = || _m.take(); g(1, || _m.take())"),
        ("a[0] || @m.take()", "a[0] || { _m.take(); true }"),
        ("a && probe.enable()", "a && { probe.enable(); true }"),
        ("a && @x.len() > 1", "a && _x.len() > 1"),
        ("a && @x[1].count > 1 || b.contains(1)", "a && _x[1].count > 1 || b.contains(1)"),
    ] {
        assert_eq!(interpreted(text), expected, "{text}");
        assert!(!compiled(text).contains("true"), "{text}");
    }
}

#[test]
fn reserved_words_are_fields() {
    assert_eq!(compiled("e.sync == k.launch.new"), "e[\"sync\"] == k.launch[\"new\"]");
    assert_eq!(compiled("e?.default"), "e?[\"default\"]");
    assert_eq!(compiled("m.call(1); t.in"), "m.call(1); t[\"in\"]");
    assert_eq!(compiled("f(#{return: 1, in: 2})"), "f(#{\"return\": 1, \"in\": 2})");
}

#[test]
fn backticks_know_line_breaks() {
    assert_eq!(compiled(r"`a\n${k}\t\\n`"), "`a\n${k}\t\\n`");
    assert_eq!(compiled(r"`\na` + `\q`"), "`\n\na` + `\\q`");
    assert_eq!(compiled(r#""a\n""#), r#""a\n""#);
}

#[test]
fn fractions_of_units_are_integers() {
    assert_eq!(compiled("1.5.ms + 100.ms + 2.25"), "1500000.ns + 100.ms + 2.25");
    assert_eq!(compiled("99.hz + 2.minutes"), "10101010.ns + 120000000000.ns");
}

#[test]
fn imports_are_taken_out_and_lines_stay() {
    let text = "import \"a\"\n as b;\nx";
    assert_eq!(compiled(text).lines().count(), text.lines().count());
    assert!(!compiled(text).contains("import"));
}

/// Checks that every position maps to a place in the text.
fn positions_stay_inside(text: &str, dialect: Dialect) {
    let lexed = Tokenized::of(text).rewrite(dialect);
    let (mut line, mut column) = (1u16, 0u16);
    for c in lexed.text.chars() {
        if c == '\n' {
            (line, column) = (line + 1, 0);
            continue;
        }
        column += 1;
        let offset = lexed.positions.offset(rhai::Position::new(line, column));
        assert!(offset <= text.len(), "{offset} in {text:?}");
    }
}

#[test]
fn columns_count_characters() {
    let text = "let s = \"größe\"; @x[1, 2] = ü";
    let lexed = Tokenized::of(text).rewrite(Dialect::Compiled);
    let column = lexed.text.chars().position(|c| c == 'x').map_or(0, |it| it + 1) as u16;
    let offset = lexed.positions.offset(rhai::Position::new(1, column - 1));
    assert_eq!(&text[offset..offset + 2], "@x");
    let last = lexed.text.chars().count() as u16;
    assert_eq!(&text[lexed.positions.offset(rhai::Position::new(1, last))..], "ü");
}

/// Fragments of scripts, well-formed and broken.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        proptest::sample::select(vec![
            "@",
            "@x",
            "@x[",
            "@yy[1, 2]",
            "]",
            "[",
            "(",
            ")",
            "{",
            "}",
            "${",
            "`",
            "\"",
            "'",
            "#\"",
            "\"#",
            "#{",
            "//",
            "/*",
            "*/",
            "\n",
            " ",
            ".",
            ",",
            ";",
            "|e|",
            "|_|",
            "+=",
            "-=",
            "=",
            "?",
            "?.",
            "++",
            "in",
            "import \"a\" as b",
            ".sync",
            ".new",
            "1.5.ms",
            "99.hz",
            "1.",
            "0x",
            "1e",
            "é",
            "漢",
            "𝕏",
            "\\",
            "_x",
            "if",
            "print",
            "r.e",
            "\r\n",
        ])
        .prop_map(str::to_owned),
        "[ -~]{0,6}",
        ".{0,4}",
    ]
}

/// What may precede a script.
fn first_line() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["", "", "\u{feff}", "#!/usr/bin/env xputrace\n", "\u{feff}#! é\n"])
}

proptest! {
    #[test]
    fn any_text_is_accepted(first in first_line(), pieces in proptest::collection::vec(piece(), 0..40)) {
        let text = format!("{first}{}", pieces.concat());
        Tokenized::of(&text).check(FileId(0));
        for dialect in [Dialect::Compiled, Dialect::Interpreted] {
            let lexed = Tokenized::of(&text).rewrite(dialect);
            prop_assert!(lexed.text.matches('\n').count() >= text.matches('\n').count());
            positions_stay_inside(&text, dialect);
        }
    }

    /// Checks that a word that no rule touches keeps its place, whatever surrounds it.
    #[test]
    fn words_keep_their_place(first in first_line(), pieces in proptest::collection::vec(
        proptest::sample::select(vec!["@x", "@yy[1, 2]", "@z[@x, `é${@x}`]", "e.sync", "1.5.ms", "\"é@x\"", "`a\\nb\\t${@x}\\n`", "`\\n`", "漢 ", "\n", "@q += 1;"]), 0..20)
    ) {
        let text = format!("{first}{} WORD", pieces.join(" "));
        for dialect in [Dialect::Compiled, Dialect::Interpreted] {
            let lexed = Tokenized::of(&text).rewrite(dialect);
            let at = lexed.text.find("WORD").expect("copied");
            let line = lexed.text[..at].matches('\n').count() + 1;
            let start = lexed.text[..at].rfind('\n').map_or(0, |it| it + 1);
            let column = lexed.text[start..at].chars().count() + 1;
            let offset = lexed.positions.offset(rhai::Position::new(line as u16, column as u16));
            prop_assert_eq!(&text[offset..], "WORD");
        }
    }
}
