//! `--launch`: programs that run once, as kernels of their own.

use crate::error::{ObjectError, listed};
use xputrace_model::context::device::MOST_THREADS;
use xputrace_model::object::{DirectLaunch, LaunchShape};
use xputrace_model::plan::{Plan, ProbeId, ProgramId};
use xputrace_model::schema::Event;

/// Returns what is launched: by the wishes, in their order, or each program in one thread.
pub(crate) fn launches(plan: &Plan, wishes: &[String]) -> Result<Vec<DirectLaunch>, ObjectError> {
    let direct = ProbeId::each(&plan.probes).filter(|(_, it)| it.event == Event::Begin);
    let programs: Vec<(ProbeId, ProgramId)> = direct.filter_map(|(id, it)| Some((id, it.program?))).collect();
    let name = |it: &(ProbeId, ProgramId)| plan.image.programs[it.1].name.as_str();
    let launch = |(probe, program), shape| DirectLaunch { probe, program, shape };
    if wishes.is_empty() {
        return Ok(programs.into_iter().map(|it| launch(it, LaunchShape::ONE)).collect());
    }
    let wished = |wish: &String| {
        let refused = |what| ObjectError::Option { option: format!("--launch {wish}"), what };
        let (wanted, typed) = wish.split_once('=').map_or((wish.as_str(), None), |(name, typed)| (name, Some(typed)));
        let shape = typed.map_or(Some(LaunchShape::ONE), shape).ok_or_else(|| {
            let form = "write PROGRAM=GRID:BLOCK, as in run=4:32 or run=2,2,1:8,8,1";
            refused(format!("{form}, of at most {MOST_THREADS} threads"))
        })?;
        let found = programs.iter().find(|it| name(it) == wanted);
        found.map(|it| launch(*it, shape)).ok_or_else(|| {
            let names = listed(programs.iter().map(name));
            refused(format!("`{wanted}` is not launched: those in kprobe/__directly_run are: {names}"))
        })
    };
    wishes.iter().map(wished).collect()
}

/// Reads `GRID:BLOCK`, each a number or up to three.
fn shape(typed: &str) -> Option<LaunchShape> {
    let (grid, block) = typed.split_once(':')?;
    let (grid, block) = (extents(grid)?, extents(block)?);
    let threads = grid.iter().chain(&block).try_fold(1, |all: u64, it| all.checked_mul(u64::from(*it)))?;
    (1..=MOST_THREADS).contains(&threads).then_some(LaunchShape { grid, block })
}

fn extents(typed: &str) -> Option<[u32; 3]> {
    let mut all = [1; 3];
    let mut into = all.iter_mut();
    for part in typed.split(',') {
        *into.next()? = part.parse().ok()?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_up_to_three_extents() {
        assert_eq!(shape("4:32"), Some(LaunchShape { grid: [4, 1, 1], block: [32, 1, 1] }));
        assert_eq!(shape("2,3:8,8,2"), Some(LaunchShape { grid: [2, 3, 1], block: [8, 8, 2] }));
        for refused in
            ["", "4", "4:", "0:1", "4:32:1", "1,1,1,1:1", "-1:1", "1048577:1", "4294967295,4294967295:4294967295"]
        {
            assert_eq!(shape(refused), None, "{refused}");
        }
    }
}
