//! A joined event as the 64 words that its handlers read (`model::context`).

use xputrace_model::context::{GpuContext, WORDS, word};
use xputrace_wire::record::{Kernel, Launch};

/// The two halves of a 16-byte, NUL-padded name, and ids of the string table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comm(pub(crate) [u64; 2]);

impl From<[u8; 16]> for Comm {
    fn from(bytes: [u8; 16]) -> Self {
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Comm([half(0), half(8)])
    }
}

/// String ids of a kernel's or call's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) symbol: u64,
    pub(crate) name: u64,
    pub(crate) short_name: u64,
}

/// What an event says beside its records.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Identity {
    pub(crate) pid: u64,
    pub(crate) tid: u64,
    pub(crate) comm: Comm,
}

/// An event's launch, resolved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchFacts<'a> {
    pub(crate) record: &'a Launch,
    pub(crate) symbol: Symbol,
    pub(crate) api: u64,
    pub(crate) kind: u64,
    pub(crate) ustack: u64,
    pub(crate) thread: Identity,
}

/// Fills the words of a kernel; its times are CLOCK_MONOTONIC.
pub(crate) fn fill_kernel(ctx: &mut GpuContext, kernel: &Kernel, symbol: Symbol, process: Identity) {
    fill_identity(ctx, kernel.start, process);
    ctx[word::NAME] = symbol.name;
    ctx[word::SHORT_NAME] = symbol.short_name;
    ctx[word::SYMBOL] = symbol.symbol;
    ctx[word::START] = kernel.start;
    ctx[word::END] = kernel.end;
    ctx[word::DURATION] = kernel.end.wrapping_sub(kernel.start);
    fill_dim(ctx, word::GRID, kernel.grid);
    fill_dim(ctx, word::BLOCK, kernel.block);
    ctx[word::REGISTERS] = kernel.registers.into();
    ctx[word::STATIC_SHARED] = kernel.static_shared.into();
    ctx[word::DYNAMIC_SHARED] = kernel.dynamic_shared.into();
    ctx[word::LOCAL_MEMORY] = kernel.local_memory.into();
    ctx[word::DEVICE] = kernel.device.into();
    ctx[word::CONTEXT] = kernel.context.into();
    ctx[word::STREAM] = kernel.stream.into();
    ctx[word::GRAPH] = kernel.graph.into();
    ctx[word::GRAPH_NODE] = kernel.graph_node;
}

/// Zeroes the words of the kernel, for a launch event.
pub(crate) fn clear_kernel(ctx: &mut GpuContext) {
    ctx[..word::LAUNCH].fill(0);
}

/// Zeroes the words of the launch, for an event whose launch is not known.
pub(crate) fn clear_launch(ctx: &mut GpuContext) {
    ctx[word::JOINED] = 0;
    ctx[word::LAUNCH..WORDS].fill(0);
}

/// Fills `time pid tid comm`.
pub(crate) fn fill_identity(ctx: &mut GpuContext, time: u64, it: Identity) {
    ctx[word::TIME] = time;
    ctx[word::PID] = it.pid;
    ctx[word::TID] = it.tid;
    ctx[word::COMM] = it.comm.0[0];
    ctx[word::COMM + 1] = it.comm.0[1];
}

/// Fills the words of the launch.
pub(crate) fn fill_launch(ctx: &mut GpuContext, it: &LaunchFacts<'_>) {
    let launch = it.record;
    ctx[word::JOINED] = 1;
    ctx[word::LAUNCH_START] = launch.start;
    ctx[word::LAUNCH_END] = launch.end;
    ctx[word::LAUNCH_DURATION] = launch.end.wrapping_sub(launch.start);
    ctx[word::LAUNCH_USTACK] = it.ustack;
    ctx[word::LAUNCH_API] = it.api;
    ctx[word::LAUNCH_RESULT] = i64::from(launch.result) as u64;
    ctx[word::LAUNCH_KIND] = it.kind;
    ctx[word::LAUNCH_NAME] = it.symbol.name;
    ctx[word::LAUNCH_SYMBOL] = it.symbol.symbol;
    fill_dim(ctx, word::LAUNCH_GRID, launch.grid);
    fill_dim(ctx, word::LAUNCH_BLOCK, launch.block);
    ctx[word::LAUNCH_DYNAMIC_SHARED] = launch.dynamic_shared.into();
    ctx[word::LAUNCH_DEVICE] = launch.device.into();
    ctx[word::LAUNCH_CONTEXT] = launch.context.into();
    ctx[word::LAUNCH_STREAM] = launch.stream.into();
    ctx[word::LAUNCH_TAGGED] = u64::from(launch.flags & Launch::TAGGED != 0);
    ctx[word::LAUNCH_TAG] = if launch.flags & Launch::TAGGED != 0 { launch.tag as u64 } else { 0 };
    ctx[word::LAUNCH_PID] = it.thread.pid;
    ctx[word::LAUNCH_TID] = it.thread.tid;
    ctx[word::LAUNCH_COMM] = it.thread.comm.0[0];
    ctx[word::LAUNCH_COMM + 1] = it.thread.comm.0[1];
    ctx[word::LAUNCH_SHORT_NAME] = it.symbol.short_name;
}

fn fill_dim(ctx: &mut GpuContext, at: usize, xyz: [u32; 3]) {
    for (i, n) in xyz.into_iter().enumerate() {
        ctx[at + i] = n.into();
    }
}
