//! `--set`: what maps and global variables begin with.

use crate::error::ObjectError;
use crate::maps;
use crate::value::encode;
use crate::wishes::ReadFile;
use xputrace_bytecode::object::{Layout, ReadMap};
use xputrace_bytecode::{BpfMapId, MapKind, MapSpec};
use xputrace_model::object::Element;

/// The maps of an object, and what they begin with so far.
pub(crate) struct Setter<'a> {
    pub(crate) maps: &'a [ReadMap],
    pub(crate) specs: &'a [MapSpec],
    pub(crate) initial: Vec<Element>,
}

/// A map that a file fills.
struct Fill {
    at: usize,
    is_hash: bool,
    /// Bytes of a key in the file: 0 for arrays.
    key_bytes: usize,
    /// Bytes of an element in the file.
    size: usize,
    /// Elements that fit.
    most: u32,
}

impl Fill {
    fn most_bytes(&self) -> u64 {
        self.size as u64 * u64::from(self.most)
    }
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
                let fill = self.fill(place)?;
                // A byte more tells that there is more.
                let bytes = read(file, fill.most_bytes() + 1).map_err(|it| format!("cannot read {file}: {it}"))?;
                self.whole(&fill, &bytes)
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

    /// Returns what a file is to fill.
    fn fill(&self, map: &str) -> Result<Fill, String> {
        let at = self.settable(map)?;
        let is_hash = self.specs[at].kind == MapKind::Hash;
        let map = &self.maps[at];
        let key_bytes = if is_hash { map.key_bytes as usize } else { 0 };
        Ok(Fill { at, is_hash, key_bytes, size: key_bytes + map.value_bytes as usize, most: map.max_entries })
    }

    /// Fills a map with a file's bytes: an array's values from entry 0 on, a hash's keys and values.
    fn whole(&mut self, fill: &Fill, bytes: &[u8]) -> Result<(), String> {
        let Fill { at, is_hash, key_bytes, size, most } = *fill;
        if !bytes.len().is_multiple_of(size) || bytes.len() as u64 > fill.most_bytes() {
            let more = if bytes.len() as u64 > fill.most_bytes() { "more than " } else { "" };
            return Err(format!(
                "the file has {more}{} bytes; `{}` has at most {most} elements of {size} bytes",
                fill.most_bytes().min(bytes.len() as u64),
                self.maps[at].name,
            ));
        }
        for (index, element) in (0_u32..).zip(bytes.chunks_exact(size)) {
            let (key, value) = element.split_at(key_bytes);
            let key = if is_hash { key.to_vec() } else { index.to_le_bytes().to_vec() };
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
