//! Where a run's results go, and in what form.

use crate::cli::Options;
use crate::console::Outlet;
use anyhow::{Context as _, Result};
use std::io::{self, BufWriter, IsTerminal, Write};
use xputrace_model::diagnostic::Sources;
use xputrace_model::output::{Output, StackNames};
use xputrace_render::{Context, UNLIMITED};

/// Narrower terminals are written to as if they were wider: lines wrap there.
const LEAST_WIDTH: usize = 40;
/// Of a terminal that does not know its width.
const COMMON_WIDTH: usize = 80;

/// Renders outputs to standard output, or to the file of `-o`.
pub struct Printer {
    /// `None` once writing has failed: what comes later is dropped.
    out: Option<BufWriter<Outlet>>,
    /// The failure, until the next flush reports it.
    failure: Option<io::Error>,
    /// Whether the file has been emptied; what others gave us is not ours to empty.
    begun: bool,
    json: bool,
    width: usize,
}

impl Printer {
    /// Opens the output. What was in a file stays there until the first line is written.
    pub fn new(options: &Options) -> Result<Self> {
        let (outlet, width) = match &options.output {
            Some(path) => {
                let outlet = Outlet::file(path).with_context(|| format!("cannot write to {}", path.display()))?;
                (outlet, UNLIMITED)
            }
            None => (Outlet::stdout().context("cannot write to standard output")?, terminal_width()),
        };
        let out = Some(BufWriter::new(outlet));
        let begun = options.output.is_none();
        Ok(Printer { out, failure: None, begun, json: options.format == "json", width })
    }

    /// Texts that fit the output's width, all but `beside` columns of it.
    pub fn fit(&self, texts: &[String], beside: usize) -> Vec<String> {
        xputrace_render::shorten_all(texts, self.width.saturating_sub(beside))
    }

    /// Whether the output is for programs.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Renders one output; [`Printer::flush`] has the outcome.
    pub fn write(&mut self, output: &Output, names: &mut dyn StackNames, sources: &Sources) {
        let (Some(out), None) = (&mut self.out, &self.failure) else { return };
        let truncated = if self.begun { Ok(()) } else { out.get_ref().truncate() };
        self.begun = true;
        let mut context = Context { names, sources, width: self.width };
        let render = if self.json { xputrace_render::json } else { xputrace_render::text };
        self.failure = truncated.and_then(|()| render(out, output, &mut context)).err();
    }

    /// Hands what was written to the reader.
    ///
    /// # Errors
    /// The first failure; after it nothing is written any more, and nothing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        let Some(out) = &mut self.out else { return Ok(()) };
        let flushed = self.failure.take().map_or_else(|| out.flush(), Err);
        if flushed.is_err() {
            // Taken apart, or dropping it would try to write once more.
            self.out.take().map(BufWriter::into_parts);
        }
        flushed
    }

    /// Whether writing has failed.
    pub fn is_closed(&self) -> bool {
        self.out.is_none()
    }
}

/// The columns of standard output where it is a terminal: `COLUMNS`, or what the terminal says.
fn terminal_width() -> usize {
    if !io::stdout().is_terminal() {
        return UNLIMITED;
    }
    let wished = std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
    match wished.unwrap_or_else(asked_width) {
        0 => COMMON_WIDTH,
        width => width.max(LEAST_WIDTH),
    }
}

/// What the terminal says; 0 where it does not know.
fn asked_width() -> usize {
    // SAFETY: a zeroed winsize is valid, and the call fills it or fails.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a winsize, which this request fills.
    let answered = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    if answered { usize::from(size.ws_col) } else { 0 }
}
