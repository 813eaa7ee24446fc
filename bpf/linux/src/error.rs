//! Failures of Linux, as sentences that say what was attempted and what to do.

use std::io;
use std::path::{Path, PathBuf};
use xputrace_bytecode::BpfMapId;

/// A failure that stops the run. Its text includes the cause, so it has no `source`: printing an
/// error with its sources would repeat the cause.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Linux's verifier refused a program that we made.
    #[error("Linux refused the program {program} of {place}: {answer}\n{log}\n{}", advice(answer))]
    Refused {
        program: String,
        /// `script.rhai:3`, the line of the refused instruction.
        place: String,
        answer: io::Error,
        /// The last lines of the verifier's log.
        log: String,
    },
    /// Linux refused a compiled object, or libbpf did.
    #[error("Linux refused {what}: {answer}{}{log}", if log.is_empty() { "" } else { "\n" })]
    RefusedObject {
        what: String,
        answer: io::Error,
        /// The last lines of the verifier's log.
        log: String,
    },
    #[error("cannot create the map {map} ({kind}, {entries} entries): {answer}{hint}")]
    CreateMap { map: String, kind: String, entries: u32, answer: io::Error, hint: &'static str },
    #[error("cannot write the program object: {0}")]
    Object(xputrace_bytecode::object::ObjectError),
    #[error("cannot {operation} the map {map}: {answer}")]
    Map { operation: &'static str, map: String, answer: io::Error },
    #[error("the plan has no map number {} in Linux", .0.0)]
    NoSuchMap(BpfMapId),
    #[error("the map {0} has no generations to swap: it is not an array of maps")]
    NotSwappable(String),
    #[error(
        "not permitted to load programs into Linux: run as root, or grant CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN{0}"
    )]
    NotPermitted(&'static str),
    /// A sentence.
    #[error("cannot follow the processes of the target: {0}; `scope: \"system\"` needs no following")]
    NotFollowed(String),
    #[error("cannot {what}: {answer}")]
    System { what: String, answer: io::Error },
}

/// Why one probe could not be attached; the others are not affected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    #[error("there is no function `{function}` in {file}{why}{}", near_names(.near))]
    NoSuchFunction { file: PathBuf, function: String, near: Vec<String>, why: String },
    #[error("{file} has no USDT probes: it has no notes of them (.note.stapsdt)")]
    NoUsdt { file: PathBuf },
    #[error("there is no USDT probe `{probe}` in {file}{}", near_names(.near))]
    NoSuchUsdt { file: PathBuf, probe: String, near: Vec<String> },
    #[error("several providers in {file} have a probe `{name}`: {}. Name one of them, or write `*`", providers.join(", "))]
    SeveralProviders { file: PathBuf, name: String, providers: Vec<String> },
    #[error("the USDT probe `{probe}` in {file} cannot be probed: {why}")]
    BrokenUsdt { file: PathBuf, probe: String, why: String },
    #[error(
        "`arg{argument}` of the USDT probe `{probe}` in {file} cannot be read: {why} (`{text}`, at {file_offset:#x})"
    )]
    UnreadableArgument { file: PathBuf, probe: String, file_offset: u64, argument: usize, text: String, why: String },
    #[error("the places of the run's USDT probes have their arguments in more than {most} different ways; probe fewer")]
    TooManyRules { most: u32 },
    #[error("there is no file {}; if the run creates it, name it by a pattern: `{}*`", .0.display(), .0.display())]
    NoSuchFile(PathBuf),
    #[error("cannot read the functions of {file}: {reason}")]
    UnreadableFile { file: PathBuf, reason: String },
    #[error("`{function}` in {file} is chosen when the program starts (an indirect function): {}", versions(.near))]
    Indirect { file: PathBuf, function: String, near: Vec<String> },
    #[error(
        "{functions} in {file} cannot be probed: Linux cannot step over the first instruction there (its error 524); another instruction of the function may do: NAME+OFFSET"
    )]
    Unsteppable { file: PathBuf, functions: String },
    #[error("not all returns can be found in {file}: {}. Probe the entry with `uprobe`, or insist on Linux's trampoline with `#{{return: \"trampoline\"}}`, which kills a program that throws, switches stacks or is written in Go", functions.join(", "))]
    NoReturns {
        file: PathBuf,
        /// Each with its reason: `f has no …`.
        functions: Vec<String>,
    },
    #[error(
        "no instruction of {file} begins at `{place}`, so a breakpoint would change what the program does; the nearest begin at {}",
        nearest.join(" and ")
    )]
    InsideInstruction {
        file: PathBuf,
        place: String,
        /// Places as a script writes them.
        nearest: [String; 2],
    },
    #[error(
        "cannot decode the instructions of {file} up to `{place}`, so a breakpoint there might change what the program does; probe a function by its name"
    )]
    Undecodable { file: PathBuf, place: String },
    #[error("`{function}`: the offset {offset:#x} is not inside the function, which has {size:#x} bytes")]
    OffsetOutside { function: String, offset: u64, size: u64 },
    #[error(
        "uprobes need uprobe_multi links, which Linux has from 6.6 on; this is {release}; scripts with only GPU probes, tracepoints and samples work here"
    )]
    OldKernel { release: String },
    #[error("there is no tracepoint `{name}`{}", near_names(.near))]
    NoSuchTracepoint { name: String, near: Vec<String> },
    #[error("{0}")]
    Tracefs(String),
    #[error("cannot attach {what}: {answer}{hint}")]
    Refused { what: String, answer: String, hint: String },
    #[error("the process {0} has ended")]
    NoSuchProcess(u32),
}

impl AttachError {
    /// Whether the file is the cause, so that retrying is pointless.
    pub(crate) fn is_of_the_file(&self) -> bool {
        use AttachError::*;
        matches!(
            self,
            NoSuchFunction { .. }
                | Indirect { .. }
                | Unsteppable { .. }
                | NoReturns { .. }
                | InsideInstruction { .. }
                | Undecodable { .. }
                | OffsetOutside { .. }
                | NoUsdt { .. }
                | NoSuchUsdt { .. }
                | SeveralProviders { .. }
                | BrokenUsdt { .. }
                | UnreadableArgument { .. }
                | TooManyRules { .. }
        )
    }

    /// Returns the file, if the cause is that it has nothing of the name.
    pub(crate) fn without_it(&self) -> Option<&Path> {
        use AttachError::*;
        match self {
            NoSuchFunction { file, .. } | NoSuchUsdt { file, .. } | NoUsdt { file } => Some(file),
            _ => None,
        }
    }
}

/// Returns the most telling of several files' errors: a file without such a function says more than
/// one that could not be read.
pub(crate) fn most_telling(mut errors: Vec<AttachError>) -> Option<AttachError> {
    let rank = |it: &AttachError| match it {
        AttachError::OldKernel { .. } => 0,
        AttachError::Refused { .. } => 1,
        AttachError::Indirect { .. }
        | AttachError::Unsteppable { .. }
        | AttachError::NoReturns { .. }
        | AttachError::InsideInstruction { .. }
        | AttachError::Undecodable { .. } => 2,
        AttachError::BrokenUsdt { .. }
        | AttachError::SeveralProviders { .. }
        | AttachError::UnreadableArgument { .. } => 2,
        AttachError::NoSuchFunction { near, .. } | AttachError::NoSuchUsdt { near, .. } => 4 - near.len().min(1),
        _ => 5,
    };
    errors.sort_by_key(rank);
    errors.into_iter().next()
}

fn advice(reason: &io::Error) -> &'static str {
    match reason.raw_os_error() {
        Some(libc::E2BIG) => {
            "the handler has more ways through it than the verifier of Linux follows, a million instructions: split it into several handlers of the same event, or branch and loop less"
        }
        Some(libc::EMFILE | libc::ENFILE) => "each handler in Linux is an open file: raise the limit, ulimit -n",
        Some(libc::ENOMEM) => "there is not enough memory, or the handler is too large: split it into several",
        _ => "this is a bug in xputrace: the compiler must not make such a program",
    }
}

fn versions(near: &[String]) -> String {
    match near {
        [] => {
            "the file does not name its versions; probe one by its address, `0x…`, or install the file's debug symbols"
                .to_owned()
        }
        near => format!("probe one of its versions, such as {}", near.join(", ")),
    }
}

fn near_names(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; similar: {}", near.join(", ")) }
}

impl Error {
    /// Returns the system's last error as an error about `what`.
    pub(crate) fn last(what: impl Into<String>) -> Error {
        Error::System { what: what.into(), answer: io::Error::last_os_error() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_with_its_sources_says_its_cause_once() {
        let answer = || io::Error::from_raw_os_error(libc::ENOENT);
        for error in [
            Error::System { what: "start x".into(), answer: answer() },
            Error::Map { operation: "read", map: "m".into(), answer: answer() },
            Error::CreateMap { map: "m".into(), kind: "Hash".into(), entries: 1, answer: answer(), hint: "" },
            Error::Refused { program: "p".into(), place: "s:1".into(), answer: answer(), log: String::new() },
        ] {
            let whole = with_sources(&error);
            assert_eq!(whole.matches("No such file").count(), 1, "{whole}");
        }
    }

    /// Formats an error and its sources the way programs print them.
    fn with_sources(error: &dyn std::error::Error) -> String {
        let sources = std::iter::successors(Some(error), |it| it.source());
        sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
    }
}
