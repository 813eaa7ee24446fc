//! For the fuzzer alone: everything here that reads what others write. What it returns is private, and so are the readers.

use crate::catalog::parse_format;
use crate::code;
use crate::elf::Elf;
use crate::proc_maps;
use crate::reach::Overlay;
use crate::resolve::{self, Candidate, FilePart};
use crate::sideband;
use crate::usdt;
use std::path::Path;
use xputrace_model::plan::UsdtPattern;

/// Functions of a file that are looked at closely.
const MOST_FUNCTIONS: usize = 16;

/// Reads all that is ever read of a file with code.
pub fn file(path: &Path) {
    let Some(id) = resolve::file_id(path) else { return };
    let candidate = Candidate { id, path: path.to_path_buf(), part: FilePart::All };
    for function in ["*", "probed", "probed+4", "ns::*", "0x1010"] {
        let _ = resolve::places(&candidate, function);
        let _ = resolve::return_type(&candidate, function);
    }
    let _ = usdt::matching(path, &UsdtPattern::any());
    let _ = usdt::places(&candidate, &UsdtPattern::any());
    let Ok(elf) = Elf::open(path) else { return };
    let (_, _, _) = (elf.needs(), elf.build_id(), elf.imports("malloc"));
    let _ = elf.variable("total");
    let reader = code::CodeReader::new(&elf);
    for function in elf.functions(&mut |_| true).iter().take(MOST_FUNCTIONS) {
        elf.address(function.file_offset).and_then(|it| elf.unwound_part(it));
        if let Ok(code) = reader.read(function.file_offset, function.size) {
            let _ = reader.exits(&code);
        }
        let _ = reader.begins_at(function.file_offset, function.file_offset.wrapping_add(7));
    }
}

/// Reads a text as each of those that Linux writes of others' processes and files.
pub fn text(text: &str) {
    let _ = parse_format(text, &|_| None);
    for line in text.lines() {
        let _ = Overlay::parse(line, Path::new("/my app/bin/server"));
        let _ = proc_maps::executable_file(line.as_bytes());
        let _ = sideband::life(line);
    }
}

/// Reads a record of Linux's perf events.
pub fn perf_record(bytes: &[u8]) {
    let _ = sideband::parse(bytes);
}

/// Reads the dynamic linker's cache: one of a container is its own.
pub fn linker_cache(bytes: &[u8]) {
    let _ = resolve::parse_cache(bytes);
}
