//! A process as far as loading a library into it is concerned.

use crate::image::CodeFile;
use crate::request::InjectRefusal;
use object::Endianness;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xputrace_boundary::copied::FileCopy;
use xputrace_wire::maps::MapsLine;
use xputrace_wire::status::{field, innermost_id};

/// A process that a library can be loaded into.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) mappings: Vec<ProcessMapping>,
    /// The files with code in it, in order of address.
    pub(crate) images: Vec<CodeFile>,
    /// Their code: the addresses, and which of the files it is. Sorted: each word of a stack is looked up.
    code: Vec<(Range<u64>, usize)>,
    memory: File,
}

/// A mapping of a process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessMapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) is_executable: bool,
    pub(crate) file_offset: u64,
    pub(crate) inode: u64,
    /// The file as the process names it.
    pub(crate) path: Option<PathBuf>,
}

impl Process {
    /// # Errors
    /// Nothing can be loaded into it, and why.
    pub(crate) fn inspect(pid: u32) -> Result<Self, InjectRefusal> {
        let status = status(pid)?;
        if is_dead(&status) && runs_without_its_first_thread(pid) {
            return Err(InjectRefusal::new("its first thread has ended, so Linux does not show its memory"));
        }
        refuse_by_status(&status)?;
        let mappings = mappings_once_started(pid)?;
        let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let memory = memory.map_err(|it| denied(pid, "open its memory", &it))?;
        let images = CodeFile::all(pid, &mappings);
        let code = images.iter().enumerate().flat_map(|(n, it)| it.code().iter().map(move |it| (it.clone(), n)));
        let mut code: Vec<_> = code.collect();
        code.sort_by_key(|it| it.0.start);
        Ok(Process { pid, mappings, images, code, memory })
    }

    /// Returns the ids of its threads.
    pub(crate) fn threads(&self) -> Result<Vec<u32>, InjectRefusal> {
        threads(self.pid)
    }

    /// Whether it has a thread with this id in its own pid namespace.
    pub(crate) fn has_thread_known_as(&self, tid: u32) -> Result<bool, InjectRefusal> {
        let own_id = |it: u32| {
            let status = status_of_thread(self.pid, it).unwrap_or_default();
            innermost_id(&status)
        };
        Ok(self.threads()?.into_iter().any(|it| own_id(it) == Some(tid)))
    }

    /// Whether a thread has seccomp filters.
    pub(crate) fn has_filters(&self, tid: u32) -> bool {
        let status = status_of_thread(self.pid, tid).unwrap_or_default();
        field(&status, "Seccomp").is_some_and(|it| it != "0")
    }

    pub(crate) fn exists(&self) -> bool {
        self.threads().is_ok_and(|it| !it.is_empty()) && status(self.pid).is_ok_and(|it| !is_dead(&it))
    }

    /// Reads memory; returns what could be read.
    pub(crate) fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut n = 0;
        while n < len {
            match self.memory.read_at(&mut bytes[n..], address.wrapping_add(n as u64)) {
                Ok(read) if read > 0 => n += read,
                _ => break,
            }
        }
        bytes.truncate(n);
        bytes
    }

    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        Some(u64::from_ne_bytes(self.read(address, 8).try_into().ok()?))
    }

    /// Returns the words of a stack from an address on; `None` if there are too many.
    pub(crate) fn words_of_stack(&self, from: u64) -> Option<Vec<u64>> {
        /// Stacks have some megabytes. What a program takes for one may have any size.
        const MOST_BYTES: u64 = 64 << 20;
        let from = from & !7;
        let len = self.mapping(from).map_or(0, |it| it.end.saturating_sub(from));
        let bytes = (len <= MOST_BYTES).then(|| self.read(from, len as usize))?;
        Some(bytes.as_chunks::<8>().0.iter().map(|it| u64::from_ne_bytes(*it)).collect())
    }

    /// Writes memory, also memory that the process itself may not write. A thread of it must be stopped by us.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, address)
    }

    /// Returns the mapping at an address.
    pub(crate) fn mapping(&self, address: u64) -> Option<&ProcessMapping> {
        let after = self.mappings.partition_point(|it| it.start <= address);
        self.mappings.get(after.checked_sub(1)?).filter(|it| address < it.end)
    }

    /// Returns the file with the code at an address.
    pub(crate) fn image(&self, address: u64) -> Option<&CodeFile> {
        let after = self.code.partition_point(|it| it.0.start <= address);
        let (code, image) = self.code.get(after.checked_sub(1)?)?;
        if code.contains(&address) { self.images.get(*image) } else { None }
    }

    /// Returns where a function of libc is.
    pub(crate) fn libc_function(&self, name: &str) -> Option<u64> {
        self.images.iter().filter(|it| it.is_of_libc()).find_map(|it| it.symbol(name).map(|it| it.start))
    }
}

pub(crate) fn ended() -> InjectRefusal {
    InjectRefusal::new("it ended meanwhile")
}

/// Explains a failed access to a process.
pub(crate) fn denied(pid: u32, attempted: &str, error: &io::Error) -> InjectRefusal {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => ended(),
        Some(libc::EPERM | libc::EACCES) => {
            InjectRefusal::new(format!("cannot {attempted} ({error}): {}", why_denied(pid)))
        }
        _ => InjectRefusal::new(format!("cannot {attempted}: {error}")),
    }
}

/// Source: ptrace(2), "Ptrace access mode checking" and "/proc/sys/kernel/yama/ptrace_scope".
fn why_denied(pid: u32) -> String {
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::geteuid() };
    let theirs = status(pid).ok().and_then(|it| field(&it, "Uid")?.split_whitespace().nth(1)?.parse::<u32>().ok());
    if let Some(theirs) = theirs.filter(|it| own != 0 && *it != own) {
        return format!("it belongs to user {theirs}; run xputrace as that user or as root");
    }
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" if own != 0 => {
            "/proc/sys/kernel/yama/ptrace_scope is 1, so only a parent may attach; run xputrace as root, or write 0 to \
             that file"
                .into()
        }
        "2" if own != 0 => "/proc/sys/kernel/yama/ptrace_scope is 2, so only root may attach".into(),
        "3" => "/proc/sys/kernel/yama/ptrace_scope is 3, so nobody may attach until the next boot".into(),
        _ => "it has rights that this user lacks, or a container or security module forbids it".into(),
    }
}

fn status(pid: u32) -> Result<String, InjectRefusal> {
    std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| ended())
}

fn threads(pid: u32) -> Result<Vec<u32>, InjectRefusal> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| ended())?;
    Ok(entries.flatten().filter_map(|it| it.file_name().to_str()?.parse().ok()).collect())
}

fn status_of_thread(pid: u32, tid: u32) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"))
}

pub(crate) fn thread_has_ended(pid: u32, tid: u32) -> bool {
    status_of_thread(pid, tid).map_or(true, |it| is_dead(&it))
}

/// Returns the thread that holds a thread by ptrace.
pub(crate) fn tracer_of(pid: u32, tid: u32) -> Option<u32> {
    field(&status_of_thread(pid, tid).ok()?, "TracerPid")?.parse().ok().filter(|it| *it != 0)
}

fn runs_without_its_first_thread(pid: u32) -> bool {
    threads(pid).is_ok_and(|all| all.into_iter().any(|it| !thread_has_ended(pid, it)))
}

fn is_dead(status: &str) -> bool {
    field(status, "State").is_some_and(|it| it.starts_with(['Z', 'X']))
}

fn refuse_by_status(status: &str) -> Result<(), InjectRefusal> {
    if is_dead(status) {
        return Err(ended());
    }
    // proc_pid_status(5): only programs have memory.
    if field(status, "VmSize").is_none() {
        return Err(InjectRefusal::new("it is a thread of the Linux kernel, or is just ending"));
    }
    if let Some(tracer) = field(status, "TracerPid").filter(|it| *it != "0") {
        let name = std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
        return Err(InjectRefusal::new(format!("process {tracer} ({}) traces it already, by ptrace", name.trim())));
    }
    if field(status, "State").is_some_and(|it| it.starts_with(['T', 't'])) {
        return Err(InjectRefusal::new("it is stopped; continue it first (kill -CONT)"));
    }
    if field(status, "Seccomp") == Some("1") {
        return Err(InjectRefusal::new("seccomp allows it to read and write only"));
    }
    Ok(())
}

/// How long a program may take from its start to having its C library.
const STARTED_WITHIN: Duration = Duration::from_secs(5);

/// Returns the mappings of a process, once its dynamic linker has done the first part of its work.
fn mappings_once_started(pid: u32) -> Result<Vec<ProcessMapping>, InjectRefusal> {
    let until = Instant::now() + STARTED_WITHIN;
    loop {
        // In this order: the file is there before anything of it is mapped.
        let has_linker = names_linker(pid);
        let mappings = mappings(pid)?;
        match c_library(&mappings) {
            Some(CLibrary::Glibc) => return Ok(mappings),
            Some(CLibrary::Musl) => {
                return Err(InjectRefusal::new("its C library is musl; NVIDIA's libraries need glibc"));
            }
            None if !has_linker && !has_file(&mappings, b"ld-linux") => {
                let text = "it is statically linked: it has no dynamic linker that could load the collector";
                return Err(InjectRefusal::new(text));
            }
            None if Instant::now() >= until => {
                let seconds = STARTED_WITHIN.as_secs();
                let text = format!("its dynamic linker has not loaded a C library within {seconds} s: is it starting?");
                return Err(InjectRefusal::new(text));
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Whether a process's program names a dynamic linker. It may not be mapped yet: Linux maps it after the program.
fn names_linker(pid: u32) -> bool {
    /// A file's headers have a few kilobytes; the largest that the format has take four megabytes.
    const MOST_BYTES: u64 = 8 << 20;
    let Ok(data) = &FileCopy::open(Path::new(&format!("/proc/{pid}/exe")), MOST_BYTES) else { return false };
    let header = FileHeader64::<Endianness>::parse(data).ok();
    let segments = header.and_then(|it| it.program_headers(it.endian().ok()?, data).ok()).unwrap_or_default();
    segments.iter().any(|it| it.p_type(Endianness::Little) == elf::PT_INTERP)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CLibrary {
    Glibc,
    Musl,
}

/// Returns the C library that a process has mapped.
fn c_library(mappings: &[ProcessMapping]) -> Option<CLibrary> {
    let has = |prefix: &[u8]| has_file(mappings, prefix);
    // Where musl is not the system's library, its file is `libc.so`. glibc's file of that name is a text for linkers.
    if mappings.iter().any(|it| it.name() == b"libc.so") || has(b"ld-musl-") || has(b"libc.musl-") {
        return Some(CLibrary::Musl);
    }
    (has(b"libc.so.6") || has(b"libc-2.")).then_some(CLibrary::Glibc)
}

pub(crate) fn mappings(pid: u32) -> Result<Vec<ProcessMapping>, InjectRefusal> {
    let text = std::fs::read(format!("/proc/{pid}/maps")).map_err(|it| denied(pid, "read its memory mappings", &it))?;
    let lines = text.split(|it| *it == b'\n').filter_map(MapsLine::parse);
    let mappings: Vec<_> = lines.map(ProcessMapping::from).collect();
    if mappings.is_empty() { Err(ended()) } else { Ok(mappings) }
}

impl From<MapsLine<'_>> for ProcessMapping {
    fn from(line: MapsLine<'_>) -> Self {
        ProcessMapping {
            start: line.start,
            end: line.end,
            is_executable: line.is_executable,
            file_offset: line.file_offset,
            inode: line.inode,
            path: line.file().map(|(path, _)| path),
        }
    }
}

impl ProcessMapping {
    fn name(&self) -> &[u8] {
        self.path.as_deref().and_then(Path::file_name).map_or(b"", OsStr::as_bytes)
    }
}

/// Whether it has mapped a file whose name begins so.
fn has_file(mappings: &[ProcessMapping], prefix: &[u8]) -> bool {
    mappings.iter().any(|it| it.name().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_libraries_are_told_apart_by_their_files() {
        let mapping = |path: &str| ProcessMapping {
            start: 0,
            end: 1,
            is_executable: true,
            file_offset: 0,
            inode: 1,
            path: Some(path.into()),
        };
        let c_library = |paths: &[&str]| c_library(&paths.iter().map(|it| mapping(it)).collect::<Vec<_>>());
        assert_eq!(c_library(&["/bin/program", "/lib64/ld-linux-x86-64.so.2"]), None);
        let glibc = ["/bin/program", "/lib64/ld-linux-x86-64.so.2", "/lib/libc.so.6"];
        assert_eq!(
            (c_library(&glibc), c_library(&["/lib/libc-2.28.so"])),
            (Some(CLibrary::Glibc), Some(CLibrary::Glibc))
        );
        for musl in ["/lib/ld-musl-x86_64.so.1", "/usr/lib/musl/lib/libc.so", "/lib/libc.musl-x86_64.so.1"] {
            assert_eq!(c_library(&[musl]), Some(CLibrary::Musl), "{musl}");
        }
    }

    #[test]
    fn a_program_says_whether_it_has_a_dynamic_linker() {
        assert!(names_linker(std::process::id()));
    }

    #[test]
    fn what_a_status_forbids_is_named() {
        let status = |state: &str, tracer: &str, seccomp: &str| {
            format!("Name:\ta b\nState:\t{state}\nTracerPid:\t{tracer}\nVmSize:\t8 kB\nSeccomp:\t{seccomp}\n")
        };
        let refused =
            |state, tracer, seccomp| refuse_by_status(&status(state, tracer, seccomp)).unwrap_err().to_string();
        assert_eq!(refuse_by_status(&status("S (sleeping)", "0", "0")), Ok(()));
        assert_eq!(refuse_by_status(&status("R (running)", "0", "2")), Ok(()));
        assert_eq!(refused("Z (zombie)", "0", "0"), "it ended meanwhile");
        assert_eq!(refused("T (stopped)", "0", "0"), "it is stopped; continue it first (kill -CONT)");
        assert!(refused("S (sleeping)", "1", "0").starts_with("process 1 ("));
        assert_eq!(refused("S (sleeping)", "0", "1"), "seccomp allows it to read and write only");
        let kernel = refuse_by_status("State:\tS (sleeping)\nTracerPid:\t0\n").unwrap_err().to_string();
        assert!(kernel.contains("Linux kernel"), "{kernel}");
    }
}
