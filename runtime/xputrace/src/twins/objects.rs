//! Compiled objects on real GPUs: which can't run there so far, and what their maps begin with.

use anyhow::{Result, bail};
use xputrace_bytecode::Program;
use xputrace_model::diagnostic::{FileId, Site};
use xputrace_model::object::{Object, ObjectHome};
use xputrace_model::plan::{Plan, ProgramId};
use xputrace_tracer::DeviceLayout;

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
    }
    Ok(())
}

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
    use crate::twins::why_not;
    use std::path::Path;
    use xputrace_objects::Wishes;

    /// Returns why an object of the tests can't run on a real GPU.
    fn refused(name: &str, set: &[&str]) -> Option<String> {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/objects").join(format!("{name}.bpf.o"));
        let wishes =
            Wishes { set: set.iter().map(|it| (*it).to_owned()).collect(), allows_exit: true, ..Wishes::default() };
        let bytes = std::fs::read(&file).unwrap();
        let plan = xputrace_objects::plan(name, &bytes, &wishes, &|path| std::fs::read(path)).unwrap();
        why_not(&plan)
    }

    #[test]
    fn objects_run_on_a_real_gpu_unless_linux_shares_their_maps() {
        for name in ["threads", "each_thread", "records", "stops", "accesses", "wide"] {
            assert_eq!(refused(name, &[]), None, "{name}");
        }
        assert_eq!(refused("calls", &["started[7]=9"]), None, "a hash that is filled, and lines that are printed");
        let shared = refused("both", &[]).unwrap();
        assert!(shared.contains("can't be shared by a real GPU and programs in Linux yet"), "{shared}");
    }
}
