//! Outputs: every form in which results leave a run.
//!
//! A new one is one file of this crate with an [`Exporter`] in it, and a line in [`FORMATS`] or
//! [`FILES`]: the command line, its help and the run take it from there.

use crate::{Context, fold, json, text};
use std::io::{self, Write};
use std::sync::Arc;
use xputrace_model::output::{Output, StackNames};
use xputrace_model::table::{Table, TableDef, TableId};

/// Makes one form out of a run. What it does not need to hear, it leaves out.
pub trait Exporter {
    /// One thing that handlers or the run itself have to say, in the order in which it happened.
    ///
    /// # Errors
    /// Those of `out`.
    fn output(&mut self, _out: &mut dyn Write, _output: &Output, _context: &mut Context<'_>) -> io::Result<()> {
        Ok(())
    }

    /// A moment has passed: what was gathered may be handed on.
    ///
    /// # Errors
    /// Those of `out`.
    fn tick(&mut self, _out: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    /// The end, while the maps can be read; returns what was written, for a note.
    ///
    /// # Errors
    /// A sentence that says what is missing, or what the system answered.
    fn finish(&mut self, _out: &mut dyn Write, _maps: &mut dyn Maps) -> Result<Option<String>, String> {
        Ok(None)
    }
}

/// A script's maps at the end of a run.
pub trait Maps {
    /// Their definitions, in the order of their ids.
    fn defs(&self) -> Vec<Arc<TableDef>>;
    /// Hands out a map as it is now, with the names of its stacks.
    fn read(&mut self, id: TableId, hear: &mut dyn FnMut(&Table, &mut dyn StackNames));
}

/// A form that `-f` chooses: it goes to standard output, or where `-o` says.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    pub name: &'static str,
    /// Whether it is read by programs: scripts may print other things then.
    pub is_for_programs: bool,
    pub open: fn() -> Box<dyn Exporter>,
}

/// What `-f` chooses from; the first is the default.
pub const FORMATS: &[Format] = &[text::FORMAT, json::FORMAT];

/// A form with an option and a file of its own.
#[derive(Clone, Copy, Debug)]
pub struct FileOutput {
    /// `--NAME`.
    pub option: &'static str,
    pub help: &'static str,
    /// The exporter for what was typed behind the option, and its file. An error is a sentence.
    pub open: fn(typed: &str, maps: &[Arc<TableDef>]) -> Result<OpenFile, String>,
}

/// An exporter, and the path of its file.
pub type OpenFile = (Box<dyn Exporter>, String);

/// The options that write a file at the end.
pub const FILES: &[FileOutput] = &[fold::FOLDED, fold::FLAMEGRAPH];
