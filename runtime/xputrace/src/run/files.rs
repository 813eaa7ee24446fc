//! The files that a run writes at its end, each with its own exporter.

use super::RunState;
use crate::cli::FileWish;
use crate::creator::creator;
use anyhow::{Result, anyhow};
use std::path::Path;
use std::sync::Arc;
use xputrace_model::table::TableDef;
use xputrace_render::Exporter;

/// Files to write, in the order of the options.
#[derive(Default)]
pub struct ResultFiles(Vec<(&'static str, Box<dyn Exporter>, String)>);

impl ResultFiles {
    /// Checks the requested files against the script's maps before anything runs.
    ///
    /// # Errors
    /// The option, and what is wrong with it.
    pub fn new(wishes: &[FileWish], maps: &[Arc<TableDef>]) -> Result<Self> {
        let file = |wish: &FileWish| {
            let option = wish.output.option;
            let (exporter, path) = (wish.output.open)(&wish.typed, maps).map_err(|it| anyhow!("--{option}: {it}"))?;
            // Now, and not after the run.
            let answer = creator().destination(Path::new(&path));
            answer.map_err(|it| anyhow!("--{option}: cannot write {path}: {it}"))?;
            Ok((option, exporter, path))
        };
        Ok(ResultFiles(wishes.iter().map(file).collect::<Result<_>>()?))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each file; returns the errors.
    pub fn write(&mut self, state: &mut RunState) -> Vec<String> {
        let write = |(option, exporter, path): &mut (&str, Box<dyn Exporter>, String)| {
            state.write_file(&mut **exporter, path).err().map(|it| format!("--{option}: {it}"))
        };
        self.0.iter_mut().filter_map(write).collect()
    }
}
