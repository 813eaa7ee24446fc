//! The log-linear bucketing shared by `hist`, its sub-buckets and `quantiles`.
//!
//! With `2^bits` sub-buckets per octave, a positive value `v` with leading bit `e` falls into
//! sub-bucket `(v >> (e - bits)) - 2^bits` of octave `e`; values below `2^bits` are exact. The
//! compiler emits the same arithmetic as eBPF; `index` defines it.

use std::collections::BTreeMap;

/// Sub-bucket bits of `hist(x)`: one bucket per power of two, as in bpftrace.
pub const HIST_BITS: u32 = 0;
/// Sub-bucket bits of `quantiles(x)`: 32 buckets per octave, relative error at most 1/32.
pub const QUANTILE_BITS: u32 = 5;

/// Returns the bucket of `value`. Negative values share bucket −1; 0 has its own.
///
/// For `bits == 0`: 0 → 0, 1 → 1, 2..=3 → 2, 4..=7 → 3, and so on.
pub fn index(value: i64, bits: u32) -> i64 {
    if value < 0 {
        return -1;
    }
    let v = value as u64;
    if v < (1 << bits) {
        return v as i64;
    }
    let exponent = 63 - v.leading_zeros();
    let sub = (v >> (exponent - bits)) - (1 << bits);
    ((u64::from(exponent - bits + 1) << bits) + sub) as i64
}

/// Returns the lowest and highest value of bucket `index`, inclusive.
pub fn bounds(index: i64, bits: u32) -> (i64, i64) {
    if index < 0 {
        return (i64::MIN, -1);
    }
    let i = index as u64;
    if i < (1 << bits) {
        return (index, index);
    }
    let shift = (i >> bits) - 1;
    let low = ((i & ((1 << bits) - 1)) + (1 << bits)) << shift;
    (low as i64, (low + ((1 << shift) - 1)) as i64)
}

/// Returns the bucket of `value` where negative values have buckets too: they mirror the others, and −1 mirrors 0.
pub fn signed_index(value: i64, bits: u32) -> i64 {
    if value < 0 { !index(!value, bits) } else { index(value, bits) }
}

/// Returns the bounds of any bucket number of [`signed_index`].
pub fn signed_bounds(index: i64, bits: u32) -> Bounds {
    if index >= 0 {
        return log_bounds(index, bits);
    }
    let mirrored = log_bounds(!index, bits);
    Bounds { min: mirrored.max.map(|it| !it), max: mirrored.min.map(|it| !it) }
}

/// Returns the first bucket up to which at least `percent` of all values lie, or `None` if there are no values.
pub fn percentile(buckets: &BTreeMap<i64, u64>, percent: f64) -> Option<i64> {
    let total = buckets.values().fold(0u64, |sum, n| sum.saturating_add(*n));
    let rank = ((total as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64).max(1);
    let mut seen = 0u64;
    let found = buckets.iter().find(|(_, n)| {
        seen = seen.saturating_add(**n);
        seen >= rank
    });
    found.map(|(index, _)| *index)
}

/// Returns the bounds of any bucket number: damaged data may contain any.
pub fn log_bounds(index: i64, bits: u32) -> Bounds {
    if index < 0 {
        return Bounds { min: None, max: Some(-1) };
    }
    let (min, max) = bounds(index.min(self::index(i64::MAX, bits)), bits);
    Bounds { min: Some(min), max: Some(max) }
}

/// Returns the bucket of `value` in a linear histogram: −1 below `min`, [`last_linear`] from `max`
/// on.
pub fn linear(value: i64, min: i64, max: i64, step: i64) -> i64 {
    match value {
        _ if value < min => -1,
        _ if value >= max => last_linear(min, max, step),
        _ => (value.wrapping_sub(min) as u64 / step.max(1) as u64) as i64,
    }
}

/// Returns the bucket of all values from `max` on.
pub fn last_linear(min: i64, max: i64, step: i64) -> i64 {
    let span = (i128::from(max) - i128::from(min)).max(0) as u128;
    span.div_ceil(step.max(1) as u128) as i64
}

/// Returns the bounds of bucket `index` of a linear histogram; the one below `max` may be narrower.
pub fn linear_bounds(index: i64, min: i64, max: i64, step: i64) -> Bounds {
    if index < 0 {
        return Bounds { min: None, max: Some(min.saturating_sub(1)) };
    }
    let step = i128::from(step.max(1));
    let low = i128::from(min) + i128::from(index) * step;
    if low >= i128::from(max) {
        return Bounds { min: Some(max), max: None };
    }
    Bounds { min: Some(low as i64), max: Some(((low + step).min(max.into()) - 1) as i64) }
}

/// The range of a bucket, inclusive; `None` where it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_start_buckets() {
        assert_eq!([-1, 0, 1, 2, 3, 4, 7, 8, 1023, 1024].map(|v| index(v, 0)), [-1, 0, 1, 2, 2, 3, 3, 4, 10, 11]);
    }

    #[test]
    fn every_value_lies_within_the_bounds_of_its_bucket() {
        for bits in [0, 1, 5] {
            for shift in 0..63 {
                for delta in [-1i64, 0, 1] {
                    let v = (1i64 << shift) + delta;
                    let (low, high) = bounds(index(v, bits), bits);
                    assert!(low <= v && v <= high, "{v} bits {bits}: {low}..={high}");
                }
            }
            let (low, high) = bounds(index(i64::MAX, bits), bits);
            assert!(low < high && high == i64::MAX);
        }
    }

    #[test]
    fn buckets_are_contiguous() {
        for bits in [0, 5] {
            for i in 0..(58 << bits) {
                assert_eq!(bounds(i, bits).1 + 1, bounds(i + 1, bits).0);
            }
        }
    }

    #[test]
    fn linear_buckets_hold_their_values_whatever_the_step() {
        for (min, max, step) in [(0, 10, 3), (-5, 5, 2), (0, 12, 4), (i64::MIN, i64::MAX, i64::MAX)] {
            for value in [min, min.saturating_add(1), -1, 0, 3, 8, 9, 10, 11, max - 1, max] {
                let Bounds { min: low, max: high } = linear_bounds(linear(value, min, max, step), min, max, step);
                assert!(low.is_none_or(|it| it <= value), "{value} in {min}..{max} by {step}");
                assert!(high.is_none_or(|it| value <= it), "{value} in {min}..{max} by {step}");
            }
        }
        assert_eq!([9, 10].map(|it| linear(it, 0, 10, 3)), [3, 4], "the last step is narrower");
    }

    #[test]
    fn negative_values_have_the_mirror_of_the_others_buckets() {
        for value in [i64::MIN, i64::MIN + 1, -1_000_000, -100, -33, -32, -2, -1, 0, 1, 100, i64::MAX] {
            let index = signed_index(value, QUANTILE_BITS);
            let Bounds { min: Some(min), max: Some(max) } = signed_bounds(index, QUANTILE_BITS) else { panic!() };
            assert!(min <= value && value <= max, "{value} in {min}..={max}");
            assert!(max.abs_diff(value) <= value.unsigned_abs() / 32, "{value} in {min}..={max}");
        }
        let indices: Vec<i64> = (-5000..5000).map(|it| signed_index(it, QUANTILE_BITS)).collect();
        assert!(indices.is_sorted(), "buckets are in the order of their values");
    }

    #[test]
    fn a_percentile_is_the_bucket_that_reaches_its_rank() {
        let buckets = BTreeMap::from([(-3, 1), (0, 0), (2, 8), (9, 1)]);
        let of = |percent| percentile(&buckets, percent).unwrap();
        assert_eq!([0.0, 10.0, 11.0, 90.0, 91.0, 100.0].map(of), [-3, -3, 2, 2, 9, 9]);
        assert_eq!(percentile(&BTreeMap::new(), 50.0), None);
        assert_eq!(percentile(&BTreeMap::from([(1, 0)]), 50.0), None);
    }
}
