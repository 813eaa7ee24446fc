//! Finds or builds what the tests run: the binary, workloads, the software GPU, small C programs.

use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::SystemTime;

/// The names under which programs look up CUDA's libraries.
const LIBRARY_NAMES: &[&str] =
    &["libcuda.so.1", "libcuda.so", "libcudart.so.13", "libcudart.so", "libcupti.so.13", "libcupti.so"];
/// The binary's sources, relative to the workspace's root.
const SOURCES: &[&str] = &[
    "runtime",
    "bpf",
    "gpu-probes",
    "scripts",
    "stdlib",
    "tests/workloads",
    "tests/replay",
    "Cargo.lock",
    "Cargo.toml",
];

/// Returns the binary under test: `$XPUTRACE`; else the release build if it is newer than its
/// sources; else a debug build, made now.
pub fn xputrace() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("XPUTRACE") {
        Some(path) => path.into(),
        None => {
            let release = target_directory().join("release/xputrace");
            if modified(&release).is_some_and(|it| it >= newest_source()) { release } else { debug_build() }
        }
    })
}

/// Returns a program of `tests/workloads`.
pub fn workload(name: &str) -> PathBuf {
    let path = payload().join(name);
    assert!(path.exists(), "there is no workload {}", path.display());
    path
}

/// Returns a directory for `LD_LIBRARY_PATH`, with the software GPU under CUDA's names.
pub fn softgpu() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = stage().join("softgpu");
        fs::create_dir_all(&directory).expect("a directory for the software GPU");
        let library = payload().join("libxputrace_softgpu.so");
        for name in LIBRARY_NAMES {
            // Other tests may be using the link: it is replaced at once.
            let link = directory.join(format!("{name}.{}", std::process::id()));
            symlink(&library, &link)
                .and_then(|()| fs::rename(&link, directory.join(name)))
                .expect("a link to the software GPU");
        }
        directory
    })
}

/// Builds a C program with frame pointers, once.
pub fn c_program(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let flags: Vec<String> = flags.iter().map(|it| it.to_string()).collect();
    compiled(name, "c", source, &flags).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns a program by name: of `tests/live/programs` (a Python program is its own source), else a workload.
pub fn program(name: &str) -> PathBuf {
    if name.ends_with(".py") {
        return root().join("tests/live/programs").join(name);
    }
    let source = root().join("tests/live/programs").join(format!("{name}.c"));
    match fs::read_to_string(source) {
        Ok(text) => {
            let flags = text.lines().find_map(|it| it.strip_prefix("// flags: ")).unwrap_or_default();
            c_program(name, &text, &flags.split_whitespace().collect::<Vec<_>>())
        }
        Err(_) => workload(name),
    }
}

/// Compiles a program (`language` is `c` or `cpp`), unless the same source was already compiled
/// with the same flags, in which `$SOFTGPU` is the software GPU's directory.
///
/// # Errors
/// The compiler fails or is missing.
pub fn compiled(
    name: &str,
    language: &str,
    source: &str,
    flags: &[String],
) -> Result<PathBuf, Box<dyn Error + Send + Sync>> {
    // Cases run concurrently, and so do test processes.
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILER.lock().unwrap_or_else(|it| it.into_inner());
    let mut hasher = DefaultHasher::new();
    (language, source, flags).hash(&mut hasher);
    let directory = stage().join(format!("{name}-{:016x}", hasher.finish()));
    let output = directory.join(name);
    if !output.exists() {
        fs::create_dir_all(&directory)?;
        compile(&directory, name, language, source, flags)?;
    }
    Ok(output)
}

fn compile(
    directory: &Path,
    name: &str,
    language: &str,
    source: &str,
    flags: &[String],
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let own = std::process::id();
    let (input, unfinished) = (directory.join(format!("{own}.{language}")), directory.join(format!("{own}.out")));
    fs::write(&input, source)?;
    let mut compiler = Command::new(if language == "cpp" { "c++" } else { "cc" });
    compiler
        .args(["-O0", "-g", "-w", "-pthread", "-fno-omit-frame-pointer", "-o"])
        .arg(&unfinished)
        .arg(&input)
        .args(flags.iter().map(|it| if it == "$SOFTGPU" { softgpu().as_os_str() } else { it.as_ref() }));
    let done = compiler.output()?;
    if !done.status.success() {
        return Err(format!("{name} does not compile:\n{}", String::from_utf8_lossy(&done.stderr)).into());
    }
    // Renaming is atomic, so a file of this name is complete.
    Ok(fs::rename(unfinished, directory.join(name))?)
}

/// Returns where the binary's build leaves the workloads and the software GPU (`runtime/xputrace/build.rs`); builds it if it did
/// not.
fn payload() -> &'static Path {
    static PAYLOAD: OnceLock<PathBuf> = OnceLock::new();
    PAYLOAD.get_or_init(|| {
        let payload = target_directory().join("payload/release");
        if !payload.join("server").exists() {
            debug_build();
        }
        payload
    })
}

fn debug_build() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "-q", "-p", "xputrace", "--target-dir"]).arg(target_directory());
    assert!(cargo.status().is_ok_and(|it| it.success()), "xputrace does not build");
    target_directory().join("debug/xputrace")
}

/// Returns a directory for the tests, next to the build.
fn stage() -> PathBuf {
    let stage = target_directory().join("tests-stage");
    fs::create_dir_all(&stage).expect("a directory for the tests' programs");
    stage
}

/// Three levels above the running test, `target/debug/deps/live-…`.
pub fn target_directory() -> PathBuf {
    let exe = std::env::current_exe().expect("a test knows its own file");
    exe.ancestors().nth(3).expect("tests lie in the target directory").to_path_buf()
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn newest_source() -> SystemTime {
    let all = SOURCES.iter().map(|it| newest_below(&root().join(it)));
    all.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn newest_below(path: &Path) -> SystemTime {
    if !path.is_dir() {
        return modified(path).unwrap_or(SystemTime::UNIX_EPOCH);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let inside = entries.filter(|it| it.file_name() != "target").map(|it| newest_below(&it.path()));
    inside.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
