//! The maps of an object, by libbpf's and bpftime's numbers of their types.

use crate::{ObjectError, Wishes, listed};
use xputrace_bytecode::image::READ_ONLY;
use xputrace_bytecode::object::ReadMap;
use xputrace_bytecode::{BpfMapId, Home, MapKind, MapSpec};
use xputrace_model::object::{Element, ObjectMap};

/// Flags that change nothing here: how Linux allocates, and that pages can be mapped.
const IGNORED_FLAGS: u32 = xputrace_bytecode::image::NO_PREALLOC | xputrace_bytecode::image::MMAPABLE;

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

/// Converts a map.
pub(crate) fn spec(map: &ReadMap) -> Result<MapSpec, ObjectError> {
    let refused = |what| ObjectError::Map { map: map.name.clone(), what };
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
    Ok(MapSpec {
        name: map.name.clone(),
        kind,
        key_size: map.key_bytes,
        value_size: map.value_bytes,
        max_entries: map.max_entries,
        flags: if map.is_constant() { READ_ONLY } else { 0 },
        home: Home::Gpu,
        inner: None,
    })
}

/// Returns what the user is shown of each map. Without wishes, all but constants are shown.
pub(crate) fn shown(maps: &[ReadMap], specs: &[MapSpec], wishes: &Wishes) -> Result<Vec<ObjectMap>, ObjectError> {
    let mut all: Vec<ObjectMap> = maps
        .iter()
        .zip(specs)
        .map(|(map, spec)| ObjectMap {
            name: map.name.clone(),
            kind: spec.kind,
            number: map.kind,
            key: map.key.clone(),
            value: map.value.clone(),
            is_variables: map.contents.is_some(),
            is_shown: wishes.dump.is_empty() && wishes.poll.is_empty() && !map.is_constant(),
        })
        .collect();
    for (option, names, wants_ring) in [("--dump", &wishes.dump, false), ("--poll", &wishes.poll, true)] {
        for name in names {
            let refused = |what| ObjectError::Option { option: format!("{option} {name}"), what };
            let at = find(maps, name).map_err(refused)?;
            match (wants_ring, all[at].kind == MapKind::EventRing) {
                (true, false) => return Err(refused(format!("`{name}` is no ring: print it with --dump {name}"))),
                (false, true) => return Err(refused(format!("`{name}` is a ring: read it with --poll {name}"))),
                _ => all[at].is_shown = true,
            }
        }
    }
    Ok(all)
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
