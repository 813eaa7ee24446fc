//! Launches, every third of which fails because it has too many threads per block.
//!
//! `failing [--launches=30] [--hold]`

use std::sync::Arc;

use cudarc::driver::CudaStream;
use xputrace_workloads::{Account, Gpu, NOP, Result, config, hold_if_asked, option};

/// More than any GPU allows.
const TOO_MANY_THREADS: u32 = 4096;

fn main() -> Result<()> {
    let attempts = option("launches", 30)?;
    let gpu = Gpu::open()?;
    let stream = gpu.stream()?;
    hold_if_asked()?;
    let failed: u64 = (1..=attempts).map(|number| u64::from(!try_launch(&gpu, &stream, number % 3 == 0))).sum();
    stream.synchronize()?;
    let mut account = Account::new("failing");
    account.launched(NOP, attempts - failed);
    account.note("attempts", attempts);
    account.note("failed", failed);
    account.print(&gpu)
}

/// Returns whether the launch was accepted.
#[unsafe(no_mangle)]
#[inline(never)]
fn try_launch(gpu: &Gpu, stream: &Arc<CudaStream>, spoil: bool) -> bool {
    let threads = if spoil { TOO_MANY_THREADS } else { 1 };
    // SAFETY: the kernel has no parameters.
    unsafe { stream.launch_builder(&gpu.nop).launch(config(1, threads)) }.is_ok()
}
