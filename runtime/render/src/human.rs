//! Numbers for people: three digits and a unit.

use xputrace_model::schema::Unit;

/// A step of a unit's scale: its size in base units, and its name.
type Step = (u64, &'static str);

const NANOS: &[Step] = &[(1, "ns"), (1_000, "us"), (1_000_000, "ms"), (1_000_000_000, "s")];
const BYTES: &[Step] = &[
    (1, "B"),
    (1 << 10, "KiB"),
    (1 << 20, "MiB"),
    (1 << 30, "GiB"),
    (1 << 40, "TiB"),
    (1 << 50, "PiB"),
    (1 << 60, "EiB"),
];

/// Returns a number with its noun.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Formats `value` with its unit in three digits: `3.10 ms`, `64.0 KiB`. Values below the first
/// step (`412 ns`, `17 B`), whole numbers above 1000 (`1023 KiB`, `86400 s`) and values without a
/// unit are exact.
pub fn human(value: i64, unit: Unit) -> String {
    match scale(unit) {
        Some(steps) => rounded(value, steps),
        None => value.to_string(),
    }
}

/// Formats `value` with its unit and all digits (`1.5 ms`, `1.234567 ms`, `64 KiB`, `1000 B`), for
/// bounds that must not be rounded.
pub(crate) fn exact(value: i64, unit: Unit) -> String {
    match unit {
        Unit::None | Unit::Clock | Unit::Mixed => value.to_string(),
        Unit::Nanos => exact_nanos(value),
        Unit::Bytes => exact_bytes(value),
    }
}

/// Formats a power of two like bpftrace's histogram bounds (`512`, `1K`, `2M`); other values are
/// exact.
pub(crate) fn binary(value: i64) -> String {
    const NAMES: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut value = value;
    let mut step = 0;
    while value != 0 && value % 1024 == 0 && step + 1 < NAMES.len() {
        value /= 1024;
        step += 1;
    }
    format!("{value}{}", NAMES[step])
}

fn scale(unit: Unit) -> Option<&'static [Step]> {
    match unit {
        Unit::None | Unit::Clock | Unit::Mixed => None,
        Unit::Nanos => Some(NANOS),
        Unit::Bytes => Some(BYTES),
    }
}

fn rounded(value: i64, steps: &[Step]) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let magnitude = value.unsigned_abs();
    let mut at = steps.iter().rposition(|(size, _)| magnitude >= *size).unwrap_or(0);
    // Rounding up can reach the next step: 999 999 ns is `1.00 ms`, not `1000 us`.
    if let Some((next, _)) = steps.get(at + 1)
        && at > 0
        && round_div(magnitude, steps[at].0).saturating_mul(steps[at].0) >= *next
    {
        at += 1;
    }
    let (size, name) = steps[at];
    if at == 0 {
        return format!("{sign}{magnitude} {name}");
    }
    format!("{sign}{} {name}", three_digits(magnitude, size))
}

/// Formats `magnitude / size`, rounded half up, with enough decimals for three digits.
fn three_digits(magnitude: u64, size: u64) -> String {
    for decimals in [2u32, 1] {
        let factor = 10u64.pow(decimals);
        let scaled = round_mul_div(magnitude, factor, size);
        if scaled < 1000 {
            return format!("{}.{:0width$}", scaled / factor, scaled % factor, width = decimals as usize);
        }
    }
    round_div(magnitude, size).to_string()
}

fn round_div(a: u64, b: u64) -> u64 {
    round_mul_div(a, 1, b)
}

fn round_mul_div(a: u64, factor: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(factor) + u128::from(b / 2);
    u64::try_from(product / u128::from(b)).unwrap_or(u64::MAX)
}

fn exact_nanos(value: i64) -> String {
    let magnitude = value.unsigned_abs();
    let (size, name) = NANOS.iter().rev().find(|(size, _)| magnitude >= *size).copied().unwrap_or(NANOS[0]);
    let digits = size.ilog10() as usize;
    let sign = if value < 0 { "-" } else { "" };
    let whole = magnitude / size;
    let rest = format!("{:0digits$}", magnitude % size);
    match rest.trim_end_matches('0') {
        "" => format!("{sign}{whole} {name}"),
        decimals => format!("{sign}{whole}.{decimals} {name}"),
    }
}

fn exact_bytes(value: i64) -> String {
    let magnitude = value.unsigned_abs();
    let (size, name) = BYTES
        .iter()
        .rev()
        .find(|(size, _)| magnitude >= *size && magnitude.is_multiple_of(*size))
        .copied()
        .unwrap_or(BYTES[0]);
    format!("{}{} {name}", if value < 0 { "-" } else { "" }, magnitude / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_digits_and_a_unit() {
        for (value, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_995, "10.0 us"),
            (3_100_000, "3.10 ms"),
            (31_000_000, "31.0 ms"),
            (310_000_000, "310 ms"),
            (999_499, "999 us"),
            (999_999, "1.00 ms"),
            (86_400_000_000_000, "86400 s"),
            (-1_500, "-1.50 us"),
            (i64::MIN, "-9223372037 s"),
        ] {
            assert_eq!(human(value, Unit::Nanos), expected);
        }
        for (value, expected) in [
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (65_536, "64.0 KiB"),
            (1023 << 10, "1023 KiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (i64::MAX, "8.00 EiB"),
        ] {
            assert_eq!(human(value, Unit::Bytes), expected);
        }
        assert_eq!(human(-7, Unit::None), "-7");
    }

    #[test]
    fn exact_numbers_keep_their_digits() {
        assert_eq!(exact(1_500_000, Unit::Nanos), "1.5 ms");
        assert_eq!(exact(1_234_567, Unit::Nanos), "1.234567 ms");
        assert_eq!(exact(0, Unit::Nanos), "0 ns");
        assert_eq!(exact(-2_000, Unit::Nanos), "-2 us");
        assert_eq!(exact(1000, Unit::Bytes), "1000 B");
        assert_eq!(exact(65_536, Unit::Bytes), "64 KiB");
        assert_eq!([0, 512, 1024, 1280, 1 << 20, 1 << 62].map(binary), ["0", "512", "1K", "1280", "1M", "4E"]);
    }

    proptest! {
        #[test]
        fn any_value_is_short(value in any::<i64>(), bytes in any::<bool>()) {
            let unit = if bytes { Unit::Bytes } else { Unit::Nanos };
            prop_assert!(human(value, unit).len() <= 13);
        }
    }
}
