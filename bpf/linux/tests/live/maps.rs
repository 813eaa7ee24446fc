//! Maps and the ring buffer, while probes write to them.

use crate::need_root;
use crate::plans::*;
use crate::target::*;
use std::os::fd::AsRawFd;
use std::time::Duration;
use xputrace_bytecode::helper;
use xputrace_bytecode::insn::{Alu, Cond, Size, atomic};
use xputrace_bytecode::vm::{Atomic, Modification, Number, RemoteMap};
use xputrace_bytecode::{Assembler, BpfMapId, MapKind, MapSpec, ProgramKind, Reg};
use xputrace_linux::{Linux, StoppedChild};
use xputrace_model::diagnostic::Site;
use xputrace_model::plan::{LossSite, Plan, ProbePlace};
use xputrace_model::schema::Event;

#[test]
fn swapping_generations_under_load_loses_nothing() {
    need_root!();
    let mut plan = Plan::default();
    let inner = map_spec("generation", MapKind::PercpuHash, 8, 8, 64);
    let outer = MapSpec { inner: Some(Box::new(inner)), ..map_spec("outer", MapKind::ArrayOfMaps, 4, 4, 1) };
    plan.image.maps.push(outer);
    let mut asm = Assembler::new();
    let (out, first) = (asm.label(), asm.label());
    asm.st_imm(Size::W, Reg::FP, -4, 0);
    asm.ld_map(Reg::R1, BpfMapId(0));
    frame_address(&mut asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov(Reg::R6, Reg::R0);
    asm.st_imm(Size::Dw, Reg::FP, -16, 7);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, first);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    asm.jump(out);
    asm.place(first);
    // Creates the element with zeros first: another CPU may create it at the same time.
    asm.st_imm(Size::Dw, Reg::FP, -24, 0);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    frame_address(&mut asm, Reg::R3, -24);
    asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
    asm.call(helper::MAP_UPDATE_ELEM);
    asm.mov(Reg::R1, Reg::R6);
    frame_address(&mut asm, Reg::R2, -16);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    let program = add_program_ending_at(&mut plan, "count", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));

    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["threads", "100000"]), &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    let (mut total, mut filled) = (0u64, 0);
    let mut ended = false;
    while !ended {
        // The last swap comes after the end, so it finds the rest.
        ended = child.try_wait().unwrap().is_some();
        let before = total;
        linux
            .swap(BpfMapId(0), &mut |_, cpus| {
                total += cpus.iter().map(|it| u64::from_ne_bytes(*it.first_chunk().unwrap())).sum::<u64>()
            })
            .unwrap();
        filled += u32::from(total > before);
    }
    assert_eq!(total, 400_000);
    assert!(filled > 1, "more than one generation had something");
}

/// Several threads hit a probe that adds to the same element as we do.
#[test]
fn a_number_is_changed_exactly_while_probes_change_it() {
    need_root!();
    let mut plan = Plan::default();
    let sums = add_map(&mut plan, "sums", MapKind::Hash, 8, 8, 4);
    plan.image.maps[sums].flags = xputrace_bytecode::image::NO_PREALLOC;
    let mut asm = Assembler::new();
    let (out, hit) = (asm.label(), asm.label());
    asm.st_imm(Size::Dw, Reg::FP, -8, 7);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    for _ in 0..2 {
        asm.ld_map(Reg::R1, sums);
        frame_address(&mut asm, Reg::R2, -8);
        asm.call(helper::MAP_LOOKUP_ELEM);
        asm.jump_if_imm(Cond::Ne, Reg::R0, 0, hit);
        asm.ld_map(Reg::R1, sums);
        frame_address(&mut asm, Reg::R2, -8);
        frame_address(&mut asm, Reg::R3, -16);
        asm.mov_imm(Reg::R4, helper::UPDATE_NOEXIST.into());
        asm.call(helper::MAP_UPDATE_ELEM);
    }
    asm.jump(out);
    asm.place(hit);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 0, Reg::R1);
    let program = add_program_ending_at(&mut plan, "add", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));

    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["threads", "50000"]), &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    let map = linux.map(sums).unwrap();
    let key = 7u64.to_ne_bytes();
    let add = Modification::new(atomic::ADD, 1000).unwrap();
    map.modify(&key, add).unwrap();
    child.resume().unwrap();
    let mut ours = 1000;
    while child.try_wait().unwrap().is_none() {
        map.modify(&key, add).unwrap();
        ours += 1000;
    }
    let sum = u64::from_ne_bytes(*map.lookup(&key).unwrap().unwrap()[0].first_chunk().unwrap());
    assert_eq!(sum, ours + 200_000);
    assert!(ours > 20_000, "the two went on at the same time");

    for (op, operand, expected) in [(atomic::XOR, 5, 5), (atomic::OR, 2, 7), (atomic::AND, 6, 6)] {
        map.modify(&8u64.to_ne_bytes(), Modification::new(op, operand).unwrap()).unwrap();
        assert_eq!(map.lookup(&8u64.to_ne_bytes()).unwrap().unwrap()[0][0], expected);
    }
    map.modify(&9u64.to_ne_bytes(), add).unwrap();
    map.modify(&10u64.to_ne_bytes(), add).unwrap();
    let full = map.modify(&11u64.to_ne_bytes(), add).unwrap_err().to_string();
    assert!(full.contains("Argument list too long"), "the map is full: {full}");
}

/// Each atomic instruction, on numbers of both sizes anywhere in a value, does in Linux what it does elsewhere.
#[test]
fn atomic_instructions_change_one_number_of_a_value() {
    need_root!();
    let mut plan = Plan::default();
    let values = add_map(&mut plan, "values", MapKind::Hash, 4, 24, 4);
    let linux = Linux::load(&plan).unwrap();
    let mut map = linux.map(values).unwrap().clone();
    let key = 7u32.to_ne_bytes();
    let number = |at, bytes| Number { at, bytes };
    let mut run = |number, op, operand, expected| {
        map.update(&key, &[0xff; 24], 0).unwrap();
        let was = RemoteMap::atomic(&mut map, &key, number, Atomic { op, operand, expected });
        let value = map.lookup(&key).unwrap().unwrap().remove(0);
        let at = number.at as usize;
        let end = at + usize::from(number.bytes);
        assert!(value[..at].iter().chain(&value[end..]).all(|it| *it == 0xff), "the rest stays");
        let mut now = [0; 8];
        now[..end - at].copy_from_slice(&value[at..end]);
        (was, u64::from_ne_bytes(now))
    };
    let (all, low) = (u64::MAX, u64::from(u32::MAX));
    assert_eq!(run(number(8, 8), atomic::ADD, 2, 0), (Some(all), 1));
    assert_eq!(run(number(20, 4), atomic::ADD, 2, 0), (Some(low), 1));
    assert_eq!(run(number(4, 4), atomic::AND | atomic::FETCH, 6, 0), (Some(low), 6));
    assert_eq!(run(number(0, 8), atomic::XOR, 6, 0), (Some(all), all - 6));
    assert_eq!(run(number(16, 8), atomic::OR, 6, 0), (Some(all), all));
    assert_eq!(run(number(12, 4), atomic::XCHG, 6, 0), (Some(low), 6));
    assert_eq!(run(number(8, 8), atomic::CMPXCHG, 6, all), (Some(all), 6));
    assert_eq!(run(number(8, 8), atomic::CMPXCHG, 6, 5), (Some(all), all));
    let missing = Atomic { op: atomic::ADD, operand: 1, expected: 0 };
    assert_eq!(RemoteMap::atomic(&mut map, &8u32.to_ne_bytes(), number(0, 8), missing), None);
}

/// Global variables are one value, in which a program on the GPU may count by thread: each number takes no program of its own,
/// and is changed wherever it is.
#[test]
fn atomic_instructions_reach_all_of_a_large_value() {
    need_root!();
    const BYTES: u32 = 80_000;
    let mut plan = Plan::default();
    let values = add_map(&mut plan, "values", MapKind::Array, 4, BYTES, 1);
    let linux = Linux::load(&plan).unwrap();
    let mut map = linux.map(values).unwrap().clone();
    let open_files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut add = |at| {
        let add = Atomic { op: atomic::ADD, operand: u64::from(at) + 1, expected: 0 };
        RemoteMap::atomic(&mut map, &[0; 4], Number { at, bytes: 8 }, add)
    };
    assert_eq!(add(0), Some(0));
    let n_open = open_files();
    for at in (8..BYTES).step_by(8) {
        assert_eq!(add(at), Some(0), "at {at}");
    }
    // Other tests of this process open a few files too.
    assert!(open_files() < n_open + 1000, "each number has a descriptor");
    assert_eq!(add(BYTES), None, "it is outside");
    let value = map.lookup(&[0; 4]).unwrap().unwrap().remove(0);
    let numbers: Vec<u64> = value.chunks_exact(8).map(|it| u64::from_ne_bytes(it.try_into().unwrap())).collect();
    assert!(numbers.iter().enumerate().all(|(n, it)| *it == 8 * n as u64 + 1));
    assert!(map.refused_atomic().is_none());
    let add = Atomic { op: atomic::ADD, operand: 1, expected: 0 };
    assert_eq!(RemoteMap::atomic(&mut map, &[0; 4], Number { at: 4, bytes: 8 }, add), None);
    let refused = map.refused_atomic().unwrap().to_string();
    assert!(refused.ends_with("the map values: the number at byte 4 is not aligned to its 8 bytes"), "{refused}");
}

#[test]
fn a_refused_atomic_instruction_is_told_by_the_name_of_its_map() {
    need_root!();
    let mut plan = Plan::default();
    let values = add_map(&mut plan, "values", MapKind::Hash, 600, 8, 4);
    let linux = Linux::load(&plan).unwrap();
    let mut map = linux.map(values).unwrap().clone();
    map.update(&[0; 600], &[0; 8], 0).unwrap();
    let add = Atomic { op: atomic::ADD, operand: 1, expected: 0 };
    assert_eq!(RemoteMap::atomic(&mut map, &[0; 600], Number { at: 0, bytes: 8 }, add), None);
    let refused = linux.map(values).unwrap().refused_atomic().unwrap().to_string();
    assert_eq!(refused, "cannot run an atomic instruction on the map values: a key of 600 bytes is too long");
}

#[test]
fn records_come_through_the_ring_in_order() {
    need_root!();
    let mut plan = Plan::default();
    let ring = add_map(&mut plan, "ring", MapKind::Ringbuf, 0, 0, 4096);
    plan.linux_ring = Some(ring);
    let lost = add_map(&mut plan, "losses", MapKind::PercpuArray, 4, 8, 1);
    plan.linux_losses = Some(lost);
    plan.loss_sites.push(LossSite {
        loss: xputrace_model::loss::Loss::LinuxRingFull,
        site: Site::default(),
        table: None,
    });
    let mut asm = Assembler::new();
    let out = asm.label();
    // rdi, the first argument, is at byte 112 of pt_regs.
    asm.ldx(Size::Dw, Reg::R2, Reg::R1, 112);
    asm.stx(Size::Dw, Reg::FP, -24, Reg::R2);
    asm.st_imm(Size::Dw, Reg::FP, -16, 0);
    asm.st_imm(Size::Dw, Reg::FP, -8, 0);
    asm.ld_map(Reg::R1, ring);
    frame_address(&mut asm, Reg::R2, -24);
    asm.mov_imm(Reg::R3, 20);
    asm.mov_imm(Reg::R4, 0);
    asm.call(helper::RINGBUF_OUTPUT);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R7, 1);
    add_r7_to(&mut asm, lost, out);
    let program = add_program_ending_at(&mut plan, "out", ProgramKind::Uprobe, asm, out);
    plan.probes.push(function_probe(target(), "work", program));
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["work", "3000"]), &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    let mut seen = Vec::new();
    let mut ended = false;
    while !ended {
        ended = child.try_wait().unwrap().is_some();
        linux
            .poll(Duration::from_millis(10), &mut |record| {
                assert_eq!(record.len(), 20);
                seen.push(u64::from_ne_bytes(*record.first_chunk().unwrap()));
            })
            .unwrap();
    }
    let lost = linux.loss_counts()[0];
    assert_eq!(seen.len() as u64 + lost, 3000, "received and lost are all");
    assert!(seen.is_sorted() && seen.len() > 100);
}

#[test]
fn tag_arrays_are_shared_pages_of_one_process() {
    need_root!();
    assert_eq!(tags_left(|_, _| {}), 40);
}

#[test]
fn a_process_that_is_not_armed_after_all_leaves_no_tags() {
    need_root!();
    assert_eq!(tags_left(Linux::remove_tag_array), 0);
}

/// Returns the tag left by 40 calls of the marker, each adding 1, after `change`.
fn tags_left(change: impl Fn(&mut Linux, u32)) -> u64 {
    let mut plan = Plan::default();
    let mut inner = map_spec("tags", MapKind::Array, 4, 16, xputrace_model::plan::TAG_SLOTS);
    inner.flags = xputrace_bytecode::image::MMAPABLE;
    plan.image.maps.push(MapSpec { inner: Some(Box::new(inner)), ..map_spec("by_pid", MapKind::HashOfMaps, 4, 4, 64) });
    plan.tags = Some(BpfMapId(0));
    // Marker handler: tags[pid][3].tag += 1.
    let mut asm = Assembler::new();
    let out = asm.label();
    asm.call(helper::GET_CURRENT_PID_TGID);
    asm.alu_imm(Alu::Rsh, Reg::R0, 32);
    asm.stx(Size::W, Reg::FP, -4, Reg::R0);
    asm.ld_map(Reg::R1, BpfMapId(0));
    frame_address(&mut asm, Reg::R2, -4);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov(Reg::R1, Reg::R0);
    asm.st_imm(Size::W, Reg::FP, -8, 3);
    frame_address(&mut asm, Reg::R2, -8);
    asm.call(helper::MAP_LOOKUP_ELEM);
    asm.jump_if_imm(Cond::Eq, Reg::R0, 0, out);
    asm.mov_imm(Reg::R1, 1);
    asm.atomic(atomic::ADD, Size::Dw, Reg::R0, 8, Reg::R1);
    let program = add_program_ending_at(&mut plan, "marker", ProgramKind::Uprobe, asm, out);
    plan.probes.push(probe(Event::Launch, ProbePlace::None, program));
    let mut linux = Linux::load(&plan).unwrap();
    let mut child = StoppedChild::spawn(&words(&["work", "40"]), &[], None).unwrap();
    assert!(linux.attach(&plan, &child.scope()).unwrap().probes.is_empty(), "the marker is attached apart");
    let array = linux.tag_arrays().unwrap().unwrap().add(child.pid()).unwrap();
    assert_eq!(linux.attach_marker(&plan, &target(), "work").unwrap(), 1);
    change(&mut linux, child.pid());
    child.wait().unwrap();
    let len = 16 * xputrace_model::plan::TAG_SLOTS as usize;
    // SAFETY: Linux chooses the address of the new mapping.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, array.as_raw_fd(), 0) };
    assert_ne!(base, libc::MAP_FAILED);
    // SAFETY: slot 3 is inside the mapping; the program that wrote to it has ended.
    unsafe { base.cast::<u64>().add(3 * 2 + 1).read_volatile() }
}
