//! `--set`: what maps and global variables begin with.

use crate::value::encode;
use crate::{ObjectError, ReadFile, maps};
use xputrace_bytecode::object::{Layout, ReadMap};
use xputrace_bytecode::{BpfMapId, MapKind, MapSpec};
use xputrace_model::object::Element;

/// The maps of an object, and what they begin with so far.
pub(crate) struct Setter<'a> {
    pub(crate) maps: &'a [ReadMap],
    pub(crate) specs: &'a [MapSpec],
    pub(crate) initial: Vec<Element>,
}

impl Setter<'_> {
    /// Applies one `--set`.
    pub(crate) fn set(&mut self, typed: &str, read: &ReadFile<'_>) -> Result<(), ObjectError> {
        let option = || format!("--set {typed}");
        self.apply(typed, read).map_err(|what| ObjectError::Option { option: option(), what })
    }

    fn apply(&mut self, typed: &str, read: &ReadFile<'_>) -> Result<(), String> {
        let form = "write MAP[KEY]=VALUE, MAP=@FILE or VARIABLE=VALUE";
        let (place, value) = typed.split_once('=').ok_or(form)?;
        if let Some((map, key)) = place.strip_suffix(']').and_then(|it| it.split_once('[')) {
            return self.element(map, key, value);
        }
        match value.strip_prefix('@') {
            Some(file) => {
                let bytes = read(file).map_err(|it| format!("cannot read {file}: {it}"))?;
                self.whole(place, &bytes)
            }
            None => self.variable(place, value),
        }
    }

    fn element(&mut self, map: &str, key: &str, value: &str) -> Result<(), String> {
        let at = self.settable(map)?;
        let map = &self.maps[at];
        let key = encode(&map.key, key)?;
        if self.specs[at].kind == MapKind::Array {
            let index = key.first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
            if index >= map.max_entries {
                return Err(format!("`{}` has {} entries, from 0", map.name, map.max_entries));
            }
        }
        let value = encode(&map.value, value)?;
        self.initial.push(Element { map: BpfMapId::at(at), key, value });
        Ok(())
    }

    /// Fills a map with a file's bytes: an array's values from entry 0 on, a hash's keys and values.
    fn whole(&mut self, map: &str, bytes: &[u8]) -> Result<(), String> {
        let at = self.settable(map)?;
        let (map, kind) = (&self.maps[at], self.specs[at].kind);
        let key_bytes = if kind == MapKind::Hash { map.key_bytes as usize } else { 0 };
        let size = key_bytes + map.value_bytes as usize;
        let n = bytes.len() / size;
        if !bytes.len().is_multiple_of(size) || n > map.max_entries as usize {
            return Err(format!(
                "the file has {} bytes; `{}` has at most {} elements of {size} bytes",
                bytes.len(),
                map.name,
                map.max_entries
            ));
        }
        for (index, element) in (0_u32..).zip(bytes.chunks_exact(size)) {
            let (key, value) = element.split_at(key_bytes);
            let key = if kind == MapKind::Hash { key.to_vec() } else { index.to_le_bytes().to_vec() };
            self.initial.push(Element { map: BpfMapId::at(at), key, value: value.to_vec() });
        }
        Ok(())
    }

    fn settable(&self, name: &str) -> Result<usize, String> {
        let at = maps::find(self.maps, name)?;
        match self.specs[at].kind {
            MapKind::Hash | MapKind::Array => Ok(at),
            _ => Err(format!("`{name}` is not filled before the run: only hashes and arrays are")),
        }
    }

    /// Changes a global variable.
    fn variable(&mut self, name: &str, value: &str) -> Result<(), String> {
        for (at, map) in self.maps.iter().enumerate().filter(|it| it.1.contents.is_some()) {
            let Layout::Struct { members, .. } = &map.value else { continue };
            let Some(member) = members.iter().find(|it| it.name == name) else { continue };
            let value = encode(&member.layout, value)?;
            let section = self.initial.iter_mut().find(|it| it.map == BpfMapId::at(at));
            let bytes = section.and_then(|it| it.value.get_mut(member.at as usize..)?.get_mut(..value.len()));
            bytes.ok_or("the variable is not within its section")?.copy_from_slice(&value);
            return Ok(());
        }
        Err(match maps::find(self.maps, name) {
            Ok(_) => format!("say which element: {name}[KEY]=VALUE, or {name}=@FILE for all of them"),
            Err(_) => format!("there is no global variable `{name}`"),
        })
    }
}
