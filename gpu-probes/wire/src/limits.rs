//! What to do where a limit of the process is in the way.

use std::io::{self, ErrorKind};

/// Returns what to do about this answer of the system, as the end of a message; empty if nothing is known.
///
/// The limits are those of getrlimit(2): `RLIMIT_FSIZE` counts for shared memory too, `RLIMIT_AS` for all that is mapped.
pub fn advice(answer: &io::Error) -> &'static str {
    match answer.kind() {
        ErrorKind::FileTooLarge => {
            "; raise the limit on the size of files (`ulimit -f`), which counts for memory that is shared too"
        }
        ErrorKind::OutOfMemory => {
            "; if `ulimit -v` shows a limit on the address space, raise it; memory that is not used is not taken"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_files_and_of_memory_are_told_apart() {
        let of = |errno| advice(&io::Error::from_raw_os_error(errno));
        assert!(of(libc::EFBIG).contains("`ulimit -f`") && of(libc::ENOMEM).contains("`ulimit -v`"));
        assert_eq!(of(libc::EPERM), "");
    }
}
