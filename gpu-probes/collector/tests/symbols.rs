//! Checks the built library: what it needs of glibc, what it exports, and how its marker begins.

use object::read::elf::{ElfFile64, FileHeader, VersionTable};
use object::{Endianness, Object, ObjectSection, ObjectSymbol};
use std::path::PathBuf;

/// The newest glibc whose symbols it may need, as in the crate's documentation.
const NEWEST: (u32, u32) = (2, 28);

fn library() -> Vec<u8> {
    let name = "libxputrace_collector.so";
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join(name), deps.join("..").join(name)];
    let path: &PathBuf = candidates.iter().find(|it| it.exists()).expect("cargo builds the library with this test");
    std::fs::read(path).unwrap()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("GLIBC_")?.split('.').map(|it| it.parse().unwrap());
    Some((parts.next()?, parts.next()?))
}

#[test]
fn no_symbol_is_newer_than_the_glibc_that_is_promised() {
    let bytes = library();
    let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
    let endian = file.endian();
    let header = file.elf_header();
    let sections = header.sections(endian, &*bytes).unwrap();
    let versions: VersionTable<'_, _> = sections.versions(endian, &*bytes).unwrap().expect("versioned symbols");
    let symbols = sections.symbols(endian, &*bytes, object::elf::SHT_DYNSYM).unwrap();
    let mut seen = 0;
    for index in 1..symbols.len() {
        let index = object::SymbolIndex(index);
        let Ok(Some(needed)) = versions.version(versions.version_index(endian, index).into()) else { continue };
        let Some(number) = version(std::str::from_utf8(needed.name()).unwrap()) else { continue };
        let name = symbols.symbol_name(endian, symbols.symbol(index).unwrap()).unwrap();
        assert!(number <= NEWEST, "{} needs glibc {number:?}", String::from_utf8_lossy(name));
        seen += 1;
    }
    assert!(seen > 20, "{seen} symbols of glibc");
}

#[test]
fn it_exports_its_entry_points_and_nothing_else() {
    let bytes = library();
    let file = object::File::parse(&*bytes).unwrap();
    let defined = file.dynamic_symbols().filter(|it| it.is_definition());
    let mut names: Vec<_> = defined.map(|it| it.name().unwrap().to_string()).collect();
    names.sort();
    assert_eq!(
        names,
        [
            "InitializeInjection",
            "InitializeInjectionNvtx2",
            "InitializeInjectionNvtxExtension",
            "xputrace_arm",
            xputrace_wire::marker::SYMBOL
        ]
    );
}

#[test]
fn the_marker_begins_with_a_nop_of_five_bytes() {
    let bytes = library();
    let file = object::File::parse(&*bytes).unwrap();
    let marker = file.dynamic_symbols().find(|it| it.name() == Ok(xputrace_wire::marker::SYMBOL)).unwrap();
    let code = file.section_by_index(marker.section_index().unwrap()).unwrap();
    let at = (marker.address() - code.address()) as usize;
    assert_eq!(code.data().unwrap()[at..at + 6], [0x0f, 0x1f, 0x44, 0x00, 0x00, 0xc3]);
}
