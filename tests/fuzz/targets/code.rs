//! Code: PTX, its twins, and compiled objects.

use super::{files_in, text};
use crate::harness::{Bound, Target};
use std::sync::{Arc, LazyLock};
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, MapKind, MapSpec, Program, ProgramKind, helper, object};
use xputrace_events::{DeviceEvent, device};
use xputrace_objects::Wishes;
use xputrace_pipeline::Pipeline;
use xputrace_ptx::{Module, parse_statements};
use xputrace_twins::{Gpu, GpuMap, Handler, Maker, Origin, Wanted, entries_of};
use xputrace_wire::device::{Codec, Portability, PortableCode};

const BOUND: Bound = Bound { bytes: 64 << 20, per_byte: 2048 };

pub(super) const TARGETS: &[Target] = &[
    Target { name: "ptx", read: ptx, seeds: texts, words: PTX_WORDS, bound: BOUND },
    Target { name: "twins", read: twins, seeds: texts, words: PTX_WORDS, bound: BOUND },
    Target {
        name: "object",
        read: object,
        seeds: objects,
        words: &["kprobe/", "uretprobe/libc:malloc", "maps", ".rodata", "license"],
        bound: Bound { bytes: 192 << 20, per_byte: 4096 },
    },
];

const PTX_WORDS: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "::",
    "\"",
    "/*",
    "//",
    "@",
    "@!p ",
    ".loc 1 2 3",
    ".reg .b32 %r<10>;",
    ".param .u64 p",
    ".visible .entry k(",
    ".func (",
    "call (r), f, (a);",
    "ret;",
    "bra L;",
    "L:",
    ".shared .align 8 .b8 s[64];",
    "ld.global.v4.f32 ",
    "atom.shared.add.u32 ",
    "bar.sync 0;",
    "exit;",
    ".pragma \"",
    ".section .debug_info {",
    ".file 1 \"a\"",
    "brx.idx ",
    ".branchtargets",
];

fn texts() -> Vec<Vec<u8>> {
    let mut all = files_in("gpu-probes/ptx/tests/fixtures", ".ptx");
    all.extend(files_in("gpu-probes/ptx/tests/woven", ".ptx"));
    all
}

/// What is parsed is printed so that it is parsed the same, and everything can be done with it.
fn ptx(input: &[u8]) {
    /// Functions of a module that are copied.
    const MOST_FUNCTIONS: usize = 4;
    let text = text(input);
    let _ = parse_statements(&text);
    entries_of(&text).for_each(|it| assert!(!it.is_empty()));
    let Ok(module) = Module::parse(&text) else { return };
    let printed = module.to_string();
    assert_eq!(Module::parse(&printed).as_ref(), Ok(&module), "{printed}");
    let names: Vec<String> = module.functions().map(|it| it.name.clone()).take(MOST_FUNCTIONS).collect();
    for name in &names {
        module.faithful(name);
        let mut copy = module.clone();
        if copy.only(&[name]).is_ok() {
            let _ = copy.redirect(&mut |_| true);
            let _ = copy.weave(&[name], &mut |_| Some("ret;".to_owned()));
            let _ = copy.rename(name, "another");
            let printed = copy.to_string();
            assert_eq!(Module::parse(&printed).as_ref(), Ok(&copy), "{printed}");
        }
    }
}

/// A handler that adds 1 to the element of an array which a word of its context says.
fn handler(place: DeviceEvent, word: usize) -> Handler {
    let mut asm = Assembler::new();
    let done = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, (word * 8) as i16);
    asm.alu_imm(Alu::And, Reg::R6, 15);
    asm.stx(Size::W, Reg::FP, -4, Reg::R6);
    asm.ld_map(Reg::R1, BpfMapId(0));
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(done);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let code = asm.finish().expect("it is a program");
    let (name, kind) = ("count".into(), ProgramKind::Syscall);
    let program = Program { name, kind, insns: code.insns, map_refs: code.map_refs, lines: code.lines };
    Handler { place, program, condition: None }
}

/// Makes twins of all kernels of a module, with handlers at each place.
fn twins(input: &[u8]) {
    static MAKER: LazyLock<Maker> = LazyLock::new(|| {
        let map = MapSpec { max_entries: 16, home: Home::Tracer, ..MapSpec::number("counts", MapKind::Array) };
        let maps = [Some(GpuMap { spec: &map, has_parts: false, is_outer: false })];
        let handlers = DeviceEvent::ALL.iter().map(|it| handler(*it, device::THREAD)).collect();
        Maker::new(Origin::Script, handlers, &maps, &|_| Some(1)).expect("handlers of this kind run on GPUs")
    });
    let (codec, portability, text_bytes) = (Codec::Plain, Portability::Later, input.len() as u64);
    let image = [PortableCode { codec, portability, sm: 0, text_bytes, stored: input.into() }];
    // By their place in `DeviceEvent::ALL`; those of lines need a module that tells lines.
    for handlers in [vec![0, 1, 2, 3], vec![4], vec![5, 6], vec![7], (0..8).collect()] {
        let made = MAKER.twins(&image, Gpu { capability: 90 }, &mut |_| Some(Wanted { handlers: handlers.clone() }));
        for it in made.iter().flat_map(|it| &it.texts) {
            assert!(Module::parse(&it.text).is_ok(), "{}", it.text);
        }
    }
}

fn objects() -> Vec<Vec<u8>> {
    files_in("tests/objects", ".o")
}

/// Reads an object, makes a plan of it, and loads its programs into the tracer's engine.
fn object(input: &[u8]) {
    if object::read(input).is_err() {
        return;
    }
    let wishes = Wishes { allows_exit: true, in_processes: true, ..Wishes::default() };
    let read = |_: &str, _| Err(std::io::ErrorKind::NotFound.into());
    let Ok(plan) = xputrace_objects::plan("a.bpf.o", input, &wishes, &read) else { return };
    /// Maps of an object that says so are as large as it says; those that are larger belong to its author.
    const MOST_MAP_BYTES: u64 = 1 << 20;
    let bytes = |it: &MapSpec| u64::from(it.max_entries) * u64::from(it.key_size.saturating_add(it.value_size));
    if plan.image.maps.iter().all(|it| bytes(it) <= MOST_MAP_BYTES) {
        let _ = Pipeline::new(Arc::new(plan), super::tracer::demangle, &mut |_, _| None);
    }
}
