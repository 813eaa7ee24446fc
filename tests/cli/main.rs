//! The command line: what is typed and what is answered, and how a run ends whatever becomes of its output.

mod odd;
mod output;
mod results;
mod status;

/// `tests/cli/*.md` are run as they stand.
#[test]
fn transcripts() {
    let cases = trycmd::TestCases::new();
    cases.register_bin("xputrace", xputrace_tests::xputrace()).env("NO_COLOR", "1").case("cli/*.md");
}
