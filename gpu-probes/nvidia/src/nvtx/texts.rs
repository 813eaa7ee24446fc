//! Names of ranges, domains and registered strings, and paths of ranges, for the process's life.

use super::handles::{Handles, NvtxHandle};
use super::schemas::size_in;
use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use xputrace_agent::intern::{Store, UNKNOWN_RANGE};
use xputrace_agent::ranges::{Payload, RangeDetails};
use xputrace_wire::events::PayloadFloat;
use xputrace_wire::record::{MAX_NAME, RANGE_SEPARATOR};

/// Bytes of a name; the rest is cut.
const MOST_NAME: usize = 512;
const TEXTS: usize = 16 << 10;
const TEXT_BYTES: usize = 4 << 20;

static STORE: OnceLock<Option<Store>> = OnceLock::new();
/// The texts of registered strings, and the names of domains.
static NAMED: Handles<4096, 1> = Handles::new();

/// `wchar_t` on Linux.
pub(super) type Wide = u32;

/// Reserves memory for the texts; returns whether there is any.
pub(super) fn prepare() -> bool {
    STORE.get_or_init(|| Store::new(TEXTS, TEXT_BYTES).ok()).is_some()
}

/// The number of a path: names of ranges, each with [`RANGE_SEPARATOR`] before it. 0 is the empty path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RangePath(u32);

impl RangePath {
    pub(super) const NONE: RangePath = RangePath(0);
    /// There was no room.
    const UNKNOWN: RangePath = RangePath(u32::MAX);

    fn of(parts: &[&[u8]]) -> RangePath {
        let store = STORE.get().and_then(Option::as_ref);
        store.and_then(|it| it.find(parts).ok()).map_or(RangePath::UNKNOWN, RangePath)
    }

    /// Returns the number as a word, and the inverse.
    pub(super) fn word(self) -> u64 {
        self.0.into()
    }

    pub(super) fn from_word(word: u64) -> RangePath {
        RangePath(word as u32)
    }

    /// Returns the path that a range of this name has inside this one.
    pub(super) fn with(self, name: &[u8]) -> RangePath {
        let name = &name[..name.len().min(MOST_NAME)];
        let path = self.c_str().to_bytes();
        let has_room = path.len() + 1 + name.len() <= MAX_NAME;
        RangePath::of(&[if has_room { path } else { "\u{1f}…".as_bytes() }, &[RANGE_SEPARATOR], name])
    }

    /// Returns the name of the innermost range.
    pub(super) fn last_name(self) -> &'static [u8] {
        let path = self.c_str().to_bytes();
        path.rsplit(|it| *it == RANGE_SEPARATOR).next().unwrap_or(path)
    }

    pub(super) fn c_str(self) -> &'static CStr {
        let known =
            STORE.get().and_then(Option::as_ref).filter(|_| self != RangePath::UNKNOWN && self != RangePath::NONE);
        match (self, known.and_then(|it| it.get_with_nul(self.0))) {
            (_, Some(bytes)) => CStr::from_bytes_with_nul(bytes).unwrap_or(c""),
            (RangePath::NONE, None) => c"",
            (_, None) => UNKNOWN_RANGE,
        }
    }
}

/// Notes the text of a registered string, or the name of a domain.
pub(super) fn name_handle(handle: NvtxHandle, name: &[u8]) {
    NAMED.set(handle, [u64::from(RangePath::NONE.with(name).0)]);
}

/// Returns what [`name_handle`] noted, as a path; [`RangePath::NONE`] for the default domain.
pub(super) fn path_of(handle: NvtxHandle) -> RangePath {
    NAMED.get(handle).map_or(RangePath::NONE, |[it]| RangePath(it as u32))
}

/// Returns what [`name_handle`] noted; empty for the default domain.
pub(super) fn name_of(handle: NvtxHandle) -> &'static [u8] {
    path_of(handle).c_str().to_bytes().get(1..).unwrap_or_default()
}

/// `nvtxEventAttributes_t`.
#[repr(C)]
pub(super) struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    /// How many payloads there are, if they have schemas.
    payload_count: i32,
    payload: u64,
    message_type: i32,
    message: *const std::ffi::c_void,
}

/// `nvtxPayloadType_t`: the numbers; and `NVTX_PAYLOAD_TYPE_EXT`, a list of payloads with schemas.
mod payload_type {
    pub(super) const UNSIGNED_64: i32 = 1;
    pub(super) const SIGNED_64: i32 = 2;
    pub(super) const DOUBLE: i32 = 3;
    pub(super) const UNSIGNED_32: i32 = 4;
    pub(super) const SIGNED_32: i32 = 5;
    pub(super) const FLOAT: i32 = 6;
    pub(super) const WITH_SCHEMAS: i32 = 0xdfbd_0009_u32 as i32;
}

/// `nvtxColorType_t`.
const ARGB: i32 = 1;

/// `nvtxMessageType_t`.
mod message_type {
    pub(super) const ASCII: i32 = 1;
    pub(super) const UNICODE: i32 = 2;
    pub(super) const REGISTERED: i32 = 3;
}

/// A name as the program passes it to NVTX.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name {
    Ascii(*const c_char),
    Wide(*const Wide),
    Attributes(*const Attributes),
}

impl Name {
    /// Runs something with the name's bytes.
    ///
    /// # Safety
    /// The pointer is null or what NVTX's functions take: a string with its end, attributes with the message that they
    /// say.
    pub(super) unsafe fn with<R>(self, run: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Name::Ascii(text) if text.is_null() => run(b""),
            // SAFETY: the caller promises what NVTX's functions take, here and below: null, a string with its end, or
            // attributes with the message that they say.
            Name::Ascii(text) => run(unsafe { CStr::from_ptr(text) }.to_bytes()),
            Name::Wide(text) => {
                let mut buffer = [0; MOST_NAME];
                // SAFETY: as above.
                let len = unsafe { narrowed(text, &mut buffer) };
                run(&buffer[..len])
            }
            // SAFETY: as above.
            Name::Attributes(attributes) => match unsafe { message(attributes) } {
                // SAFETY: as above.
                Some(Message::Text(name)) => unsafe { name.with(run) },
                Some(Message::Registered(handle)) => run(name_of(handle)),
                None => run(b""),
            },
        }
    }
}

impl Name {
    /// Returns what else the program says of an event of a domain.
    ///
    /// # Safety
    /// As for [`Name::with`]; the attributes have as many payloads as they say, and each payload null or as many bytes
    /// as it says.
    pub(super) unsafe fn details(self, domain: NvtxHandle) -> RangeDetails {
        let Name::Attributes(attributes) = self else { return RangeDetails::default() };
        // SAFETY: the caller promises that the attributes are null or of the size that they say.
        unsafe { whole(attributes) }.map_or(RangeDetails::default(), |it| RangeDetails {
            category: it.category,
            color: (it.color_type == ARGB).then_some(it.color),
            payload: match it.payload_type {
                payload_type::UNSIGNED_64 | payload_type::SIGNED_64 => Some(Payload::integer(it.payload as i64)),
                payload_type::UNSIGNED_32 => Some(Payload::integer((it.payload as u32).into())),
                payload_type::SIGNED_32 => Some(Payload::integer((it.payload as i32).into())),
                payload_type::DOUBLE => Some(Payload { bits: it.payload as i64, float: Some(PayloadFloat::Double) }),
                payload_type::FLOAT => {
                    Some(Payload { bits: (it.payload as u32).into(), float: Some(PayloadFloat::Single) })
                }
                payload_type::WITH_SCHEMAS => {
                    let count = usize::try_from(it.payload_count).unwrap_or(0);
                    // SAFETY: the caller promises as many payloads as the attributes say, each with null or as many
                    // bytes as it says.
                    let size = unsafe { size_in(domain, it.payload as *const _, count) };
                    size.map(|it| Payload::integer(it as i64))
                }
                _ => None,
            },
        })
    }
}

enum Message {
    Text(Name),
    Registered(NvtxHandle),
}

/// # Safety
/// `attributes` is null or points to attributes of the size that they say.
unsafe fn message(attributes: *const Attributes) -> Option<Message> {
    // SAFETY: the caller promises null or attributes of the size that they say.
    let it = unsafe { whole(attributes) }?;
    match it.message_type {
        message_type::ASCII => Some(Message::Text(Name::Ascii(it.message.cast()))),
        message_type::UNICODE => Some(Message::Text(Name::Wide(it.message.cast()))),
        message_type::REGISTERED => Some(Message::Registered(it.message as NvtxHandle)),
        _ => None,
    }
}

/// # Safety
/// As for [`message`].
unsafe fn whole<'a>(attributes: *const Attributes) -> Option<&'a Attributes> {
    // SAFETY: the caller promises null or attributes of the size that they say.
    unsafe { attributes.as_ref() }.filter(|it| usize::from(it.size) >= size_of::<Attributes>())
}

/// Writes a wide string as UTF-8, cut to what fits; returns its length.
///
/// # Safety
/// `text` is null or a string of wide characters with a 0 at its end.
unsafe fn narrowed(text: *const Wide, to: &mut [u8; MOST_NAME]) -> usize {
    if text.is_null() {
        return 0;
    }
    let mut len = 0;
    // SAFETY: the caller promises a string of wide characters with a 0 at its end, where this ends.
    let characters = (0..).map(|at| unsafe { text.add(at).read_unaligned() }).take_while(|it| *it != 0);
    for character in characters.map(|it| char::from_u32(it).unwrap_or(char::REPLACEMENT_CHARACTER)) {
        if len + character.len_utf8() > to.len() {
            break;
        }
        len += character.encode_utf8(&mut to[len..]).len();
    }
    len
}
