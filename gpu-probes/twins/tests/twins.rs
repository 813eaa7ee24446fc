//! Twins of kernels that CUDA's compiler made: text goldens (`BLESS=1` accepts changes) that NVIDIA's assembler accepts.

use std::path::{Path, PathBuf};
use std::process::Command;
use xputrace_bytecode::insn::{Alu, Cond, Insn, Reg, Size, atomic};
use xputrace_bytecode::{Assembler, BpfMapId, Home, MapKind, MapSpec, Program, ProgramKind, helper};
use xputrace_events::{DeviceEvent, device};
use xputrace_twins::{
    Gpu, GpuMap, Handler, ImageTwins, Maker, NoTwin, Origin, ProgramKernel, RecordKind, TwinText, Wanted,
};
use xputrace_wire::device::{Codec, DeviceRegionShape, PatchPoint, Portability, PortableCode};

const H100: Gpu = Gpu { capability: 90 };
const FIRST: &str = include_str!("../../ptx/tests/fixtures/first.ptx");
const CLUSTERS: &str = include_str!("../../ptx/tests/fixtures/clusters.ptx");

/// A handler without a condition, whose program does this and returns 0.
fn handler(place: DeviceEvent, name: &str, write: impl FnOnce(&mut Assembler)) -> Handler {
    let mut asm = Assembler::new();
    write(&mut asm);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    let code = asm.finish().unwrap();
    let name = name.into();
    let program =
        Program { name, kind: ProgramKind::Syscall, insns: code.insns, map_refs: code.map_refs, lines: code.lines };
    Handler { place, program, condition: None }
}

/// Adds 1 to the element of a map whose key is in the stack.
fn add_one(asm: &mut Assembler, map: BpfMapId, key_at: i32) {
    let done = asm.label();
    asm.ld_map(Reg::R1, map);
    asm.mov(Reg::R2, Reg::FP);
    asm.alu_imm(Alu::Add, Reg::R2, key_at);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, done);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.place(done);
}

/// Adds 1 to the element of an array that this word of the context says.
fn counting(place: DeviceEvent, word: usize) -> Handler {
    handler(place, "count", |asm| {
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, (word * 8) as i16);
        asm.alu_imm(Alu::And, Reg::R6, 15);
        asm.stx(Size::W, Reg::FP, -4, Reg::R6);
        add_one(asm, BpfMapId(0), -4);
    })
}

/// Writes this word of the context to a ring.
fn recording(place: DeviceEvent, word: usize) -> Handler {
    handler(place, "record", |asm| {
        asm.ldx(Size::Dw, Reg::R6, Reg::R1, (word * 8) as i16);
        asm.stx(Size::Dw, Reg::FP, -8, Reg::R6);
        asm.ld_map(Reg::R1, BpfMapId(1));
        asm.mov(Reg::R2, Reg::FP);
        asm.alu_imm(Alu::Add, Reg::R2, -8);
        asm.mov_imm(Reg::R3, 8);
        asm.mov_imm(Reg::R4, 0);
        asm.call(helper::RINGBUF_OUTPUT);
    })
}

/// Adds 1 to the only element of a map.
fn summing(place: DeviceEvent) -> Handler {
    handler(place, "sum", |asm| {
        asm.st_imm(Size::Dw, Reg::FP, -8, 0);
        add_one(asm, BpfMapId(2), -8);
    })
}

/// Reads that element.
fn reading(place: DeviceEvent) -> Handler {
    let mut handler = summing(place);
    let at = handler.program.insns.iter().position(|it| it.code == 0xdb).unwrap();
    let reads = Insn { code: 0x79, dst: 1, src: 0, off: 0, imm: 0 };
    handler.program.insns[at] = reads;
    handler
}

fn maker(handlers: Vec<Handler>) -> Maker {
    maker_of(Origin::Script, handlers)
}

fn maker_of(origin: Origin, handlers: Vec<Handler>) -> Maker {
    let map = MapSpec { max_entries: 16, home: Home::Tracer, ..MapSpec::number("counts", MapKind::Array) };
    let ring = MapSpec { home: Home::Gpu, ..MapSpec::number("prints", MapKind::Ringbuf) };
    let texts = ["load", "store", "atomic", "global", "shared"];
    let id = |text: &str| texts.iter().position(|it| *it == text).map(|it| it as u64 + 1);
    let sum = MapSpec { home: Home::Gpu, ..MapSpec::number("sum", MapKind::Array) };
    let maps = [(&map, false), (&ring, false), (&sum, true)];
    let maps = maps.map(|(spec, has_parts)| Some(GpuMap { spec, has_parts, is_outer: false }));
    Maker::new(origin, handlers, &maps, &id).unwrap()
}

fn image(text: &str) -> Vec<PortableCode<'_>> {
    let stored = text.as_bytes().into();
    vec![PortableCode {
        codec: Codec::Plain,
        portability: Portability::Later,
        sm: 90,
        text_bytes: text.len() as u64,
        stored,
    }]
}

/// Returns the only twin of a kernel whose handlers have no condition.
fn twin(handlers: Vec<Handler>, text: &str, kernel: &str) -> Result<Option<TwinText>, NoTwin> {
    let mut all = twins(handlers, text, kernel)?;
    assert!(all.len() <= 1);
    Ok(all.pop())
}

fn twins(handlers: Vec<Handler>, text: &str, kernel: &str) -> Result<Vec<TwinText>, NoTwin> {
    let all = (0..handlers.len()).collect::<Vec<_>>();
    let mut wanted = |it: &str| (it == kernel).then(|| Wanted { handlers: all.clone() });
    let ImageTwins { texts, mut refused } = maker(handlers).twins(&image(text), H100, &mut wanted)?;
    refused.pop_first().map_or(Ok(texts), |it| Err(it.1))
}

/// Returns the twins of all kernels, with all handlers.
fn of_all(handlers: Vec<Handler>, text: &str) -> ImageTwins {
    let all = (0..handlers.len()).collect::<Vec<_>>();
    maker(handlers).twins(&image(text), H100, &mut |_| Some(Wanted { handlers: all.clone() })).unwrap()
}

fn golden(name: &str, twin: &TwinText) {
    let names = format!("// kernels {:?} variables {:?}", twin.kernels, twin.variables);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    xputrace_golden::assert(&path, &format!("{}\n{names}\n", twin.text));
    assemble(&path, &[]);
}

fn assemble_text(name: &str, text: &str) {
    let path = std::env::temp_dir().join(format!("xputrace-{name}-{}.ptx", std::process::id()));
    std::fs::write(&path, text).unwrap();
    assemble(&path, &[]);
    std::fs::remove_file(&path).unwrap();
}

/// Assembles a file with the `ptxas` that the variable PTXAS names, or that is on the PATH.
#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn assemble(path: &Path, options: &[&str]) {
    let ptxas = std::env::var_os("PTXAS").map_or_else(|| PathBuf::from("ptxas"), PathBuf::from);
    match Command::new(&ptxas).args(["-arch=sm_90a", "-o", "/dev/null"]).args(options).arg(path).output() {
        Ok(it) => assert!(it.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&it.stderr)),
        Err(error) => eprintln!("skipped: no GPU toolkit to assemble {}: {}: {error}", path.display(), ptxas.display()),
    }
}

#[test]
fn a_kernel_with_handlers_at_entry_and_exit() {
    let handlers = vec![counting(DeviceEvent::Entry, device::THREAD), counting(DeviceEvent::Exit, device::TIME)];
    let twin = twin(handlers, FIRST, "first").unwrap().unwrap();
    assert_eq!(twin.kernels, ["first"]);
    golden("first.ptx", &twin);
}

#[test]
fn handlers_that_write_records_have_a_ring() {
    let handlers = || vec![recording(DeviceEvent::Exit, device::THREAD), counting(DeviceEvent::Entry, device::TIME)];
    let maker = maker(handlers());
    let sites: Vec<_> = maker.sites().iter().map(|it| (it.handler, it.insn, it.record)).collect();
    assert_eq!(sites, [(0, 8, Some(RecordKind::Data(BpfMapId(1))))]);
    let ring = maker.ring().unwrap();
    let shape = DeviceRegionShape { block_bytes: maker.initial().len() as u64, ring: Some(ring) };
    assert!(shape.is_sound(), "{shape:?}");
    let (slots, marks) = maker.arena().ring_parts();
    let (head, tail) = maker.arena().ring_words();
    assert!(marks.end <= ring.slots && slots.start == ring.slots && slots.end <= ring.head);
    assert_eq!((ring.head, ring.tail), (head, tail));
    let counts = maker.arena().parts(0).unwrap().values.start;
    assert!(ring.end <= counts, "maps are behind it");
    let twin = twin(handlers(), FIRST, "second").unwrap().unwrap();
    assert!(twin.text.contains("%lanemask_lt"), "threads of a warp take their slots together");
    assemble_text("records", &twin.text);
    assert_eq!(self::maker(vec![counting(DeviceEvent::Exit, device::TIME)]).ring(), None);
}

#[test]
fn arrays_per_thread_have_room_for_as_many_threads_as_fit() {
    let of = |max_entries| {
        let spec = MapSpec { max_entries, home: Home::Gpu, ..MapSpec::number("threads", MapKind::PerThreadArray) };
        let map = Some(GpuMap { spec: &spec, has_parts: false, is_outer: false });
        let maker = Maker::new(Origin::Object { allows_exit: false }, vec![], &[map], &|_| None).unwrap();
        let values = &maker.arena().parts(0).unwrap().values;
        (values.end - values.start) / u64::from(spec.value_size) / u64::from(max_entries)
    };
    assert_eq!([of(1), of(4), of(1 << 22), of(1 << 23)], [1 << 22, 1 << 20, 1, 0]);
}

#[test]
fn an_array_of_linux_takes_a_word_that_says_where_it_is() {
    let spec = MapSpec { max_entries: 600, home: Home::Linux, ..MapSpec::number("shared", MapKind::Array) };
    let map = |is_outer| Some(GpuMap { spec: &spec, has_parts: false, is_outer });
    let of = |is_outer| {
        let handler = counting(DeviceEvent::Exit, device::THREAD);
        Maker::new(Origin::Script, vec![handler], &[map(is_outer)], &|_| None).unwrap()
    };
    let (outer, own) = (of(true), of(false));
    let [(id, place)] = outer.arrays()[..] else { panic!("{:?}", outer.arrays()) };
    assert_eq!((id, place.bytes, own.arrays().len()), (BpfMapId(0), 4800, 0));
    assert_eq!(own.initial().len() - outer.initial().len(), 4864, "its values");
    assert!(place.is_sound(outer.initial().len() as u64));
    let mut wanted = |_: &str| Some(Wanted { handlers: vec![0] });
    let twin = outer.twins(&image(FIRST), H100, &mut wanted).unwrap().texts.pop().unwrap();
    assert!(twin.text.contains("red.relaxed.sys.global.add"), "the host sees it: {}", twin.text);
    assemble_text("outer", &twin.text);
}

#[test]
fn what_is_constant_in_a_kernel_and_a_process() {
    let handlers = vec![counting(DeviceEvent::Exit, device::KERNEL), counting(DeviceEvent::Exit, device::PID)];
    let text = twin(handlers, FIRST, "second").unwrap().unwrap();
    golden("second.ptx", &text);
    // What differs between runs and processes is no part of the text: ids of names come beside it, and the process's from
    // the block, whose initial bytes are the same for all.
    let in_run = |id: u64| text.with_code(text.as_code(), |symbol| id + symbol.len() as u64);
    let [one, other] = [in_run(100), in_run(200)];
    assert_eq!((&one.code, &one.kernels), (&other.code, &other.kernels));
    assert_eq!((one.names, other.names), (vec![106], vec![206]));
    assert!(text.text.contains("[%xpt_table+8]"), "the process id");
}

#[test]
fn a_twin_that_reads_no_name_has_none() {
    let text = twin(vec![counting(DeviceEvent::Exit, device::PID)], FIRST, "second").unwrap().unwrap();
    assert_eq!(text.with_code(vec![], |_| panic!("nobody asks")).names, []);
    assert!(!text.text.contains("xpt_names"));
}

#[test]
fn a_launch_is_its_number() {
    let handlers = (device::LAUNCH..device::ARGUMENTS).map(|it| counting(DeviceEvent::Exit, it)).collect();
    let text = twin(handlers, FIRST, "second").unwrap().unwrap();
    assert!(text.text.contains("%gridid"), "{}", text.text);
}

/// Handlers at the entry of `second`, each counting its own word, on these conditions.
fn on_conditions(conditions: &[Option<u8>]) -> Result<Vec<TwinText>, NoTwin> {
    let words = [device::SMID, device::LANEID, device::WARPID, device::CLOCK];
    let handler = |(word, condition): (&usize, &Option<u8>)| Handler {
        condition: *condition,
        ..counting(DeviceEvent::Entry, *word)
    };
    twins(words.iter().zip(conditions).map(handler).collect(), FIRST, "second")
}

#[test]
fn a_kernel_has_a_twin_for_each_choice_of_its_handlers() {
    let words = |it: &TwinText| {
        let has = |it: &TwinText, word| it.text.contains(&format!(", {word};"));
        ["%smid", "%laneid", "%warpid"].map(|word| has(it, word))
    };
    let choices = |all: &[TwinText]| all.iter().map(|it| it.choices[0].holding).collect::<Vec<_>>();
    let one = on_conditions(&[Some(4)]).unwrap();
    assert_eq!((choices(&one), one[0].choices[0].conditions), (vec![1], [Some(4), None, None]));
    let some = on_conditions(&[Some(9), None, Some(4)]).unwrap();
    assert_eq!(choices(&some), [0, 1, 2, 3]);
    assert_eq!(some[3].choices[0].conditions, [Some(4), Some(9), None]);
    let woven: Vec<_> = some.iter().map(words).collect();
    assert_eq!(woven, [[false, true, false], [false, true, true], [true, true, false], [true, true, true]]);
    let [smid, laneid, warpid] =
        ["[xpt_device+80]", "[xpt_device]", "[xpt_device+40]"].map(|it| some[3].text.matches(it).count());
    assert_eq!([smid, laneid, warpid], [1, 1, 1]);
    assert!(some[3].text.contains(".u64 xpt_device[11];"));
    let shared = on_conditions(&[Some(4), Some(4), Some(4)]).unwrap();
    assert_eq!((choices(&shared), words(&shared[0])), (vec![1], [true; 3]));
    assert_eq!(choices(&on_conditions(&[Some(1), Some(2), Some(3)]).unwrap()), [1, 2, 3, 4, 5, 6, 7]);
    let too_many = on_conditions(&[Some(1), Some(2), Some(3), Some(4)]);
    assert!(matches!(too_many, Err(NoTwin::Conditions { n: 4, .. })));
}

#[test]
fn no_twin_without_a_kernel_that_gets_something() {
    let handlers = || vec![counting(DeviceEvent::Entry, device::SMID)];
    assert_eq!(twin(handlers(), FIRST, "third").unwrap(), None);
    let other: Vec<_> = image(FIRST).into_iter().map(|it| PortableCode { sm: 100, ..it }).collect();
    let mut all = |_: &str| Some(Wanted { handlers: vec![0] });
    assert_eq!(maker(handlers()).twins(&other, H100, &mut all).unwrap().texts, [], "for another GPU");
}

#[test]
fn a_blocks_first_and_last_threads() {
    let handlers = || {
        let end = counting(DeviceEvent::BlockEnd, device::TIME);
        vec![counting(DeviceEvent::BlockBegin, device::SMID), counting(DeviceEvent::Exit, device::THREAD), end]
    };
    golden("blocks.ptx", &twin(handlers(), FIRST, "second").unwrap().unwrap());
    // Where a thread may end in several places, and beside other shared memory.
    for kernel in ["first", "second"] {
        let twin = twin(handlers(), FIRST, kernel).unwrap().unwrap();
        assert_eq!(twin.text.matches(".align 1024 .b8 xpt_ended[1024]").count(), 1);
        assemble_text("blocks", &twin.text);
    }
    let own = "\n.shared .align 16 .b8 tile[40];\n.extern .shared .align 1024 .b8 rest[];\n.visible .entry k(.param .u64 a) {\n\
               .reg .b32 %r; .reg .pred %p; mov.u32 %r, %tid.x; setp.gt.u32 %p, %r, 5; st.shared.b32 [rest], %r;\n\
               @%p exit; bar.warp.sync 63; st.shared.b32 [tile], %r; ret; }\n";
    let own = FIRST.lines().take_while(|it| !it.starts_with(".visible")).collect::<Vec<_>>().join("\n") + own;
    assemble_text("shared", &twin(handlers(), &own, "k").unwrap().unwrap().text);
    let twin = twin(vec![counting(DeviceEvent::BlockEnd, device::SMID)], ENDS_ELSEWHERE, "k").unwrap().unwrap();
    assemble_text("elsewhere", &twin.text);
}

/// Its clusters stay, and each block has its own word for its end.
#[test]
fn a_kernel_in_clusters_has_handlers_in_all_places() {
    for (kernel, kept) in
        [("ring", ".explicitcluster\n.reqnctapercluster 4, 1, 1\n"), ("windows", ".maxclusterrank 16\n")]
    {
        let handlers = [
            (DeviceEvent::BlockBegin, device::SMID),
            (DeviceEvent::Entry, device::BLOCK),
            (DeviceEvent::Memory, device::ADDRESS),
            (DeviceEvent::Memory, device::CONFLICTS),
            (DeviceEvent::Memory, device::SECTORS),
            (DeviceEvent::Barrier, device::LANEID),
            (DeviceEvent::Exit, device::THREAD),
            (DeviceEvent::BlockEnd, device::TIME),
        ];
        let handlers = handlers.map(|(place, word)| counting(place, word)).into();
        let twin = twin(handlers, CLUSTERS, kernel).unwrap().unwrap();
        assert!(twin.text.contains(kept), "{}", twin.text);
        assemble_text(kernel, &twin.text);
    }
}

#[test]
fn an_image_that_is_no_ptx_is_an_error() {
    let handlers = vec![counting(DeviceEvent::Entry, device::SMID)];
    assert!(matches!(twin(handlers, "int main() {}", "main"), Err(NoTwin::Parse(_))));
}

#[test]
fn handlers_are_compiled_for_what_the_module_is() {
    let handlers = || vec![counting(DeviceEvent::Exit, device::SMID)];
    let old = FIRST.replace(".target sm_90a", ".target sm_52");
    assert!(matches!(twin(handlers(), &old, "second"), Err(NoTwin::TooOld { target }) if target == "sm_52"));
    let older_text = FIRST.replace(".version 9.0", ".version 6.5");
    assert!(matches!(twin(handlers(), &older_text, "second"), Err(NoTwin::TooOld { .. })));
    let turing = FIRST.replace(".target sm_90a", ".target sm_75");
    assert!(twin(handlers(), &turing, "second").unwrap().is_some());
}

/// Kernels whose threads end in a function.
const ENDS_ELSEWHERE: &str = ".version 8.0\n.target sm_90\n.address_size 64\n.func leave() { exit; }\n\
                              .visible .entry k() { call.uni leave, (); ret; }\n\
                              .visible .entry l() { call.uni leave, (); ret; }\n";

#[test]
fn a_function_has_the_handlers_of_its_only_kernel() {
    let exit = vec![counting(DeviceEvent::Exit, device::KERNEL)];
    let twin = twin(exit, ENDS_ELSEWHERE, "k").unwrap().unwrap();
    let code = twin.text;
    let leave = code.split("leave()").nth(1).and_then(|it| it.split(".entry").next()).unwrap();
    assert!(leave.contains("[xpt_device]"), "{leave}");
}

/// Functions that kernels share: `a` and `b` call `outer`, which calls `inner`; `c` and `d` call `inner`; `e` calls none.
const SHARED: &str = ".version 8.0\n.target sm_90\n.address_size 64\n\
    .func (.param .b32 r) inner(.param .b64 p);\n.func outer(.param .b64 p);\n\
    .func (.param .b32 r) inner(.param .b64 p) { .reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [p];\n\
    ld.u32 %v, [%a]; st.param.b32 [r], %v; ret; }\n\
    .func outer(.param .b64 p) { .reg .b64 %a; .reg .b32 %v; ld.param.u64 %a, [p]; st.u32 [%a], 1;\n\
    { .param .b64 q; st.param.b64 [q], %a; .param .b32 got; call.uni (got), inner, (q); ld.param.b32 %v, [got]; } ret; }\n";

fn shared() -> String {
    let kernel = |(name, call): (&str, &str)| {
        format!(
            ".visible .entry {name}(.param .u64 p) {{ .reg .b64 %a; ld.param.u64 %a, [p];\n\
             {{ .param .b64 q; st.param.b64 [q], %a; .param .b32 got; {call} }} ret; }}\n"
        )
    };
    let (outer, inner) = ("call.uni outer, (q);", "call.uni (got), inner, (q);");
    let kernels = [("a", outer), ("b", outer), ("c", inner), ("d", inner), ("e", "")];
    SHARED.to_owned() + &kernels.map(kernel).concat()
}

#[test]
fn kernels_that_differ_in_a_function_have_a_copy_each() {
    let ImageTwins { texts, refused } = of_all(vec![counting(DeviceEvent::Memory, device::KERNEL)], &shared());
    assert!(refused.is_empty(), "{refused:?}");
    let [twin] = &texts[..] else { panic!("{texts:?}") };
    assert_eq!(twin.kernels, ["a", "b", "c", "d", "e"]);
    golden("shared.ptx", twin);
}

#[test]
fn a_function_is_copied_only_for_kernels_that_call_it_and_differ_there() {
    let copies = |handlers: Vec<Handler>, wanted: &dyn Fn(&str) -> Vec<usize>| {
        let mut wanted = |it: &str| Some(Wanted { handlers: wanted(it) }).filter(|it| !it.handlers.is_empty());
        let made = maker(handlers).twins(&image(&shared()), H100, &mut wanted).unwrap();
        assert!(made.refused.is_empty(), "{:?}", made.refused);
        made.texts.iter().for_each(|it| assemble_text("copies", &it.text));
        let of = |function: &str| made.texts[0].text.matches(&format!("{function}$xpt")).count();
        [of("outer"), of("inner")].map(|it| it > 0)
    };
    let memory = || vec![counting(DeviceEvent::Memory, device::KERNEL), counting(DeviceEvent::Memory, device::SMID)];
    assert_eq!(copies(memory(), &|_| vec![1]), [false, false], "the same in all");
    assert_eq!(copies(memory(), &|it| if matches!(it, "a" | "e") { vec![0] } else { vec![] }), [false, false]);
    assert_eq!(copies(memory(), &|it| if matches!(it, "c" | "d") { vec![0] } else { vec![] }), [false, true]);
    assert_eq!(copies(memory(), &|it| if matches!(it, "a" | "b") { vec![1] } else { vec![0, 1] }), [false, true]);
    let exits = vec![counting(DeviceEvent::Exit, device::KERNEL)];
    assert_eq!(copies(exits, &|_| vec![0]), [false, false], "no thread ends in a function");
    let both = of_all(vec![counting(DeviceEvent::Exit, device::KERNEL)], ENDS_ELSEWHERE);
    assert!(both.texts[0].text.contains("leave$xpt1"), "{}", both.texts[0].text);
}

#[test]
fn kernels_that_would_need_too_many_copies_have_no_twin() {
    let kernel = |n: usize| format!(".visible .entry k{n:03}() {{ call.uni leave, (); ret; }}\n");
    let text = ENDS_ELSEWHERE.to_owned() + &(0..600).map(kernel).collect::<String>();
    let made = of_all(vec![counting(DeviceEvent::Exit, device::KERNEL)], &text);
    assert_eq!((made.texts[0].kernels.len(), made.refused.len()), (513, 89));
    assert!(made.refused.values().all(|it| matches!(it, NoTwin::Copies)));
    assert!(made.refused.contains_key("l"), "those that come last");
}

#[test]
fn a_kernel_without_a_twin_takes_none_from_others() {
    let by_address = ".visible .entry indirect(.param .u64 p) { .reg .b64 %a; ld.param.u64 %a, [p];\n\
                      proto: .callprototype _ ();\ncall.uni %a, (), proto; ret; }\n\
                      .visible .entry k$xpt() { ret; }\n";
    let text = ENDS_ELSEWHERE.to_owned() + by_address;
    let made = of_all(vec![counting(DeviceEvent::Exit, device::KERNEL)], &text);
    let refused: Vec<String> = made.refused.iter().map(|it| format!("{}: {}", it.0, it.1)).collect();
    let expected = "indirect: it can't be copied faithfully: `indirect` calls a function by its address, which may be one of the \
                    original's";
    assert_eq!(made.texts.iter().map(|it| &it.kernels[..]).collect::<Vec<_>>(), [["k$xpt", "l"]]);
    assert_eq!(refused, [expected, "k: naming the twin"]);
}

#[test]
fn a_kernel_that_may_run_itself_again_is_alone_and_has_its_original_beside_it() {
    let deep = ".func deep() { call.uni deeper, (); ret; }\n.func deeper() { call.uni deep, (); ret; }\n\
                .visible .entry down() { call.uni deep, (); ret; }\n";
    let text = ENDS_ELSEWHERE.to_owned() + ".func deeper();\n" + deep;
    let made = of_all(vec![counting(DeviceEvent::Exit, device::SMID)], &text);
    let [down, others] = &made.texts[..] else { panic!("{made:?}") };
    assert_eq!((&down.kernels[..], others.kernels.len()), (&["down".to_owned()][..], 2));
    assert_eq!(others.recursive_original, None);
    let original = down.recursive_original.as_ref().unwrap();
    assert!(original.contains(".entry down") && !original.contains("xpt") && !original.contains("leave"), "{original}");
}

#[test]
fn what_is_known_of_accesses_and_barriers_and_parameters() {
    let at = |place, words: &[usize]| words.iter().map(|it| counting(place, *it)).collect::<Vec<_>>();
    let of_access = [device::ADDRESS, device::BYTES, device::ACCESS, device::SPACE, device::LINE, device::IS_LEADER];
    let mut handlers = at(DeviceEvent::Memory, &of_access);
    handlers.extend(at(DeviceEvent::Memory, &[device::ACTIVE, device::SECTORS]));
    handlers.extend(at(DeviceEvent::Memory, &[device::HAS_CONFLICTS, device::CONFLICTS]));
    handlers.extend(at(DeviceEvent::Barrier, &[device::THREAD]));
    handlers.extend(at(DeviceEvent::Entry, &[device::ARGUMENTS, device::ARGUMENTS + 1, device::ARGUMENTS + 31]));
    golden("accesses.ptx", &twin(handlers, FIRST, "second").unwrap().unwrap());
}

#[test]
fn functions_that_are_called_are_known_by_their_names() {
    let handlers =
        || [device::CALLEE, device::HAS_CALLEE, device::LINE].map(|it| counting(DeviceEvent::Call, it)).into();
    let twin = twin(handlers(), FIRST, "first").unwrap().unwrap();
    assert_eq!(twin.names, ["first", "_Z5weighf", "vprintf"]);
    golden("calls.ptx", &twin);
    assert_eq!(self::twin(handlers(), FIRST, "second").unwrap().unwrap().names, [""; 0], "it calls none");
    let exit = vec![counting(DeviceEvent::Exit, device::KERNEL)];
    assert_eq!(self::twin(exit, FIRST, "first").unwrap().unwrap().names, ["first"], "nothing is done at its calls");
}

/// Where kernels have copies of functions, since handlers there read the kernels' names, both calls are ones of the original.
#[test]
fn a_copy_of_a_function_is_called_what_the_function_is_called() {
    let handlers = vec![counting(DeviceEvent::Call, device::CALLEE), counting(DeviceEvent::Memory, device::KERNEL)];
    let made = of_all(handlers, &shared());
    let [twin] = &made.texts[..] else { panic!("{made:?}") };
    assert_eq!(twin.names, ["a", "b", "c", "d", "e", "inner", "outer"]);
    assert!(twin.text.contains("inner$xpt3") && twin.text.contains("outer$xpt1"), "{}", twin.text);
    let reads = |n: usize| twin.text.matches(&format!("[xpt_names+{}]", 8 * n)).count();
    // From `c`, `d` and the two copies of `outer`; from `a` and `b`.
    assert_eq!([reads(5), reads(6)], [4, 2]);
    assemble_text("copies-called", &twin.text);
}

#[test]
fn what_calls_add_to_one_element_is_kept_unless_its_key_is_the_function() {
    let text = |handler| twin(vec![handler], FIRST, "first").unwrap().unwrap().text;
    let kept = text(summing(DeviceEvent::Call));
    assert!(kept.contains("%xpt_sum0"), "{kept}");
    assemble_text("kept-calls", &kept);
    assert!(!text(counting(DeviceEvent::Call, device::CALLEE)).contains("%xpt_sum"));
}

#[test]
fn small_structures_are_parameters_too() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .align 4 .b8 pair[8], \
                .param .align 1 .b8 odd[3], .param .align 2 .b8 six[6], .param .align 8 .b8 wide[16], \
                .param .u64 .ptr .global .align 1 p, .param .align 8 .b8 whole[8]) { ret; }\n";
    let handlers = (0..6).map(|it| counting(DeviceEvent::Entry, device::ARGUMENTS + 2 * it + 1)).collect();
    golden("structures.ptx", &of_all(handlers, text).texts[0]);
}

#[test]
fn what_accesses_add_to_one_element_is_kept_until_the_thread_ends() {
    let handlers =
        vec![summing(DeviceEvent::Memory), summing(DeviceEvent::Exit), counting(DeviceEvent::Memory, device::THREAD)];
    golden("kept.ptx", &twin(handlers, FIRST, "second").unwrap().unwrap());
}

#[test]
fn what_another_handler_reads_is_not_kept() {
    let text = |handlers| twin(handlers, FIRST, "second").unwrap().unwrap().text;
    assert!(text(vec![summing(DeviceEvent::Memory)]).contains("%xpt_sum0"));
    assert!(!text(vec![summing(DeviceEvent::Memory), reading(DeviceEvent::Exit)]).contains("%xpt_sum"));
    assert!(!text(vec![summing(DeviceEvent::Exit)]).contains("%xpt_sum"), "it runs once a thread");
}

#[test]
fn patches_have_a_function_for_each_place_that_has_handlers() {
    let of_access = [
        device::ADDRESS,
        device::BYTES,
        device::ACCESS,
        device::SPACE,
        device::LINE,
        device::HAS_CONFLICTS,
        device::CONFLICTS,
        device::ARGUMENTS + 1,
        device::ARGUMENTS + 30,
    ];
    let mut handlers: Vec<_> = of_access.iter().map(|it| counting(DeviceEvent::Memory, *it)).collect();
    for word in [device::TIME, device::PID, device::KERNEL, device::IS_LEADER, device::ACTIVE, device::LAUNCH] {
        handlers.push(counting(DeviceEvent::Entry, word));
    }
    handlers.extend([counting(DeviceEvent::Exit, device::SMID), counting(DeviceEvent::Barrier, device::THREAD)]);
    handlers.extend([counting(DeviceEvent::Call, device::CALLEE), counting(DeviceEvent::Call, device::HAS_CALLEE)]);
    let maker = maker(handlers);
    let read = |handlers: &[usize]| maker.arguments_of(&Wanted { handlers: handlers.into() });
    assert_eq!((maker.reads_arguments(), read(&[0, 7, 8]), read(&[9])), (true, 1 | 1 << 15, 0));
    let patches = maker.patches(90, false).unwrap();
    assert_eq!(patches.points, PatchPoint::ALL);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/patches.ptx");
    xputrace_golden::assert(&path, &patches.text);
    assemble(&path, &["--compile-as-tools-patch"]);
}

#[test]
fn patches_take_times_at_entries_and_exits_whatever_handlers_there_are() {
    let patches = maker(vec![counting(DeviceEvent::Exit, device::SMID)]).patches(90, true).unwrap();
    assert_eq!(patches.points, [PatchPoint::Entry, PatchPoint::Exit]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/times.ptx");
    xputrace_golden::assert(&path, &patches.text);
    assemble(&path, &["--compile-as-tools-patch"]);
}

#[test]
fn programs_are_kernels_of_their_own() {
    let by_thread = handler(DeviceEvent::Entry, "count", |asm| {
        for (at, argument) in [Reg::R1, Reg::R2, Reg::R3].into_iter().enumerate() {
            asm.mov(argument, Reg::FP);
            asm.alu_imm(Alu::Add, argument, -8 * (at as i32 + 1));
        }
        asm.call(helper::GET_THREAD_IDX);
        asm.ldx(Size::Dw, Reg::R6, Reg::FP, -8);
        asm.stx(Size::W, Reg::FP, -28, Reg::R6);
        add_one(asm, BpfMapId(0), -28);
    });
    let maker = maker_of(Origin::Object { allows_exit: false }, vec![by_thread, summing(DeviceEvent::Entry)]);
    let kernel = |handler, symbol: &str, block| ProgramKernel { handler, symbol: symbol.into(), block };
    let kernels = [kernel(0, "by_thread", [8, 8, 2]), kernel(1, "sum", [1; 3]), kernel(1, "too_large", [1025, 1, 1])];
    let programs = maker.programs(&kernels, 90).unwrap();
    assert_eq!(programs.target, "sm_90");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/programs.ptx");
    xputrace_golden::assert(&path, &programs.text);
    assemble(&path, &[]);
    assert_eq!(maker.programs(&kernels, 0).unwrap().target, "sm_70", "of a GPU that is not known");
}

#[test]
fn lines_are_those_of_the_source() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.file 1 \"a.cu\"\n.visible .entry k() {\n\
                .loc 1 5 1\nmembar.cta;\n.loc 1 6 1\nmembar.gl;\n.loc 1 6 9\nmembar.sys;\nret;\n}\n";
    let handlers = || vec![counting(DeviceEvent::Line, device::LINE)];
    let code = twin(handlers(), text, "k").unwrap().unwrap().text;
    assert_eq!(code.matches("[xpt_device]").count(), 2, "{code}");
    let without = text.replace(".loc", "// ");
    assert!(matches!(twin(handlers(), &without, "k"), Err(NoTwin::NoLines)));
}

#[test]
fn reads_of_the_addresses_of_variables_are_no_accesses() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .u32 counter;\n\
                .visible .entry k() { .reg .b32 %r; ld.global.u32 %r, [counter]; ret; }\n";
    let twin = twin(vec![counting(DeviceEvent::Memory, device::SPACE)], text, "k").unwrap().unwrap();
    assert_eq!(twin.variables, ["counter"]);
    let code = twin.text;
    assert_eq!(code.matches("[xpt_device]").count(), 1, "{code}");
}

#[test]
fn conflicts_are_those_of_shared_memory() {
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p) { .reg .b32 %r<5>; .reg .b64 %a;\n\
                .shared .align 16 .b8 tile[64];\nld.param.u64 %a, [p];\nST; ret; }\n";
    let handlers =
        || vec![counting(DeviceEvent::Memory, device::CONFLICTS), counting(DeviceEvent::Memory, device::HAS_CONFLICTS)];
    let twin = |access: &str| twin(handlers(), &text.replace("ST", access), "k").unwrap().unwrap().text;
    for access in
        ["st.shared.u8 [tile], 1", "ld.volatile.shared.v4.u32 {%r1, %r2, %r3, %r4}, [tile]", "ld.u32 %r1, [%a]"]
    {
        let twin = twin(access);
        assert!(twin.contains("%of_group"), "{access}");
        assemble_text("conflicts", &twin);
    }
    for access in [
        "atom.shared.add.u32 %r1, [tile], 1",
        "ld.shared::cluster.u32 %r1, [tile]",
        "ld.global.u32 %r1, [%a]",
        "cp.async.ca.shared.global [tile], [%a], 16",
    ] {
        assert!(!twin(access).contains("%of_group"), "{access}");
    }
}

#[test]
fn scripts_know_every_space_of_an_access() {
    use xputrace_ptx::Space;
    let all = [Space::Generic, Space::Global, Space::Shared, Space::Local, Space::Const];
    assert_eq!(all.map(Space::name), device::SPACES);
}
