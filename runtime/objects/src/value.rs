//! Values as they are typed on the command line → bytes, by their types.

use xputrace_bytecode::object::Layout;

/// Converts a value. Members and elements are separated by commas, and may be in braces; those that are left out are
/// zeros. The error is a sentence.
pub(crate) fn encode(layout: &Layout, text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; layout.bytes() as usize];
    let around = |it: char| it == '{' || it == '}' || it.is_whitespace();
    let words: Vec<&str> = match layout {
        Layout::Struct { .. } | Layout::Array { .. } => text.split(',').map(|it| it.trim_matches(around)).collect(),
        _ => vec![text.trim()],
    };
    let mut rest = words.iter().copied();
    fill(layout, &mut bytes, &mut rest)?;
    match rest.count() {
        0 => Ok(bytes),
        n => Err(format!("`{text}` has {n} values more than its type")),
    }
}

fn fill<'t>(layout: &Layout, bytes: &mut [u8], words: &mut impl Iterator<Item = &'t str>) -> Result<(), String> {
    match layout {
        Layout::Struct { members, .. } => {
            for it in members {
                let at = it.at as usize;
                fill(&it.layout, &mut bytes[at..at + it.layout.bytes() as usize], words)?;
            }
            Ok(())
        }
        Layout::Array { of, .. } => {
            let size = (of.bytes() as usize).max(1);
            bytes.chunks_exact_mut(size).try_for_each(|it| fill(of, it, words))
        }
        scalar => match words.next() {
            Some(word) => one(scalar, bytes, word),
            None => Ok(()),
        },
    }
}

fn one(layout: &Layout, bytes: &mut [u8], word: &str) -> Result<(), String> {
    let size = bytes.len();
    let value = match layout {
        Layout::Bool => match word {
            "true" | "1" => vec![1],
            "false" | "0" => vec![0],
            _ => return Err(format!("`{word}` is neither true nor false")),
        },
        Layout::Int { is_signed, .. } if size <= 8 => {
            number(word, size as u32 * 8, *is_signed)?.to_le_bytes()[..size].to_vec()
        }
        Layout::Bits { shift, n_bits, is_signed, .. } => {
            // Other members may be in the same bytes.
            let mask = ((1_i128 << n_bits) - 1) << shift;
            let value = (number(word, *n_bits, *is_signed)? << shift) & mask;
            let mut before = [0; 16];
            before[..size].copy_from_slice(bytes);
            ((i128::from_le_bytes(before) & !mask) | value).to_le_bytes()[..size].to_vec()
        }
        Layout::Float { bytes: 4 } => parsed::<f32>(word)?.to_le_bytes().to_vec(),
        Layout::Float { .. } => parsed::<f64>(word)?.to_le_bytes().to_vec(),
        Layout::Text { .. } => word.trim_matches('"').as_bytes().to_vec(),
        _ => hex(word).ok_or_else(|| format!("`{word}` is no bytes: write their hexadecimal digits, as in 01ff"))?,
    };
    match value.len() > size {
        true => Err(format!("`{word}` has more than {size} bytes")),
        false => {
            bytes[..value.len()].copy_from_slice(&value);
            Ok(())
        }
    }
}

fn parsed<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

/// Converts `7`, `-7` or `0x7`, which must fit into so many bits.
fn number(word: &str, bits: u32, is_signed: bool) -> Result<i128, String> {
    let (is_negative, digits) = word.strip_prefix('-').map_or((false, word), |it| (true, it));
    // Unsigned: digits have no sign of their own.
    let parsed = match digits.strip_prefix("0x") {
        Some(it) => u64::from_str_radix(it, 16),
        None => digits.parse(),
    };
    let parsed = parsed.ok().filter(|_| !digits.starts_with('+') && !digits.starts_with("0x+"));
    let parsed = i128::from(parsed.ok_or_else(|| format!("`{word}` is no number"))?);
    let number = if is_negative { -parsed } else { parsed };
    let range = match is_signed {
        true => -(1_i128 << (bits - 1))..1 << (bits - 1),
        false => 0..1 << bits,
    };
    match range.contains(&number) {
        true => Ok(number),
        false => Err(format!("{word} is out of its type's range, {} to {}", range.start, range.end - 1)),
    }
}

fn hex(word: &str) -> Option<Vec<u8>> {
    let word = word.strip_prefix("0x").unwrap_or(word);
    let is_whole = word.is_ascii() && word.len().is_multiple_of(2);
    let bytes = (0..word.len()).step_by(2).map(|at| u8::from_str_radix(&word[at..at + 2], 16).ok());
    is_whole.then(|| bytes.collect())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_bytecode::object::Field;

    #[test]
    fn numbers_are_checked_against_their_type() {
        let int = |bytes, is_signed| Layout::Int { bytes, is_signed };
        assert_eq!(encode(&int(2, true), "-2"), Ok(vec![0xfe, 0xff]));
        assert_eq!(encode(&int(8, false), "0xffffffffffffffff"), Ok(vec![0xff; 8]));
        assert_eq!(encode(&int(1, false), "256"), Err("256 is out of its type's range, 0 to 255".into()));
        assert_eq!(encode(&int(4, false), "-1"), Err("-1 is out of its type's range, 0 to 4294967295".into()));
        assert_eq!(encode(&int(4, false), "many"), Err("`many` is no number".into()));
    }

    #[test]
    fn members_follow_each_other() {
        let field = |name: &str, at, layout| Field { name: name.into(), at, layout };
        let two = Layout::Array { of: Box::new(Layout::Int { bytes: 2, is_signed: false }), n: 2 };
        let members =
            vec![field("on", 0, Layout::Bool), field("two", 2, two), field("name", 6, Layout::Text { bytes: 4 })];
        let layout = Layout::Struct { name: String::new(), bytes: 10, members };
        assert_eq!(encode(&layout, "{true, {1, 2}, ab}"), Ok(vec![1, 0, 1, 0, 2, 0, b'a', b'b', 0, 0]));
        assert_eq!(encode(&layout, "false,3"), Ok(vec![0, 0, 3, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(encode(&layout, "0,1,2,abcde"), Err("`abcde` has more than 4 bytes".into()));
        assert!(encode(&layout, "0,1,2,a,5").is_err());
    }

    #[test]
    fn bit_fields_keep_their_neighbours() {
        let bits = |name: &str, shift: u32, n_bits: u32, is_signed| Field {
            name: name.into(),
            at: 0,
            layout: Layout::Bits { bytes: (shift + n_bits).div_ceil(8), shift, n_bits, is_signed },
        };
        let members = vec![bits("a", 0, 3, false), bits("b", 3, 7, true), bits("c", 10, 1, false)];
        let layout = Layout::Struct { name: String::new(), bytes: 4, members };
        assert_eq!(encode(&layout, "5,-2,1"), Ok((5_u32 | 126 << 3 | 1 << 10).to_le_bytes().to_vec()));
        assert_eq!(encode(&layout, "8"), Err("8 is out of its type's range, 0 to 7".into()));
    }

    #[test]
    fn floats_are_those_of_their_size() {
        assert_eq!(encode(&Layout::Float { bytes: 4 }, "-0.5"), Ok((-0.5_f32).to_le_bytes().to_vec()));
        assert_eq!(encode(&Layout::Float { bytes: 8 }, "1e300"), Ok(1e300_f64.to_le_bytes().to_vec()));
        assert_eq!(encode(&Layout::Float { bytes: 8 }, "one"), Err("`one` is no number".into()));
    }

    #[test]
    fn other_values_are_bytes() {
        let layout = Layout::Bytes { bytes: 3 };
        assert_eq!(encode(&layout, "0102"), Ok(vec![1, 2, 0]));
        assert!(encode(&layout, "1").is_err() && encode(&layout, "01020304").is_err());
    }
}
