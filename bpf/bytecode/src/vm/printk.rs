//! Formats what `trace_printk` prints.
//!
//! Source: Linux's `bpf_bprintf_prepare` (`kernel/bpf/helpers.c`); of its conversions, those without a `p` that names a
//! kernel object.

use std::fmt::Write as _;

/// Bytes of a printed line; a longer one is cut.
const MOST_BYTES: usize = 1024;

/// Returns the line, without its final newline; `None` if the format has a conversion that is not known, or more than
/// there are arguments. `text` reads the text that an argument points to.
pub fn line(format: &[u8], args: &[u64], mut text: impl FnMut(u64) -> Option<Vec<u8>>) -> Option<String> {
    let format = format.split(|it| *it == 0).next().unwrap_or_default();
    let format = String::from_utf8_lossy(format);
    let mut rest = format.chars().peekable();
    let mut args = args.iter().copied();
    let mut out = String::new();
    while let Some(it) = rest.next() {
        if it != '%' {
            out.push(it);
            continue;
        }
        if rest.next_if_eq(&'%').is_some() {
            out.push('%');
            continue;
        }
        let mut take = |wanted: &dyn Fn(char) -> bool| {
            let mut taken = String::new();
            while let Some(it) = rest.next_if(|it| wanted(*it)) {
                taken.push(it);
            }
            taken
        };
        let flags = take(&|it| "-0 #+".contains(it));
        let width = take(&|it| it.is_ascii_digit()).parse().unwrap_or(0).min(MOST_BYTES);
        let length = take(&|it| "lhz".contains(it));
        let argument = || args.next();
        let shown = conversion(rest.next()?, &length, &flags, argument, &mut text)?;
        pad(&mut out, &shown, width, &flags);
    }
    let mut end = out.trim_end_matches('\n').len().min(MOST_BYTES);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    Some(out)
}

fn conversion(
    kind: char,
    length: &str,
    flags: &str,
    mut argument: impl FnMut() -> Option<u64>,
    text: &mut impl FnMut(u64) -> Option<Vec<u8>>,
) -> Option<String> {
    let number = argument()?;
    let unsigned = match length {
        "hh" => number & 0xff,
        "h" => number & 0xffff,
        "" => number & 0xffff_ffff,
        _ => number,
    };
    let signed = match length {
        "hh" => i64::from(number as i8),
        "h" => i64::from(number as i16),
        "" => i64::from(number as i32),
        _ => number as i64,
    };
    let prefix = |it: &'static str| if flags.contains('#') { it } else { "" };
    Some(match kind {
        'd' | 'i' if flags.contains('+') => format!("{signed:+}"),
        'd' | 'i' => signed.to_string(),
        'u' => unsigned.to_string(),
        'x' => format!("{}{unsigned:x}", prefix("0x")),
        'X' => format!("{}{unsigned:X}", prefix("0X")),
        'p' => format!("{number:#x}"),
        'c' => String::from(char::from(number as u8)),
        's' => String::from_utf8_lossy(&text(number)?).into_owned(),
        _ => return None,
    })
}

fn pad(out: &mut String, shown: &str, width: usize, flags: &str) {
    // Writing to a string cannot fail.
    let _ = match (flags.contains('-'), flags.contains('0')) {
        (true, _) => write!(out, "{shown:<width$}"),
        (_, true) => {
            let (sign, digits) = shown.split_at(usize::from(shown.starts_with(['-', '+'])));
            write!(out, "{sign}{digits:0>rest$}", rest = width.saturating_sub(sign.len()))
        }
        _ => write!(out, "{shown:>width$}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(format: &str, args: &[u64]) -> Option<String> {
        line(format.as_bytes(), args, |at| (at == 7).then(|| b"text".to_vec()))
    }

    #[test]
    fn conversions_are_those_of_linux() {
        let all = "%d %u %x|%5d|%-5u|%05d|%%|%#llx|%lld|%hhu|%c|%s\n\0rest";
        let args = [u64::MAX, u64::MAX, 255, 7, 8, (-42_i64) as u64, 1 << 40, u64::MAX, 0x1ff, 65, 7];
        assert_eq!(
            shown(all, &args).as_deref(),
            Some("-1 4294967295 ff|    7|8    |-0042|%|0x10000000000|-1|255|A|text")
        );
    }

    #[test]
    fn what_is_not_known_is_refused() {
        assert_eq!(shown("%f", &[1]), None);
        assert_eq!(shown("%d", &[]), None, "no argument");
        assert_eq!(shown("%s", &[8]), None, "no text there");
        assert_eq!(shown("%", &[1]), None);
    }

    #[test]
    fn long_lines_are_cut() {
        assert_eq!(shown("%9999d", &[1]).map(|it| it.len()), Some(MOST_BYTES));
        assert_eq!(shown("%1023d\u{e9}\u{e9}", &[1]).map(|it| it.len()), Some(MOST_BYTES - 1));
    }
}
