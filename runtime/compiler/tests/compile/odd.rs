//! Texts that are not scripts: the front end and the compiler answer anything, with places inside
//! the text.

use crate::support::compiled;
use proptest::prelude::*;
use xputrace_model::diagnostic::Severity;

fn piece() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "uprobe(\"libc:malloc\", |e| {",
        "kernel(|k| {",
        "tracepoint(\"sys*:*_close\", |e|",
        "interval(1.s, || {",
        "profile(-1.hz, |e| {",
        "});",
        ")",
        "}",
        "@n.count();",
        "@m[1, e.comm] = 3;",
        "@m[k.name] += 1;",
        "@@",
        "@",
        "print(`a ${e.pid} b`);",
        "`${",
        "if e.comm.contains(\"x\") {",
        "if k.name.ends_with(\"x\") {",
        "for i in 0..3 {",
        "switch e.arg0 { 1 => 2, _ => 3 }",
        "let x = 1;",
        "x += 1;",
        "x.ms",
        "fn f(a) { return a; }",
        "f(1);",
        "f.call(1);",
        "|x| x",
        "exit(300);",
        "arg(\"ms\", 100.ms);",
        "map(#{name: \"n\"});",
        "99999999999999999999",
        "\r\n",
        "\u{feff}",
        "\0",
        "“",
        "日本",
        "// @x\n",
        "/* ",
        "\"",
        "'",
        ";",
        "|",
        "()",
        "-",
        "!",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_text_is_answered(pieces in proptest::collection::vec(piece(), 0..14)) {
        let text = pieces.join(" ");
        let (plan, diagnostics) = compiled(&text);
        for it in &diagnostics {
            prop_assert!(text.get(it.primary.span.clone()).is_some(), "{it:?}\n{text}");
        }
        let wrong = diagnostics.iter().any(|it| it.severity == Severity::Error);
        prop_assert!(wrong || plan.probes.iter().all(|it| it.program.is_some() || it.closure.is_some()), "{text}");
    }
}
