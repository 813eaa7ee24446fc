//! Durations and rates as scripts write them: `100.ms`, `1.5.ms`, `99.hz`.
//!
//! All are nanoseconds; a rate is the time between two events, so `99.hz` and `10.ms` can stand
//! in the same places.

/// Nanoseconds in a second.
pub(crate) const SECOND: i64 = 1_000_000_000;

/// The names of units and the nanoseconds of one; `hz` is apart.
pub(crate) const NANOS: &[(&str, i64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", SECOND), ("minutes", 60 * SECOND), ("hours", 3600 * SECOND)];

/// `n` of `unit` in nanoseconds; wraps as all integers of scripts do. `None` for no unit.
pub(crate) fn whole(n: i64, unit: &str) -> Option<i64> {
    match unit {
        "hz" if n > 0 => Some((SECOND + n / 2) / n),
        _ => NANOS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| n.wrapping_mul(*nanos)),
    }
}

/// A number with a fraction, of `unit`, in nanoseconds; `None` where it is no whole number of
/// them, or no unit.
pub(crate) fn fraction(number: &str, unit: &str) -> Option<i64> {
    let n: f64 = number.replace('_', "").parse().ok()?;
    if unit == "hz" {
        return (n > 0.0).then(|| (SECOND as f64 / n).round() as i64);
    }
    let (_, one) = NANOS.iter().find(|(name, _)| *name == unit)?;
    let nanos = n * *one as f64;
    let whole = nanos.round();
    // Decimal fractions are not exact in binary: 1.1 × 1,000,000 misses by a hair.
    let near = (nanos - whole).abs() <= whole.abs() * 1e-12;
    (near && whole.abs() < 9e18).then_some(whole as i64)
}

/// A duration on the command line: `200`, `200ms`, `1.5s`, `99hz`.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    match (unit, number.contains('.')) {
        ("", false) => number.replace('_', "").parse().ok(),
        (_, false) => whole(number.replace('_', "").parse().ok()?, unit),
        (_, true) => fraction(number, unit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_whole_nanoseconds_or_nothing() {
        assert_eq!(fraction("1.5", "ms"), Some(1_500_000));
        assert_eq!(fraction("1.1", "s"), Some(1_100_000_000));
        assert_eq!(fraction("1.5", "ns"), None);
        assert_eq!(fraction("1.5", "furlongs"), None);
        assert_eq!(whole(99, "hz"), Some(10_101_010));
    }

    #[test]
    fn durations_on_the_command_line() {
        assert_eq!(parse("200"), Some(200));
        assert_eq!(parse("-3"), Some(-3));
        assert_eq!(parse("1.5ms"), Some(1_500_000));
        assert_eq!(parse("1.5"), None);
        assert_eq!(parse("ms"), None);
    }
}
