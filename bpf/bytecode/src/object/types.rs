//! Reads the types of an object: BTF.
//!
//! Source: Linux's Documentation/bpf/btf.rst, `include/uapi/linux/btf.h`.

use super::btf::{HEADER_BYTES, MAGIC};

/// A type's number; 0 is `void`.
pub type TypeId = u32;

/// Types may be nested this deep; no C program does so.
const MOST_NESTED: usize = 32;
/// Members and elements of one layout, all levels together.
const MOST_PARTS: usize = 4096;

/// A type, as far as maps and their values need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Int {
        bytes: u32,
        encoding: u32,
    },
    Pointer(TypeId),
    Array {
        of: TypeId,
        n: u32,
    },
    Struct {
        name: String,
        bytes: u32,
        members: Vec<Member>,
    },
    /// Members of a union overlap; this is the first one, if any.
    Union {
        bytes: u32,
        first: Option<Member>,
    },
    Enum {
        bytes: u32,
        is_signed: bool,
    },
    Float {
        bytes: u32,
    },
    /// `typedef`, `const` and others that only rename or qualify.
    Alias(TypeId),
    Variable {
        name: String,
        of: TypeId,
    },
    Section {
        name: String,
        variables: Vec<TypeId>,
    },
    /// Functions, declarations without a body, tags.
    Other,
}

/// A member of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) of: TypeId,
    bit: u32,
    /// 0 unless it is a bit field.
    n_bits: u32,
}

/// The types of an object.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// By number, less one.
    list: Vec<Type>,
    /// Texts that end with a NUL, by their offset.
    strings: Vec<u8>,
}

/// How a value lies in memory: little endian, offsets and sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    Int {
        bytes: u32,
        is_signed: bool,
    },
    Bool,
    /// IEEE 754, of 4 or 8 bytes.
    Float {
        bytes: u32,
    },
    /// A bit field, in the bytes that it touches: so many bits, from `shift` on.
    Bits {
        bytes: u32,
        shift: u32,
        n_bits: u32,
        is_signed: bool,
    },
    /// Text, if it is printable: `char` of a size.
    Text {
        bytes: u32,
    },
    /// Of a union, only the first member is here.
    Struct {
        name: String,
        bytes: u32,
        members: Vec<Field>,
    },
    Array {
        of: Box<Layout>,
        n: u32,
    },
    /// Anything else, such as `long double`.
    Bytes {
        bytes: u32,
    },
}

/// A member of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: String,
    /// Bytes from the start of the struct.
    pub at: u32,
    pub layout: Layout,
}

impl Layout {
    /// Returns the layout of a value whose type is unknown: a number where it has the size of one.
    pub fn of_bytes(bytes: u32) -> Layout {
        match bytes {
            1 | 2 | 4 | 8 => Layout::Int { bytes, is_signed: false },
            _ => Layout::Bytes { bytes },
        }
    }

    /// Returns its size.
    pub fn bytes(&self) -> u32 {
        match self {
            Layout::Bool => 1,
            Layout::Int { bytes, .. }
            | Layout::Float { bytes }
            | Layout::Bits { bytes, .. }
            | Layout::Text { bytes }
            | Layout::Struct { bytes, .. }
            | Layout::Bytes { bytes } => *bytes,
            Layout::Array { of, n } => of.bytes().saturating_mul(*n),
        }
    }
}

const SIGNED: u32 = 1;
const CHAR: u32 = 2;
const BOOL: u32 = 4;

/// Whether an integer of this size is one that C has: the bytes are untrusted.
const fn is_integer(bytes: u32) -> bool {
    matches!(bytes, 1 | 2 | 4 | 8)
}

impl Types {
    /// Reads the contents of `.BTF`.
    ///
    /// # Errors
    /// They are cut off or of an unknown kind. The error is a sentence without the object's name.
    pub(super) fn parse(data: &[u8]) -> Result<Types, String> {
        let mut header = BtfWords { data };
        let magic = header.word()?;
        if magic & 0xffff != u32::from(MAGIC) {
            return Err("`.BTF` does not begin as BTF does".into());
        }
        let header_bytes = header.word()?.max(HEADER_BYTES);
        let [types_at, types_bytes, strings_at, strings_bytes] = header.words()?;
        let part = |at: u32, bytes: u32| {
            let start = header_bytes as usize + at as usize;
            data.get(start..start + bytes as usize).ok_or_else(|| "`.BTF` is cut off".to_owned())
        };
        let (types, strings) = (part(types_at, types_bytes)?, Strings(part(strings_at, strings_bytes)?));
        let mut words = BtfWords { data: types };
        let mut list = Vec::new();
        while !words.data.is_empty() {
            list.push(words.read_type(&strings)?);
        }
        Ok(Types { list, strings: strings.0.to_vec() })
    }

    /// Returns a text, also one of `.BTF.ext`.
    pub(super) fn string(&self, at: u32) -> Result<String, String> {
        Strings(&self.strings).get(at)
    }

    pub(super) fn get(&self, id: TypeId) -> Option<&Type> {
        self.list.get((id as usize).checked_sub(1)?)
    }

    /// Returns a type behind its names and qualifiers.
    pub(super) fn plain(&self, mut id: TypeId) -> Option<&Type> {
        for _ in 0..MOST_NESTED {
            match self.get(id)? {
                Type::Alias(of) => id = *of,
                found => return Some(found),
            }
        }
        None
    }

    /// Returns what a pointer points to.
    pub(super) fn pointed(&self, id: TypeId) -> Option<TypeId> {
        match self.plain(id)? {
            Type::Pointer(to) => Some(*to),
            _ => None,
        }
    }

    /// Returns the variables of a section: name and type.
    pub(super) fn section<'a>(&'a self, wanted: &str) -> Vec<(&'a str, TypeId)> {
        let variables = self.list.iter().find_map(|it| match it {
            Type::Section { name, variables } if name == wanted => Some(variables.as_slice()),
            _ => None,
        });
        let variable = |id: &TypeId| match self.get(*id)? {
            Type::Variable { name, of } => Some((name.as_str(), *of)),
            _ => None,
        };
        variables.unwrap_or_default().iter().filter_map(variable).collect()
    }

    /// Returns how a struct of this name lies in memory; `None` if there is none whose parts are known.
    pub fn layout_of_struct(&self, wanted: &str) -> Option<Layout> {
        let is_it = |it: &Type| matches!(it, Type::Struct { name, .. } if name == wanted);
        self.layout(self.list.iter().position(is_it)? as TypeId + 1)
    }

    /// Returns how a value of this type lies in memory; `None` if its size is unknown or it has too many parts.
    pub fn layout(&self, id: TypeId) -> Option<Layout> {
        self.part(id, 0, &mut 0)
    }

    fn part(&self, id: TypeId, depth: usize, n_parts: &mut usize) -> Option<Layout> {
        *n_parts += 1;
        if depth > MOST_NESTED || *n_parts > MOST_PARTS {
            return None;
        }
        Some(match self.plain(id)? {
            Type::Int { bytes: 1, encoding } if encoding & BOOL != 0 => Layout::Bool,
            Type::Int { bytes, encoding } if is_integer(*bytes) => {
                Layout::Int { bytes: *bytes, is_signed: encoding & SIGNED != 0 }
            }
            Type::Enum { bytes, is_signed } if is_integer(*bytes) => {
                Layout::Int { bytes: *bytes, is_signed: *is_signed }
            }
            Type::Int { bytes, .. } | Type::Enum { bytes, .. } => Layout::Bytes { bytes: *bytes },
            Type::Pointer(_) => Layout::Int { bytes: 8, is_signed: false },
            Type::Float { bytes: bytes @ (4 | 8) } => Layout::Float { bytes: *bytes },
            Type::Float { bytes } => Layout::Bytes { bytes: *bytes },
            Type::Union { bytes, first } => {
                let members = first.iter().map(|it| self.fields(it, *bytes, depth, n_parts));
                let members = members.collect::<Option<Vec<_>>>()?.concat();
                Layout::Struct { name: String::new(), bytes: *bytes, members }
            }
            Type::Array { of, n } if self.is_char(*of) => Layout::Text { bytes: *n },
            Type::Array { of, n } => {
                let of = Box::new(self.part(*of, depth + 1, n_parts)?);
                // Nothing, any number of times: there would be no end to it.
                (of.bytes() > 0).then_some(Layout::Array { of, n: *n })?
            }
            Type::Struct { name, bytes, members } => {
                let fields = members.iter().map(|it| self.fields(it, *bytes, depth, n_parts));
                let members = fields.collect::<Option<Vec<_>>>()?.concat();
                Layout::Struct { name: name.clone(), bytes: *bytes, members }
            }
            Type::Alias(_) | Type::Variable { .. } | Type::Section { .. } | Type::Other => return None,
        })
    }

    /// Returns a member of a struct of that size; the members of one that has no name are the struct's own, as in C.
    fn fields(&self, member: &Member, bytes: u32, depth: usize, n_parts: &mut usize) -> Option<Vec<Field>> {
        let layout = match member.n_bits {
            0 => self.part(member.of, depth + 1, n_parts)?,
            n_bits => self.bits(member.of, member.bit % 8, n_bits)?,
        };
        let at = member.bit / 8;
        at.checked_add(layout.bytes()).filter(|end| *end <= bytes)?;
        Some(match layout {
            Layout::Struct { members, .. } if member.name.is_empty() => {
                members.into_iter().map(|it| Field { at: at + it.at, ..it }).collect()
            }
            layout => vec![Field { name: member.name.clone(), at, layout }],
        })
    }

    /// Returns a bit field of this type.
    fn bits(&self, of: TypeId, shift: u32, n_bits: u32) -> Option<Layout> {
        let is_signed = match self.plain(of)? {
            Type::Int { encoding, .. } => encoding & SIGNED != 0,
            Type::Enum { is_signed, .. } => *is_signed,
            _ => return None,
        };
        (n_bits <= 64).then(|| Layout::Bits { bytes: (shift + n_bits).div_ceil(8), shift, n_bits, is_signed })
    }

    fn is_char(&self, id: TypeId) -> bool {
        // Clang marks no `char` as such: it is the 1-byte integer of that name, which is signed.
        matches!(self.plain(id), Some(Type::Int { bytes: 1, encoding }) if encoding & (SIGNED | CHAR) != 0)
    }
}

/// The string section: texts that end with a NUL, by their offset.
struct Strings<'a>(&'a [u8]);

impl Strings<'_> {
    fn get(&self, at: u32) -> Result<String, String> {
        let text = self.0.get(at as usize..).and_then(|it| it.split(|byte| *byte == 0).next());
        text.map(|it| String::from_utf8_lossy(it).into_owned()).ok_or_else(|| "`.BTF` names no string".into())
    }
}

/// Little-endian words, read one after the other.
pub(super) struct BtfWords<'a> {
    pub(super) data: &'a [u8],
}

impl BtfWords<'_> {
    fn word(&mut self) -> Result<u32, String> {
        let (word, rest) = self.data.split_first_chunk().ok_or("`.BTF` is cut off")?;
        self.data = rest;
        Ok(u32::from_le_bytes(*word))
    }

    pub(super) fn words<const N: usize>(&mut self) -> Result<[u32; N], String> {
        let mut all = [0; N];
        for word in &mut all {
            *word = self.word()?;
        }
        Ok(all)
    }

    pub(super) fn skip(&mut self, n_words: u32) -> Result<(), String> {
        self.data = self.data.get(n_words as usize * 4..).ok_or("`.BTF` is cut off")?;
        Ok(())
    }

    /// Reads a `struct btf_type` and the data that follows it.
    fn read_type(&mut self, strings: &Strings<'_>) -> Result<Type, String> {
        let (name, info, size_or_type) = (strings.get(self.word()?)?, self.word()?, self.word()?);
        let (count, kind, flag) = (info & 0xffff, info >> 24 & 0x1f, info >> 31 != 0);
        Ok(match kind {
            1 => Type::Int { bytes: size_or_type, encoding: self.word()? >> 24 & 0xf },
            2 => Type::Pointer(size_or_type),
            3 => {
                let [of, _index, n] = self.words()?;
                Type::Array { of, n }
            }
            4 => {
                let members = (0..count).map(|_| self.member(strings, flag)).collect::<Result<_, _>>()?;
                Type::Struct { name, bytes: size_or_type, members }
            }
            5 => {
                let first = (count > 0).then(|| self.member(strings, flag)).transpose()?;
                self.skip(count.saturating_sub(1) * 3)?;
                Type::Union { bytes: size_or_type, first }
            }
            6 => {
                self.skip(count * 2)?;
                Type::Enum { bytes: size_or_type, is_signed: flag }
            }
            8..=11 | 18 => Type::Alias(size_or_type),
            7 | 12 => Type::Other,
            13 => {
                self.skip(count * 2)?;
                Type::Other
            }
            14 => {
                self.skip(1)?;
                Type::Variable { name, of: size_or_type }
            }
            15 => {
                let mut variable = || {
                    let of = self.word()?;
                    self.skip(2)?;
                    Ok(of)
                };
                let variables = (0..count).map(|_| variable()).collect::<Result<_, String>>()?;
                Type::Section { name, variables }
            }
            16 => Type::Float { bytes: size_or_type },
            17 => {
                self.skip(1)?;
                Type::Other
            }
            19 => {
                self.skip(count * 3)?;
                Type::Enum { bytes: size_or_type, is_signed: flag }
            }
            kind => return Err(format!("`.BTF` has a type of kind {kind}, which is unknown here")),
        })
    }

    fn member(&mut self, strings: &Strings<'_>, has_bits: bool) -> Result<Member, String> {
        let (name, of, at) = (strings.get(self.word()?)?, self.word()?, self.word()?);
        let (bit, n_bits) = if has_bits { (at & 0xff_ffff, at >> 24) } else { (at, 0) };
        Ok(Member { name, of, bit, n_bits })
    }
}
