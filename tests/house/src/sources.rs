//! The text of the shipped crates: of the workspace, or of a small tree that a test gives as text.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The source of the crates that ship.
pub struct Sources {
    pub crates: Vec<CrateSource>,
}

/// The source of one crate.
pub struct CrateSource {
    /// Its folder in the workspace.
    pub folder: String,
    /// Its name in paths.
    pub name: String,
    /// Each file's text, by path in the workspace.
    pub files: BTreeMap<String, String>,
}

impl Sources {
    /// Reads the workspace in the folder `root`. Crates below `tests` don't ship.
    ///
    /// # Errors
    /// A file can't be read, or the manifest isn't as expected.
    pub fn read(root: &Path) -> Result<Self> {
        let manifest = read(&root.join("Cargo.toml"))?;
        let shipped = |folder: &&str| *folder != "tests" && !folder.starts_with("tests/");
        let crates = members(&manifest).filter(shipped).map(|folder| CrateSource::read(root, folder));
        let sources = Sources { crates: crates.collect::<Result<_>>()? };
        ensure!(!sources.crates.is_empty(), "{}: no members", root.display());
        Ok(sources)
    }

    /// Takes a text where each file follows a line `//- PATH`, as in `//- folder/src/lib.rs`. A crate is called like its
    /// folder.
    pub fn from_text(text: &str) -> Self {
        let mut crates: BTreeMap<String, CrateSource> = BTreeMap::new();
        for part in text.split("//- ").skip(1) {
            let (path, content) = part.split_once('\n').unwrap_or((part, ""));
            let folder = path.split_once("/src/").map_or("", |(folder, _)| folder);
            let name = folder.rsplit('/').next().unwrap_or(folder);
            crates
                .entry(folder.to_owned())
                .or_insert_with(|| CrateSource::empty(folder, name))
                .files
                .insert(path.to_owned(), content.to_owned());
        }
        Sources { crates: crates.into_values().collect() }
    }
}

impl CrateSource {
    fn read(root: &Path, folder: &str) -> Result<Self> {
        let manifest = read(&root.join(folder).join("Cargo.toml"))?;
        let name = manifest.lines().find_map(|line| quoted(line.strip_prefix("name = ")?));
        let mut source = Self::empty(folder, name.with_context(|| format!("{folder}: no name"))?);
        source.read_folder(root, &format!("{folder}/src"))?;
        Ok(source)
    }

    fn empty(folder: &str, name: &str) -> Self {
        CrateSource { folder: folder.to_owned(), name: name.replace('-', "_"), files: BTreeMap::new() }
    }

    fn read_folder(&mut self, root: &Path, folder: &str) -> Result<()> {
        for entry in fs::read_dir(root.join(folder)).with_context(|| folder.to_owned())? {
            let entry = entry?;
            let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                self.read_folder(root, &path)?;
            } else if path.ends_with(".rs") {
                self.files.insert(path, read(&entry.path())?);
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Returns the folders that a workspace's manifest names as members.
fn members(manifest: &str) -> impl Iterator<Item = &str> {
    let lines = manifest.lines().skip_while(|line| !line.starts_with("members = [")).skip(1);
    lines.take_while(|line| !line.starts_with(']')).filter_map(quoted)
}

/// Returns the first text in quotes.
fn quoted(line: &str) -> Option<&str> {
    line.split('"').nth(1)
}
