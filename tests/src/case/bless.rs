//! Accepts the output, and keeps the patterns that still match.

use super::pattern::{self, Bindings};

/// Returns the actual text, with lines replaced by the expected lines that match them, in order.
pub fn accept(expected: &str, actual: &str, bindings: &Bindings) -> String {
    let expected: Vec<&str> = expected.lines().filter(|it| !pattern::is_gap(it)).collect();
    let (mut bindings, mut next, mut text) = (bindings.clone(), 0, String::new());
    for line in actual.lines() {
        let found =
            (next..expected.len()).find_map(|at| Some((at, pattern::compare_line(expected[at], line, &bindings)?)));
        match found {
            Some((at, bound)) => {
                (bindings, next) = (bound, at + 1);
                text += expected[at];
            }
            None => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match_are_kept() {
        let names = Bindings::new();
        assert_eq!(accept("pid {{pid}}\nold\n@n: 1\n", "pid 77\nnew\n@n: 2\n", &names), "pid {{pid}}\nnew\n@n: 2\n");
        assert_eq!(accept("...\nb {{*}}\n", "a\nb c\n", &names), "a\nb {{*}}\n");
    }
}
