//! What `xputrace doctor` says of NVIDIA's driver, libraries and GPUs on this machine.

use std::path::PathBuf;
use xputrace_linux::{Fact, Standing};
use xputrace_wire::nvidia::cupti;

/// The names of [`facts`]: only GPU probes need these.
pub const NAMES: [&str; 4] = ["driver", "CUPTI", "GPU counters", "GPU"];

/// Returns facts about driver, CUPTI, restrictions and GPUs, from files and the driver's library.
pub fn facts() -> Vec<Fact> {
    let cuda = Cuda::ask();
    vec![driver(&cuda), cupti_fact(), counters(), gpus(&cuda)]
}

fn fact(name: &'static str, standing: Standing, found: impl Into<String>, fix: Option<&str>) -> Fact {
    Fact { name, standing, found: found.into(), fix: fix.map(str::to_string) }
}

fn driver(cuda: &Result<Cuda, String>) -> Fact {
    let loaded = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let is_version = |it: &&str| it.contains('.') && it.starts_with(|c: char| c.is_ascii_digit());
    let linux = loaded.and_then(|it| it.split_whitespace().find(is_version).map(str::to_string));
    match (linux, cuda) {
        (linux, Ok(cuda)) => {
            let linux = linux.map(|it| format!("NVIDIA {it}, ")).unwrap_or_default();
            let (major, minor) = (cuda.version / 1000, cuda.version % 1000 / 10);
            fact("driver", Standing::Works, format!("{linux}CUDA {major}.{minor}"), None)
        }
        (Some(linux), Err(reason)) => fact(
            "driver",
            Standing::Limited,
            format!("NVIDIA {linux} is loaded, but {reason}"),
            Some("install the driver's libraries (libcuda.so.1), or give this container the GPU"),
        ),
        (None, Err(reason)) => fact(
            "driver",
            Standing::Missing,
            format!("no NVIDIA driver: {reason}"),
            Some("install NVIDIA's driver; without a GPU, `xputrace demo` uses a software one"),
        ),
    }
}

fn cupti_fact() -> Fact {
    match find_cupti() {
        Some(path) => {
            let version = path.canonicalize().unwrap_or(path.clone());
            let name = version.file_name().unwrap_or_default().to_string_lossy().into_owned();
            fact(
                "CUPTI",
                Standing::Works,
                format!("{} ({name}); a program's own copy is preferred", path.display()),
                None,
            )
        }
        None => fact(
            "CUPTI",
            Standing::Missing,
            "no libcupti.so found (programs with their own copy still work)",
            Some(
                "install the CUDA toolkit's CUPTI (package cuda-cupti-13-0 or the wheel nvidia-cuda-cupti) or add its directory to LD_LIBRARY_PATH",
            ),
        ),
    }
}

/// Returns the CUPTI that the collector will find in a program without its own copy.
fn find_cupti() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let all = cupti::directories(&[], variable).into_iter().chain(loader_directories()).chain(cupti::wheels(variable));
    all.into_iter().find_map(|it| cupti::files(&it).into_iter().next())
}

/// Returns where the dynamic loader looks, as far as that can be told without it.
fn loader_directories() -> impl Iterator<Item = PathBuf> {
    let named = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named: Vec<PathBuf> = std::env::split_paths(&named).filter(|it| it.is_dir()).collect();
    named.into_iter().chain(["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"].map(PathBuf::from))
}

fn counters() -> Fact {
    let params = std::fs::read_to_string("/proc/driver/nvidia/params").unwrap_or_default();
    let restricted = params.lines().any(|it| it.replace(' ', "") == "RmProfilingAdminOnly:1");
    match (params.is_empty(), restricted) {
        (true, _) => {
            fact("GPU counters", Standing::Limited, "unknown without the driver; tracing does not need them", None)
        }
        (_, false) => fact("GPU counters", Standing::Works, "open to all users", None),
        (_, true) => fact(
            "GPU counters",
            Standing::Limited,
            "only for administrators; tracing does not need them",
            Some(
                "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > /etc/modprobe.d/nvidia-counters.conf, then reload the driver",
            ),
        ),
    }
}

fn gpus(cuda: &Result<Cuda, String>) -> Fact {
    match cuda {
        Ok(cuda) if !cuda.devices.is_empty() => {
            let software = cuda.devices.iter().any(|it| it.contains("software"));
            let standing = if software { Standing::Limited } else { Standing::Works };
            fact("GPU", standing, format!("{} × {}", cuda.devices.len(), cuda.devices.join(", ")), None)
        }
        _ => fact(
            "GPU",
            Standing::Missing,
            "CUDA finds no GPU",
            Some("recordings and the software GPU work without one: xputrace demo"),
        ),
    }
}

/// What the driver's library reports.
struct Cuda {
    /// 1000 × major + 10 × minor.
    version: i32,
    devices: Vec<String>,
}

impl Cuda {
    /// Loads the library as a program would; the error names the failing step.
    fn ask() -> Result<Cuda, String> {
        // SAFETY: loading the driver's library runs its initializers, as in every CUDA program.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }
            .map_err(|_| "libcuda.so.1 cannot be loaded".to_string())?;
        type Status = std::ffi::c_int;
        // SAFETY: the types are those of cuda.h; each call's pointers outlive it.
        unsafe {
            let get = |name: &str| format!("libcuda.so.1 has no {name}");
            let init = library.get::<unsafe extern "C" fn(u32) -> Status>(b"cuInit").map_err(|_| get("cuInit"))?;
            let version = library
                .get::<unsafe extern "C" fn(*mut i32) -> Status>(b"cuDriverGetVersion")
                .map_err(|_| get("cuDriverGetVersion"))?;
            let count = library
                .get::<unsafe extern "C" fn(*mut i32) -> Status>(b"cuDeviceGetCount")
                .map_err(|_| get("cuDeviceGetCount"))?;
            let name = library
                .get::<unsafe extern "C" fn(*mut u8, i32, i32) -> Status>(b"cuDeviceGetName")
                .map_err(|_| get("cuDeviceGetName"))?;
            let status = init(0);
            if status != 0 {
                return Err(format!("cuInit failed: CUDA error {status}"));
            }
            let (mut number, mut devices) = (0, 0);
            version(&mut number);
            count(&mut devices);
            // Keep the library loaded: the driver may have started threads.
            let name = *name;
            std::mem::forget(library);
            let name_of = |device| {
                let mut text = [0u8; 256];
                name(text.as_mut_ptr(), text.len() as i32, device);
                let end = text.iter().position(|it| *it == 0).unwrap_or(0);
                String::from_utf8_lossy(&text[..end]).into_owned()
            };
            Ok(Cuda { version: number, devices: (0..devices.clamp(0, 64)).map(name_of).collect() })
        }
    }
}
