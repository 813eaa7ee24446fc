//! Recordings: they restore what was written, report damage, and run scripts.

#[path = "../../pipeline/tests/common/mod.rs"]
mod common;

use common::*;
use proptest::prelude::*;
use std::sync::Arc;
use xputrace_bytecode::insn::{Reg, Size};
use xputrace_bytecode::probe::PidNamespace;
use xputrace_bytecode::targets::{self, leave_out_others};
use xputrace_bytecode::vm::{Engine, Env};
use xputrace_bytecode::{Assembler, BpfMapId, Home, ProgramId, ProgramKind, helper};
use xputrace_model::catalog::{Catalog, TracepointFormat};
use xputrace_model::context::word;
use xputrace_model::gpu::GpuKind;
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::plan::{Activity, Call, Demand, Detail, Details, DeviceEvent, Place, Plan, ProbeScope};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_model::table::{Cell, Scalar, TableKind, Value};
use xputrace_pipeline::Pipeline;
use xputrace_recording::{
    EXEC_ID_OFFSET, FrameInfo, Hit, Meta, ProbeInfo, RecordingEntry, RecordingError, RecordingReader, RecordingWriter,
    UserString, hits,
};
use xputrace_replay::{ReplayError, ReplayOutcome, ReplaySink, open};
use xputrace_wire::events::Realtime;
use xputrace_wire::record::{Kernel, Launch};
use xputrace_wire::region::CallTotals;
use xputrace_wire::totals::CollectorTotals;

impl ReplaySink for Recorder {}

fn meta() -> Meta {
    Meta {
        command: vec!["./app".into()],
        tells_losses: true,
        probes: vec![ProbeInfo { name: "uprobe:app:f".into(), ..Default::default() }],
        ..Default::default()
    }
}

fn hit(time_nanos: u64, arg0: u64) -> Hit {
    let mut context = vec![0; 168];
    context[112..120].copy_from_slice(&arg0.to_le_bytes());
    Hit {
        time_nanos,
        pid: 100,
        tid: 7,
        comm: *b"app\0\0\0\0\0\0\0\0\0\0\0\0\0",
        ustack: StackKey::LinuxUser { pid: 100, exec: 3, id: 5 }.to_word(),
        context,
        strings: vec![UserString { address: 0x1000, text: b"text".to_vec() }],
        ..Default::default()
    }
}

fn entries() -> Vec<RecordingEntry> {
    let stack = StackKey::LinuxUser { pid: 100, exec: 3, id: 5 };
    let frame = FrameInfo { function: "main".into(), module: "app".into(), offset: 4 };
    let launches = Ring::default().names().launch(launch(1, 1_000)).launch(launch(2, 3_000));
    let activity =
        Ring::default().clock(1).kernel(kernel(1, 1_100, 1_200)).kernel(kernel(2, 3_100, 3_300)).flush(4_000);
    vec![
        RecordingEntry::ProcessStart {
            process: 0,
            pid: 100,
            pid_in_target: 0,
            comm: "app".into(),
            generation: 1,
            time_nanos: 1,
            gpu: GpuKind::Software,
        },
        RecordingEntry::Hit(hit(500, 42)),
        RecordingEntry::Hit(hit(2_000, 43)),
        RecordingEntry::Wire { process: 0, time_nanos: 4_100, rings: vec![launches.0, vec![], activity.0] },
        RecordingEntry::ProcessEnd {
            process: 0,
            time_nanos: 5_000,
            totals: CollectorTotals::default()
                .with_call(Call::Kernel, CallTotals { made: 2, ..CallTotals::default() })
                .with_activity(Activity::Kernel, 2, 300)
                .into(),
        },
        RecordingEntry::Symbols(vec![(stack, vec![frame])]),
        RecordingEntry::Losses(losses()),
    ]
}

/// Returns losses of the CPU probes of [`entries`].
fn losses() -> Losses {
    let mut losses = Losses::default();
    [(Loss::LinuxRingFull, 3), (Loss::LinuxStack, 2)].into_iter().for_each(|(loss, n)| losses.add(loss, n));
    losses
}

fn replay(plan: Plan, reader: RecordingReader) -> Result<(Pipeline, ReplayOutcome), ReplayError> {
    let (mut pipeline, opened) = open(Arc::new(plan), reader, demangle)?;
    let outcome = opened.run(&mut pipeline, &mut Recorder::default());
    Ok((pipeline, outcome))
}

fn written(entries: &[RecordingEntry]) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), &meta()).unwrap();
    entries.iter().for_each(|it| writer.write(it.clone()).unwrap());
    writer.finish().unwrap()
}

#[test]
fn what_is_written_comes_back() {
    let mut reader = RecordingReader::new(written(&entries())).unwrap();
    assert_eq!(reader.meta(), &meta());
    assert_eq!((&mut reader).collect::<Vec<_>>(), entries());
    assert_eq!(reader.damage(), None);
}

#[test]
fn a_file_cut_anywhere_yields_its_beginning_and_says_so() {
    let (whole, entries) = (written(&entries()), entries());
    let mut most = 0;
    for len in 0..whole.len() {
        let Ok(mut reader) = RecordingReader::new(whole[..len].to_vec()) else { continue };
        let read: Vec<RecordingEntry> = (&mut reader).collect();
        assert_eq!(read, entries[..read.len()], "cut at {len}");
        let damage = reader.damage().unwrap();
        assert!(damage.cut && damage.offset <= len && damage.blocks <= 1, "{damage:?}");
        assert!(read.len() >= most);
        most = read.len();
    }
    assert_eq!(most, entries.len(), "only the end mark is missing at last");
}

#[test]
fn a_damaged_block_is_skipped_and_the_others_are_read() {
    let whole = written(&entries());
    let blocks: Vec<usize> = (0..whole.len()).filter(|at| whole[*at..].starts_with(b"XBLK")).collect();
    for (n, at) in blocks.iter().enumerate() {
        for distance in [0, 8, 33] {
            let mut bytes = whole.clone();
            let Some(byte) = bytes.get_mut(at + distance) else { continue };
            *byte ^= 0x55;
            let mut reader = RecordingReader::new(bytes).unwrap();
            let read = (&mut reader).count();
            let damage = reader.damage().unwrap();
            assert_eq!((damage.offset, damage.blocks), (*at, 1), "block {n} at {distance}");
            assert!(read >= entries().len() - 2, "{read}");
        }
    }
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(RecordingReader::new(b"ELF".to_vec()), Err(RecordingError::NotARecording)));
    let mut bytes = written(&[]);
    bytes[8] = 9;
    assert!(matches!(RecordingReader::new(bytes), Err(RecordingError::Version(9))));
}

/// `uprobe("app:f", |e| @seen[e.tid] = e.arg0)` or `launch(|l| l.tag = @seen[l.tid])`,
/// `kernel(|k| @time[k.launch.tag].sum(k.duration))`.
fn tagging_plan() -> Plan {
    let mut plan = kernel_plan();
    plan.image.maps[0] = hash("by_tag", 16, Home::Tracer);
    plan.image.programs[0] =
        add_to_map("by_tag", BpfMapId(0), &[word::LAUNCH_TAGGED, word::LAUNCH_TAG], Some(word::DURATION));
    let mut tag = key(Scalar::Int);
    tag.optional = true;
    plan.tables = vec![table("@time", vec![tag], TableKind::Sum, BpfMapId(0))];
    plan.image.maps.push(hash("seen", 8, Home::Linux));
    let mut tags = hash("tags", 4, Home::Linux);
    let slots = xputrace_bytecode::MapSpec {
        kind: xputrace_bytecode::MapKind::Array,
        key_size: 4,
        value_size: 16,
        max_entries: xputrace_model::plan::TAG_SLOTS,
        ..hash("slots", 4, Home::Linux)
    };
    tags.kind = xputrace_bytecode::MapKind::HashOfMaps;
    tags.value_size = 4;
    tags.inner = Some(Box::new(slots));
    plan.image.maps.push(tags);
    plan.tags = Some(BpfMapId(2));
    plan.image.programs.push(store_argument());
    plan.image.programs.push(tag_from_map());
    plan.probes.truncate(1);
    let mut f = probe(Event::Uprobe, Place::Linux, Some(ProgramId(1)));
    f.name = "uprobe:app:f".into();
    plan.probes.push(f);
    plan.probes.push(probe(Event::Launch, Place::Linux, Some(ProgramId(2))));
    plan.demand = Demand { details: Details::of(&[Detail::Marker]), ..plan.demand };
    plan
}

/// `@seen[tid] = arg0`.
fn store_argument() -> xputrace_bytecode::Program {
    let mut asm = Assembler::new();
    asm.ldx(Size::Dw, Reg::R2, Reg::R1, 112);
    asm.stx(Size::Dw, Reg::FP, -16, Reg::R2);
    store_in_seen(asm)
}

/// Completes a program that stores the word at -16 to `@seen`.
fn store_in_seen(mut asm: Assembler) -> xputrace_bytecode::Program {
    tid_at_8(&mut asm);
    asm.ld_map(Reg::R1, BpfMapId(1));
    pointer(&mut asm, Reg::R2, -8);
    pointer(&mut asm, Reg::R3, -16);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    program("store", ProgramKind::Uprobe, asm)
}

/// `@seen[tid]` = the exec generation of the process that was hit.
fn store_exec() -> xputrace_bytecode::Program {
    let mut asm = Assembler::new();
    asm.call(helper::GET_CURRENT_TASK);
    asm.mov(Reg::R3, Reg::R0);
    asm.alu_imm(xputrace_bytecode::insn::Alu::Add, Reg::R3, EXEC_ID_OFFSET as i32);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    pointer(&mut asm, Reg::R1, -16);
    asm.mov_imm(Reg::R2, 4);
    asm.call(helper::PROBE_READ_KERNEL);
    store_in_seen(asm)
}

/// `slot = { 1, @seen[tid] }`; the second argument is the slot's number.
fn tag_from_map() -> xputrace_bytecode::Program {
    use xputrace_bytecode::insn::Cond;
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.ldx(Size::Dw, Reg::R6, Reg::R1, 104);
    tid_at_8(&mut asm);
    asm.ld_map(Reg::R1, BpfMapId(1));
    pointer(&mut asm, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.ldx(Size::Dw, Reg::R7, Reg::R0, 0);
    asm.st_imm(Size::W, Reg::FP, -12, 100);
    asm.ld_map(Reg::R1, BpfMapId(2));
    pointer(&mut asm, Reg::R2, -12);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.stx(Size::W, Reg::FP, -12, Reg::R6);
    asm.mov(Reg::R1, Reg::R0);
    pointer(&mut asm, Reg::R2, -12);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.st_imm(Size::Dw, Reg::R0, 0, 1);
    asm.stx(Size::Dw, Reg::R0, 8, Reg::R7);
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    program("tag", ProgramKind::Uprobe, asm)
}

fn tid_at_8(asm: &mut Assembler) {
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.alu32(xputrace_bytecode::insn::Alu::Mov, Reg::R0, Reg::R0);
    asm.stx(Size::Dw, Reg::FP, -8, Reg::R0);
}

fn pointer(asm: &mut Assembler, to: Reg, offset: i32) {
    asm.mov(to, Reg::FP);
    asm.alu_imm(xputrace_bytecode::insn::Alu::Add, to, offset);
}

#[test]
fn tags_come_from_the_probe_that_was_hit_before_the_launch() {
    let reader = RecordingReader::new(written(&entries())).unwrap();
    let (mut pipeline, _) = replay(tagging_plan(), reader).unwrap_or_else(|it| panic!("{it}"));
    let row = |tag, nanos| (vec![Value::Int(tag)], Cell::Number(nanos));
    assert_eq!(rows(&mut pipeline, 0, false), [row(42, 100), row(43, 200)]);
    assert_eq!(pipeline.state().faults(), []);
}

#[test]
fn names_of_frames_are_there_before_anything_is_handled() {
    let reader = RecordingReader::new(written(&entries())).unwrap();
    let (_, mut opened) = open(Arc::new(tagging_plan()), reader, demangle).unwrap_or_else(|it| panic!("{it}"));
    let stack = StackKey::LinuxUser { pid: 100, exec: 3, id: 5 };
    assert_eq!(opened.drain_frames()[&stack][0].function, "main");
}

#[test]
fn a_program_over_a_hit_finds_the_exec_generation_of_its_process() {
    let mut plan = tagging_plan();
    plan.image.programs[1] = store_exec();
    let (mut pipeline, _) = replay(plan, RecordingReader::new(written(&entries())).unwrap()).unwrap();
    assert_eq!(rows(&mut pipeline, 0, false), [(vec![Value::Int(3)], Cell::Number(300))]);
}

#[test]
fn what_was_lost_while_recording_is_told() {
    let (_, outcome) = replay(tagging_plan(), RecordingReader::new(written(&entries())).unwrap()).unwrap();
    assert_eq!((outcome.losses.of(Loss::LinuxRingFull), outcome.losses.of(Loss::LinuxStack)), (3, 0));
}

#[test]
fn the_software_gpu_is_known_whatever_came_first() {
    let is_software = |entries: &[RecordingEntry]| {
        let reader = RecordingReader::new(written(entries)).unwrap();
        open(Arc::new(tagging_plan()), reader, demangle).unwrap().1.is_of_software_gpu()
    };
    let mut entries = entries();
    let start = entries.remove(0);
    assert!(!is_software(&entries));
    entries.insert(2, start);
    assert!(is_software(&entries), "hits came before the first process");
}

#[test]
fn a_probe_that_was_not_recorded_is_an_error_that_lists_those_that_were() {
    let mut plan = tagging_plan();
    plan.probes[1].name = "uprobe:app:g".into();
    let reader = RecordingReader::new(written(&entries())).unwrap();
    let error = replay(plan, reader).err().unwrap();
    let error = error.to_string();
    assert!(error.starts_with("the recording has no hits of uprobe:app:g; it has uprobe:app:f. Record "), "{error}");
}

#[test]
fn a_probe_that_was_recorded_in_another_scope_is_an_error_that_says_so() {
    let replay_in = |recorded: Option<bool>, scope: ProbeScope| {
        let mut meta = meta();
        meta.probes[0].everywhere = recorded;
        let mut plan = tagging_plan();
        plan.probes[1].scope = scope;
        let writer = RecordingWriter::new(Vec::new(), &meta).unwrap();
        replay(plan, RecordingReader::new(writer.finish().unwrap()).unwrap()).err().map(|it| it.to_string())
    };
    for scope in [ProbeScope::Tree, ProbeScope::Process, ProbeScope::System] {
        assert_eq!(replay_in(None, scope), None, "a recording that does not say it");
        assert_eq!(replay_in(Some(scope == ProbeScope::System), scope), None);
    }
    let error = replay_in(Some(false), ProbeScope::System).unwrap();
    assert!(error.contains("uprobe:app:f in all processes, but the recording has those in the traced"), "{error}");
    let error = replay_in(Some(true), ProbeScope::Tree).unwrap();
    assert!(
        error.contains("uprobe:app:f in the traced processes alone, but the recording has those in all"),
        "{error}"
    );
}

/// Counts the hits of targets, in map 1 under key 0.
fn count_targets(targets: usize) -> xputrace_bytecode::Program {
    let mut asm = Assembler::new();
    let out = asm.label();
    leave_out_others(&mut asm, BpfMapId::at(targets), -8, Reg::R1, &[], out);
    asm.st_imm(Size::Dw, Reg::FP, -8, 0);
    asm.ld_map(Reg::R1, BpfMapId(1));
    pointer(&mut asm, Reg::R2, -8);
    asm.mov_imm(Reg::R3, 1);
    asm.mov_imm(Reg::R4, xputrace_bytecode::insn::atomic::ADD.into());
    asm.call(helper::MAP_MODIFY);
    asm.place(out);
    asm.mov_imm(Reg::R0, 0);
    asm.exit();
    program("count", ProgramKind::Uprobe, asm)
}

#[test]
fn hits_of_all_threads_are_replayed() {
    const THREADS: [u32; 4] = [1, 1000, 1001, targets::THREAD_IDS - 1];
    let mut plan = tagging_plan();
    plan.image.maps.push(targets::map("targets"));
    plan.targets = Some(BpfMapId::at(plan.image.maps.len() - 1));
    plan.image.programs[1] = count_targets(plan.image.maps.len() - 1);
    plan.tables = vec![table("@hits", vec![key(Scalar::Int)], TableKind::Count, BpfMapId(1))];
    let hits = THREADS.map(|tid| RecordingEntry::Hit(Hit { tid, ..hit(500, 42) }));
    let (mut pipeline, _) = replay(plan, RecordingReader::new(written(&hits)).unwrap()).unwrap();
    assert_eq!(rows(&mut pipeline, 0, false), [(vec![Value::Int(0)], Cell::Number(THREADS.len() as i64))]);
}

#[test]
fn ninety_thousand_launches_and_kernels_are_small() {
    let mut writer = RecordingWriter::new(Vec::new(), &meta()).unwrap();
    let mut noise = 88_172_645_463_325_252u64;
    let mut random = |below: u64| {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise % below
    };
    let (mut now, mut gpu, mut id) = (1_000_000u64, 1_000_000u64, 1u32);
    for drain in 0..90u64 {
        let (mut launches, mut activity) = (Ring::default(), Ring::default().clock(now));
        for n in 0..1_000u32 {
            now += 6_000 + random(1_500);
            id += 1 + u32::from(n % 5 == 0);
            let shape = n % 13;
            let end = now + 3_000 + random(800);
            let grid = [128 * (1 + shape), 1, 1];
            launches = launches.launch(Launch {
                end,
                symbol: 1 + shape,
                stack: 10 + shape,
                grid,
                block: [256, 1, 1],
                ..launch(id, now)
            });
            gpu = gpu.max(now + 2_000) + 1_000 + random(300);
            let end = gpu + 2_000 + 1_000 * u64::from(shape) + random(256) * 32;
            activity = activity.kernel(Kernel {
                symbol: 1 + shape,
                grid,
                block: [256, 1, 1],
                registers: 32 + shape,
                ..kernel(id, gpu, end)
            });
            gpu = end;
        }
        let rings = vec![launches.0, activity.0];
        writer.write(RecordingEntry::Wire { process: 0, time_nanos: drain, rings }).unwrap();
    }
    let bytes = writer.finish().unwrap();
    println!("{} bytes for 90,000 launches and kernels", bytes.len());
    assert!(bytes.len() <= 1_500_000, "{} bytes", bytes.len());
    assert_eq!(RecordingReader::new(bytes).unwrap().count(), 90);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<usize>(), keep in any::<bool>()) {
        let mut file = written(&entries());
        if keep {
            let at = at % file.len();
            let end = (at + bytes.len()).min(file.len());
            let n = end - at;
            file[at..end].copy_from_slice(&bytes[..n]);
        } else {
            file.splice(at % file.len().., bytes);
        }
        if let Ok(mut reader) = RecordingReader::new(file) {
            let _ = (&mut reader).count();
            let _ = reader.damage();
        }
    }

    #[test]
    fn damaged_recordings_are_replayed_as_far_as_they_go(at in any::<usize>(), value in any::<u8>()) {
        let mut file = written(&entries());
        let at = at % file.len();
        file[at] = value;
        if let Ok(reader) = RecordingReader::new(file) {
            let _ = replay(tagging_plan(), reader);
        }
    }

    #[test]
    fn any_entries_are_replayed(entries in proptest::collection::vec(any_entry(), 0..12)) {
        let reader = RecordingReader::new(written(&entries)).unwrap();
        let (pipeline, _) = replay(tagging_plan(), reader).unwrap_or_else(|it| panic!("{it}"));
        for call in Call::ALL {
            let balance = pipeline.account().call(*call).to_owned();
            prop_assert_eq!(balance.made, balance.sum());
        }
    }
}

/// Generates entries with arbitrary numbers, and rings with records, some of them damaged.
fn any_entry() -> impl Strategy<Value = RecordingEntry> {
    let process = prop_oneof![0u32..3, any::<u32>()];
    let ring = (any::<(u64, u64, u32)>(), proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4));
    let ring = ring.prop_map(|((start, end, id), damage)| {
        let mut ring = Ring::default()
            .names()
            .launch(launch(id, start))
            .clock(start)
            .kernel(Kernel { start: Realtime(start), end: Realtime(end), ..kernel(id, 0, 0) })
            .flush(end)
            .0;
        for (at, value) in damage {
            let at = at % ring.len();
            ring[at] = value;
        }
        ring
    });
    prop_oneof![
        (process.clone(), any::<(u32, u32, u32, u64)>()).prop_map(
            |(process, (pid, pid_in_target, generation, time_nanos))| {
                let (comm, gpu) = ("app".into(), GpuKind::Real);
                RecordingEntry::ProcessStart { process, pid, pid_in_target, comm, generation, time_nanos, gpu }
            }
        ),
        (process.clone(), any::<u64>(), proptest::collection::vec(ring, 0..3))
            .prop_map(|(process, time_nanos, rings)| RecordingEntry::Wire { process, time_nanos, rings }),
        (process, any::<(u64, [u64; 4])>()).prop_map(|(process, (time_nanos, [kernels, made, failed, lost]))| {
            let totals = CollectorTotals { lost: [lost; xputrace_wire::region::Lost::COUNT], ..Default::default() }
                .with_activity(Activity::Kernel, kernels, 0)
                .with_call(Call::Kernel, CallTotals { made, failed, captured: 0 });
            RecordingEntry::ProcessEnd { process, time_nanos, totals: totals.into() }
        }),
        (any::<(u32, bool, u64, u32, u32)>(), proptest::collection::vec(any::<u8>(), 0..200)).prop_map(
            |((probe, entry, time_nanos, pid, tid), context)| {
                RecordingEntry::Hit(Hit { probe: probe % 3, entry, time_nanos, pid, tid, context, ..Hit::default() })
            }
        ),
    ]
}

/// A simulated Linux with these answers about stacks; `exec` is the process's generation.
struct Machine {
    user: i64,
    kernel: i64,
    exec: u32,
    records: Vec<Vec<u8>>,
}

const EXEC_OFFSET: u32 = 0x40;

impl Catalog for Machine {
    fn tracepoint(&self, _: &str, _: &str) -> Result<TracepointFormat, String> {
        Err("there are none".into())
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        None
    }

    fn exec_id_offset(&self) -> Option<u32> {
        Some(EXEC_OFFSET)
    }
}

impl Env for Machine {
    fn ktime_ns(&mut self) -> u64 {
        1
    }

    fn pid_tgid(&mut self) -> u64 {
        100 << 32 | 7
    }

    fn stack_id(&mut self, flags: u64) -> i64 {
        if flags & helper::STACK_USER as u64 != 0 { self.user } else { self.kernel }
    }

    fn read_memory(&mut self, user: bool, address: u64, out: &mut [u8]) -> bool {
        let is_exec = !user && address == u64::from(EXEC_OFFSET);
        is_exec.then(|| out.copy_from_slice(&self.exec.to_le_bytes())).is_some()
    }

    fn output(&mut self, _map: BpfMapId, data: &[u8]) -> bool {
        self.records.push(data.to_vec());
        true
    }
}

#[test]
fn recorded_hits_have_the_words_of_stacks_that_handlers_have() {
    let mut plan = Plan::default();
    let mut f = probe(Event::Uprobe, Place::Linux, None);
    f.scope = ProbeScope::System;
    plan.probes.push(f);
    let stacks = |user: i64, kernel: i64| {
        let mut machine = Machine { user, kernel, exec: 0x103, records: Vec::new() };
        let recorder = hits::recorder(&plan, &machine).unwrap();
        let mut engine = Engine::new(&recorder.plan.image, &[ProgramId(0)], &mut |_, _| None).unwrap();
        engine.run(ProgramId(0), &[0; 168], &mut machine).unwrap();
        let hit = recorder.layouts.decode(&machine.records[0]).unwrap();
        let losses = recorder.plan.linux_losses.unwrap();
        let count = |slot: u32| engine.lookup(losses, &slot.to_le_bytes()).unwrap()[0];
        let of_loss = |loss| count(recorder.plan.loss_sites.iter().position(|it| it.loss == loss).unwrap() as u32);
        ([hit.ustack, hit.kstack].map(StackKey::from_word), [Loss::LinuxStack, Loss::StackCollision].map(of_loss))
    };
    let (efault, eexist, enomem) = (-14, -17, -12);
    let user = StackKey::LinuxUser { pid: 100, exec: 3, id: 5 };
    assert_eq!(stacks(5, 6), ([user, StackKey::LinuxKernel { id: 6 }], [0, 0]), "two programs of a process differ");
    assert_eq!(stacks(5, efault), ([user, StackKey::Empty], [0, 0]), "what is not there is not lost");
    assert_eq!(stacks(eexist, efault), ([StackKey::Lost, StackKey::Empty], [0, 1]));
    assert_eq!(stacks(enomem, efault), ([StackKey::Lost, StackKey::Empty], [1, 0]));
}

/// Recordings of an H200 by earlier versions, with the results of those versions: launches (all
/// joined), kernels, their nanoseconds, and the sum of launch latencies.
#[test]
fn recordings_of_earlier_versions_give_the_same_answers() {
    for (name, expected) in [
        ("requests", [5_000, 5_000, 741_852_026, 54_591_939_770]),
        ("graphs", [1_001, 8_001, 7_448_643, 1_036_227_766]),
        ("llm", [92_316, 92_316, 2_622_282_106, 681_570_194_181]),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/replay/{name}.xpt"));
        let mut plan = kernel_plan();
        plan.probes.remove(0);
        let (mut pipeline, opened) = open(Arc::new(plan), RecordingReader::open(&path).unwrap(), demangle).unwrap();
        let mut sink = Recorder::default();
        let outcome = opened.run(&mut pipeline, &mut sink);
        assert!(outcome.damage.is_none() && pipeline.losses().is_empty(), "{name}: {:?}", pipeline.losses());
        let (launches, kernels) = (pipeline.account().launches(), *pipeline.account().activity(Activity::Kernel));
        assert!(launches.made == launches.joined && kernels.agrees(), "{name}: {launches:?} {kernels:?}");
        let latency = sink.events.iter().map(|it| it[word::START] - it[word::LAUNCH_START]).sum();
        assert_eq!([launches.made, kernels.records, kernels.nanos, latency], expected, "{name}");
        assert!(sink.ends().is_sorted(), "{name}");
    }
}

#[test]
fn device_handlers_run_over_a_recording_of_the_software_gpu_alone() {
    let recorded = |gpu| {
        let mut writer = RecordingWriter::new(Vec::new(), &Meta::default()).unwrap();
        let process = RecordingEntry::ProcessStart {
            process: 0,
            pid: 100,
            pid_in_target: 0,
            comm: "app".into(),
            generation: 0,
            time_nanos: 1,
            gpu,
        };
        writer.write(process).unwrap();
        let kernel = Kernel { grid: [2, 1, 1], block: [1; 3], ..kernel(1, 100, 200) };
        let rings = vec![Ring::default().names().clock(1).kernel(kernel).0];
        writer.write(RecordingEntry::Wire { process: 0, time_nanos: 2, rings }).unwrap();
        RecordingReader::new(writer.finish().unwrap()).unwrap()
    };
    let plan = Arc::new(device_plan(DeviceEvent::Exit, "a"));
    let (mut pipeline, opened) = open(plan.clone(), recorded(GpuKind::Software), demangle).ok().unwrap();
    opened.run(&mut pipeline, &mut Recorder::default());
    let key = vec![Value::Str("a<int>".into()), Value::Int(0), Value::Int(200)];
    assert_eq!(rows(&mut pipeline, 0, true), [(key, Cell::Number(2))]);
    let refused = open(plan, recorded(GpuKind::Real), demangle).err().unwrap().to_string();
    let wanted = "the script's device handlers (device_exit:a) cannot run over this recording: it is of a real GPU, \
                  whose threads it does not have";
    assert!(refused.starts_with(wanted), "{refused}");
}
