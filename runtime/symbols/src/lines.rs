//! Lines and inlined functions, by the DWARF of files.

use crate::demangle::demangle;
use crate::excerpt::{Excerpt, Missing, Trusted};
use crate::file::FileIndex;
use crate::omission::TooMuch;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Symbolized, Symbolizer};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;

/// One of the functions at an address: the symbol's own, or one inlined there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceFrame {
    /// The function that was inlined; `None` for the symbol's own.
    pub inlined: Option<String>,
    /// `file.c:123`, if known.
    pub place: Option<String>,
}

/// The lines of all files.
pub(crate) struct Lines {
    trusted: Trusted,
    /// The files whose DWARF was looked for, `None` if it has none that can be read.
    files: FxHashMap<FileIndex, Option<Dwarf>>,
    /// How much memory they take, at least.
    kept_bytes: u64,
    known: FxHashMap<(FileIndex, u64), Rc<[SourceFrame]>>,
}

/// Maximum number of files whose DWARF is kept parsed. With more, all are parsed anew.
const MOST_PARSED: usize = 64;
/// Maximum bytes of the DWARF that is kept; as for [`MOST_PARSED`]. As much as one file may have.
const MOST_KEPT_BYTES: u64 = 4 << 30;
/// By how much the DWARF of files that others can write counts more: what is parsed of it may take many times as much.
const WEIGHT_OF_OTHERS: u64 = 32;
/// Maximum number of addresses whose lines are kept.
const MOST_LINES: usize = 1 << 18;

/// The DWARF of a file. It has a symbolizer of its own, which goes with it.
struct Dwarf {
    symbolizer: Symbolizer,
    excerpt: Excerpt,
}

/// What a look-up found.
pub(crate) enum LineLookup {
    Lines(Rc<[SourceFrame]>),
    /// The file has more DWARF than is read, and so has no lines. Said once for a file.
    TooMuch(TooMuch),
}

impl Lines {
    pub(crate) fn new(trusted: Trusted) -> Self {
        Lines { trusted, files: FxHashMap::default(), kept_bytes: 0, known: FxHashMap::default() }
    }

    /// Returns the functions at an address of a file that has DWARF, innermost first.
    pub(crate) fn find(&mut self, index: FileIndex, file: &File, address: u64) -> LineLookup {
        if let Some(known) = self.known.get(&(index, address)) {
            return LineLookup::Lines(known.clone());
        }
        if !self.files.contains_key(&index)
            && let Err(more_than) = self.add(index, file)
        {
            return LineLookup::TooMuch(more_than);
        }
        let dwarf = self.files.get(&index).and_then(Option::as_ref);
        let found = dwarf.map_or_else(|| Rc::from([]), |it| it.find(address));
        if self.known.len() >= MOST_LINES {
            self.known.clear();
        }
        self.known.insert((index, address), found.clone());
        LineLookup::Lines(found)
    }

    /// Reads a file's DWARF; returns how much of it is read if it has more.
    fn add(&mut self, index: FileIndex, file: &File) -> Result<(), TooMuch> {
        let most = self.trusted.most_dwarf(file);
        let weight = if most < MOST_KEPT_BYTES { WEIGHT_OF_OTHERS } else { 1 };
        let made = Excerpt::of(file, most);
        let bytes = made.as_ref().map_or(0, |it| it.bytes.saturating_mul(weight));
        self.make_room(bytes);
        let result = if let Err(Missing::TooMuch(it)) = made { Err(it) } else { Ok(()) };
        self.files.insert(index, made.ok().map(Dwarf::new));
        self.kept_bytes += bytes;
        result
    }

    /// Drops what is kept if there would be too much. What was found missing stays known: it is said once.
    fn make_room(&mut self, bytes: u64) {
        let n_kept = self.files.values().flatten().count();
        if n_kept >= MOST_PARSED || self.kept_bytes.saturating_add(bytes) > MOST_KEPT_BYTES {
            self.files.retain(|_, it| it.is_none());
            self.kept_bytes = 0;
        }
    }
}

impl Dwarf {
    fn new(excerpt: Excerpt) -> Self {
        // No other file is opened: an excerpt names none, and its descriptor can't be followed by a suffix.
        let nowhere: Option<[PathBuf; 0]> = Some([]);
        let symbolizer = Symbolizer::builder().enable_auto_reload(false).set_debug_dirs(nowhere).build();
        Dwarf { symbolizer, excerpt }
    }

    /// DWARF that contradicts itself can make its reader panic: then nothing is found.
    fn find(&self, address: u64) -> Rc<[SourceFrame]> {
        READS_FOREIGN.set(true);
        let found = catch_unwind(AssertUnwindSafe(|| self.read(address)));
        READS_FOREIGN.set(false);
        found.unwrap_or_else(|_| Rc::from([]))
    }

    fn read(&self, address: u64) -> Rc<[SourceFrame]> {
        let source = Source::Elf(Elf::new(self.excerpt.file.path()));
        let Ok(Symbolized::Sym(sym)) = self.symbolizer.symbolize_single(&source, Input::VirtOffset(address)) else {
            return Rc::from([]);
        };
        let inlined = sym.inlined.iter().rev().map(|it| SourceFrame {
            inlined: Some(demangle(&it.name).name),
            place: it.code_info.as_ref().and_then(place),
        });
        inlined.chain([SourceFrame { inlined: None, place: sym.code_info.as_deref().and_then(place) }]).collect()
    }
}

thread_local! {
    static READS_FOREIGN: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is in a reader of foreign bytes that is not ours: a panic there is caught, and no news.
pub fn may_panic() -> bool {
    READS_FOREIGN.get()
}

/// Formats `file.c:123`; DWARF has line 0 for code that belongs to no line.
fn place(info: &CodeInfo<'_>) -> Option<String> {
    let line = info.line.filter(|it| *it > 0)?;
    Some(format!("{}:{line}", info.file.to_string_lossy()))
}
