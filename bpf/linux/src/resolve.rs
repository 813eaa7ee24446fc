//! From what the user wrote, `libc:malloc`, to files and places in them.
//!
//! ```text
//! object + scope ──candidates──▶ files      file + function ──places──▶ names and file offsets
//! ```

use crate::code::{self, Misplaced};
use crate::elf::{Elf, FunctionSymbol, LONGEST_INSTRUCTION};
use crate::error::{AttachError, most_telling};
use crate::first_insn::{self, BreakpointAnswer, Step};
use crate::proc_maps::{self, View};
use crate::return_type;
use crate::scope::{CommandScope, Scope};
use crate::usdt::Details;
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use xputrace_boundary::read;
use xputrace_model::catalog::ReturnType;
pub(crate) use xputrace_model::catalog::glob;
use xputrace_model::diagnostic;
use xputrace_symbols::{demangle, with_parameters};

/// Directories that dynamic linkers search, and where CUDA installs itself.
const STANDARD_DIRECTORIES: &[&str] = &[
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/cuda/lib64",
    "/opt/cuda/lib64",
];
const LD_SO_CACHE: &str = "/etc/ld.so.cache";
const NEAR_NAMES: usize = 3;

/// Identifies a file under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// When it was created, since 1970; 0 if its file system doesn't tell. When overlayfs copies a file to its upper
    /// layer, the copy keeps the inode number but is another file: what is probed in the one isn't in the other.
    pub(crate) born_nanos: u128,
}

/// A file's content, as far as is needed to notice that it was rewritten in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Empty if it has none or cannot be read.
    pub(crate) build_id: Vec<u8>,
    len: u64,
    modified: (i64, i64),
    /// When content or attributes were changed.
    changed: (i64, i64),
}

impl Content {
    pub(crate) fn of(file: &Path) -> Option<Content> {
        Some(Content { build_id: build_id(file), ..Content::outside(file)? })
    }

    /// Returns all but the build id.
    pub(crate) fn outside(file: &Path) -> Option<Content> {
        let it = std::fs::metadata(file).ok()?;
        let (modified, changed) = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
        Some(Content { build_id: Vec::new(), len: it.len(), modified, changed })
    }

    /// Whether the file has other content by now; `now` is all but its build id. Without a build id, a file that was only touched can't be told
    /// from one that was rewritten.
    pub(crate) fn is_replaced_by(&self, now: &Content, file: &Path) -> bool {
        if (now.len, now.modified, now.changed) == (self.len, self.modified, self.changed) {
            return false;
        }
        match build_id(file) {
            id if id.is_empty() && self.build_id.is_empty() => (now.len, now.modified) != (self.len, self.modified),
            id => id != self.build_id,
        }
    }
}

/// A file that may contain the probed functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: FileId,
    /// A path that we can open.
    pub(crate) path: PathBuf,
    pub(crate) part: FilePart,
}

/// The functions of a file that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilePart {
    All,
    /// Those of CUDA's runtime library, if it is linked into the file statically.
    GpuRuntime,
}

impl FilePart {
    fn has(self, function: &str) -> bool {
        let is_of_runtime = |rest: &str| rest.starts_with(|it: char| it.is_ascii_uppercase());
        self == FilePart::All || function.trim_start_matches('_').strip_prefix("cuda").is_some_and(is_of_runtime)
    }

    /// Whether the file has the part: a program may have other functions with such names.
    fn is_in(self, elf: &Elf) -> bool {
        const CALLED_AT_START: &str = "__cudaRegisterFatBinary";
        self == FilePart::All || !elf.functions(&mut |it| it == CALLED_AT_START).is_empty()
    }
}

/// A place to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The value of `func` there.
    pub(crate) function: String,
    pub(crate) file_offset: u64,
    pub(crate) step: Step,
    pub(crate) answer: BreakpointAnswer,
    /// The function that starts there; `None` for places inside a function.
    pub(crate) entry_of: Option<FunctionExtent>,
    /// Whether a loop of the function starts there, so that each iteration looks like a call.
    pub(crate) is_loop: bool,
    /// Present if it is a USDT probe's.
    pub(crate) usdt: Option<Details>,
}

/// A function's offset in the file, and its size (0 if unknown).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionExtent {
    pub(crate) start: u64,
    pub(crate) size: u64,
}

/// What a function's name or pattern matched in a file.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// Without duplicates, never empty.
    pub(crate) places: Vec<Place>,
    /// Indirect functions: the dynamic linker chooses the implementation, so the name has no code
    /// to probe.
    pub(crate) indirect: Vec<String>,
}

/// Returns the files that `object` names within the scope, without duplicates.
pub(crate) fn candidates(object: &str, scope: &Scope) -> Vec<Candidate> {
    let mut files = Files::default();
    if object.contains('/') {
        return files.by_path(object, scope);
    }
    match scope {
        Scope::Processes(pids) => {
            pids.iter().for_each(|pid| files.add_mapped(object, *pid));
            if files.found.is_empty() {
                files.add_installed(object);
            }
        }
        Scope::Command(command) => files.add_foretold(object, command),
        Scope::System | Scope::Named(_) => {
            crate::scope::all_processes().iter().for_each(|pid| files.add_mapped(object, *pid));
            files.add_searched_first(object);
            files.add_installed(object);
        }
    }
    files.found
}

/// Returns the files that a process has mapped, without duplicates.
pub(crate) fn mapped(pid: u32) -> Vec<Candidate> {
    let mut files = Files::default();
    let view = View::of(pid);
    proc_maps::of(pid).unwrap_or_default().iter().for_each(|it| files.add(view.mapped(it)));
    files.found
}

/// Whether a newly mapped file is one that `object` names.
pub(crate) fn is_candidate(object: &str, file: &Path) -> bool {
    if object.contains('/') {
        let wanted = Path::new(object);
        return glob(object, &file.to_string_lossy())
            || (file_id(wanted).is_some() && file_id(wanted) == file_id(file));
    }
    file.file_name().is_some_and(|it| library_matches(object, &it.to_string_lossy()))
}

/// Whether the executable may contain this library, linked statically.
pub(crate) fn may_be_static(object: &str) -> bool {
    object.starts_with("libcudart") || object == "cudart"
}

pub(crate) fn file_id(path: &Path) -> Option<FileId> {
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let born = file.created().ok().and_then(|it| it.duration_since(UNIX_EPOCH).ok());
    Some(FileId { device: file.dev(), inode: file.ino(), born_nanos: born.map_or(0, |it| it.as_nanos()) })
}

/// Returns a file's build id; empty if it has none or cannot be read.
pub(crate) fn build_id(path: &Path) -> Vec<u8> {
    Elf::open(path).map(|it| it.build_id()).unwrap_or_default()
}

/// Returns the places in a file that `function` names.
pub(crate) fn places(file: &Candidate, function: &str) -> Result<Places, AttachError> {
    let Candidate { path: file, part, .. } = file;
    let elf = open(file)?;
    let wanted = Wanted { part: *part, ..Wanted::parse(function) };
    let code = code::CodeReader::new(&elf);
    if let Some(address) = wanted.address.filter(|_| *part == FilePart::All) {
        let places = vec![place_at(&elf, &code, file, function, address)?];
        return Ok(Places { places, indirect: Vec::new() });
    }
    let found = wanted.find(&elf);
    if found.is_empty() {
        return Err(missing(&elf, file, &wanted));
    }
    let Named { direct, indirect } = Named::split(found);
    if direct.is_empty() {
        return Err(chosen_at_start(&elf, file, &indirect[0]));
    }
    let places = direct.iter().map(|it| wanted.place(&elf, &code, file, it)).collect::<Result<Vec<_>, _>>()?;
    Ok(Places { places: each_once(places), indirect })
}

/// Returns what a function returns, if the file tells; of several functions of the name, if they agree.
pub(crate) fn return_type(file: &Candidate, function: &str) -> Option<ReturnType> {
    let elf = Elf::open(&file.path).ok()?;
    let wanted = Wanted { part: file.part, ..Wanted::parse(function) };
    let found = Named::split(wanted.find(&elf)).direct;
    let types: Vec<_> =
        found.iter().map(|it| return_type::of(&elf, elf.address(it.file_offset)?)).collect::<Option<_>>()?;
    let (first, others) = types.split_first()?;
    others.iter().all(|it| it == first).then_some(*first)
}

/// Returns the file offset of a function's first instruction.
pub(crate) fn first_instruction(file: &Path, function: &str) -> Result<u64, AttachError> {
    let elf = open(file)?;
    let found = elf.functions(&mut |it| it == function).first().map(|it| it.file_offset);
    found.ok_or_else(|| missing(&elf, file, &Wanted::parse(function)))
}

pub(crate) fn open(file: &Path) -> Result<Elf, AttachError> {
    Elf::open(file).map_err(|reason| AttachError::UnreadableFile { file: file.to_path_buf(), reason })
}

/// If a place has several names, keeps the public one: `malloc`, not `__libc_malloc`.
fn each_once(mut places: Vec<Place>) -> Vec<Place> {
    let internal = |it: &Place| it.function.len() - it.function.trim_start_matches('_').len();
    places.sort_by(|a, b| (a.file_offset, internal(a), &a.function).cmp(&(b.file_offset, internal(b), &b.function)));
    places.dedup_by_key(|it| it.file_offset);
    places
}

/// Explains why a function cannot be probed in any of the readable files.
pub(crate) fn refusal<'a>(
    object: &str,
    function: &str,
    files: impl Iterator<Item = &'a Candidate>,
) -> Option<AttachError> {
    let mut errors = Vec::new();
    for file in files {
        match places(file, function) {
            Ok(_) => return None,
            Err(AttachError::UnreadableFile { .. }) => {}
            // The executable was only a guess: the library may be linked statically.
            Err(_) if file.part == FilePart::GpuRuntime || !is_candidate(object, &file.path) => {}
            Err(error) => errors.push(error),
        }
    }
    most_telling(errors)
}

/// Functions by whether their names lead to code.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// Functions that can be probed by their names, sorted by name.
    pub(crate) direct: Vec<FunctionSymbol>,
    /// Names of indirect functions, sorted, without duplicates.
    pub(crate) indirect: Vec<String>,
}

impl Named {
    fn split(functions: Vec<FunctionSymbol>) -> Named {
        let indirect: BTreeSet<String> = functions.iter().filter(|it| it.indirect).map(|it| it.name.clone()).collect();
        // An old version of the same name may be an ordinary function, but nothing calls it now.
        let direct = functions.into_iter().filter(|it| !indirect.contains(&it.name)).collect();
        Named { direct, indirect: indirect.into_iter().collect() }
    }

    /// Returns the functions of a file that match a pattern; none if it cannot be read.
    pub(crate) fn matching(file: &Candidate, pattern: &str) -> Named {
        let wanted = Wanted { part: file.part, ..Wanted::parse(pattern) };
        Elf::open(&file.path).map(|it| Named::split(wanted.find(&it))).unwrap_or_default()
    }
}

/// Returns the names by which functions in a file can be probed.
pub(crate) fn probed_names(file: &Candidate) -> HashSet<String> {
    Named::matching(file, "*").direct.into_iter().map(|it| it.name).collect()
}

/// A function as the user wrote it.
struct Wanted<'a> {
    name: &'a str,
    /// From `name+offset`: probe exactly there, without skipping an `endbr64`.
    offset: Option<u64>,
    /// From `0x…`: an address instead of a name.
    address: Option<u64>,
    part: FilePart,
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Self {
        let address = text.strip_prefix("0x").and_then(|it| u64::from_str_radix(it, 16).ok());
        let split = text.rsplit_once('+').and_then(|(name, offset)| Some((name, number(offset)?)));
        match split {
            Some((name, offset)) if !name.is_empty() => {
                Wanted { name, offset: Some(offset), address: None, part: FilePart::All }
            }
            _ => Wanted { name: text, offset: None, address, part: FilePart::All },
        }
    }

    /// Searches by symbol name. If that finds nothing, or the name is qualified, searches the
    /// demangled names of C++ and Rust functions: with and without template arguments, and with parameters if the name
    /// has some.
    fn find(&self, elf: &Elf) -> Vec<FunctionSymbol> {
        if !self.part.is_in(elf) {
            return Vec::new();
        }
        let found = elf.functions(&mut |it| glob(self.name, it) && self.part.has(it));
        let is_mangled = self.name.contains("::") || self.name.contains('(');
        if !found.is_empty() || self.part != FilePart::All || (is_glob(self.name) && !is_mangled) {
            return found;
        }
        let hint = last_word(self.name.split_once('(').map_or(self.name, |it| it.0));
        let mut found = elf.functions(&mut |it| it.contains(hint) && self.is_name_of(it));
        for function in &mut found {
            function.name = demangle(&function.name).name;
        }
        found
    }

    /// Whether a symbol has this name as C++ or Rust write it.
    fn is_name_of(&self, symbol: &str) -> bool {
        let names = demangle(symbol);
        let is_one = glob(self.name, &names.name) || glob(self.name, &names.short_name);
        is_one
            || self.name.contains('(') && with_parameters(symbol).is_some_and(|it| glob(&dense(self.name), &dense(&it)))
    }

    fn place(
        &self,
        elf: &Elf,
        code: &code::CodeReader<'_>,
        file: &Path,
        function: &FunctionSymbol,
    ) -> Result<Place, AttachError> {
        match self.offset {
            None => Ok(entry(elf, code, function)),
            Some(offset) if offset < function.size.max(1) => {
                let (name, start) = (&function.name, function.file_offset);
                let written = |it: u64| if it == start { name.clone() } else { format!("{name}+{:#x}", it - start) };
                check_beginning(code, file, start, start + offset, &written)?;
                Ok(place(elf, name, start + offset))
            }
            Some(offset) => {
                let function = function.name.clone();
                Err(AttachError::OffsetOutside { size: self.size_of(elf), function, offset })
            }
        }
    }

    fn size_of(&self, elf: &Elf) -> u64 {
        self.find(elf).first().map_or(0, |it| it.size)
    }
}

/// Returns the place that is executed once per call: the instruction after an `endbr64`, which is
/// cheaper to probe, or the first one if the function itself may jump to the other.
fn entry(elf: &Elf, code: &code::CodeReader<'_>, function: &FunctionSymbol) -> Place {
    let FunctionSymbol { file_offset: start, size, .. } = *function;
    let body = code.read(start, size).ok();
    let after_pad = start + first_insn::landing_pad(elf.code(start, LONGEST_INSTRUCTION));
    let may_be_loop = |it| body.as_ref().is_none_or(|body| body.may_jump_to(it));
    let chosen = if after_pad == start || may_be_loop(after_pad) { start } else { after_pad };
    let is_loop = body.as_ref().is_some_and(|it| it.jumps_to(chosen));
    Place { entry_of: Some(FunctionExtent { start, size }), is_loop, ..place(elf, &function.name, chosen) }
}

fn place_at(
    elf: &Elf,
    code: &code::CodeReader<'_>,
    file: &Path,
    text: &str,
    address: u64,
) -> Result<Place, AttachError> {
    let file_offset = elf.file_offset(address).ok_or_else(|| AttachError::NoSuchFunction {
        file: file.to_path_buf(),
        function: text.into(),
        near: Vec::new(),
        why: ": no code of the file is loaded at this address".into(),
    })?;
    let functions = elf.functions(&mut |_| true);
    let contains = |it: &&FunctionSymbol| {
        file_offset.checked_sub(it.file_offset).is_some_and(|distance| distance < it.size.max(1))
    };
    let named = functions.iter().filter(contains).map(|it| it.file_offset).max();
    let start = named.or_else(|| elf.file_offset(elf.unwound_part(address)?)).filter(|it| *it <= file_offset);
    let written = |it: u64| format!("{:#x}", it.wrapping_add(address.wrapping_sub(file_offset)));
    match start {
        Some(start) => check_beginning(code, file, start, file_offset, &written)?,
        None => return Err(AttachError::Undecodable { file: file.to_path_buf(), place: text.into() }),
    }
    let function = functions.iter().find(|it| it.file_offset == file_offset && !it.indirect);
    let entry_of = function.map(|it| FunctionExtent { start: file_offset, size: it.size });
    Ok(Place { entry_of, ..place(elf, text, file_offset) })
}

/// Checks that an instruction begins at a place in the function at `start`. `written` formats a
/// place as a script would.
fn check_beginning(
    code: &code::CodeReader<'_>,
    file: &Path,
    start: u64,
    place: u64,
    written: &dyn Fn(u64) -> String,
) -> Result<(), AttachError> {
    let file = || file.to_path_buf();
    match code.begins_at(start, place) {
        Ok(()) => Ok(()),
        Err(Misplaced::Inside { before, after }) => Err(AttachError::InsideInstruction {
            file: file(),
            place: written(place),
            nearest: [written(before), written(after)],
        }),
        Err(Misplaced::Undecodable) => Err(AttachError::Undecodable { file: file(), place: written(place) }),
    }
}

pub(crate) fn place(elf: &Elf, function: &str, file_offset: u64) -> Place {
    let code = elf.code(file_offset, LONGEST_INSTRUCTION);
    let (step, answer) = match elf.is_x86_64() {
        true => (first_insn::step(code), first_insn::answer(code)),
        false => (Step::Emulated, BreakpointAnswer::InDoubt),
    };
    Place { function: function.into(), file_offset, step, answer, entry_of: None, is_loop: false, usdt: None }
}

/// Explains that there is no such function, and suggests similar ones.
fn missing(elf: &Elf, file: &Path, wanted: &Wanted<'_>) -> AttachError {
    let why = if elf.imports(wanted.name) {
        ": it is only used there, another library defines it"
    } else if elf.is_stripped() {
        ": the file is stripped, so only the functions it exports have names; others can be given by address, `0x…`"
    } else if elf.is_too_large() {
        ": its symbol tables have more than 1 GiB, and are not read"
    } else {
        ""
    };
    AttachError::NoSuchFunction {
        file: file.to_path_buf(),
        function: wanted.name.into(),
        near: near(elf, wanted.name),
        why: why.into(),
    }
}

/// Reports an indirect function. Its versions are named after it: `__memcpy_avx_unaligned`.
fn chosen_at_start(elf: &Elf, file: &Path, function: &str) -> AttachError {
    let is_version =
        |it: &str| it.trim_start_matches('_').strip_prefix(function).is_some_and(|rest| rest.starts_with('_'));
    let mut near: Vec<_> =
        Named::split(elf.functions(&mut |it| is_version(it))).direct.into_iter().map(|it| it.name).collect();
    near.dedup();
    near.truncate(NEAR_NAMES);
    AttachError::Indirect { file: file.to_path_buf(), function: function.into(), near }
}

/// Returns a name with parameters in one form of those in which they are written: without spaces, and `const` first in each
/// parameter; a member function's own `const` stays behind them.
fn dense(name: &str) -> String {
    let without_spaces = |it: &str| it.split_whitespace().collect::<String>();
    let Some((function, rest)) = name.split_once('(') else { return without_spaces(name) };
    let (parameters, qualifiers) = rest.rsplit_once(')').unwrap_or((rest, ""));
    let parameters = parameters.split(',').map(|it| {
        let rest = without_spaces(&it.replace("const", " "));
        if it.contains("const") { format!("const {rest}") } else { rest }
    });
    let parameters = parameters.collect::<Vec<_>>().join(",");
    format!("{}({parameters}){}", without_spaces(function), without_spaces(qualifiers))
}

/// Returns the functions with the most similar names; as C++ and Rust write them, if `name` is written so.
fn near(elf: &Elf, name: &str) -> Vec<String> {
    let mut all: Vec<_> = Named::split(elf.functions(&mut |_| true)).direct.into_iter().map(|it| it.name).collect();
    let plain = name.split_once('(').map_or(name, |it| it.0);
    if plain != name {
        all = all.iter().filter_map(|it| with_parameters(it)).collect();
    } else if name.contains("::") {
        all.iter_mut().for_each(|it| *it = demangle(it).short_name);
    }
    let lower = plain.trim_matches('*').to_lowercase();
    let mut near: Vec<String> =
        diagnostic::nearest(name, all.iter().map(String::as_str)).map(str::to_owned).into_iter().collect();
    if lower.len() >= 3 {
        near.extend(all.iter().filter(|it| it.to_lowercase().contains(&lower)).take(NEAR_NAMES).cloned());
    }
    let mut seen = HashSet::new();
    near.retain(|it| seen.insert(it.clone()));
    near.truncate(NEAR_NAMES);
    near
}

/// Returns the last identifier of a name, which the mangled name contains literally. Operators have
/// none, nor have names that C++ abbreviates.
fn last_word(name: &str) -> &str {
    if name.contains("operator") || name.contains('<') {
        return "";
    }
    let word = name.split(|it: char| !it.is_alphanumeric() && it != '_').rfind(|it| !it.is_empty()).unwrap_or("");
    if ABBREVIATED.contains(&word) { "" } else { word }
}

/// The names that a mangled name has as `St`, `Sa`, `Ss` and the like, and not literally. Source: Itanium C++ ABI, 5.1.10
/// (`<substitution>`).
const ABBREVIATED: &[&str] =
    &["std", "allocator", "basic_string", "string", "basic_istream", "basic_ostream", "basic_iostream"];

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Whether a name is a pattern.
pub(crate) fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// Whether a file name belongs to a library: `libc` matches `libc.so.6` and `libc-2.31.so`;
/// `cudart` and `libcudart` match `libcudart.so.12` and bundled copies such as
/// `libcudart-9335f6a2.so.12`.
pub(crate) fn library_matches(library: &str, file_name: &str) -> bool {
    if is_glob(library) {
        return glob(library, file_name);
    }
    let prefixed = format!("lib{library}");
    file_name == library
        || [library, &prefixed].iter().any(|it| file_name.strip_prefix(*it).is_some_and(is_library_suffix))
}

fn is_library_suffix(rest: &str) -> bool {
    let rest = match rest.strip_prefix('-') {
        Some(tagged) => match tagged.find(".so") {
            Some(end) if tagged[..end].bytes().all(|it| it.is_ascii_hexdigit() || it == b'.') => &tagged[end..],
            _ => return false,
        },
        None => rest,
    };
    rest == ".so" || rest.starts_with(".so.")
}

/// Files found so far, without duplicates.
#[derive(Default)]
struct Files {
    found: Vec<Candidate>,
    seen: HashSet<FileId>,
}

impl Files {
    fn add(&mut self, path: PathBuf) {
        self.add_part(path, FilePart::All);
    }

    fn add_part(&mut self, path: PathBuf, part: FilePart) {
        if let Some(id) = file_id(&path)
            && self.seen.insert(id)
        {
            self.found.push(Candidate { id, path, part });
        }
    }

    fn by_path(mut self, object: &str, scope: &Scope) -> Vec<Candidate> {
        let path = Path::new(object);
        let pids = if scope.is_open() { crate::scope::all_processes() } else { scope.pids() };
        // First as written: messages use this path.
        if is_glob(object) {
            self.add_matching(path.parent().unwrap_or(Path::new(".")), path.file_name().unwrap_or_default());
        } else {
            self.add(path.to_path_buf());
        }
        if let Some(whole) = as_mapped(path) {
            pids.iter().for_each(|pid| self.add_as_seen(&whole, *pid));
        }
        self.found
    }

    /// Adds the files that a process sees under a path or pattern, and those it has mapped under
    /// that path, which may have been replaced since.
    fn add_as_seen(&mut self, path: &Path, pid: u32) {
        let view = View::of(pid);
        let mappings = proc_maps::of(pid).unwrap_or_default();
        let pattern = path.to_string_lossy();
        let replaced = mappings.iter().filter(|it| it.deleted && glob(&pattern, &it.path.to_string_lossy()));
        replaced.for_each(|it| self.add(view.mapped(it)));
        self.add(view.file(path));
    }

    fn add_matching(&mut self, directory: &Path, pattern: &OsStr) {
        let pattern = pattern.to_string_lossy();
        self.add_from(directory, &|it| glob(&pattern, it));
    }

    fn add_mapped(&mut self, library: &str, pid: u32) {
        let view = View::of(pid);
        for mapping in proc_maps::of(pid).unwrap_or_default() {
            if is_candidate(library, &mapping.path) {
                self.add(view.mapped(&mapping));
            }
        }
        if may_be_static(library) {
            self.add_part(PathBuf::from(format!("/proc/{pid}/exe")), FilePart::GpuRuntime);
        }
    }

    /// Adds the libraries that the command will load at its start, and those it may load later.
    fn add_foretold(&mut self, library: &str, command: &CommandScope) {
        let matches = |it: &Path| it.file_name().is_some_and(|it| library_matches(library, &it.to_string_lossy()));
        let linked = linked_files(command);
        linked.iter().filter(|it| matches(it)).for_each(|it| self.add(it.clone()));
        if may_be_static(library) {
            self.add_part(command.executable.clone(), FilePart::GpuRuntime);
        }
        for directory in command.library_path.iter().chain(&python_directories(&command.executable)) {
            self.add_from(directory, &|it| library_matches(library, it));
        }
        self.add_installed(library);
    }

    /// Adds libraries of the directories that our own environment names, as a program started from here would find them.
    fn add_searched_first(&mut self, library: &str) {
        let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        for directory in std::env::split_paths(&named).filter(|it| !it.as_os_str().is_empty()) {
            self.add_from(&directory, &|it| library_matches(library, it));
        }
    }

    fn add_installed(&mut self, library: &str) {
        let matches = |it: &Path| it.file_name().is_some_and(|it| library_matches(library, &it.to_string_lossy()));
        ld_so_cache().into_iter().filter(|(_, path)| matches(path)).for_each(|(_, path)| self.add(path));
        for directory in STANDARD_DIRECTORIES {
            self.add_from(Path::new(directory), &|it| library_matches(library, it));
        }
    }

    /// Adds a directory's files whose names match, sorted. Only ELF files: linker scripts share the
    /// names of libraries.
    fn add_from(&mut self, directory: &Path, matches: &dyn Fn(&str) -> bool) {
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        let mut paths: Vec<_> = entries
            .flatten()
            .filter(|it| it.file_name().to_str().is_some_and(matches))
            .map(|it| it.path())
            .filter(|it| Elf::open(it).is_ok())
            .collect();
        paths.sort();
        paths.into_iter().for_each(|it| self.add(it));
    }
}

/// Returns a path as a process has it mapped: absolute, with symbolic links in its directory
/// resolved. The file itself need not exist. Returns `None` if the directory does not exist.
fn as_mapped(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(directory.canonicalize().ok()?.join(path.file_name()?))
}

/// Returns the executable, its preloaded libraries, and everything that these are linked with.
fn linked_files(command: &CommandScope) -> Vec<PathBuf> {
    let cache = ld_so_cache();
    let locate = |library: &str, directories: &[PathBuf]| {
        if library.contains('/') {
            return Some(PathBuf::from(library));
        }
        let near = directories.iter().chain(&command.library_path).map(|it| it.join(library)).find(|it| it.is_file());
        let cached = || cache.iter().find(|(name, _)| name == library).map(|(_, path)| path.clone());
        let standard = || STANDARD_DIRECTORIES.iter().map(|it| Path::new(it).join(library)).find(|it| it.is_file());
        near.or_else(cached).or_else(standard)
    };
    let mut queue = VecDeque::from([command.executable.clone()]);
    queue.extend(command.preloaded.iter().filter_map(|it| locate(it, &[])));
    let mut found: Vec<PathBuf> = Vec::new();
    while let Some(path) = queue.pop_front() {
        if found.contains(&path) {
            continue;
        }
        let needs = Elf::open(&path).map(|it| it.needs()).unwrap_or_default();
        found.push(path);
        queue.extend(needs.libraries.iter().filter_map(|it| locate(it, &needs.directories)));
    }
    found
}

/// Returns the directories below a Python executable's prefix where packages keep CUDA libraries.
fn python_directories(executable: &Path) -> Vec<PathBuf> {
    let is_python = executable.file_name().is_some_and(|it| it.to_string_lossy().starts_with("python"));
    let prefixes = [Some(executable.to_path_buf()), executable.canonicalize().ok()];
    let mut found = Vec::new();
    for prefix in prefixes.iter().flatten().filter(|_| is_python).filter_map(|it| it.parent()?.parent()) {
        for python in children(&prefix.join("lib"), "python3*") {
            let packages = python.join("site-packages");
            found.push(packages.join("torch/lib"));
            found.extend(children(&packages.join("nvidia"), "*").into_iter().map(|it| it.join("lib")));
        }
    }
    found.sort();
    found.dedup();
    found
}

fn children(directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|it| it.file_name().to_str().is_some_and(|it| glob(pattern, it))).map(|it| it.path()).collect()
}

/// Returns the library names and paths in the dynamic linker's cache.
fn ld_so_cache() -> Vec<(String, PathBuf)> {
    /// A cache has some hundred kilobytes.
    const MOST_BYTES: u64 = 16 << 20;
    let cache = read::open(Path::new(LD_SO_CACHE)).and_then(|it| read::contents(&it, MOST_BYTES));
    cache.map(|it| parse_cache(&it)).unwrap_or_default()
}

/// Source: glibc, `sysdeps/generic/dl-cache.h`. A 48-byte header, whose fifth word is the number of
/// entries; then entries of 24 bytes, with the offsets of two strings at bytes 4 and 8.
pub(crate) fn parse_cache(bytes: &[u8]) -> Vec<(String, PathBuf)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    let Some(start) = bytes.windows(MAGIC.len()).position(|it| it == MAGIC) else { return Vec::new() };
    let bytes = &bytes[start..];
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let text = |at: usize| {
        let rest = bytes.get(at..)?;
        String::from_utf8(rest[..rest.iter().position(|it| *it == 0)?].to_vec()).ok()
    };
    let entries = bytes.get(HEADER..).unwrap_or(&[]).chunks_exact(ENTRY).take(word(20).unwrap_or(0));
    let entry = |(i, _): (usize, &[u8])| {
        let at = HEADER + i * ENTRY;
        Some((text(word(at + 4)?)?, PathBuf::from(text(word(at + 8)?)?)))
    };
    entries.enumerate().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text) in [("*", ""), ("a*c", "abbc"), ("cuda?alloc*", "cudaMallocHost"), ("*b*b", "abab")] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a*c", "abcd"), ("?", ""), ("malloc", "mallocx"), ("*b*b", "aba")] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn libraries_by_name() {
        for (library, file) in [
            ("libc", "libc.so.6"),
            ("libc", "libc-2.31.so"),
            ("c", "libc.so.6"),
            ("libcudart", "libcudart-9335f6a2.so.12"),
            ("libcudart", "libcudart.so.12.4.127"),
            ("libssl.so.3", "libssl.so.3"),
            ("libcudart*", "libcudart.so.12"),
        ] {
            assert!(library_matches(library, file), "{library} {file}");
        }
        for (library, file) in
            [("libc", "libcap.so.2"), ("libc", "libc-client.so"), ("libc", "libc.sources"), ("libc", "libc.a")]
        {
            assert!(!library_matches(library, file), "{library} {file}");
        }
    }

    #[test]
    fn functions_with_offsets_and_addresses() {
        let parse = |it| {
            let wanted = Wanted::parse(it);
            (wanted.name.to_owned(), wanted.offset, wanted.address)
        };
        assert_eq!(parse("f+0x10"), ("f".into(), Some(16), None));
        assert_eq!(parse("f+4"), ("f".into(), Some(4), None));
        assert_eq!(parse("operator+"), ("operator+".into(), None, None));
        assert_eq!(parse("0x401000"), ("0x401000".into(), None, Some(0x401000)));
    }

    #[test]
    fn functions_have_the_names_that_people_write() {
        let push_back = "_ZNSt6vectorIiSaIiEE9push_backERKi";
        for (name, symbol) in [
            ("over(int)", "_Z4overi"),
            ("f(const char*)", "_Z1fPKc"),
            ("f(char const *)", "_Z1fPKc"),
            ("over(int,int)", "_Z4overii"),
            ("C::over(int) const", "_ZNK1C4overEi"),
            ("C::over(int)const", "_ZNK1C4overEi"),
            ("C::over( int ) const &", "_ZNKR1C4overEi"),
            ("C::over", "_ZNK1C4overEi"),
            ("ns::tmpl", "_ZN2ns4tmplIiEEvT_"),
            ("ns::tmpl<int>", "_ZN2ns4tmplIiEEvT_"),
            ("std::*", push_back),
            ("std::vector::push_back", push_back),
        ] {
            let wanted = Wanted::parse(name);
            let hint = last_word(name.split_once('(').map_or(name, |it| it.0));
            assert!(symbol.contains(hint) && wanted.is_name_of(symbol), "{name} {symbol}");
        }
        for (name, symbol) in [
            ("C::over(int)", "_ZNK1C4overEi"),
            ("C::over(int) const", "_ZN1C4overEi"),
            ("over(int)", "_Z4overii"),
            ("over()", "_Z4overi"),
            ("tmpl", "_ZN2ns4tmplIiEEvT_"),
        ] {
            assert!(!Wanted::parse(name).is_name_of(symbol), "{name} {symbol}");
        }
    }

    #[test]
    fn a_function_is_either_probed_or_named_as_indirect() {
        let libc = candidates("libc", &Scope::Processes(vec![std::process::id()])).remove(0);
        let Places { places, indirect } = places(&libc, "mem*").unwrap();
        let probed: HashSet<_> = places.iter().map(|it| &it.function).collect();
        assert!(!probed.is_empty() && !indirect.iter().any(|it| probed.contains(it)), "{probed:?} {indirect:?}");
    }

    #[test]
    fn a_broken_cache_is_harmless() {
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend([0xff; 64]);
        assert!(parse_cache(&bytes).is_empty());
        assert!(parse_cache(b"").is_empty());
    }
}
