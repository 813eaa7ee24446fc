//! The store over engines in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use xputrace_bytecode::BpfMapId;
use xputrace_bytecode::image::{Home, MapKind, MapSpec};
use xputrace_model::names::Names;
use xputrace_model::plan::Plan;
use xputrace_model::schema::Unit;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Key, KeyPart, Parts, Scalar, Storage, TableDef, TableId, TableKind, Value};
use xputrace_store::{Backing, OnValue, Store, UpdateRefusal};

const ID: TableId = TableId(0);
const LINUX: BpfMapId = BpfMapId(0);
const TRACER: BpfMapId = BpfMapId(1);
const BOTH: Storage = Storage::Parts(Parts { linux: Some(LINUX), tracer: Some(TRACER), gpu: None });

type Elements = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// An engine: elements by map, each with several values, as for several CPUs.
#[derive(Default)]
struct Memory {
    maps: BTreeMap<BpfMapId, Elements>,
    room: usize,
    is_broken: bool,
}

impl Memory {
    fn put(&mut self, map: BpfMapId, key: &[i64], cpus: &[&[i64]]) {
        let values = cpus.iter().map(|it| words(it)).collect();
        self.maps.entry(map).or_default().insert(words(key), values);
    }

    fn elements(&self, map: BpfMapId) -> usize {
        self.maps.get(&map).map_or(0, BTreeMap::len)
    }
}

impl Backing for &mut Memory {
    fn for_each(&self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        let elements = self.maps.get(&map).into_iter().flatten();
        elements.for_each(|(key, values)| values.iter().for_each(|it| f(key, it)));
        if self.is_broken { Err("broken".into()) } else { Ok(()) }
    }

    fn drain(&mut self, map: BpfMapId, f: &mut OnValue<'_>) -> Result<(), String> {
        let done = self.for_each(map, f);
        self.maps.remove(&map);
        done
    }

    fn lookup(&self, map: BpfMapId, key: &[u8]) -> Option<Vec<u8>> {
        self.maps.get(&map)?.get(key)?.first().cloned()
    }

    fn update(&mut self, map: BpfMapId, key: &[u8], value: &[u8]) -> Result<(), UpdateRefusal> {
        let room = self.room;
        let elements = self.maps.entry(map).or_default();
        if elements.len() >= room && !elements.contains_key(key) {
            return Err(UpdateRefusal::Full);
        }
        elements.insert(key.to_vec(), vec![value.to_vec()]);
        Ok(())
    }

    fn add(&mut self, map: BpfMapId, key: &[u8], delta: i64) -> Result<(), UpdateRefusal> {
        let old = self.lookup(map, key).map_or(0, |it| i64::from_le_bytes(it.try_into().expect("a word")));
        self.update(map, key, &(old + delta).to_le_bytes())
    }

    fn delete(&mut self, map: BpfMapId, key: &[u8]) -> Result<(), String> {
        self.maps.entry(map).or_default().remove(key);
        Ok(())
    }

    fn clear(&mut self, map: BpfMapId) -> Result<(), String> {
        self.maps.remove(&map);
        if self.is_broken { Err("broken".into()) } else { Ok(()) }
    }
}

/// A run with one map, `@t`.
struct Run {
    store: Store,
    linux: Option<Memory>,
    tracer: Memory,
    names: Names,
}

impl Run {
    fn new(keys: &[Scalar], kind: TableKind, storage: Storage) -> Run {
        Run::of(&plan(keys, kind, storage), true)
    }

    fn of(plan: &Plan, has_linux: bool) -> Run {
        let memory = || Memory { room: 2, ..Memory::default() };
        let store = Store::new(plan, has_linux);
        Run { store, linux: has_linux.then(memory), tracer: memory(), names: Names::new(&[]) }
    }

    fn maps(&mut self) -> xputrace_store::StoreAccess<'_, &mut Memory, &mut Memory> {
        self.store.with(self.linux.as_mut(), &mut self.tracer, &mut self.names)
    }

    fn linux(&mut self) -> &mut Memory {
        self.linux.as_mut().expect("a run with Linux")
    }

    fn rows(&mut self) -> Vec<(Key, Cell)> {
        let mut rows = self.maps().snapshot(ID).rows;
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        rows
    }

    fn get(&mut self, key: i64) -> Option<Value> {
        self.maps().get(ID, &[Value::Int(key)])
    }
}

fn plan(keys: &[Scalar], kind: TableKind, storage: Storage) -> Plan {
    let part = |kind: &Scalar| KeyPart { kind: *kind, optional: false, unit: Unit::None };
    let def = TableDef {
        name: "@t".into(),
        keys: keys.iter().map(part).collect(),
        kind,
        unit: Unit::None,
        capacity: 2,
        evict: false,
        storage,
    };
    let mut plan = Plan::default();
    plan.tables.push(Arc::new(def));
    plan.image.maps = vec![spec(Home::Linux), spec(Home::Tracer)];
    plan
}

/// The same, with two generations in Linux.
fn two_generations(keys: &[Scalar], kind: TableKind, storage: Storage) -> Plan {
    let mut plan = plan(keys, kind, storage);
    plan.image.maps[LINUX].inner = Some(Box::new(spec(Home::Linux)));
    plan
}

fn spec(home: Home) -> MapSpec {
    let kind = MapKind::Hash;
    MapSpec { name: "t".into(), kind, key_size: 8, value_size: 8, max_entries: 2, flags: 0, home, inner: None }
}

fn words(words: &[i64]) -> Vec<u8> {
    words.iter().flat_map(|it| it.to_le_bytes()).collect()
}

fn row(key: i64, n: i64) -> (Key, Cell) {
    (vec![Value::Int(key)], Cell::Number(n))
}

#[test]
fn parts_of_cpus_engines_and_the_interpreter_are_one_table() {
    let mut run = Run::new(&[Scalar::Int], TableKind::Count, BOTH);
    run.linux().put(LINUX, &[7], &[&[1], &[20]]);
    run.tracer.put(TRACER, &[7], &[&[300]]);
    run.maps().aggregate(ID, &[Value::Int(7)], TableKind::Count, 1);
    run.maps().aggregate(ID, &[Value::Int(8)], TableKind::Count, 1);
    assert_eq!(run.rows(), [row(7, 322), row(8, 1)]);
    assert_eq!(run.rows(), [row(7, 322), row(8, 1)], "a read changes nothing");
    assert_eq!((run.get(7), run.get(9)), (Some(Value::Int(322)), None));
}

#[test]
fn a_clear_removes_what_the_last_read_has_seen() {
    let mut run = Run::of(&two_generations(&[Scalar::Int], TableKind::Count, BOTH), true);
    run.linux().put(LINUX, &[7], &[&[5]]);
    run.tracer.put(TRACER, &[7], &[&[6]]);
    assert_eq!(run.rows(), [row(7, 11)]);
    run.linux().put(LINUX, &[7], &[&[100]]);
    run.maps().clear(ID);
    assert_eq!(run.rows(), [row(7, 100)]);
}

#[test]
fn a_clear_of_what_nobody_read_removes_all() {
    let mut run = Run::of(&two_generations(&[Scalar::Int], TableKind::Count, BOTH), true);
    run.linux().put(LINUX, &[7], &[&[5]]);
    run.maps().clear(ID);
    assert_eq!(run.rows(), []);
}

#[test]
fn a_clear_reaches_every_part() {
    let mut run = Run::new(&[Scalar::Int], TableKind::Count, BOTH);
    run.linux().put(LINUX, &[7], &[&[5]]);
    run.tracer.put(TRACER, &[8], &[&[6]]);
    run.maps().aggregate(ID, &[Value::Int(9)], TableKind::Count, 1);
    run.maps().clear(ID);
    assert_eq!(run.rows(), []);
}

#[test]
fn an_element_of_a_histogram_goes_with_all_its_buckets() {
    let mut run = Run::new(&[Scalar::Int], TableKind::Hist { bits: 0 }, BOTH);
    for bucket in [1, 5] {
        run.linux().put(LINUX, &[7, bucket], &[&[1]]);
        run.tracer.put(TRACER, &[7, bucket], &[&[1]]);
    }
    run.linux().put(LINUX, &[8, 1], &[&[1]]);
    run.maps().remove(ID, &[Value::Int(7)]);
    assert_eq!(run.rows(), [(vec![Value::Int(8)], Cell::Buckets([(1, 1)].into()))]);
}

#[test]
fn the_only_element_of_an_aggregation_can_be_removed() {
    let mut run = Run::new(&[], TableKind::Count, BOTH);
    run.linux().put(LINUX, &[], &[&[5]]);
    run.tracer.put(TRACER, &[], &[&[6]]);
    assert_eq!(run.rows(), [(vec![], Cell::Number(11))]);
    run.maps().remove(ID, &[]);
    assert_eq!(run.rows(), []);
}

#[test]
fn a_plain_value_is_in_its_engine_alone() {
    for storage in [Storage::Linux { map: LINUX, from_tracer: true }, Storage::Tracer(TRACER), Storage::Interpreter] {
        let mut run = Run::new(&[Scalar::Int], TableKind::Plain(Scalar::Int), storage);
        run.maps().set(ID, &[Value::Int(1)], Value::Int(5)).unwrap();
        run.maps().add(ID, &[Value::Int(1)], -7).unwrap();
        run.maps().add(ID, &[Value::Int(2)], 3).unwrap();
        assert_eq!((run.get(1), run.get(2)), (Some(Value::Int(-2)), Some(Value::Int(3))));
        run.maps().set(ID, &[Value::Int(2)], Value::Missing).unwrap();
        assert_eq!((run.get(2), run.rows().len()), (None, 1));
        let in_engines = (run.linux().elements(LINUX), run.tracer.elements(TRACER));
        assert_eq!(in_engines, (usize::from(storage.linux().is_some()), usize::from(storage.tracer().is_some())));
    }
}

#[test]
fn what_a_full_map_refuses_is_counted() {
    for storage in [Storage::Linux { map: LINUX, from_tracer: false }, Storage::Tracer(TRACER), Storage::Interpreter] {
        let mut run = Run::new(&[Scalar::Int], TableKind::Plain(Scalar::Int), storage);
        for key in 0..5 {
            run.maps().set(ID, &[Value::Int(key)], Value::Int(key)).unwrap();
            run.maps().add(ID, &[Value::Int(key)], 1).unwrap();
        }
        assert_eq!((run.rows().len(), run.store.refused().collect::<Vec<_>>()), (2, vec![(ID, 6)]), "{storage:?}");
    }
}

#[test]
fn a_value_of_another_type_is_an_error() {
    let mut run = Run::new(&[Scalar::Int], TableKind::Plain(Scalar::Int), Storage::Tracer(TRACER));
    let text = Value::Str("text".into());
    assert_eq!(
        run.maps().set(ID, &[Value::Int(1)], text.clone()).unwrap_err(),
        "@t holds values or keys of another type"
    );
    assert_eq!(run.maps().set(ID, &[text], Value::Int(1)).unwrap_err(), "@t holds values or keys of another type");
    let mut run = Run::new(&[], TableKind::Plain(Scalar::Name), Storage::Tracer(TRACER));
    assert_eq!(run.maps().add(ID, &[], 1).unwrap_err(), "@t does not hold integers");
}

#[test]
fn an_assigned_sum_forgets_what_was_added() {
    let storage = Storage::Linux { map: LINUX, from_tracer: false };
    let mut run = Run::of(&two_generations(&[Scalar::Int], TableKind::Sum, storage), true);
    run.linux().put(LINUX, &[7], &[&[5]]);
    run.maps().set(ID, &[Value::Int(7)], Value::Int(1)).unwrap();
    run.maps().add(ID, &[Value::Int(7)], 2).unwrap();
    assert_eq!(run.rows(), [row(7, 3)]);
}

#[test]
fn a_replay_has_the_maps_of_linux_in_the_tracers_engine() {
    let mut run = Run::of(&plan(&[Scalar::Int], TableKind::Count, BOTH), false);
    run.tracer.put(LINUX, &[7], &[&[5]]);
    run.tracer.put(TRACER, &[7], &[&[6]]);
    assert_eq!(run.rows(), [row(7, 11)]);
    let storage = Storage::Linux { map: LINUX, from_tracer: false };
    let mut run = Run::of(&plan(&[Scalar::Int], TableKind::Plain(Scalar::Int), storage), false);
    run.maps().set(ID, &[Value::Int(7)], Value::Int(1)).unwrap();
    assert_eq!((run.get(7), run.tracer.elements(LINUX)), (Some(Value::Int(1)), 1));
}

fn stack(id: u32) -> StackKey {
    StackKey::LinuxUser { pid: 7, exec: 1, id }
}

fn stacks(run: &mut Run) -> BTreeSet<StackKey> {
    let mut found = BTreeSet::new();
    run.maps().for_each_stack(&mut |it| _ = found.insert(it)).unwrap();
    found
}

#[test]
fn stacks_are_found_in_every_part_and_finding_them_changes_nothing() {
    let mut plan = two_generations(&[Scalar::Int, Scalar::Stack], TableKind::Count, BOTH);
    let mut def = TableDef::clone(&plan.tables[0]);
    def.keys[1].optional = true;
    plan.tables[0] = Arc::new(def);
    let mut run = Run::of(&plan, true);
    let word = |id| stack(id).to_word() as i64;
    run.linux().put(LINUX, &[word(90), 1, word(1)], &[&[5]]);
    assert_eq!(run.rows().len(), 1, "what was read is in the own part");
    run.linux().put(LINUX, &[0, 1, word(2)], &[&[5]]);
    run.linux().put(LINUX, &[0, 0, word(91)], &[&[5]]);
    run.tracer.put(TRACER, &[0, 1, word(3)], &[&[5]]);
    assert_eq!(stacks(&mut run), [1, 2, 3].map(stack).into(), "integers and missing parts are no stacks");
    run.maps().clear(ID);
    assert_eq!(stacks(&mut run), [2, 3].map(stack).into(), "a clear removes what was read, and nothing else");
}

#[test]
fn plain_stacks_are_found_in_engines_and_in_the_interpreter() {
    for storage in [Storage::Linux { map: LINUX, from_tracer: false }, Storage::Tracer(TRACER), Storage::Interpreter] {
        let mut run = Run::new(&[Scalar::Int], TableKind::Plain(Scalar::Stack), storage);
        run.maps().set(ID, &[Value::Int(1)], Value::Stack(stack(4))).unwrap();
        assert_eq!(stacks(&mut run), [stack(4)].into(), "{storage:?}");
    }
}

#[test]
fn a_map_that_cannot_be_read_is_an_error_to_whoever_looks_for_stacks() {
    let storage = Storage::Linux { map: LINUX, from_tracer: false };
    let mut run = Run::new(&[Scalar::Stack], TableKind::Count, storage);
    run.linux().is_broken = true;
    assert_eq!(run.maps().for_each_stack(&mut |_| {}), Err("broken".into()));
}

#[test]
fn what_an_engine_cannot_do_is_said_once() {
    let mut run = Run::of(&two_generations(&[Scalar::Int], TableKind::Count, BOTH), true);
    run.linux().is_broken = true;
    run.rows();
    assert_eq!(run.store.take_failures(), ["cannot read @t: broken"]);
    assert_eq!(run.store.take_failures(), [""; 0]);
}
