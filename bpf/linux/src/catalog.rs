//! The live machine as the compiler's catalog.
//!
//! Tracepoints come from tracefs, functions from the files that a run would probe, the pid
//! namespace from /proc, and the offset of one field of `task_struct` and the sizes of C's types from Linux's type
//! information (BTF).

use crate::btf::{self, Integer};
use crate::error::{AttachError, most_telling};
use crate::pid_namespace;
use crate::resolve::{self, Candidate, Place};
use crate::scope::Scope;
use crate::usdt;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use xputrace_bytecode::probe::PidNamespace;
use xputrace_model::catalog::{Catalog, ReturnType, TracepointField, TracepointFieldType, TracepointFormat};
use xputrace_model::diagnostic;
use xputrace_model::plan::UsdtPattern;

const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const NEAR_NAMES: usize = 3;
/// Size of a system call's argument in the record of its tracepoint.
const WORD_BYTES: u32 = 8;

/// The live machine, with the functions of one scope's files.
#[derive(Clone, Debug)]
pub struct LiveCatalog {
    scope: Scope,
    /// Whether no later process may bring a file that is missing.
    is_final: bool,
    exec_id: OnceLock<Option<u32>>,
    pid_namespace: OnceLock<Option<PidNamespace>>,
    files: RefCell<HashMap<String, Rc<Vec<NamedFile>>>>,
    answers: RefCell<HashMap<(String, String), Result<(), String>>>,
    return_types: RefCell<HashMap<(String, String), Option<ReturnType>>>,
    usdt: RefCell<HashMap<(String, UsdtPattern), Rc<UsdtPlaces>>>,
}

/// The places of USDT probes in the files of a name.
#[derive(Debug, Default)]
struct UsdtPlaces {
    files: Vec<(PathBuf, Vec<Place>)>,
    /// Why there are none in files that could be read.
    errors: Vec<AttachError>,
}

/// A file and the names of its functions that can be probed.
#[derive(Debug)]
struct NamedFile {
    file: Candidate,
    functions: HashSet<String>,
}

impl Default for LiveCatalog {
    fn default() -> Self {
        Self::new()
    }
}

impl LiveCatalog {
    /// Creates a catalog without reading anything. Functions are looked up in installed files.
    pub fn new() -> Self {
        Self::of(Scope::Processes(Vec::new()))
    }

    /// Creates a catalog that looks up functions in the files that this scope would probe.
    pub fn of(scope: Scope) -> Self {
        LiveCatalog {
            scope,
            is_final: false,
            exec_id: OnceLock::new(),
            pid_namespace: OnceLock::new(),
            files: RefCell::default(),
            answers: RefCell::default(),
            return_types: RefCell::default(),
            usdt: RefCell::default(),
        }
    }

    /// Makes it tell of files that are not there now: for a script that is only checked.
    pub fn as_of_now(self) -> Self {
        LiveCatalog { is_final: true, ..self }
    }

    fn files(&self, object: &str) -> Rc<Vec<NamedFile>> {
        if let Some(known) = self.files.borrow().get(object) {
            return known.clone();
        }
        let named = |file: Candidate| NamedFile { functions: resolve::probed_names(&file), file };
        let found = Rc::new(resolve::candidates(object, &self.scope).into_iter().map(named).collect::<Vec<_>>());
        self.files.borrow_mut().insert(object.to_owned(), found.clone());
        found
    }

    fn look_up_return_type(&self, object: &str, function: &str) -> Option<ReturnType> {
        let files = self.files(object);
        let mut types = files.iter().map(|it| resolve::return_type(&it.file, function));
        let first = types.next()??;
        types.all(|it| it == Some(first)).then_some(first)
    }

    fn usdt_places(&self, object: &str, pattern: &UsdtPattern) -> Rc<UsdtPlaces> {
        let key = (object.to_owned(), pattern.clone());
        if let Some(known) = self.usdt.borrow().get(&key) {
            return known.clone();
        }
        let mut found = UsdtPlaces::default();
        for file in resolve::candidates(object, &self.scope) {
            match usdt::places(&file, pattern) {
                Ok(places) => found.files.push((file.path, places)),
                Err(error) if is_guess(&error, object) => {}
                Err(error) => found.errors.push(error),
            }
        }
        let found = Rc::new(found);
        self.usdt.borrow_mut().insert(key, found.clone());
        found
    }

    fn look_up(&self, object: &str, function: &str) -> Result<(), String> {
        let files = self.files(object);
        if files.iter().any(|it| it.functions.contains(function)) {
            return Ok(());
        }
        match resolve::refusal(object, function, files.iter().map(|it| &it.file)) {
            Some(error) => Err(error.to_string()),
            None => Ok(()),
        }
    }
}

impl Catalog for LiveCatalog {
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String> {
        read(category, name, "format").map(|it| parse_format(&it, &integer)).map_err(|it| it.to_string())
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        tracepoints()
    }

    fn function(&self, object: &str, function: &str) -> Result<(), String> {
        let key = (object.to_owned(), function.to_owned());
        if let Some(known) = self.answers.borrow().get(&key) {
            return known.clone();
        }
        let answer = self.look_up(object, function);
        self.answers.borrow_mut().insert(key, answer.clone());
        answer
    }

    fn usdt(&self, object: &str, pattern: &UsdtPattern) -> Result<(), String> {
        let found = self.usdt_places(object, pattern);
        match most_telling(found.errors.clone()) {
            Some(error) if found.files.is_empty() => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn usdt_argument(&self, object: &str, pattern: &UsdtPattern, n: usize) -> Result<(), String> {
        let found = self.usdt_places(object, pattern);
        for (file, places) in &found.files {
            usdt::check_argument(places, file, n).map_err(|it| it.to_string())?;
        }
        match found.files.iter().map(|(_, places)| usdt::most_arguments(places)).max() {
            Some(most) if most <= n => Err(match most {
                0 => format!("the USDT probe `{}` has no arguments", pattern.text()),
                most => format!("the USDT probe `{}` has no `arg{n}`: its last is `arg{}`", pattern.text(), most - 1),
            }),
            _ => Ok(()),
        }
    }

    fn has_file(&self, object: &str) -> bool {
        !self.is_final || !self.files(object).is_empty()
    }

    fn return_type(&self, object: &str, function: &str) -> Option<ReturnType> {
        let key = (object.to_owned(), function.to_owned());
        if let Some(known) = self.return_types.borrow().get(&key) {
            return *known;
        }
        let found = self.look_up_return_type(object, function);
        self.return_types.borrow_mut().insert(key, found);
        found
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        *self.pid_namespace.get_or_init(pid_namespace::own)
    }

    fn exec_id_offset(&self) -> Option<u32> {
        *self.exec_id.get_or_init(|| crate::btf::with(|it| it.offset("task_struct", "self_exec_id")))
    }
}

/// Whether an error is only that a file lacks the probe that was no more than a guess, or that it cannot be read.
fn is_guess(error: &AttachError, object: &str) -> bool {
    matches!(error, AttachError::UnreadableFile { .. })
        || error.without_it().is_some_and(|it| !resolve::is_candidate(object, it))
}

/// Returns perf's id of a tracepoint.
pub(crate) fn tracepoint_id(category: &str, name: &str) -> Result<u64, AttachError> {
    let text = read(category, name, "id")?;
    text.trim()
        .parse()
        .map_err(|_| AttachError::Tracefs(format!("the id of the tracepoint {category}:{name} is {text:?}")))
}

/// Returns `CATEGORY:NAME` of every tracepoint, sorted.
pub(crate) fn tracepoints() -> Result<Vec<String>, String> {
    let events = tracefs()?.join("events");
    let mut found = Vec::new();
    for category in entries(&events).map_err(|it| unreadable(&events, &it))? {
        for name in entries(&events.join(&category)).unwrap_or_default() {
            if events.join(&category).join(&name).join("id").exists() {
                found.push(format!("{category}:{name}"));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns where tracefs is mounted.
pub(crate) fn tracefs() -> Result<PathBuf, String> {
    if let Some(found) = TRACEFS.iter().find(|it| Path::new(it).join("events").exists()) {
        return Ok(PathBuf::from(found));
    }
    match std::fs::read_dir(TRACEFS[0]) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(unreadable(Path::new(TRACEFS[0]), &error)),
        _ => Err(format!("tracefs is not mounted: mount -t tracefs tracefs {}", TRACEFS[0])),
    }
}

fn read(category: &str, name: &str, file: &str) -> Result<String, AttachError> {
    let root = tracefs().map_err(AttachError::Tracefs)?;
    let plain = |it: &str| !it.is_empty() && !it.contains('/') && !it.starts_with('.');
    let path = root.join("events").join(category).join(name).join(file);
    match xputrace_boundary::read::of_linux(&path) {
        Ok(text) if plain(category) && plain(name) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(AttachError::Tracefs(unreadable(&path, &error)))
        }
        _ => Err(AttachError::NoSuchTracepoint { name: format!("{category}:{name}"), near: near(category, name) }),
    }
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}; run as root", path.display())
}

/// Returns similar tracepoints: of the same category first, then of the same name elsewhere.
fn near(category: &str, name: &str) -> Vec<String> {
    let all = tracepoints().unwrap_or_default();
    let split = || all.iter().filter_map(|it| Some((it, it.split_once(':')?)));
    let siblings: Vec<&str> = split().filter(|(_, it)| it.0 == category).map(|(_, it)| it.1).collect();
    let sibling = diagnostic::nearest(name, siblings.iter().copied()).map(|it| format!("{category}:{it}"));
    let elsewhere = split().filter(|(_, it)| it.1 == name).map(|(full, _)| full.clone());
    let wanted = format!("{category}:{name}");
    let anywhere = diagnostic::nearest(&wanted, all.iter().map(String::as_str)).map(str::to_owned);
    let mut found: Vec<String> = sibling.into_iter().chain(elsewhere).chain(anywhere).collect();
    found.dedup();
    found.truncate(NEAR_NAMES);
    found
}

fn entries(directory: &Path) -> io::Result<Vec<String>> {
    Ok(std::fs::read_dir(directory)?.flatten().filter_map(|it| it.file_name().into_string().ok()).collect())
}

/// Returns an integer type of Linux's by its name. Remembers it: a description of all types is searched.
fn integer(name: &str) -> Option<Integer> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Option<Integer>>>> = LazyLock::new(Default::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(name.to_owned()).or_insert_with(|| btf::with(|it| it.integer(name)))
}

/// Parses lines such as `field:pid_t prev_pid; offset:24; size:4; signed:1;`, separated by tabs.
/// Skips the fields that all tracepoints share (`common_…`).
pub(crate) fn parse_format(text: &str, integer: &dyn Fn(&str) -> Option<Integer>) -> TracepointFormat {
    let fields =
        text.lines().filter_map(|it| parse_field(it, integer)).filter(|it| !it.name.starts_with("common_")).collect();
    TracepointFormat { fields }
}

fn parse_field(line: &str, integer: &dyn Fn(&str) -> Option<Integer>) -> Option<TracepointField> {
    let mut parts = line.trim().split(';').map(str::trim);
    let declaration = parts.next()?.strip_prefix("field:")?;
    let mut number = |key: &str| parts.next()?.strip_prefix(key)?.parse::<u32>().ok();
    let (offset, size, signed) = (number("offset:")?, number("size:")?, number("signed:")? != 0);
    let (kind, name) = declaration.rsplit_once([' ', '*'])?;
    let (name, array) = match name.split_once('[') {
        Some((name, _)) => (name, true),
        None => (name, false),
    };
    let (kind, pointer) = (kind.trim(), declaration.contains('*'));
    // The arguments of a system call are in words, whose other half may hold anything.
    let narrower = || integer(kind).filter(|it| it.size < WORD_BYTES);
    let Integer { size, signed } = match size == WORD_BYTES && !pointer && !array {
        true => narrower().unwrap_or(Integer { size, signed }),
        false => Integer { size, signed },
    };
    let kind = field_type(kind, pointer, array, size, signed);
    Some(TracepointField { name: name.to_owned(), offset, kind })
}

fn field_type(kind: &str, pointer: bool, array: bool, size: u32, signed: bool) -> TracepointFieldType {
    match size {
        _ if kind.starts_with("__data_loc") => match kind.contains("char") && size == 4 {
            true => TracepointFieldType::DataLoc,
            false => TracepointFieldType::Other,
        },
        _ if kind.starts_with("__rel_loc") => TracepointFieldType::Other,
        _ if array && kind == "char" => TracepointFieldType::Chars(size),
        _ if array || kind.starts_with("struct ") && !pointer => TracepointFieldType::Other,
        1 | 2 | 4 | 8 => TracepointFieldType::Int { size, signed },
        _ => TracepointFieldType::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use TracepointFieldType::{Chars, DataLoc, Int, Other};

    const FORMAT: &str = "name: x\nID: 1\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
        \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t prev_pid;\toffset:24;\tsize:4;\tsigned:1;\n\
        \tfield:__data_loc char[] name;\toffset:28;\tsize:4;\tsigned:0;\n\
        \tfield:const char * buf;\toffset:32;\tsize:8;\tsigned:0;\n\
        \tfield:u32 words[2];\toffset:40;\tsize:8;\tsigned:0;\n\
        \tfield:pid_t upid;\toffset:56;\tsize:8;\tsigned:0;\n\
        \tfield:size_t count;\toffset:64;\tsize:8;\tsigned:0;\n\
        \tfield:bool dead;\toffset:48;\tsize:1;\tsigned:0;\nprint fmt: \"field:x\"\n";

    #[test]
    fn a_format_file_is_read() {
        let integer = |name: &str| match name {
            "pid_t" => Some(Integer { size: 4, signed: true }),
            _ => Some(Integer { size: 8, signed: false }),
        };
        let format = parse_format(FORMAT, &integer);
        let fields: Vec<_> = format.fields.iter().map(|it| (it.name.as_str(), it.offset, it.kind)).collect();
        assert_eq!(
            fields,
            [
                ("prev_comm", 8, Chars(16)),
                ("prev_pid", 24, Int { size: 4, signed: true }),
                ("name", 28, DataLoc),
                ("buf", 32, Int { size: 8, signed: false }),
                ("words", 40, Other),
                ("upid", 56, Int { size: 4, signed: true }),
                ("count", 64, Int { size: 8, signed: false }),
                ("dead", 48, Int { size: 1, signed: false }),
            ]
        );
    }

    #[test]
    fn functions_of_a_file_that_is_there_are_known_beforehand() {
        let catalog = LiveCatalog::new();
        for (object, function) in
            [("libc", "malloc"), ("libc", "mem*"), ("libno-such-library", "f"), ("./no-such-file", "f")]
        {
            assert_eq!(catalog.function(object, function), Ok(()), "{object}:{function}");
        }
        let missing = catalog.function("libc", "mallo").unwrap_err();
        assert!(missing.starts_with("there is no function `mallo` in ") && missing.contains("malloc"), "{missing}");
        assert!(catalog.function("libc", "no_such_*").is_err() && catalog.function("/proc/self/exe", "no_f").is_err());
    }

    #[test]
    fn names_cannot_leave_tracefs() {
        assert!(LiveCatalog::new().tracepoint("..", "..").is_err());
    }
}
