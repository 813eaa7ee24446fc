//! Where a program runs, by its section and its name.

use xputrace_model::plan::DeviceEvent;

/// A program of this prefix runs on the GPU.
const GPU_PREFIX: &str = "cuda__";
/// Before a kernel's name, for loaders that would take it for a function of Linux.
const KERNEL_PREFIX: &str = "cuda_";

/// Whether a program runs on the GPU, by its name.
pub(crate) fn is_on_gpu(program: &str) -> bool {
    program.starts_with(GPU_PREFIX)
}

/// Returns where in which kernels a GPU program of this section runs. The error is a sentence.
pub(crate) fn of_gpu(section: &str) -> Result<(DeviceEvent, Vec<String>), String> {
    let (kind, target) = section.split_once('/').unwrap_or((section, ""));
    let place = match kind {
        "kprobe" => DeviceEvent::Entry,
        "kretprobe" => DeviceEvent::Exit,
        _ => {
            return Err(format!(
                "a program on the GPU runs at a kernel's entry (kprobe/KERNEL) or exit (kretprobe/KERNEL), \
                 by the kernel's mangled name, and not at `{section}`. Say where with --attach PROGRAM=kprobe/KERNEL"
            ));
        }
    };
    match target {
        "__memcapture" => return Err("running before each load and store is not supported yet".into()),
        "__directly_run" => return Err("running as a kernel of its own is not supported yet".into()),
        _ => {}
    }
    let kernel = |it: &str| it.trim().strip_prefix(KERNEL_PREFIX).unwrap_or(it.trim()).to_owned();
    let mut kernels: Vec<String> = target.split(',').map(kernel).filter(|it| !it.is_empty()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    match kernels.is_empty() {
        true => Err(format!("the name of the kernel is missing: write SEC(\"{kind}/KERNEL\")")),
        false => Ok((place, kernels)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_name_kernels() {
        let of = |section: &str| of_gpu(section).map(|(place, it)| (place, it.join(" ")));
        assert_eq!(of("kprobe/_Z1fv"), Ok((DeviceEvent::Entry, "_Z1fv".into())));
        assert_eq!(of("kretprobe/cuda__Z1fv"), Ok((DeviceEvent::Exit, "_Z1fv".into())));
        assert_eq!(of("kprobe/b, a,b"), Ok((DeviceEvent::Entry, "a b".into())));
        for refused in ["kprobe", "kprobe/", "kprobe/,", "uprobe/libc.so.6:malloc", "kprobe/__memcapture"] {
            assert!(of(refused).is_err(), "{refused}");
        }
    }
}
