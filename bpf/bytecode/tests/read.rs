//! Reads objects that clang has made: those of `tests/objects`, whose C is beside them.
//!
//! `BLESS=1` accepts what is read now.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use xputrace_bytecode::image::{Home, Image, MapKind, MapSpec, Program, ProgramKind};
use xputrace_bytecode::object::{self, Contents, Field, Layout, ReadCode, ReadMap};
use xputrace_bytecode::{BpfMapId, Insn, disasm};

fn objects() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/objects")
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(objects().join(format!("{name}.bpf.o"))).unwrap()
}

/// Returns everything that was read, as text.
fn text(contents: &Contents) -> String {
    let mut out = format!("license: {}\n", contents.license);
    for map in &contents.maps {
        let ReadMap { name, kind, key_bytes, value_bytes, max_entries, flags, key, value, contents, oddity: _ } = map;
        let _ = writeln!(out, "\nmap {name}: type {kind}, {max_entries} × {key_bytes} → {value_bytes}, flags {flags}");
        let _ = writeln!(out, "  {} → {}", layout(key), layout(value));
        if let Some(contents) = contents {
            let _ = writeln!(out, "  begins with {:?}", String::from_utf8_lossy(contents));
        }
    }
    let image = image(contents);
    for (program, read) in image.programs.iter().zip(&contents.programs) {
        let _ = write!(out, "\nSEC(\"{}\") {}\n{}", read.section, read.name, disasm::text(program, &image));
    }
    out
}

fn layout(it: &Layout) -> String {
    let field = |it: &Field| format!("{}: {} at {}", it.name, layout(&it.layout), it.at);
    match it {
        Layout::Int { bytes, is_signed: true } => format!("s{}", bytes * 8),
        Layout::Int { bytes, is_signed: false } => format!("u{}", bytes * 8),
        Layout::Bool => "bool".into(),
        Layout::Text { bytes } => format!("char[{bytes}]"),
        Layout::Float { bytes } => format!("f{}", bytes * 8),
        Layout::Bits { bytes, shift, n_bits, is_signed } => {
            format!("{}{n_bits}>>{shift} of bytes[{bytes}]", if *is_signed { "s" } else { "u" })
        }
        Layout::Bytes { bytes } => format!("bytes[{bytes}]"),
        Layout::Array { of, n } => format!("{}[{n}]", layout(of)),
        Layout::Struct { name, bytes, members } => {
            format!("struct {name} {{ {} }} of {bytes}", members.iter().map(field).collect::<Vec<_>>().join(", "))
        }
    }
}

/// Returns the programs as the disassembler takes them.
fn image(contents: &Contents) -> Image {
    let map = |it: &ReadMap| MapSpec {
        name: it.name.clone(),
        kind: MapKind::Array,
        key_size: 4,
        value_size: 8,
        max_entries: 1,
        flags: 0,
        home: Home::Gpu,
        inner: None,
    };
    let programs = contents.programs.iter().cloned().map(|it| {
        let ReadCode { insns, map_refs, lines } = it.code.unwrap();
        Program { name: it.name, kind: ProgramKind::Syscall, insns, map_refs, lines }
    });
    Image {
        maps: contents.maps.iter().map(map).collect(),
        programs: programs.collect(),
        sources: contents.sources.clone(),
    }
}

#[test]
fn what_clang_writes_is_read() {
    for name in ["threads", "calls", "records", "each_thread", "globals"] {
        let read = object::read(&bytes(name)).unwrap_or_else(|it| panic!("{name}: {it}"));
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/read/{name}.txt"));
        xputrace_golden::assert(&golden, &text(&read));
    }
}

/// What only libbpf can do is no error: programs for the GPU may not need it.
#[test]
fn what_only_libbpf_can_do_is_told_of_each_program_and_map() {
    let machine = object::read(&bytes("machine")).unwrap();
    let code = |name: &str| machine.programs.iter().find(|it| it.name == name).unwrap().code.clone();
    assert!(code("exits").unwrap_err().to_string().ends_with("(CO-RE), which only programs in Linux can"));
    assert!(code("samples").is_ok());

    let events = object::read(&bytes("events")).unwrap();
    let odd: Vec<&str> = events.maps.iter().filter(|it| it.oddity.is_some()).map(|it| it.name.as_str()).collect();
    let held: Vec<&str> = events.programs.iter().filter(|it| it.is_in_map).map(|it| it.name.as_str()).collect();
    assert_eq!((odd, held), (vec!["programs"], vec!["second"]));
    let Some(Layout::Struct { bytes: 16, members, .. }) = events.types.layout_of_struct("record") else { panic!() };
    assert_eq!(members.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), ["number", "text"]);
}

/// Programs refer to the maps of functions that they call.
#[test]
fn maps_are_those_of_called_functions_too() {
    let read = object::read(&bytes("functions")).unwrap();
    let maps = |name: &str| {
        let program = read.programs.iter().find(|it| it.name == name).unwrap();
        program.maps.iter().map(|it| read.maps[it.index()].name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(maps("entry"), ["calls", "argument", ".bss"]);
    assert_eq!(maps("anywhere"), [".bss"]);
}

/// What this crate writes, it reads too.
#[test]
fn our_own_objects_are_read() {
    let mut asm = xputrace_bytecode::Assembler::new();
    asm.ld_map(xputrace_bytecode::Reg::R1, BpfMapId(1));
    asm.mov_imm(xputrace_bytecode::Reg::R0, 0);
    asm.exit();
    let assembled = asm.finish().unwrap();
    let spec = MapSpec::number("one", MapKind::Array);
    let image = Image {
        maps: vec![spec.clone(), MapSpec { name: "two".into(), value_size: 24, ..spec }],
        programs: vec![Program {
            name: "it".into(),
            kind: ProgramKind::Uprobe,
            insns: assembled.insns.clone(),
            map_refs: vec![(0, BpfMapId(1))],
            lines: Vec::new(),
        }],
        sources: Vec::new(),
    };
    let read = object::read(&object::write(&image).unwrap()).unwrap();
    let program = &read.programs[0];
    assert_eq!((read.license.as_str(), program.section.as_str()), ("Dual BSD/GPL", "uprobe.multi"));
    let code = program.code.as_ref().unwrap();
    assert_eq!((&code.insns, &code.map_refs), (&assembled.insns, &image.programs[0].map_refs));
    let shapes: Vec<_> = read.maps.iter().map(|it| (it.name.as_str(), it.kind, it.value_bytes)).collect();
    assert_eq!(shapes, [("one", 2, 8), ("two", 2, 24)]);
}

#[test]
fn files_that_are_no_objects_are_refused() {
    let refused = |data: &[u8]| object::read(data).unwrap_err().to_string();
    assert!(refused(b"").starts_with("it is no ELF object for BPF: "));
    let mut other = bytes("threads");
    other[18] = 62;
    assert_eq!(
        refused(&other),
        "it is no ELF object for BPF: its machine is number 62, and BPF is 247. Compile C with `clang -g -O2 -target bpf -c`"
    );
}

/// Whatever the bytes, reading ends, and what was read refers only to itself.
#[test]
fn damaged_objects_are_read_or_refused() {
    let whole = bytes("globals");
    for at in 0..whole.len() {
        object::read(&whole[..at]).unwrap_err();
        for bit in [0, 3, 7] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let Ok(read) = object::read(&damaged) else { continue };
            for program in read.programs.into_iter().filter_map(|it| it.code.ok()) {
                let is_within =
                    |(slot, map): &(usize, BpfMapId)| slot + 1 < program.insns.len() && map.index() < read.maps.len();
                assert!(program.map_refs.iter().all(is_within), "byte {at}");
                assert!(!program.insns.is_empty() && program.insns.iter().all(|it: &Insn| it.dst < 16));
            }
        }
    }
}
