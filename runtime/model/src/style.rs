//! How a script wants a printed value: `.human`, `.hex`, `.pad(n)`.

use crate::schema::Unit;

/// Longest hexadecimal text of an integer: `0x` and 16 digits.
pub const HEX_BYTES: usize = 18;

/// Most columns that [`padded`] fills.
pub const MOST_COLUMNS: i64 = 256;

/// The form of a printed value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    pub digits: Digits,
    /// Columns that it fills at least, as in [`padded`]; 0 for no more than it has.
    pub columns: i16,
}

/// How an integer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Digits {
    #[default]
    Decimal,
    /// With this unit, in three digits.
    Human(Unit),
    Hex,
}

/// Writes the 64 bits of an integer: `0x1f`.
pub fn hex(n: i64) -> String {
    format!("{n:#x}")
}

/// Fills a text with spaces up to so many columns: before it, or after it if `columns` is negative.
pub fn padded(text: &str, columns: i64) -> String {
    let width = usize::try_from(columns.unsigned_abs().min(MOST_COLUMNS.unsigned_abs())).unwrap_or_default();
    if columns < 0 { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_filled_from_either_side() {
        assert_eq!((padded("ab", 4), padded("ab", -4)), ("  ab".into(), "ab  ".into()));
        assert_eq!((padded("abcde", 4), padded("é", 2)), ("abcde".into(), " é".into()));
        assert_eq!(padded("", i64::MIN).len(), 256);
    }

    #[test]
    fn negative_numbers_show_their_bits() {
        assert_eq!((hex(0), hex(255), hex(-1).len()), ("0x0".into(), "0xff".into(), HEX_BYTES));
    }
}
