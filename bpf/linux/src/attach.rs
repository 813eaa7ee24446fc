//! Attaching: which program runs where, and for which process.
//!
//! A uprobe program has one link per file and process: all places of a file are attached at once,
//! and each process of the scope has its own links, so that others pay nothing. A probe of the
//! whole tree or system has one link per file, which exists before any child does.

use crate::code::Exits;
use crate::cpus;
use crate::error::AttachError;
use crate::first_insn::{BreakpointAnswer, Step};
use crate::links::Links;
use crate::proc_maps::FileMapping;
use crate::reach;
use crate::report::{Outcome, Warning};
use crate::resolve::{self, Candidate, Content, FileId, FilePart, Place, Places};
use crate::returns::{self, Seen, Unseen};
use crate::scope::Scope;
use crate::sys::{self, UprobeMulti};
use crate::trial;
use crate::usdt::{self, Rules};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use xputrace_bytecode::usdt::cookie as cookie_of_usdt;
use xputrace_model::names::Names;
use xputrace_model::plan::cookie::{self, ReturnSite};
use xputrace_model::plan::{ProbeId, ProgramId, ReturnWay, StringId, UsdtPattern};

/// Maximum number of functions named in a warning.
const NAMED_FUNCTIONS: usize = 3;

/// What a probe looks for in files.
#[derive(Clone, Debug)]
pub(crate) enum Sought {
    /// A function's name, or a pattern.
    Function(String),
    Usdt(UsdtPattern),
}

impl Sought {
    fn is_pattern(&self) -> bool {
        match self {
            Sought::Function(function) => resolve::is_glob(function),
            Sought::Usdt(pattern) => usdt::is_pattern(pattern),
        }
    }

    /// Returns the places in a file.
    fn places(&self, file: &Candidate) -> Result<Places, AttachError> {
        match self {
            Sought::Function(function) => resolve::places(file, function),
            Sought::Usdt(pattern) => Ok(Places { places: usdt::places(file, pattern)?, indirect: Vec::new() }),
        }
    }
}

impl fmt::Display for Sought {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sought::Function(function) => f.write_str(function),
            Sought::Usdt(pattern) => f.write_str(&pattern.text()),
        }
    }
}

/// What the run keeps of the places that are attached, so that programs can tell them apart.
pub(crate) struct PlaceTables<'a> {
    pub(crate) names: &'a mut Names,
    pub(crate) rules: &'a mut Rules,
}

impl PlaceTables<'_> {
    /// Returns the cookie of a place where something is entered, or called, whose handler reads these arguments of a USDT probe.
    fn cookie(&mut self, place: &Place, way: ReturnSite, read: &[usize]) -> Result<u64, AttachError> {
        let name = self.names.intern(&place.function);
        Ok(match &place.usdt {
            Some(details) => cookie_of_usdt(name, self.rules.number(details, read)?),
            None => cookie::of(name, way),
        })
    }
}

/// A probe on functions, or on USDT probes, and the files it was found in.
#[derive(Debug)]
pub(crate) struct FunctionProbe {
    pub(crate) probe: ProbeId,
    pub(crate) program: ProgramId,
    /// Runs at the entry; attached before `program`, which then runs at the return.
    pub(crate) entry_program: Option<ProgramId>,
    /// Counts calls that end by a jump to another function.
    pub(crate) tail_program: Option<ProgramId>,
    /// How it detects returns, if it probes them.
    pub(crate) returns: Option<ReturnWay>,
    pub(crate) object: String,
    pub(crate) sought: Sought,
    /// The arguments that its handler reads, if it is a USDT probe's.
    pub(crate) arguments: Vec<usize>,
    /// Whether files of other processes are searched too.
    pub(crate) every_file: bool,
    /// Attached to every process, whatever the scope.
    pub(crate) every_process: bool,
    /// Switched off: it has no links, and gets none.
    pub(crate) is_off: bool,
    pub(crate) files: Vec<ProbedFile>,
    /// Files that were looked into, with what they contained.
    pub(crate) seen: HashMap<FileId, Content>,
}

/// Places of one file.
#[derive(Debug)]
pub(crate) struct ProbedFile {
    pub(crate) id: FileId,
    pub(crate) path: PathBuf,
    pub(crate) part: FilePart,
    /// One for each function.
    entries: Sites,
    /// Entries of functions whose returns Linux's trampoline reports.
    trampolined: Sites,
    /// Return sites of functions.
    returns: Sites,
    tail_calls: Sites,
}

impl ProbedFile {
    /// Returns the file, without places.
    fn of(file: &Candidate) -> ProbedFile {
        let none = Sites::default;
        let Candidate { id, path, part } = file.clone();
        ProbedFile { id, path, part, entries: none(), trampolined: none(), returns: none(), tail_calls: none() }
    }

    /// Whether its probes are in the memory of a process that has mapped this part of it. `None` if that has none, or
    /// cannot be told.
    pub(crate) fn is_reached(&self, pid: u32, mapping: &FileMapping) -> Option<bool> {
        let all = [&self.entries, &self.trampolined, &self.returns, &self.tail_calls];
        let offsets = all.iter().flat_map(|it| &it.offsets).copied();
        offsets.filter_map(|it| reach::is_reached(pid, mapping, &self.path, it)).next()
    }

    fn add_exits(&mut self, name: StringId, exits: &Exits) {
        for it in &exits.returns {
            self.returns.add(it.file_offset, cookie::of(name, it.site));
        }
        for it in &exits.tail_calls {
            self.tail_calls.add(it.file_offset, cookie::of_tail_call(it.condition));
        }
    }
}

/// Offsets in a file, each with its cookie.
#[derive(Debug, Default)]
struct Sites {
    offsets: Vec<u64>,
    cookies: Vec<u64>,
    /// Empty, or for each the file offset of its counter, or 0.
    counters: Vec<u64>,
}

impl Sites {
    fn add(&mut self, offset: u64, cookie: u64) {
        self.offsets.push(offset);
        self.cookies.push(cookie);
    }

    fn add_counted(&mut self, offset: u64, cookie: u64, counter: Option<u64>) {
        self.counters.resize(self.offsets.len(), 0);
        self.add(offset, cookie);
        self.counters.push(counter.unwrap_or(0));
    }
}

/// Loaded programs by their index in the image.
pub(crate) type Programs = [Option<OwnedFd>];

/// The result of searching a file: its index among the probe's files, and warnings.
#[derive(Debug)]
pub(crate) struct SearchedFile {
    pub(crate) file: usize,
    pub(crate) warnings: Vec<Warning>,
}

impl FunctionProbe {
    /// Finds the functions in a file, except those that cannot be probed. Returns `Ok(None)` if the
    /// file was searched before.
    pub(crate) fn look_into(
        &mut self,
        file: &Candidate,
        programs: &Programs,
        known: &mut PlaceTables<'_>,
    ) -> Result<Option<SearchedFile>, AttachError> {
        if self.seen.contains_key(&file.id) {
            return Ok(None);
        }
        self.seen.extend(Content::of(&file.path).map(|it| (file.id, it)));
        let Places { mut places, indirect } = self.sought.places(file)?;
        self.arguments.iter().try_for_each(|it| usdt::check_argument(&places, &file.path, *it))?;
        let matched = places.len() + indirect.len();
        let (refused, unknown) = self.take_refused(&mut places, &file.path, programs)?;
        let loops = places.iter().filter(|it| it.is_loop).map(|it| it.function.clone()).collect::<Vec<_>>();
        let mut texts = vec![
            self.left_out(&refused, matched, "cannot be probed: Linux cannot step over their first instruction"),
            self.left_out(&unknown, matched, "are not probed, as finding out which of them can be takes too long"),
            self.left_out(&indirect, matched, "are not probed, as the program chooses their code when it starts"),
            stepped(&places, &file.path),
            looped(&loops, &file.path),
        ];
        let seen = self.with_exits(places, &file.path, programs)?;
        texts.extend(
            unseen(&seen.unseen)
                .map(|(why, functions)| self.left_out(&functions, matched, &format!("are not probed. Each {why}"))),
        );
        let warnings = texts.into_iter().flatten().map(|text| Warning { probe: Some(self.probe), text }).collect();
        self.files.push(self.sites(file, &seen.places, known)?);
        Ok(Some(SearchedFile { file: self.files.len() - 1, warnings }))
    }

    /// Finds the return sites if returns are probed. Fails if no returns can be probed, or not
    /// those of the only function requested by name.
    fn with_exits(&self, places: Vec<Place>, file: &Path, programs: &Programs) -> Result<Seen, AttachError> {
        let seen = match self.returns {
            None => Seen { places: places.into_iter().map(|it| (it, None)).collect(), ..Seen::default() },
            Some(ReturnWay::Trampoline) => returns::by_trampoline(places),
            Some(ReturnWay::AtReturn) => returns::at_exits(file, places, program(programs, self.program)?),
        };
        if seen.places.is_empty() || (!seen.unseen.is_empty() && !self.sought.is_pattern()) {
            let reason = |(why, functions): (&str, Vec<String>)| format!("{} {why}", listed(&functions));
            let functions = unseen(&seen.unseen).map(reason).collect();
            return Err(AttachError::NoReturns { file: file.to_path_buf(), functions });
        }
        Ok(seen)
    }

    fn sites(
        &self,
        file: &Candidate,
        places: &[(Place, Option<Exits>)],
        known: &mut PlaceTables<'_>,
    ) -> Result<ProbedFile, AttachError> {
        let mut file = ProbedFile::of(file);
        for (place, exits) in places {
            // The entry's program asks how the return is detected, not where.
            let way = if exits.is_some() { ReturnSite::Ret } else { ReturnSite::Trampoline };
            let cookie = known.cookie(place, way, &self.arguments)?;
            match &place.usdt {
                Some(details) => file.entries.add_counted(place.file_offset, cookie, details.semaphore),
                None => file.entries.add(place.file_offset, cookie),
            }
            match exits {
                None => file.trampolined.add(place.file_offset, cookie),
                Some(exits) => file.add_exits(cookie::name(cookie), exits),
            }
        }
        Ok(file)
    }

    /// Removes the places that Linux refuses, and those it could not be asked about; returns the
    /// names of both. Fails if none is left, or if the only function requested by name is refused.
    fn take_refused(
        &self,
        places: &mut Vec<Place>,
        file: &Path,
        programs: &Programs,
    ) -> Result<(Vec<String>, Vec<String>), AttachError> {
        let answered = |answer| places.iter().filter(move |it| it.answer == answer).map(|it| it.file_offset);
        let in_doubt: Vec<u64> = answered(BreakpointAnswer::InDoubt).collect();
        let mut verdict = trial::run(program(programs, self.program)?, file, &in_doubt);
        verdict.refused.extend(answered(BreakpointAnswer::Refused));
        let mut take = |offsets: &HashSet<u64>| -> Vec<String> {
            places.extract_if(.., |it| offsets.contains(&it.file_offset)).map(|it| it.function).collect()
        };
        let (refused, unknown) = (take(&verdict.refused), take(&verdict.unknown));
        match places.is_empty() || (!refused.is_empty() && !self.sought.is_pattern()) {
            true => Err(AttachError::Unsteppable {
                file: file.to_path_buf(),
                functions: listed(&[refused, unknown].concat()),
            }),
            false => Ok((refused, unknown)),
        }
    }

    fn left_out(&self, functions: &[String], matched: usize, why: &str) -> Option<String> {
        let FunctionProbe { object, sought, .. } = self;
        let text = || {
            format!(
                "{} of {matched} functions matched by {object}:{sought} {why}: {}",
                functions.len(),
                listed(functions)
            )
        };
        (!functions.is_empty()).then(text)
    }

    /// Links one of its files in a process or in all. Entries come first: a return without its
    /// entry would be counted as lost.
    pub(crate) fn link(&self, file: usize, pid: Option<u32>, programs: &Programs) -> Result<Vec<OwnedFd>, AttachError> {
        let file = &self.files[file];
        let mut links = Vec::new();
        for (index, sites, at_return) in self.links_of(file) {
            if sites.offsets.is_empty() {
                continue;
            }
            let Sites { offsets, cookies, counters } = sites;
            let places = UprobeMulti { path: &file.path, offsets, cookies, counters, pid, at_return };
            let program = program(programs, index)?;
            links.push(sys::link_uprobe_multi(program, &places).map_err(|it| refused_uprobe(&file.path, pid, it))?);
        }
        Ok(links)
    }

    /// Returns program, places, and whether Linux must call it at the return of the call that
    /// starts there.
    fn links_of<'a>(&self, file: &'a ProbedFile) -> Vec<(ProgramId, &'a Sites, bool)> {
        let entry = self.entry_program.map(|it| (it, &file.entries, false));
        let tail = self.tail_program.map(|it| (it, &file.tail_calls, false));
        let handler = match self.returns {
            None => vec![(self.program, &file.entries, false)],
            Some(_) => vec![(self.program, &file.trampolined, true), (self.program, &file.returns, false)],
        };
        entry.into_iter().chain(tail).chain(handler).collect()
    }

    /// Links all its files in one process.
    pub(crate) fn link_all(&self, pid: u32, programs: &Programs) -> Result<Links, AttachError> {
        let mut links = Links::default();
        for (index, file) in self.files.iter().enumerate() {
            links.add_of_file(Some(pid), self.probe, file.id, self.link(index, Some(pid), programs)?);
        }
        Ok(links)
    }

    /// Forgets a file, which is then searched anew. Returns the path under which it was probed, if it was.
    pub(crate) fn forget(&mut self, file: FileId) -> Option<PathBuf> {
        self.seen.remove(&file)?;
        self.files.extract_if(.., |it| it.id == file).map(|it| it.path).next()
    }

    pub(crate) fn attached(&self) -> Outcome {
        Outcome::Attached {
            functions: self.files.iter().map(|it| it.entries.offsets.len()).sum(),
            files: self.files.iter().map(|it| it.path.clone()).collect(),
        }
    }

    /// Returns the candidates in the scope. An executable may contain a statically linked library;
    /// that is a guess, so a miss there is not a failure.
    pub(crate) fn candidates(&self, scope: &Scope) -> Vec<Candidate> {
        resolve::candidates(&self.object, scope)
    }
}

fn stepped(places: &[Place], file: &Path) -> Option<String> {
    let stepped: Vec<_> =
        places.iter().filter(|it| it.step == Step::SingleStepped).map(|it| it.function.clone()).collect();
    let text = || {
        format!(
            "{} in {}: Linux single-steps the first instruction, so a hit costs about 10 us in a virtual machine \
             instead of 0.5 us",
            listed(&stepped),
            file.display(),
        )
    };
    (!stepped.is_empty()).then(text)
}

fn looped(functions: &[String], file: &Path) -> Option<String> {
    let text = || {
        format!(
            "{} in {}: the first instruction begins a loop, so each round counts as a call",
            listed(functions),
            file.display()
        )
    };
    (!functions.is_empty()).then(text)
}

/// Groups the functions whose returns cannot be probed by reason.
fn unseen(all: &[Unseen]) -> impl Iterator<Item = (&'static str, Vec<String>)> {
    let mut by_reason: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for Unseen { function, why } in all {
        by_reason.entry(why).or_default().push(function.clone());
    }
    by_reason.into_iter()
}

/// Formats `a, b, c and 5 more`.
fn listed(functions: &[String]) -> String {
    let names = functions.iter().take(NAMED_FUNCTIONS).map(String::as_str).collect::<Vec<_>>().join(", ");
    match functions.len().saturating_sub(NAMED_FUNCTIONS) {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// Links one place in every process, for the launch marker.
pub(crate) fn link_place(
    programs: &Programs,
    id: ProgramId,
    path: &Path,
    file_offset: u64,
) -> Result<OwnedFd, AttachError> {
    let places =
        UprobeMulti { path, offsets: &[file_offset], cookies: &[0], counters: &[], pid: None, at_return: false };
    sys::link_uprobe_multi(program(programs, id)?, &places).map_err(|it| refused_uprobe(path, None, it))
}

pub(crate) fn link_tracepoint(
    programs: &Programs,
    number: ProgramId,
    category: &str,
    name: &str,
) -> Result<TracepointLink, AttachError> {
    const ANY_PROCESS: i32 = -1;
    let what = || format!("the tracepoint {category}:{name}");
    let id = crate::catalog::tracepoint_id(category, name)?;
    let attr = libbpf_sys::perf_event_attr {
        type_: libbpf_sys::PERF_TYPE_TRACEPOINT,
        size: size_of::<libbpf_sys::perf_event_attr>() as u32,
        config: id,
        ..Default::default()
    };
    // A program on a tracepoint runs on every CPU, whichever CPU the event names.
    let event = sys::perf_event_open(&attr, ANY_PROCESS, 0).map_err(|it| refused_perf(what(), it))?;
    let link =
        sys::link_perf_event(program(programs, number)?, event.as_fd()).map_err(|it| refused_perf(what(), it))?;
    Ok(TracepointLink { link, event })
}

/// A program on a tracepoint.
#[derive(Debug)]
pub(crate) struct TracepointLink {
    /// Closing it detaches the program.
    pub(crate) link: OwnedFd,
    /// Keeps the tracepoint enabled.
    pub(crate) event: OwnedFd,
}

/// A timer on every CPU.
#[derive(Debug)]
pub(crate) struct Sampler {
    pub(crate) probe: ProbeId,
    program: ProgramId,
    hz: u64,
    links: Vec<OwnedFd>,
    events: Vec<OwnedFd>,
}

impl Sampler {
    pub(crate) fn start(
        programs: &Programs,
        probe: ProbeId,
        program: ProgramId,
        hz: u64,
    ) -> Result<Sampler, AttachError> {
        const ANY_PROCESS: i32 = -1;
        let what = || format!("samples at {hz} Hz");
        let mut attr = libbpf_sys::perf_event_attr {
            type_: libbpf_sys::PERF_TYPE_SOFTWARE,
            size: size_of::<libbpf_sys::perf_event_attr>() as u32,
            config: u64::from(libbpf_sys::PERF_COUNT_SW_CPU_CLOCK),
            read_format: u64::from(libbpf_sys::PERF_FORMAT_TOTAL_TIME_ENABLED),
            ..Default::default()
        };
        attr.set_freq(1);
        attr.__bindgen_anon_1.sample_freq = hz;
        let mut sampler = Sampler { probe, program, hz, links: Vec::new(), events: Vec::new() };
        let code = self::program(programs, program)?;
        for cpu in cpus::online().map_err(|it| refused_perf(what(), it))? {
            let event = sys::perf_event_open(&attr, ANY_PROCESS, cpu).map_err(|it| refused_sample(what(), hz, it))?;
            let link = sys::link_perf_event(code, event.as_fd()).map_err(|it| refused_perf(what(), it))?;
            sampler.links.push(link);
            sampler.events.push(event);
        }
        Ok(sampler)
    }

    pub(crate) fn n_cpus(&self) -> usize {
        self.events.len()
    }

    /// Returns a lower bound of the due samples that the program did not see: Linux drops a sample
    /// that hits while a tracepoint's handler runs on its CPU, without counting it. One sample per
    /// CPU may be in progress. Returns 0 if Linux did not count the program's runs.
    pub(crate) fn missed(&self, programs: &Programs) -> u64 {
        let Ok(seen) = self::program(programs, self.program).map(|it| sys::prog_runs(it).unwrap_or_default()) else {
            return 0;
        };
        let due = |event: &OwnedFd| {
            let nanos = sys::time_enabled(event).unwrap_or_default();
            (u128::from(nanos) * u128::from(self.hz) / 1_000_000_000).saturating_sub(1) as u64
        };
        match seen {
            0 => 0,
            seen => self.events.iter().map(due).sum::<u64>().saturating_sub(seen),
        }
    }

    /// Returns all of its descriptors, to be closed.
    pub(crate) fn into_links(self) -> Vec<OwnedFd> {
        self.links.into_iter().chain(self.events).collect()
    }
}

fn program(programs: &Programs, id: ProgramId) -> Result<BorrowedFd<'_>, AttachError> {
    programs.get(id.index()).and_then(Option::as_ref).map(AsFd::as_fd).ok_or_else(|| AttachError::Refused {
        what: format!("program number {}", id.0),
        answer: "it is not loaded".into(),
        hint: "; this is a bug in xputrace".into(),
    })
}

fn refused_uprobe(file: &Path, pid: Option<u32>, error: io::Error) -> AttachError {
    match (error.raw_os_error(), pid) {
        (Some(libc::ESRCH), Some(pid)) => AttachError::NoSuchProcess(pid),
        (Some(libc::EINVAL), _) if !has_uprobe_multi() => AttachError::OldKernel { release: linux_release() },
        (Some(sys::ENOTSUPP), _) => {
            AttachError::Unsteppable { file: file.to_path_buf(), functions: "a function".into() }
        }
        // Source: `uprobe_register` in `kernel/events/uprobes.c`, which keeps one counter for a place.
        (Some(libc::EINVAL), _) => AttachError::Refused {
            what: format!("uprobes in {}", file.display()),
            answer: error.to_string(),
            hint: "; where a USDT probe has a semaphore, Linux takes no uprobe at the same address".into(),
        },
        (errno, _) => AttachError::Refused {
            what: format!("uprobes in {}", file.display()),
            answer: error.to_string(),
            hint: hint(errno).into(),
        },
    }
}

fn refused_perf(what: String, error: io::Error) -> AttachError {
    let hint = hint(error.raw_os_error()).into();
    AttachError::Refused { what, answer: error.to_string(), hint }
}

fn refused_sample(what: String, hz: u64, error: io::Error) -> AttachError {
    let limit = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").unwrap_or_default();
    match limit.trim().parse::<u64>() {
        Ok(limit) if hz > limit => AttachError::Refused {
            what,
            answer: format!("Linux allows {limit} a second"),
            hint: format!("; sysctl kernel.perf_event_max_sample_rate={hz}"),
        },
        _ => refused_perf(what, error),
    }
}

pub(crate) fn hint(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::EPERM | libc::EACCES) => "; run as root, and see `xputrace doctor`",
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files: ulimit -n",
        _ => "",
    }
}

/// Returns a release such as `6.18.44-generic`.
pub(crate) fn linux_release() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// Whether Linux is 6.6 or later.
pub(crate) fn has_uprobe_multi() -> bool {
    version(&linux_release()).is_none_or(|it| it >= (6, 6))
}

/// Major and minor number of a release.
pub(crate) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Processes that currently have links.
pub(crate) type Alive = BTreeSet<u32>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version(""), None);
    }
}
