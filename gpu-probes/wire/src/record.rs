//! The records that travel through the rings, and in recordings.
//!
//! A record starts with a [`Header`], whose `size` covers header, body and tail and is a multiple
//! of 8. Values are little endian. Readers skip unknown kinds by their size. The kinds for launches
//! and GPU activities come from the table of GPU events ([`xputrace_events::table`]).

pub use xputrace_events::table::UNKNOWN;
use xputrace_events::{Activity, Realtime, table};
pub use xputrace_events::{ActivityRecord, Kernel, Launch, Memset};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first 8 bytes of each record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u16,
    /// Unused, 0.
    pub flags: u16,
    /// Size of the whole record.
    pub size: u32,
}

/// Record kinds.
pub mod kind {
    /// Fills the end of a ring; has no body.
    pub const PAD: u16 = 0;
    pub const LAUNCH: u16 = super::table::LAUNCH_RECORD;
    pub const KERNEL: u16 = super::Activity::Kernel.record_kind();
    pub const NAME: u16 = 3;
    pub const STACK: u16 = 4;
    pub const CLOCK: u16 = 5;
    pub const FLUSH: u16 = 6;
    pub const THREAD: u16 = 7;
    pub const MAPPING: u16 = 8;
}

/// Text of a name id. It precedes every record that uses the id, possibly in another thread's ring.
/// Followed by `len` bytes of text, padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name {
    pub id: u32,
    pub len: u32,
}

/// Frames of a stack id, innermost first. Followed by `len` return addresses of 8 bytes. Like
/// [`Name`], it precedes its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Stack {
    pub id: u32,
    pub len: u16,
    /// Why it ends, one of [`stack_end`].
    pub end: u16,
}

/// Why a stack ends. If it does not reach its root, readers find this number in place of a further
/// return address; no code is at such low addresses.
pub mod stack_end {
    /// The program's or the thread's first function, so nothing is missing.
    pub const ROOT: u16 = 0;
    /// The last frame's code has no unwinding table.
    pub const NO_TABLE: u16 = 1;
    /// The table has a rule that the collector does not know, or is damaged.
    pub const UNSUPPORTED_RULE: u16 = 2;
    /// The callers are not on the thread's own stack.
    pub const OFF_STACK: u16 = 3;
    /// There are more than [`super::MAX_FRAMES`].
    pub const TOO_DEEP: u16 = 4;
}

/// Both clocks, read together: CLOCK_MONOTONIC before and after, CLOCK_REALTIME in between.
/// Precedes the records of each completed activity buffer in the same ring: marks where the buffer
/// starts and the previous one ends, and how full it was.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Clock {
    pub monotonic_before: u64,
    pub realtime: Realtime,
    pub monotonic_after: u64,
    /// Bytes of the buffer in use.
    pub filled: u32,
    /// Size of the buffer; 0 if no buffer follows.
    pub room: u32,
}

/// A [`Clock`] in older recordings, without the buffer's sizes.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct ClockPair {
    monotonic_before: u64,
    realtime: Realtime,
    monotonic_after: u64,
}

impl Clock {
    /// Reads a clock record of any version; `room` is 0 in older recordings.
    pub fn read(body: &[u8]) -> Option<Clock> {
        let whole = Clock::read_from_prefix(body).map(|it| it.0);
        whole.ok().or_else(|| {
            let ClockPair { monotonic_before, realtime, monotonic_after } = ClockPair::read_from_prefix(body).ok()?.0;
            Some(Clock { monotonic_before, realtime, monotonic_after, filled: 0, room: 0 })
        })
    }
}

/// A flush of CUPTI's buffers has returned. Everything that ended before `began` (CLOCK_MONOTONIC)
/// has been written, unless an older unfinished activity holds it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flush {
    pub began: u64,
    /// 1 for the final flush, at exit or when disarming.
    pub last: u64,
}

/// The name of a thread, or of the process if `tid` is the process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Thread {
    pub tid: u32,
    pub reserved: u32,
    /// NUL padded.
    pub comm: [u8; 16],
}

/// An executable mapping of the target. Followed by the path, padded to 8.
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
    Activity(ActivityRecord),
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
    /// A kind that this version does not know.
    Unknown(u16),
}

/// Bytes that do not form a record; the rest of the buffer is unreadable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Bytes left unread.
    pub remaining: usize,
}

/// In older recordings a stack's last frame, if the one before it keeps no frame pointer: its
/// callers are unknown.
pub const NO_CALLERS: u64 = 0;
/// Maximum number of return addresses in a stack.
pub const MAX_FRAMES: usize = 256;
/// Maximum length of a name; the collector cuts longer ones.
pub const MAX_NAME: usize = 4096;

/// Splits `bytes` into records without decoding them; nothing else knows the framing. Accepts any
/// bytes: stops at the first malformed record, which [`Framed::rest`] returns.
pub fn framed(bytes: &[u8]) -> Framed<'_> {
    Framed { rest: bytes, offset: 0 }
}

/// Iterator returned by [`framed`].
#[derive(Clone, Debug)]
pub struct Framed<'a> {
    rest: &'a [u8],
    offset: usize,
}

/// A framed record; pads are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub header: Header,
    /// Offset of the record in the input.
    pub offset: usize,
    /// Header, body and tail.
    pub whole: &'a [u8],
}

impl<'a> Framed<'a> {
    /// Returns the unread bytes; after the last item, the malformed ones.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Framed<'a> {
    type Item = Frame<'a>;

    #[inline]
    fn next(&mut self) -> Option<Frame<'a>> {
        let (header, _) = Header::read_from_prefix(self.rest).ok()?;
        let size = header.size as usize;
        if size < size_of::<Header>() || !size.is_multiple_of(8) {
            return None;
        }
        let (whole, rest) = self.rest.split_at_checked(size)?;
        let frame = Frame { header, offset: self.offset, whole };
        self.rest = rest;
        self.offset += size;
        Some(frame)
    }
}

impl<'a> Frame<'a> {
    /// Returns body and tail.
    #[inline]
    pub fn body(&self) -> &'a [u8] {
        &self.whole[size_of::<Header>()..]
    }

    /// Returns the body, or `None` if the record is too short for it.
    #[inline]
    pub fn read<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.body()).ok().map(|(it, _)| it)
    }

    /// Decodes the record; returns `None` if its contents do not match its kind.
    #[inline]
    pub fn decode(&self) -> Option<Record<'a>> {
        decode(self.header.kind, self.body())
    }
}

/// Decodes the records in `bytes`, skipping pads. Accepts any bytes: ends after the first `Err`.
pub fn records(bytes: &[u8]) -> Records<'_> {
    Records { framed: framed(bytes) }
}

/// Iterator returned by [`records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    framed: Framed<'a>,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let frame = self.framed.find(|it| it.header.kind != kind::PAD);
        let rest = self.framed.rest().len();
        let decoded = match frame {
            Some(frame) => frame.decode().ok_or(Malformed { remaining: rest + frame.whole.len() }),
            None if rest == 0 => return None,
            None => Err(Malformed { remaining: rest }),
        };
        if decoded.is_err() {
            self.framed = framed(&[]);
        }
        Some(decoded)
    }
}

#[inline]
fn decode(kind: u16, body: &[u8]) -> Option<Record<'_>> {
    fn take<T: FromBytes>(body: &[u8]) -> Option<(T, &[u8])> {
        T::read_from_prefix(body).ok()
    }
    Some(match kind {
        kind::LAUNCH => Record::Launch(take(body)?.0),
        kind::NAME => {
            let (name, tail): (Name, _) = take(body)?;
            let len = Some(name.len as usize).filter(|len| *len <= MAX_NAME)?;
            Record::Name { id: name.id, text: tail.get(..len)? }
        }
        kind::STACK => {
            let (stack, tail): (Stack, _) = take(body)?;
            let len = Some(usize::from(stack.len)).filter(|len| *len <= MAX_FRAMES)?;
            let bytes = tail.get(..len * 8)?;
            let frames = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()));
            let end = (stack.end != stack_end::ROOT).then_some(u64::from(stack.end));
            Record::Stack { id: stack.id, frames: frames.chain(end).collect() }
        }
        kind::CLOCK => Record::Clock(Clock::read(body)?),
        kind::FLUSH => Record::Flush(take(body)?.0),
        kind::THREAD => Record::Thread(take(body)?.0),
        kind::MAPPING => {
            let (mapping, tail): (Mapping, _) = take(body)?;
            let len = usize::try_from(mapping.path_len).ok().filter(|len| *len <= MAX_NAME)?;
            Record::Mapping { mapping, path: tail.get(..len)? }
        }
        other if Activity::of_record(other).is_some() => Record::Activity(ActivityRecord::read(other, body)?),
        other => Record::Unknown(other),
    })
}

/// Returns the size of a record with `body` and a tail of `tail` bytes.
pub const fn size_of_record<T>(tail: usize) -> usize {
    (size_of::<Header>() + size_of::<T>() + tail).next_multiple_of(8)
}

/// Encodes a record into exactly [`size_of_record`] bytes.
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

/// Appends an encoded record to a vector: for recordings and tests.
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
        push(
            &mut bytes,
            kind::STACK,
            &Stack { id: 1, len: 2, end: 0 },
            &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
        );
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

    #[test]
    fn a_clock_of_an_earlier_recording_tells_nothing_of_its_buffer() {
        let body: Vec<u8> = [7u64, 8, 9].iter().flat_map(|it| it.to_le_bytes()).collect();
        let old = Clock { monotonic_before: 7, realtime: Realtime(8), monotonic_after: 9, filled: 0, room: 0 };
        assert_eq!(decode(kind::CLOCK, &body), Some(Record::Clock(old)));
        assert_eq!(decode(kind::CLOCK, &body[..16]), None);
        let new = Clock { filled: 3, room: 4, ..old };
        assert_eq!(decode(kind::CLOCK, new.as_bytes()), Some(Record::Clock(new)));
    }

    #[test]
    fn frames_end_at_the_first_bytes_that_are_no_record() {
        let mut bytes = Vec::new();
        push(&mut bytes, kind::LAUNCH, &Launch::default(), &[]);
        let second = bytes.len();
        bytes.extend(Header { kind: kind::PAD, flags: 0, size: 16 }.as_bytes());
        bytes.extend([0; 8]);
        for broken in
            [&[1u8, 0, 0, 0, 12, 0, 0, 0, 9, 9, 9, 9][..], &[1, 0, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 16, 0, 0, 0], &[7]]
        {
            let bytes = [&bytes, broken].concat();
            let mut frames = framed(&bytes);
            let found: Vec<_> = frames.by_ref().map(|it| (it.header.kind, it.offset, it.whole.len())).collect();
            assert_eq!(found, [(kind::LAUNCH, 0, second), (kind::PAD, second, 16)]);
            assert_eq!(frames.rest(), broken);
            let read: Vec<_> = records(&bytes).collect();
            assert_eq!(read, [Ok(Record::Launch(Launch::default())), Err(Malformed { remaining: broken.len() })]);
        }
    }

    /// Returns one record of each kind, as the collector writes them.
    fn every_kind() -> Vec<u8> {
        let mut bytes = Vec::new();
        push(&mut bytes, kind::NAME, &Name { id: 3, len: 5 }, b"_Z3fv");
        push(&mut bytes, kind::STACK, &Stack { id: 1, len: 2, end: stack_end::NO_TABLE }, &[7; 16]);
        push(&mut bytes, kind::THREAD, &Thread { tid: 7, reserved: 0, comm: [b'a'; 16] }, &[]);
        let mapping = Mapping { start: 1, end: 2, file_offset: 3, inode: 4, device: 5, path_len: 6 };
        push(&mut bytes, kind::MAPPING, &mapping, b"/a.out");
        push(&mut bytes, kind::LAUNCH, &Launch::default(), &[]);
        push(&mut bytes, kind::CLOCK, &Clock { monotonic_before: 1, realtime: Realtime(2), ..Clock::default() }, &[]);
        push(&mut bytes, kind::KERNEL, &Kernel::default(), &[]);
        push(&mut bytes, Activity::Memset.record_kind(), &Memset::default(), &[]);
        bytes.extend(Header { kind: kind::PAD, flags: 0, size: 8 }.as_bytes());
        push(&mut bytes, kind::FLUSH, &Flush { began: 1, last: 1 }, &[]);
        bytes
    }

    proptest! {
        #[test]
        fn frames_and_the_rest_are_all_of_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            damage in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..8),
            cut in any::<usize>(),
        ) {
            let mut mutated = every_kind();
            for (at, value) in damage {
                let at = at % mutated.len();
                mutated[at] = value;
            }
            mutated.truncate(cut % (mutated.len() + 1));
            for bytes in [bytes, mutated] {
                let mut frames = framed(&bytes);
                let mut read: Vec<u8> = Vec::new();
                for frame in frames.by_ref() {
                    prop_assert_eq!(frame.offset, read.len());
                    read.extend(frame.whole);
                    // Decoded slices stay within the record, whatever its length fields say.
                    let held = match frame.decode() {
                        Some(Record::Name { text, .. }) => text.len(),
                        Some(Record::Stack { frames, .. }) => frames.len() * 8,
                        Some(Record::Mapping { path, .. }) => path.len(),
                        _ => 0,
                    };
                    prop_assert!(held <= frame.body().len());
                }
                read.extend(frames.rest());
                prop_assert_eq!(&read, &bytes);
                prop_assert!(records(&bytes).filter(|it| it.is_err()).count() <= 1);
            }
        }
    }
}
