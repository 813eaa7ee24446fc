//! Compiled objects on real GPUs: which can't run there so far, and what their maps begin with.

use anyhow::{Result, bail};
use xputrace_bytecode::{MapKind, helper, insn};
use xputrace_model::object::{Element, Object, ObjectHome};
use xputrace_model::plan::{Plan, ProgramId};
use xputrace_tracer::DeviceLayout;

/// Helpers that write records, which nobody reads from a real GPU so far.
const PRINTING: [i32; 2] = [helper::TRACE_PRINTK, helper::PUTS];

/// Refuses what a real GPU lacks so far.
///
/// # Errors
/// A sentence that names the map, or the program and the instruction.
pub(super) fn check(object: &Object, plan: &Plan) -> Result<()> {
    let woven: Vec<ProgramId> = plan.device_handlers().filter_map(|it| it.program).collect();
    let of_scripts = woven.iter().filter(|it| object.with_context.contains(it)).count();
    if of_scripts > 0 && of_scripts < woven.len() {
        bail!("a script's device handlers and other programs can't be on a real GPU together");
    }
    let programs = || woven.iter().map(|it| &plan.image.programs[*it]);
    let maps = programs().flat_map(|it| &it.map_refs).map(|it| &object.maps[it.1.index()]);
    for map in maps {
        if map.home == ObjectHome::Shared {
            bail!("map `{}` can't be shared by a real GPU and programs in Linux yet", map.name);
        }
        if matches!(map.kind, MapKind::PerThreadArray | MapKind::EventRing) {
            bail!("map `{}` of type {} can't be on a real GPU yet", map.name, map.number);
        }
    }
    for it in &object.initial {
        let map = &object.maps[it.map.index()];
        if map.home == ObjectHome::Gpu && map.kind == MapKind::Hash {
            bail!("the hash `{}` can't be filled on a real GPU yet: leave out its --set", map.name);
        }
    }
    for program in programs() {
        let prints =
            |it: &insn::Insn| it.code == insn::class::JMP | insn::CALL && it.src == 0 && PRINTING.contains(&it.imm);
        if let Some(at) = program.insns.iter().position(prints) {
            bail!("program `{}`, instruction {at}: printing from a real GPU is not supported yet", program.name);
        }
    }
    Ok(())
}

/// Writes what arrays begin with to device memory.
pub(super) fn fill(object: &Object, layout: &DeviceLayout, memory: &mut [u8]) {
    let on_gpu = object.initial.iter().filter(|it| object.maps[it.map.index()].home == ObjectHome::Gpu);
    for Element { map, key, value } in on_gpu {
        let (Some(shape), Some(parts)) = (layout.maps.get(map.index()), layout.arena.parts(map.index())) else {
            continue;
        };
        let index = key.first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
        let start = parts.values.start + u64::from(index) * u64::from(shape.value_stride());
        let place = memory.get_mut(start as usize..).and_then(|it| it.get_mut(..value.len()));
        place.into_iter().for_each(|it| it.copy_from_slice(value));
    }
}
