//! Damages inputs: blindly, and as one who knows that there are numbers, lengths and words in them.

use super::MOST_INPUT_BYTES;
use fastrand::Rng;

/// Most changes of an input, as a power of two.
const MOST_CHANGES: u32 = 4;
/// Bytes at the ends of an input that are hit more often: formats have their headers and tables there.
const ENDS: usize = 128;
/// Numbers as texts have them.
const NUMBERS: &[&str] =
    &["0", "-1", "1", "255", "4294967295", "9223372036854775807", "-9223372036854775808", "18446744073709551615"];
const HEX: &[&str] = &["0x0", "0x7fffffffffffffff", "0xffffffffffffffff", "ffffffffffffffff", "fffffffffffff000"];

/// Returns a changed input of the pool, which is not empty.
pub(crate) fn mutated(rng: &mut Rng, pool: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = pool[rng.usize(..pool.len())].clone();
    let other = &pool[rng.usize(..pool.len())];
    for _ in 0..1 << rng.u32(0..=MOST_CHANGES) {
        change(rng, &mut bytes, other, words);
    }
    bytes.truncate(MOST_INPUT_BYTES);
    bytes
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, other: &[u8], words: &[&str]) {
    if bytes.is_empty() {
        return bytes.extend_from_slice(part(rng, other));
    }
    let at = place(rng, bytes.len());
    match rng.u32(0..16) {
        0 | 1 => bytes[at] ^= 1 << rng.u32(0..8),
        2 => bytes[at] = rng.u8(..),
        3..=5 => put_number(rng, bytes, at),
        6 => nudge_number(rng, bytes, at),
        7 => inflate_length(rng, bytes),
        8 => bytes.truncate(at),
        9 => splice(rng, bytes, at, other),
        10 => overwrite(bytes, at, part(rng, other)),
        11 => {
            let block = part(rng, &bytes[at..]).to_vec();
            insert(bytes, at, &block.repeat(1 << rng.u32(0..8)));
        }
        12 => drop(bytes.drain(at..(at + rng.usize(0..=64)).min(bytes.len()))),
        13 => {
            let block = part(rng, bytes).to_vec();
            overwrite(bytes, at, &block);
        }
        14 => {
            let texts = if rng.bool() { NUMBERS } else { HEX };
            replace_number(bytes, at, rng.choice(texts).unwrap_or(&"").as_bytes());
        }
        _ => {
            let word = rng.choice(words).copied().unwrap_or("\0\0\0\0");
            insert(bytes, at, word.as_bytes());
        }
    }
}

/// Returns some place in so many bytes, which are more than none.
fn place(rng: &mut Rng, len: usize) -> usize {
    let ends = ENDS.min(len);
    match rng.u32(0..8) {
        0 => rng.usize(..ends),
        1 => len - 1 - rng.usize(..ends),
        2 | 3 => rng.usize(..len) & !7,
        _ => rng.usize(..len),
    }
}

/// Returns some of the bytes, mostly few.
fn part<'a>(rng: &mut Rng, bytes: &'a [u8]) -> &'a [u8] {
    let most = (1 << rng.u32(0..16)).min(bytes.len());
    let len = rng.usize(0..=most);
    let at = rng.usize(0..=bytes.len() - len);
    &bytes[at..at + len]
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    bytes[at..].iter_mut().zip(with).for_each(|(to, from)| *to = *from);
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let room = MOST_INPUT_BYTES.saturating_sub(bytes.len());
    bytes.splice(at..at, what.iter().copied().take(room));
}

/// Puts the end of another input behind the beginning of this one.
fn splice(rng: &mut Rng, bytes: &mut Vec<u8>, at: usize, other: &[u8]) {
    bytes.truncate(at);
    let from = if rng.bool() { at.min(other.len()) } else { rng.usize(0..=other.len()) };
    bytes.extend_from_slice(&other[from..]);
}

/// Numbers at which something changes in many formats.
fn interesting(rng: &mut Rng, len: usize) -> u64 {
    let base = match rng.u32(0..6) {
        0 => 0,
        1 => 1 << rng.u32(0..64),
        2 => u64::MAX >> rng.u32(0..64),
        3 => len as u64,
        4 => rng.u64(..) >> rng.u32(0..64),
        _ => rng.usize(0..=len) as u64,
    };
    base.wrapping_add(rng.u64(0..3)).wrapping_sub(1)
}

fn width(rng: &mut Rng) -> usize {
    1 << rng.u32(0..4)
}

fn put_number(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let number = interesting(rng, bytes.len());
    let width = width(rng);
    match rng.u32(0..8) {
        0 => overwrite(bytes, at, &number.to_be_bytes()[8 - width..]),
        _ => overwrite(bytes, at, &number.to_le_bytes()[..width]),
    }
}

fn number_at(bytes: &[u8], at: usize, width: usize) -> u64 {
    (0..width).fold(0, |sum, it| sum | u64::from(bytes.get(at + it).copied().unwrap_or(0)) << (8 * it))
}

fn nudge_number(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let width = width(rng);
    let number = number_at(bytes, at, width).wrapping_add(rng.u64(0..=64)).wrapping_sub(32);
    overwrite(bytes, at, &number.to_le_bytes()[..width]);
}

/// Looks for what may be a length, and makes it larger.
fn inflate_length(rng: &mut Rng, bytes: &mut [u8]) {
    let width = 2 << rng.u32(0..3);
    let places = std::iter::repeat_with(|| place(rng, bytes.len()) & !1).take(32).collect::<Vec<_>>();
    let is_length = |it: &usize| (1..=bytes.len() as u64).contains(&number_at(bytes, *it, width));
    let Some(at) = places.into_iter().find(is_length) else { return };
    let length = number_at(bytes, at, width);
    let larger = [length + 1, length + 8, length * 2, bytes.len() as u64, 1 << 20, 1 << 31, u64::MAX >> 1, u64::MAX];
    overwrite(bytes, at, &rng.choice(larger).unwrap_or(0).to_le_bytes()[..width]);
}

/// Puts another number in place of the digits at a place, or beside it.
fn replace_number(bytes: &mut Vec<u8>, at: usize, number: &[u8]) {
    let is_digit = |it: &u8| it.is_ascii_hexdigit();
    let from = at + bytes[at..].iter().position(is_digit).unwrap_or(0);
    let len = bytes[from..].iter().take_while(|it| is_digit(it)).count();
    bytes.splice(from..from + len, number.iter().copied());
}
