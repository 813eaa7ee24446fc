//! The records that travel through the rings, and in recordings.
//!
//! Each begins with a [`Header`]; its `size` covers header, body and tail, a multiple of 8.
//! Little endian. Unknown kinds are skipped by size.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// First 8 bytes of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u16,
    /// Unused, 0.
    pub flags: u16,
    /// Bytes of the whole record.
    pub size: u32,
}

/// Record kinds.
pub mod kind {
    /// Fills the end of a ring; no body.
    pub const PAD: u16 = 0;
    pub const LAUNCH: u16 = 1;
    pub const KERNEL: u16 = 2;
    pub const NAME: u16 = 3;
    pub const STACK: u16 = 4;
    pub const CLOCK: u16 = 5;
    pub const FLUSH: u16 = 6;
    pub const THREAD: u16 = 7;
    pub const MAPPING: u16 = 8;
}

/// A call that submits work, written when the outermost call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Launch {
    /// CLOCK_MONOTONIC nanoseconds at the outermost ENTER and, where the demand has
    /// [`crate::message::demand::ENDS`], EXIT; the same as at ENTER where it has not.
    pub start: u64,
    pub end: u64,
    /// What a handler at the marker set, when `flags` has [`Launch::TAGGED`].
    pub tag: i64,
    /// CUPTI's correlation id; runtime and nested driver call have the same.
    pub correlation: u32,
    /// Thread id as the target sees it.
    pub tid: u32,
    /// [`Name`] id of the outermost call, version suffix removed.
    pub api: u32,
    /// [`Stack`] id, 0 when no stack was asked for or none could be taken.
    pub stack: u32,
    /// [`Name`] id of the kernel's symbol, 0 for graphs.
    pub symbol: u32,
    /// Return value of the outermost call, 0 is success.
    pub result: i32,
    /// CUPTI's context id.
    pub context: u32,
    pub device: u32,
    /// CUPTI's stream id, [`UNKNOWN`] where it was not asked for.
    pub stream: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    /// [`Launch::KERNEL`] or [`Launch::GRAPH`].
    pub launch_kind: u32,
    /// [`Launch::TAGGED`], [`Launch::CAPTURED`], [`Launch::NO_STACK`].
    pub flags: u32,
}

impl Launch {
    pub const KERNEL: u32 = 1;
    pub const GRAPH: u32 = 2;

    pub const TAGGED: u32 = 1;
    /// Recorded into a graph under stream capture: it submits no work and no kernel follows.
    pub const CAPTURED: u32 = 2;
    /// A stack was asked for and could not be stored.
    pub const NO_STACK: u32 = 4;
}

/// An id that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// A kernel that ran, from CUPTI's activity record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Kernel {
    /// Nanoseconds on CUPTI's clock, CLOCK_REALTIME; both 0 when CUPTI did not collect them.
    pub start: u64,
    pub end: u64,
    /// 0 outside graphs.
    pub graph_node: u64,
    pub graph: u32,
    pub correlation: u32,
    pub device: u32,
    pub context: u32,
    pub stream: u32,
    /// [`Name`] id of the mangled name.
    pub symbol: u32,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub registers: u32,
    pub static_shared: u32,
    pub dynamic_shared: u32,
    /// Bytes a thread.
    pub local_memory: u32,
}

/// Text behind an id; always written before the first record that uses the id, possibly by
/// another thread. Followed by `len` bytes of text, padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name {
    pub id: u32,
    pub len: u32,
}

/// Frames behind a stack id, innermost first; followed by `len` return addresses of 8 bytes.
/// As [`Name`] it comes before its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Stack {
    pub id: u32,
    pub len: u32,
}

/// The two clocks, read together: CLOCK_MONOTONIC before and after, CLOCK_REALTIME between.
/// Written before the kernels of each completed activity buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Clock {
    pub monotonic_before: u64,
    pub realtime: u64,
    pub monotonic_after: u64,
}

/// A flush of CUPTI's buffers has returned: every kernel that ended before `began`
/// (CLOCK_MONOTONIC), and that no older unfinished kernel withholds, has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flush {
    pub began: u64,
    /// 1 for the last one, at exit or when disarming.
    pub last: u64,
}

/// The name of a thread, or of the process when `tid` is the process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Thread {
    pub tid: u32,
    pub reserved: u32,
    /// NUL padded.
    pub comm: [u8; 16],
}

/// An executable mapping of the target; followed by the path, padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub file_offset: u64,
    pub inode: u64,
    pub device: u64,
    pub path_len: u64,
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Launch(Launch),
    Kernel(Kernel),
    Name {
        id: u32,
        text: &'a [u8],
    },
    Stack {
        id: u32,
        frames: Vec<u64>,
    },
    Clock(Clock),
    Flush(Flush),
    Thread(Thread),
    Mapping {
        mapping: Mapping,
        path: &'a [u8],
    },
    /// A kind of a later version.
    Unknown(u16),
}

/// Bytes that are no record; the rest of the buffer cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Bytes that were left.
    pub remaining: usize,
}

/// Most frames of a stack.
pub const MAX_FRAMES: usize = 128;
/// Most bytes of a name; longer ones are cut by the collector.
pub const MAX_NAME: usize = 4096;

/// Decodes the records in `bytes`. Accepts any bytes: ends after the first `Err`.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { rest: bytes }
}

/// Iterator of [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.rest.is_empty() {
                return None;
            }
            let malformed = Malformed { remaining: self.rest.len() };
            let Some((header, body)) = split(self.rest) else {
                self.rest = &[];
                return Some(Err(malformed));
            };
            self.rest = &self.rest[header.size as usize..];
            if header.kind == kind::PAD {
                continue;
            }
            let decoded = decode(header.kind, body).ok_or(malformed);
            if decoded.is_err() {
                self.rest = &[];
            }
            return Some(decoded);
        }
    }
}

#[inline]
fn split(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (header, _) = Header::read_from_prefix(bytes).ok()?;
    let size = header.size as usize;
    let sound = size >= size_of::<Header>() && size.is_multiple_of(8) && size <= bytes.len();
    sound.then(|| (header, &bytes[size_of::<Header>()..size]))
}

#[inline]
fn decode(kind: u16, body: &[u8]) -> Option<Record<'_>> {
    fn take<T: FromBytes>(body: &[u8]) -> Option<(T, &[u8])> {
        T::read_from_prefix(body).ok()
    }
    Some(match kind {
        kind::LAUNCH => Record::Launch(take(body)?.0),
        kind::KERNEL => Record::Kernel(take(body)?.0),
        kind::NAME => {
            let (name, tail): (Name, _) = take(body)?;
            let len = Some(name.len as usize).filter(|len| *len <= MAX_NAME)?;
            Record::Name { id: name.id, text: tail.get(..len)? }
        }
        kind::STACK => {
            let (stack, tail): (Stack, _) = take(body)?;
            let len = Some(stack.len as usize).filter(|len| *len <= MAX_FRAMES)?;
            let bytes = tail.get(..len * 8)?;
            let frames = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()));
            Record::Stack { id: stack.id, frames: frames.collect() }
        }
        kind::CLOCK => Record::Clock(take(body)?.0),
        kind::FLUSH => Record::Flush(take(body)?.0),
        kind::THREAD => Record::Thread(take(body)?.0),
        kind::MAPPING => {
            let (mapping, tail): (Mapping, _) = take(body)?;
            let len = usize::try_from(mapping.path_len).ok().filter(|len| *len <= MAX_NAME)?;
            Record::Mapping { mapping, path: tail.get(..len)? }
        }
        other => Record::Unknown(other),
    })
}

/// Bytes that a record with `body` and a tail of `tail` bytes takes in a ring.
pub const fn size_of_record<T>(tail: usize) -> usize {
    (size_of::<Header>() + size_of::<T>() + tail).next_multiple_of(8)
}

/// Writes a record into exactly [`size_of_record`] bytes.
pub fn encode<T: IntoBytes + Immutable>(kind: u16, body: &T, tail: &[u8], out: &mut [u8]) {
    let header = Header { kind, flags: 0, size: out.len() as u32 };
    let (head, rest) = out.split_at_mut(size_of::<Header>());
    head.copy_from_slice(header.as_bytes());
    let (fixed, rest) = rest.split_at_mut(size_of::<T>());
    fixed.copy_from_slice(body.as_bytes());
    let (text, padding) = rest.split_at_mut(tail.len());
    text.copy_from_slice(tail);
    padding.fill(0);
}

/// The same, appended to a vector: for recordings and tests.
pub fn push<T: IntoBytes + Immutable>(out: &mut Vec<u8>, kind: u16, body: &T, tail: &[u8]) {
    let at = out.len();
    out.resize(at + size_of_record::<T>(tail.len()), 0);
    encode(kind, body, tail, &mut out[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_round_trip() {
        let mut bytes = Vec::new();
        let launch = Launch { correlation: 7, grid: [1, 2, 3], ..Default::default() };
        push(&mut bytes, kind::LAUNCH, &launch, &[]);
        push(&mut bytes, kind::NAME, &Name { id: 3, len: 5 }, b"_Z3fv");
        push(&mut bytes, kind::STACK, &Stack { id: 1, len: 2 }, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        push(&mut bytes, 999, &Name { id: 0, len: 0 }, &[]);
        let read: Result<Vec<_>, _> = records(&bytes).collect();
        assert_eq!(
            read.unwrap(),
            vec![
                Record::Launch(launch),
                Record::Name { id: 3, text: b"_Z3fv" },
                Record::Stack { id: 1, frames: vec![1, 2] },
                Record::Unknown(999),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = records(&bytes).count();
        }

        #[test]
        fn damaged_records_are_accepted(at in 0usize..120, value in any::<u8>()) {
            let mut bytes = Vec::new();
            push(&mut bytes, kind::NAME, &Name { id: 3, len: 5 }, b"_Z3fv");
            push(&mut bytes, kind::LAUNCH, &Launch::default(), &[]);
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = records(&bytes).count();
        }
    }
}
