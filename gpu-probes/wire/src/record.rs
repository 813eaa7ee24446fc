//! The records that travel through the rings, and in recordings.
//!
//! A record starts with a [`Header`], whose `size` covers header, body and tail and is a multiple
//! of 8. Values are little endian. Readers skip unknown kinds by their size. The kinds for launches
//! and GPU activities come from the table of GPU events ([`xputrace_events::table`]).

use crate::prefetch;
pub use xputrace_events::table::UNKNOWN;
use xputrace_events::{Activity, HostEvent, Realtime, table};
pub use xputrace_events::{ActivityRecord, Graph, HostEventRecord, Kernel, Launch, Memcpy, Memset};
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
    pub const CODE: u16 = 10;
    pub const YIELD: u16 = 11;
    pub const GPU: u16 = 32;
    pub const OPENED: u16 = 33;
    pub const NODE: u16 = 34;
    pub const NODE_UPDATE: u16 = 35;
    pub const OBJECT: u16 = 37;
}

/// Text of a name id. It precedes every record that uses the id, possibly in another thread's ring.
/// Followed by `len` bytes of text, padded to 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Name {
    pub id: u32,
    pub len: u32,
}

/// What a code id stands for: a function of a Python program, by its contents. Followed by `len`
/// bytes: a [`CodeHead`], the texts and the table that it gives the lengths of, padded to 8. Like
/// [`Name`], it precedes its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Code {
    pub id: u32,
    pub len: u32,
}

/// How the contents of a [`Code`] begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CodeHead {
    /// The line that the function begins at.
    pub first_line: u32,
    /// Sizes of the file's name, of the function's qualified name, and of CPython's table of lines.
    pub file_len: u16,
    pub name_len: u16,
    pub lines_len: u16,
    /// Bytes per character of the two names: 1, 2 or 4; characters are code points.
    pub file_width: u8,
    pub name_width: u8,
}

/// A function of a Python program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonCode {
    pub first_line: u32,
    pub file: String,
    pub name: String,
    /// CPython's table of lines (`co_linetable`); lines behind its end are unknown.
    pub lines: Box<[u8]>,
}

impl PythonCode {
    /// Decodes the contents of a [`Code`].
    pub fn decode(contents: &[u8]) -> Option<Self> {
        let (head, rest) = CodeHead::read_from_prefix(contents).ok()?;
        let (file, rest) = rest.split_at_checked(head.file_len.into())?;
        let (name, rest) = rest.split_at_checked(head.name_len.into())?;
        let lines = rest.get(..head.lines_len.into())?.into();
        let (file, name) = (code_points(file, head.file_width), code_points(name, head.name_width));
        Some(PythonCode { first_line: head.first_line, file, name, lines })
    }
}

/// Decodes characters of so many bytes each; what is no code point is replaced.
fn code_points(bytes: &[u8], width: u8) -> String {
    let number = |it: &[u8]| it.iter().rev().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
    let of = |it: &[u8]| char::from_u32(number(it)).unwrap_or(char::REPLACEMENT_CHARACTER);
    bytes.chunks(usize::from(width.clamp(1, 4))).map(of).collect()
}

/// A Python frame among the return addresses of a stack: a word that is no address of code.
pub mod python_frame {
    const FLAG: u64 = 1 << 63;
    const CODE_AT: u32 = 32;

    /// Returns the word of a frame: its code id (0 if it has none) and its current instruction, in
    /// bytes from the first.
    pub const fn word(code: u32, offset: u32) -> u64 {
        FLAG | (code as u64) << CODE_AT & !FLAG | offset as u64
    }

    /// Returns the code id and the instruction of a word that stands for a Python frame.
    pub const fn of_word(word: u64) -> Option<(u32, u32)> {
        match word & FLAG {
            0 => None,
            _ => Some((((word & !FLAG) >> CODE_AT) as u32, word as u32)),
        }
    }
}

/// Frames of a stack id, innermost first. Followed by `len` words of 8 bytes: return addresses, and
/// Python frames ([`python_frame`]), which stand before that of the interpreter's function that runs
/// them. Then follow, in 4 bytes each, a number and as many ids of the [`MappedObject`]s that the return addresses are in;
/// older recordings lack these. Like [`Name`], it precedes its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Stack {
    pub id: u32,
    pub len: u16,
    /// Why it ends, one of [`stack_end`]. If Python frames follow, the number is among the words, and
    /// this is 0.
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
    /// More Python frames than [`super::MAX_FRAMES`] stand before the next function.
    pub const PYTHON_TOO_DEEP: u16 = 5;
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
/// has been written, unless an older unfinished activity holds it back. Calls and what else the program's threads write
/// are held back by nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flush {
    pub began: u64,
    /// 1 for the final flush, at exit or when disarming.
    pub last: u64,
}

/// Another tool in the process has CUPTI's records, or had: written when that begins, and again when
/// it ends. Times are CLOCK_MONOTONIC. Followed by `len` bytes: the file name of the library that
/// asked for them, padded to 8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Yield {
    pub began: u64,
    /// 0 where it has only begun.
    pub ended: u64,
    /// Launches that succeeded meanwhile, with [`Yield::AT_LEAST`] if not all could be seen.
    pub launches: u64,
    pub len: u64,
}

impl Yield {
    /// There may have been more launches.
    pub const AT_LEAST: u64 = 1 << 63;

    /// Returns the launches, and whether these are all.
    pub fn seen(&self) -> (u64, bool) {
        (self.launches & !Yield::AT_LEAST, self.ended != 0 && self.launches & Yield::AT_LEAST == 0)
    }
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

/// A file that the target's loader had mapped: whatever else is or was at these addresses, stacks that name its id are
/// of this one. Followed by its build id; its path as the program named it to the loader, which is empty for the
/// program itself; if that is relative, the directory that the process was in when it was armed; and padding to 8. Like
/// [`Name`], it precedes its first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MappedObject {
    pub id: u32,
    pub build_id_len: u16,
    pub path_len: u16,
    pub start: u64,
    pub end: u64,
    /// What is added to the addresses in its program headers.
    pub base: u64,
    /// [`check_of_file`] of its first bytes, and how many those are.
    pub check: u64,
    pub checked_bytes: u32,
    pub directory_len: u32,
}

/// Maximum number of a file's first bytes that [`check_of_file`] is given.
pub const MAX_CHECKED_BYTES: usize = 4096;

/// Tells files without a build id apart: a hash of their first bytes.
pub fn check_of_file(first_bytes: &[u8]) -> u64 {
    let spread = |it: u64| (it ^ it >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, it| word << 8 | u64::from(*it));
    let begin = spread(first_bytes.len() as u64);
    first_bytes.chunks(8).fold(begin, |sum, it| spread(sum.rotate_left(23) ^ word(it)))
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

/// The gate for launches was opened between these two CLOCK_MONOTONIC times, once or several times: what
/// was launched while it was closed is missing. Precedes the flush that delivers what was launched then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Opened {
    pub first: u64,
    pub last: u64,
}

/// The stack that captured or added a node of a graph, or the node that it is a copy of. The last one of a
/// node holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Node {
    /// As in records of activities; or [`Node::of_graph`].
    pub node: u64,
    /// Stack id.
    pub stack: u32,
    pub reserved: u32,
}

impl Node {
    /// Returns what stands for an executable graph itself: its stack is the one that instantiated it.
    pub const fn of_graph(graph: u32) -> u64 {
        (graph as u64) << 32 | u32::MAX as u64
    }
}

/// A node of an executable graph has become what a node of another graph is, as by `cuGraphExecUpdate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Default)]
#[repr(C)]
pub struct NodeUpdate {
    /// CLOCK_MONOTONIC nanoseconds: launches that begin later run it.
    pub since: u64,
    /// As in records of activities.
    pub node: u64,
    /// Id of the stack that made the other node; 0 if that is unknown.
    pub stack: u32,
    pub reserved: u32,
}

/// A GPU as its process sees it. Followed by its name, padded to 8, and [`GpuLimits`], which older recordings lack. The first one of a process has the
/// number [`UNKNOWN`] and no name: it says that the GPUs of an activity follow, at the latest before the
/// flush that delivers it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Gpu {
    /// The number by which records of this process call it.
    pub device: u32,
    /// Streaming multiprocessors; 0 if unknown.
    pub sms: u32,
    /// Bytes; 0 if unknown.
    pub memory: u64,
    /// Its identity: the same in all processes.
    pub uuid: [u8; 16],
    pub name_len: u64,
}

/// What a multiprocessor of a GPU has room for; all are 0 if that is not known. A handler's words have them in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GpuLimits {
    /// 90 for 9.0.
    pub capability: u64,
    pub threads_per_sm: u64,
    pub blocks_per_sm: u64,
    pub registers_per_sm: u64,
    /// Bytes.
    pub shared_per_sm: u64,
    /// Bytes of shared memory that CUDA takes for each block.
    pub reserved_shared: u64,
}

impl GpuLimits {
    /// Returns what follows a [`Gpu`]: its name, padded, and these.
    pub fn after(&self, name: &[u8]) -> Vec<u8> {
        let mut tail = name.to_vec();
        tail.resize(name.len().next_multiple_of(8), 0);
        tail.extend_from_slice(self.as_bytes());
        tail
    }
}

impl Gpu {
    /// Returns the UUID as nvidia-smi shows it. The driver's name of a part of a GPU tells that it is one:
    /// `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
    pub fn uuid_text(&self, name: &[u8]) -> String {
        let hex: String = self.uuid.iter().map(|it| format!("{it:02x}")).collect();
        let is_part = name.windows(5).any(|it| it == b" MIG ");
        let kind = if is_part { "MIG" } else { "GPU" };
        format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// Whether this word means it: its number in the process, or the beginning of its UUID.
    pub fn is_called(&self, name: &[u8], word: &str) -> bool {
        match word.parse::<u32>() {
            Ok(number) => number == self.device,
            Err(_) => self.uuid_text(name).to_ascii_lowercase().starts_with(&word.to_ascii_lowercase()),
        }
    }
}

/// A decoded record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Launch(Launch),
    Activity(ActivityRecord),
    Host(HostEventRecord),
    Name {
        id: u32,
        text: &'a [u8],
    },
    Code {
        id: u32,
        contents: &'a [u8],
    },
    Stack {
        id: u32,
        frames: Vec<u64>,
        /// Ids of the files that the frames are in.
        objects: Vec<u32>,
    },
    Clock(Clock),
    Flush(Flush),
    Thread(Thread),
    Object {
        object: MappedObject,
        build_id: &'a [u8],
        path: &'a [u8],
        directory: &'a [u8],
    },
    Mapping {
        mapping: Mapping,
        path: &'a [u8],
    },
    Yield {
        gap: Yield,
        holder: &'a [u8],
    },
    Opened(Opened),
    Node(Node),
    NodeUpdate(NodeUpdate),
    Gpu {
        gpu: Gpu,
        limits: GpuLimits,
        name: &'a [u8],
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
/// Maximum number of return addresses in a stack; and of Python frames.
pub const MAX_FRAMES: usize = 256;
/// Maximum number of words in a stack: both, and two marks that say what is missing.
pub const MAX_STACK_WORDS: usize = 2 * MAX_FRAMES + 2;
/// Maximum number of files that a stack's frames are in.
pub const MAX_STACK_OBJECTS: usize = 128;
/// Maximum length of a build id; the collector takes a longer one for none.
pub const MAX_BUILD_ID: usize = 64;
/// Maximum size of a code's contents.
pub const MAX_CODE: usize = 60 << 10;
/// Maximum number of names that a process's collector sends, and of bytes of all of them.
pub const MAX_NAMES: usize = 16 << 10;
pub const MAX_NAME_BYTES: usize = 16 << 20;
/// Maximum length of a name; the collector cuts longer ones.
pub const MAX_NAME: usize = 4096;
/// In a [`Name`] that is a path of NVTX ranges: before the name of each, outermost first.
pub const RANGE_SEPARATOR: u8 = 0x1f;

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
pub struct FramedRecord<'a> {
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
    type Item = FramedRecord<'a>;

    #[inline]
    fn next(&mut self) -> Option<FramedRecord<'a>> {
        prefetch::ahead_of(self.rest);
        let (header, _) = Header::read_from_prefix(self.rest).ok()?;
        let size = header.size as usize;
        if size < size_of::<Header>() || !size.is_multiple_of(8) {
            return None;
        }
        let (whole, rest) = self.rest.split_at_checked(size)?;
        let frame = FramedRecord { header, offset: self.offset, whole };
        self.rest = rest;
        self.offset += size;
        Some(frame)
    }
}

impl<'a> FramedRecord<'a> {
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
        kind::CODE => {
            let (code, tail): (Code, _) = take(body)?;
            let len = Some(code.len as usize).filter(|len| *len <= MAX_CODE)?;
            Record::Code { id: code.id, contents: tail.get(..len)? }
        }
        kind::STACK => {
            let (stack, tail): (Stack, _) = take(body)?;
            let len = Some(usize::from(stack.len)).filter(|len| *len <= MAX_STACK_WORDS)?;
            let bytes = tail.get(..len * 8)?;
            let frames = bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap_or_default()));
            let end = (stack.end != stack_end::ROOT).then_some(u64::from(stack.end));
            let objects = tail.get(len * 8..).and_then(objects_of_stack).unwrap_or_default();
            Record::Stack { id: stack.id, frames: frames.chain(end).collect(), objects }
        }
        kind::CLOCK => Record::Clock(Clock::read(body)?),
        kind::FLUSH => Record::Flush(take(body)?.0),
        kind::THREAD => Record::Thread(take(body)?.0),
        kind::MAPPING => {
            let (mapping, tail): (Mapping, _) = take(body)?;
            let len = usize::try_from(mapping.path_len).ok().filter(|len| *len <= MAX_NAME)?;
            Record::Mapping { mapping, path: tail.get(..len)? }
        }
        kind::OBJECT => {
            let (object, tail): (MappedObject, _) = take(body)?;
            let part = |len: u32, most: usize| Some(len as usize).filter(|len| *len <= most);
            let (build_id, tail) = tail.split_at_checked(part(object.build_id_len.into(), MAX_BUILD_ID)?)?;
            let (path, tail) = tail.split_at_checked(part(object.path_len.into(), MAX_NAME)?)?;
            let directory = tail.get(..part(object.directory_len, MAX_NAME)?)?;
            Record::Object { object, build_id, path, directory }
        }
        kind::YIELD => {
            let (gap, tail): (Yield, _) = take(body)?;
            let len = usize::try_from(gap.len).ok().filter(|len| *len <= MAX_NAME)?;
            Record::Yield { gap, holder: tail.get(..len)? }
        }
        kind::NODE => Record::Node(take(body)?.0),
        kind::NODE_UPDATE => Record::NodeUpdate(take(body)?.0),
        kind::OPENED => Record::Opened(take(body)?.0),
        kind::GPU => {
            let (gpu, tail): (Gpu, _) = take(body)?;
            let len = usize::try_from(gpu.name_len).ok().filter(|len| *len <= MAX_NAME)?;
            let limits = tail.get(len.next_multiple_of(8)..).and_then(|it| take(it)).unwrap_or_default().0;
            Record::Gpu { gpu, limits, name: tail.get(..len)? }
        }
        other if Activity::of_record(other).is_some() => Record::Activity(ActivityRecord::read(other, body)?),
        other if HostEvent::of_record(other).is_some() => Record::Host(HostEventRecord::read(other, body)?),
        other => Record::Unknown(other),
    })
}

/// Reads the ids behind the words of a stack.
fn objects_of_stack(tail: &[u8]) -> Option<Vec<u32>> {
    let (words, _) = tail.as_chunks::<4>();
    let mut words = words.iter().map(|it| u32::from_le_bytes(*it));
    let n = words.next().map(|it| it as usize).filter(|it| *it <= MAX_STACK_OBJECTS)?;
    Some(words.take(n).collect())
}

/// Returns the size of a record with `body` and a tail of `tail` bytes.
pub const fn size_of_record<T>(tail: usize) -> usize {
    (size_of::<Header>() + size_of::<T>() + tail).next_multiple_of(8)
}

/// Encodes a record into exactly [`size_of_record`] bytes.
#[inline]
pub fn encode<T: IntoBytes + Immutable>(kind: u16, body: &T, tail: &[u8], out: &mut [u8]) {
    let (to, padding) = encode_fixed(kind, body, out).split_at_mut(tail.len());
    to.copy_from_slice(tail);
    padding.fill(0);
}

/// As [`encode`], with a tail of several parts.
pub fn encode_parts<T: IntoBytes + Immutable>(kind: u16, body: &T, tail: &[&[u8]], out: &mut [u8]) {
    let mut rest = encode_fixed(kind, body, out);
    for part in tail {
        let (to, after) = rest.split_at_mut(part.len());
        to.copy_from_slice(part);
        rest = after;
    }
    rest.fill(0);
}

/// Encodes what comes before a record's tail; returns the room behind it.
#[inline]
fn encode_fixed<'a, T: IntoBytes + Immutable>(kind: u16, body: &T, out: &'a mut [u8]) -> &'a mut [u8] {
    let header = Header { kind, flags: 0, size: out.len() as u32 };
    let (head, rest) = out.split_at_mut(size_of::<Header>());
    head.copy_from_slice(header.as_bytes());
    let (fixed, rest) = rest.split_at_mut(size_of::<T>());
    fixed.copy_from_slice(body.as_bytes());
    rest
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
    fn a_gpu_is_called_by_its_number_or_the_beginning_of_its_uuid() {
        let gpu = Gpu { device: 3, uuid: std::array::from_fn(|at| at as u8 * 17), ..Gpu::default() };
        assert_eq!(gpu.uuid_text(b"NVIDIA H200"), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(gpu.uuid_text(b"NVIDIA A100 MIG 1g.5gb"), "MIG-00112233-4455-6677-8899-aabbccddeeff");
        let is_called = |word| gpu.is_called(b"NVIDIA H200", word);
        assert!(is_called("3") && is_called("GPU-0011") && is_called("gpu-00112233-4455"));
        assert!(!is_called("0") && !is_called("MIG-0011") && !is_called("GPU-1"));
    }

    #[test]
    fn older_records_of_a_gpu_have_no_limits() {
        let name = b"NVIDIA H200";
        let gpu = Gpu { device: 3, name_len: name.len() as u64, ..Gpu::default() };
        let limits = GpuLimits { capability: 90, reserved_shared: 1024, ..GpuLimits::default() };
        for (tail, limits) in [(name.to_vec(), GpuLimits::default()), (limits.after(name), limits)] {
            let mut bytes = Vec::new();
            push(&mut bytes, kind::GPU, &gpu, &tail);
            let read: Vec<_> = records(&bytes).collect();
            assert_eq!(read, [Ok(Record::Gpu { gpu, limits, name })]);
        }
    }

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
                Record::Stack { id: 1, frames: vec![1, 2], objects: vec![] },
                Record::Unknown(999),
            ]
        );
    }

    #[test]
    fn kinds_are_told_apart() {
        use kind::{CLOCK, CODE, FLUSH, GPU, LAUNCH, MAPPING, NAME, NODE, OPENED, PAD, STACK, THREAD, YIELD};
        let own = [
            PAD,
            LAUNCH,
            NAME,
            STACK,
            CLOCK,
            FLUSH,
            THREAD,
            MAPPING,
            CODE,
            YIELD,
            GPU,
            OPENED,
            NODE,
            kind::NODE_UPDATE,
            kind::OBJECT,
        ];
        let activities = Activity::ALL.iter().map(|it| it.record_kind());
        let calls = HostEvent::ALL.iter().map(|it| it.record_kind());
        let all: Vec<u16> = own.into_iter().chain(activities).chain(calls).collect();
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
    }

    #[test]
    fn python_frames_are_told_from_addresses() {
        for (code, offset) in [(0, 0), (1, 2), (0x7fff_ffff, u32::MAX)] {
            assert_eq!(python_frame::of_word(python_frame::word(code, offset)), Some((code, offset)));
        }
        for address in [0, u64::from(stack_end::PYTHON_TOO_DEEP), 0x7fff_ffff_ffff, (1 << 56) - 1] {
            assert_eq!(python_frame::of_word(address), None);
        }
    }

    #[test]
    fn a_code_has_its_names_in_any_width_of_characters() {
        let (file, name) = ("ä.py".as_bytes(), [0x3b1u16, 0xd800].map(u16::to_le_bytes).concat());
        let latin: Vec<u8> = "ä.py".chars().map(|it| it as u8).collect();
        let head = CodeHead { first_line: 7, file_len: 4, name_len: 4, lines_len: 2, file_width: 1, name_width: 2 };
        let contents = [head.as_bytes(), &latin, &name, &[9, 8]].concat();
        assert_ne!(latin, file);
        let expected =
            PythonCode { first_line: 7, file: "ä.py".into(), name: "α\u{fffd}".into(), lines: [9, 8].into() };
        assert_eq!(PythonCode::decode(&contents), Some(expected));
        assert_eq!(PythonCode::decode(&contents[..contents.len() - 1]), None);
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
    fn a_stack_has_the_files_of_its_frames() {
        let read = |tail: &[u8]| {
            let mut bytes = Vec::new();
            push(&mut bytes, kind::STACK, &Stack { id: 1, len: 1, end: stack_end::ROOT }, tail);
            match records(&bytes).next() {
                Some(Ok(Record::Stack { frames, objects, .. })) => (frames, objects),
                other => panic!("{other:?}"),
            }
        };
        let word = [9, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(read(&word), (vec![9], vec![]), "of an earlier recording");
        assert_eq!(read(&[&word[..], &[2, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]].concat()), (vec![9], vec![5, 6]));
        assert_eq!(read(&[&word[..], &[255; 16]].concat()), (vec![9], vec![]), "too many");
    }

    #[test]
    fn files_differ_by_any_of_their_first_bytes() {
        let bytes: Vec<u8> = (0..=100).collect();
        let mut checks: Vec<u64> = (0..bytes.len())
            .map(|at| {
                let mut other = bytes.clone();
                other[at] ^= 1;
                check_of_file(&other)
            })
            .chain((0..=bytes.len()).map(|len| check_of_file(&bytes[..len])))
            .collect();
        let n = checks.len();
        checks.sort_unstable();
        checks.dedup();
        assert_eq!(checks.len(), n);
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
        let objects = [[7; 16].as_slice(), &[2, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]].concat();
        push(&mut bytes, kind::STACK, &Stack { id: 1, len: 2, end: stack_end::ROOT }, &objects);
        let object = MappedObject { id: 5, build_id_len: 3, path_len: 3, directory_len: 2, ..MappedObject::default() };
        push(&mut bytes, kind::OBJECT, &object, b"abclib/a");
        push(&mut bytes, kind::CODE, &Code { id: 4, len: 12 }, &[1; 12]);
        push(&mut bytes, kind::THREAD, &Thread { tid: 7, reserved: 0, comm: [b'a'; 16] }, &[]);
        let mapping = Mapping { start: 1, end: 2, file_offset: 3, inode: 4, device: 5, path_len: 6 };
        push(&mut bytes, kind::MAPPING, &mapping, b"/a.out");
        push(&mut bytes, kind::LAUNCH, &Launch::default(), &[]);
        push(&mut bytes, kind::CLOCK, &Clock { monotonic_before: 1, realtime: Realtime(2), ..Clock::default() }, &[]);
        push(&mut bytes, kind::KERNEL, &Kernel::default(), &[]);
        push(&mut bytes, Activity::Memset.record_kind(), &Memset::default(), &[]);
        bytes.extend(Header { kind: kind::PAD, flags: 0, size: 8 }.as_bytes());
        push(&mut bytes, kind::FLUSH, &Flush { began: 1, last: 1 }, &[]);
        push(&mut bytes, kind::YIELD, &Yield { began: 1, ended: 2, launches: 3, len: 4 }, b"a.so");
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
                        Some(Record::Stack { frames, objects, .. }) => frames.len() * 8 + objects.len() * 4,
                        Some(Record::Object { build_id, path, directory, .. }) => build_id.len() + path.len() + directory.len(),
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
