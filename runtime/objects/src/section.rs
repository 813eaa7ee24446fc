//! Where a program runs, by its section and its name.

use xputrace_bytecode::object::SET_ASIDE;
use xputrace_model::plan::DeviceEvent;
use xputrace_model::schema::Event;

/// A program of this prefix runs on the GPU.
const GPU_PREFIX: &str = "cuda__";
/// Before a kernel's name, for loaders that would take it for a function of Linux.
const KERNEL_PREFIX: &str = "cuda_";

/// Sections whose programs libbpf attaches, with what follows the slash.
const BY_LIBBPF: [(&str, &str); 15] = [
    ("usdt", "PATH:PROVIDER:NAME"),
    ("raw_tp", "NAME"),
    ("raw_tracepoint", "NAME"),
    ("raw_tp.w", "NAME"),
    ("raw_tracepoint.w", "NAME"),
    ("tp_btf", "NAME"),
    ("fentry", "FUNCTION"),
    ("fentry.s", "FUNCTION"),
    ("fexit", "FUNCTION"),
    ("fexit.s", "FUNCTION"),
    ("ksyscall", "CALL"),
    ("kretsyscall", "CALL"),
    ("kprobe.multi", "FUNCTION"),
    ("kretprobe.multi", "FUNCTION"),
    ("kprobe.session", "FUNCTION"),
];

/// Where a program in Linux is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// A function's entry or return.
    Function {
        event: Event,
        file: String,
        function: String,
    },
    Tracepoint {
        category: String,
        name: String,
    },
    /// A timer on every CPU.
    Samples {
        hz: u64,
    },
    /// As libbpf attaches the section.
    ByLibbpf,
}

/// Where a program on the GPU runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuHook {
    /// In the kernels of these names.
    Kernels(DeviceEvent, Vec<String>),
    /// As a kernel of its own.
    Direct,
}

/// Whether a program runs on the GPU, by its name.
pub(crate) fn is_on_gpu(program: &str) -> bool {
    program.starts_with(GPU_PREFIX)
}

/// Whether libbpf leaves a section's programs out, and we do too.
pub(crate) fn is_left_out(section: &str) -> bool {
    section.starts_with(SET_ASIDE) && of_script(section).is_none()
}

/// Returns where a script's device handler runs that `xputrace build` has written (`object::write`).
pub(crate) fn of_script(section: &str) -> Option<GpuHook> {
    let (event, kernels) = section.strip_prefix(SET_ASIDE)?.split_once('/')?;
    let place = DeviceEvent::ALL.iter().find(|it| it.name() == event)?;
    Some(GpuHook::Kernels(*place, vec![kernels.to_owned()]))
}

/// Returns where a GPU program of this section runs. The error is a sentence.
pub(crate) fn of_gpu(section: &str) -> Result<GpuHook, String> {
    if let Some(hook) = of_script(section) {
        return Ok(hook);
    }
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
    match (target, place) {
        ("__memcapture", DeviceEvent::Entry) => return Ok(GpuHook::Kernels(DeviceEvent::Memory, vec!["*".into()])),
        ("__directly_run", DeviceEvent::Entry) => return Ok(GpuHook::Direct),
        ("__memcapture" | "__directly_run", _) => return Err(format!("write SEC(\"kprobe/{target}\")")),
        _ => {}
    }
    let kernel = |it: &str| it.trim().strip_prefix(KERNEL_PREFIX).unwrap_or(it.trim()).to_owned();
    let mut kernels: Vec<String> = target.split(',').map(kernel).filter(|it| !it.is_empty()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    match kernels.is_empty() {
        true => Err(format!("the name of the kernel is missing: write SEC(\"{kind}/KERNEL\")")),
        false => Ok(GpuHook::Kernels(place, kernels)),
    }
}

/// Returns where in Linux a program of this section is attached. `is_wished` if the user has named the section. The error is
/// a sentence.
pub(crate) fn of_linux(program: &str, section: &str, is_wished: bool) -> Result<Hook, String> {
    let (kind, target) = section.split_once('/').unwrap_or((section, ""));
    let missing = |form: &str| format!("it does not say where: give --attach {program}={kind}/{form}");
    match kind {
        "uprobe" | "uprobe.s" | "uprobe.multi" | "uprobe.multi.s" => {
            function(Event::Uprobe, target).ok_or_else(|| missing("FILE:FUNCTION"))
        }
        "uretprobe" | "uretprobe.s" | "uretprobe.multi" | "uretprobe.multi.s" => {
            function(Event::Uretprobe, target).ok_or_else(|| missing("FILE:FUNCTION"))
        }
        "tracepoint" | "tp" => {
            let (category, name) = target.split_once('/').ok_or_else(|| missing("CATEGORY/NAME"))?;
            Ok(Hook::Tracepoint { category: category.into(), name: name.into() })
        }
        "perf_event" => match target.trim_end_matches("hz").parse() {
            Ok(hz @ 1..) => Ok(Hook::Samples { hz }),
            _ => Err(format!("it does not say how often a second: give --attach {program}=perf_event/99")),
        },
        "kprobe" | "kretprobe" if !is_wished => Err(format!(
            "this may be a kernel of the GPU or a function of Linux. If it is a kernel, give --on-gpu {program}, or begin \
             the program's name with cuda__; if it is Linux's, give --attach {program}={kind}/FUNCTION"
        )),
        "kprobe" | "kretprobe" if target.is_empty() => Err(missing("FUNCTION")),
        "kprobe" | "kretprobe" => Ok(Hook::ByLibbpf),
        _ => match BY_LIBBPF.iter().find(|it| it.0 == kind) {
            Some((_, form)) if target.is_empty() => Err(missing(form)),
            Some(_) => Ok(Hook::ByLibbpf),
            None => Err(format!(
                "it is no section of a program that traces. Those that are: uprobe, uretprobe, usdt, tracepoint, raw_tp, \
                 perf_event, kprobe, fentry and their kin. Give --attach {program}=SECTION"
            )),
        },
    }
}

/// Whether libbpf can attach a program at a section that is not its own. The error is a sentence.
pub(crate) fn can_be_wished(section: &str) -> Result<(), String> {
    let kind = section.split_once('/').map_or(section, |it| it.0);
    match kind {
        "kprobe" | "kretprobe" | "ksyscall" | "kretsyscall" | "usdt" | "raw_tp" | "raw_tracepoint" => Ok(()),
        _ => Err(format!("libbpf knows where only from the object: write SEC(\"{section}\")")),
    }
}

/// Reads `FILE:FUNCTION`; a function may have `+OFFSET`.
fn function(event: Event, target: &str) -> Option<Hook> {
    let (file, function) =
        target.split_once(':').filter(|(file, function)| !file.is_empty() && !function.is_empty())?;
    Some(Hook::Function { event, file: file.into(), function: function.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_name_kernels() {
        let kernels =
            |place, names: &[&str]| Ok(GpuHook::Kernels(place, names.iter().map(|it| it.to_string()).collect()));
        assert_eq!(of_gpu("kprobe/_Z1fv"), kernels(DeviceEvent::Entry, &["_Z1fv"]));
        assert_eq!(of_gpu("kretprobe/cuda__Z1fv"), kernels(DeviceEvent::Exit, &["_Z1fv"]));
        assert_eq!(of_gpu("kprobe/b, a,b"), kernels(DeviceEvent::Entry, &["a", "b"]));
        assert_eq!(of_gpu("kprobe/__memcapture"), kernels(DeviceEvent::Memory, &["*"]));
        assert_eq!(of_gpu("kprobe/__directly_run"), Ok(GpuHook::Direct));
        for refused in ["kprobe", "kprobe/", "kprobe/,", "uprobe/libc.so.6:malloc", "kretprobe/__memcapture"] {
            assert!(of_gpu(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn what_build_writes_is_known() {
        let exit = GpuHook::Kernels(DeviceEvent::Exit, vec!["a*,b".into()]);
        assert_eq!((of_script("?device_exit/a*,b"), of_gpu("?device_exit/a*,b")), (Some(exit.clone()), Ok(exit)));
        assert!(is_left_out("?syscall") && is_left_out("?uprobe.multi") && !is_left_out("?device_mem/*"));
    }

    #[test]
    fn sections_name_places_in_linux() {
        let of = |section: &str| of_linux("f", section, false);
        let malloc = |event| Hook::Function { event, file: "/lib/libc.so.6".into(), function: "malloc+0x4".into() };
        assert_eq!(of("uprobe.multi.s//lib/libc.so.6:malloc+0x4"), Ok(malloc(Event::Uprobe)));
        assert_eq!(of("uretprobe//lib/libc.so.6:malloc+0x4"), Ok(malloc(Event::Uretprobe)));
        let switch = Hook::Tracepoint { category: "sched".into(), name: "sched_switch".into() };
        assert_eq!(
            (of("tp/sched/sched_switch"), of("tracepoint/sched/sched_switch")),
            (Ok(switch.clone()), Ok(switch))
        );
        assert_eq!(
            (of("perf_event/99hz"), of("perf_event/7")),
            (Ok(Hook::Samples { hz: 99 }), Ok(Hook::Samples { hz: 7 }))
        );
        assert_eq!((of("usdt/./a:b:c"), of("raw_tp/sys_enter")), (Ok(Hook::ByLibbpf), Ok(Hook::ByLibbpf)));
        for refused in ["uprobe", "uprobe/x", "tp/sched", "perf_event", "perf_event/0", "usdt", "kprobe/f", "xdp"] {
            assert!(of(refused).is_err(), "{refused}");
        }
        assert_eq!(of_linux("f", "kprobe/f", true), Ok(Hook::ByLibbpf));
        assert!(of_linux("f", "kretprobe", true).is_err());
    }
}
