//! Outputs: all the forms in which a run presents its results.
//!
//! To add one, write a file in this crate with an [`Exporter`] and list it in [`FORMATS`] or
//! [`FILES`]; command line, help and run pick it up.

use crate::{Context, fold, json, text};
use std::io::{self, Write};
use std::sync::Arc;
use xputrace_model::output::{Output, StackNames};
use xputrace_model::table::{Table, TableDef, TableId};

/// Produces one form of output. The default methods ignore what it does not need.
pub trait Exporter {
    /// Handles one output of a handler or of the run, in the order in which they occur.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn output(&mut self, _out: &mut dyn Write, _output: &Output, _context: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Called regularly: writes out what has been gathered.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn tick(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// Called at the end, while maps can be read. Returns what was written, for a note.
    ///
    /// # Errors
    /// A sentence that says what is missing, or the system's answer.
    fn finish(&mut self, _out: &mut dyn Write, _maps: &mut dyn Maps) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// A script's maps at the end of a run.
pub trait Maps {
    /// Returns the definitions in id order.
    fn defs(&self) -> Vec<Arc<TableDef>>;
    /// Passes the current contents of a map to `hear`, with the names of its stacks.
    fn read(&mut self, id: TableId, hear: &mut dyn FnMut(&Table, &mut dyn StackNames));
}

/// A format of `-f`, written to standard output or to `-o`'s file.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub name: &'static str,
    /// Whether programs read it; scripts may print differently then.
    pub is_for_programs: bool,
    pub open: fn() -> Box<dyn Exporter>,
}

/// The choices of `-f`; the first is the default.
pub const FORMATS: &[Format] = &[text::FORMAT, json::FORMAT];

/// An output with an option and a file of its own.
#[derive(Clone, Copy, Debug)]
pub struct FileOutput {
    /// `--NAME`.
    pub option: &'static str,
    pub help: &'static str,
    /// Opens the exporter for an option's argument; errors are sentences.
    pub open: fn(typed: &str, maps: &[Arc<TableDef>]) -> Result<OpenFile, String>,
}

/// An exporter and its file's path.
pub type OpenFile = (Box<dyn Exporter>, String);

/// The options that write a file at the end of a run.
pub const FILES: &[FileOutput] = &[fold::FOLDED, fold::FLAMEGRAPH];
