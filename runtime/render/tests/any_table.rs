//! Any map renders without a panic and within the width, and its JSON parses.

mod common;

use common::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use unicode_width::UnicodeWidthStr;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, SourceFile, Sources};
use xputrace_model::output::{Output, View};
use xputrace_model::schema::Unit;
use xputrace_model::table::{Cell, Key, Scalar, TableKind, Value};
use xputrace_render::{Context, diagnostics, flamegraph, folded, json, text};

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![Just(Unit::None), Just(Unit::Nanos), Just(Unit::Bytes)]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Missing),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<String>().prop_map(|it| string(&it)),
        (0u32..6).prop_map(stack),
    ]
}

fn kind() -> impl Strategy<Value = TableKind> {
    prop_oneof![
        Just(TableKind::Plain(Scalar::Int)),
        Just(TableKind::Count),
        Just(TableKind::Max),
        Just(TableKind::Quantiles),
        any::<u32>().prop_map(|bits| TableKind::Hist { bits }),
        any::<(i64, i64, i64)>().prop_map(|(min, max, step)| TableKind::Lhist { min, max, step }),
    ]
}

fn cell() -> impl Strategy<Value = Cell> {
    let n = any::<i64>;
    prop_oneof![
        value().prop_map(Cell::Plain),
        n().prop_map(Cell::Number),
        (n(), n()).prop_map(|(count, total)| Cell::Avg { count, total: (total / 2).into() }),
        (0..i64::MAX, n(), n(), n()).prop_map(|(count, total, min, max)| Cell::Stats {
            count,
            total: total.into(),
            min,
            max
        }),
        proptest::collection::btree_map(-2i64..2100, 0u64..1 << 40, 0..6).prop_map(Cell::Buckets),
        proptest::collection::btree_map(any::<i64>(), 0u64..1 << 40, 0..3).prop_map(Cell::Buckets),
    ]
}

fn rows() -> impl Strategy<Value = Vec<(Key, Cell)>> {
    proptest::collection::vec((proptest::collection::vec(value(), 0..4), cell()), 0..5)
}

proptest! {
    #[test]
    fn any_table_renders(rows in rows(), kind in kind(), unit in unit(), width in prop_oneof![8 => 1usize..140, 1 => Just(xputrace_render::UNLIMITED)], top in proptest::option::of(0usize..4), keys in 0usize..4, name in "@[a-z]{0,30}") {
        let table = table(&name, &vec![Scalar::Stack; keys], kind, unit, rows);
        let (mut names, sources) = (Names, Sources::default());
        let mut context = Context { names: &mut names, sources: &sources, tables: &[], width };
        let output = Output::Table(View { table: table.clone(), top });
        let mut out = Vec::new();
        text(&mut out, &output, &mut context).unwrap();
        for line in String::from_utf8(out).unwrap().lines() {
            prop_assert!(line.width() <= width, "{} columns of {width}: {line}", line.width());
        }
        let mut out = Vec::new();
        json(&mut out, &output, &mut context).unwrap();
        prop_assert_eq!(out.iter().filter(|it| **it == b'\n').count(), 1);
        let parsed: serde_json::Value = serde_json::from_slice(&out).unwrap();
        prop_assert!(parsed["data"][&name].is_object() || keys == 0);
        if let Ok(lines) = folded(&table, &mut Names) {
            prop_assert!(lines.lines().all(|it| it.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok())));
            let sum: u128 = lines.lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<u128>().unwrap()).sum();
            prop_assert_eq!(flamegraph(&lines, &name, unit).is_ok(), sum > 0 && sum <= i64::MAX as u128);
        }
    }

    #[test]
    fn histograms_count_everything(counts in proptest::collection::btree_map(-1i64..64, 1u64..1000, 1..9)) {
        let total: u64 = counts.values().sum();
        let kind = TableKind::Hist { bits: 0 };
        let table = table("@h", &[], kind, Unit::None, vec![(vec![], Cell::Buckets(counts.clone()))]);
        let (mut names, sources) = (Names, Sources::default());
        let mut context = Context { names: &mut names, sources: &sources, tables: &[], width: 80 };
        let mut out = Vec::new();
        json(&mut out, &view(table), &mut context).unwrap();
        let parsed: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let buckets = parsed["data"]["@h"].as_array().unwrap();
        prop_assert_eq!(buckets.iter().map(|it| it["count"].as_u64().unwrap()).sum::<u64>(), total);
        let closed: BTreeMap<_, _> = buckets.iter().filter_map(|it| Some((it["min"].as_i64()?, it["max"].as_i64()?))).collect();
        prop_assert!(closed.iter().zip(closed.iter().skip(1)).all(|((_, max), (min, _))| max + 1 == *min));
    }

    #[test]
    fn any_diagnostic_renders(source in any::<String>(), start in 0usize..200, length in 0usize..200, message in any::<String>(), other in 0usize..200) {
        let sources = Sources { files: vec![SourceFile { name: "x".into(), text: source }] };
        let label = |span| Label { file: FileId(0), span, note: Some(message.clone()) };
        let all = [Diagnostic::error("code", message.clone(), label(start..start + length)).also(label(other..other + 1), "n").help(message.clone())];
        prop_assert!(diagnostics(&all, &sources, false).contains("code"));
    }
}
