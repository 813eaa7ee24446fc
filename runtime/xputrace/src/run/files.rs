//! The files that a run writes at its end, each with its own exporter.

use super::State;
use crate::cli::FileWish;
use anyhow::{Result, anyhow};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use xputrace_model::table::TableDef;
use xputrace_render::Exporter;

/// Files to write, in the order of the options.
#[derive(Default)]
pub struct Files(Vec<(&'static str, Box<dyn Exporter>, String)>);

impl Files {
    /// Checks the requested files against the script's maps before anything runs.
    ///
    /// # Errors
    /// The option, and what is wrong with it.
    pub fn new(wishes: &[FileWish], maps: &[Arc<TableDef>]) -> Result<Self> {
        let file = |wish: &FileWish| {
            let option = wish.output.option;
            let (exporter, path) = (wish.output.open)(&wish.typed, maps).map_err(|it| anyhow!("--{option}: {it}"))?;
            can_be_written(Path::new(&path)).map_err(|it| anyhow!("--{option}: cannot write {path}: {it}"))?;
            Ok((option, exporter, path))
        };
        Ok(Files(wishes.iter().map(file).collect::<Result<_>>()?))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each file; returns the errors.
    pub fn write(&mut self, state: &mut State) -> Vec<String> {
        let write = |(option, exporter, path): &mut (&str, Box<dyn Exporter>, String)| {
            state.write_file(&mut **exporter, path).err().map(|it| format!("--{option}: {it}"))
        };
        self.0.iter_mut().filter_map(write).collect()
    }
}

/// Finds out before the run whether a file can be written at its end; leaves everything as it was.
fn can_be_written(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::metadata(path) {
            // Opening a pipe would wait for its reader.
            Ok(there) if !there.is_file() && !there.is_dir() => Ok(()),
            // A link to a file that does not exist: creating it creates that file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let to = fs::read_link(path)?;
                can_be_written(&path.parent().unwrap_or(Path::new("")).join(to))
            }
            _ => OpenOptions::new().write(true).open(path).map(drop),
        },
        Err(error) => Err(error),
    }
}
