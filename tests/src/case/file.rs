//! The text of a case: parsed into header and sections, and written back.

use super::Failure;
use std::fmt;

const MARK: &str = "---- ";

/// A parsed case.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Case {
    /// Everything before the first section, unchanged.
    header: String,
    pub needs: Vec<String>,
    /// Programs of `tests/live/programs` and workloads, by name.
    pub programs: Vec<String>,
    /// Where it runs, if it says so: `host`, or a version of Linux that is run in QEMU.
    pub kernels: Option<Vec<String>>,
    /// Why nothing may run beside the case.
    pub alone: Option<String>,
    /// Why the case is expected to fail.
    pub fails: Option<String>,
    /// Files that exist before the first run.
    pub inputs: Vec<(String, String)>,
    pub sources: Vec<Source>,
    pub runs: Vec<Run>,
    /// Everything before the first run, unchanged, to be written back.
    before_runs: String,
}

/// A program whose source is in the case.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    pub name: String,
    /// `c` or `cpp`.
    pub language: String,
    pub flags: Vec<String>,
    pub text: String,
}

/// Lines for the shell, and their expected results.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Run {
    pub script: String,
    pub status: i32,
    pub expected: Vec<Expected>,
    /// Rhai, one condition per line.
    pub checks: String,
}

/// The expected text of `stdout`, `stderr` or `file NAME`.
#[derive(Debug, PartialEq, Eq)]
pub struct Expected {
    pub of: String,
    pub text: String,
}

impl Case {
    /// Parses the text of a case.
    ///
    /// # Errors
    /// A header line or a section is unknown, or there is no run.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let mut case = Case::default();
        let mut sections = split(text).into_iter();
        case.header = sections.next().map(|(_, body)| body).unwrap_or_default();
        let header = case.header.clone();
        for line in header.lines().filter(|it| !it.trim().is_empty() && !it.starts_with('#')) {
            case.header_line(line)?;
        }
        for (title, body) in sections {
            case.section(&title, body)?;
        }
        if case.runs.is_empty() { Err("a case needs a section `run`".into()) } else { Ok(case) }
    }

    fn header_line(&mut self, line: &str) -> Result<(), Failure> {
        let (key, value) = line.split_once(':').ok_or_else(|| format!("`{line}` is no header line (`key: value`)"))?;
        let words = || value.split([',', ' ']).filter(|it| !it.is_empty()).map(str::to_string).collect();
        match key {
            "needs" => self.needs = words(),
            "programs" => self.programs = words(),
            "kernel" => self.kernels = Some(words()),
            "alone" => self.alone = Some(reason(value)?),
            "fails" => self.fails = Some(reason(value)?),
            _ => return Err(format!("unknown key `{key}`: there are needs, programs, kernel, alone, fails").into()),
        }
        Ok(())
    }

    fn section(&mut self, title: &str, body: String) -> Result<(), Failure> {
        let (kind, rest) = title.split_once(' ').unwrap_or((title, ""));
        if matches!(kind, "input" | "program") {
            if !self.runs.is_empty() {
                return Err(format!("`{title}` must stand before the first run").into());
            }
            self.before_runs += &written(title, &body);
        }
        match kind {
            "input" => self.inputs.push((rest.into(), trimmed(&body))),
            "program" => self.sources.push(Source::parse(rest, trimmed(&body))?),
            "run" => self.runs.push(Run { script: trimmed(&body), ..Run::default() }),
            _ => self.expectation(title, kind, rest, &body)?,
        }
        Ok(())
    }

    fn expectation(&mut self, title: &str, kind: &str, rest: &str, body: &str) -> Result<(), Failure> {
        let run = self.runs.last_mut().ok_or_else(|| format!("`{title}` must follow a run"))?;
        match kind {
            "status" => run.status = rest.trim().parse().map_err(|_| format!("`{title}`: expected a number"))?,
            "stdout" | "stderr" | "file" => run.expected.push(Expected { of: title.into(), text: trimmed(body) }),
            "check" => run.checks += &trimmed(body),
            _ => return Err(format!("unknown section `{title}`").into()),
        }
        Ok(())
    }
}

impl Source {
    /// Parses `NAME.c FLAGS…`.
    fn parse(title: &str, text: String) -> Result<Self, Failure> {
        let mut words = title.split_whitespace().map(str::to_string);
        let file = words.next().unwrap_or_default();
        let (name, language) = file.rsplit_once('.').ok_or_else(|| format!("`{file}`: expected NAME.c or NAME.cpp"))?;
        Ok(Source { name: name.into(), language: language.into(), flags: words.collect(), text })
    }
}

/// A header's value that says why.
fn reason(value: &str) -> Result<String, Failure> {
    if value.trim().is_empty() { Err("the reason is missing".into()) } else { Ok(value.trim().into()) }
}

/// Splits the text into (title, body); the header's title is empty.
fn split(text: &str) -> Vec<(String, String)> {
    let mut sections = vec![(String::new(), String::new())];
    for line in text.lines() {
        match (line.strip_prefix(MARK), sections.last_mut()) {
            (Some(title), _) => sections.push((title.trim().into(), String::new())),
            (None, Some((_, body))) => *body += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    sections
}

/// Removes the blank lines between sections.
fn trimmed(body: &str) -> String {
    let text = body.trim_end_matches('\n');
    if text.is_empty() { String::new() } else { format!("{text}\n") }
}

fn written(title: &str, body: &str) -> String {
    format!("{MARK}{title}\n{}\n", trimmed(body))
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("{}{}", self.header, self.before_runs);
        for run in &self.runs {
            text += &run.to_string();
        }
        writeln!(f, "{}", text.trim_end())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&written("run", &self.script))?;
        if self.status != 0 {
            writeln!(f, "{MARK}status {}", self.status)?;
        }
        for it in self.expected.iter().filter(|it| !it.text.is_empty()) {
            f.write_str(&written(&it.of, &it.text))?;
        }
        if self.checks.is_empty() { Ok(()) } else { f.write_str(&written("check", &self.checks)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Says hello.
needs: root, softgpu
programs: cpu

---- input script.rhai
begin(|| print(1));

---- program own.c -O1 -lm
int main() {}

---- run
xputrace script.rhai

---- status 3
---- stdout
hello

bye

---- file out.txt
x

---- check
n == 3
";

    #[test]
    fn a_case_is_read_and_written_back_the_same() {
        let case = Case::parse(TEXT).unwrap();
        assert_eq!((case.needs.len(), case.programs.as_slice()), (2, ["cpu".to_string()].as_slice()));
        assert_eq!(case.inputs, [("script.rhai".to_string(), "begin(|| print(1));\n".to_string())]);
        assert_eq!((case.sources[0].name.as_str(), case.sources[0].flags.join(" ")), ("own", "-O1 -lm".to_string()));
        assert_eq!((case.runs.len(), case.runs[0].status), (1, 3));
        assert_eq!(case.runs[0].expected[0].text, "hello\n\nbye\n");
        assert_eq!((case.runs[0].expected[1].of.as_str(), case.runs[0].checks.as_str()), ("file out.txt", "n == 3\n"));
        assert_eq!(case.to_string(), TEXT);
    }

    #[test]
    fn what_is_no_case_is_refused() {
        for (text, said) in [
            ("", "needs a section `run`"),
            ("need: root\n---- run\ntrue\n", "unknown key `need`"),
            ("alone:\n---- run\ntrue\n", "reason is missing"),
            ("---- stdout\nx\n---- run\n", "must follow a run"),
            ("---- run\ntrue\n---- input x\n", "before the first run"),
            ("---- run\ntrue\n---- stdot\n", "unknown section"),
        ] {
            let error = Case::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
