//! Maps and records of compiled objects, by the types of their C.
//!
//! ```text
//! calls[7]: 3
//! places: {block: 2, thread: [0, 1, 0], is_first: true, what: "work"}
//! ```

use crate::cells::{printable, shown_text};
use serde_json::{Map, Value as Json, json};
use xputrace_model::object::{Datum, Dump};

/// Returns a map as lines: one for each element, and an empty one after several.
pub(crate) fn lines(it: &Dump) -> Vec<String> {
    let line = |(key, value): &(Datum, Datum)| format!("{}[{}]: {}", it.map, key_of(key, ", ", printable), text(value));
    let mut lines: Vec<String> = it.rows.iter().map(line).collect();
    match lines.len() {
        0 => lines.push(format!("{}: empty", it.map)),
        1 => {}
        _ => lines.push(String::new()),
    }
    lines
}

/// Formats a key for JSON: its parts, with commas between them.
pub(crate) fn json_key(it: &Datum) -> String {
    key_of(it, ",", shown_text)
}

/// Formats a key: its parts, with `between` between them; `shown` formats texts.
fn key_of(it: &Datum, between: &str, shown: fn(&str) -> String) -> String {
    match it {
        Datum::Struct(members) => joined(members.iter().map(|it| key_of(&it.1, between, shown)), between),
        Datum::Array(all) => joined(all.iter().map(|it| key_of(it, between, shown)), between),
        Datum::Text(it) => shown(it),
        other => text(other),
    }
}

/// Formats a value on one line.
pub(crate) fn text(it: &Datum) -> String {
    match it {
        Datum::Int(it) => it.to_string(),
        Datum::Bool(it) => it.to_string(),
        Datum::Float(it) => it.clone(),
        Datum::Text(it) => format!("\"{}\"", printable(it)),
        Datum::Bytes(it) => hex(it),
        Datum::Array(all) => format!("[{}]", joined(all.iter().map(text), ", ")),
        Datum::Struct(members) => {
            let member = |(name, value): &(String, Datum)| format!("{}: {}", shown_text(name), text(value));
            format!("{{{}}}", joined(members.iter().map(member), ", "))
        }
    }
}

/// Converts a value. A number beyond 64 bits is a string of its digits, and bytes are one of their hexadecimal digits.
pub(crate) fn json(it: &Datum) -> Json {
    match it {
        Datum::Int(it) => match (i64::try_from(*it), u64::try_from(*it)) {
            (Ok(it), _) => json!(it),
            (_, Ok(it)) => json!(it),
            _ => json!(it.to_string()),
        },
        Datum::Bool(it) => json!(it),
        // NaN and infinities are strings: JSON has no such numbers.
        Datum::Float(it) => it.parse().ok().filter(|it: &f64| it.is_finite()).map_or_else(|| json!(it), |it| json!(it)),
        Datum::Text(it) => json!(shown_text(it)),
        Datum::Bytes(it) => json!(hex(it)),
        Datum::Array(all) => all.iter().map(json).collect(),
        Datum::Struct(members) => {
            Json::Object(members.iter().map(|(name, it)| (name.clone(), json(it))).collect::<Map<_, _>>())
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

fn joined(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value() -> Datum {
        let member = |name: &str, it| (name.to_owned(), it);
        Datum::Struct(vec![
            member("n", Datum::Int(-2)),
            member("big", Datum::Int(u64::MAX.into())),
            member("on", Datum::Bool(true)),
            member("name", Datum::Text("a\nb".into())),
            member("two", Datum::Array(vec![Datum::Int(1), Datum::Bytes(vec![0xab, 0x01])])),
        ])
    }

    #[test]
    fn a_value_is_one_line_of_text() {
        assert_eq!(text(&value()), r#"{n: -2, big: 18446744073709551615, on: true, name: "a\nb", two: [1, ab01]}"#);
        let coloured = Datum::Text("\x1b[1m\tx".into());
        assert_eq!(text(&coloured), r#""\x1b[1m\tx""#);
        let dump = Dump { map: "m".into(), rows: vec![(coloured, value())] };
        assert!(lines(&dump)[0].starts_with(r"m[\x1b[1m\tx]: {"), "{:?}", lines(&dump));
    }

    #[test]
    fn json_has_the_members() {
        assert_eq!(json_key(&value()), "-2,18446744073709551615,true,a\nb,1,ab01");
        let expected = json!({ "n": -2, "big": u64::MAX, "on": true, "name": "a\nb", "two": [1, "ab01"] });
        assert_eq!(json(&value()), expected);
        assert_eq!(json(&Datum::Int(i128::MAX)), json!(i128::MAX.to_string()));
    }

    #[test]
    fn maps_are_one_line_an_element() {
        let row = |n: i128| (Datum::Array(vec![Datum::Int(n), Datum::Int(0)]), Datum::Int(n * 2));
        let dump = |rows| Dump { map: "m".into(), rows };
        assert_eq!(lines(&dump(vec![])), ["m: empty"]);
        assert_eq!(lines(&dump(vec![row(1)])), ["m[1, 0]: 2"]);
        assert_eq!(lines(&dump(vec![row(1), row(2)])), ["m[1, 0]: 2", "m[2, 0]: 4", ""]);
    }
}
