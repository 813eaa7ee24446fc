//! Checks linked files.

use crate::OLDEST_GLIBC;
use object::read::elf::{ElfFile64, FileHeader};
use object::{Endianness, SymbolIndex, elf};

/// What a file needs of glibc.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// How many versioned symbols there are.
    pub symbols: usize,
    /// Symbols that [`OLDEST_GLIBC`] doesn't have: `pthread_create@GLIBC_2.34`.
    pub newer: Vec<String>,
}

/// Returns what a 64-bit ELF file needs of glibc.
///
/// # Errors
/// It is no such file, or it is damaged.
pub fn needs(bytes: &[u8]) -> object::Result<Needs> {
    let file = ElfFile64::<Endianness>::parse(bytes)?;
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, elf::SHT_DYNSYM)?;
    let mut needs = Needs::default();
    let Some(versions) = sections.versions(endian, bytes)? else { return Ok(needs) };
    for index in (1..symbols.len()).map(SymbolIndex) {
        let Some(needed) = versions.version(versions.version_index(endian, index).into())? else { continue };
        let version = String::from_utf8_lossy(needed.name());
        let Some(number) = number(&version) else { continue };
        needs.symbols += 1;
        if number > OLDEST_GLIBC {
            let name = symbols.symbol_name(endian, symbols.symbol(index)?)?;
            needs.newer.push(format!("{}@{version}", String::from_utf8_lossy(name)));
        }
    }
    Ok(needs)
}

/// Returns the number of a version of glibc: (2, 34) of `GLIBC_2.34`.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}
