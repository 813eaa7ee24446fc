//! What this machine allows, for `doctor`.

use crate::attach::{has_uprobe_multi, linux_release};
use crate::catalog;
use crate::sideband::MOST_PARANOID_FOR_PROCESSES;
use std::path::Path;
use xputrace_wire::status::field;

/// One fact about the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// A short name: `BTF`, `Linux version`.
    pub name: &'static str,
    pub standing: Standing,
    /// What was found, as a sentence without a final dot.
    pub found: String,
    /// If it does not work: the exact command or setting that fixes it.
    pub fix: Option<String>,
}

/// How well it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Works,
    /// Works for some scripts only.
    Limited,
    Missing,
}

/// Checks rights, Linux version, BTF, tracefs, bpffs and the settings that restrict tracing. Loads
/// and changes nothing.
pub fn facts() -> Vec<Fact> {
    vec![
        rights(),
        linux_version(),
        btf(),
        tracefs(),
        bpffs(),
        perf_event_paranoid(),
        unprivileged_bpf(),
        ptrace_scope(),
        lockdown(),
    ]
}

/// Numbers of capabilities. Source: `include/uapi/linux/capability.h`.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

fn rights() -> Fact {
    let status = read("/proc/self/status").unwrap_or_default();
    let bits = capabilities(&status);
    let has = |it: u32| bits >> it & 1 != 0;
    let names = [("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON), ("CAP_SYS_ADMIN", CAP_SYS_ADMIN)];
    let missing: Vec<_> = names.iter().filter(|(_, it)| !has(*it)).map(|(name, _)| *name).collect();
    match (has(CAP_SYS_ADMIN), missing.is_empty()) {
        (_, true) => works("rights", "CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN"),
        (true, _) => works("rights", "CAP_SYS_ADMIN, which includes the others"),
        _ if has(CAP_BPF) && has(CAP_PERFMON) => Fact {
            name: "rights",
            standing: Standing::Limited,
            found: "without CAP_SYS_ADMIN, libraries of other mount namespaces and deleted files cannot be probed"
                .into(),
            fix: Some("run with sudo".into()),
        },
        _ => Fact {
            name: "rights",
            standing: Standing::Missing,
            found: format!("{} missing: CPU probes cannot be loaded; GPU-only scripts work", missing.join(", ")),
            fix: Some("run with sudo".into()),
        },
    }
}

fn capabilities(status: &str) -> u64 {
    field(status, "CapEff").and_then(|it| u64::from_str_radix(it, 16).ok()).unwrap_or(0)
}

fn linux_version() -> Fact {
    let release = linux_release();
    if has_uprobe_multi() {
        return works("Linux version", format!("Linux {release}, uprobes need 6.6"));
    }
    Fact {
        name: "Linux version",
        standing: Standing::Limited,
        found: format!("Linux {release} has no uprobe_multi links: no uprobe, uretprobe and launch handlers in Linux"),
        fix: Some("boot Linux 6.6 or later".into()),
    }
}

fn btf() -> Fact {
    if Path::new("/sys/kernel/btf/vmlinux").exists() {
        return works("BTF", "/sys/kernel/btf/vmlinux is there");
    }
    Fact {
        name: "BTF",
        standing: Standing::Limited,
        found: "/sys/kernel/btf/vmlinux is missing: no script that needs to know which threads are the command's, \
                which are most of those with CPU probes; `scope: \"system\"` and GPU-only scripts work, but stacks of \
                processes that call exec may be named wrongly"
            .into(),
        fix: Some("boot a Linux kernel built with CONFIG_DEBUG_INFO_BTF=y".into()),
    }
}

fn tracefs() -> Fact {
    match catalog::tracefs() {
        Ok(path) => works("tracefs", format!("mounted at {}", path.display())),
        Err(why) => Fact {
            name: "tracefs",
            standing: Standing::Limited,
            fix: Some(match why.split_once(": ") {
                Some(("tracefs is not mounted", fix)) => fix.to_owned(),
                _ => "run with sudo".into(),
            }),
            found: format!("no tracepoints: {why}"),
        },
    }
}

/// Needed only to pin objects written by `build`; the tracer itself pins nothing.
fn bpffs() -> Fact {
    let mounts = read("/proc/self/mounts").unwrap_or_default();
    match mounts.lines().filter_map(|it| it.split(' ').nth(1).filter(|_| it.contains(" bpf "))).next() {
        Some(path) => works("bpffs", format!("mounted at {path}")),
        None => Fact {
            name: "bpffs",
            standing: Standing::Limited,
            found: "not mounted: built objects cannot be pinned; scripts do not need it".into(),
            fix: Some("mount -t bpf bpf /sys/fs/bpf".into()),
        },
    }
}

fn perf_event_paranoid() -> Fact {
    const NAME: &str = "perf_event_paranoid";
    let status = read("/proc/self/status").unwrap_or_default();
    let privileged = capabilities(&status) >> CAP_PERFMON & 1 != 0 || capabilities(&status) >> CAP_SYS_ADMIN & 1 != 0;
    let value = number("/proc/sys/kernel/perf_event_paranoid");
    match value {
        None => Fact {
            name: NAME,
            standing: Standing::Missing,
            found: "Linux has no perf events: no samples, no tracepoints, no names for libraries loaded later".into(),
            fix: Some("boot a Linux kernel built with CONFIG_PERF_EVENTS=y".into()),
        },
        Some(value) if privileged || value <= MOST_PARANOID_FOR_PROCESSES => works(NAME, format!("{value}")),
        Some(value) => Fact {
            name: NAME,
            standing: Standing::Limited,
            found: format!("{value}: without CAP_PERFMON the mappings of processes come from the collector alone"),
            fix: Some(format!("sysctl kernel.perf_event_paranoid={MOST_PARANOID_FOR_PROCESSES}")),
        },
    }
}

fn unprivileged_bpf() -> Fact {
    const NAME: &str = "unprivileged BPF";
    match number("/proc/sys/kernel/unprivileged_bpf_disabled") {
        Some(0) => works(NAME, "allowed; xputrace does not need it"),
        Some(value) => {
            works(NAME, format!("not allowed (kernel.unprivileged_bpf_disabled={value}); xputrace does not need it"))
        }
        None => works(NAME, "Linux does not say; xputrace does not need it"),
    }
}

fn ptrace_scope() -> Fact {
    const NAME: &str = "ptrace_scope";
    match number("/proc/sys/kernel/yama/ptrace_scope") {
        None => works(NAME, "not restricted"),
        Some(0 | 1) => works(NAME, "programs that are started here can be attached to"),
        Some(value) => Fact {
            name: NAME,
            standing: Standing::Limited,
            found: format!("{value}: the collector cannot be put into running programs (-p) without CAP_SYS_PTRACE"),
            fix: Some(match value {
                2 => "sysctl kernel.yama.ptrace_scope=1".into(),
                _ => "boot with another value: 3 cannot be changed while running".into(),
            }),
        },
    }
}

/// `/sys/kernel/security/lockdown` shows the mode in brackets: `none [integrity] confidentiality`.
fn lockdown() -> Fact {
    const NAME: &str = "lockdown";
    let text = read("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text.split_once('[').and_then(|(_, it)| it.split_once(']')).map_or("none", |(it, _)| it);
    match mode {
        "none" => works(NAME, "off"),
        "integrity" => works(NAME, "integrity, which allows tracing"),
        mode => Fact {
            name: NAME,
            standing: Standing::Limited,
            found: format!(
                "{mode}: BPF programs may not read memory of Linux, so Linux stacks and text from pointers fail"
            ),
            fix: Some("boot without lockdown=confidentiality".into()),
        },
    }
}

fn works(name: &'static str, found: impl Into<String>) -> Fact {
    Fact { name, standing: Standing::Works, found: found.into(), fix: None }
}

fn read(path: &str) -> Option<String> {
    xputrace_boundary::read::of_linux(path).ok()
}

fn number(path: &str) -> Option<i64> {
    read(path)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_has_a_fix() {
        for fact in facts() {
            assert_eq!(fact.standing == Standing::Works, fact.fix.is_none(), "{fact:?}");
        }
    }

    #[test]
    fn capabilities_are_read() {
        assert_eq!(capabilities("Name:\tx\nCapEff:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(capabilities(""), 0);
    }
}
