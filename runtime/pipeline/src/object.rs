//! What programs of a compiled object can ask for in a thread of the software GPU.

use crate::outputs::Outputs;
use xputrace_bytecode::vm::{Env, GpuThread};
use xputrace_model::context::{DeviceContext, device};
use xputrace_model::object::Object;
use xputrace_model::output::Output;
use xputrace_model::plan::BpfMapId;

/// A thread, and where what it prints goes.
pub(crate) struct ObjectEnv<'a> {
    object: &'a Object,
    ctx: &'a DeviceContext,
    pub(crate) thread: GpuThread,
    sink: &'a mut dyn Outputs,
}

impl<'a> ObjectEnv<'a> {
    pub(crate) fn new(object: &'a Object, ctx: &'a DeviceContext, sink: &'a mut dyn Outputs) -> Self {
        let three = |at: usize| [ctx[at], ctx[at + 1], ctx[at + 2]];
        let thread = GpuThread {
            thread: three(device::THREAD),
            block: three(device::BLOCK),
            block_dim: three(device::BLOCK_DIM),
            grid_dim: three(device::GRID_DIM),
            sm: ctx[device::SMID],
            warp: ctx[device::WARPID],
            lane: ctx[device::LANEID],
        };
        ObjectEnv { object, ctx, thread, sink }
    }
}

impl Env for ObjectEnv<'_> {
    fn ktime_ns(&mut self) -> u64 {
        self.ctx[device::TIME]
    }

    /// The GPU doesn't know which of its process's threads launched the kernel.
    fn pid_tgid(&mut self) -> u64 {
        let pid = self.ctx[device::PID];
        pid << 32 | pid
    }

    fn cpu(&mut self) -> u32 {
        self.thread.sm as u32
    }

    fn output(&mut self, map: BpfMapId, data: &[u8]) -> bool {
        if let Some(record) = self.object.maps.get(map.index()).and_then(|it| it.record(data)) {
            self.sink.output(record);
        }
        true
    }

    fn print(&mut self, line: &str) {
        self.sink.output(Output::said(line));
    }

    fn gpu_thread(&mut self) -> GpuThread {
        self.thread
    }
}
