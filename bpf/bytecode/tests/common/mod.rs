//! Shared by the tests: a check for privileges, and small builders.
#![allow(dead_code, reason = "each test binary uses its part")]

use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::{Assembler, Line};

/// Whether we may load programs into Linux; prints a line if not.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
pub(crate) fn can_load(test: &str) -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped {test}: loading programs needs root");
    }
    root
}

pub(crate) fn map(name: &str, kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> MapSpec {
    MapSpec { name: name.into(), kind, key_size, value_size, max_entries, flags: 0, home: Home::Linux, inner: None }
}

pub(crate) fn program(name: &str, kind: ProgramKind, write: impl FnOnce(&mut Assembler)) -> Program {
    let mut asm = Assembler::new();
    write(&mut asm);
    let assembled = asm.finish().expect("assembles");
    Program { name: name.into(), kind, insns: assembled.insns, map_refs: assembled.map_refs, lines: assembled.lines }
}

pub(crate) fn image(maps: Vec<MapSpec>, programs: Vec<Program>) -> Image {
    Image { maps, programs, sources: Vec::new() }
}

pub(crate) fn line(insn: usize, line: u32) -> Line {
    Line { insn, file: 0, line, column: 1 }
}
