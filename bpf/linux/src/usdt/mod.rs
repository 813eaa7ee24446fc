//! USDT probes: places in a file's code that its notes name, with arguments that each place has elsewhere.
//!
//! ```text
//! file ──notes──▶ places, semaphores, texts of arguments ──argument──▶ rules ──Rules──▶ map, by the cookies' numbers
//! ```

mod argument;
mod notes;

use crate::elf::Elf;
use crate::error::AttachError;
use crate::map::MapHandle;
use crate::resolve::{self, Candidate, FilePart, Place, glob, is_glob};
use argument::Unreadable;
use notes::Note;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use xputrace_bytecode::helper;
use xputrace_bytecode::usdt::{self, Argument, MOST_RULES, Rule};
use xputrace_model::catalog::TracepointFieldType;
use xputrace_model::diagnostic;
use xputrace_model::plan::UsdtPattern;

/// Maximum number of names that an error suggests.
const NEAR_NAMES: usize = 3;

/// What a place of a probe has beside its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Details {
    /// File offset of the counter that Linux counts up while the place is probed.
    pub(crate) semaphore: Option<u64>,
    arguments: Vec<Result<Argument, Unreadable>>,
}

impl Details {
    /// Returns why an argument cannot be read; `None` if it can be, or if the place has no such argument.
    fn refusal(&self, n: usize) -> Option<&Unreadable> {
        self.arguments.get(n)?.as_ref().err()
    }

    /// Returns the names of the arguments, and what each is.
    pub(crate) fn described(&self) -> Vec<(String, String)> {
        let text = |it: &Result<Argument, Unreadable>| match it {
            Ok(it) => TracepointFieldType::Int { size: it.bytes.into(), signed: it.signed }.text(),
            Err(it) => format!("cannot be read: {}", it.why),
        };
        self.arguments.iter().enumerate().map(|(n, it)| (format!("arg{n}"), text(it))).collect()
    }

    /// Returns where the arguments are that are read. Places that differ in others alone share a rule.
    fn rule(&self, read: &[usize]) -> Rule {
        std::array::from_fn(|n| self.arguments.get(n).filter(|_| read.contains(&n)).cloned()?.ok())
    }
}

/// Returns the places in a file that a pattern names.
pub(crate) fn places(file: &Candidate, pattern: &UsdtPattern) -> Result<Vec<Place>, AttachError> {
    let elf = resolve::open(&file.path)?;
    let all = notes::of(&elf);
    if all.is_empty() {
        return Err(AttachError::NoUsdt { file: file.path.clone() });
    }
    let found: Vec<&Note> = all.iter().filter(|it| file.part == FilePart::All && is_meant(it, pattern)).collect();
    if found.is_empty() {
        return Err(missing(&all, &file.path, pattern));
    }
    let providers: BTreeSet<&str> = found.iter().map(|it| &*it.provider).collect();
    if pattern.provider.is_none() && providers.len() > 1 {
        return Err(AttachError::SeveralProviders {
            file: file.path.clone(),
            name: pattern.name.clone(),
            providers: providers.into_iter().map(str::to_owned).collect(),
        });
    }
    let mut places = found.iter().map(|it| place(&elf, &file.path, it)).collect::<Result<Vec<_>, _>>()?;
    places.sort_by(|a, b| (a.file_offset, &a.function).cmp(&(b.file_offset, &b.function)));
    places.dedup_by(|a, b| a.file_offset == b.file_offset && a.function == b.function);
    Ok(places)
}

/// Checks that an argument can be read at every place that has it.
pub(crate) fn check_argument(places: &[Place], file: &Path, n: usize) -> Result<(), AttachError> {
    let refused = |it: &Place| it.usdt.as_ref()?.refusal(n).cloned().map(|refusal| (it.clone(), refusal));
    match places.iter().find_map(refused) {
        Some((place, Unreadable { text, why })) => Err(AttachError::UnreadableArgument {
            file: file.to_path_buf(),
            probe: place.function,
            file_offset: place.file_offset,
            argument: n,
            text,
            why,
        }),
        None => Ok(()),
    }
}

/// Returns how many arguments the place with the most of them has.
pub(crate) fn most_arguments(places: &[Place]) -> usize {
    places.iter().filter_map(|it| it.usdt.as_ref()).map(|it| it.arguments.len()).max().unwrap_or(0)
}

/// Returns the probes of a file that match a pattern, sorted by name, each once: the place that has the most arguments.
pub(crate) fn matching(file: &Path, pattern: &UsdtPattern) -> Vec<(String, Details)> {
    let Ok(elf) = Elf::open(file) else { return Vec::new() };
    let meant = notes::of(&elf).into_iter().filter(|it| is_meant(it, pattern));
    let mut found: BTreeMap<String, Details> = BTreeMap::new();
    for place in meant.filter_map(|it| place(&elf, file, &it).ok()) {
        let Some(details) = place.usdt else { continue };
        let known = found.entry(place.function).or_insert_with(|| details.clone());
        if known.arguments.len() < details.arguments.len() {
            *known = details;
        }
    }
    found.into_iter().collect()
}

fn is_meant(note: &Note, pattern: &UsdtPattern) -> bool {
    pattern.provider.as_ref().is_none_or(|it| glob(it, &note.provider)) && glob(&pattern.name, &note.name)
}

fn place(elf: &Elf, file: &Path, note: &Note) -> Result<Place, AttachError> {
    let broken =
        |why: &str| AttachError::BrokenUsdt { file: file.to_path_buf(), probe: note.full_name(), why: why.to_owned() };
    if !elf.is_x86_64() {
        return Err(broken("it is not code of x86-64"));
    }
    let file_offset = elf.file_offset(note.location).ok_or_else(|| broken("its place is not in the file's code"))?;
    let offset_of = |it| elf.data_offset(it).ok_or_else(|| broken("its semaphore is not in the file's data"));
    let semaphore = note.semaphore.map(offset_of).transpose()?;
    let relative = |name: &str| Ok(elf.variable(name)?.wrapping_sub(note.location) as i64);
    let arguments = argument::all(&note.arguments, &relative);
    Ok(Place { usdt: Some(Details { semaphore, arguments }), ..resolve::place(elf, &note.full_name(), file_offset) })
}

/// Explains that there is no such probe, and suggests similar ones.
fn missing(all: &[Note], file: &Path, pattern: &UsdtPattern) -> AttachError {
    let names: BTreeSet<String> = all.iter().map(Note::full_name).collect();
    let wanted = pattern.text();
    let nearest = diagnostic::nearest(&wanted, names.iter().map(String::as_str)).map(str::to_owned);
    let of_name = names.iter().filter(|it| it.rsplit(':').next() == Some(&*pattern.name)).cloned();
    let of_provider =
        |it: &&String| pattern.provider.as_ref().is_some_and(|wanted| it.split(':').next() == Some(wanted));
    let mut near: Vec<String> = Vec::new();
    for name in nearest.into_iter().chain(of_name).chain(names.iter().filter(of_provider).cloned()).take(16) {
        if near.len() < NEAR_NAMES && !near.contains(&name) {
            near.push(name);
        }
    }
    AttachError::NoSuchUsdt { file: file.to_path_buf(), probe: wanted, near }
}

/// Whether several probes may be meant.
pub(crate) fn is_pattern(pattern: &UsdtPattern) -> bool {
    pattern.provider.as_deref().is_some_and(is_glob) || is_glob(&pattern.name)
}

/// The rules that the run's map has.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    /// `None` if no program reads arguments.
    map: Option<MapHandle>,
    numbers: HashMap<Rule, u32>,
}

impl Rules {
    pub(crate) fn of(map: Option<MapHandle>) -> Rules {
        Rules { map, numbers: HashMap::new() }
    }

    /// Returns the number by which a program finds where a place has the arguments that it reads. One that reads none never
    /// looks.
    pub(crate) fn number(&mut self, details: &Details, read: &[usize]) -> Result<u32, AttachError> {
        let Some(map) = self.map.as_ref().filter(|_| !read.is_empty()) else { return Ok(0) };
        let rule = details.rule(read);
        if let Some(known) = self.numbers.get(&rule) {
            return Ok(*known);
        }
        let number = self.numbers.len() as u32;
        if number >= MOST_RULES {
            return Err(AttachError::TooManyRules { most: MOST_RULES });
        }
        let stored = map.update(&number.to_ne_bytes(), &usdt::encode(&rule), helper::UPDATE_ANY as u64);
        stored.map_err(|it| AttachError::Refused {
            what: "the arguments of USDT probes".into(),
            answer: it.to_string(),
            hint: String::new(),
        })?;
        self.numbers.insert(rule, number);
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_differ_in_arguments_that_nobody_reads_share_a_rule() {
        let at = |text: &str| Details { semaphore: None, arguments: argument::all(text, &|_| Ok(0)) };
        let (first, second) = (at("8@%rdi -4@%esi"), at("8@%rdi -4@8(%rsp)"));
        assert_eq!(first.rule(&[0]), second.rule(&[0]));
        assert_ne!(first.rule(&[0, 1]), second.rule(&[0, 1]));
        assert!(first.rule(&[0])[1].is_none());
    }
}
