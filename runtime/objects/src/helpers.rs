//! Which helpers a program on the GPU may call.

use xputrace_bytecode::{Insn, helper, insn};

/// Those that both the software GPU and a real one have (`docs/OBJECTS.md`).
const ON_GPU: [i32; 17] = [
    helper::MAP_LOOKUP_ELEM,
    helper::MAP_UPDATE_ELEM,
    helper::MAP_DELETE_ELEM,
    helper::KTIME_GET_NS,
    helper::TRACE_PRINTK,
    helper::GET_CURRENT_PID_TGID,
    helper::PERF_EVENT_OUTPUT,
    helper::PUTS,
    helper::GET_GLOBALTIMER,
    helper::GET_BLOCK_IDX,
    helper::GET_BLOCK_DIM,
    helper::GET_THREAD_IDX,
    helper::MEMBAR,
    helper::GET_GRID_DIM,
    helper::GET_SM_ID,
    helper::GET_WARP_ID,
    helper::GET_LANE_ID,
];

/// Returns the first instruction that calls a helper that a GPU program may not call, and why. `allows_exit` is
/// `--unsafe`.
pub(crate) fn refused_on_gpu(insns: &[Insn], allows_exit: bool) -> Option<(usize, String)> {
    let call = insn::class::JMP | insn::CALL;
    let calls = insns.iter().enumerate().filter(|(_, it)| it.code == call && it.src == 0);
    calls.filter_map(|(at, it)| Some((at, refusal(it.imm, allows_exit)?))).next()
}

fn refusal(id: i32, allows_exit: bool) -> Option<String> {
    match id {
        helper::EXIT_THREAD if allows_exit => None,
        helper::EXIT_THREAD => Some(
            "calls helper 507 (bpf_cuda_exit), which ends the kernel's thread before its work is done. \
             Give --unsafe if that is wanted"
                .into(),
        ),
        id if ON_GPU.contains(&id) => None,
        id => {
            let name = helper::name(id).map_or_else(String::new, |it| format!(" (bpf_{it})"));
            Some(format!(
                "calls helper {id}{name}, which programs on the GPU don't have (docs/OBJECTS.md lists those they have)"
            ))
        }
    }
}
