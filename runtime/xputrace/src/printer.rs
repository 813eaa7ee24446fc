//! Where a run's results go, and in which format.

use crate::console::{Lines, Outlet};
use crate::creator::creator;
use anyhow::{Context as _, Result};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use xputrace_boundary::create::Destination;
use xputrace_model::output::{Output, StackNames};
use xputrace_model::plan::Plan;
use xputrace_render::{Context, Exporter, Format, UNLIMITED};

/// Minimum width: lines wrap on narrower terminals.
const LEAST_WIDTH: usize = 40;
/// Width of a terminal that does not report one.
const COMMON_WIDTH: usize = 80;

/// Passes outputs to an exporter, and the result to standard output or the file of `-o`.
pub struct Printer {
    exporter: Box<dyn Exporter>,
    format: &'static Format,
    out: Out,
    /// The failure, until the next flush reports it.
    failure: Option<io::Error>,
    /// Why the results are not where they should be, and where they are, until it is taken.
    misplaced: Option<String>,
    width: usize,
}

/// Where results go.
enum Out {
    /// Nothing was written yet: a file that is there keeps its contents.
    Waiting(Destination),
    Begun(Lines),
    /// A write has failed: everything later is dropped.
    Closed,
}

impl Out {
    fn begin(&mut self, misplaced: &mut Option<String>) -> io::Result<()> {
        let mut note = |error: io::Error| *misplaced = Some(format!("cannot replace what the output should: {error}"));
        match std::mem::replace(self, Out::Closed) {
            Out::Waiting(destination) => *self = Out::Begun(Lines::new(Outlet::begin(destination, &mut note)?)),
            other => *self = other,
        }
        Ok(())
    }
}

impl Printer {
    /// Opens the file or standard output. A file keeps its contents until the first line is
    /// written.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn new(format: &'static Format, file: Option<&Path>) -> Result<Self> {
        let (out, width) = match file {
            Some(path) => {
                let destination = creator().destination(path);
                let destination = destination.with_context(|| format!("cannot write to {}", path.display()))?;
                (Out::Waiting(destination), UNLIMITED)
            }
            None => {
                let outlet = Outlet::stdout().context("cannot write to standard output")?;
                (Out::Begun(Lines::new(outlet)), terminal_width())
            }
        };
        Ok(Printer { exporter: (format.open)(), format, out, failure: None, misplaced: None, width })
    }

    /// Shortens the names of kernels among texts, and cuts texts to the output's width less `beside`
    /// columns; different ones stay different.
    pub fn fit(&self, texts: &[String], beside: usize, whole_names: bool) -> Vec<String> {
        let room = self.width.saturating_sub(beside);
        let short = if whole_names { texts.to_vec() } else { xputrace_render::short_names(texts, room) };
        xputrace_render::shorten_all(&short, room)
    }

    /// Whether the output is for programs.
    pub fn machine_readable(&self) -> bool {
        self.format.machine_readable
    }

    /// Renders one output; [`Printer::flush`] returns the result.
    pub fn write(&mut self, output: &Output, names: &mut dyn StackNames, plan: &Plan) {
        if self.failure.is_some() {
            return;
        }
        self.failure = self.out.begin(&mut self.misplaced).err();
        let Out::Begun(out) = &mut self.out else { return };
        let mut context = Context { names, sources: &plan.sources, tables: &plan.tables, width: self.width };
        self.failure = self.exporter.output(out, output, &mut context).err();
    }

    /// Returns why the results are not where they should be, once.
    pub fn take_misplaced(&mut self) -> Option<String> {
        self.misplaced.take()
    }

    /// Sends what was written to the reader.
    ///
    /// # Errors
    /// The first failure; after it nothing is written, and nothing fails.
    pub fn flush(&mut self) -> io::Result<()> {
        let exporter = &mut self.exporter;
        let flushed = match (self.failure.take(), &mut self.out) {
            (Some(failure), _) => Err(failure),
            (None, Out::Begun(out)) => exporter.tick(out).and_then(|()| out.flush()),
            (None, Out::Waiting(_) | Out::Closed) => Ok(()),
        };
        if flushed.is_err() {
            self.out = Out::Closed;
        }
        flushed
    }

    /// Whether writing has failed.
    pub fn is_closed(&self) -> bool {
        matches!(self.out, Out::Closed)
    }
}

/// Returns the width of standard output if it is a terminal: `COLUMNS`, or what the terminal
/// reports.
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

/// Returns the width that the terminal reports; 0 if unknown.
fn asked_width() -> usize {
    // SAFETY: a zeroed winsize is valid, and the call fills it or fails.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a winsize, which this request fills.
    let answered = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    if answered { usize::from(size.ws_col) } else { 0 }
}
