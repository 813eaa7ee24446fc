//! Symbol tables: which function or variable is at an address.
//!
//! Of a file, only the numbers in its tables are kept. Names take most of the bytes, and few are asked for: each is read
//! when it is.

use crate::elf_file::Header;
use object::elf::{self, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Endian, Endianness};
use std::cmp::Reverse;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use xputrace_boundary::copied::FileCopy;

/// Most bytes of one symbol table. The largest libraries have fifty megabytes.
pub(crate) const MOST_TABLE_BYTES: u64 = 256 << 20;
/// Longest name of a symbol that is read. Those of C++ have some ten thousand letters at most.
const MOST_NAME_BYTES: u64 = 1 << 16;
/// Bytes of a symbol in a file.
const SYMBOL_BYTES: usize = size_of::<elf::Sym64<Endianness>>();

/// The symbols of a file, sorted.
#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    /// The table that stripped files lack, then the dynamic linker's.
    parts: Vec<TablePart>,
    pub(crate) is_too_large: bool,
}

#[derive(Debug)]
struct TablePart {
    /// By address; of several at one address, the largest first.
    symbols: Vec<Symbol>,
    /// Where the file has their names.
    names: Range<u64>,
    /// Whether a symbol without a size ends where the next one begins. The dynamic linker's table leaves out most
    /// functions, so there it would have the code of others.
    extends: bool,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    bytes: u64,
    name: u32,
}

impl SymbolTable {
    /// Reads it; it is empty if the file is not ELF of 64 bits, or has no symbols.
    pub(crate) fn read(file: &File) -> Self {
        let mut table = SymbolTable::default();
        table.add_all(file);
        table
    }

    /// Returns the name of what is at an address, and where it begins.
    pub(crate) fn find(&self, file: &File, address: u64) -> Option<(String, u64)> {
        let symbol = self.parts.iter().find_map(|it| Some((it, it.find(address)?)));
        let (part, symbol) = symbol?;
        Some((part.name(file, symbol)?, symbol.address))
    }

    /// Returns how much memory it takes.
    pub(crate) fn size(&self) -> u64 {
        self.parts.iter().map(|it| (it.symbols.len() * size_of::<Symbol>()) as u64).sum()
    }

    fn add_all(&mut self, file: &File) -> Option<()> {
        let headers = FileCopy::of(file.try_clone().ok()?, crate::elf_file::MOST_BYTES).ok()?;
        let header = Header::parse(&headers).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.sections(endian, &headers).ok()?;
        for (kind, extends) in [(elf::SHT_SYMTAB, true), (elf::SHT_DYNSYM, false)] {
            let Some(section) = sections.iter().find(|it| it.sh_type(endian) == kind) else { continue };
            let Some(names) = sections.section(section.link(endian)).ok().and_then(|it| range(it, endian)) else {
                continue;
            };
            let Some(range) = range(section, endian) else { continue };
            if range.end - range.start > MOST_TABLE_BYTES {
                self.is_too_large = true;
                continue;
            }
            let symbols = read_symbols(file, range, endian);
            self.parts.push(TablePart { symbols, names, extends });
        }
        Some(())
    }
}

impl TablePart {
    /// Returns the largest of the symbols that begin last before an address, if it has the address.
    fn find(&self, address: u64) -> Option<&Symbol> {
        let after = self.symbols.partition_point(|it| it.address <= address);
        let last = self.symbols.get(after.checked_sub(1)?)?.address;
        let first = self.symbols.partition_point(|it| it.address < last);
        self.symbols.get(first..after)?.iter().find(|it| self.has(it, address))
    }

    fn has(&self, symbol: &Symbol, address: u64) -> bool {
        let distance = address.wrapping_sub(symbol.address);
        if symbol.bytes == 0 { self.extends || distance == 0 } else { distance < symbol.bytes }
    }

    fn name(&self, file: &File, symbol: &Symbol) -> Option<String> {
        /// Most names are shorter.
        const FIRST_BYTES: u64 = 256;
        let start = self.names.start.checked_add(symbol.name.into())?;
        let rest = self.names.end.checked_sub(start)?;
        for len in [FIRST_BYTES, MOST_NAME_BYTES] {
            let mut bytes = vec![0; rest.min(len) as usize];
            let n = file.read_at(&mut bytes, start).ok()?;
            bytes.truncate(n);
            if let Some(end) = bytes.iter().position(|it| *it == 0) {
                bytes.truncate(end);
                return String::from_utf8(bytes).ok();
            }
        }
        None
    }
}

/// Returns where a section is in the file; `None` if the file has nothing of it.
pub(crate) fn range(section: &SectionHeader64<Endianness>, endian: Endianness) -> Option<Range<u64>> {
    let (offset, bytes) = section.file_range(endian)?;
    Some(offset..offset.checked_add(bytes)?)
}

/// Reads the symbols in a part of the file, as far as it has them.
fn read_symbols(file: &File, range: Range<u64>, endian: Endianness) -> Vec<Symbol> {
    /// Symbols that are read at a time.
    const N: usize = 1 << 14;
    let mut bytes = vec![0; N * SYMBOL_BYTES];
    let (mut symbols, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let len = (range.end - at).min(bytes.len() as u64) as usize;
        if file.read_exact_at(&mut bytes[..len], at).is_err() {
            break;
        }
        symbols.extend(bytes[..len].as_chunks::<SYMBOL_BYTES>().0.iter().filter_map(|it| symbol(it, endian)));
        at += len as u64;
    }
    symbols.sort_unstable_by_key(|it: &Symbol| (it.address, Reverse(it.bytes), it.name));
    symbols.shrink_to_fit();
    symbols
}

/// Reads a symbol if it is a function or variable that the file defines.
///
/// Source: the ELF gABI, `Elf64_Sym`: name, info, other, section, address, size.
fn symbol(bytes: &[u8; SYMBOL_BYTES], endian: Endianness) -> Option<Symbol> {
    let [n0, n1, n2, n3, info, _, s0, s1, rest @ ..] = *bytes;
    let (address, bytes) = (rest.first_chunk::<8>()?, rest.last_chunk::<8>()?);
    let kind = elf::SymbolType(info & 0xf);
    let is_named = [elf::STT_NOTYPE, elf::STT_FUNC, elf::STT_OBJECT, elf::STT_GNU_IFUNC].contains(&kind);
    let is_defined = endian.read_u16([s0, s1]) != elf::SHN_UNDEF.0;
    (is_named && is_defined).then(|| Symbol {
        address: endian.read_u64(*address),
        bytes: endian.read_u64(*bytes),
        name: endian.read_u32([n0, n1, n2, n3]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(extends: bool, symbols: &[(u64, u64, u32)]) -> TablePart {
        let mut symbols: Vec<_> = symbols
            .iter()
            .map(|(address, bytes, name)| Symbol { address: *address, bytes: *bytes, name: *name })
            .collect();
        symbols.sort_unstable_by_key(|it| (it.address, Reverse(it.bytes)));
        TablePart { symbols, names: 0..0, extends }
    }

    #[test]
    fn the_largest_symbol_at_the_last_beginning_counts() {
        let all = [(0x10, 0x100, 1), (0x20, 8, 2), (0x20, 4, 3), (0x40, 0, 4), (u64::MAX - 1, u64::MAX, 5)];
        let found = |extends, at| part(extends, &all).find(at).map(|it| it.name);
        assert_eq!((found(true, 0xf), found(true, 0x1f)), (None, Some(1)));
        assert_eq!((found(true, 0x27), found(true, 0x28)), (Some(2), None));
        assert_eq!((found(true, 0x4f), found(false, 0x4f), found(false, 0x40)), (Some(4), None, Some(4)));
        assert_eq!(found(true, u64::MAX), Some(5));
    }

    #[test]
    fn what_is_no_elf_file_has_no_symbols() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(SymbolTable::read(&file).find(&file, 0), None);
    }
}
