//! The notes in which a file describes its USDT probes.
//!
//! Source: <https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>, and `sys/sdt.h` of SystemTap.

use crate::elf::Elf;
use object::elf::NoteType;

const OWNER: &[u8] = b"stapsdt";
/// `NT_STAPSDT`.
const KIND: NoteType = NoteType(3);
/// The section whose address tells whether a tool has moved the file's code since it was linked.
const BASE_SECTION: &str = ".stapsdt.base";

/// A place of a probe, as the file describes it. Addresses are the file's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) provider: String,
    pub(crate) name: String,
    pub(crate) location: u64,
    /// The counter of those who have the probe enabled; the program may skip the probe while it is 0.
    pub(crate) semaphore: Option<u64>,
    /// The arguments, such as `-4@%eax 8@-20(%rbp)`.
    pub(crate) arguments: String,
}

impl Note {
    /// Parses a note's description: three addresses, then three strings, each with its NUL. The second address is what the
    /// base section's was when the note was made.
    fn parse(description: &[u8], base: Option<u64>) -> Option<Note> {
        let word = |n: usize| Some(u64::from_le_bytes(description.get(8 * n..8 * n + 8)?.try_into().ok()?));
        let (location, made_at, semaphore) = (word(0)?, word(1)?, word(2)?);
        let moved = base.filter(|_| made_at != 0).map_or(0, |it| it.wrapping_sub(made_at));
        let mut texts = description.get(24..)?.split(|it| *it == 0).map(|it| String::from_utf8_lossy(it).into_owned());
        Some(Note {
            provider: texts.next()?,
            name: texts.next()?,
            location: location.wrapping_add(moved),
            semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
            arguments: texts.next()?,
        })
    }

    /// Returns the value of `func` there.
    pub(crate) fn full_name(&self) -> String {
        format!("{}:{}", self.provider, self.name)
    }
}

/// Returns a file's notes, in its order. Leaves out what is no such note.
pub(crate) fn of(elf: &Elf) -> Vec<Note> {
    let base = elf.section_address(BASE_SECTION);
    elf.notes(OWNER, KIND).iter().filter_map(|it| Note::parse(it, base)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Makes a note's description.
    fn description(addresses: [u64; 3], texts: &str) -> Vec<u8> {
        addresses.iter().flat_map(|it| it.to_le_bytes()).chain(texts.bytes()).collect()
    }

    #[test]
    fn a_note_tells_where_a_probe_is() {
        let bytes = description([0x1139, 0x2000, 0x4010], "shop\0sold\0-4@%eax 8@%rbx\0");
        let note = Note::parse(&bytes, Some(0x2000)).unwrap();
        assert_eq!((&*note.full_name(), &*note.arguments), ("shop:sold", "-4@%eax 8@%rbx"));
        assert_eq!((note.location, note.semaphore), (0x1139, Some(0x4010)));
    }

    #[test]
    fn where_a_file_was_moved_its_notes_are_too() {
        let bytes = description([0x1139, 0x2000, 0x4010], "a\0b\0\0");
        let moved = Note::parse(&bytes, Some(0x2000 + 0x7000)).unwrap();
        assert_eq!((moved.location, moved.semaphore), (0x8139, Some(0xb010)));
        let bytes = description([0x1139, 0x2000, 0], "a\0b\0\0");
        assert_eq!(Note::parse(&bytes, Some(0x9000)).unwrap().semaphore, None);
        assert_eq!(Note::parse(&bytes, None).unwrap().location, 0x1139, "without a base section");
    }

    proptest! {
        #[test]
        fn what_is_no_note_is_harmless(bytes in proptest::collection::vec(any::<u8>(), 0..80), base: Option<u64>) {
            if let Some(note) = Note::parse(&bytes, base) {
                prop_assert!(bytes.len() >= 24 && note.full_name().contains(':'));
            }
        }
    }
}
