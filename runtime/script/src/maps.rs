//! Maps in interpreted handlers: handles that ask the host for everything.
//!
//! `@x` is a [`MapRef`] and `@x[k]` an [`ElementRef`]; the lexer appends `.value` where a value is
//! meant. After a method call on an element, Rhai writes the element back through the map's index
//! setter, which therefore accepts anything and does nothing.

use crate::failure::NativeFailure;
use crate::host::Host;
use crate::session::SharedSession;
use crate::values::{Interpreted, ProbeRef};
use crate::words::PARTS;
use rhai::{Array, Dynamic, Engine, EvalAltResult, FuncRegistration, ImmutableString, Module};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use xputrace_model::bucket;
use xputrace_model::schema::Unit;
use xputrace_model::stack::StackKey;
use xputrace_model::style;
use xputrace_model::table::{Cell, Key, Table, TableKind, Value, average};

type Evaluated<T> = Result<T, Box<EvalAltResult>>;

/// A map of the script.
#[derive(Clone)]
pub(crate) struct MapRef {
    /// The name with its `@`.
    pub(crate) name: Rc<str>,
    session: SharedSession,
}

/// One element of a map, present or not; without a key, the map's only element.
#[derive(Clone)]
pub(crate) struct ElementRef {
    map: MapRef,
    key: Vec<Value>,
}

/// The largest elements of a map: `@m.top(5)`.
#[derive(Clone)]
pub(crate) struct Top {
    pub(crate) map: MapRef,
    pub(crate) n: usize,
}

/// The elements that a map had before it was emptied: `@m.take()`.
#[derive(Clone)]
pub(crate) struct TakenTable(pub(crate) Arc<Table>);

/// An element in an iteration: part of a snapshot.
#[derive(Clone)]
pub(crate) struct MapRow {
    table: Arc<Table>,
    at: usize,
}

/// A stack as a value.
#[derive(Clone, PartialEq)]
pub(crate) struct Stack(pub(crate) StackKey);

/// The contents of an aggregation that is more than a number.
#[derive(Clone)]
pub(crate) struct Aggregate {
    cell: Cell,
    kind: TableKind,
}

impl MapRef {
    pub(crate) fn new(name: &str, session: &SharedSession) -> Self {
        MapRef { name: name.into(), session: session.clone() }
    }

    pub(crate) fn host(&self) -> Evaluated<Rc<RefCell<dyn Host>>> {
        host(&self.session)
    }

    pub(crate) fn table(&self) -> Evaluated<Option<Arc<Table>>> {
        Ok(self.host()?.borrow_mut().table(&self.name))
    }

    fn only(&self) -> ElementRef {
        ElementRef { map: self.clone(), key: Vec::new() }
    }

    /// Returns its only element, of which a part is read; a map with keys has a part for each.
    fn without_keys(&self, part: &str) -> Evaluated<ElementRef> {
        let has_keys = self.table()?.is_some_and(|it| !it.def.keys.is_empty());
        let name = &self.name;
        match has_keys {
            false => Ok(self.only()),
            true => NativeFailure::raise(
                "type",
                format!("`{name}` has keys, so `{name}.{part}` names no element"),
                Some(&format!("write `{name}[key].{part}`, or `for row in {name} {{ print(row.{part}); }}`")),
            ),
        }
    }

    /// Returns its value; for a map with keys that is the map itself, so that `let m = @m;` works.
    fn value(&self) -> Evaluated<Dynamic> {
        let value = self.only().value()?;
        let keyed = value.is_unit() && self.table()?.is_some_and(|it| !it.def.keys.is_empty());
        Ok(if keyed { Dynamic::from(self.clone()) } else { value })
    }

    fn len(&self) -> Evaluated<i64> {
        Ok(self.table()?.map_or(0, |it| it.rows.len() as i64))
    }

    /// Returns at most `n` elements, largest first.
    fn rows(&self, n: usize) -> Evaluated<Array> {
        Ok(self.table()?.map_or_else(Array::new, |it| largest(&it, n)))
    }

    fn clear(&self) -> Evaluated<()> {
        self.host()?.borrow_mut().clear(&self.name);
        Ok(())
    }

    /// Reads it and removes what was read: its elements, or its value if it has no key.
    fn take(&self) -> Evaluated<Dynamic> {
        let table = self.table()?;
        let taken = match table.filter(|it| !it.def.keys.is_empty()) {
            Some(table) => Dynamic::from(TakenTable(table)),
            None => self.only().value()?,
        };
        self.clear()?;
        Ok(taken)
    }
}

/// Returns at most `n` elements, largest first.
fn largest(table: &Arc<Table>, n: usize) -> Array {
    let mut order: Vec<usize> = (0..table.rows.len()).collect();
    order.sort_by(|a, b| {
        let (a, b) = (&table.rows[*a], &table.rows[*b]);
        b.1.weight().cmp(&a.1.weight()).then_with(|| a.0.cmp(&b.0))
    });
    order.truncate(n);
    order.into_iter().map(|at| Dynamic::from(MapRow { table: table.clone(), at })).collect()
}

/// Returns the host that handlers run against; the top level, which has none, cannot use maps.
pub(crate) fn host(session: &SharedSession) -> Evaluated<Rc<RefCell<dyn Host>>> {
    const HELP: &str = "do it in a handler: `kernel(|k| …)`, `begin(|| …)`, `interval(1.s, || …)`, `end(|| …)`";
    host_for(session, "it cannot read or change maps", HELP)
}

/// Returns the host that handlers run against, or says what the top level cannot do.
pub(crate) fn host_for(session: &SharedSession, not_yet: &str, help: &str) -> Evaluated<Rc<RefCell<dyn Host>>> {
    let host = session.borrow().host.clone();
    let early = || format!("the top level runs before tracing starts: {not_yet}");
    host.map_or_else(|| NativeFailure::raise("top-level", early(), Some(help)), Ok)
}

impl ElementRef {
    fn value(&self) -> Evaluated<Dynamic> {
        let host = self.map.host()?;
        let plain = host.borrow_mut().get(&self.map.name, &self.key);
        if plain != Value::Missing {
            return Ok(to_dynamic(plain));
        }
        Ok(self.cell()?.map_or(Dynamic::UNIT, |(cell, kind)| cell_value(cell, kind)))
    }

    fn cell(&self) -> Evaluated<Option<(Cell, TableKind)>> {
        let Some(table) = self.map.table()? else { return Ok(None) };
        let found = table.rows.iter().find(|(key, _)| *key == self.key);
        Ok(found.map(|(_, cell)| (cell.clone(), table.def.kind)))
    }

    fn unit(&self) -> Evaluated<Unit> {
        Ok(self.map.table()?.map_or(Unit::None, |it| it.def.unit))
    }

    fn set(&self, value: Dynamic) -> Evaluated<()> {
        let value = from_dynamic(&value)?;
        let host = self.map.host()?;
        let done = host.borrow_mut().set(&self.map.name, &self.key, value);
        done.or_else(|it| NativeFailure::raise("map", it, None))
    }

    /// Implements `+=`, from 0 if there is no such element; appends text to text.
    fn add(&self, delta: Dynamic, sign: i64) -> Evaluated<()> {
        if let Ok(n) = delta.as_int() {
            let host = self.map.host()?;
            let done = host.borrow_mut().add(&self.map.name, &self.key, n.wrapping_mul(sign));
            return done.or_else(|it| NativeFailure::raise("map", it, None));
        }
        match (delta.as_immutable_string_ref(), self.value()?) {
            (Ok(text), old) if sign > 0 && (old.is_unit() || old.is_string()) => {
                let old = if old.is_unit() { String::new() } else { old.to_string() };
                self.set(Dynamic::from(format!("{old}{}", &*text)))
            }
            _ if delta.is_unit() => NativeFailure::raise(
                "missing-value",
                "`+=` is applied to a missing value",
                Some("test it first, or use a default: `x ?? 0`"),
            ),
            _ => NativeFailure::raise("type", format!("`+=` does not take {}", kind_of(&delta)), None),
        }
    }

    fn update(&self, kind: TableKind, value: Dynamic) -> Evaluated<()> {
        let Ok(n) = value.as_int() else {
            let message = format!("`{}` takes an integer, not {}", kind.verb(), kind_of(&value));
            return NativeFailure::raise(if value.is_unit() { "missing-value" } else { "type" }, message, None);
        };
        let host = self.map.host()?;
        let done = host.borrow_mut().update(&self.map.name, &self.key, kind, n);
        done.or_else(|it| NativeFailure::raise("map", it, None))
    }

    /// Reads it and removes it.
    fn take(&self) -> Evaluated<Dynamic> {
        let value = self.value()?;
        self.remove()?;
        Ok(value)
    }

    fn remove(&self) -> Evaluated<()> {
        self.map.host()?.borrow_mut().remove(&self.map.name, &self.key);
        Ok(())
    }
}

impl MapRow {
    fn key(&self) -> &Key {
        &self.table.rows[self.at].0
    }

    fn cell(&self) -> &Cell {
        &self.table.rows[self.at].1
    }
}

/// Largest first. A read failure is the only element.
impl IntoIterator for MapRef {
    type Item = Dynamic;
    type IntoIter = std::vec::IntoIter<Dynamic>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows(usize::MAX).unwrap_or_default().into_iter()
    }
}

impl IntoIterator for Top {
    type Item = Dynamic;
    type IntoIter = std::vec::IntoIter<Dynamic>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.rows(self.n).unwrap_or_default().into_iter()
    }
}

impl IntoIterator for TakenTable {
    type Item = Dynamic;
    type IntoIter = std::vec::IntoIter<Dynamic>;

    fn into_iter(self) -> Self::IntoIter {
        largest(&self.0, usize::MAX).into_iter()
    }
}

/// Converts a cell to a script value: a number if it is one.
fn cell_value(cell: Cell, kind: TableKind) -> Dynamic {
    match cell {
        Cell::Plain(value) => to_dynamic(value),
        Cell::Number(n) => Dynamic::from_int(n),
        Cell::Avg { .. } => Dynamic::from_int(cell.weight()),
        cell => Dynamic::from(Aggregate { cell, kind }),
    }
}

/// Returns a named part of an aggregation.
fn part(cell: &Cell, kind: TableKind, name: &str) -> Option<i64> {
    match (cell, name) {
        (Cell::Plain(Value::Int(n)) | Cell::Number(n), "count" | "sum" | "total" | "min" | "max") => Some(*n),
        (Cell::Avg { count, .. } | Cell::Stats { count, .. }, "count") => Some(*count),
        (Cell::Avg { total, .. } | Cell::Stats { total, .. }, "total" | "sum") => i64::try_from(*total).ok(),
        (Cell::Avg { count, total } | Cell::Stats { count, total, .. }, "avg" | "average") => average(*total, *count),
        (Cell::Stats { min, .. }, "min") => Some(*min),
        (Cell::Stats { max, .. }, "max") => Some(*max),
        (Cell::Buckets(_), "count") => Some(cell.weight()),
        (Cell::Buckets(_), "min") => percentile(cell, kind, 0.0),
        (Cell::Buckets(_), "max") => percentile(cell, kind, 100.0),
        (Cell::Buckets(_), _) => percentile(cell, kind, name.strip_prefix('p')?.parse().ok()?),
        _ => None,
    }
}

/// Returns the upper bound of the percentile's bucket, or its lower bound for percentile 0. The last bucket
/// of `lhist` has no upper bound: returns its lower one.
fn percentile(cell: &Cell, kind: TableKind, percent: f64) -> Option<i64> {
    let Cell::Buckets(buckets) = cell else { return None };
    let bounds = kind.bucket_bounds(bucket::percentile(buckets, percent)?);
    if percent == 0.0 { bounds.min } else { bounds.max.or(bounds.min) }
}

/// Converts a host's value to Rhai's.
pub(crate) fn to_dynamic(value: Value) -> Dynamic {
    match value {
        Value::Missing => Dynamic::UNIT,
        Value::Bool(on) => Dynamic::from_bool(on),
        Value::Int(n) => Dynamic::from_int(n),
        Value::Str(text) => Dynamic::from(ImmutableString::from(&*text)),
        Value::Stack(key) => Dynamic::from(Stack(key)),
    }
}

/// Converts a script's value to the host's.
pub(crate) fn from_dynamic(value: &Dynamic) -> Evaluated<Value> {
    if value.is_unit() {
        return Ok(Value::Missing);
    }
    if let Ok(n) = value.as_int() {
        return Ok(Value::Int(n));
    }
    if let Ok(on) = value.as_bool() {
        return Ok(Value::Bool(on));
    }
    if let Ok(c) = value.as_char() {
        return Ok(Value::Str(c.to_string().into()));
    }
    if let Ok(text) = value.as_immutable_string_ref() {
        return Ok(Value::Str(text.as_str().into()));
    }
    if let Some(stack) = value.clone().try_cast::<Stack>() {
        return Ok(Value::Stack(stack.0));
    }
    if let Some(element) = value.clone().try_cast::<ElementRef>() {
        return from_dynamic(&element.value()?);
    }
    let message = format!("a map holds integers, strings, booleans and stacks, not {}", kind_of(value));
    NativeFailure::raise("type", message, None)
}

/// Returns the parts of a key: a list's elements, or the one value.
fn key_of(key: &Dynamic) -> Evaluated<Vec<Value>> {
    match key.as_array_ref() {
        Ok(parts) => parts.iter().map(from_dynamic).collect(),
        Err(_) => Ok(vec![from_dynamic(key)?]),
    }
}

fn key_value(key: &Key) -> Dynamic {
    match key.as_slice() {
        [only] => to_dynamic(only.clone()),
        parts => Dynamic::from_array(parts.iter().cloned().map(to_dynamic).collect()),
    }
}

/// Formats a value inside a string: stacks are named, numbers have no unit, and an aggregation of more than a
/// number shows what its table shows.
pub(crate) fn text(session: &SharedSession, value: &Dynamic) -> Evaluated<String> {
    if let Some(element) = value.clone().try_cast::<ElementRef>() {
        return match element.cell()?.filter(|(cell, _)| is_compound(cell)) {
            Some((cell, kind)) => Ok(summary(&cell, kind, &mut |n| n.to_string())),
            None => text(session, &element.value()?),
        };
    }
    if let Some(map) = value.clone().try_cast::<MapRef>() {
        return match map.value()?.try_cast::<MapRef>() {
            Some(keyed) => Ok(keyed.name.to_string()),
            None => text(session, &Dynamic::from(map.only())),
        };
    }
    if let Some(Aggregate { cell, kind }) = value.clone().try_cast::<Aggregate>() {
        return Ok(summary(&cell, kind, &mut |n| n.to_string()));
    }
    if let Some(row) = value.clone().try_cast::<MapRow>() {
        return row_text(session, &row);
    }
    match value.clone().try_cast::<Stack>() {
        Some(stack) => Ok(host(session)?.borrow_mut().text(&Value::Stack(stack.0), Unit::None, false)),
        None if value.is_unit() => Ok("-".to_owned()),
        None => Ok(value.to_string()),
    }
}

/// Whether an aggregation is more than a number.
fn is_compound(cell: &Cell) -> bool {
    matches!(cell, Cell::Stats { .. } | Cell::Buckets(_))
}

/// Formats the parts of an aggregation that its table shows; of a histogram, those of `quantiles`.
fn summary(cell: &Cell, kind: TableKind, number: &mut dyn FnMut(i64) -> String) -> String {
    let names: &[&str] = match cell {
        Cell::Stats { .. } => &["count", "average", "total", "min", "max"],
        _ => &["count", "p50", "p90", "p99", "max"],
    };
    let mut shown = |name: &&str| {
        let n = part(cell, kind, name)?;
        Some(format!("{name} {}", if *name == "count" { n.to_string() } else { number(n) }))
    };
    names.iter().filter_map(&mut shown).collect::<Vec<_>>().join(", ")
}

/// Formats a cell with its map's unit.
fn cell_human(session: &SharedSession, cell: &Cell, kind: TableKind, unit: Unit) -> Evaluated<String> {
    let host = host(session)?;
    let mut host = host.borrow_mut();
    if is_compound(cell) {
        return Ok(summary(cell, kind, &mut |n| host.text(&Value::Int(n), unit, true)));
    }
    let value = match cell {
        Cell::Plain(value) => value.clone(),
        number => Value::Int(number.weight()),
    };
    Ok(host.text(&value, unit, true))
}

/// Formats an element with the unit of its map; one that does not exist is missing.
fn element_human(session: &SharedSession, it: &ElementRef) -> Evaluated<String> {
    match it.cell()? {
        Some((cell, kind)) => cell_human(session, &cell, kind, it.unit()?),
        None => text(session, &it.value()?),
    }
}

/// Returns an integer of a map in hexadecimal digits.
fn element_hex(it: &ElementRef) -> Evaluated<String> {
    match it.value()?.as_int() {
        Ok(n) => Ok(style::hex(n)),
        Err(_) => NativeFailure::raise("type", "only an integer has `.hex`", None),
    }
}

/// Formats a row as its table's line: `@m[key]: value`.
fn row_text(session: &SharedSession, row: &MapRow) -> Evaluated<String> {
    let keys: Vec<String> =
        row.key().iter().map(|it| text(session, &to_dynamic(it.clone()))).collect::<Evaluated<_>>()?;
    let keys = if keys.is_empty() { String::new() } else { format!("[{}]", keys.join(", ")) };
    let def = &row.table.def;
    Ok(format!("{}{keys}: {}", def.name, cell_human(session, row.cell(), def.kind, def.unit)?))
}

/// Registers maps, elements, rows and stacks.
pub(crate) fn register(engine: &mut Engine, session: &SharedSession) {
    engine.register_type_with_name::<MapRef>("map handle");
    engine.register_type_with_name::<ElementRef>("map element");
    engine.register_type_with_name::<Stack>("stack");
    engine.register_type_with_name::<MapRow>("row of a map");
    engine.register_type_with_name::<TakenTable>("elements of a map");
    engine.register_type_with_name::<Aggregate>("aggregation");
    let mut module = Module::new();
    values(&mut module);
    engine.register_global_module(module.into());
    updates(engine);
    reads(engine);
    rows(engine, session);
    texts(engine, session);
}

/// Registers reading and assigning. All functions are pure: a handle never changes, only what it
/// refers to.
fn values(module: &mut Module) {
    let pure_setter = |name: &str| FuncRegistration::new_setter(name).with_purity(true);
    FuncRegistration::new_index_getter().set_into_module(
        module,
        |map: &mut MapRef, key: Dynamic| -> Evaluated<ElementRef> {
            Ok(ElementRef { map: map.clone(), key: key_of(&key)? })
        },
    );
    FuncRegistration::new_index_setter()
        .with_purity(true)
        .set_into_module(module, |_: &mut MapRef, _: Dynamic, _: Dynamic| {});
    FuncRegistration::new_getter("value").set_into_module(module, |map: &mut MapRef| map.value());
    FuncRegistration::new_getter("value").set_into_module(module, |it: &mut ElementRef| it.value());
    pure_setter("value").set_into_module(module, |map: &mut MapRef, value: Dynamic| map.only().set(value));
    pure_setter("value").set_into_module(module, |it: &mut ElementRef, value: Dynamic| it.set(value));
    for (name, sign) in [("added", 1), ("subtracted", -1)] {
        pure_setter(name).set_into_module(module, move |map: &mut MapRef, by: Dynamic| map.only().add(by, sign));
        pure_setter(name).set_into_module(module, move |it: &mut ElementRef, by: Dynamic| it.add(by, sign));
    }
}

/// Registers the aggregations on maps and elements.
fn updates(engine: &mut Engine) {
    for (name, kind) in TableKind::methods().filter_map(|it| Some((it, TableKind::of_one_value(it)?))) {
        engine.register_fn(name, move |map: &mut MapRef, x: Dynamic| map.only().update(kind, x));
        engine.register_fn(name, move |it: &mut ElementRef, x: Dynamic| it.update(kind, x));
    }
    engine.register_fn("count", |map: &mut MapRef| map.only().update(TableKind::Count, Dynamic::ONE));
    engine.register_fn("count", |it: &mut ElementRef| it.update(TableKind::Count, Dynamic::ONE));
    engine.register_fn("lhist", |map: &mut MapRef, x: Dynamic, min: i64, max: i64, step: i64| {
        map.only().update(lhist(min, max, step)?, x)
    });
    engine.register_fn("lhist", |it: &mut ElementRef, x: Dynamic, min: i64, max: i64, step: i64| {
        it.update(lhist(min, max, step)?, x)
    });
    engine.register_fn("remove", |it: &mut ElementRef| it.remove());
    engine.register_fn("remove", |map: &mut MapRef| map.only().remove());
    engine.register_fn("clear", |map: &mut MapRef| map.clear());
    engine.register_fn("take", |map: &mut MapRef| map.take());
    engine.register_fn("take", |it: &mut ElementRef| it.take());
}

fn lhist(min: i64, max: i64, step: i64) -> Evaluated<TableKind> {
    if step <= 0 || min >= max {
        return NativeFailure::raise("lhist", "`lhist(x, min, max, step)` needs `min < max` and a positive step", None);
    }
    Ok(TableKind::Lhist { min, max, step })
}

/// Registers queries of maps and elements.
fn reads(engine: &mut Engine) {
    engine.register_fn("len", |map: &mut MapRef| map.len());
    engine.register_fn("is_empty", |map: &mut MapRef| Ok::<_, Box<EvalAltResult>>(map.len()? == 0));
    engine.register_get("name", |map: &mut MapRef| map.name.to_string());
    engine.register_fn("top", |map: &mut MapRef, n: i64| Top { map: map.clone(), n: n.max(0) as usize });
    engine.register_fn("contains", |map: &mut MapRef, key: Dynamic| -> Evaluated<bool> {
        let key = key_of(&key)?;
        Ok(map.host()?.borrow_mut().contains(&map.name, &key))
    });
    engine.register_get("human", |it: &mut ElementRef| element_human(&it.map.session, it));
    engine.register_get("human", |map: &mut MapRef| element_human(&map.session, &map.only()));
    engine.register_get("hex", |it: &mut ElementRef| element_hex(it));
    engine.register_get("hex", |map: &mut MapRef| element_hex(&map.only()));
    for name in PARTS {
        engine.register_get(*name, move |map: &mut MapRef| element_part(&map.without_keys(name)?, name));
        engine.register_get(*name, move |it: &mut ElementRef| element_part(it, name));
        engine.register_get(*name, move |it: &mut Aggregate| optional(part(&it.cell, it.kind, name)));
        engine.register_get(*name, move |row: &mut MapRow| optional(part(row.cell(), row.table.def.kind, name)));
    }
    engine.register_fn("percentile", |map: &mut MapRef, p: Dynamic| {
        element_percentile(&map.without_keys("percentile(…)")?, &p)
    });
    engine.register_fn("percentile", |it: &mut ElementRef, p: Dynamic| element_percentile(it, &p));
    engine.register_fn("percentile", |it: &mut Aggregate, p: Dynamic| {
        percent(&p).map(|p| optional(percentile(&it.cell, it.kind, p)))
    });
}

fn element_part(it: &ElementRef, name: &str) -> Evaluated<Dynamic> {
    Ok(optional(it.cell()?.and_then(|(cell, kind)| part(&cell, kind, name))))
}

fn element_percentile(it: &ElementRef, p: &Dynamic) -> Evaluated<Dynamic> {
    let cell = it.cell()?;
    let percent = percent(p)?;
    Ok(optional(cell.and_then(|(cell, kind)| percentile(&cell, kind, percent))))
}

fn percent(p: &Dynamic) -> Evaluated<f64> {
    let number = p.as_int().map(|n| n as f64).or_else(|_| p.as_float());
    match number {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(number),
        _ => {
            let message = format!("`percentile` takes a number from 0 to 100, not {p}");
            NativeFailure::raise("wrong-arguments", message, Some("write `.percentile(99.9)`"))
        }
    }
}

fn optional(n: Option<i64>) -> Dynamic {
    n.map_or(Dynamic::UNIT, Dynamic::from_int)
}

/// Registers `for row in @m`, `@m.keys()`, and the properties of rows.
fn rows(engine: &mut Engine, session: &SharedSession) {
    engine.register_fn("keys", |map: &mut MapRef| -> Evaluated<Array> {
        let Some(table) = map.table()? else { return Ok(Array::new()) };
        let mut keys: Vec<&Key> = table.rows.iter().map(|it| &it.0).collect();
        keys.sort();
        Ok(keys.into_iter().map(key_value).collect())
    });
    engine.register_fn("values", |map: &mut MapRef| -> Evaluated<Array> {
        let rows = map.rows(usize::MAX)?;
        Ok(rows.into_iter().filter_map(|it| it.try_cast::<MapRow>()).map(|it| row_value(&it)).collect())
    });
    engine.register_iterator::<MapRef>();
    engine.register_iterator::<Top>();
    engine.register_iterator::<TakenTable>();
    engine.register_fn("rows", |taken: &mut TakenTable| largest(&taken.0, usize::MAX));
    engine.register_fn("len", |taken: &mut TakenTable| taken.0.rows.len() as i64);
    engine.register_fn("rows", |map: &mut MapRef| map.rows(usize::MAX));
    engine.register_fn("rows", |top: &mut Top| top.map.rows(top.n));
    engine.register_get("key", |row: &mut MapRow| key_value(row.key()));
    engine.register_get("keys", |row: &mut MapRow| -> Array { row.key().iter().cloned().map(to_dynamic).collect() });
    engine.register_get("value", |row: &mut MapRow| row_value(row));
    let shared = session.clone();
    engine.register_get("human", move |row: &mut MapRow| -> Evaluated<String> {
        cell_human(&shared, row.cell(), row.table.def.kind, row.table.def.unit)
    });
}

fn row_value(row: &MapRow) -> Dynamic {
    cell_value(row.cell().clone(), row.table.def.kind)
}

/// Registers how they print inside strings.
fn texts(engine: &mut Engine, session: &SharedSession) {
    macro_rules! text_of {
        ($($type:ty),*) => {$(
            for name in ["to_string", "to_debug"] {
                let session = session.clone();
                engine.register_fn(name, move |it: &mut $type| text(&session, &Dynamic::from(it.clone())));
            }
        )*};
    }
    text_of!(MapRef, ElementRef, Stack, Aggregate, MapRow);
    engine.register_get("lines", |it: &mut Stack| Stack(it.0.with_lines()));
    engine.register_fn("==", |a: Stack, b: Stack| a == b);
    engine.register_fn("!=", |a: Stack, b: Stack| a != b);
}

/// Names a value's type for messages.
pub(crate) fn kind_of(value: &Dynamic) -> &'static str {
    match value.type_name() {
        "()" => "`()`",
        "i64" => "an integer",
        "f64" => "a fraction",
        "bool" => "a boolean",
        "char" => "a character",
        "string" => "text",
        "array" => "a list",
        "map" => "a `#{…}`",
        "Fn" => "a function",
        "range" | "range=" => "a range",
        _ if value.is::<ProbeRef>() => "a probe",
        _ if value.is::<MapRef>() => "a map",
        _ if value.is::<Interpreted>() => "an interpreted handler",
        _ => "a value of another type",
    }
}
