//! What names of bpftrace mean, and which names are taken here.

use std::collections::BTreeMap;

/// Constants of Linux's headers that scripts use without including them.
/// Source: include/uapi/linux (signal.h, fcntl.h, errno-base.h), include/linux/sched.h and socket.h.
const LINUX: &[(&str, i64)] = &[
    ("TASK_RUNNING", 0),
    ("TASK_INTERRUPTIBLE", 1),
    ("TASK_UNINTERRUPTIBLE", 2),
    ("AF_UNIX", 1),
    ("AF_INET", 2),
    ("AF_INET6", 10),
    ("O_RDONLY", 0),
    ("O_WRONLY", 1),
    ("O_RDWR", 2),
    ("O_CREAT", 0o100),
    ("SIGINT", 2),
    ("SIGKILL", 9),
    ("SIGTERM", 15),
    ("ENOENT", 2),
    ("EAGAIN", 11),
    ("EINVAL", 22),
];

/// Returns the value of a constant of Linux.
pub(crate) fn linux_constant(name: &str) -> Option<i64> {
    LINUX.iter().find(|it| it.0 == name).map(|it| it.1)
}

/// Fields that every CPU event has. A tracepoint's own fields of these names are read as `e.args.NAME`.
pub(crate) const CPU_FIELDS: &[&str] =
    &["time", "pid", "tid", "comm", "cpu", "uid", "gid", "cgroup", "probe", "func", "ustack", "kstack", "args"];

/// Words that cannot be a variable: Rhai's, and what this language calls by these names.
const TAKEN: &[&str] = &[
    "e",
    "row",
    "clock",
    "ahead",
    "loaded",
    "let",
    "const",
    "if",
    "else",
    "switch",
    "do",
    "while",
    "until",
    "loop",
    "for",
    "in",
    "break",
    "continue",
    "return",
    "throw",
    "try",
    "catch",
    "import",
    "export",
    "as",
    "global",
    "private",
    "fn",
    "this",
    "true",
    "false",
    "is",
    "var",
    "static",
    "shared",
    "goto",
    "exit",
    "match",
    "case",
    "public",
    "protected",
    "new",
    "use",
    "with",
    "module",
    "package",
    "super",
    "thread",
    "spawn",
    "go",
    "await",
    "async",
    "sync",
    "yield",
    "default",
    "void",
    "null",
    "nil",
    "print",
    "debug",
    "eval",
    "Fn",
    "call",
    "curry",
    "type_of",
    "and",
    "or",
    "not",
    "elif",
    "arg",
    "str",
    "min",
    "max",
    "abs",
];

/// What a name stands for in a bpftrace program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// `$x`.
    Variable,
    /// A name of `#define`, an `enum` or Linux's headers.
    Constant,
    /// An option of `getopt`.
    Option,
    /// The variable of a loop that has none in bpftrace.
    Index,
}

/// The names that a script uses: what are different things in bpftrace have different names here.
#[derive(Debug, Default)]
pub(crate) struct ScriptNames {
    given: BTreeMap<(Named, String), String>,
}

impl ScriptNames {
    /// Returns the name here of something that is called `name` in bpftrace.
    pub(crate) fn of(&mut self, what: Named, name: &str) -> String {
        let key = (what, name.to_owned());
        if let Some(given) = self.given.get(&key) {
            return given.clone();
        }
        let mut free = allowed(name);
        while self.given.values().any(|it| *it == free) {
            free.push('_');
        }
        self.given.insert(key, free.clone());
        free
    }
}

/// Returns a name that a variable can have here.
fn allowed(name: &str) -> String {
    let plain = name.replace(|it: char| !it.is_ascii_alphanumeric(), "_");
    let is_taken = TAKEN.contains(&plain.as_str()) || plain.starts_with('_') || is_parameter(&plain);
    if is_taken { format!("{}_", plain.trim_start_matches('_')) } else { plain }
}

/// Returns the variable that holds the script's parameter `$number`.
pub(crate) fn parameter(number: u32) -> String {
    format!("p{number}")
}

fn is_parameter(name: &str) -> bool {
    name.strip_prefix('p').is_some_and(|it| !it.is_empty() && it.bytes().all(|it| it.is_ascii_digit()))
}

/// Why a function of bpftrace has no equivalent; none for a function that is translated, or unknown.
pub(crate) fn missing_function(name: &str) -> Option<&'static str> {
    Some(match name {
        "strftime" => "only the time of day, %H:%M:%S, can be printed",
        "printf" => "its format must be a literal",
        "kaddr" | "uaddr" | "percpu_kaddr" | "ksym" | "usym" => {
            "addresses and symbols cannot be looked up in a handler"
        }
        "buf" | "kptr" | "uptr" | "skboutput" | "memcmp" | "bswap" => "only text can be read from memory, by `str`",
        "ntop" | "pton" | "macaddr" | "socket_cookie" => "there is no function for network addresses",
        "join" => "arrays of a program cannot be read",
        "kstr" | "path" => "text of Linux's own memory cannot be read",
        "cat" | "system" | "signal" | "signal_thread" | "override" | "write_user" | "unwatch" => {
            "handlers cannot act on the system or the program"
        }
        "cgroupid" | "cgroup_path" => "cgroups cannot be looked up: compare `e.cgroup` with the number",
        "reg" => "registers cannot be read by name",
        "strerror" | "signal_name" | "syscall_name" | "errorf" | "warnf" | "fail" | "assert" | "assert_str" => {
            "there is no such function"
        }
        "strstr" | "strlen" | "strcap" | "str_concat" => "texts are only compared here",
        "zero" => "a map cannot keep its keys without their values; `clear` removes both",
        "tseries" => "there are no series over time: use `interval`",
        _ => return None,
    })
}

/// Why a builtin of bpftrace has no equivalent in a CPU handler; none for one that is translated, or unknown.
pub(crate) fn missing_builtin(name: &str) -> Option<&'static str> {
    Some(match name {
        "curtask" | "ctx" => "Linux's structures cannot be read",
        "rand" => "there are no random numbers: `every` samples events",
        "numaid" | "jiffies" | "usermode" | "username" | "ppid" | "pcomm" | "leader_tid" | "leader_comm"
        | "probetype" | "ncpus" => "there is no such field",
        "cpid" | "has_cpid" => "the command's id is not known to handlers; only the command is traced anyway",
        "args" => "fields are read one by one",
        "retval" => "only `uretprobe` has a return value",
        _ => return None,
    })
}
