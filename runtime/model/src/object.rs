//! What a run needs of a compiled object besides its programs: what its maps hold, and which of them are shown.

use crate::output::Output;
use crate::plan::{ProbeId, ProgramId};
use crate::text;
use std::sync::Arc;
use xputrace_bytecode::object::Layout;
use xputrace_bytecode::{BpfMapId, MapKind};

/// A compiled object in place of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// The file's name, as given.
    pub file: String,
    /// By their ids in the image.
    pub maps: Vec<ObjectMap>,
    /// What maps hold before the run.
    pub initial: Vec<Element>,
    /// The file itself, which libbpf loads, if it has programs that run in Linux.
    pub elf: Option<Arc<[u8]>>,
    /// Programs that have the words of a device event, as a script's handlers do. Others have no context.
    pub with_context: Vec<ProgramId>,
    /// What runs once when the run begins, in this order.
    pub launches: Vec<DirectLaunch>,
    /// Whether programs may end threads of kernels (helper 507).
    pub allows_exit: bool,
}

/// A program that is launched like a kernel, once, when the run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectLaunch {
    pub probe: ProbeId,
    pub program: ProgramId,
    /// Blocks, and threads in each.
    pub shape: LaunchShape,
}

/// How many threads run, as `x y z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchShape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
}

impl LaunchShape {
    /// A single thread.
    pub const ONE: LaunchShape = LaunchShape { grid: [1; 3], block: [1; 3] };
}

/// A map of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMap {
    pub name: String,
    pub kind: MapKind,
    /// The object's own number of its type.
    pub number: u32,
    pub key: Layout,
    pub value: Layout,
    pub max_entries: u32,
    pub home: ObjectHome,
    /// Whether it is a section of global variables.
    pub is_variables: bool,
    /// Whether it is shown: at the end, or as records arrive.
    pub is_shown: bool,
}

/// Where a map of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectHome {
    Linux,
    /// In Linux, and programs on the GPU use it too.
    Shared,
    Gpu,
}

/// An element of a map, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub map: BpfMapId,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// A value in memory, as its type says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Datum {
    Int(i128),
    Bool(bool),
    /// With as many digits as tell it from others of its size.
    Float(String),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Datum>),
    /// Names and values of its members.
    Struct(Vec<(String, Datum)>),
}

impl Datum {
    /// Reads a value; bytes that are missing count as zeros.
    pub fn decode(layout: &Layout, bytes: &[u8]) -> Datum {
        let part = |at: usize, n: u32| {
            let end = at.saturating_add(n as usize).min(bytes.len());
            bytes.get(at..end).unwrap_or_default()
        };
        match layout {
            Layout::Int { bytes: n @ 1..=16, is_signed } => Datum::Int(int(part(0, *n), *n, *is_signed)),
            Layout::Int { bytes: n, .. } | Layout::Bytes { bytes: n } => Datum::Bytes(part(0, *n).to_vec()),
            Layout::Bits { bytes: n, shift, n_bits, is_signed } => {
                Datum::Int(extended(int(part(0, *n), *n, false) >> shift, *n_bits, *is_signed))
            }
            Layout::Float { bytes: 4 } => {
                Datum::Float(format!("{:?}", f32::from_bits(int(part(0, 4), 4, false) as u32)))
            }
            Layout::Float { .. } => Datum::Float(format!("{:?}", f64::from_bits(int(part(0, 8), 8, false) as u64))),
            Layout::Bool => Datum::Bool(part(0, 1) != [0]),
            Layout::Text { bytes: n } => {
                let text = part(0, *n).split(|it| *it == 0).next().unwrap_or_default();
                Datum::Text(text::from_bytes(text))
            }
            Layout::Array { of, n } => {
                let size = of.bytes();
                Datum::Array((0..*n as usize).map(|at| Datum::decode(of, part(at * size as usize, size))).collect())
            }
            Layout::Struct { members, .. } => {
                let member = |it: &xputrace_bytecode::object::Field| {
                    (it.name.clone(), Datum::decode(&it.layout, part(it.at as usize, it.layout.bytes())))
                };
                Datum::Struct(members.iter().map(member).collect())
            }
        }
    }
}

/// Reads a little-endian number of at most 16 bytes.
fn int(bytes: &[u8], size: u32, is_signed: bool) -> i128 {
    let unsigned = bytes.iter().rev().fold(0_u128, |all, byte| all << 8 | u128::from(*byte));
    extended(unsigned as i128, size * 8, is_signed)
}

/// Returns the lowest bits of a number as one of their own: so many, at least 1.
fn extended(number: i128, n_bits: u32, is_signed: bool) -> i128 {
    let unused = 128 - n_bits;
    match is_signed {
        true => (number << unused) >> unused,
        false => ((number as u128) << unused >> unused) as i128,
    }
}

/// A map's contents, by type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    pub map: String,
    /// Keys in ascending order.
    pub rows: Vec<(Datum, Datum)>,
}

impl Object {
    /// Returns a map's contents: of `elements`, keys and values in bytes, those to be shown. Elements of arrays that are
    /// zeros are left out. A value for each CPU, one after the other, is an array.
    pub fn dump(&self, map: BpfMapId, elements: &[(Vec<u8>, Vec<u8>)]) -> Option<Dump> {
        let map = self.maps.get(map.index())?;
        let mut rows: Vec<(Datum, Datum)> = match map.is_variables {
            true => elements.iter().flat_map(|(_, value)| variables(&Datum::decode(&map.value, value))).collect(),
            false => {
                let is_shown = |value: &[u8]| !map.is_array() || value.iter().any(|it| *it != 0);
                let shown = elements.iter().filter(|(_, value)| is_shown(value));
                shown.map(|(key, value)| (map.read_key(key), map.read_value(value))).collect()
            }
        };
        rows.sort();
        Some(Dump { map: map.name.clone(), rows })
    }
}

impl ObjectMap {
    /// Whether it holds no elements: its records are read as they arrive.
    pub fn is_ring(&self) -> bool {
        matches!(self.kind, MapKind::EventRing | MapKind::Ringbuf | MapKind::PerfEventArray)
    }

    /// Whether it can be printed: Linux's maps of programs and of maps can't.
    pub fn is_readable(&self) -> bool {
        !matches!(self.kind, MapKind::Foreign | MapKind::ArrayOfMaps | MapKind::HashOfMaps)
    }

    /// Returns a record of this ring as it is shown, if it is.
    pub fn record(&self, data: &[u8]) -> Option<Output> {
        let record = || Output::Record { map: self.name.clone(), value: Datum::decode(&self.value, data) };
        self.is_shown.then(record)
    }

    fn is_array(&self) -> bool {
        matches!(self.kind, MapKind::Array | MapKind::PercpuArray | MapKind::PerThreadArray)
    }

    fn is_per_cpu(&self) -> bool {
        matches!(self.kind, MapKind::PercpuHash | MapKind::PercpuArray | MapKind::LruPercpuHash)
    }

    fn read_value(&self, value: &[u8]) -> Datum {
        match self.value.bytes() as usize {
            1.. if self.is_per_cpu() => Datum::Array(
                value.chunks(self.value.bytes() as usize).map(|it| Datum::decode(&self.value, it)).collect(),
            ),
            _ => Datum::decode(&self.value, value),
        }
    }

    fn read_key(&self, key: &[u8]) -> Datum {
        match self.kind {
            // The engine's keys: index and thread.
            MapKind::PerThreadArray => {
                let word = Layout::Int { bytes: 4, is_signed: false };
                Datum::decode(&Layout::Array { of: Box::new(word), n: 2 }, key)
            }
            _ => Datum::decode(&self.key, key),
        }
    }
}

/// Returns global variables as rows.
fn variables(all: &Datum) -> Vec<(Datum, Datum)> {
    match all {
        Datum::Struct(members) => {
            members.iter().map(|(name, value)| (Datum::Text(name.clone()), value.clone())).collect()
        }
        other => vec![(Datum::Int(0), other.clone())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_bytecode::object::Field;

    fn number(bytes: u32, is_signed: bool) -> Layout {
        Layout::Int { bytes, is_signed }
    }

    #[test]
    fn values_are_read_by_their_types() {
        let field = |name: &str, at, layout| Field { name: name.into(), at, layout };
        let members = vec![
            field("n", 0, number(2, true)),
            field("on", 2, Layout::Bool),
            field("name", 3, Layout::Text { bytes: 4 }),
            field("two", 8, Layout::Array { of: Box::new(number(4, false)), n: 2 }),
        ];
        let layout = Layout::Struct { name: "s".into(), bytes: 16, members };
        let bytes = [0xfe, 0xff, 1, b'a', b'b', 0, b'x', 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
        let member = |name: &str, it| (name.to_owned(), it);
        let expected = Datum::Struct(vec![
            member("n", Datum::Int(-2)),
            member("on", Datum::Bool(true)),
            member("name", Datum::Text("ab".into())),
            member("two", Datum::Array(vec![Datum::Int(1), Datum::Int(0xffff_ffff)])),
        ]);
        assert_eq!(Datum::decode(&layout, &bytes), expected);
        // A record may be shorter than its type.
        let Datum::Struct(short) = Datum::decode(&layout, &bytes[..9]) else { panic!() };
        assert_eq!(short[3].1, Datum::Array(vec![Datum::Int(1), Datum::Int(0)]));
    }

    #[test]
    fn bit_fields_and_floats_are_read() {
        let bits = |shift, n_bits, is_signed| Layout::Bits { bytes: 2, shift, n_bits, is_signed };
        let word = (5_u16 | 0x7e << 3 | 1 << 10).to_le_bytes();
        assert_eq!(Datum::decode(&bits(0, 3, false), &word), Datum::Int(5));
        assert_eq!(Datum::decode(&bits(3, 7, true), &word), Datum::Int(-2));
        assert_eq!(Datum::decode(&bits(10, 1, false), &word), Datum::Int(1));
        let float = |bytes: &[u8]| Datum::decode(&Layout::Float { bytes: bytes.len() as u32 }, bytes);
        assert_eq!(float(&0.1_f32.to_le_bytes()), Datum::Float("0.1".into()));
        assert_eq!(float(&1e300_f64.to_le_bytes()), Datum::Float("1e300".into()));
    }

    #[test]
    fn numbers_have_their_sign() {
        let read = |bytes: &[u8], is_signed| Datum::decode(&number(bytes.len() as u32, is_signed), bytes);
        assert_eq!(read(&[0xff; 8], false), Datum::Int(u64::MAX.into()));
        assert_eq!(read(&[0xff; 8], true), Datum::Int(-1));
        assert_eq!(read(&[0xff; 16], true), Datum::Int(-1));
        assert_eq!(read(&[0x80], true), Datum::Int(-128));
    }
}
