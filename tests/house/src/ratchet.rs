//! Compares what was measured with the limits: what got worse, and what got better without the file saying so.

use crate::circles::{Circle, Tie};
use crate::limits::{ALL, Limits};
use crate::words::VendorFile;
use crate::{House, goals};
use std::collections::BTreeSet;
use std::fmt;

/// How what was measured differs from the limits: for each difference, where it is and what to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    pub worse: Vec<String>,
    pub better: Vec<String>,
}

/// Compares what was measured with the limits.
pub fn compare(house: &House, limits: &Limits) -> Differences {
    let mut it = Differences::default();
    it.compare_lines(house, limits);
    it.compare_functions(house, limits);
    it.compare_circles(house, limits);
    it.compare_names(house, limits);
    it.compare_vendor_files(house, limits);
    it
}

impl Differences {
    pub fn is_empty(&self) -> bool {
        self.worse.is_empty() && self.better.is_empty()
    }

    /// Only more lines than the limit count: what is rounded isn't worth a change for each commit.
    fn compare_lines(&mut self, house: &House, limits: &Limits) {
        let all = (ALL.to_owned(), house.all_lines());
        for (of, lines) in house.lines.clone().into_iter().chain([all]) {
            let default = if of == ALL { usize::MAX } else { goals::CRATE_LINES };
            let most = limits.lines.get(&of).copied().unwrap_or(default);
            if lines > most {
                self.worse
                    .push(format!("{of}: {lines} net lines, of at most {most}; make it smaller, or move a part out"));
            }
        }
    }

    fn compare_functions(&mut self, house: &House, limits: &Limits) {
        let now = Limits::of(house, limits).functions;
        for function in &house.functions {
            let most = limits.functions.get(&(function.path.clone(), function.name.clone())).copied();
            if function.lines > most.unwrap_or(goals::FUNCTION_LINES) {
                let (path, at, name, lines) = (&function.path, function.at, &function.name, function.lines);
                let most = most.unwrap_or(goals::FUNCTION_LINES);
                self.worse.push(format!("{path}:{at}: `{name}` has {lines} lines, of at most {most}; split it"));
            }
        }
        for ((path, name), was) in &limits.functions {
            match now.get(&(path.clone(), name.clone())) {
                None => self.better.push(format!("{path}: `{name}` is no long function any more")),
                Some(lines) if lines < was => {
                    self.better.push(format!("{path}: `{name}` has {lines} lines, no longer {was}"));
                }
                Some(_) => {}
            }
        }
    }

    fn compare_circles(&mut self, house: &House, limits: &Limits) {
        let now: Vec<(BTreeSet<String>, &Circle)> =
            house.circles.iter().map(|(_, circle)| (circle.files.iter().cloned().collect(), circle)).collect();
        let within = |files: &BTreeSet<String>| limits.circles.iter().any(|limit| files.is_subset(limit));
        for (files, circle) in now.iter().filter(|(files, _)| !within(files)) {
            let nearest = limits.circles.iter().max_by_key(|limit| limit.intersection(files).count());
            self.worse.push(worse_circle(files, circle, nearest.filter(|limit| !limit.is_disjoint(files))));
        }
        for limit in &limits.circles {
            let left: Vec<_> = now.iter().map(|(files, _)| files).filter(|files| !files.is_disjoint(limit)).collect();
            if left.iter().all(|files| files.is_subset(limit) && *files != limit) {
                self.better.push(better_circle(limit, &left));
            }
        }
    }

    fn compare_names(&mut self, house: &House, limits: &Limits) {
        for (name, places) in &house.names {
            let most = limits.names.get(name).copied().unwrap_or(goals::NAME_TYPES);
            if places.len() > most {
                let (count, places) = (places.len(), places.join(", "));
                self.worse
                    .push(format!("`{name}`: {count} types, of at most {most}; find another name for one of {places}"));
            }
        }
        for (name, was) in &limits.names {
            let count = house.names.get(name).map_or(0, Vec::len);
            if count < *was {
                let count = if count == 0 { "few".to_owned() } else { count.to_string() };
                self.better.push(format!("`{name}` is the name of {count} types, no longer of {was}"));
            }
        }
    }

    fn compare_vendor_files(&mut self, house: &House, limits: &Limits) {
        for file in house.vendor_files.iter().filter(|it| !limits.vendor_files.contains_key(&it.path)) {
            let VendorFile { path, names, at } = file;
            let names = names.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            self.worse.push(format!("{path}:{at}: names {names}; keep them in the vendor's folders"));
        }
        for path in limits.vendor_files.keys() {
            if !house.vendor_files.iter().any(|file| file.path == *path) {
                self.better.push(format!("{path}: names nothing of a vendor's"));
            }
        }
    }
}

/// Says how a circle isn't within the `nearest` one that is written down.
fn worse_circle(files: &BTreeSet<String>, circle: &Circle, nearest: Option<&BTreeSet<String>>) -> String {
    let Some(nearest) = nearest else {
        let ties = circle.ties.iter().map(|tie| format!("\n    {tie}")).collect::<String>();
        return format!("a new circle of {} files; cut it at one of these:{ties}", files.len());
    };
    let new: Vec<_> = files.difference(nearest).collect();
    let is_new = |tie: &&Tie| new.contains(&&tie.from) || new.contains(&&tie.to);
    let ties = circle.ties.iter().filter(is_new).map(|tie| format!("\n    {tie}")).collect::<String>();
    let (now, was) = (files.len(), nearest.len());
    format!("a circle of {was} files has got {} more, of {now} now; cut at one of these:{ties}", new.len())
}

/// Says what is left of a circle that is written down.
fn better_circle(limit: &BTreeSet<String>, left: &[&BTreeSet<String>]) -> String {
    let out: Vec<_> = limit.iter().filter(|path| !left.iter().any(|files| files.contains(*path))).cloned().collect();
    let first = limit.first().map_or("", String::as_str);
    let sizes = left.iter().map(|files| files.len().to_string()).collect::<Vec<_>>().join(" and ");
    let now = if left.is_empty() { "is none any more".to_owned() } else { format!("has {sizes} files now") };
    format!("the circle of {} files with {first} {now}; out of it: {}", limit.len(), out.join(", "))
}

impl fmt::Display for Differences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.worse.is_empty() {
            writeln!(f, "worse than tests/house/limits.txt (where it has to be, BLESS=1 accepts it):")?;
            self.worse.iter().try_for_each(|it| writeln!(f, "  {it}"))?;
        }
        if !self.better.is_empty() {
            writeln!(f, "better than tests/house/limits.txt; bless it: BLESS=1 cargo test -p xputrace-house")?;
            self.better.iter().try_for_each(|it| writeln!(f, "  {it}"))?;
        }
        Ok(())
    }
}
