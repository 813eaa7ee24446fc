//! Durations and rates in scripts: `100.ms`, `1.5.ms`, `99.hz`.
//!
//! All are nanoseconds. A rate is the time between two events, so `99.hz` and `10.ms` are
//! interchangeable.

use rhai::Dynamic;
use xputrace_bytecode::insn::Alu;
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::schema::Unit;

/// Nanoseconds in a second.
pub(crate) const SECOND: i64 = 1_000_000_000;

/// The units with their nanoseconds; `hz` is handled separately.
pub(crate) const NANOS: &[(&str, i64)] =
    &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", SECOND), ("minutes", 60 * SECOND), ("hours", 3600 * SECOND)];

/// Converts `n` of `unit` to nanoseconds; `None` for an unknown unit, an invalid rate, or a result
/// beyond 64 bits.
pub fn whole(n: i64, unit: &str) -> Option<i64> {
    match unit {
        "hz" if n > 0 => Some((SECOND + n / 2) / n),
        _ => NANOS.iter().find(|(name, _)| *name == unit).and_then(|(_, nanos)| n.checked_mul(*nanos)),
    }
}

/// Returns the unit of values from both; a number without a unit takes the other's.
pub fn join_unit(a: Unit, b: Unit) -> Unit {
    match (a, b) {
        (Unit::None, other) | (other, Unit::None) => other,
        (a, b) if a == b => a,
        _ => Unit::Mixed,
    }
}

/// Whether dividing by a plain number converts nanoseconds or bytes to a larger unit: the result
/// then has no unit that we know. Any other division takes a share of a time, which is a time.
fn is_conversion(unit: Unit, divisor: i64) -> bool {
    let thousands = (1..=6).map(|it| 1000i64.pow(it));
    match unit {
        Unit::Nanos => thousands.into_iter().any(|it| it == divisor),
        Unit::Bytes => thousands.chain((1..=6).map(|it| 1024i64.pow(it))).any(|it| it == divisor),
        _ => false,
    }
}

/// Returns the unit of a result: sums keep it, a time divided by a time has none. `b_is` is the second number, if it is
/// known.
pub fn of_result(op: Alu, a: Unit, b: Unit, b_is: Option<i64>) -> Unit {
    match (op, a, b) {
        (Alu::Div, a, _) if b_is.is_some_and(|it| is_conversion(a, it)) => Unit::None,
        (Alu::Sub, Unit::Clock, Unit::Clock) | (Alu::Mod, Unit::Clock, Unit::Nanos) => Unit::Nanos,
        (Alu::Add | Alu::Sub, Unit::Clock, Unit::Nanos) | (Alu::Add, Unit::Nanos, Unit::Clock) => Unit::Clock,
        (Alu::Add | Alu::Sub | Alu::And | Alu::Or | Alu::Xor, a, b) => join_unit(a, b),
        (Alu::Mul, Unit::None, unit) | (Alu::Mul, unit, Unit::None) => unit,
        (Alu::Mul, ..) => Unit::None,
        (Alu::Div, unit, Unit::None) => unit,
        (Alu::Div, ..) => Unit::None,
        (_, unit, _) => unit,
    }
}

/// Returns the arithmetic operation that an operator stands for, of those that keep units in interpreted handlers.
pub fn operation(operator: &str) -> Option<Alu> {
    Some(match operator {
        "+" => Alu::Add,
        "-" => Alu::Sub,
        "*" => Alu::Mul,
        "/" => Alu::Div,
        "%" => Alu::Mod,
        _ => return None,
    })
}

/// The units that an integer of the interpreter may carry, by its tag.
const TAGGED: [Unit; 5] = [Unit::None, Unit::Nanos, Unit::Clock, Unit::Mixed, Unit::Bytes];

/// Returns an integer of the interpreter that carries its unit.
pub(crate) fn tagged(n: i64, unit: Unit) -> Dynamic {
    let mut value = Dynamic::from_int(n);
    value.set_tag(TAGGED.iter().position(|it| *it == unit).unwrap_or(0) as i32);
    value
}

/// Returns the unit that such an integer carries.
pub(crate) fn of_tagged(value: &Dynamic) -> Unit {
    usize::try_from(value.tag()).ok().and_then(|it| TAGGED.get(it)).copied().unwrap_or(Unit::None)
}

/// Whether a name is a unit.
pub fn is_unit(name: &str) -> bool {
    whole(1, name).is_some()
}

/// Says why [`whole`] returned `None` for a unit.
pub fn refusal(n: i64, unit: &str) -> (String, &'static str) {
    match unit {
        "hz" => (format!("{n} times a second is not a valid rate"), "a rate must be at least 1 per second: `99.hz`"),
        _ => (format!("{n} {unit} in nanoseconds exceeds 64 bits"), "the longest time is 292 years"),
    }
}

/// The diagnostic for a unit applied to what is a time already.
pub fn of_a_time(unit: &str, label: Label) -> Diagnostic {
    let diagnostic = Diagnostic::error("unit", format!("this is a time already, so `.{unit}` makes no sense"), label);
    match unit {
        "hz" => diagnostic.help("a rate is `1.s / time`"),
        _ => diagnostic.help(format!("a time is in nanoseconds; to count {unit}, divide it: `/ 1.{unit}`")),
    }
}

/// Lists the units, for messages.
pub fn names() -> String {
    NANOS.iter().map(|it| it.0).chain(["hz"]).collect::<Vec<_>>().join(", ")
}

/// Formats a time in the largest unit, up to seconds, that divides it: `250 ms`.
pub(crate) fn shown(nanos: i64) -> String {
    let (unit, one) = largest(nanos);
    format!("{} {unit}", nanos / one)
}

/// Returns the largest unit, up to seconds, that divides a time, and its nanoseconds.
pub(crate) fn largest(nanos: i64) -> (&'static str, i64) {
    let unit = NANOS.iter().take(4).rev().find(|(_, one)| nanos % one == 0);
    unit.copied().unwrap_or(("ns", 1))
}

/// Converts a decimal number of `unit` to nanoseconds; `None` if the result is not whole or the
/// unit is unknown.
pub(crate) fn fraction(number: &str, unit: &str) -> Option<i64> {
    let n: f64 = number.replace('_', "").parse().ok()?;
    if unit == "hz" {
        return (n > 0.0).then(|| (SECOND as f64 / n).round() as i64);
    }
    let (_, one) = NANOS.iter().find(|(name, _)| *name == unit)?;
    let nanos = n * *one as f64;
    let whole = nanos.round();
    // Decimal fractions are inexact in binary: 1.1 × 1,000,000 is slightly off.
    let near = (nanos - whole).abs() <= whole.abs() * 1e-12;
    (near && whole.abs() < 9e18).then_some(whole as i64)
}

/// Parses a time with a unit on the command line: `200ms`, `1.5s`, `99hz`, `250.us`.
pub(crate) fn parse(text: &str) -> Option<i64> {
    let digits = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(digits);
    let number = number.strip_suffix('.').unwrap_or(number);
    match number.contains('.') {
        false => whole(integer(number)?, unit),
        true => fraction(number, unit),
    }
}

/// Parses an integer on the command line: `200`, `-3`, `1_000_000`.
pub(crate) fn integer(text: &str) -> Option<i64> {
    text.replace('_', "").parse().ok()
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
    fn times_are_shown_in_the_largest_unit_that_divides_them() {
        assert_eq!(shown(250_000_000), "250 ms");
        assert_eq!(shown(-1_000_000_000), "-1 s");
        assert_eq!(shown(10_101_010), "10101010 ns");
        assert_eq!(shown(3_600_000_000_000), "3600 s");
    }

    #[test]
    fn durations_on_the_command_line() {
        assert_eq!(parse("1.5ms"), Some(1_500_000));
        assert_eq!(parse("250.us"), Some(250_000));
        assert_eq!(parse("-3s"), Some(-3_000_000_000));
        assert_eq!(parse("200"), None);
        assert_eq!(parse("1.5"), None);
        assert_eq!(parse("ms"), None);
        assert_eq!(parse("9999999999s"), None);
        assert_eq!(parse("0hz"), None);
    }
}
