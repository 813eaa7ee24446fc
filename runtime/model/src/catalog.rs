//! What the compiler must know of the machine a script will run on, as a value passed in:
//! the live machine implements it, and so does the miniature one that goldens use.

/// The machine's side of compilation.
pub trait Catalog {
    /// The format of a tracepoint; the error is a sentence (unknown, unreadable, near names).
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String>;

    /// Device and inode of the tracer's pid namespace when it is not the initial one: process
    /// and thread ids are then asked for in that namespace.
    fn pid_namespace(&self) -> Option<(u64, u64)>;

    /// Byte offset of `task_struct.self_exec_id`, which tells images of one process apart.
    fn exec_id_offset(&self) -> Option<u32>;
}

/// The fields of a tracepoint, as `events/CATEGORY/NAME/format` in tracefs describes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointFormat {
    pub fields: Vec<TracepointField>,
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
    /// A kind that cannot be read.
    Other,
}

/// A machine in miniature, the same everywhere: for goldens, and for `--replay`.
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
        match (category, name) {
            ("sched", "sched_switch") => Ok(TracepointFormat {
                fields: vec![
                    chars("prev_comm", 8),
                    int("prev_pid", 24, 4, true),
                    int("prev_prio", 28, 4, true),
                    int("prev_state", 32, 8, true),
                    chars("next_comm", 40),
                    int("next_pid", 56, 4, true),
                    int("next_prio", 60, 4, true),
                ],
            }),
            ("syscalls", "sys_enter_write") => Ok(TracepointFormat {
                fields: vec![
                    int("__syscall_nr", 8, 4, true),
                    int("fd", 16, 8, false),
                    int("buf", 24, 8, false),
                    int("count", 32, 8, false),
                ],
            }),
            _ => Err(format!("there is no tracepoint `{category}:{name}`")),
        }
    }

    fn pid_namespace(&self) -> Option<(u64, u64)> {
        None
    }

    fn exec_id_offset(&self) -> Option<u32> {
        None
    }
}
