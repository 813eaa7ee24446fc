//! The C program that the plans probe, and how to run it.

use crate::plans::{counter, uprobe};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use xputrace_bytecode::BpfMapId;
use xputrace_linux::{AttachReport, Linux, Outcome, StoppedChild};
use xputrace_model::plan::Plan;

pub fn is_root() -> bool {
    // SAFETY: takes no arguments, cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the compiled test program.
pub fn target() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("target");
            compile("target.c", &path, &["-pthread", "-ldl"]);
            path
        })
        .clone()
}

/// Returns the program whose functions cannot be probed.
#[cfg(target_arch = "x86_64")]
pub fn odd() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("odd");
            compile("odd.c", &path, &["-mavx"]);
            path
        })
        .clone()
}

pub fn compile(source: &str, to: &Path, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(source);
    // Another test process may already be probing the file, so don't compile it again.
    let lock = std::fs::File::create(to.with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let made = |path: &Path| path.metadata().and_then(|it| it.modified()).ok();
    if made(to) > made(&source) {
        return;
    }
    let built = to.with_extension(format!("{}.new", std::process::id()));
    let status = Command::new("cc")
        .args(["-O1", "-fno-omit-frame-pointer", "-Wl,--build-id=sha1", "-o"])
        .arg(&built)
        .arg(source)
        .args(flags)
        .status()
        .expect("cc");
    assert!(status.success());
    std::fs::rename(built, to).unwrap();
}

pub fn words(arguments: &[&str]) -> Vec<OsString> {
    std::iter::once(target().into_os_string()).chain(arguments.iter().map(OsString::from)).collect()
}

/// Runs the test program to its end, with the plan attached before its `exec`.
pub fn run(plan: &Plan, arguments: &[&str]) -> (Linux, AttachReport) {
    run_in(Linux::load(plan).unwrap(), plan, arguments)
}

pub fn run_in(mut linux: Linux, plan: &Plan, arguments: &[&str]) -> (Linux, AttachReport) {
    let mut child = StoppedChild::spawn(&words(arguments), &[], None).unwrap();
    let report = linux.attach(plan, &child.scope()).unwrap();
    assert!(child.wait().unwrap().success());
    (linux, report)
}

pub fn places(report: &AttachReport) -> Vec<usize> {
    let places = |it: &Outcome| match it {
        Outcome::Attached { functions, .. } => *functions,
        _ => 0,
    };
    report.probes.iter().map(|it| places(&it.outcome)).collect()
}

pub fn poll_until(linux: &mut Linux, mut done: impl FnMut(&mut Linux) -> bool) {
    let give_up = Instant::now() + Duration::from_secs(120);
    while !done(linux) {
        assert!(Instant::now() < give_up, "it did not happen");
        linux.poll(Duration::from_millis(100), &mut |_| {}).unwrap();
    }
}

pub fn make_fifo(directory: &tempfile::TempDir) -> PathBuf {
    let path = directory.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// The test program with a counter on `work`, about to wait at a FIFO.
pub struct AtWork {
    pub linux: Linux,
    pub child: StoppedChild,
    /// Index of the counter's map.
    pub work: BpfMapId,
    pub fifo: PathBuf,
    /// Contains the copy and the FIFO; removed on drop.
    pub directory: tempfile::TempDir,
}

/// Starts a copy of the test program in one of its waiting modes; it then makes `calls` calls. A copy, because other tests
/// probe the same function meanwhile, and a process without a main thread loses its uprobes when they are done.
pub fn at_work(mode: &str, calls: &str) -> AtWork {
    let mut plan = Plan::default();
    let work = counter(&mut plan, "work");
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("target-copy");
    std::fs::copy(target(), &copy).unwrap();
    uprobe(&mut plan, &copy, "work", work);
    let fifo = make_fifo(&directory);
    let mut linux = Linux::load(&plan).unwrap();
    let command = [copy.as_os_str(), mode.as_ref(), calls.as_ref(), fifo.as_os_str()].map(OsString::from);
    let mut child = StoppedChild::spawn(&command, &[], None).unwrap();
    linux.attach(&plan, &child.scope()).unwrap();
    child.resume().unwrap();
    AtWork { linux, child, work, fifo, directory }
}

/// Resumes `readers` processes that wait for the FIFO. Keep the file until they have ended, so that
/// none of them reads an end of file instead of its byte.
pub fn feed(fifo: &Path, readers: usize) -> std::fs::File {
    let mut writer = std::fs::OpenOptions::new().write(true).open(fifo).unwrap();
    writer.write_all(&vec![b'x'; readers]).unwrap();
    writer
}

pub fn read_counter(linux: &Linux, map: BpfMapId) -> u64 {
    let value = linux.map(map).unwrap().lookup(&[0; 4]).unwrap().unwrap();
    u64::from_ne_bytes(*value[0].first_chunk().unwrap())
}
