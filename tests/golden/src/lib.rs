//! Compares a test's output with a file. With `BLESS=1` in the environment, accepts the output:
//! writes it to the file.

use std::path::Path;

/// Whether this run accepts all output.
pub fn blesses() -> bool {
    std::env::var_os("BLESS").is_some()
}

/// Compares a text with a file, or writes the file when blessing.
///
/// # Errors
/// They differ, or the file cannot be written. A missing file counts as empty.
pub fn compare(path: &Path, actual: &str) -> Result<(), String> {
    compare_or_write(path, actual, blesses())
}

/// Like [`compare`], for a test with a single file.
///
/// # Panics
/// They differ, or the file cannot be written.
#[track_caller]
pub fn assert(path: &Path, actual: &str) {
    compare(path, actual).unwrap_or_else(|difference| panic!("{difference}"));
}

fn compare_or_write(path: &Path, actual: &str, writes: bool) -> Result<(), String> {
    let name = path.display();
    if writes {
        return std::fs::write(path, actual).map_err(|e| format!("{name}: {e}"));
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    if expected == actual { Ok(()) } else { Err(difference(&name.to_string(), &expected, actual)) }
}

/// Returns the lines from the first to the last difference.
fn difference(name: &str, expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    let same = |a: &mut dyn Iterator<Item = (&&str, &&str)>| a.take_while(|(a, b)| a == b).count();
    let head = same(&mut expected.iter().zip(&actual));
    let most = expected.len().min(actual.len()) - head;
    let tail = same(&mut expected.iter().rev().zip(actual.iter().rev())).min(most);
    let part = |lines: &[&str]| lines[head..lines.len() - tail].join("\n");
    format!(
        "{name} differs from line {} on (BLESS=1 accepts it)\n--- expected\n{}\n--- actual\n{}",
        head + 1,
        part(&expected),
        part(&actual)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_shown_and_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.txt");
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        let error = compare_or_write(&path, "a\nB\nc\n", false).unwrap_err();
        assert!(error.contains("from line 2") && error.ends_with("--- expected\nb\n--- actual\nB"), "{error}");
        compare_or_write(&path, "a\nB\nc\n", true).unwrap();
        assert_eq!(compare_or_write(&path, "a\nB\nc\n", false), Ok(()));
        let shorter = compare_or_write(&path, "a\n", false).unwrap_err();
        assert!(shorter.ends_with("--- expected\nB\nc\n--- actual\n"), "{shorter}");
    }
}
