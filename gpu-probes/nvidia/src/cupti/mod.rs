//! The backend for NVIDIA's GPUs: CUPTI, accessed through a table of functions from dlopen.
//!
//! ```text
//! launch ─▶ CUPTI ─▶ entry ─▶ launches ─▶ agent::launch
//! buffer ─▶ CUPTI ─▶ entry ─▶ delivery (records) ─▶ agent::delivery
//! ```
//!
//! Two kinds of CUPTI's launch calls are recorded without parameters: those of CUDA 4 and earlier,
//! and multi-device cooperative launches (one record, the kernels of all devices).

mod arming;
pub mod calls;
mod delivery;
pub mod driver;
mod entry;
pub mod functions;
mod graphs;
pub mod host_calls;
mod host_events;
mod launches;
mod leaving;
pub(crate) mod locate;
mod others;
mod pool;
pub mod records;
mod run;
mod sharing;
mod subscription;
mod teardown;
pub mod twins;
mod unified;
mod yielding;

pub use functions::*;

pub use run::CuptiBackend;

use run::CAPTURES;
use std::sync::atomic::Ordering;
use twins::Twins;
use xputrace_agent::device::ImageCode;
use xputrace_agent::{
    Agent, ArmRefusal, Backend, Context, Flushing, KernelCode, Layer, Library, Order, Stream, StreamKind, untraced,
};
use xputrace_wire::device::{ComputeCapabilities, CopyExtent, ImageOutcome};
use xputrace_wire::events::{Activities, Activity, Calls, HostEvent, HostEvents};
use xputrace_wire::message::demand;
use xputrace_wire::record::{Gpu, GpuLimits};
use xputrace_wire::stored::ReadableMemory;

impl Library for CuptiBackend {
    fn version(&self) -> u32 {
        self.cupti.version()
    }

    fn capabilities(&self) -> u64 {
        let captures = if self.cupti.get_graph_node_id.is_some() { CAPTURES } else { 0 };
        let latencies = if self.cupti.enable_latency_timestamps.is_some() { demand::LATENCIES } else { 0 };
        let host = demand::HOST_STREAMS
            | demand::HOST_RANGES
            | demand::HOST_NESTED
            | demand::host_events(HostEvents::ALL.without(HostEvents::of(&[HostEvent::Range])));
        let twins = if self.driver.code.is_complete() { demand::DEVICE } else { 0 };
        captures
            | latencies
            | twins
            | demand::STREAMS
            | demand::PRIORITIES
            | demand::EXTERNAL
            | demand::calls(Calls::ALL)
            | demand::activities(Activities::ALL)
            | host
    }

    fn layer_of(&self, file_name: &[u8]) -> Option<Layer> {
        layer_of(file_name)
    }

    fn each_gpu(&self, each: &mut dyn FnMut(&Gpu, &GpuLimits, &[u8])) -> bool {
        untraced(|| self.driver.devices.each(each))
    }

    fn device_of(&self, context: Context) -> Option<u32> {
        let mut device = 0;
        let get = self.cupti.get_device_id?;
        // SAFETY: CUPTI's own context and a live u32.
        (unsafe { get(context.handle, &mut device) } == SUCCESS).then_some(device)
    }

    fn stream_of(&self, context: Context, stream: Stream) -> Option<u32> {
        let mut id = 0;
        let get = self.cupti.get_stream_id?;
        // SAFETY: the call's own context and stream, and a live u32.
        let answer = unsafe { get(context.handle, stream.handle as *mut _, u8::from(stream.per_thread), &mut id) };
        (answer == SUCCESS).then_some(id)
    }

    fn priority_of(&self, stream: Stream) -> Option<i32> {
        self.driver.priority_of(stream)
    }

    fn kind_of_stream(&self, stream: Stream) -> StreamKind {
        kind_of_stream(stream)
    }
}

impl Backend for CuptiBackend {
    fn give_back(&self) {
        // SAFETY: the agent's promise: no more callbacks of this run come.
        unsafe { self.graphs.empty() };
    }

    fn start(&'static self, agent: &'static Agent) -> Result<(), ArmRefusal> {
        let only_graphs = demand::activities_of(agent.demand()) == Activities::of(&[Activity::Graph]);
        self.whole_graphs.store(self.is_first && only_graphs && agent.records_throughout(), Ordering::Relaxed);
        // By an attribute of our subscription, where it is one of several.
        let is_scoped = self.cupti.has_several_subscribers();
        if !is_scoped {
            self.tell_latencies(agent);
        }
        self.prepare(agent)?;
        if is_scoped {
            self.tell_latencies(agent);
            self.tell_of_whole_graphs(agent);
        }
        Ok(())
    }

    fn switch(&'static self, agent: &'static Agent, from: &Order, to: &Order) -> Result<(), ArmRefusal> {
        self.switch_records(agent, from, to)
    }

    fn abandon(&self, agent: &'static Agent) {
        self.want_no_activities(agent);
        self.give_subscription_up();
        others::undo();
    }

    fn flush(&self, agent: &'static Agent, how: Flushing) -> bool {
        // While another user has the records, a flush would deliver its own.
        !self.has_records_on(agent) || self.is_yielding() || self.flush_activities(agent, how)
    }

    fn tend(&'static self, agent: &'static Agent) {
        self.tend_to_other(agent);
    }

    fn stop_activities(&self, agent: &'static Agent) {
        self.want_no_activities(agent);
    }

    fn leave(&'static self, agent: &'static Agent) -> Option<&'static str> {
        let left_behind = self.let_go(agent);
        others::undo();
        left_behind
    }

    fn kernel_code(&'static self) -> Option<&'static dyn KernelCode> {
        Some(self)
    }
}

impl KernelCode for CuptiBackend {
    fn code_in(&self, image: u64, memory: &mut dyn ReadableMemory) -> Result<ImageCode, ImageOutcome> {
        twins::find_code(image, self.compute_capabilities().least, memory)
    }

    fn stop_twins(&self) {
        self.twins.get().into_iter().for_each(Twins::stop);
    }

    fn close_twins(&self) {
        self.twins.get().into_iter().for_each(Twins::close);
    }

    fn compute_capabilities(&self) -> ComputeCapabilities {
        self.driver.devices.compute_capabilities()
    }

    fn copy_blocks(&'static self, agent: &'static Agent, extent: CopyExtent) {
        self.twins.get().into_iter().for_each(|it| it.copy_blocks(self, agent, extent));
    }

    fn poll_programs(&'static self, agent: &'static Agent) -> bool {
        self.twins.get().is_none_or(|it| it.poll_programs(self, agent))
    }

    fn leave_blocks(&'static self, agent: &'static Agent, disables: bool) {
        self.twins.get().into_iter().for_each(|it| it.leave_blocks(self, agent, disables));
    }
}

/// Returns the layer of one of CUDA's libraries.
pub(crate) fn layer_of(file_name: &[u8]) -> Option<Layer> {
    match file_name {
        it if it.starts_with(b"libcupti.so") => Some(Layer::Tracing),
        it if it.starts_with(b"libcuda.so") => Some(Layer::Driver),
        it if it.starts_with(b"libcudart") => Some(Layer::Runtime),
        _ => None,
    }
}

/// Returns what a stream of CUDA's is.
pub(crate) fn kind_of_stream(stream: Stream) -> StreamKind {
    match (stream.handle, stream.per_thread) {
        (STREAM_LEGACY, _) | (0, false) => StreamKind::Null,
        (STREAM_PER_THREAD, _) | (0, true) => StreamKind::OfThread,
        _ => StreamKind::Created,
    }
}
