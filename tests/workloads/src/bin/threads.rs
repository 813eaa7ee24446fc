//! Several threads, each launching on a stream of its own.
//!
//! `threads [--threads=4] [--launches=1000] [--every=256] [--hold]`: each thread launches `nop` so often,
//! and waits for its stream after every so many.

use xputrace_workloads::{Account, Gpu, NOP, Result, hold_if_asked, option};

fn main() -> Result<()> {
    let (threads, launches, every) = (option("threads", 4)?, option("launches", 1000)?, option("every", 256)?.max(1));
    let gpu = Gpu::open()?;
    hold_if_asked()?;
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let gpu = gpu.clone();
            std::thread::Builder::new().name(format!("launcher-{number}")).spawn(move || worker(&gpu, launches, every))
        })
        .collect::<std::io::Result<_>>()?;
    for worker in workers {
        worker.join().map_err(|_| "a launching thread panicked")??;
    }
    let mut account = Account::new("threads");
    account.launched(NOP, threads * launches);
    account.note("threads", threads);
    account.note("launches_per_thread", launches);
    account.print(&gpu)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn worker(gpu: &Gpu, launches: u64, every: u64) -> Result<()> {
    let stream = gpu.stream()?;
    for number in 1..=launches {
        gpu.nop(&stream)?;
        if number % every == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(())
}
