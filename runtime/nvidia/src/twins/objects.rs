//! Compiled objects on real GPUs: which can't run there so far, and what their maps begin with.

use anyhow::{Result, bail};
use xputrace_bytecode::{BpfMapId, Insn, MapKind, Program, helper, insn};
use xputrace_model::diagnostic::{FileId, Site};
use xputrace_model::object::{Object, ObjectHome, ObjectMap};
use xputrace_model::plan::{DeviceWay, DeviceWays, Plan, ProgramId};
use xputrace_pipeline::DeviceLayout;

/// Refuses what a real GPU lacks so far.
///
/// # Errors
/// A sentence that names the map, or the program and the instruction.
pub(super) fn check(object: &Object, plan: &Plan) -> Result<()> {
    let woven = on_gpu(object, plan);
    let of_scripts = woven.iter().filter(|it| object.with_context.contains(it)).count();
    if of_scripts > 0 && of_scripts < woven.len() {
        bail!("a script's device handlers and other programs can't be on a real GPU together");
    }
    let programs = || woven.iter().map(|it| &plan.image.programs[*it]);
    let maps = programs().flat_map(|it| &it.map_refs).map(|it| &object.maps[it.1.index()]);
    for map in maps {
        if map.home == ObjectHome::Shared && map.kind != MapKind::Array {
            bail!("the hash `{}` can't be shared by a real GPU and programs in Linux: only arrays can", map.name);
        }
    }
    match unpatchable(object, plan) {
        Some(why) if plan.device_ways == DeviceWays::One(DeviceWay::Patch) => bail!("--via patch: {why}"),
        _ => Ok(()),
    }
}

/// Returns the programs that run in kernels: the program's, and of their own.
fn on_gpu(object: &Object, plan: &Plan) -> Vec<ProgramId> {
    let in_kernels = plan.device_handlers().filter_map(|it| it.program);
    in_kernels.chain(object.launches.iter().map(|it| it.program)).collect()
}

/// Returns what an object needs that patches of machine code can't do, if anything.
pub(super) fn unpatchable(object: &Object, plan: &Plan) -> Option<String> {
    let place =
        plan.device_handlers().find(|it| !it.place.can_be_patched()).map(|it| &plan.probes[it.probe.index()].name);
    let programs = plan.device_handlers().filter_map(|it| it.program).map(|it| &plan.image.programs[it]);
    let maps = programs.flat_map(|it| &it.map_refs).map(|it| &object.maps[it.1.index()]);
    let array = maps.filter(|it| it.home == ObjectHome::Shared).map(|it| &it.name).next();
    let is_launched = !object.launches.is_empty();
    let is_of_script = !object.with_context.is_empty();
    place
        .map(|name| format!("patches of machine code don't know where `{name}` is"))
        .or_else(|| array.map(|name| format!("the array `{name}` is shared with Linux, which patches can't do")))
        .or_else(|| object.allows_exit.then(|| "patches can't end threads of kernels, as --unsafe allows".into()))
        .or_else(|| is_launched.then(|| "programs that are launched as kernels of their own need CUPTI".into()))
        .or_else(|| is_of_script.then(|| "what it reads of kernels isn't known of a script that was built".into()))
}

/// Says which arrays both sides may change; `None` if there are none.
pub(super) fn changed_on_both_sides(object: &Object, plan: &Plan) -> Option<String> {
    let on_gpu = on_gpu(object, plan);
    let changes = |map: usize, is_on_gpu: bool| {
        let mut programs = plan.image.programs.iter().enumerate();
        programs.any(|(at, it)| on_gpu.contains(&ProgramId::at(at)) == is_on_gpu && may_change(it, BpfMapId::at(map)))
    };
    let is_it =
        |(at, map): &(usize, &ObjectMap)| map.home == ObjectHome::Shared && changes(*at, true) && changes(*at, false);
    let names: Vec<String> =
        object.maps.iter().enumerate().filter(is_it).map(|it| format!("`{}`", it.1.name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "programs on the GPU and in Linux change {}: of an element that both sides change, updates may be lost, which \
             nothing counts. What only one side changes is exact",
            names.join(", ")
        )
    })
}

/// Whether a program may change a map: it uses it, and has an instruction that stores to a map.
fn may_change(program: &Program, map: BpfMapId) -> bool {
    let stores = |it: &Insn| match it.code & 7 {
        insn::class::ST | insn::class::STX => it.dst != FRAME_POINTER,
        _ => it.code == insn::class::JMP | insn::CALL && it.src == 0 && it.imm == helper::MAP_UPDATE_ELEM,
    };
    program.map_refs.iter().any(|it| it.1 == map) && program.insns.iter().any(stores)
}

/// The register with the address of the stack.
const FRAME_POINTER: u8 = 10;

/// Writes what maps begin with to device memory.
pub(super) fn fill(object: &Object, layout: &DeviceLayout, memory: &mut [u8]) {
    let on_gpu = object.initial.iter().filter(|it| object.maps[it.map.index()].home == ObjectHome::Gpu);
    layout.fill(on_gpu, memory);
}

/// Returns where an instruction is in the source.
pub(super) fn line(program: &Program, insn: usize) -> Site {
    let line = program.line_of(insn);
    line.map_or_else(Site::default, |it| Site { file: FileId(it.file as u32), offset: 0, line: it.line })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twins::bundled::assemble;
    use crate::twins::made::{CompiledPrograms, TwinCode, WhyText};
    use crate::twins::{Twins, why_not};
    use std::path::Path;
    use xputrace_objects::Wishes;

    #[test]
    fn arrays_that_both_sides_change_are_named() {
        let note = |name| {
            let plan = plan(name, &[]);
            changed_on_both_sides(plan.object.as_ref().unwrap(), &plan)
        };
        assert_eq!(note("threads"), None);
        let both = note("both").unwrap();
        // Which map a store is to is not known: `launches`, which only the CPU changes, is among them.
        assert!(both.starts_with("programs on the GPU and in Linux change `launches`, `sum`"), "{both}");
    }

    fn plan(name: &str, set: &[&str]) -> Plan {
        let set = set.iter().map(|it| (*it).to_owned()).collect();
        plan_as(name, &Wishes { set, allows_exit: true, ..Wishes::default() })
    }

    fn plan_as(name: &str, wishes: &Wishes) -> Plan {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/objects").join(format!("{name}.bpf.o"));
        let bytes = std::fs::read(&file).unwrap();
        xputrace_objects::plan(name, &bytes, wishes, &|path, _| std::fs::read(path)).unwrap()
    }

    #[test]
    fn objects_can_be_patched_unless_they_need_a_twin() {
        let lacks = |plan: &Plan| unpatchable(plan.object.as_ref().unwrap(), plan);
        for name in ["threads", "each_thread", "records", "accesses", "wide"] {
            let plan = plan_as(name, &Wishes::default());
            assert_eq!(lacks(&plan), None, "{name}");
            let twins = Twins::of(&plan).unwrap().unwrap();
            let patches = twins.making.maker.patches(90, false).unwrap_or_else(|it| panic!("{name}: {}", it.what));
            assemble(name, &patches.text, &["--compile-as-tools-patch"]);
        }
        let stops = plan("stops", &[]);
        assert_eq!(lacks(&stops).unwrap(), "patches can't end threads of kernels, as --unsafe allows");
        assert_eq!(why_not(&stops), None);
        let insists = why_not(&Plan { device_ways: DeviceWays::One(DeviceWay::Patch), ..stops }).unwrap();
        assert!(
            insists.ends_with("--via patch: patches can't end threads of kernels, as --unsafe allows"),
            "{insists}"
        );
        let shared = lacks(&plan_as("both", &Wishes::default())).unwrap();
        assert!(shared.ends_with("is shared with Linux, which patches can't do"), "{shared}");
    }

    #[test]
    fn programs_become_kernels_in_the_order_and_the_shape_of_their_launches() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/objects/direct.bpf.o");
        let launch = ["cuda__count=2:64", "cuda__add=4,2:8,8", "cuda__count"].map(str::to_owned).to_vec();
        let wishes = Wishes { launch, ..Wishes::default() };
        let plan =
            xputrace_objects::plan("direct", &std::fs::read(file).unwrap(), &wishes, &|path, _| std::fs::read(path));
        let twins = Twins::of(&plan.unwrap()).unwrap().unwrap();
        assert!(twins.block(None).unwrap().has_programs);
        let text = twins.making.programs_text(90).unwrap();
        let entries: Vec<&str> = text.text.lines().filter(|it| it.contains(".entry")).collect();
        let expected = [
            ".visible .entry xpt_program_0() .maxntid 64, 1, 1",
            ".visible .entry xpt_program_1() .maxntid 8, 8, 1",
            ".visible .entry xpt_program_2() .maxntid 1, 1, 1",
        ];
        assert_eq!(entries, expected);
        let sent = twins.making.sent(CompiledPrograms { code: TwinCode::Text(WhyText::Gpus), text });
        let shapes = |n: usize| (sent.launches[n].symbol.as_str(), sent.launches[n].grid, sent.launches[n].block);
        assert_eq!(shapes(0), ("xpt_program_0", [2, 1, 1], [64, 1, 1]));
        assert_eq!(shapes(1), ("xpt_program_1", [4, 2, 1], [8, 8, 1]));
        assert_eq!((shapes(2), sent.code.last()), (("xpt_program_2", [1; 3], [1; 3]), Some(&0)));
    }

    /// Returns why an object of the tests can't run on a real GPU.
    fn refused(name: &str, set: &[&str]) -> Option<String> {
        why_not(&plan(name, set))
    }

    #[test]
    fn objects_run_on_a_real_gpu_unless_linux_shares_their_maps() {
        for name in ["direct", "threads", "each_thread", "records", "stops", "accesses", "wide"] {
            assert_eq!(refused(name, &[]), None, "{name}");
        }
        assert_eq!(refused("calls", &["started[7]=9"]), None, "a hash that is filled, and lines that are printed");
        let shared = refused("both", &[]).unwrap();
        assert!(
            shared.ends_with("the hash `sides` can't be shared by a real GPU and programs in Linux: only arrays can"),
            "{shared}"
        );
    }
}
