//! Records that device code has written to the rings in the memory of real GPUs.

use crate::device_layout::DeviceLayout;
use crate::process_info::ProcessIndex;
use std::collections::BTreeMap;
use xputrace_bytecode::vm::printed_line;
use xputrace_device::RecordKind;
use xputrace_device::arena::{DeviceRecord, RingReader};
use xputrace_device::layout::ring::FORMAT_AT;
use xputrace_model::object::Object;
use xputrace_model::output::Output;
use xputrace_wire::device::{DeviceCopy, RingRead};

/// How far the rings of all contexts were read.
#[derive(Debug, Default)]
pub(crate) struct DeviceRecords {
    /// By the context's place among those of its process.
    readers: BTreeMap<(ProcessIndex, usize), RingReader>,
    /// Records of contexts that have ended, which were not finished.
    n_unfinished: u64,
}

impl DeviceRecords {
    /// Passes the new records in a copy to `f`, in the order in which each thread wrote them.
    pub(crate) fn read(
        &mut self,
        layout: &DeviceLayout,
        process: ProcessIndex,
        copy: &DeviceCopy,
        mut f: impl FnMut(DeviceRecord<'_>),
    ) -> RingRead {
        let ring = layout.arena.ring(&copy.block);
        let new = || RingReader::new(layout.arena.ring_slots());
        let reader = self.readers.entry((process, copy.slot)).or_insert_with(new);
        let before = reader.position();
        reader.read(ring, copy.is_last, &mut f);
        if copy.is_last {
            self.n_unfinished = self.n_unfinished.saturating_add(std::mem::take(&mut reader.unwritten_slots));
        }
        RingRead { slot: copy.slot, position: reader.position(), found_any: reader.position() != before }
    }

    /// Forgets a process, which writes no more.
    pub(crate) fn end(&mut self, process: ProcessIndex) {
        let mut ended = self.readers.extract_if((process, 0)..=(process, usize::MAX), |_, _| true);
        let n_unfinished = ended.by_ref().fold(0u64, |all, (_, it)| all.saturating_add(it.unwritten_slots));
        self.n_unfinished = self.n_unfinished.saturating_add(n_unfinished);
    }

    pub(crate) fn n_unfinished(&self) -> u64 {
        self.n_unfinished
    }
}

/// Returns what a record of a compiled object's program shows, if anything.
pub(crate) fn shown(object: &Object, kind: RecordKind, data: &[u8]) -> Option<Output> {
    match kind {
        RecordKind::Data(map) => object.maps.get(map.index())?.record(data),
        RecordKind::Text => Some(Output::said(&until_nul(data))),
        RecordKind::Format => {
            let (arguments, format) = data.split_at_checked(FORMAT_AT as usize)?;
            let arguments: Vec<u64> = arguments.as_chunks().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
            // What a pointer leads to is not in the record.
            printed_line(format, &arguments, |_| Some(b"?".to_vec())).map(|it| Output::said(&it))
        }
    }
}

fn until_nul(text: &[u8]) -> String {
    let text = text.split(|it| *it == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim_end_matches('\n').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_bytecode::BpfMapId;
    use xputrace_device::arena::{Arena, Needs};
    use xputrace_device::layout::ring::{MARK_BYTES, SLOT_BYTES};
    use xputrace_model::output::Piece;

    const SLOTS: u32 = 4;
    const PROCESS: ProcessIndex = ProcessIndex(7);

    fn layout() -> DeviceLayout {
        let arena = Arena::new(Needs { maps: Vec::new(), n_sites: 2, ring_slots: SLOTS, n_threads: 0 }).unwrap();
        DeviceLayout { maps: Vec::new(), arena, sites: Vec::new() }
    }

    /// A copy of a ring of which so many slots were taken. Records have one slot each: their positions, and a byte.
    fn copy(layout: &DeviceLayout, records: &[(u64, u8)], head: u64, is_last: bool) -> DeviceCopy {
        let mut block = vec![0; layout.arena.n_bytes() as usize];
        let mut put = |at: u64, word: u64| block[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        let (slots, marks) = layout.arena.ring_parts();
        for (position, byte) in records {
            let index = position % u64::from(SLOTS);
            let slot = slots.start + index * u64::from(SLOT_BYTES);
            put(slot, 1 << 32 | 1);
            put(slot + 8, *position);
            put(slot + 16, (*byte).into());
            put(marks.start + index * u64::from(MARK_BYTES), position + 1);
        }
        put(layout.arena.ring_words().0, head);
        DeviceCopy { slot: 3, context: 1, is_last, block }
    }

    #[test]
    fn records_are_read_once_and_in_order() {
        let (layout, mut all) = (layout(), DeviceRecords::default());
        let mut read = |records: &[(u64, u8)], head, is_last| {
            let mut found = Vec::new();
            let copy = copy(&layout, records, head, is_last);
            let RingRead { slot, position, found_any } =
                all.read(&layout, PROCESS, &copy, |it| found.extend([it.site as u8, it.data[0]]));
            assert_eq!((slot, found_any), (3, !found.is_empty()));
            (found, position)
        };
        assert_eq!(read(&[], 0, false), (vec![], 0));
        assert_eq!(read(&[(0, 10), (1, 11)], 2, false), (vec![1, 10, 1, 11], 2));
        assert_eq!(read(&[(0, 10), (1, 11), (3, 13)], 4, false), (vec![], 2), "the third is being written");
        assert_eq!(read(&[(4, 14), (1, 11), (2, 12), (3, 13)], 6, true), (vec![1, 12, 1, 13, 1, 14], 6));
        assert_eq!(all.n_unfinished(), 1, "the one at position 5");
        all.end(PROCESS);
        assert_eq!((all.n_unfinished(), all.readers.len()), (1, 0));
    }

    #[test]
    fn records_of_objects_are_shown_by_what_they_are() {
        let object = Object::default();
        let text = |kind, data: &[u8]| match shown(&object, kind, data)? {
            Output::Print(pieces) => Some(format!("{pieces:?}")),
            _ => None,
        };
        let line = |text: &str| Some(format!("{:?}", [Piece::Text(text.into())]));
        assert_eq!(text(RecordKind::Text, b"done\n\0rest"), line("done"));
        let mut data: Vec<u8> = [7_u64, 8, 9].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert_eq!(text(RecordKind::Format, &data[1..]), None);
        data.extend(b"%d of %llu: %s\n\0");
        assert_eq!(text(RecordKind::Format, &data), line("7 of 8: ?"));
        assert_eq!(text(RecordKind::Data(BpfMapId(0)), b"x"), None, "no such map");
    }
}
