//! A graph of three kernels, captured once and launched often: one call, many kernels.
//!
//! `graphs [--launches=100] [--hold]`

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use xputrace_workloads::{Account, FILL, Gpu, Result, SCALE, hold_if_asked, option};

/// Kernels of the graph: one `fill`, two `scale`.
const NODES: u64 = 3;

fn main() -> Result<()> {
    let launches = option("launches", 100)?;
    let gpu = Gpu::open()?;
    let stream = gpu.stream()?;
    let mut buffer = gpu.buffer(&stream)?;
    stream.synchronize()?;
    hold_if_asked()?;
    let graph = capture(&gpu, &stream, &mut buffer)?;
    for _ in 0..launches {
        replay(&graph)?;
    }
    stream.synchronize()?;
    let values = stream.clone_dtoh(&buffer)?;
    let expected = if launches == 0 { 0.0 } else { 42.0 };
    let mut account = Account::new("graphs");
    account.ran(FILL, launches);
    account.ran(SCALE, 2 * launches);
    account.note("graph_launches", launches);
    account.note("nodes", NODES);
    account.note("captured", NODES);
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
    let graph = stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    graph.ok_or_else(|| "the capture gave no graph".into())
}

#[unsafe(no_mangle)]
#[inline(never)]
fn replay(graph: &CudaGraph) -> Result<()> {
    std::hint::black_box(graph.launch())?;
    Ok(())
}
