//! Another Linux in QEMU, with this machine's files. `tests/kernels.sh` brings its kernel.

use crate::build::{root, target_directory};
use crate::case::Failure;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The versions of Linux that are run in QEMU, as in cases' lines `kernel:`.
pub const VERSIONS: [&str; 2] = ["6.12", "6.1"];

const QEMU: &str = "qemu-system-x86_64";
/// What takes longer hangs: a suite takes some minutes.
const PATIENCE: Duration = Duration::from_secs(3600);
const GLANCE: Duration = Duration::from_millis(50);

/// What a system has, before the lines.
const PREPARES: &str = "
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
ln -s /proc/self/fd /dev/fd
";

/// Returns why a Linux can't be run here, if so.
pub fn missing(version: &str) -> Option<String> {
    let kept = kept();
    if !kept.join(version).join("vmlinuz").exists() {
        let why = fs::read_to_string(kept.join(format!("{version}.missing")));
        return Some(why.map_or("tests/kernels.sh brings it".into(), |it| it.trim().to_string()));
    }
    (!crate::case::finds(QEMU)).then(|| format!("no {QEMU}"))
}

/// Boots a Linux, runs lines of bash in it, as root, and waits until it is off. It sees this machine's files, and what it
/// writes goes with it, except below `shared`.
///
/// # Errors
/// It can't be started, hangs, or never came to run the lines.
pub fn run(version: &str, lines: &str, shared: &Path) -> Result<(), Failure> {
    let begun = shared.join("begun");
    let path = std::env::var("PATH").unwrap_or_default();
    let enters = format!("export PATH='{path}' HOME=/root\ncd '{}'\ntouch '{}'", root().display(), begun.display());
    let work = format!("{PREPARES}{enters}\n{lines}\n");
    fs::write(shared.join("work.sh"), work)?;
    let console = shared.join("console");
    let mut qemu = qemu(version, shared);
    let ended =
        wait(qemu.stdin(Stdio::null()).stdout(File::create(&console)?).stderr(File::create(&console)?).spawn()?);
    match (ended, begun.exists()) {
        (true, true) => Ok(()),
        (ended, _) => {
            let what = if ended { "did not boot" } else { "hangs" };
            Err(format!("Linux {version} {what}: {}", String::from_utf8_lossy(&fs::read(console)?)).into())
        }
    }
}

fn qemu(version: &str, shared: &Path) -> Command {
    let kept = kept().join(version);
    let share = |tag: &str, path: &Path, more: &str| {
        format!("local,path={},mount_tag={tag},security_model=none,multidevs=remap{more}", path.display())
    };
    let mut qemu = Command::new(QEMU);
    // Not KVM: where the machine is itself a guest, it may hang. Not in several threads: Linux changes its own code under way,
    // and one CPU may run into what another has just changed.
    qemu.args(["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "2", "-m", "2048", "-no-reboot"])
        .args(["-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(kept.join("vmlinuz"))
        .arg("-initrd")
        .arg(kept.join("initramfs"))
        .args(["-virtfs", &share("host", Path::new("/"), ",readonly=on")])
        .args(["-virtfs", &share("shared", shared, "")])
        .args([
            "-append",
            &format!("console=ttyS0 quiet panic=-1 mitigations=off xputrace.shared={}", shared.display()),
        ]);
    qemu
}

/// Whether it ends by itself.
fn wait(mut qemu: Child) -> bool {
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        match qemu.try_wait() {
            Ok(None) => std::thread::sleep(GLANCE),
            ended => return ended.is_ok(),
        }
    }
    let _ = qemu.kill();
    let _ = qemu.wait();
    false
}

/// Where `tests/kernels.sh` keeps what it has brought.
fn kept() -> PathBuf {
    target_directory().join("linux")
}
