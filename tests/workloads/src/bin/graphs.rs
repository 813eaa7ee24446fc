//! Launches a graph of three kernels repeatedly: one call, many kernels.
//!
//! `graphs [--launches=100] [--memsets=0] [--off=0] [--hold]`
//!
//! `--memsets=N` also launches a graph of one memset N times; `--off=N` a graph whose only kernel
//! is disabled.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use xputrace_workloads::{Account, FILL, Gpu, Result, SCALE, hold_if_asked, option};

/// Kernels in the graph: one `fill`, two `scale`.
const NODES: u64 = 3;

fn main() -> Result<()> {
    let (launches, memsets, offs) = (option("launches", 100)?, option("memsets", 0)?, option("off", 0)?);
    let gpu = Gpu::open()?;
    let stream = gpu.stream()?;
    let mut buffer = gpu.buffer(&stream)?;
    let mut other = gpu.buffer(&stream)?;
    stream.synchronize()?;
    hold_if_asked()?;
    let graph = capture(&gpu, &stream, &mut buffer)?;
    replay(&graph, launches)?;
    if memsets > 0 {
        replay(&capture_memset(&stream, &mut other)?, memsets)?;
    }
    if offs > 0 {
        replay(&capture_and_switch_off(&gpu, &stream)?, offs)?;
    }
    stream.synchronize()?;
    let values = stream.clone_dtoh(&buffer)?;
    let expected = if launches == 0 { 0.0 } else { 42.0 };
    let mut account = Account::new("graphs");
    account.ran(FILL, launches);
    account.ran(SCALE, 2 * launches);
    account.note("graph_launches", launches + memsets + offs);
    account.note("memset_graphs", memsets);
    account.note("off_graphs", offs);
    account.note("nodes", NODES);
    account.note("captured", NODES + u64::from(offs > 0));
    account.note("verified", values.iter().all(|&value| value == expected));
    account.print(&gpu)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn capture(gpu: &Gpu, stream: &Arc<CudaStream>, buffer: &mut CudaSlice<f32>) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    gpu.fill(stream, buffer, 7.0)?;
    gpu.scale(stream, buffer, 2.0)?;
    gpu.scale(stream, buffer, 3.0)?;
    end_capture(stream)
}

/// Captures a graph of one memset.
fn capture_memset(stream: &Arc<CudaStream>, buffer: &mut CudaSlice<f32>) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    stream.memset_zeros(buffer)?;
    end_capture(stream)
}

/// Captures a graph of one kernel, and disables the kernel.
fn capture_and_switch_off(gpu: &Gpu, stream: &Arc<CudaStream>) -> Result<CudaGraph> {
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    gpu.nop(stream)?;
    let graph = end_capture(stream)?;
    let (mut node, mut count) = (std::ptr::null_mut(), 1);
    // SAFETY: the graph has one node, for which there is room.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), &mut node, &mut count) }.result()?;
    // SAFETY: a node of the graph that this one was instantiated from.
    unsafe { sys::cuGraphNodeSetEnabled(graph.cu_graph_exec(), node, 0) }.result()?;
    Ok(graph)
}

fn end_capture(stream: &Arc<CudaStream>) -> Result<CudaGraph> {
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    graph.ok_or_else(|| "the capture gave no graph".into())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn replay(graph: &CudaGraph, launches: u64) -> Result<()> {
    for _ in 0..launches {
        std::hint::black_box(graph.launch())?;
    }
    Ok(())
}
