//! Code objects, read in place.

use crate::layout::{self, Layout};

/// What a frame runs, by its contents. They are borrowed from the code object, which its frame keeps.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// Where the object is. Once it is freed another may have its place.
    pub address: u64,
    /// The line that the function begins at.
    pub first_line: u32,
    /// `co_filename`.
    pub file: PyString<'a>,
    /// `co_qualname`.
    pub name: PyString<'a>,
    /// `co_linetable`: the lines of its instructions (CPython, `Objects/locations.md` up to 3.12,
    /// `InternalDocs/code_objects.md` since).
    pub lines: &'a [u8],
}

/// A string of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PyString<'a> {
    /// Bytes per character: 1, 2 or 4. Characters are code points, in the machine's byte order.
    pub width: u8,
    pub bytes: &'a [u8],
}

/// The longest text that is read, in bytes; longer ones are cut.
const MOST_TEXT: u64 = 4096;
/// The longest table of lines that is read; the lines behind it are unknown.
const MOST_LINES: u64 = 48 << 10;

/// Bits of a string's `state`.
mod state {
    pub(super) const KIND_AT: u32 = 2;
    pub(super) const KIND_MASK: u32 = 7;
    pub(super) const IS_COMPACT: u32 = 0x20;
    pub(super) const IS_ASCII: u32 = 0x40;
}

/// Reads a member of an object.
///
/// # Safety
/// The member is readable, and of this type.
#[inline]
pub(crate) unsafe fn member<T: Copy>(object: u64, at: u64) -> T {
    // SAFETY: the caller promises that the member is readable and of this type.
    unsafe { ((object + at) as *const T).read_unaligned() }
}

/// Whether this may be the address of an object: a member that is not set is 0.
#[inline]
pub(crate) fn is_object(address: u64) -> bool {
    address != 0 && address.is_multiple_of(8) && address < 1 << 56
}

impl<'a> Code<'a> {
    /// Reads a code object; `None` if its names are no plain strings.
    ///
    /// # Safety
    /// A code object of this layout is at `address`, and stays through `'a`.
    #[inline]
    pub(crate) unsafe fn read(layout: &Layout, address: u64) -> Option<Self> {
        // SAFETY: members of a code object, which has references to its parts.
        unsafe {
            Some(Code {
                address,
                first_line: member(address, layout.code.first_line),
                file: PyString::read(&layout.text, member(address, layout.code.file))?,
                name: PyString::read(&layout.text, member(address, layout.code.name))?,
                lines: bytes(layout, member(address, layout.code.lines))?,
            })
        }
    }
}

impl<'a> PyString<'a> {
    /// # Safety
    /// `address` is 0 or that of a string that stays through `'a`.
    #[inline]
    unsafe fn read(layout: &layout::TextOffsets, address: u64) -> Option<Self> {
        if !is_object(address) {
            return None;
        }
        // SAFETY: members of a string, behind which its characters are if it is compact.
        unsafe {
            let state: u32 = member(address, layout.state);
            let width = state >> state::KIND_AT & state::KIND_MASK;
            if state & state::IS_COMPACT == 0 || !matches!(width, 1 | 2 | 4) {
                return None;
            }
            let at = if state & state::IS_ASCII != 0 { layout.ascii } else { layout.others };
            let len = member::<u64>(address, layout.length).min(MOST_TEXT / u64::from(width)) * u64::from(width);
            let bytes = std::slice::from_raw_parts((address + at) as *const u8, len as usize);
            Some(PyString { width: width as u8, bytes })
        }
    }
}

/// # Safety
/// `address` is 0 or that of a `bytes` object that stays through `'a`.
#[inline]
unsafe fn bytes<'a>(layout: &Layout, address: u64) -> Option<&'a [u8]> {
    let [length, data] = layout.bytes;
    // SAFETY: members of such an object, whose bytes are in it.
    is_object(address).then(|| unsafe {
        let len = member::<u64>(address, length).min(MOST_LINES);
        std::slice::from_raw_parts((address + data) as *const u8, len as usize)
    })
}
