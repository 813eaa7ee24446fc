//! All measures as text, and how far each is from the goal.

use crate::circles::{Circle, Tie};
use crate::{House, goals};
use std::fmt;

impl fmt::Display for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: {}", self.from, self.to, self.names.join(", "))
    }
}

impl fmt::Display for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_lines(f)?;
        self.write_functions(f)?;
        self.write_circles(f)?;
        self.write_names(f)?;
        self.write_vendor_files(f)?;
        self.write_to_go(f)
    }
}

impl House {
    fn write_lines(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "NET LINES")?;
        let mut crates: Vec<_> = self.lines.iter().collect();
        crates.sort_by_key(|(_, lines)| std::cmp::Reverse(**lines));
        crates.iter().try_for_each(|(folder, lines)| writeln!(f, "{lines:>7} {folder}"))?;
        writeln!(f, "{:>7} in {} files\n", self.all_lines(), self.files)
    }

    fn write_functions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FUNCTIONS OF MORE THAN {} LINES", goals::FUNCTION_LINES)?;
        for it in &self.functions {
            writeln!(f, "{:>7} {}:{} {}", it.lines, it.path, it.at, it.name)?;
        }
        writeln!(f)
    }

    fn write_circles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CIRCLES OF MORE THAN {} FILES", goals::CIRCLE_FILES)?;
        for (folder, circle) in &self.circles {
            let Circle { files, ties } = circle;
            writeln!(f, "{:>7} files of {folder}, with {} ties:", files.len(), ties.len())?;
            files.iter().try_for_each(|path| writeln!(f, "        {path}"))?;
            ties.iter().try_for_each(|tie| writeln!(f, "          {tie}"))?;
        }
        writeln!(f)
    }

    fn write_names(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "NAMES OF MORE THAN {} TYPES", goals::NAME_TYPES)?;
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by_key(|(_, places)| std::cmp::Reverse(places.len()));
        for (name, places) in names {
            writeln!(f, "{:>7} {name}: {}", places.len(), places.join(", "))?;
        }
        writeln!(f)
    }

    fn write_vendor_files(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "FILES THAT NAME A VENDOR'S THINGS OUTSIDE OF ITS FOLDERS")?;
        for file in &self.vendor_files {
            let names = file.names.iter().map(|(name, count)| format!("{name} ×{count}")).collect::<Vec<_>>();
            writeln!(f, "{:>7} {}:{} {}", file.names.values().sum::<usize>(), file.path, file.at, names.join(", "))?;
        }
        writeln!(f)
    }

    fn write_to_go(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let large = self.lines.values().filter(|lines| **lines > goals::CRATE_LINES).count();
        let allowed = |path: &str, name: &str| goals::LONG_FUNCTIONS.contains(&(path, name));
        let long = self.functions.iter().filter(|it| !allowed(&it.path, &it.name)).count();
        let vendor_files = self.vendor_files.len().saturating_sub(goals::VENDOR_FILES);
        writeln!(f, "STILL TO GO")?;
        writeln!(f, "{:>7} circles of more than {} files", self.circles.len(), goals::CIRCLE_FILES)?;
        writeln!(f, "{large:>7} crates of more than {} net lines", goals::CRATE_LINES)?;
        writeln!(f, "{:>7} names of more than {} types", self.names.len(), goals::NAME_TYPES)?;
        writeln!(f, "{vendor_files:>7} vendor files more than {}", goals::VENDOR_FILES)?;
        writeln!(f, "{long:>7} functions of more than {} lines, besides the engine's", goals::FUNCTION_LINES)
    }
}
