//! Several threads, each launching in a stream of its own.
//!
//! `threads [--threads=4] [--launches=1000] [--every=256] [--together] [--hold] [--until-input]`:
//! each thread launches `nop` `--launches` times, and waits for its stream after every `--every`
//! launches. With `--together`, each thread waits after its first launch until all have made
//! theirs.

use std::sync::{Arc, Barrier};
use xputrace_workloads::{Account, Gpu, NOP, Result, flag, hold_if_asked, option, until_input};

fn main() -> Result<()> {
    let (threads, launches, every) = (option("threads", 4)?, option("launches", 1000)?, option("every", 256)?.max(1));
    let gpu = Gpu::open()?;
    hold_if_asked()?;
    let goes_on = until_input();
    let launches = if flag("until-input") { u64::MAX } else { launches };
    let all = flag("together").then(|| Arc::new(Barrier::new(threads as usize)));
    let workers: Vec<_> = (0..threads)
        .map(|number| {
            let (gpu, goes_on, all) = (gpu.clone(), goes_on.clone(), all.clone());
            let launcher = std::thread::Builder::new().name(format!("launcher-{number}"));
            launcher.spawn(move || worker(&gpu, launches, every, all.as_deref(), &goes_on))
        })
        .collect::<std::io::Result<_>>()?;
    let mut launched = 0;
    for worker in workers {
        launched += worker.join().map_err(|_| "a launching thread panicked")??;
    }
    let mut account = Account::new("threads");
    account.launched(NOP, launched);
    account.note("threads", threads);
    account.print(&gpu)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn worker(gpu: &Gpu, launches: u64, every: u64, all: Option<&Barrier>, goes_on: &dyn Fn() -> bool) -> Result<u64> {
    let stream = gpu.stream()?;
    let mut launched = 0;
    while launched < launches && goes_on() {
        gpu.nop(&stream)?;
        launched += 1;
        if launched == 1 {
            all.map(Barrier::wait);
        }
        if launched % every == 0 {
            stream.synchronize()?;
        }
    }
    stream.synchronize()?;
    Ok(launched)
}
