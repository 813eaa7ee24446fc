//! What the compiler needs to know about the machine, as a value passed in. The live machine
//! implements it, and so does a miniature one for golden tests.

use crate::plan::UsdtPattern;
use xputrace_bytecode::probe::PidNamespace;

/// The machine's side of compilation.
pub trait Catalog {
    /// Returns the format of a tracepoint. The error is a sentence (unknown, unreadable, similar
    /// names).
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String>;

    /// Returns `CATEGORY:NAME` of all tracepoints, sorted. The error is a sentence.
    fn tracepoints(&self) -> Result<Vec<String>, String>;

    /// Checks that `function`, which may be a pattern, can be probed in the file that `object`
    /// names. The error is a sentence (no such name, similar names). An unknown file is fine: it
    /// may be mapped later.
    fn function(&self, _object: &str, _function: &str) -> Result<(), String> {
        Ok(())
    }

    /// Checks that USDT probes of this pattern are in the file that `object` names. The error is a sentence (no such name,
    /// similar names, no probes). An unknown file is fine: it may be mapped later.
    fn usdt(&self, _object: &str, _pattern: &UsdtPattern) -> Result<(), String> {
        Ok(())
    }

    /// Checks that an argument of such probes can be read wherever they have it, and that one of them has it. The error is a
    /// sentence.
    fn usdt_argument(&self, _object: &str, _pattern: &UsdtPattern, _n: usize) -> Result<(), String> {
        Ok(())
    }

    /// Whether a file that `object` names is known, or may be mapped later.
    fn has_file(&self, _object: &str) -> bool {
        true
    }

    /// Returns what a function of the file that `object` names returns; `None` if that is not known, or for a pattern.
    fn return_type(&self, _object: &str, _function: &str) -> Option<ReturnType> {
        None
    }

    /// Whether there may be such a probe, by its name: `uprobe:libc:malloc`.
    fn has_probe(&self, _name: &str) -> bool {
        true
    }

    /// Whether it is a recording, which has the probes that a script asked for when it was made.
    fn is_recording(&self) -> bool {
        false
    }

    /// Returns the tracer's pid namespace unless it is the initial one: process and thread ids are
    /// then read in that namespace.
    fn pid_namespace(&self) -> Option<PidNamespace>;

    /// Returns the byte offset of `task_struct.self_exec_id`, which tells images of one process
    /// apart.
    fn exec_id_offset(&self) -> Option<u32>;
}

/// Whether a program can attach to a tracepoint (`CATEGORY:NAME`): not to the records of Linux's function tracer.
pub fn is_attachable(tracepoint: &str) -> bool {
    !tracepoint.starts_with("ftrace:")
}

/// What a function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnType {
    /// An integer or an address, in the register for it.
    Integer {
        /// 1, 2, 4 or 8.
        bytes: u32,
        signed: bool,
    },
    /// A fraction or a structure, which is elsewhere, or there in part.
    Other,
}

/// The fields of a tracepoint, as `events/CATEGORY/NAME/format` in tracefs describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointFormat {
    pub fields: Vec<TracepointField>,
}

impl TracepointFormat {
    /// Returns the offsets of the fields that name the threads of a scheduler event other than the
    /// running one: `pid`, `prev_pid`, `next_pid`, … Returns none for other categories, where `pid`
    /// may be anything, and for a thread that waits for a process, which is the waiting thread's
    /// event alone.
    pub fn scheduled_threads(&self, category: &str, name: &str) -> Vec<i16> {
        const THREAD_ID: TracepointFieldType = TracepointFieldType::Int { size: 4, signed: true };
        let is_thread = |it: &&TracepointField| {
            category == "sched"
                && name != "sched_process_wait"
                && it.kind == THREAD_ID
                && (it.name == "pid" || it.name.ends_with("_pid"))
        };
        self.fields.iter().filter(is_thread).filter_map(|it| it.offset.try_into().ok()).collect()
    }
}

/// One field of a tracepoint's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointField {
    pub name: String,
    /// Bytes from the start of the record.
    pub offset: u32,
    pub kind: TracepointFieldType,
}

/// How a field is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracepointFieldType {
    /// An integer of 1, 2, 4 or 8 bytes.
    Int { size: u32, signed: bool },
    /// `char name[n]`.
    Chars(u32),
    /// `__data_loc char[] name`: 16 bits of offset, 16 bits of length.
    DataLoc,
    /// A type that cannot be read.
    Other,
}

impl TracepointFieldType {
    /// Describes the type for readers.
    pub fn text(self) -> String {
        match self {
            TracepointFieldType::Int { size, signed } => {
                format!("integer, {}{} bits", if signed { "" } else { "unsigned, " }, 8 * size)
            }
            TracepointFieldType::Chars(bytes) => format!("string, {bytes} bytes"),
            TracepointFieldType::DataLoc => "string".into(),
            TracepointFieldType::Other => "cannot be read".into(),
        }
    }
}

/// Splits `library:function`, where the library may be a path with colons and the function a C++ or Rust name
/// with `::`: at the last colon that stands alone.
pub fn split_function(pattern: &str) -> Option<(&str, &str)> {
    let mut separator = None;
    let mut at = 0;
    while let Some(colon) = pattern[at..].find(':').map(|it| at + it) {
        let run = pattern[colon..].bytes().take_while(|it| *it == b':').count();
        if run % 2 == 1 {
            separator = Some(colon);
        }
        at = colon + run;
    }
    separator.map(|it| (&pattern[..it], &pattern[it + 1..]))
}

/// Whether `text` matches `pattern`: `*` matches any text, `?` any byte.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(it) if *it == b'?' || *it == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match &mut star {
                Some((after, taken)) => {
                    *taken += 1;
                    (p, t) = (*after + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|it| *it == b'*')
}

/// A miniature machine, the same everywhere: for golden tests, and for `--replay`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MiniCatalog;

impl Catalog for MiniCatalog {
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String> {
        let int = |name: &str, offset, size, signed| TracepointField {
            name: name.into(),
            offset,
            kind: TracepointFieldType::Int { size, signed },
        };
        let chars =
            |name: &str, offset| TracepointField { name: name.into(), offset, kind: TracepointFieldType::Chars(16) };
        let fields = match (category, name) {
            ("sched", "sched_switch") => vec![
                chars("prev_comm", 8),
                int("prev_pid", 24, 4, true),
                int("prev_prio", 28, 4, true),
                int("prev_state", 32, 8, true),
                chars("next_comm", 40),
                int("next_pid", 56, 4, true),
                int("next_prio", 60, 4, true),
            ],
            ("sched", "sched_wakeup") => {
                vec![
                    chars("comm", 8),
                    int("pid", 24, 4, true),
                    int("prio", 28, 4, true),
                    int("target_cpu", 32, 4, true),
                ]
            }
            ("syscalls", "sys_enter_write") => vec![
                int("__syscall_nr", 8, 4, true),
                int("fd", 16, 8, false),
                int("buf", 24, 8, false),
                int("count", 32, 8, false),
            ],
            ("syscalls", "sys_enter_close") => vec![int("__syscall_nr", 8, 4, true), int("fd", 16, 8, false)],
            _ => return Err(format!("there is no tracepoint `{category}:{name}`")),
        };
        Ok(TracepointFormat { fields })
    }

    fn return_type(&self, object: &str, function: &str) -> Option<ReturnType> {
        let typed = |bytes, signed| Some(ReturnType::Integer { bytes, signed });
        match (object, function) {
            ("./server", "handle_request") => typed(4, true),
            ("./server", "is_open") => typed(1, false),
            ("./server", "bytes_sent") => typed(8, true),
            ("./server", "load") => Some(ReturnType::Other),
            _ => None,
        }
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        Ok(["sched:sched_switch", "sched:sched_wakeup", "syscalls:sys_enter_close", "syscalls:sys_enter_write"]
            .map(str::to_owned)
            .into())
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        None
    }

    fn exec_id_offset(&self) -> Option<u32> {
        None
    }
}
