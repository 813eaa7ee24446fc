//! A process with two children: one runs this program again and launches too; the other is a bare
//! fork that does nothing.
//!
//! `forker [--launches=50] [--hold]`; it passes `--child` to itself. The bare fork happens while
//! the parent uses CUDA, which a tool in the process must survive.

use std::process::{Command, Stdio};
use std::sync::Arc;

use cudarc::driver::CudaStream;
use serde_json::Value;
use xputrace_workloads::{Account, Gpu, NOP, Result, flag, hold_if_asked, option};

fn main() -> Result<()> {
    let launches = option("launches", 50)?;
    let gpu = Gpu::open()?;
    let stream = gpu.stream()?;
    hold_if_asked()?;
    launch_all(&gpu, &stream, launches)?;
    if flag("child") {
        let mut account = Account::new("forker-child");
        account.launched(NOP, launches);
        return account.print(&gpu);
    }
    let forked = fork_and_wait()?;
    let child = run_child(launches)?;
    launch_all(&gpu, &stream, launches)?;
    let mut account = Account::new("forker");
    account.launched(NOP, 2 * launches);
    account.note("child", child);
    account.note("forked_exit", forked);
    account.print(&gpu)
}

#[unsafe(no_mangle)]
#[inline(never)]
fn launch_all(gpu: &Gpu, stream: &Arc<CudaStream>, launches: u64) -> Result<()> {
    for _ in 0..launches {
        gpu.nop(stream)?;
    }
    stream.synchronize()?;
    Ok(())
}

fn run_child(launches: u64) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .arg("--child")
        .arg(format!("--launches={launches}"))
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("run the child: it ended with {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the exit status of a forked child that ends at once.
fn fork_and_wait() -> Result<i32> {
    // SAFETY: the child only calls `_exit`.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(format!("fork: {}", std::io::Error::last_os_error()).into()),
        // SAFETY: ends the child without running the parent's exit handlers.
        0 => unsafe { libc::_exit(0) },
        pid => {
            let mut status = 0;
            // SAFETY: `status` is valid for the write.
            if unsafe { libc::waitpid(pid, &mut status, 0) } == -1 {
                return Err(format!("wait for the fork: {}", std::io::Error::last_os_error()).into());
            }
            Ok(libc::WEXITSTATUS(status))
        }
    }
}
