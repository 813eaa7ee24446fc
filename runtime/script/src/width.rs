//! Integers narrower than 64 bits in scripts: `e.retval.i32`.
//!
//! A register has 64 bits. If a function returns an `int`, the upper half is undefined; the result
//! is the sign-extended low half.

/// An integer width: the property's name, its bits, and whether it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    pub name: &'static str,
    pub bits: u32,
    pub signed: bool,
}

const fn width(name: &'static str, bits: u32, signed: bool) -> Width {
    Width { name, bits, signed }
}

/// Every width. `i64` changes nothing: it says that all 64 bits are meant.
pub const WIDTHS: &[Width] = &[
    width("i8", 8, true),
    width("u8", 8, false),
    width("i16", 16, true),
    width("u16", 16, false),
    width("i32", 32, true),
    width("u32", 32, false),
    width("i64", 64, true),
];

impl Width {
    /// Returns the width of a property.
    pub fn of(name: &str) -> Option<Width> {
        WIDTHS.iter().copied().find(|it| it.name == name)
    }

    /// Returns the width of an integer of so many bytes; `None` for all 64 bits.
    pub fn of_bytes(bytes: u32, signed: bool) -> Option<Width> {
        WIDTHS.iter().copied().find(|it| it.bits == 8 * bytes && it.signed == signed && it.above() > 0)
    }

    /// Returns the number of bits above it.
    pub fn above(self) -> u32 {
        64 - self.bits
    }

    /// Returns the low bits of an integer, sign-extended if the width is signed.
    pub fn of_integer(self, n: i64) -> i64 {
        let high = n << self.above();
        if self.signed { high >> self.above() } else { (high as u64 >> self.above()) as i64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_bits_have_their_sign() {
        let of = |name: &str, n| Width::of(name).map(|it| it.of_integer(n));
        assert_eq!(of("i32", 0xffff_ffff), Some(-1));
        assert_eq!(of("i32", 0x1_7fff_ffff), Some(i64::from(i32::MAX)));
        assert_eq!(of("u32", -1), Some(i64::from(u32::MAX)));
        assert_eq!((of("i16", 0x8000), of("u16", -1)), (Some(-0x8000), Some(0xffff)));
        assert_eq!((of("i8", 0x1ff), of("u8", -1)), (Some(-1), Some(255)));
        assert_eq!((of("i64", i64::MIN), of("i33", 1)), (Some(i64::MIN), None));
    }
}
