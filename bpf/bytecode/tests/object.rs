//! Loads the object into Linux by libbpf, and with bpftool.

mod common;

use std::process::Command;
use std::sync::Mutex;

use ::object as object_file;
use common::{can_load, image, map, program};
use libbpf_rs::{MapCore as _, ObjectBuilder, PrintLevel};
use xputrace_bytecode::image::{Image, MapKind, MapSpec, NO_PREALLOC, ProgramKind};
use xputrace_bytecode::insn::{Alu, Cond, Reg, Size, atomic};
use xputrace_bytecode::object::{self, AttachPlace, Loaders, ObjectError, names};
use xputrace_bytecode::{Assembler, BpfMapId, helper};

const SCRIPT: &str = "// counts\nuprobe(\"libc:malloc\", |e| @calls[e.tid].count());\n";

/// Emits `lookup(map, &key)`, and adds one if there is an element.
fn count(asm: &mut Assembler, map: BpfMapId, key_bytes: i16) {
    asm.line(0, 2, 28);
    let missing = asm.label();
    for off in (0..key_bytes).step_by(8) {
        asm.st_imm(Size::Dw, Reg::FP, off - key_bytes, 0);
    }
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -i32::from(key_bytes));
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(missing);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
}

/// Emits `lookup(lookup(map, 0), 0)`.
fn count_in_inner(asm: &mut Assembler, map: BpfMapId) {
    asm.line(0, 1, 1);
    let missing = asm.label();
    asm.st_imm(Size::Dw, Reg::FP, -8, 0);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    asm.mov(Reg::R1, Reg::R0);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, missing);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(missing);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
}

fn stack_and_record(asm: &mut Assembler, stacks: BpfMapId, ring: BpfMapId) {
    asm.ld_map(Reg::R2, stacks);
    asm.mov_imm(Reg::R3, helper::STACK_USER.into());
    asm.call(helper::GET_STACKID);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
    asm.ld_map(Reg::R1, ring);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, -8);
    asm.mov_imm(Reg::R3, 8);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::RINGBUF_OUTPUT);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
}

fn of_maps(name: &str, kind: MapKind, inner: MapSpec) -> MapSpec {
    MapSpec { inner: Some(Box::new(inner)), ..map(name, kind, 4, 4, 1) }
}

fn all_maps() -> Vec<MapSpec> {
    let hash = MapSpec { flags: NO_PREALLOC, ..map("calls", MapKind::PercpuHash, 16, 8, 1024) };
    vec![
        hash.clone(),
        map("slots", MapKind::Array, 4, 24, 16),
        map("stacks", MapKind::StackTrace, 4, 127 * 8, 512),
        map("events", MapKind::Ringbuf, 0, 0, 4096),
        of_maps("gens", MapKind::ArrayOfMaps, MapSpec { name: "gen".into(), ..hash }),
        of_maps("procs", MapKind::HashOfMaps, map("proc", MapKind::Array, 4, 8, 8)),
        map("recent", MapKind::LruHash, 8, 12, 64),
        map("part", MapKind::PercpuArray, 4, 8, 4),
        map("odd", MapKind::Hash, 7, 3, 4),
    ]
}

fn tracepoint() -> ProgramKind {
    ProgramKind::Tracepoint { category: "sched".into(), name: "sched_switch".into() }
}

fn with_sources(mut image: Image) -> Image {
    image.sources = vec![("calls.rhai".into(), SCRIPT.into())];
    image
}

fn all_kinds() -> Image {
    with_sources(image(
        all_maps(),
        vec![
            program("one", ProgramKind::Uprobe, |asm| count(asm, BpfMapId(0), 16)),
            program("two", ProgramKind::Uprobe, |asm| count(asm, BpfMapId(1), 8)),
            program("unlined", ProgramKind::Uprobe, |asm| stack_and_record(asm, BpfMapId(2), BpfMapId(3))),
            program("back", ProgramKind::Uretprobe, |asm| count_in_inner(asm, BpfMapId(4))),
            program("switch", tracepoint(), |asm| count_in_inner(asm, BpfMapId(5))),
            program("sample", ProgramKind::PerfEvent, |asm| count(asm, BpfMapId(6), 8)),
            program("kernel", ProgramKind::Syscall, |asm| count(asm, BpfMapId(7), 8)),
            program("named", ProgramKind::Syscall, |asm| {
                asm.mov_imm(Reg::R0, 0);
                asm.call(helper::NAME_TEXT);
                asm.exit();
            }),
        ],
    ))
}

static LIBBPF_SAYS: Mutex<String> = Mutex::new(String::new());

fn keep(_: PrintLevel, text: String) {
    said().push_str(&text);
}

/// Must not panic: libbpf calls it.
fn said() -> std::sync::MutexGuard<'static, String> {
    LIBBPF_SAYS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn load(bytes: &[u8]) -> libbpf_rs::Object {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep)));
    let open = ObjectBuilder::default().open_memory(bytes).expect("opens");
    open.load().unwrap_or_else(|it| panic!("{it:#}\n{}", said()))
}

#[test]
fn libbpf_loads_every_kind_of_program_and_map() {
    if !can_load("libbpf_loads_every_kind_of_program_and_map") {
        return;
    }
    let image = all_kinds();
    let object = load(&object::write(&image).expect("writes"));
    let maps: Vec<String> = object.maps().map(|it| it.name().to_string_lossy().into_owned()).collect();
    let mut expected: Vec<&str> = image.maps.iter().map(|it| it.name.as_str()).collect();
    expected.insert(4, "gen"); // The first inner map of `gens` comes before it.
    assert_eq!(maps, expected);
    let maps = object.maps().filter(|it| it.name() != "gen");
    for (map, spec) in maps.zip(&image.maps) {
        assert_eq!(map.map_type() as u32, spec.kind as u32, "{}", spec.name);
        assert_eq!(map.max_entries(), spec.max_entries, "{}", spec.name);
        assert_eq!((map.key_size(), map.value_size()), (spec.key_size, spec.value_size));
    }
    let said = said().clone();
    assert_eq!(said, "");
}

/// Checks the line information in Linux for both programs of one section.
#[test]
fn linux_knows_the_scripts_lines() {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    if !can_load("linux_knows_the_scripts_lines") {
        return;
    }
    let object = load(&object::write(&all_kinds()).expect("writes"));
    for program in object.progs().filter(|it| it.autoload()) {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut len = size_of_val(&info) as u32;
        // SAFETY: the descriptor is a program's; `info` has `len` bytes and requests no arrays.
        let answer = unsafe { libbpf_sys::bpf_prog_get_info_by_fd(program.as_fd().as_raw_fd(), &mut info, &mut len) };
        assert_eq!(answer, 0);
        let name = program.name().to_string_lossy();
        assert_eq!((info.nr_func_info, info.nr_line_info), (1, 1), "{name}");
    }
}

#[test]
fn the_engines_own_programs_are_not_loaded() {
    if !can_load("the_engines_own_programs_are_not_loaded") {
        return;
    }
    let object = load(&object::write(&all_kinds()).expect("writes"));
    let loaded: Vec<String> = object.progs().map(|it| it.name().to_string_lossy().into_owned()).collect();
    assert_eq!(loaded, ["one", "two", "unlined", "back", "switch", "sample", "kernel"]);
}

#[test]
fn an_image_without_maps_loads() {
    if !can_load("an_image_without_maps_loads") {
        return;
    }
    let write = |asm: &mut Assembler| {
        asm.mov_imm(Reg::R0, 0);
        asm.exit();
    };
    let image = image(vec![], vec![program("empty", ProgramKind::Syscall, write)]);
    assert_eq!(load(&object::write(&image).expect("writes")).progs().count(), 1);
}

/// The object itself names the inner map of the outer array.
#[test]
fn an_array_of_maps_has_its_first_map() {
    if !can_load("an_array_of_maps_has_its_first_map") {
        return;
    }
    let object = load(&object::write(&all_kinds()).expect("writes"));
    let find = |name: &str| object.maps().find(|it| it.name() == name).expect("is there");
    let inner_id = find("gen").info().expect("tells").info.id;
    let slot = find("gens").lookup(&[0; 4], libbpf_rs::MapFlags::ANY).expect("reads");
    assert_eq!(slot, Some(inner_id.to_ne_bytes().to_vec()));
    let empty = find("procs").keys().count();
    assert_eq!(empty, 0, "hashes of maps are filled by whoever knows their keys");
}

/// bpftool may contain a libbpf that does not know `uprobe.multi`.
#[test]
fn bpftool_loads_it_and_shows_the_scripts_lines() {
    if !can_load("bpftool_loads_it_and_shows_the_scripts_lines") {
        return;
    }
    if Command::new("bpftool").arg("version").output().is_err() {
        eprintln!("skipped bpftool_loads_it_and_shows_the_scripts_lines: there is no bpftool");
        return;
    }
    let image = all_kinds();
    let dir = tempfile::tempdir().expect("creates");
    let file = dir.path().join("x.bpf.o");
    std::fs::write(&file, object::write_for(&image, Loaders::Any, &[], &[]).expect("writes")).expect("writes");
    let pins = format!("/sys/fs/bpf/xputrace-test-{}", std::process::id());
    let maps = format!("{pins}-maps");
    let file = file.to_string_lossy();
    let loaded = bpftool(&["prog", "loadall", &file, &pins, "pinmaps", &maps]);
    let shown = bpftool(&["prog", "dump", "xlated", "pinned", &format!("{pins}/sample"), "linum"]);
    let dumped = bpftool(&["map", "dump", "pinned", &format!("{pins}-maps/gens")]);
    let _ = std::fs::remove_dir_all(&pins);
    let _ = std::fs::remove_dir_all(&maps);
    assert!(loaded.0, "{}", loaded.1);
    assert!(shown.1.contains("@calls[e.tid].count()); [file:calls.rhai line_num:2"), "{}", shown.1);
    assert!(dumped.1.contains("Found 1 element"), "slot 0 is filled: {}", dumped.1);
}

fn bpftool(args: &[&str]) -> (bool, String) {
    let output = Command::new("bpftool").args(args).output().expect("runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Returns the names of the sections that are code.
fn code_sections(bytes: &[u8]) -> Vec<String> {
    use object_file::{Object as _, ObjectSection as _};
    let file = object_file::File::parse(bytes).expect("an ELF file");
    let code = file.sections().filter(|it| it.kind() == object_file::SectionKind::Text);
    code.map(|it| it.name().expect("a name").to_owned()).collect()
}

#[test]
fn sections_say_where_functions_are_as_far_as_the_loader_can_read_it() {
    let image = all_kinds();
    let place = |file: &str, function: &str| Some(AttachPlace { file: file.into(), function: function.into() });
    let places =
        [place("libc.so.6", "malloc"), place("libc.so.6", "mem*"), place("./a:b", "f"), place("./program", "0x1139")];
    assert_eq!(
        code_sections(&object::write_for(&image, Loaders::Any, &places, &[]).expect("writes")),
        ["uprobe/libc.so.6:malloc", "uprobe", "uretprobe", "tracepoint/sched/sched_switch", "perf_event"]
    );
    assert_eq!(
        code_sections(&object::write_for(&image, Loaders::Libbpf, &places[..2], &[]).expect("writes")),
        [
            "uprobe.multi/libc.so.6:malloc",
            "uprobe.multi/libc.so.6:mem*",
            "uprobe.multi",
            "uretprobe.multi",
            "tracepoint/sched/sched_switch",
            "perf_event",
            "syscall"
        ]
    );
}

#[test]
fn names_are_made_valid_and_unique() {
    let empty = |name: &str| program(name, ProgramKind::Syscall, |asm| asm.exit());
    let image = image(
        vec![
            map("a-b", MapKind::Array, 4, 8, 1),
            map("a_b", MapKind::Array, 4, 8, 1),
            map("1", MapKind::Array, 4, 8, 1),
            map("", MapKind::Array, 4, 8, 1),
        ],
        vec![empty("a_b"), empty("a_name_much_too_long"), empty("a_name_much_too_late")],
    );
    let names = names(&image);
    assert_eq!(names.maps, ["a_b_2", "a_b", "_1", "_"]);
    assert_eq!(names.programs, ["a_b_3", "a_name_much_too", "a_name_much_t_2"]);
    assert_eq!(names.inner_maps, [None, None, None, None]);
}

#[test]
fn contradictions_are_errors() {
    let mut bad_map = all_kinds();
    bad_map.programs[0].map_refs[0].1 = BpfMapId(99);
    assert!(matches!(object::write(&bad_map), Err(ObjectError::MapRef { map: 99, .. })));

    let mut no_inner = all_kinds();
    no_inner.maps[4].inner = None;
    assert_eq!(object::write(&no_inner), Err(ObjectError::NoInner { map: "gens".into() }));

    let mut no_code = all_kinds();
    no_code.programs[0].insns.clear();
    assert_eq!(object::write(&no_code), Err(ObjectError::NoInstructions { program: "one".into() }));

    let mut odd = all_kinds();
    odd.programs[0].kind = ProgramKind::Tracepoint { category: "a/b".into(), name: "c".into() };
    assert!(matches!(object::write(&odd), Err(ObjectError::Tracepoint { .. })));
}
