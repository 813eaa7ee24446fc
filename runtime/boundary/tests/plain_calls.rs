//! No module of the tracer but this crate's opens, maps, makes or runs a file by itself, nor sends to another process.
//!
//! Files of procfs, sysfs and tracefs, which only Linux writes, may be read plainly where their path says so in the same
//! line. Every other exception stands here with its reason.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates that run in the tracer. What runs inside targets has their rights, and nobody's trust.
const CRATES: &[&str] = &[
    "bpf/bytecode",
    "bpf/linux",
    "gpu-probes/cubins",
    "gpu-probes/cuda-calls",
    "gpu-probes/device",
    "gpu-probes/events",
    "gpu-probes/inject",
    "gpu-probes/ptx",
    "gpu-probes/twins",
    "gpu-probes/wire",
    "runtime/bpftrace",
    "runtime/compiler",
    "runtime/model",
    "runtime/nvidia",
    "runtime/objects",
    "runtime/pipeline",
    "runtime/recording",
    "runtime/render",
    "runtime/rendezvous",
    "runtime/replay",
    "runtime/script",
    "runtime/store",
    "runtime/symbols",
    "runtime/xputrace",
];

/// Parts of calls, and what to use in their place.
const FORBIDDEN: &[(&str, &str)] = &[
    ("fs::read(", "read::open and read::contents, or read::named"),
    ("fs::read_to_string(", "read::of_linux, or read::open and read::contents"),
    ("File::open(", "read::open"),
    ("File::create", "create::Creator"),
    ("File::options(", "read::open or create::Creator"),
    ("OpenOptions::new(", "read::open or create::Creator"),
    ("fs::write(", "create::Creator"),
    ("fs::copy(", "create::Creator"),
    ("fs::rename(", "create::Creator"),
    ("fs::create_dir", "create::Creator"),
    ("DirBuilder::new(", "create::Creator"),
    ("symlink(", "create::Creator"),
    ("hard_link(", "create::Creator"),
    ("fs::set_permissions(", "create::Creator"),
    ("fs::canonicalize(", "the path as it is, or what was opened by it"),
    (".canonicalize()", "the path as it is, or what was opened by it"),
    ("fs::metadata(", "read::open, and the file's own"),
    ("fs::symlink_metadata(", "read::open, and the file's own; trust::Changers"),
    ("fs::read_dir(", "read::entries"),
    (".read_dir()", "read::entries"),
    ("fs::remove_file(", "create::Creator"),
    ("fs::remove_dir", "create::Creator"),
    ("NamedTempFile", "create::Creator"),
    ("tempfile::Builder", "create::Creator"),
    ("Mmap::map", "copied::FileCopy"),
    ("MmapOptions::new(", "copied::FileCopy"),
    ("ReadCache::new(", "copied::FileCopy"),
    ("Command::new(", "child::run"),
    ("libc::open", "read::open"),
    ("libc::fork(", "child::run"),
    ("libc::SYS_execve", "child::run"),
    ("libc::posix_spawn", "child::run"),
    ("libc::send(", "rendezvous::socket::send"),
    ("libc::sendto(", "rendezvous::socket::send"),
    ("libc::sendmsg(", "rendezvous::socket::send"),
    ("libc::setuid(", "user::ActingAs"),
    ("libc::SYS_setresuid", "user::ActingAs"),
];

/// Files that may use a call, and why.
const ALLOWED: &[(&str, &str, &str)] = &[
    ("bpf/linux/src/catalog.rs", "fs::read_dir(", "tracefs"),
    ("bpf/linux/src/list.rs", ".canonicalize()", "a path to show"),
    ("bpf/linux/src/resolve.rs", ".canonicalize()", "a path that the user has named; nothing is opened by trust in it"),
    ("bpf/linux/src/resolve.rs", "fs::metadata(", "numbers by which a file is told from others; it need not be one"),
    (
        "bpf/linux/src/resolve.rs",
        "fs::read_dir(",
        "names in directories of the system, of our environment and the command's",
    ),
    ("bpf/linux/src/btf.rs", "fs::read(", "Linux's own types, in sysfs"),
    ("bpf/linux/src/process.rs", "fs::metadata(", "numbers by which files are compared"),
    ("bpf/linux/src/spawn.rs", "libc::fork(", "starts the command that the user gave, as the user runs it"),
    ("bpf/linux/src/spawn.rs", "libc::SYS_execve", "the same"),
    ("bpf/linux/src/sys.rs", "libc::fork(", "tells in a child whether a system call ends us"),
    ("bpf/linux/src/trial.rs", "MmapOptions::new(", "Linux probes only what is mapped; nothing reads these bytes"),
    ("gpu-probes/cubins/src/cache.rs", "DirBuilder::new(", "root's own directory, or the user's own: checked at once"),
    ("gpu-probes/cubins/src/cache.rs", "fs::symlink_metadata(", "the check of that directory"),
    ("gpu-probes/cubins/src/cache.rs", "fs::read_dir(", "that directory: nobody else can write there"),
    ("gpu-probes/cubins/src/cache.rs", "fs::remove_file(", "root's own directory, or the user's own: checked at once"),
    (
        "gpu-probes/wire/src/nvidia/cupti.rs",
        "fs::read_dir(",
        "names, also looked for inside targets; who takes one opens it by its rules",
    ),
    ("runtime/rendezvous/src/dormant.rs", "fs::metadata(", "a namespace in procfs"),
    ("runtime/rendezvous/src/socket.rs", "libc::sendmsg(", "is that module"),
    ("runtime/rendezvous/src/socket.rs", "DirBuilder::new(", "a random name, and an error if it is there"),
    ("runtime/rendezvous/src/network.rs", "File::open(", "a namespace in procfs"),
    ("runtime/xputrace/src/attach.rs", "fs::metadata(", "numbers by which files are compared"),
    ("runtime/xputrace/src/collectors.rs", "File::open(", "/dev/null"),
    ("runtime/xputrace/src/collectors/attaching.rs", "fs::metadata(", "numbers by which files are compared"),
    ("runtime/nvidia/src/facts.rs", ".canonicalize()", "a name to show, of our own CUPTI"),
    ("runtime/nvidia/src/drivers/given.rs", "fs::metadata(", "whether there is something: a note about that process"),
    ("runtime/xputrace/src/open_files.rs", "File::open(", "/dev/null"),
    ("runtime/xputrace/src/console.rs", "OpenOptions::new(", "our own standard streams, by their descriptors"),
    ("runtime/xputrace/src/completions.rs", "Command::new(", "clap's, which is no process"),
    ("runtime/xputrace/src/demo.rs", "Command::new(", "this program itself"),
    ("runtime/xputrace/src/run/prepared.rs", "Command::new(", "a type of ours, which is no process"),
    ("runtime/nvidia/src/twins/bundled.rs", "fs::write(", "a test"),
    ("runtime/nvidia/src/twins/bundled.rs", "Command::new(", "a test"),
];

/// What marks a path as one that only Linux writes.
const OF_LINUX: [&str; 2] = ["\"/proc", "\"/sys/"];

/// What leads out of procfs, to files of targets.
const OF_TARGETS: [&str; 4] = ["/root", "/cwd", "/exe", "/map_files"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(directory: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") && path.file_name().unwrap() != "tests.rs" {
            all.push(path);
        }
    }
}

/// Returns the lines of shipped code: without comments, and without what follows the first `#[cfg(test)]`.
fn shipped(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().take_while(|it| it.trim() != "#[cfg(test)]").enumerate();
    lines.filter(|(_, it)| !it.trim_start().starts_with("//")).map(|(at, it)| (at + 1, it))
}

/// Whether a line has a call, and not one whose name ends like it.
fn has_word(line: &str, call: &str) -> bool {
    let is_inside = |at: usize| line[..at].ends_with(|it: char| it.is_alphanumeric() || it == '_');
    line.match_indices(call).any(|(at, _)| call.starts_with('.') || !is_inside(at))
}

#[test]
fn what_others_control_is_touched_here_alone() {
    let root = root();
    let mut files = Vec::new();
    CRATES.iter().for_each(|it| sources(&root.join(it).join("src"), &mut files));
    assert!(files.len() > 300, "the crates were not found");
    let (mut found, mut used) = (String::new(), vec![false; ALLOWED.len()]);
    for path in files {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in shipped(&text) {
            for (call, instead) in FORBIDDEN.iter().filter(|it| has_word(line, it.0)) {
                let allowed = ALLOWED.iter().position(|it| it.0 == name && it.1 == *call);
                allowed.into_iter().for_each(|it| used[it] = true);
                let is_of_linux =
                    OF_LINUX.iter().any(|it| line.contains(it)) && !OF_TARGETS.iter().any(|it| line.contains(it));
                if allowed.is_none() && !is_of_linux {
                    writeln!(found, "{name}:{number}: {}\n    use {instead}", line.trim()).unwrap();
                }
            }
        }
    }
    assert!(found.is_empty(), "plain calls on what another user may control:\n{found}");
    let unused: Vec<_> = ALLOWED.iter().zip(used).filter(|it| !it.1).map(|it| it.0).collect();
    assert!(unused.is_empty(), "exceptions that are no longer needed: {unused:?}");
}
