//! For the fuzzer alone: what is read of another process and of its files. Nobody else needs it without a process.

use crate::image::CodeFile;
use crate::process::ProcessMapping;
use crate::thread::Blocked;
use std::path::Path;

/// Where the file is taken to be mapped.
const MAPPED_AT: u64 = 0x7f00_0000_0000;
/// Addresses in the file that are looked up.
const LOOKED_UP: u64 = 64;

/// Reads everything that inspection ever reads of a file of this process, given its path, inode and size in bytes.
pub fn file(path: &Path, inode: u64, bytes: u64) {
    let mapping = |file_offset: u64| ProcessMapping {
        start: MAPPED_AT,
        end: MAPPED_AT.saturating_add(bytes.next_multiple_of(4096)),
        is_executable: true,
        file_offset,
        inode,
        path: Some(path.to_path_buf()),
    };
    for image in [0, 0x1000].into_iter().flat_map(|it| CodeFile::all(std::process::id(), &[mapping(it)])) {
        for at in 0..LOOKED_UP {
            let _ = image.row(MAPPED_AT + at * bytes / LOOKED_UP);
        }
        let _ = (image.symbol("malloc"), image.replaces_allocator(), image.code());
        let _ = image.gap_contents(image.gap.start, 64);
    }
}

/// Reads a line of `/proc/PID/task/TID/syscall`.
pub fn blocked(line: &str) {
    let _ = Blocked::parse(line);
}
