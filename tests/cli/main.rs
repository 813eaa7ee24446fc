//! The command line: what it accepts and answers, and how a run ends if its output fails.

mod odd;
mod output;
mod results;
mod status;

/// Runs `tests/cli/*.md`.
#[test]
fn transcripts() {
    let cases = trycmd::TestCases::new();
    cases.register_bin("xputrace", xputrace_tests::xputrace()).env("NO_COLOR", "1").case("cli/*.md");
}
