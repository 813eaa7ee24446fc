//! Outputs: all the forms in which a run presents its results.
//!
//! To add one, write a file in this crate with an [`Exporter`] and list it in [`crate::FORMATS`] or
//! [`crate::FILES`]; command line, help and run pick it up. What is made of a recording's events, without a script, is an
//! [`EventExporter`] in [`crate::EVENT_FORMATS`].

use crate::context::Context;
use crate::hits::HitRow;
use std::io::{self, Write};
use std::sync::Arc;
use xputrace_model::context::GpuContext;
use xputrace_model::loss::Losses;
use xputrace_model::output::{Output, StackNames};
use xputrace_model::schema::Event;
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
    pub machine_readable: bool,
    pub open: fn() -> Box<dyn Exporter>,
}

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

/// Writes the events of a recording in one form. They come in the order in which handlers would see them.
pub trait EventExporter {
    /// Called first. `exported` are the events that may come; each that does says its position there.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn begin(&mut self, out: &mut dyn Write, about: &AboutRecording, exported: &[Exported]) -> io::Result<()>;

    /// Handles an event of the GPU, of CUDA or of NVTX, as the words that handlers read of it.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn event(
        &mut self,
        out: &mut dyn Write,
        exported: usize,
        words: &GpuContext,
        names: &mut dyn EventNames,
    ) -> io::Result<()>;

    /// Handles a hit of a CPU probe.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn hit(&mut self, out: &mut dyn Write, hit: &HitRow<'_>, names: &mut dyn EventNames) -> io::Result<()>;

    /// Called at the end, with everything that was lost.
    ///
    /// # Errors
    /// I/O errors of `out`.
    fn finish(&mut self, out: &mut dyn Write, losses: &Losses) -> io::Result<()>;
}

/// What is known of a recording as a whole.
#[derive(Clone, Debug, Default)]
pub struct AboutRecording {
    /// The command that was recorded.
    pub command: Vec<String>,
    pub machine: String,
    /// Name and version of the program that recorded it.
    pub recorder: String,
    /// Its start: seconds since 1970, and nanoseconds of CLOCK_MONOTONIC, the clock of all times.
    pub unix_seconds: u64,
    pub monotonic_nanos: u64,
    /// Whether times and durations mean nothing: the software GPU ran the kernels.
    pub is_of_software_gpu: bool,
    /// The CPU probes whose hits it has. Of tracepoints also their own fields, each with its type.
    pub probes: Vec<(String, Vec<(String, String)>)>,
}

/// A kind of event that is exported.
#[derive(Clone, Debug)]
pub struct Exported {
    pub event: Event,
    /// Of `api` events: the parameters of the call, in the order of their words.
    pub arguments: Vec<ExportedArgument>,
}

/// A parameter of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedArgument {
    pub name: String,
    /// Whether it is an address or an unsigned integer.
    pub is_unsigned: bool,
}

/// Resolves what events have numbers of.
pub trait EventNames: StackNames {
    /// Returns the text with this id; `None` if there is none.
    fn text(&self, id: u64) -> Option<&str>;
}

/// A format of `xputrace export`.
#[derive(Clone, Copy, Debug)]
pub struct EventFormat {
    pub name: &'static str,
    pub help: &'static str,
    /// Describes what is written, for programs that read it.
    pub schema: fn() -> String,
    pub open: fn() -> Box<dyn EventExporter>,
}
