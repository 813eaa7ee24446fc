//! The file of limits: what was measured when it was last blessed.

use crate::{House, goals};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The name of the limit of all crates together.
pub const ALL: &str = "all";

/// Limits of lines are rounded up to these, for the crates and for all: not each commit should touch the file.
const CRATE_STEP: usize = 200;
const ALL_STEP: usize = 1_000;

const HEAD: &str = "\
# The structure of the shipped code when it was last looked at. A test fails if it got worse, and if it got better without this
# file saying so. BLESS=1 cargo test -p xputrace-house writes the file; cargo run -p xputrace-house shows all measures, and
# what is still to go. The lines are limits, rounded up; a crate without one has the goal's. After the | of a file stands why it
# has to name a vendor's things; that stays.
";

/// What is written down, by the measure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// By the crate's folder, or [`ALL`].
    pub lines: BTreeMap<String, usize>,
    /// By path and name.
    pub functions: BTreeMap<(String, String), usize>,
    pub circles: Vec<BTreeSet<String>>,
    /// How many types have a name.
    pub names: BTreeMap<String, usize>,
    /// The reason, by path.
    pub vendor_files: BTreeMap<String, String>,
}

impl Limits {
    /// Returns the limits for what was measured, with the reasons that `earlier` gives.
    pub fn of(house: &House, earlier: &Limits) -> Self {
        let over = house.lines.iter().filter(|(_, lines)| **lines > goals::CRATE_LINES);
        let mut limits = Limits {
            lines: over.map(|(folder, lines)| (folder.clone(), lines.next_multiple_of(CRATE_STEP))).collect(),
            circles: house.circles.iter().map(|(_, circle)| circle.files.iter().cloned().collect()).collect(),
            names: house.names.iter().map(|(name, places)| (name.clone(), places.len())).collect(),
            ..Limits::default()
        };
        limits.lines.insert(ALL.to_owned(), house.all_lines().next_multiple_of(ALL_STEP));
        for function in &house.functions {
            let lines = limits.functions.entry((function.path.clone(), function.name.clone())).or_default();
            *lines = function.lines.max(*lines);
        }
        for file in &house.vendor_files {
            let reason = earlier.vendor_files.get(&file.path).cloned().unwrap_or_default();
            limits.vendor_files.insert(file.path.clone(), reason);
        }
        limits
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// A line isn't as this program writes it.
    pub fn parse(text: &str) -> Result<Self> {
        let mut limits = Limits::default();
        let mut section = "";
        for (index, line) in text.lines().enumerate() {
            if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                section = name;
            } else if !line.is_empty() && !line.starts_with('#') {
                limits.add(section, line).with_context(|| format!("limits.txt:{}: {line:?}", index + 1))?;
            }
        }
        Ok(limits)
    }

    fn add(&mut self, section: &str, line: &str) -> Result<()> {
        match section {
            "lines" => _ = self.lines.insert(counted(line)?.1.to_owned(), counted(line)?.0),
            "functions" => {
                let (lines, function) = counted(line)?;
                let (path, name) = function.split_once(' ').context("no name")?;
                self.functions.insert((path.to_owned(), name.to_owned()), lines);
            }
            "circles" => match line.strip_prefix("    ") {
                Some(path) => _ = self.circles.last_mut().context("a file of no circle")?.insert(path.to_owned()),
                None => self.circles.push(BTreeSet::new()),
            },
            "names" => _ = self.names.insert(counted(line)?.1.to_owned(), counted(line)?.0),
            "vendor files" => {
                let (path, reason) = line.split_once('|').context("no column for the reason")?;
                self.vendor_files.insert(path.trim().to_owned(), reason.trim().to_owned());
            }
            _ => bail!("in no known section"),
        }
        Ok(())
    }
}

/// Splits a line `COUNT WHAT`.
fn counted(line: &str) -> Result<(usize, &str)> {
    let (count, what) = line.trim().split_once(' ').context("no count")?;
    Ok((count.parse()?, what))
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HEAD}\n[lines]\n")?;
        self.lines.iter().try_for_each(|(of, lines)| writeln!(f, "{lines} {of}"))?;
        write!(f, "\n[functions]\n")?;
        self.functions.iter().try_for_each(|((path, name), lines)| writeln!(f, "{lines} {path} {name}"))?;
        write!(f, "\n[circles]\n")?;
        for circle in &self.circles {
            let folder = circle.first().and_then(|path| path.split("/src/").next()).unwrap_or_default();
            writeln!(f, "{folder}: {} files", circle.len())?;
            circle.iter().try_for_each(|path| writeln!(f, "    {path}"))?;
        }
        write!(f, "\n[names]\n")?;
        self.names.iter().try_for_each(|(name, count)| writeln!(f, "{count} {name}"))?;
        write!(f, "\n[vendor files]\n")?;
        for (path, reason) in &self.vendor_files {
            writeln!(f, "{}", format!("{path} | {reason}").trim_end())?;
        }
        Ok(())
    }
}
