//! Compiled and interpreted handlers give the same answers: expressions run in both engines, on the
//! same GPU kernel.

use crate::engine::{Run, kernel};
use crate::fake_host::FakeHost;
use crate::support::{compiled, staged};
use proptest::prelude::*;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_model::diagnostic::Severity;
use xputrace_model::schema::Event;
use xputrace_model::table::Value;
use xputrace_script::{EventView, Host};

const NAME: &str = "quick<int>";
const SYMBOL: &str = "_Z5quickIiEvT_";
const BLOCK: i64 = 32;
const DURATION: i64 = 1500;

/// Returns what a compiled handler stores; `None` if it ends without storing.
fn answer_compiled(script: &str) -> Option<i64> {
    let event = kernel(NAME, DURATION).symbol(SYMBOL).with(word::BLOCK, BLOCK);
    Run::new(script).feed(&[event]).one("@n").map(|it| it[0])
}

/// Returns what an interpreted handler stores; `None` if it ends without storing.
fn answer_interpreted(script: &str) -> Option<i64> {
    let mut loaded = staged(script);
    let host = Rc::new(RefCell::new(FakeHost::default()));
    loaded.interpreter.bind(host.clone());
    let mut words: GpuContext = [0; WORDS];
    (words[word::NAME], words[word::SYMBOL], words[word::JOINED]) = (7, 8, 1);
    (words[word::BLOCK], words[word::DURATION]) = (BLOCK as u64, DURATION as u64);
    let strings = |id| match id {
        7 => Some(Arc::from(NAME)),
        8 => Some(Arc::from(SYMBOL)),
        _ => None,
    };
    let view = EventView { event: Event::KERNEL, words: &words, strings: &strings, arguments: &[] };
    let closure = loaded.staged.handlers[0].interpreted.expect("it is interpreted");
    // Only a missing value and a division by zero may end it.
    if let Err(it) = loaded.interpreter.run(closure, Some(&view)) {
        assert!(["missing-value", "division-by-zero"].contains(&it.code), "{script}\n{it:?}");
    }
    match host.borrow_mut().get("@n", &[]) {
        Value::Int(n) => Some(n),
        _ => None,
    }
}

/// Returns the answers of both engines; `None` if the compiler refuses the expression.
fn answers(expression: &str) -> Option<[Option<i64>; 2]> {
    let body = format!("|k| {{ @n = {expression}; }}");
    let script = format!("kernel({body});");
    if compiled(&script).1.iter().any(|it| it.severity == Severity::Error) {
        return None;
    }
    Some([answer_compiled(&script), answer_interpreted(&format!("kernel(interpret({body}));"))])
}

#[test]
fn shifts_names_and_missing_values_have_one_rule() {
    let yes = |condition: &str| format!("if {condition} {{ 1 }} else {{ 0 }}");
    for (expression, answer) in [
        ("k.block.x << 64".to_owned(), Some(0)),
        ("1 << (k.block.x * 3)".to_owned(), Some(0)),
        ("-8 >> 64".to_owned(), Some(-1)),
        ("-k.block.x >> k.duration".to_owned(), Some(-1)),
        ("k.block.x << (-k.block.x / 16)".to_owned(), Some(8)),
        ("k.block.x >> -1".to_owned(), Some(64)),
        ("k.block.x >> (-9223372036854775807 - k.block.x / 32)".to_owned(), Some(0)),
        ("9223372036854775807 + k.block.x".to_owned(), Some(i64::MIN + 31)),
        (yes("k.name == \"quick<int>\""), Some(1)),
        (yes("k.name == \"_Z5quickIiEvT_\""), Some(1)),
        (yes("k.name != \"_Z5quickIiEvT_\""), Some(0)),
        (yes("\"_Z5quickIiEvT_\" == k.name"), Some(1)),
        (yes("k.name == \"_Z5quick\""), Some(0)),
        (yes("k.short_name == \"_Z5quickIiEvT_\""), Some(0)),
        (yes("k.graph > 0"), None),
        (yes("k.launch.tag < 3"), None),
        (yes("3 >= k.graph"), None),
        (yes("k.graph != 0"), Some(1)),
        ("k.graph + 1".to_owned(), None),
        (yes("k.graph.i64 == 0"), None),
        (yes("k.graph.i32 == 0"), None),
    ] {
        assert_eq!(answers(&expression), Some([answer; 2]), "{expression}");
    }
}

fn integer() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        4 => proptest::sample::select(vec![
            "0", "1", "2", "7", "63", "64", "65", "(-1)", "(-7)", "(-63)", "(-64)", "4294967296", "9223372036854775807",
            "(-9223372036854775807)",
        ])
        .prop_map(str::to_owned),
        3 => Just("k.block.x".to_owned()),
        2 => Just("k.duration".to_owned()),
        1 => proptest::sample::select(vec!["k.graph", "k.launch.tag"]).prop_map(str::to_owned),
    ];
    leaf.prop_recursive(3, 16, 3, |inner| {
        let two = (inner.clone(), inner.clone());
        let op = proptest::sample::select(vec!["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
        let cond = proptest::sample::select(vec!["==", "!=", "<", "<=", ">", ">="]);
        let function = proptest::sample::select(vec!["min", "max"]);
        let width = proptest::sample::select(vec!["i8", "i32", "u16", "i64"]);
        prop_oneof![
            6 => (two.clone(), op).prop_map(|((a, b), op)| format!("({a} {op} {b})")),
            2 => (two.clone(), two.clone(), cond)
                .prop_map(|((a, b), (c, d), op)| format!("(if {a} {op} {b} {{ {c} }} else {{ {d} }})")),
            1 => (two, function).prop_map(|((a, b), name)| format!("{name}({a}, {b})")),
            1 => inner.clone().prop_map(|it| format!("abs({it})")),
            1 => inner.clone().prop_map(|it| format!("(-{it})")),
            1 => (inner, width).prop_map(|(it, width)| format!("({it}).{width}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_expression_has_one_answer(expression in integer()) {
        if let Some([compiled, interpreted]) = answers(&expression) {
            prop_assert_eq!(compiled, interpreted, "{}", expression);
        }
    }
}
