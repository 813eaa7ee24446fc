//! Redirects CUPTI's exported functions to ours, by data: no instruction is changed.
//!
//! A caller finds such a function in one of two ways. Both are redirected:
//!
//! - by the symbol's value in libcupti's own dynamic symbol table. It is read for each library that
//!   is loaded from now on, at a function's first call where binding is lazy, and by `dlsym`. It is
//!   relative to libcupti's base, and addition wraps, so any address can be expressed.
//! - by a slot that a loaded library's relocations have filled already.
//!
//! Both lie in pages that are private to the process and may be read-only; they are made writable
//! for the write. What cannot be redirected: an address that a library got from `dlsym` before, and a
//! copy of CUPTI that is linked statically.

use super::calls::{REDIRECTED, Real, RedirectedFunction};
use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use xputrace_unwind::{LoadedFile, find_loaded, for_each_loaded};

/// What is redirected.
pub(super) struct Redirected {
    /// CUPTI's own functions.
    pub(super) real: Real,
    /// Where libcupti and this library are: their own calls are not redirected.
    internal: [Range<u64>; 2],
}

static REDIRECTED_LIBRARY: OnceLock<Redirected> = OnceLock::new();
static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Returns what is redirected; `None` before the first time.
pub(super) fn redirected() -> Option<&'static Redirected> {
    REDIRECTED_LIBRARY.get()
}

impl Redirected {
    /// Whether a call from this address is CUPTI's own, or ours.
    pub(super) fn is_internal(&self, caller: u64) -> bool {
        self.internal.iter().any(|it| it.contains(&caller)) || is_collector(caller)
    }
}

impl Redirected {
    /// Whether a call from this address is CUPTI's own.
    pub(super) fn is_cuptis(&self, caller: u64) -> bool {
        self.internal[0].contains(&caller)
    }
}

/// Whether calls of other users are redirected to us.
pub(in crate::cupti) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Acquire)
}

/// Whether an address is in a collector, of whatever build: a process may have been attached to before.
fn is_collector(address: u64) -> bool {
    let is_named = |path: &[u8]| {
        let name = path.rsplit(|it| *it == b'/').next().unwrap_or_default();
        [b"collector-" as &[u8], b"libxputrace_collector"].iter().any(|it| name.starts_with(it))
    };
    find_loaded(|it| it.holds(address).then(|| is_named(it.path))).unwrap_or(false)
}

/// Redirects the functions of the libcupti that contains this one.
///
/// # Errors
/// Why that is impossible.
pub(in crate::cupti) fn install(function: u64) -> Result<(), String> {
    if IS_INSTALLED.load(Ordering::Acquire) {
        return Ok(());
    }
    let found = find_loaded(|it| it.holds(function).then(|| LinkedFile::of(&it))).flatten();
    let image = found.ok_or("libcupti's symbol table cannot be read")?;
    let own = find_loaded(|it| it.holds(install as *const () as u64).then(|| it.range())).flatten();
    let redirected = REDIRECTED_LIBRARY.get_or_init(|| {
        // SAFETY: the symbols of a loaded library, before any is changed.
        let real = unsafe { Real::of(|name| image.address_of(name)) };
        Redirected { real, internal: [image.range.clone(), own.unwrap_or_default()] }
    });
    if redirected.internal[0] != image.range {
        return Err("the program has loaded another libcupti than before".into());
    }
    let pairs = pairs(redirected);
    image.set_symbols(&pairs)?;
    set_slots(redirected, &pairs)?;
    IS_INSTALLED.store(true, Ordering::Release);
    Ok(())
}

/// Takes the redirection back, as far as nothing depends on it.
pub(in crate::cupti) fn undo() {
    let Some(redirected) = redirected().filter(|_| super::OTHER.is_independent()) else { return };
    if !IS_INSTALLED.swap(false, Ordering::AcqRel) {
        return;
    }
    let back: Vec<Pair> = pairs(redirected).iter().map(|it| Pair { from: it.to, to: it.from, ..*it }).collect();
    let start = redirected.internal[0].start;
    let image = find_loaded(|it| it.holds(start).then(|| LinkedFile::of(&it))).flatten();
    if let Some(image) = image {
        let _ = image.set_symbols(&back);
        let _ = set_slots(redirected, &back);
    }
}

/// A function's address, and the one to put in its place.
#[derive(Clone, Copy)]
struct Pair {
    name: &'static CStr,
    from: u64,
    to: u64,
}

fn pairs(redirected: &Redirected) -> Vec<Pair> {
    let real = |entry: &RedirectedFunction| (entry.real)(&redirected.real).map(|it| it as u64);
    REDIRECTED.iter().filter_map(|it| Some(Pair { name: it.name, from: real(it)?, to: it.address as u64 })).collect()
}

/// Rewrites the slots of loaded libraries, except libcupti's and ours, that hold one of the addresses.
fn set_slots(redirected: &Redirected, pairs: &[Pair]) -> Result<(), String> {
    let mut failed = None;
    for_each_loaded(|library| {
        let is_internal =
            library.range().is_none_or(|it| redirected.internal.iter().any(|own| own.contains(&it.start)));
        if let (false, Some(image)) = (is_internal, LinkedFile::of(&library)) {
            failed = image.set_slots(pairs).err().or(failed.take());
        }
    });
    failed.map_or(Ok(()), Err)
}

/// A loaded file's dynamic section, as the loader left it in memory.
#[derive(Clone)]
struct LinkedFile {
    base: u64,
    range: Range<u64>,
    /// Its segments: addresses, and how they are mapped.
    segments: Vec<(Range<u64>, i32)>,
    /// What the loader made read-only after relocation.
    relro: Range<u64>,
    symbols: u64,
    strings: u64,
    n_symbols: usize,
    relocations: Vec<Range<u64>>,
}

/// `Elf64_Sym`, `Elf64_Rela` and `Elf64_Dyn` (System V ABI, chapters 4 and 5).
const SYMBOL_BYTES: u64 = 24;
const SYMBOL_VALUE_AT: u64 = 8;
const RELOCATION_BYTES: u64 = 24;
const DYNAMIC_BYTES: u64 = 16;

/// Tags of the dynamic section.
mod tag {
    pub(super) const PLT_BYTES: u64 = 2;
    pub(super) const HASH: u64 = 4;
    pub(super) const STRINGS: u64 = 5;
    pub(super) const SYMBOLS: u64 = 6;
    pub(super) const RELOCATIONS: u64 = 7;
    pub(super) const RELOCATION_BYTES: u64 = 8;
    pub(super) const PLT: u64 = 23;
    pub(super) const GNU_HASH: u64 = 0x6fff_fef5;
}

/// Relocations that fill a word with a symbol's address (x86-64 psABI, table 4.9): `R_X86_64_64`,
/// `GLOB_DAT`, `JUMP_SLOT`.
const FILLS_WORD: [u32; 3] = [1, 6, 7];

impl LinkedFile {
    fn of(library: &LoadedFile<'_>) -> Option<Self> {
        let dynamic = library.dynamic()?;
        let entries = (0..).map(|n| dynamic + n * DYNAMIC_BYTES);
        // SAFETY: the file's own dynamic section, which ends with a zero tag.
        let entries = entries.map(|at| unsafe { (read::<u64>(at), read::<u64>(at + 8)) });
        let tags: Vec<(u64, u64)> = entries.take_while(|it| it.0 != 0).collect();
        let value = |tag: u64| tags.iter().find(|it| it.0 == tag).map(|it| it.1);
        // The loader turns offsets into addresses, except in files that it may not write to.
        let address = |tag: u64| {
            let at = value(tag)?;
            Some(if at < library.base() { at + library.base() } else { at })
        };
        let table = |at: u64, bytes: u64| Some(address(at)?..address(at)? + value(bytes)?);
        let all = [table(tag::RELOCATIONS, tag::RELOCATION_BYTES), table(tag::PLT, tag::PLT_BYTES)];
        let is_held = |it: &Range<u64>| library.holds(it.start) && (it.is_empty() || library.holds(it.end - 1));
        let (symbols, strings) = (address(tag::SYMBOLS)?, address(tag::STRINGS)?);
        let gnu = address(tag::GNU_HASH).filter(|it| library.holds(*it));
        let old = address(tag::HASH).filter(|it| library.holds(*it));
        // SAFETY: the file's own hash tables.
        let n_symbols = unsafe { gnu.map(|it| symbols_in_gnu_hash(it)).or_else(|| old.map(|it| symbols_in_hash(it))) };
        (library.holds(symbols) && library.holds(strings)).then_some(LinkedFile {
            base: library.base(),
            range: library.range()?,
            segments: library.mapped_segments().collect(),
            relro: library.relro().unwrap_or_default(),
            symbols,
            strings,
            n_symbols: n_symbols?,
            relocations: all.into_iter().flatten().filter(is_held).collect(),
        })
    }

    /// Returns the address of the symbol with this name that the file defines.
    fn address_of(&self, name: &CStr) -> Option<u64> {
        (0..self.n_symbols).find(|it| self.name(*it) == name).map(|it| self.base.wrapping_add(self.value(it)))
    }

    fn symbol(&self, at: usize) -> u64 {
        self.symbols + at as u64 * SYMBOL_BYTES
    }

    fn value(&self, at: usize) -> u64 {
        // SAFETY: within the symbol table.
        unsafe { read(self.symbol(at) + SYMBOL_VALUE_AT) }
    }

    fn name(&self, at: usize) -> &CStr {
        // SAFETY: within the symbol table, whose names are offsets of C strings.
        unsafe { CStr::from_ptr((self.strings + u64::from(read::<u32>(self.symbol(at)))) as *const c_char) }
    }

    /// Replaces the values of symbols.
    fn set_symbols(&self, pairs: &[Pair]) -> Result<(), String> {
        for at in 0..self.n_symbols {
            let address = self.base.wrapping_add(self.value(at));
            if let Some(pair) = pairs.iter().find(|it| it.from == address && it.name == self.name(at)) {
                self.write(self.symbol(at) + SYMBOL_VALUE_AT, pair.to.wrapping_sub(self.base))?;
            }
        }
        Ok(())
    }

    /// Replaces the addresses that relocations have put into words.
    fn set_slots(&self, pairs: &[Pair]) -> Result<(), String> {
        for table in &self.relocations {
            for at in table.clone().step_by(RELOCATION_BYTES as usize) {
                // SAFETY: within the file's own relocations.
                let (offset, info) = unsafe { (read::<u64>(at), read::<u64>(at + 8)) };
                let slot = self.base.wrapping_add(offset);
                if !FILLS_WORD.contains(&(info as u32)) || self.protection(slot).is_none() {
                    continue;
                }
                // SAFETY: a word of the file that the loader has filled.
                let value: u64 = unsafe { read(slot) };
                if let Some(pair) = pairs.iter().find(|it| it.from == value) {
                    self.write(slot, pair.to)?;
                }
            }
        }
        Ok(())
    }

    /// Returns how the page of a word is mapped; `None` outside the file's segments.
    fn protection(&self, address: u64) -> Option<i32> {
        let flags = self.segments.iter().find(|it| it.0.contains(&address))?.1;
        Some(if self.relro.contains(&address) { flags & !libc::PROT_WRITE } else { flags })
    }

    /// Writes a word, making its page writable meanwhile.
    fn write(&self, address: u64, value: u64) -> Result<(), String> {
        let protection = self.protection(address).ok_or("a word lies outside its file")?;
        let is_read_only = protection & libc::PROT_WRITE == 0;
        protect(address, protection | libc::PROT_WRITE)?;
        // SAFETY: an aligned word of a loaded file, writable now; readers load it in one piece.
        unsafe { AtomicPtr::<()>::from_ptr(address as *mut *mut ()) }.store(value as *mut (), Ordering::Release);
        if is_read_only { protect(address, protection) } else { Ok(()) }
    }
}

fn protect(address: u64, protection: i32) -> Result<(), String> {
    // SAFETY: no arguments.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let start = address & !(page - 1);
    // SAFETY: one page of a loaded file, which stays readable.
    match unsafe { libc::mprotect(start as *mut _, page as usize, protection) } {
        0 => Ok(()),
        _ => Err(format!("mprotect of a page of a library: {}", std::io::Error::last_os_error())),
    }
}

/// Returns the number of symbols that a GNU hash table covers, and those before them.
///
/// # Safety
/// `at` is the address of such a table.
unsafe fn symbols_in_gnu_hash(at: u64) -> usize {
    // SAFETY: the caller's promise: four numbers, the filter, the buckets, the chains.
    unsafe {
        let (n_buckets, first, n_words) = (read::<u32>(at), read::<u32>(at + 4), read::<u32>(at + 8));
        let buckets = at + 16 + u64::from(n_words) * 8;
        let chains = buckets + u64::from(n_buckets) * 4;
        let last = (0..u64::from(n_buckets)).map(|it| read::<u32>(buckets + it * 4)).max().unwrap_or(0);
        if last < first {
            return first as usize;
        }
        // A chain ends where the lowest bit is set.
        let is_last = |it: &u32| read::<u32>(chains + u64::from(it - first) * 4) & 1 != 0;
        (last..).find(is_last).map_or(0, |it| it as usize + 1)
    }
}

/// As above, for the older table: its second number.
///
/// # Safety
/// `at` is the address of such a table.
unsafe fn symbols_in_hash(at: u64) -> usize {
    // SAFETY: the caller promises that `at` is the address of such a table, of which this is the second number.
    unsafe { read::<u32>(at + 4) as usize }
}

/// # Safety
/// `size_of::<T>()` bytes at `address` are readable, and any bytes are a `T`.
unsafe fn read<T: Copy>(address: u64) -> T {
    // SAFETY: the caller promises that that many bytes are readable there and that any bytes are a `T`.
    unsafe { (address as *const T).read_unaligned() }
}
