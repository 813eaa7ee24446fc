//! Encodes and decodes the keys and values in a script's BPF maps.
//!
//! Maps of Linux and of the tracer's engine have the same layout (`model::table`), so this serves
//! both. The parts of engines and CPUs are merged into one [`Table`].

use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use xputrace_model::names::Names;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, KeyPart, Scalar, Table, TableDef, TableKind, Value, total};

/// Decodes a stored key, without its bucket. Missing bytes read as zeros.
pub fn decode_key(def: &TableDef, bytes: &[u8], names: &Names) -> Key {
    let mut at = 0;
    def.keys
        .iter()
        .map(|part| {
            let value = decode_part(part, bytes, at, names);
            at += part.size();
            value
        })
        .collect()
}

/// Returns the bucket at the end of a stored key; `None` for maps without buckets.
pub fn decode_bucket(def: &TableDef, key: &[u8]) -> Option<i64> {
    def.kind.is_bucketed().then(|| word(key, def.key_size()) as i64)
}

/// Decodes a stored value. For a bucketed map, it is the count of the bucket at the end of `key`.
pub fn decode_value(def: &TableDef, key: &[u8], value: &[u8], names: &Names) -> Cell {
    let number = |at| word(value, at) as i64;
    match def.kind {
        TableKind::Plain(kind) => Cell::Plain(decode_scalar(kind, value, 0, names)),
        TableKind::Count | TableKind::Sum => Cell::Number(number(0)),
        TableKind::Min => Cell::Number(number(0) ^ i64::MAX),
        TableKind::Max => Cell::Number(number(0) ^ i64::MIN),
        TableKind::Avg => Cell::Avg { count: number(0), total: total(word(value, 8), number(16)) },
        TableKind::Stats => {
            let (count, total) = (number(0), total(word(value, 8), number(16)));
            Cell::Stats { count, total, min: number(24) ^ i64::MAX, max: number(32) ^ i64::MIN }
        }
        TableKind::Hist { .. } | TableKind::Lhist { .. } | TableKind::Quantiles => {
            let bucket = decode_bucket(def, key).unwrap_or(0);
            Cell::Buckets(BTreeMap::from([(bucket, word(value, 0))]))
        }
    }
}

/// Calls `f` with every stack in a stored element: in its key, or its plain value.
pub fn stacks(def: &TableDef, key: &[u8], value: &[u8], f: &mut dyn FnMut(StackKey)) {
    let mut at = 0;
    for part in &def.keys {
        if part.kind == Scalar::Stack && !(part.optional && word(key, at) == 0) {
            f(StackKey::from_word(word(key, at + part.size() - part.kind.size())));
        }
        at += part.size();
    }
    if def.kind == TableKind::Plain(Scalar::Stack) {
        f(StackKey::from_word(word(value, 0)));
    }
}

/// Whether a stored value was never updated, like the element of a one-element array, or other
/// CPUs' values, before the first update. A sum of 0 counts as an element if there is a key, which
/// shows that there was an update.
pub fn is_untouched(def: &TableDef, value: &[u8]) -> bool {
    match def.kind {
        TableKind::Plain(_) => false,
        TableKind::Sum if def.stored_key_size() > 0 => false,
        _ => value.iter().all(|byte| *byte == 0),
    }
}

/// Merges the stored elements of one map, one per key and part.
///
/// Merges sums, minima and buckets of the same key. A count of 0 is not an element.
#[derive(Debug)]
pub struct Collector<'a> {
    def: &'a TableDef,
    names: &'a Names,
    rows: FxHashMap<Key, Cell>,
}

impl<'a> Collector<'a> {
    /// Creates an empty collector.
    pub fn new(def: &'a TableDef, names: &'a Names) -> Self {
        Collector { def, names, rows: FxHashMap::default() }
    }

    /// Adds a stored element of an engine, or of one CPU.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        if is_untouched(self.def, value) {
            return;
        }
        // Only engines give the element of a map without keys a key.
        let key = &key[..key.len().min(self.def.stored_key_size())];
        let decoded = decode_key(self.def, key, self.names);
        let cell = decode_value(self.def, key, value, self.names);
        self.merge(decoded, cell);
    }

    fn merge(&mut self, key: Key, cell: Cell) {
        match self.rows.get_mut(&key) {
            Some(row) => row.merge(self.def.kind, cell),
            None => {
                self.rows.insert(key, cell);
            }
        }
    }

    /// Returns each key once, in no particular order.
    pub fn finish(self) -> Vec<(Key, Cell)> {
        self.rows.into_iter().collect()
    }
}

/// Merges the parts that engines keep into one table.
pub fn merge(def: &Arc<TableDef>, parts: impl IntoIterator<Item = Vec<(Key, Cell)>>) -> Table {
    let mut rows: FxHashMap<Key, Cell> = FxHashMap::default();
    for (key, cell) in parts.into_iter().flatten() {
        match rows.get_mut(&key) {
            Some(row) => row.merge(def.kind, cell),
            None => {
                rows.insert(key, cell);
            }
        }
    }
    Table { def: def.clone(), rows: rows.into_iter().collect() }
}

/// Encodes an element's key, without its bucket. Returns `None` if a value does not have its part's
/// declared type. Truncates strings that are longer than their part.
pub fn encode_key(def: &TableDef, key: &[Value], names: &mut Names) -> Option<Vec<u8>> {
    if key.len() != def.keys.len() {
        return None;
    }
    let mut out = Vec::with_capacity(def.key_size());
    for (part, value) in def.keys.iter().zip(key) {
        encode_part(part, value, names, &mut out)?;
    }
    Some(out)
}

/// Encodes a plain value; returns `None` if it has another type.
pub fn encode_plain(kind: Scalar, value: &Value, names: &mut Names) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(kind.size());
    encode_scalar(kind, value, names, &mut out)?;
    Some(out)
}

fn decode_part(part: &KeyPart, bytes: &[u8], at: usize, names: &Names) -> Value {
    match part.optional {
        true if word(bytes, at) == 0 => Value::Missing,
        true => decode_scalar(part.kind, bytes, at + 8, names),
        false => decode_scalar(part.kind, bytes, at, names),
    }
}

/// Decodes a value at a byte offset of a key, a value or a print record.
pub fn decode_scalar(kind: Scalar, bytes: &[u8], at: usize, names: &Names) -> Value {
    let number = word(bytes, at);
    match kind {
        Scalar::Int => Value::Int(number as i64),
        Scalar::Bool => Value::Bool(number != 0),
        Scalar::Name => Value::Str(names.get(number).cloned().unwrap_or_else(|| Arc::from(""))),
        Scalar::Text(_) => Value::Str(text(bytes.get(at..).unwrap_or_default(), kind.size())),
        Scalar::Stack => Value::Stack(StackKey::from_word(number)),
    }
}

fn encode_part(part: &KeyPart, value: &Value, names: &mut Names, out: &mut Vec<u8>) -> Option<()> {
    match (part.optional, value) {
        (true, Value::Missing) => {
            out.resize(out.len() + part.size(), 0);
            return Some(());
        }
        (true, _) => out.extend(1u64.to_le_bytes()),
        (false, _) => {}
    }
    encode_scalar(part.kind, value, names, out)
}

fn encode_scalar(kind: Scalar, value: &Value, names: &mut Names, out: &mut Vec<u8>) -> Option<()> {
    let number = match (kind, value) {
        (Scalar::Int, Value::Int(n)) => *n as u64,
        (Scalar::Bool, Value::Bool(b)) => u64::from(*b),
        (Scalar::Name, Value::Str(s)) => u64::from(names.intern(s)),
        (Scalar::Stack, Value::Stack(key)) => key.to_word(),
        (Scalar::Text(_), Value::Str(s)) => {
            let end = out.len() + kind.size();
            let bytes = xputrace_model::text::to_bytes(s);
            out.extend(&bytes[..end_of_text(&bytes, kind.size())]);
            out.resize(end, 0);
            return Some(());
        }
        _ => return None,
    };
    out.extend(number.to_le_bytes());
    Some(())
}

/// Returns how many bytes of a string fit without splitting a character.
fn end_of_text(bytes: &[u8], capacity: usize) -> usize {
    let continues = |at: usize| bytes.get(at).is_some_and(|it| it & 0xc0 == 0x80);
    let nearest = bytes.len().min(capacity);
    // A character has at most three continuation bytes; a longer sequence is not a character.
    (nearest.saturating_sub(3)..=nearest).rev().find(|at| !continues(*at)).unwrap_or(nearest)
}

fn text(bytes: &[u8], capacity: usize) -> Arc<str> {
    xputrace_model::text::until_nul(&bytes[..bytes.len().min(capacity)]).into()
}

/// Returns the word at a byte offset; missing bytes are 0.
pub fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    let n = rest.len().min(8);
    word[..n].copy_from_slice(&rest[..n]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xputrace_model::plan::BpfMapId;
    use xputrace_model::schema::Unit;
    use xputrace_model::table::Storage;

    fn def(keys: &[(Scalar, bool)], kind: TableKind) -> Arc<TableDef> {
        let part = |(kind, optional): &(Scalar, bool)| KeyPart { kind: *kind, optional: *optional, unit: Unit::None };
        Arc::new(TableDef {
            name: "@t".into(),
            keys: keys.iter().map(part).collect(),
            kind,
            unit: Unit::None,
            capacity: 8,
            evict: false,
            storage: Storage::Tracer(BpfMapId(0)),
        })
    }

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|it| it.to_le_bytes()).collect()
    }

    #[test]
    fn parts_of_processors_and_engines_are_merged() {
        let names = Names::new(&[]);
        let def = def(&[(Scalar::Int, false)], TableKind::Stats);
        let stats = |count: u64, total: i64, min: i64, max: i64| {
            let halves = [total as u64 & 0xffff_ffff, (total >> 32) as u64];
            [count, halves[0], halves[1], (min ^ i64::MAX) as u64, (max ^ i64::MIN) as u64]
        };
        let mut linux = Collector::new(&def, &names);
        for cpu in [stats(2, 5, -1, 6), [0; 5], stats(1, 9, 9, 9)] {
            linux.add(&bytes(&[7]), &bytes(&cpu));
        }
        let mut tracer = Collector::new(&def, &names);
        tracer.add(&bytes(&[7]), &bytes(&stats(1, -20, -20, -20)));
        let table = merge(&def, [linux.finish(), tracer.finish()]);
        assert_eq!(table.rows, [(vec![Value::Int(7)], Cell::Stats { count: 4, total: -6, min: -20, max: 9 })]);
    }

    #[test]
    fn totals_go_beyond_64_bits() {
        let names = Names::new(&[]);
        let def = def(&[], TableKind::Avg);
        let n = 3u64;
        let mut it = Collector::new(&def, &names);
        it.add(&[], &bytes(&[n, n * (i64::MAX as u64 & 0xffff_ffff), n * (i64::MAX >> 32) as u64]));
        let total = 3 * i128::from(i64::MAX);
        let cells = it.finish();
        assert_eq!(cells, [(vec![], Cell::Avg { count: 3, total })]);
        assert_eq!(cells[0].1.weight(), i64::MAX);
    }

    #[test]
    fn buckets_of_a_key_are_one_cell() {
        let names = Names::new(&[]);
        let def = def(&[], TableKind::Hist { bits: 0 });
        let mut it = Collector::new(&def, &names);
        it.add(&bytes(&[3]), &bytes(&[2]));
        it.add(&bytes(&[-1i64 as u64]), &bytes(&[1]));
        it.add(&bytes(&[3]), &bytes(&[4]));
        assert_eq!(it.finish(), [(vec![], Cell::Buckets(BTreeMap::from([(-1, 1), (3, 6)])))]);
    }

    #[test]
    fn an_array_that_was_never_updated_is_empty_and_a_sum_of_0_is_not() {
        let names = Names::new(&[]);
        let mut single = Collector::new(&def(&[], TableKind::Sum), &names).finish().len();
        let one = def(&[], TableKind::Sum);
        let mut it = Collector::new(&one, &names);
        it.add(&[], &bytes(&[0]));
        single += it.finish().len();
        assert_eq!(single, 0);
        let keyed = def(&[(Scalar::Int, false)], TableKind::Sum);
        let mut it = Collector::new(&keyed, &names);
        it.add(&bytes(&[1]), &bytes(&[0]));
        assert_eq!(it.finish().len(), 1);
    }

    fn value(kind: Scalar) -> BoxedStrategy<Value> {
        match kind {
            Scalar::Int => any::<i64>().prop_map(Value::Int).boxed(),
            Scalar::Bool => any::<bool>().prop_map(Value::Bool).boxed(),
            Scalar::Name | Scalar::Text(_) => "[a-zä]{0,8}".prop_map(|it| Value::Str(it.into())).boxed(),
            Scalar::Stack => (0..xputrace_model::stack::LINES as u32)
                .prop_map(|id| Value::Stack(StackKey::LinuxKernel { id }))
                .boxed(),
        }
    }

    fn scalar() -> impl Strategy<Value = Scalar> {
        prop_oneof![
            Just(Scalar::Int),
            Just(Scalar::Bool),
            Just(Scalar::Name),
            Just(Scalar::Text(16)),
            Just(Scalar::Stack)
        ]
    }

    fn key() -> impl Strategy<Value = Vec<(Scalar, bool, Value)>> {
        let part = (scalar(), any::<bool>(), any::<bool>()).prop_flat_map(|(kind, optional, missing)| {
            let value = if optional && missing { Just(Value::Missing).boxed() } else { value(kind) };
            (Just(kind), Just(optional), value)
        });
        proptest::collection::vec(part, 0..4)
    }

    proptest! {
        #[test]
        fn keys_round_trip(parts in key()) {
            let mut names = Names::new(&[]);
            let kinds: Vec<_> = parts.iter().map(|it| (it.0, it.1)).collect();
            let def = def(&kinds, TableKind::Count);
            let key: Key = parts.into_iter().map(|it| it.2).collect();
            let stored = encode_key(&def, &key, &mut names).unwrap();
            prop_assert_eq!(stored.len(), def.key_size());
            prop_assert_eq!(decode_key(&def, &stored, &names), key);
        }

        #[test]
        fn any_bytes_decode(parts in key(), key in proptest::collection::vec(any::<u8>(), 0..40), value in proptest::collection::vec(any::<u8>(), 0..40)) {
            let names = Names::new(&[]);
            let kinds: Vec<_> = parts.iter().map(|it| (it.0, it.1)).collect();
            for kind in [TableKind::Plain(Scalar::Text(16)), TableKind::Stats, TableKind::Quantiles, TableKind::Min] {
                let def = def(&kinds, kind);
                prop_assert_eq!(decode_key(&def, &key, &names).len(), kinds.len());
                let _ = decode_value(&def, &key, &value, &names);
            }
        }
    }
}
