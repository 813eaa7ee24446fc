//! BPF type format, as far as maps and functions need it.
//!
//! Source: Linux's Documentation/bpf/btf.rst, `include/uapi/linux/btf.h`.

use std::collections::HashMap;

pub(super) const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;
pub(super) const HEADER_BYTES: u32 = 24;

/// `BTF_KIND_*`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum BtfKind {
    Int = 1,
    Ptr = 2,
    Array = 3,
    Struct = 4,
    Func = 12,
    FuncProto = 13,
    Var = 14,
    Datasec = 15,
}

/// `BTF_INT_SIGNED`.
const SIGNED: u32 = 1;
/// `BTF_FUNC_STATIC`: the verifier checks argument types of global functions.
const STATIC: u32 = 0;
/// `BTF_VAR_GLOBAL_ALLOCATED`.
const GLOBAL: u32 = 1;

/// A type's number; 0 is `void`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TypeId(pub(super) u32);

pub(super) const VOID: TypeId = TypeId(0);

/// Types and strings being collected.
pub(super) struct Btf {
    types: Vec<u8>,
    n_types: u32,
    strings: Vec<u8>,
    offsets: HashMap<String, u32>,
}

impl Btf {
    pub(super) fn new() -> Self {
        let offsets = HashMap::from([(String::new(), 0)]);
        Btf { types: Vec::new(), n_types: 0, strings: vec![0], offsets }
    }

    /// Returns the offset of a string, cut at the first NUL.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        let text = text.split('\0').next().unwrap_or_default();
        if let Some(offset) = self.offsets.get(text) {
            return *offset;
        }
        let offset = self.strings.len() as u32;
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        self.offsets.insert(text.to_owned(), offset);
        offset
    }

    /// Adds a `struct btf_type` and the data that follows it.
    fn add(&mut self, name: &str, kind: BtfKind, count: u32, size_or_type: u32, rest: &[u32]) -> TypeId {
        let name = self.string(name);
        let info = (kind as u32) << 24 | count;
        words(&mut self.types, &[name, info, size_or_type]);
        words(&mut self.types, rest);
        self.n_types += 1;
        TypeId(self.n_types)
    }

    pub(super) fn int(&mut self, name: &str, bytes: u32, signed: bool) -> TypeId {
        let encoding = if signed { SIGNED << 24 } else { 0 };
        self.add(name, BtfKind::Int, 0, bytes, &[encoding | (bytes * 8)])
    }

    pub(super) fn pointer(&mut self, to: TypeId) -> TypeId {
        self.add("", BtfKind::Ptr, 0, to.0, &[])
    }

    pub(super) fn array(&mut self, of: TypeId, index: TypeId, n_elements: u32) -> TypeId {
        self.add("", BtfKind::Array, 0, 0, &[of.0, index.0, n_elements])
    }

    /// Adds an anonymous struct whose members are pointers, 8 bytes each, except an empty last one.
    pub(super) fn struct_of_pointers(&mut self, members: &[(&str, TypeId)], bytes: u32) -> TypeId {
        let mut rest = Vec::new();
        for (at, (name, id)) in members.iter().enumerate() {
            rest.extend([self.string(name), id.0, at as u32 * 64]);
        }
        self.add("", BtfKind::Struct, members.len() as u32, bytes, &rest)
    }

    /// Adds `int name(void *ctx)`.
    pub(super) fn function(&mut self, name: &str, result: TypeId, ctx: TypeId) -> TypeId {
        let parameter = self.string("ctx");
        let proto = self.add("", BtfKind::FuncProto, 1, result.0, &[parameter, ctx.0]);
        self.add(name, BtfKind::Func, STATIC, proto.0, &[])
    }

    pub(super) fn variable(&mut self, name: &str, of: TypeId) -> TypeId {
        self.add(name, BtfKind::Var, 0, of.0, &[GLOBAL])
    }

    /// Adds a section and its variables: (variable, offset, size).
    pub(super) fn section(&mut self, name: &str, bytes: u32, variables: &[(TypeId, u32, u32)]) {
        let rest: Vec<u32> = variables.iter().flat_map(|it| [it.0.0, it.1, it.2]).collect();
        self.add(name, BtfKind::Datasec, variables.len() as u32, bytes, &rest);
    }

    /// Returns the contents of `.BTF`.
    pub(super) fn finish(self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut out = header();
        words(&mut out, &[HEADER_BYTES, 0, types, types, strings]);
        out.extend(self.types);
        out.extend(self.strings);
        out
    }
}

/// Function and line information of a section's programs.
pub(super) struct SectionInfo {
    /// Offset of the section's name.
    pub(super) name: u32,
    /// (byte offset of the first instruction, function).
    pub(super) functions: Vec<(u32, TypeId)>,
    /// (byte offset, offset of the file's name, offset of the line's text, line and column).
    pub(super) lines: Vec<[u32; 4]>,
}

/// Returns the contents of `.BTF.ext`.
pub(super) fn ext(sections: &[SectionInfo]) -> Vec<u8> {
    let functions = info(8, sections, |it| it.functions.iter().flat_map(|(offset, id)| [*offset, id.0]).collect());
    let lines = info(16, sections, |it| it.lines.concat());
    let (n_functions, n_lines) = (functions.len() as u32, lines.len() as u32);
    let mut out = header();
    words(&mut out, &[HEADER_BYTES, 0, n_functions, n_functions, n_lines]);
    out.extend(functions);
    out.extend(lines);
    out
}

/// Returns a table of records grouped by section; empty if there are none.
fn info(record_bytes: u32, sections: &[SectionInfo], records: impl Fn(&SectionInfo) -> Vec<u32>) -> Vec<u8> {
    let mut out = Vec::new();
    for section in sections {
        let records = records(section);
        if records.is_empty() {
            continue;
        }
        if out.is_empty() {
            words(&mut out, &[record_bytes]);
        }
        words(&mut out, &[section.name, records.len() as u32 * 4 / record_bytes]);
        words(&mut out, &records);
    }
    out
}

fn header() -> Vec<u8> {
    let [m0, m1] = MAGIC.to_le_bytes();
    vec![m0, m1, VERSION, 0]
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    out.extend(words.iter().flat_map(|it| it.to_le_bytes()));
}
