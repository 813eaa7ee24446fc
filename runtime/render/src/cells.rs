//! Fitting text into columns, and reading single cells of a map.

use std::collections::BTreeMap;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use xputrace_model::bucket;
use xputrace_model::table::TableKind;
use xputrace_model::text::Shown;

/// Shortens `text` to `width` columns, replacing its middle with `…`. Escapes control characters, which
/// would break the line.
pub fn shorten(text: &str, width: usize) -> String {
    let text = one_line(text);
    if columns(&text) <= width {
        return text;
    }
    if width == 0 {
        return String::new();
    }
    let head = take_columns(text.chars(), width / 2);
    let room = width - 1 - columns(&head);
    let tail: String = take_columns(text.chars().rev(), room).chars().rev().collect();
    format!("{head}…{tail}")
}

/// Shortens each text to `width` columns; different texts stay different except in very narrow
/// columns.
pub fn shorten_all(texts: &[String], width: usize) -> Vec<String> {
    let mut short: Vec<String> = texts.iter().map(|it| shorten(it, width)).collect();
    for group in alike(&short) {
        let whole: Vec<&str> = group.iter().map(|it| texts[*it].as_str()).collect();
        if whole.iter().all(|it| *it == whole[0]) {
            continue;
        }
        let apart = told_apart(&whole, &vec![width; whole.len()]);
        group.into_iter().zip(apart).for_each(|(at, it)| short[at] = it);
    }
    short
}

/// Returns the positions of equal items, for each item that occurs more than once.
pub(crate) fn alike<T: Ord>(items: &[T]) -> Vec<Vec<usize>> {
    let mut places: BTreeMap<&T, Vec<usize>> = BTreeMap::new();
    items.iter().enumerate().for_each(|(at, it)| places.entry(it).or_default().push(at));
    places.into_values().filter(|it| it.len() > 1).collect()
}

/// Shortens texts that would read the same without their middles: keeps the start and the place
/// where each differs from its closest neighbour. Numbers them if that is not enough.
pub(crate) fn told_apart(texts: &[&str], widths: &[usize]) -> Vec<String> {
    let texts: Vec<String> = texts.iter().map(|it| one_line(it)).collect();
    let mut order: Vec<usize> = (0..texts.len()).collect();
    order.sort_by_key(|it| &texts[*it]);
    let common = |a: usize, b: usize| match texts[a] == texts[b] {
        true => 0,
        false => texts[a].chars().zip(texts[b].chars()).take_while(|(a, b)| a == b).count(),
    };
    let mut apart = vec![String::new(); texts.len()];
    for (i, at) in order.iter().copied().enumerate() {
        let before = i.checked_sub(1).map_or(0, |it| common(order[it], at));
        let behind = order.get(i + 1).map_or(0, |it| common(*it, at));
        apart[at] = around(&texts[at], before.max(behind), widths[at]);
    }
    for group in alike(&apart).into_iter().filter(|it| it.iter().any(|at| texts[*at] != texts[it[0]])) {
        for (n, at) in (1..).zip(group) {
            let number = format!(" #{n}");
            let text = shorten(&texts[at], widths[at].saturating_sub(number.len()));
            apart[at] = shorten(&format!("{text}{number}"), widths[at]);
        }
    }
    apart
}

/// Returns the start of a text and what surrounds character `place`.
fn around(text: &str, place: usize, width: usize) -> String {
    /// Characters shown before `place`.
    const BEFORE: usize = 4;
    let head = take_columns(text.chars(), width / 3);
    let skipped = place.saturating_sub(BEFORE).max(head.chars().count());
    let rest: String = text.chars().skip(skipped).collect();
    let room = width.saturating_sub(columns(&head) + 1);
    if columns(&rest) <= room {
        let tail: String = take_columns(text.chars().rev(), room).chars().rev().collect();
        return shorten(&format!("{head}…{tail}"), width);
    }
    let part = take_columns(rest.chars(), room.saturating_sub(1));
    shorten(&format!("{head}…{part}…"), width)
}

/// Makes a text of the target printable on one line; different texts stay different.
pub(crate) fn printable(text: &str) -> String {
    Shown { text, one_line: true, distinct: true }.to_string()
}

/// Formats a text of the target, whose lines stay lines; different texts stay different.
pub fn shown_text(text: &str) -> String {
    Shown { text, one_line: false, distinct: true }.to_string()
}

/// Makes a text printable on one line; what was made so before stays as it is.
pub fn one_line(text: &str) -> String {
    Shown { text, one_line: true, distinct: false }.to_string()
}

/// Returns the terminal columns that a text takes.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

/// Pads `text` with spaces to `width` columns.
pub(crate) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(columns(text))))
}

/// Wraps `text` at spaces into lines of at most `width` columns, indenting all but the first.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let word = shorten(word, width.saturating_sub(indent).max(1));
        match lines.last_mut() {
            None => lines.push(word),
            Some(last) if columns(last) + 1 + columns(&word) <= width => {
                last.push(' ');
                last.push_str(&word);
            }
            Some(_) => lines.push(format!("{}{word}", " ".repeat(indent.min(width / 2)))),
        }
    }
    lines.join("\n")
}

fn take_columns(chars: impl Iterator<Item = char>, width: usize) -> String {
    let mut used = 0;
    chars
        .take_while(|it| {
            used += it.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// Returns the rows of a histogram from the first used bucket to the last, filling gaps with 0. A
/// damaged map with distant buckets shows only the used ones.
pub(crate) fn filled(buckets: &BTreeMap<i64, u64>) -> Vec<(i64, u64)> {
    const MOST: i64 = 4096;
    let used: Vec<i64> = buckets.iter().filter(|(_, n)| **n > 0).map(|(index, _)| *index).collect();
    let (Some(first), Some(last)) = (used.first(), used.last()) else { return Vec::new() };
    if last.saturating_sub(*first) > MOST {
        return used.iter().map(|it| (*it, buckets[it])).collect();
    }
    (*first..=*last).map(|it| (it, buckets.get(&it).copied().unwrap_or(0))).collect()
}

/// The values that `quantiles` prints. Each is the upper bound of its bucket: at least that share
/// of the values is not larger, and it is at most 1/32 too high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantiles {
    pub count: u64,
    pub p50: i64,
    pub p90: i64,
    pub p99: i64,
    pub max: i64,
}

/// Returns the quantiles of a `quantiles(x)` map, or `None` if it is empty.
pub(crate) fn quantiles(buckets: &BTreeMap<i64, u64>) -> Option<Quantiles> {
    let count = buckets.values().fold(0u64, |sum, n| sum.saturating_add(*n));
    let upper = |index: i64| TableKind::Quantiles.bucket_bounds(index).max.unwrap_or(i64::MAX);
    let at = |percent| bucket::percentile(buckets, percent).map(upper);
    Some(Quantiles { count, p50: at(50.0)?, p90: at(90.0)?, p99: at(99.0)?, max: at(100.0)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_middle_goes_first() {
        assert_eq!(shorten("vectorized_elementwise_kernel", 11), "vecto…ernel");
        assert_eq!(shorten("short", 5), "short");
        assert_eq!(shorten("a\nb", 9), "a\\nb");
        assert_eq!(shorten("语言语言", 5), "语…言");
        assert_eq!(shorten("abc", 0), "");
    }

    #[test]
    fn what_differs_stays_different() {
        let names = |width| {
            let names =
                ["64x64_stage5", "128x64_stage5", "128x64_stage6"].map(|it| format!("sm80_xmma_{it}_kernel_tn"));
            shorten_all(&names, width)
        };
        assert_eq!(names(40)[1], "sm80_xmma_128x64_stage5_kernel_tn", "what fits is whole");
        assert_eq!(names(20), ["sm80_x…mma_64x64_st…", "sm80_x…tage5_kernel…", "sm80_x…tage6_kernel…"]);
        for width in 6..40 {
            let short = names(width);
            assert!(alike(&short).is_empty() && short.iter().all(|it| columns(it) <= width), "{width} {short:?}");
        }
        let same = ["a long name".to_owned(), "a long name".to_owned()];
        assert_eq!(shorten_all(&same, 7), ["a l…ame", "a l…ame"], "what is equal stays equal");
    }

    #[test]
    fn words_wrap_and_hang() {
        assert_eq!(wrapped("one two three four", 9, 2), "one two\n  three\n  four");
    }

    #[test]
    fn quantiles_are_upper_bounds_within_a_32nd() {
        let mut buckets = BTreeMap::new();
        for value in 1..=1000 {
            *buckets.entry(TableKind::Quantiles.bucket(value)).or_default() += 1;
        }
        let q = quantiles(&buckets).unwrap();
        for (got, exact) in [(q.p50, 500), (q.p90, 900), (q.p99, 990), (q.max, 1000)] {
            assert!(got >= exact && got - exact <= exact / 32, "{got} for {exact}");
        }
        assert_eq!(quantiles(&BTreeMap::new()), None);
    }

    proptest! {
        #[test]
        fn shortened_text_fits(text in any::<String>(), width in 0usize..60) {
            prop_assert!(columns(&shorten(&text, width)) <= width);
        }
    }
}
