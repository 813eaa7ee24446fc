//! Symbols and their names (`names.txt`; `BLESS=1` accepts changes), and damaged symbols.

use itanium_names::CppSymbol;
use proptest::prelude::*;
use std::path::Path;

const TABLE: &str = include_str!("names.txt");

/// A line of the table: symbol, name, name without template arguments, name with parameters.
fn line(symbol: &str) -> String {
    let parsed = CppSymbol::parse(symbol);
    let names = parsed.as_ref().and_then(CppSymbol::names);
    let (name, short) = names.map_or(("-".into(), "-".into()), |it| (it.name, it.short_name));
    let parameters = parsed.and_then(|it| it.with_parameters()).unwrap_or("-".into());
    format!("{symbol}\t{name}\t{short}\t{parameters}\n")
}

fn symbols() -> impl Iterator<Item = &'static str> {
    TABLE.lines().filter(|it| it.starts_with('_')).map(|it| it.split('\t').next().unwrap_or(it))
}

#[test]
fn names_of_symbols() {
    let text = |it: &str| match it.split('\t').next() {
        Some(symbol) if symbol.starts_with('_') => line(symbol),
        _ => format!("{it}\n"),
    };
    let actual: String = TABLE.lines().map(text).collect();
    xputrace_golden::assert(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/names.txt"), &actual);
}

#[test]
fn names_have_no_parts_missing() {
    for symbol in symbols() {
        let Some(names) = CppSymbol::parse(symbol).and_then(|it| it.names()) else { continue };
        assert!(!names.name.is_empty() && names.short_name.len() <= names.name.len(), "{symbol}");
    }
}

proptest! {
    #[test]
    fn any_text_is_accepted(text in any::<String>()) {
        line(&text);
        line(&format!("_Z{text}"));
    }

    #[test]
    fn any_mangled_text_is_accepted(text in "_Z[A-Za-z0-9_.]{0,120}") {
        line(&text);
    }

    #[test]
    fn any_parts_are_accepted(
        parts in proptest::collection::vec(
            prop::sample::select(vec![
                "N", "E", "I", "J", "X", "L", "1A", "3foo", "S_", "S0_", "St", "Sa", "T_", "T0_", "Dp", "DT", "cv", "sr", "cl", "pl",
                "fp_", "F", "P", "R", "K", "A3_", "M", "i", "v", "Z", "Ul", "E_", "C1", "D1", "B1x", "U1x", "sZ", "il", "tl", "Li1E",
                "_Z", "Q", "Ty", "Tn", "dt", "on", "nw_", "fl", "Ut_", "W1m", "Do", "Dv4_", "_", "0", "gs", "so", "\u{e9}",
            ]),
            0..60,
        )
    ) {
        line(&format!("_Z{}", parts.concat()));
    }

    #[test]
    fn damaged_symbols_are_accepted(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        length in 0usize..6,
        with in "[A-Z0-9_a-z\u{e9}]{0,3}",
    ) {
        let all: Vec<&str> = symbols().collect();
        let mut symbol = which.get(&all).to_string();
        let at = at.index(symbol.len());
        symbol.replace_range(at..(at + length).min(symbol.len()), &with);
        line(&symbol);
    }

    #[test]
    fn joined_symbols_are_accepted(
        first in any::<prop::sample::Index>(),
        second in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
    ) {
        let all: Vec<&str> = symbols().collect();
        let (first, second) = (first.get(&all), second.get(&all));
        line(&format!("{}{}", &first[..at.index(first.len())], &second[from.index(second.len())..]));
    }
}
