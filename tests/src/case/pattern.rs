//! Expected text with variable parts.
//!
//! | written | matches |
//! |---|---|
//! | a line `...` | any number of lines |
//! | `{{*}}` | anything within the line |
//! | `{{:REGEX}}` | what the expression matches |
//! | `{{name}}` | an integer; the same integer wherever the name occurs again |
//! | `{{name:REGEX}}` | what the expression matches; later uses of the name match the same text |
//! | `{{=EXPRESSION}}` | the value of a Rhai expression over the names |

use super::check;
use regex::Regex;
use std::collections::BTreeMap;

/// The values of the names.
pub type Bindings = BTreeMap<String, String>;

const GAP: &str = "...";
const INTEGER: &str = "-?[0-9]+";

/// Compares a text with the expected one; returns the bindings, including new ones.
///
/// # Errors
/// They differ; the text says where.
pub fn compare(expected: &str, actual: &str, bindings: &Bindings) -> Result<Bindings, String> {
    let lines = Lines { expected: expected.lines().collect(), actual: actual.lines().collect() };
    let mut furthest = Mismatch::default();
    lines.matches(0, 0, bindings.clone(), &mut furthest).ok_or_else(|| lines.complaint(&furthest))
}

/// Returns the bindings after matching a single line.
pub fn compare_line(expected: &str, actual: &str, bindings: &Bindings) -> Option<Bindings> {
    let line = compile(expected, bindings).ok()?;
    let captures = line.expression.captures(actual)?;
    let mut bound = bindings.clone();
    for (number, name) in line.names.iter().enumerate() {
        let text = captures.name(&format!("n{number}"))?.as_str();
        if bound.insert(name.clone(), text.into()).is_some_and(|before| before != text) {
            return None;
        }
    }
    Some(bound)
}

pub fn is_gap(line: &str) -> bool {
    line.trim() == GAP
}

struct Lines<'a> {
    expected: Vec<&'a str>,
    actual: Vec<&'a str>,
}

/// How far a comparison got before it failed.
#[derive(Default)]
struct Mismatch {
    expected: usize,
    actual: usize,
}

impl Lines<'_> {
    fn matches(&self, e: usize, a: usize, bindings: Bindings, furthest: &mut Mismatch) -> Option<Bindings> {
        let Some(expected) = self.expected.get(e) else {
            return if a == self.actual.len() { Some(bindings) } else { note(furthest, e, a) };
        };
        if is_gap(expected) {
            return (a..=self.actual.len()).find_map(|it| self.matches(e + 1, it, bindings.clone(), furthest));
        }
        let line = self.actual.get(a).and_then(|it| compare_line(expected, it, &bindings));
        match line {
            Some(bound) => self.matches(e + 1, a + 1, bound, furthest),
            None => note(furthest, e, a),
        }
    }

    fn complaint(&self, at: &Mismatch) -> String {
        let line = |lines: &[&str], at: usize| lines.get(at).map_or("(the end)".to_string(), |it| format!("`{it}`"));
        format!(
            "expected {}\nfound {} (line {})",
            line(&self.expected, at.expected),
            line(&self.actual, at.actual),
            at.actual + 1
        )
    }
}

fn note(furthest: &mut Mismatch, expected: usize, actual: usize) -> Option<Bindings> {
    if (expected, actual) >= (furthest.expected, furthest.actual) {
        *furthest = Mismatch { expected, actual };
    }
    None
}

/// A line as a regular expression whose groups `n0`, `n1`, … are the names.
struct Line {
    expression: Regex,
    names: Vec<String>,
}

fn compile(line: &str, bindings: &Bindings) -> Result<Line, String> {
    let (mut expression, mut names, mut rest) = (String::from("^"), Vec::new(), line);
    while let Some((before, (inside, after))) =
        rest.split_once("{{").and_then(|it| Some((it.0, it.1.split_once("}}")?)))
    {
        expression += &regex::escape(before);
        expression += &part(inside, bindings, &mut names)?;
        rest = after;
    }
    expression += &regex::escape(rest);
    let expression = Regex::new(&(expression + "$")).map_err(|e| e.to_string())?;
    Ok(Line { expression, names })
}

/// Returns the regular expression for the text between the braces.
fn part(inside: &str, bindings: &Bindings, names: &mut Vec<String>) -> Result<String, String> {
    if inside == "*" {
        return Ok(".*".into());
    }
    if let Some(expression) = inside.strip_prefix('=') {
        return check::value(expression, bindings).map(|it| regex::escape(&it));
    }
    let (name, expression) = inside.split_once(':').unwrap_or((inside, INTEGER));
    Ok(match bindings.get(name) {
        _ if name.is_empty() => format!("(?:{expression})"),
        Some(text) => regex::escape(text),
        None => {
            names.push(name.into());
            format!("(?P<n{}>{expression})", names.len() - 1)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(pairs: &[(&str, &str)]) -> Bindings {
        pairs.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    }

    #[test]
    fn names_are_bound_once_and_hold_from_then_on() {
        let names = compare("calls={{n}}\n@n: {{n}}\n", "calls=12\n@n: 12\n", &Bindings::new()).unwrap();
        assert_eq!(names, bound(&[("n", "12")]));
        let error = compare("calls={{n}}\n@n: {{n}}\n", "calls=12\n@n: 11\n", &Bindings::new()).unwrap_err();
        assert!(error.contains("`@n: 11` (line 2)"), "{error}");
        assert!(compare("{{n}} {{n}}", "1 2", &Bindings::new()).is_err());
        assert_eq!(compare("{{who:[a-z]+}}", "sh", &Bindings::new()).unwrap(), bound(&[("who", "sh")]));
    }

    #[test]
    fn values_are_computed_from_names() {
        let names = bound(&[("n", "12")]);
        assert!(compare("@: {{=n * 2}}", "@: 24", &names).is_ok());
        assert!(compare("@: {{=n * 2}}", "@: 12", &names).is_err());
    }

    #[test]
    fn gaps_take_any_number_of_lines() {
        for actual in ["a\nz", "a\nb\nc\nz"] {
            assert!(compare("a\n...\nz", actual, &Bindings::new()).is_ok());
        }
        assert!(compare("...\nb\n...", "a\nc", &Bindings::new()).is_err());
        assert!(compare("...", "", &Bindings::new()).is_ok());
        // The first possible `x` is not the one that fits.
        assert!(compare("...\nx{{n}}\n...\ny{{n}}", "x1\nx2\ny2", &Bindings::new()).is_ok());
    }

    #[test]
    fn text_stands_for_itself() {
        assert!(compare("{\"@n\": [1.5] (x)*}", "{\"@n\": [1.5] (x)*}", &Bindings::new()).is_ok());
        assert!(compare("1.5", "1x5", &Bindings::new()).is_err());
        assert!(compare("a {{*}} z", "a b c z", &Bindings::new()).is_ok());
        assert!(compare("a", "a\nb", &Bindings::new()).is_err() && compare("a\nb", "a", &Bindings::new()).is_err());
    }
}
