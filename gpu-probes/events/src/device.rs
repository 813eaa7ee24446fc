//! Events of device code: what handlers that run inside a kernel are given, and where it comes from.
//!
//! A handler runs once in each thread of a kernel. Its context is an array of words, like that of other GPU events
//! ([`crate::word`]), with indices of its own. On a GPU each word is computed from a special register of PTX
//! ([`Source`]); on the software GPU the tracer fills them from the kernel's record.

use crate::field::{Field, FieldType, From, Unit};

/// Number of 64-bit words.
pub const WORDS: usize = 19;

/// A device event as its handlers see it.
pub type DeviceContext = [u64; WORDS];

pub const TIME: usize = 0;
pub const PID: usize = 1;
/// A string id.
pub const KERNEL: usize = 2;
/// Three words each: `x y z`.
pub const THREAD: usize = 3;
pub const BLOCK: usize = 6;
pub const BLOCK_DIM: usize = 9;
pub const GRID_DIM: usize = 12;
pub const SMID: usize = 15;
pub const WARPID: usize = 16;
pub const LANEID: usize = 17;
pub const CLOCK: usize = 18;

/// Where device code gets a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a special register of 32 bits, zero-extended (PTX ISA, "Special Registers").
    Register32(&'static str),
    /// From one of 64 bits.
    Register64(&'static str),
    /// From `%globaltimer`, in nanoseconds, moved to the tracer's clock.
    GlobalTimer,
    /// Constant in a process.
    OfProcess,
    /// Constant in a kernel.
    OfKernel,
}

/// The source of each word, by its index.
pub const SOURCES: [Source; WORDS] = [
    Source::GlobalTimer,
    Source::OfProcess,
    Source::OfKernel,
    Source::Register32("%tid.x"),
    Source::Register32("%tid.y"),
    Source::Register32("%tid.z"),
    Source::Register32("%ctaid.x"),
    Source::Register32("%ctaid.y"),
    Source::Register32("%ctaid.z"),
    Source::Register32("%ntid.x"),
    Source::Register32("%ntid.y"),
    Source::Register32("%ntid.z"),
    Source::Register32("%nctaid.x"),
    Source::Register32("%nctaid.y"),
    Source::Register32("%nctaid.z"),
    Source::Register32("%smid"),
    Source::Register32("%warpid"),
    Source::Register32("%laneid"),
    Source::Register64("%clock64"),
];

/// A place in a kernel where handlers can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceEvent {
    /// Before a thread's first instruction.
    Entry,
    /// After its last one.
    Exit,
}

impl DeviceEvent {
    /// Every place, in the order of execution.
    pub const ALL: &[DeviceEvent] = &[DeviceEvent::Entry, DeviceEvent::Exit];

    /// Returns the event's name in scripts.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceEvent::Entry => "device_entry",
            DeviceEvent::Exit => "device_exit",
        }
    }

    /// Returns the fields that scripts read.
    pub const fn fields(self) -> &'static [Field] {
        FIELDS
    }
}

const fn word(name: &'static str, kind: FieldType, unit: Unit, at: usize, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Word(at), doc }
}

const fn int(name: &'static str, at: usize, doc: &'static str) -> Field {
    word(name, FieldType::Int, Unit::None, at, doc)
}

/// The parts of a position.
const fn position(at: usize) -> [Field; 3] {
    [int("x", at, "first coordinate"), int("y", at + 1, "second coordinate"), int("z", at + 2, "third coordinate")]
}

const THREAD_PARTS: &[Field] = &position(THREAD);
const BLOCK_PARTS: &[Field] = &position(BLOCK);

const FIELDS: &[Field] = &[
    word("time", FieldType::Int, Unit::Clock, TIME, "time on the GPU"),
    int("pid", PID, "process id"),
    word(
        "kernel",
        FieldType::Name,
        Unit::None,
        KERNEL,
        "demangled name of the kernel, as `k.name` of its `kernel` event",
    ),
    word("threadIdx", FieldType::Parts(THREAD_PARTS), Unit::None, THREAD, "the thread's position in its block"),
    word("blockIdx", FieldType::Parts(BLOCK_PARTS), Unit::None, BLOCK, "the block's position in the grid"),
    word("blockDim", FieldType::Dim3, Unit::None, BLOCK_DIM, "threads per block"),
    word("gridDim", FieldType::Dim3, Unit::None, GRID_DIM, "blocks in the grid"),
    int("smid", SMID, "multiprocessor that the thread runs on"),
    int("warpid", WARPID, "the warp's number on its multiprocessor"),
    int("laneid", LANEID, "the thread's number in its warp, 0 to 31"),
    int("clock", CLOCK, "cycles of the multiprocessor's clock"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_by_one_field() {
        let mut read = [0; WORDS];
        for field in FIELDS {
            let first = field.from.word().expect("a word");
            let n_words = if matches!(field.kind, FieldType::Dim3 | FieldType::Parts(_)) { 3 } else { 1 };
            read[first..first + n_words].iter_mut().for_each(|it| *it += 1);
        }
        assert_eq!(read, [1; WORDS]);
    }

    #[test]
    fn the_parts_of_a_dimension_are_in_their_order() {
        for (at, register) in [(THREAD, "%tid"), (BLOCK, "%ctaid"), (BLOCK_DIM, "%ntid"), (GRID_DIM, "%nctaid")] {
            let of = |n: usize| match SOURCES[at + n] {
                Source::Register32(it) => it.to_owned(),
                other => panic!("{other:?}"),
            };
            assert_eq!([of(0), of(1), of(2)], ["x", "y", "z"].map(|it| format!("{register}.{it}")));
        }
    }
}
