//! Lookups in the type information of the running Linux kernel.
//!
//! Only what is needed: a function by name; a structure by name, then a member by name, including
//! anonymous structures and unions; an integer type by name. Source: `Documentation/bpf/btf.rst`.

const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const KIND_INT: u32 = 1;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_CONST: u32 = 10;
const KIND_FUNC: u32 = 12;

/// Returns what `look_up` finds in the type information of the running Linux kernel; `None` also if
/// there is none.
pub(crate) fn with<R>(look_up: impl FnOnce(&Btf<'_>) -> Option<R>) -> Option<R> {
    let bytes = std::fs::read(VMLINUX).ok()?;
    look_up(&Btf::parse(&bytes)?)
}

/// Says why [`with`] found nothing.
pub(crate) fn why_missing() -> String {
    match std::fs::read(VMLINUX) {
        Err(error) => format!("cannot read Linux's type information, {VMLINUX}: {error}"),
        Ok(_) => format!("Linux's type information, {VMLINUX}, does not describe what is needed"),
    }
}

/// An integer type of C's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Integer {
    /// In bytes.
    pub(crate) size: u32,
    pub(crate) signed: bool,
}

/// Type information.
pub(crate) struct Btf<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type; entry 0 is type 1.
    types: Vec<usize>,
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let word = |at| u32_at(bytes, at).map(|it| it as usize);
        if bytes.first_chunk().map(|it| u16::from_le_bytes(*it)) != Some(MAGIC) {
            return None;
        }
        let header = word(4)?;
        let (types_at, types_len) = (header.checked_add(word(8)?)?, word(12)?);
        let strings_at = header.checked_add(word(16)?)?;
        let strings = bytes.get(strings_at..strings_at.checked_add(word(20)?)?)?;
        let end = types_at.checked_add(types_len).filter(|it| *it <= bytes.len())?;
        let mut btf = Btf { bytes, strings, types: Vec::new() };
        let mut at = types_at;
        while at < end {
            btf.types.push(at);
            at += btf.len(at)?;
        }
        Some(btf)
    }

    /// Returns the byte offset of a structure's member.
    pub(crate) fn offset(&self, structure: &str, member: &str) -> Option<u32> {
        let at = self.types[self.position(KIND_STRUCT, structure)?];
        self.member(at, member.as_bytes(), 0)
    }

    /// Returns the type id of a function.
    pub(crate) fn function(&self, name: &str) -> Option<u32> {
        Some(self.position(KIND_FUNC, name)? as u32 + 1)
    }

    /// Returns an integer or enumeration type by its name in C, also one that another names (`pid_t`).
    pub(crate) fn integer(&self, name: &str) -> Option<Integer> {
        const SIGNED: u32 = 1 << 24;
        const MOST_NAMES: usize = 16;
        let name = name.trim_start_matches("const ");
        let mut at = match (name.strip_prefix("enum "), name) {
            (Some(name), _) => self.position(KIND_ENUM, name)?,
            (None, "unsigned") => self.position(KIND_INT, "unsigned int")?,
            (None, name) => self.position(KIND_INT, name).or_else(|| self.position(KIND_TYPEDEF, name))?,
        };
        // Bounded, against descriptions that contain themselves.
        for _ in 0..MOST_NAMES {
            let here = *self.types.get(at)?;
            let word = u32_at(self.bytes, here + 8)?;
            match self.kind(here)? {
                KIND_INT => {
                    return Some(Integer { size: word, signed: u32_at(self.bytes, here + 12)? & SIGNED != 0 });
                }
                KIND_ENUM => return Some(Integer { size: word, signed: self.info(here)? >> 31 != 0 }),
                KIND_TYPEDEF | KIND_CONST => at = (word as usize).checked_sub(1)?,
                _ => return None,
            }
        }
        None
    }

    fn position(&self, kind: u32, name: &str) -> Option<usize> {
        let named = |at: &usize| self.kind(*at) == Some(kind) && self.name(*at) == Some(name.as_bytes());
        self.types.iter().position(named)
    }

    /// Returns the size of a type's description.
    fn len(&self, at: usize) -> Option<usize> {
        let count = self.info(at)? as usize & 0xffff;
        let extra = match self.kind(at)? {
            1 | 14 | 17 => 4,              // INT, VAR, DECL_TAG
            3 => 12,                       // ARRAY
            4 | 5 | 15 | 19 => 12 * count, // STRUCT, UNION, DATASEC, ENUM64
            6 | 13 => 8 * count,           // ENUM, FUNC_PROTO
            2 | 7..=12 | 16 | 18 => 0,
            _ => return None,
        };
        Some(12 + extra)
    }

    fn info(&self, at: usize) -> Option<u32> {
        u32_at(self.bytes, at + 4)
    }

    fn kind(&self, at: usize) -> Option<u32> {
        Some(self.info(at)? >> 24 & 0x1f)
    }

    fn name(&self, at: usize) -> Option<&'a [u8]> {
        self.text(u32_at(self.bytes, at)?)
    }

    fn text(&self, offset: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(offset as usize..)?;
        rest.get(..rest.iter().position(|it| *it == 0)?)
    }

    /// `depth` guards against descriptions that contain themselves.
    fn member(&self, at: usize, wanted: &[u8], depth: u32) -> Option<u32> {
        const DEEPEST: u32 = 16;
        let info = self.info(at)?;
        if depth > DEEPEST || !matches!(self.kind(at)?, KIND_STRUCT | KIND_UNION) {
            return None;
        }
        let has_bitfields = info >> 31 != 0;
        (0..info as usize & 0xffff).find_map(|i| {
            let member = at + 12 + 12 * i;
            let name = self.text(u32_at(self.bytes, member)?)?;
            let offset = u32_at(self.bytes, member + 8)?;
            let bits = if has_bitfields { offset & 0xff_ffff } else { offset };
            if name == wanted {
                return Some(bits / 8);
            }
            let kind = u32_at(self.bytes, member + 4)? as usize;
            let inner = self.types.get(kind.checked_sub(1)?).filter(|_| name.is_empty())?;
            Some(self.member(*inner, wanted, depth + 1)? + bits / 8)
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `int`, `struct s { union { int b; }; int a; }` with the anonymous union at 4 and `a` at 8, and `typedef int id`.
    fn sample() -> Vec<u8> {
        let strings = b"\0s\0a\0b\0int\0id\0";
        let word = |it: u32| it.to_le_bytes();
        let types: Vec<u8> = [
            word(7),
            word(1 << 24),
            word(4),
            word(1 << 24 | 32),
            word(0),
            word(5 << 24 | 1),
            word(4),
            word(5),
            word(1),
            word(0),
            word(1),
            word(4 << 24 | 2),
            word(12),
            word(0),
            word(2),
            word(32),
            word(3),
            word(1),
            word(64),
            word(11),
            word(8 << 24),
            word(1),
        ]
        .concat();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0]);
        for it in [24, 0, types.len() as u32, types.len() as u32, strings.len() as u32] {
            bytes.extend(word(it));
        }
        bytes.extend(&types);
        bytes.extend(strings);
        bytes
    }

    fn find(bytes: &[u8], structure: &str, member: &str) -> Option<u32> {
        Btf::parse(bytes)?.offset(structure, member)
    }

    #[test]
    fn members_are_found_also_in_anonymous_unions() {
        assert_eq!(find(&sample(), "s", "a"), Some(8));
        assert_eq!(find(&sample(), "s", "b"), Some(4));
        assert_eq!(find(&sample(), "s", "c"), None);
        assert_eq!(find(&sample(), "t", "a"), None);
    }

    #[test]
    fn integers_are_found_by_all_their_names() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        for name in ["int", "id", "const id"] {
            assert_eq!(btf.integer(name), Some(Integer { size: 4, signed: true }), "{name}");
        }
        assert_eq!((btf.integer("s"), btf.integer("enum s")), (None, None));
    }

    proptest! {
        #[test]
        fn broken_bytes_are_survived(at in 0usize..120, byte: u8, cut in 0usize..140) {
            let mut bytes = sample();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut);
            let _ = find(&bytes, "s", "a");
            let _ = Btf::parse(&bytes).and_then(|it| it.integer("id"));
        }
    }
}
