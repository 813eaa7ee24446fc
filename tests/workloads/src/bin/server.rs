//! Handles requests that launch kernels, for measuring GPU time per request.
//!
//! `server [--requests=100] [--pause-us=0] [--hold] [--until-input]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream};
use xputrace_workloads::{Account, ELEMENTS, FILL, Gpu, NOP, Result, SCALE, flag, hold_if_asked, option, until_input};

// The linker calls what is in here (`build.rs`).
core::arch::global_asm!(include_str!(concat!(env!("OUT_DIR"), "/old_glibc.s")));

/// Launches per request: one `fill`, two `scale`, one `nop`.
const LAUNCHES_PER_REQUEST: u64 = 4;

struct Server {
    gpu: Gpu,
    stream: Arc<CudaStream>,
    buffer: CudaSlice<f32>,
    failures: u64,
}

fn main() -> Result<()> {
    let (requests, pause) = (option("requests", 100)?, option("pause-us", 0)?);
    let gpu = Gpu::open()?;
    let stream = gpu.stream()?;
    let buffer = gpu.buffer(&stream)?;
    let mut server = Server { gpu, stream, buffer, failures: 0 };
    hold_if_asked()?;
    let goes_on = until_input();
    let last = if flag("until-input") { u64::MAX } else { requests };
    let mut handled = 0;
    while handled < last && goes_on() {
        handle_request(handled, &mut server);
        handled += 1;
        std::thread::sleep(Duration::from_micros(pause));
    }
    server.report(handled)
}

/// Handles a request. Tests probe this function.
#[unsafe(no_mangle)]
#[inline(never)]
#[allow(clippy::print_stderr, reason = "a program to trace says what goes wrong in it")]
extern "C" fn handle_request(id: u64, server: &mut Server) {
    let answered = prepare_batch(id, server).and_then(|()| run_layers(server)).and_then(|()| finish_request(server));
    if let Err(error) = answered {
        eprintln!("server: answer request {id}: {error}");
        server.failures += 1;
    }
    black_box(id);
}

#[unsafe(no_mangle)]
#[inline(never)]
fn prepare_batch(id: u64, server: &mut Server) -> Result<()> {
    black_box(server.gpu.fill(&server.stream, &mut server.buffer, (id % 100) as f32))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn run_layers(server: &mut Server) -> Result<()> {
    black_box(run_layer(server, 2.0))?;
    black_box(run_layer(server, 3.0))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn run_layer(server: &mut Server, by: f32) -> Result<()> {
    black_box(server.gpu.scale(&server.stream, &mut server.buffer, by))
}

#[unsafe(no_mangle)]
#[inline(never)]
fn finish_request(server: &mut Server) -> Result<()> {
    black_box(server.gpu.nop(&server.stream))?;
    server.stream.synchronize()?;
    Ok(())
}

impl Server {
    fn report(self, requests: u64) -> Result<()> {
        let values = self.stream.clone_dtoh(&self.buffer)?;
        let expected = if requests == 0 { 0.0 } else { ((requests - 1) % 100) as f32 * 6.0 };
        let mut account = Account::new("server");
        account.launched(FILL, requests);
        account.launched(SCALE, 2 * requests);
        account.launched(NOP, requests);
        account.note("requests", requests);
        account.note("launches_per_request", LAUNCHES_PER_REQUEST);
        account.note("failures", self.failures);
        account.note("verified", values.len() == ELEMENTS as usize && values.iter().all(|&value| value == expected));
        account.print(&self.gpu)
    }
}
