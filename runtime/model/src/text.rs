//! Texts of a target, which may hold any bytes, as Rust strings, without loss.
//!
//! A byte that is not part of valid UTF-8 becomes one character of its own, U+10FF80 to U+10FFFF (private
//! use): different bytes are different texts, and [`to_bytes`] returns the bytes. [`Shown`] writes such a
//! byte as `\xe9`.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The character of byte 0; only bytes from 0x80 on ever need theirs.
const BYTES: u32 = 0x10_ff00;

/// Returns the text that stands for `bytes`.
pub fn from_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for it in chunk.valid().chars() {
            match byte_of(it) {
                None => text.push(it),
                // A character of our own in the target's text: kept as the bytes that it is.
                Some(_) => text.extend(it.encode_utf8(&mut [0; 4]).bytes().filter_map(char_of)),
            }
        }
        text.extend(chunk.invalid().iter().copied().filter_map(char_of));
    }
    text
}

/// Returns the bytes that `text` stands for: the inverse of [`from_bytes`].
pub fn to_bytes(text: &str) -> Cow<'_, [u8]> {
    if !text.chars().any(|it| byte_of(it).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for it in text.chars() {
        match byte_of(it) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(it.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// Returns the text up to the first NUL, or to the end: the inverse of [`padded`].
pub fn until_nul(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|it| *it == 0).unwrap_or(bytes.len());
    from_bytes(&bytes[..end])
}

/// Returns the text in two words of a context, padded with NULs: the name of a thread.
pub fn of_words(low: u64, high: u64) -> String {
    until_nul([low, high].map(u64::to_le_bytes).as_flattened())
}

/// Returns the bytes that `text` stands for, as many as fit, with a NUL behind them and zeros to the end.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = to_bytes(text);
    let n = bytes.len().min(N.saturating_sub(1));
    let mut padded = [0; N];
    padded[..n].copy_from_slice(&bytes[..n]);
    padded
}

fn char_of(byte: u8) -> Option<char> {
    char::from_u32(BYTES + u32::from(byte))
}

/// Returns the byte that a character stands for; `None` for a character that is itself.
fn byte_of(it: char) -> Option<u8> {
    u8::try_from(u32::from(it).checked_sub(BYTES)?).ok().filter(|it| *it >= 0x80)
}

/// Returns what a program of the target prints, which may go to a terminal: what could control it, other than line breaks
/// and tabs, as `\x1b`.
pub fn printed(text: &str) -> Cow<'_, str> {
    let is_kept = |it: char| !controls(it) || matches!(it, '\n' | '\t');
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for it in text.chars() {
        // Writing to a string can't fail.
        let _ = if is_kept(it) { shown.write_char(it) } else { write_bytes(it, &mut shown) };
    }
    Cow::Owned(shown)
}

/// Whether a character may change how others are shown: control characters, and those that turn the direction of text
/// (Unicode Standard Annex #9, "Explicit Directional Embeddings, Overrides and Isolates", and the marks).
fn controls(it: char) -> bool {
    const MARKS: [char; 3] = ['\u{61c}', '\u{200e}', '\u{200f}'];
    it.is_control() || matches!(it, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') || MARKS.contains(&it)
}

fn write_bytes(it: char, to: &mut impl Write) -> fmt::Result {
    it.encode_utf8(&mut [0; 4]).bytes().try_for_each(|byte| write!(to, "\\x{byte:02x}"))
}

/// A text as it is written for people and programs: bytes that are not UTF-8 as `\xe9`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    pub text: &'a str,
    /// Whether it must stay on one line: control characters are escaped too, as `\n`, `\t`, `\r` or their bytes.
    pub one_line: bool,
    /// Whether different texts must be written differently: where the text itself holds what reads like
    /// an escape, the backslash is written `\x5c`.
    pub distinct: bool,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, it) in self.text.char_indices() {
            match (byte_of(it), it) {
                (Some(byte), _) => write!(f, "\\x{byte:02x}")?,
                (_, '\n') if self.one_line => f.write_str("\\n")?,
                (_, '\t') if self.one_line => f.write_str("\\t")?,
                (_, '\r') if self.one_line => f.write_str("\\r")?,
                (_, it) if self.one_line && controls(it) => write_bytes(it, f)?,
                (_, '\\') if self.distinct && self.is_escape(&self.text.as_bytes()[at + 1..]) => {
                    f.write_str("\\x5c")?;
                }
                _ => f.write_char(it)?,
            }
        }
        Ok(())
    }
}

impl Shown<'_> {
    /// Whether what follows a backslash makes it read like an escape.
    fn is_escape(&self, rest: &[u8]) -> bool {
        match rest {
            [b'x', high, low, ..] => high.is_ascii_hexdigit() && low.is_ascii_hexdigit(),
            [b'n' | b't' | b'r', ..] => self.one_line,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(bytes: &[u8]) -> String {
        Shown { text: &from_bytes(bytes), one_line: true, distinct: true }.to_string()
    }

    #[test]
    fn what_is_printed_can_do_nothing_to_a_terminal() {
        assert_eq!(printed("a\tb\nc"), "a\tb\nc");
        assert_eq!(printed("\x1b[31mred\u{9b}0m\r"), "\\x1b[31mred\\xc2\\x9b0m\\x0d");
        assert_eq!(printed("a\u{202e}b"), "a\\xe2\\x80\\xaeb");
    }

    #[test]
    fn bytes_round_trip_and_read_differently() {
        let texts: [&[u8]; 16] = [
            b"caf\xe9",
            b"caf\xe8",
            b"caf\\xe9",
            b"caf\\x5cxe9",
            b"caf\\\xe9",
            b"caf\\\\xe9",
            b"a\nb",
            b"a\\nb",
            b"a\\\nb",
            b"a\x01b",
            b"a\\x01b",
            "caf\u{e9}".as_bytes(),
            "\u{10ffe9}".as_bytes(),
            b"\xe9",
            "\u{85}".as_bytes(),
            b"C:\\dir",
        ];
        let mut all: Vec<String> = texts.iter().map(|it| line(it)).collect();
        for text in texts {
            assert_eq!(*to_bytes(&from_bytes(text)), *text, "{text:?}");
        }
        let shown = [r"caf\xe9", r"caf\xe8", r"caf\x5cxe9"];
        assert_eq!(all[..3], shown);
        assert_eq!((&*all[6], &*all[9], &*all[15]), (r"a\nb", r"a\x01b", r"C:\dir"));
        all.sort();
        all.dedup();
        assert_eq!(all.len(), texts.len(), "{all:?}");
    }

    #[test]
    fn a_text_of_several_lines_keeps_them() {
        let text = from_bytes(b"a\n\xff\\x41");
        assert_eq!(Shown { text: &text, one_line: false, distinct: false }.to_string(), "a\n\\xff\\x41");
    }
}
