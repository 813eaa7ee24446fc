//! The maps of an object, by libbpf's and bpftime's numbers of their types.

use crate::error::{ObjectError, listed};
use crate::wishes::Wishes;
use xputrace_bytecode::image::{MMAPABLE, NO_PREALLOC, READ_ONLY};
use xputrace_bytecode::object::{Contents, Layout, ReadMap, is_map_type_of_gpu};
use xputrace_bytecode::{BpfMapId, Home, MapKind, MapSpec};
use xputrace_model::object::{Element, ObjectHome, ObjectMap};

/// Flags that change nothing here: how Linux allocates, and that pages can be mapped.
const IGNORED_FLAGS: u32 = NO_PREALLOC | MMAPABLE;

/// Where handlers of scripts count what they lose: in Linux, and on the GPU (`xputrace build`).
pub(crate) const LOSS_MAPS: [&str; 2] = ["losses_k", "losses_d"];

/// What programs use a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Users {
    pub(crate) in_linux: bool,
    pub(crate) on_gpu: bool,
}

/// Converts a map by what uses it.
pub(crate) fn spec(map: &ReadMap, users: Users) -> Result<MapSpec, ObjectError> {
    match users {
        Users { in_linux: true, on_gpu: false } => of_linux(map),
        // Nobody changes constants, so each side has its own.
        Users { in_linux: true, on_gpu: true } if !map.is_constant() => shared(map),
        _ => of_gpu(map),
    }
}

/// Converts a map that only programs in Linux use: libbpf creates it by its own definition.
fn of_linux(map: &ReadMap) -> Result<MapSpec, ObjectError> {
    let refused = |what| ObjectError::Map { map: map.name.clone(), what };
    let kind = match map.kind {
        // A trie's elements are read like those of a hash.
        1 | 11 | 1501 => MapKind::Hash,
        2 | 1503 | 1504 | 1513 => MapKind::Array,
        4 => MapKind::PerfEventArray,
        5 => MapKind::PercpuHash,
        6 => MapKind::PercpuArray,
        7 => MapKind::StackTrace,
        9 => MapKind::LruHash,
        10 => MapKind::LruPercpuHash,
        12 => MapKind::ArrayOfMaps,
        13 => MapKind::HashOfMaps,
        27 => MapKind::Ringbuf,
        number if is_map_type_of_gpu(number) => {
            return Err(refused(format!("programs in Linux can't use a map of type {}", map.kind)));
        }
        _ => MapKind::Foreign,
    };
    Ok(MapSpec { flags: map.flags, home: Home::Linux, ..like(map, kind) })
}

/// Converts a map of both sides, which is Linux's: the tracer's engine reads and changes it there.
fn shared(map: &ReadMap) -> Result<MapSpec, ObjectError> {
    let spec = of_gpu(map)?;
    match spec.kind {
        MapKind::Hash => Ok(MapSpec { flags: map.flags, home: Home::Linux, ..spec }),
        // So that a GPU can use it where it is.
        MapKind::Array => Ok(MapSpec { flags: map.flags | MMAPABLE, home: Home::Linux, ..spec }),
        _ => Err(ObjectError::Map {
            map: map.name.clone(),
            what: format!(
                "programs in Linux can't use a map of type {}. Those that both sides can: hashes (1, 1501) and arrays (2, \
                 1503, 1504, 1513)",
                map.kind
            ),
        }),
    }
}

/// Returns a map on the GPU of the definition's shape.
fn like(map: &ReadMap, kind: MapKind) -> MapSpec {
    MapSpec {
        name: map.name.clone(),
        kind,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.max_entries,
        flags: 0,
        home: Home::Gpu,
        inner: None,
    }
}

/// Returns the kind of a map that GPU programs can use. The error is a sentence.
fn kind(number: u32) -> Result<MapKind, String> {
    Ok(match number {
        1 | 1501 => MapKind::Hash,
        2 | 1503 | 1504 | 1513 => MapKind::Array,
        1502 | 1512 => MapKind::PerThreadArray,
        1527 => MapKind::EventRing,
        other => {
            return Err(format!(
                "maps of type {other} are not supported; those that are: hashes (1, 1501), arrays (2, 1503, 1504, 1513), \
                 arrays per thread of the GPU (1502, 1512), and rings of the GPU (1527)"
            ));
        }
    })
}

/// Converts a map that programs on the GPU use.
fn of_gpu(map: &ReadMap) -> Result<MapSpec, ObjectError> {
    let refused = |what| ObjectError::Map { map: map.name.clone(), what };
    if let Some(what) = &map.oddity {
        return Err(refused(what.clone()));
    }
    let kind = kind(map.kind).map_err(refused)?;
    let flags = map.flags & !IGNORED_FLAGS;
    if flags != 0 {
        return Err(refused(format!("its flags {flags:#x} are not supported")));
    }
    if map.max_entries == 0 || map.value_bytes == 0 {
        return Err(refused("it needs `max_entries` and a value".into()));
    }
    if kind != MapKind::Hash && map.key_bytes != 4 {
        return Err(refused(format!("the key of its type has 4 bytes, and not {}", map.key_bytes)));
    }
    Ok(MapSpec { flags: if map.is_constant() { READ_ONLY } else { 0 }, ..like(map, kind) })
}

/// Returns what the user is shown of each map. Without wishes, all are shown but constants and what isn't readable.
pub(crate) fn shown(
    contents: &Contents,
    specs: &[MapSpec],
    users: &[Users],
    wishes: &Wishes,
) -> Result<Vec<ObjectMap>, ObjectError> {
    let maps = &contents.maps;
    let shows_all = wishes.dump.is_empty() && wishes.poll.is_empty();
    let each = maps.iter().zip(specs).zip(users);
    // Losses are among the run's.
    let is_of_losses = |map: &ReadMap| !contents.losses.is_empty() && LOSS_MAPS.contains(&map.name.as_str());
    let mut all: Vec<ObjectMap> =
        each.map(|((map, spec), users)| object_map(map, spec, *users, shows_all && !is_of_losses(map))).collect();
    for name in &wishes.dump {
        let refused = |what| ObjectError::Option { option: format!("--dump {name}"), what };
        let it = &mut all[find(maps, name).map_err(refused)?];
        if it.is_ring() {
            return Err(refused(format!("`{name}` is a ring: read it with --poll {name}")));
        } else if !it.is_readable() {
            return Err(refused(format!("maps of type {} have no values to print", it.number)));
        }
        it.is_shown = true;
    }
    for wish in &wishes.poll {
        let refused = |what| ObjectError::Option { option: format!("--poll {wish}"), what };
        let (name, of) = wish.split_once('=').map_or((wish.as_str(), None), |(name, of)| (name, Some(of)));
        let it = &mut all[find(maps, name).map_err(refused)?];
        if !it.is_ring() {
            return Err(refused(format!("`{name}` is no ring: print it with --dump {name}")));
        }
        if let Some(of) = of {
            it.value = record_type(contents, of).map_err(refused)?;
        }
        it.is_shown = true;
    }
    Ok(all)
}

fn object_map(map: &ReadMap, spec: &MapSpec, users: Users, shows_all: bool) -> ObjectMap {
    let kind = spec.kind;
    let home = match spec.home {
        Home::Linux if users.on_gpu => ObjectHome::Shared,
        Home::Linux => ObjectHome::Linux,
        Home::Gpu | Home::Tracer => ObjectHome::Gpu,
    };
    let value = match kind {
        // Their value's type is of no record.
        MapKind::Ringbuf | MapKind::PerfEventArray => Layout::Bytes { bytes: u32::MAX },
        MapKind::StackTrace => Layout::Array { of: Box::new(Layout::of_bytes(8)), n: map.value_bytes / 8 },
        _ => map.value.clone(),
    };
    let it = ObjectMap {
        name: map.name.clone(),
        kind,
        number: map.kind,
        key: map.key.clone(),
        value,
        max_entries: map.max_entries,
        home,
        is_variables: map.contents.is_some(),
        is_shown: false,
    };
    ObjectMap { is_shown: shows_all && !map.is_constant() && it.is_readable() && kind != MapKind::StackTrace, ..it }
}

/// Returns the type of a ring's records, by its name in C. The error is a sentence.
fn record_type(contents: &Contents, name: &str) -> Result<Layout, String> {
    let name = name.strip_prefix("struct ").unwrap_or(name);
    if name.is_empty() {
        return Err("name the struct of its records: --poll RING=STRUCT".into());
    }
    contents.types.layout_of_struct(name).ok_or_else(|| {
        format!(
            "the object's types (`.BTF`) have no `struct {name}`. clang writes only types of global variables, maps and \
             functions: declare `const struct {name} *unused __attribute__((unused));`"
        )
    })
}

/// Returns the position of a map. The error is a sentence.
pub(crate) fn find(maps: &[ReadMap], name: &str) -> Result<usize, String> {
    let found = maps.iter().position(|it| it.name == name);
    found.ok_or_else(|| {
        format!("there is no map `{name}`; its maps: {}", listed(maps.iter().map(|it| it.name.as_str())))
    })
}

/// Returns what the sections of global variables begin with.
pub(crate) fn variables(maps: &[ReadMap]) -> Vec<Element> {
    let element = |(at, it): (usize, &ReadMap)| {
        let value = it.contents.clone()?;
        Some(Element { map: BpfMapId::at(at), key: vec![0; 4], value })
    };
    maps.iter().enumerate().filter_map(element).collect()
}
