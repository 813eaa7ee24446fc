//! Executable files that processes map. Each is opened when first seen, so that it stays readable
//! after the process or its mount namespace is gone.

use crate::debug_file::DebugFile;
use crate::demangle::demangle;
use crate::elf_file::{Layout, Segment};
use crate::excerpt::Trusted;
use crate::lines::{LineLookup, Lines, SourceFrame};
use crate::object::{Evidence, Proof};
use crate::omission::Omission;
use crate::process::{Mapping, ProcessKey};
use crate::table::{self, SymbolTable};
use rustc_hash::FxHashMap;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::rc::Rc;
use xputrace_boundary::read;

/// Index of a file in [`Files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIndex(usize);

/// A function found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub function: String,
    /// Offset from the function's start in bytes.
    pub offset: u64,
}

/// All files, each once.
pub(crate) struct Files {
    tables: SymbolTables,
    lines: Lines,
    /// What is left out, and was not told yet.
    omissions: Vec<Omission>,
    files: Vec<ExecutableFile>,
    n_open: usize,
    /// The file that each mapping refers to, `None` if it could not be opened.
    by_mapping: FxHashMap<Claim, Option<FileIndex>>,
    by_identity: FxHashMap<FileIdentity, FileIndex>,
    by_build_id: FxHashMap<Vec<u8>, FileIndex>,
    symbols: FxHashMap<(FileIndex, u64), Option<Symbol>>,
}

/// Identifies a file, as its mapping describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    path: PathBuf,
    device: u64,
    inode: u64,
    build_id: Option<Vec<u8>>,
    /// Without an inode a mapping could be of any file, so its claim is private to the process.
    process: Option<ProcessKey>,
}

/// Identifies an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

/// The symbol tables of files, read when first needed.
#[derive(Default)]
struct SymbolTables {
    of_files: FxHashMap<(FileIndex, Whose), SymbolTable>,
    /// How much memory they take.
    kept_bytes: u64,
}

/// Whether a table is a file's own or its debug file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Whose {
    Own,
    DebugFile,
}

/// Maximum bytes of the symbol tables that are kept. With more, all are read anew: a hundred of the largest libraries
/// have less.
const MOST_TABLE_BYTES: u64 = 1 << 30;

impl SymbolTables {
    /// Returns a file's table, and whether it was read now.
    fn get(&mut self, index: FileIndex, whose: Whose, file: &File) -> (&SymbolTable, bool) {
        if self.kept_bytes > MOST_TABLE_BYTES && !self.of_files.contains_key(&(index, whose)) {
            *self = SymbolTables::default();
        }
        let SymbolTables { of_files, kept_bytes } = self;
        let mut is_new = false;
        let table = of_files.entry((index, whose)).or_insert_with(|| {
            let table = SymbolTable::read(file);
            *kept_bytes += table.size();
            is_new = true;
            table
        });
        (table, is_new)
    }
}

struct ExecutableFile {
    /// As it is mapped.
    path: PathBuf,
    handle: FileHandle,
    /// As it was opened. The file may be rewritten in place afterwards.
    identity: Option<FileIdentity>,
    has_lines: bool,
    entry: u64,
    is_static: bool,
    segments: Vec<Segment>,
    evidence: Evidence,
    debug_file: Option<DebugFile>,
}

/// How to reach a file when an address in it is first looked up.
enum FileHandle {
    /// Stays valid whatever happens to the name.
    Open(File),
    /// Its path is valid while it still leads to the same file.
    Named,
}

/// A file that is read now.
enum Opened<'a> {
    Kept(&'a File),
    Again(File),
}

impl Deref for Opened<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Opened::Kept(file) => file,
            Opened::Again(file) => file,
        }
    }
}

/// Maximum number of files kept open, to leave descriptors for everything else.
const MOST_OPEN: usize = 400;

impl Files {
    pub(crate) fn new() -> Self {
        Files {
            tables: SymbolTables::default(),
            lines: Lines::new(Trusted::by_environment()),
            omissions: Vec::new(),
            files: Vec::new(),
            n_open: 0,
            by_mapping: FxHashMap::default(),
            by_identity: FxHashMap::default(),
            by_build_id: FxHashMap::default(),
            symbols: FxHashMap::default(),
        }
    }

    /// Opens the file of a mapping, once. Returns `None` if it cannot be opened or has been
    /// replaced.
    pub(crate) fn open(&mut self, process: ProcessKey, mapping: &Mapping) -> Option<FileIndex> {
        let claim = Claim {
            path: mapping.path.clone(),
            device: mapping.device,
            inode: mapping.inode,
            build_id: mapping.build_id.clone(),
            process: (mapping.inode == 0 && mapping.build_id.is_none()).then_some(process),
        };
        let is_as_opened = |it: FileIndex| self.files[it.0].now().is_some();
        if let Some(known) = self.by_mapping.get(&claim).filter(|it| it.is_none_or(is_as_opened)) {
            return *known;
        }
        let opened = find(process.pid, mapping).map(|(path, file)| self.keep(process.pid, path, file));
        self.by_mapping.insert(claim, opened);
        opened
    }

    /// Whether a file is the one that this proves.
    pub(crate) fn fits(&self, index: FileIndex, proof: &Proof) -> bool {
        self.files[index.0].evidence.fits(proof)
    }

    /// Keeps an open file if it is the one that this proves.
    pub(crate) fn keep_proved(&mut self, pid: u32, path: PathBuf, file: File, proof: &Proof) -> Option<FileIndex> {
        let build_id = Layout::read(&file)?.build_id;
        Evidence::of(&file, build_id).fits(proof).then(|| self.keep(pid, path, file))
    }

    /// Returns a known file with this build id.
    pub(crate) fn of_build_id(&self, build_id: &[u8]) -> Option<FileIndex> {
        self.by_build_id.get(build_id).copied()
    }

    /// Returns the file offset of what has this address in its program headers.
    pub(crate) fn offset(&self, index: FileIndex, address: u64) -> Option<u64> {
        let segments = &self.files[index.0].segments;
        let distance = |it: &Segment| address.checked_sub(it.address).filter(|distance| *distance < it.bytes);
        segments.iter().find_map(|it| it.file_offset.checked_add(distance(it)?))
    }

    /// Finds the function at a file offset.
    pub(crate) fn symbol(&mut self, index: FileIndex, file_offset: u64) -> Option<Symbol> {
        if let Some(known) = self.symbols.get(&(index, file_offset)) {
            return known.clone();
        }
        let found = self.look_up(index, file_offset);
        self.symbols.insert((index, file_offset), found.clone());
        found
    }

    /// Returns the functions and lines at a file offset, innermost first; none if the file and its
    /// debug file have no DWARF.
    pub(crate) fn source(&mut self, index: FileIndex, file_offset: u64) -> Rc<[SourceFrame]> {
        let Files { files, lines, omissions, .. } = self;
        let file = &files[index.0];
        let place = file.address(file_offset).and_then(|it| Some((file.with_lines()?, it)));
        let Some((opened, address)) = place else { return Rc::from([]) };
        match lines.find(index, &opened, address) {
            LineLookup::Lines(lines) => lines,
            LineLookup::TooMuch(more_than) => {
                omissions.push(Omission::Lines { file: file.path.clone(), more_than });
                Rc::from([])
            }
        }
    }

    /// Returns what is left out, and was not told yet.
    pub(crate) fn take_omissions(&mut self) -> Vec<Omission> {
        std::mem::take(&mut self.omissions)
    }

    /// Returns the virtual address that the file's symbol table would use, for frames without a
    /// name.
    pub(crate) fn address(&self, index: FileIndex, file_offset: u64) -> u64 {
        self.files[index.0].address(file_offset).unwrap_or(file_offset)
    }

    /// Whether the program starts in the function at a file offset.
    pub(crate) fn is_entry(&mut self, index: FileIndex, file_offset: u64) -> bool {
        /// A bound on the length of a `_start` without a name.
        const MOST_BYTES: u64 = 64;
        let (address, entry) = (self.address(index, file_offset), self.files[index.0].entry);
        match self.symbol(index, file_offset) {
            Some(symbol) => address.wrapping_sub(symbol.offset) == entry,
            None => (entry..entry.saturating_add(MOST_BYTES)).contains(&address),
        }
    }

    /// Whether the file is a program that contains its C library.
    pub(crate) fn is_static(&self, index: FileIndex) -> bool {
        self.files[index.0].is_static
    }

    fn keep(&mut self, pid: u32, path: PathBuf, file: File) -> FileIndex {
        let identity = identity(&file);
        if let Some(known) = identity.and_then(|it| self.by_identity.get(&it)) {
            return *known;
        }
        let index = FileIndex(self.files.len());
        let layout = Layout::read(&file).unwrap_or_default();
        let evidence = Evidence::of(&file, layout.build_id.clone());
        let may_stay_open = self.n_open < MOST_OPEN;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let debug_file = may_stay_open.then(|| DebugFile::find(&path, &file, &layout, &root)).flatten();
        self.n_open += usize::from(debug_file.is_some()) + usize::from(may_stay_open);
        let handle = if may_stay_open { FileHandle::Open(file) } else { FileHandle::Named };
        let Layout { has_lines, entry, is_static, segments, .. } = layout;
        if let Some(build_id) = evidence.build_id() {
            self.by_build_id.entry(build_id.to_vec()).or_insert(index);
        }
        self.files.push(ExecutableFile {
            path,
            handle,
            identity,
            has_lines,
            entry,
            is_static,
            segments,
            evidence,
            debug_file,
        });
        if let Some(identity) = identity {
            self.by_identity.insert(identity, index);
        }
        index
    }

    fn look_up(&mut self, index: FileIndex, file_offset: u64) -> Option<Symbol> {
        let address = self.files[index.0].address(file_offset)?;
        let in_own = self.look_up_in(index, Whose::Own, address);
        in_own.or_else(|| self.look_up_in(index, Whose::DebugFile, address))
    }

    fn look_up_in(&mut self, index: FileIndex, whose: Whose, address: u64) -> Option<Symbol> {
        let Files { files, tables, omissions, .. } = self;
        let file = &files[index.0];
        let opened = match whose {
            Whose::Own => file.now()?,
            Whose::DebugFile => Opened::Kept(file.debug_file.as_ref()?.file()?),
        };
        let (table, is_new) = tables.get(index, whose, &opened);
        if is_new && table.is_too_large {
            omissions.push(Omission::Names { file: file.path.clone(), most_bytes: table::MOST_TABLE_BYTES });
        }
        let (name, start) = table.find(&opened, address)?;
        Some(Symbol { function: demangle(&name).name, offset: address.wrapping_sub(start) })
    }
}

impl ExecutableFile {
    /// Returns the file, as long as it has the content that it was opened with.
    fn now(&self) -> Option<Opened<'_>> {
        match &self.handle {
            FileHandle::Open(file) => self.is_unchanged(file).then_some(Opened::Kept(file)),
            FileHandle::Named => read::open(&self.path).ok().filter(|it| self.is_unchanged(it)).map(Opened::Again),
        }
    }

    /// Without a build id, a file that was only touched can't be told from one that was rewritten.
    fn is_unchanged(&self, file: &File) -> bool {
        let has_build_id = |it: &[u8]| Layout::read(file).is_some_and(|now| now.build_id.as_deref() == Some(it));
        let now = identity(file);
        now.is_some() && now == self.identity || self.evidence.build_id().is_some_and(has_build_id)
    }

    /// Returns the file that has the DWARF.
    fn with_lines(&self) -> Option<Opened<'_>> {
        match self.has_lines {
            true => self.now(),
            false => self.debug_file.as_ref().filter(|it| it.has_lines())?.file().map(Opened::Kept),
        }
    }

    fn address(&self, file_offset: u64) -> Option<u64> {
        let segment = self
            .segments
            .iter()
            .find(|it| file_offset.checked_sub(it.file_offset).is_some_and(|distance| distance < it.bytes))?;
        Some(segment.address.wrapping_add(file_offset - segment.file_offset))
    }
}

/// Opens the mapped file itself: through `/proc/PID/map_files` if permitted, else by its path in
/// the process's root, else by its path in ours.
fn find(pid: u32, mapping: &Mapping) -> Option<(PathBuf, File)> {
    let exact = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    let relative = mapping.path.strip_prefix("/").ok()?;
    let inside = PathBuf::from(format!("/proc/{pid}/root")).join(relative);
    let candidates = [PathBuf::from(exact), inside, mapping.path.clone()];
    candidates.into_iter().find_map(|path| {
        let file = read::open(&path).ok().filter(|it| is_the_mapped_one(it, mapping))?;
        // The first two paths vanish with the process.
        Some((mapping.path.clone(), file))
    })
}

/// Whether an opened file can be the mapped one, as far as that is known.
fn is_the_mapped_one(file: &File, mapping: &Mapping) -> bool {
    if let Some(expected) = &mapping.build_id {
        return Layout::read(file).is_some_and(|it| it.build_id.as_ref() == Some(expected));
    }
    let Ok(metadata) = file.metadata() else { return false };
    // On overlayfs and btrfs a mapping and its file show different devices; inode numbers only
    // compare within one device.
    mapping.inode == 0 || metadata.ino() == mapping.inode || metadata.dev() != mapping.device
}

fn identity(file: &File) -> Option<FileIdentity> {
    let it = file.metadata().ok()?;
    Some(FileIdentity { device: it.dev(), inode: it.ino(), bytes: it.len(), modified: (it.mtime(), it.mtime_nsec()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};
    use std::time::{Duration, SystemTime};

    /// Returns this program's own file, with its build id or without.
    fn program(has_build_id: bool) -> Vec<u8> {
        const NAME: &[u8] = b"\x14\0\0\0\x03\0\0\0GNU\0";
        let mut content = std::fs::read("/proc/self/exe").unwrap();
        let note = content.windows(NAME.len()).position(|it| it == NAME);
        if let (Some(at), false) = (note, has_build_id) {
            // Another type of note.
            content[at + 4] = 9;
        }
        content
    }

    /// Returns whether a function of a file is named before the file is rewritten in place, and after; and whether
    /// what maps it then is another file.
    fn rewritten(content: &[u8], later: &[u8]) -> (bool, bool, bool) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, content).unwrap();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            file_offset: 0,
            path: path.clone(),
            build_id: None,
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        let process = ProcessKey { pid: std::process::id(), generation: 0 };
        let mut files = Files::new();
        let first = files.open(process, &mapping).unwrap();
        let entry = files.files[first.0].entry;
        let place = files.offset(first, entry).unwrap();
        let mut names = || {
            files.symbols.clear();
            files.symbol(first, place).is_some()
        };
        let before = names();
        file.rewind().unwrap();
        file.write_all(later).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(5)).unwrap();
        let after = names();
        (before, after, files.open(process, &mapping).unwrap() != first)
    }

    #[test]
    fn a_file_that_is_rewritten_in_place_gives_no_names_of_what_it_had() {
        let anonymous = program(false);
        assert_eq!(rewritten(&anonymous, &anonymous), (true, false, true), "touched, or rewritten: it cannot be told");
        let named = program(true);
        let has_build_id = named != anonymous;
        assert_eq!(rewritten(&named, &named), (true, has_build_id, !has_build_id));
        assert_eq!(rewritten(&named, &anonymous), (true, false, true));
    }
}
