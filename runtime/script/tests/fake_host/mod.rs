//! A host with maps in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use xputrace_model::output::{Output, Piece};
use xputrace_model::schema::Unit;
use xputrace_model::table::{Cell, Key, KeyPart, Scalar, Storage, Table, TableDef, TableKind, Value};
use xputrace_script::{Host, RunNumber};

#[derive(Default)]
pub(crate) struct FakeHost {
    maps: BTreeMap<String, (Kind, BTreeMap<Key, Cell>)>,
    pub(crate) printed: Vec<String>,
    pub(crate) exit: Option<i64>,
}

/// Its aggregation; `None` if it holds plain values.
type Kind = Option<TableKind>;

impl FakeHost {
    fn map(&mut self, name: &str) -> &mut (Kind, BTreeMap<Key, Cell>) {
        self.maps.entry(name.to_owned()).or_default()
    }

    fn def(name: &str, kind: TableKind, key: Option<&Key>) -> TableDef {
        let part = KeyPart { kind: Scalar::Int, optional: false, unit: Unit::None };
        TableDef {
            name: name.to_owned(),
            keys: vec![part; key.map_or(0, Vec::len)],
            kind,
            unit: Unit::None,
            capacity: 100,
            evict: false,
            storage: Storage::Interpreter,
        }
    }
}

impl Host for FakeHost {
    fn table(&mut self, name: &str) -> Option<Arc<Table>> {
        let (kind, rows) = self.maps.get(name)?;
        let kind = kind.unwrap_or(TableKind::Plain(Scalar::Int));
        let def = Arc::new(FakeHost::def(name, kind, rows.keys().next()));
        Some(Arc::new(Table { def, rows: rows.iter().map(|(k, v)| (k.clone(), v.clone())).collect() }))
    }

    fn get(&mut self, name: &str, key: &[Value]) -> Value {
        match self.map(name).1.get(key) {
            Some(Cell::Plain(value)) => value.clone(),
            _ => Value::Missing,
        }
    }

    fn contains(&mut self, name: &str, key: &[Value]) -> bool {
        self.map(name).1.contains_key(key)
    }

    fn set(&mut self, name: &str, key: &[Value], value: Value) -> Result<(), String> {
        self.map(name).1.insert(key.to_vec(), Cell::Plain(value));
        Ok(())
    }

    fn add(&mut self, name: &str, key: &[Value], delta: i64) -> Result<(), String> {
        let old = match self.get(name, key) {
            Value::Int(n) => n,
            _ => 0,
        };
        self.set(name, key, Value::Int(old.wrapping_add(delta)))
    }

    fn update(&mut self, name: &str, key: &[Value], kind: TableKind, x: i64) -> Result<(), String> {
        let cell = Cell::of(kind, x);
        let (known, rows) = self.map(name);
        *known = Some(kind);
        match rows.get_mut(key) {
            Some(old) => old.merge(kind, cell),
            None => drop(rows.insert(key.to_vec(), cell)),
        }
        Ok(())
    }

    fn remove(&mut self, name: &str, key: &[Value]) {
        self.map(name).1.remove(key);
    }

    fn clear(&mut self, name: &str) {
        self.map(name).1.clear();
    }

    fn output(&mut self, out: Output) {
        match out {
            Output::Print(pieces) => {
                let text = |it| match it {
                    Piece::Text(text) | Piece::Value(text) => text,
                    Piece::Stack(stack) => format!("{stack:?}"),
                };
                self.printed.push(pieces.into_iter().map(text).collect());
            }
            Output::Object(members) => {
                let shown = members.iter().map(|it| format!("{} {:?} {:?}", it.name, it.value, it.unit));
                self.printed.push(shown.collect::<Vec<_>>().join(", "));
            }
            Output::Table(view) => {
                let name = &view.table.def.name;
                let text = match (view.top, view.table.rows.as_slice()) {
                    (Some(n), rows) => format!("{name} top {n}: {}", rows.len()),
                    (None, [(key, cell)]) if key.is_empty() => match cell {
                        Cell::Plain(Value::Int(n)) => format!("{name}: {n}"),
                        cell => format!("{name}: {}", cell.weight()),
                    },
                    (None, rows) => format!("{name}: {} rows", rows.len()),
                };
                self.printed.push(text);
            }
            other => self.printed.push(format!("{other:?}")),
        }
    }

    fn text(&mut self, value: &Value, unit: Unit, human: bool) -> String {
        format!("{value:?} {unit:?} {human}")
    }

    fn fit(&mut self, texts: &[String], beside: usize) -> Vec<String> {
        texts.iter().map(|it| it.chars().take(60usize.saturating_sub(beside)).collect()).collect()
    }

    fn flamegraph(&mut self, path: &str, name: &str) -> Result<(), String> {
        self.printed.push(format!("{name} in {path}"));
        Ok(())
    }

    fn number(&mut self, number: RunNumber) -> Option<Value> {
        (number == RunNumber::Launches).then_some(Value::Int(12))
    }

    fn switch(&mut self, declared: u32, on: bool) {
        self.printed.push(format!("probe {declared} {}", if on { "enabled" } else { "disabled" }));
    }

    fn busy_nanos_of(&mut self, _uuid: &str) -> Option<i64> {
        None
    }

    fn exit(&mut self, code: i64) {
        self.exit = Some(code);
    }
}
