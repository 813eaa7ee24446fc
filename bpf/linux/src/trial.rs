//! Which places of a file Linux refuses to probe.
//!
//! Linux cannot step over every instruction, and one refused place fails a link of a thousand. It
//! checks an instruction only when a process maps the file, so in a command that maps it later the
//! probe would silently be missing. So doubtful places are tried first, in a mapping of our own
//! that is never executed.
//!
//! ```text
//! places in doubt ──link──▶ taken          refused ──▶ two halves ──link──▶ … ──▶ single places
//! ```

use crate::links;
use crate::sys::{self, UprobeMulti};
use memmap2::{Mmap, MmapOptions};
use std::collections::HashSet;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use xputrace_boundary::read;

/// How long to search for the refused places. Each refusal takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a trial found, as offsets in the file.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) refused: HashSet<u64>,
    /// Some of them are refused; there was no time to find out which.
    pub(crate) unknown: HashSet<u64>,
}

/// Tries to probe places of a file. Ignores all answers except that Linux cannot step over an
/// instruction: the real link will get them too.
pub(crate) fn run(program: BorrowedFd<'_>, path: &Path, offsets: &[u64]) -> Verdict {
    let mut verdict = Verdict::default();
    if offsets.is_empty() {
        return verdict;
    }
    let Ok(_mapping) = map(path) else { return verdict };
    let give_up = Instant::now() + PATIENCE;
    let (mut groups, mut taken) = (vec![offsets], Vec::new());
    while let Some(group) = groups.pop() {
        match link(program, path, group) {
            Ok(link) => taken.push(link),
            Err(error) if error.raw_os_error() != Some(sys::ENOTSUPP) => {}
            Err(_) if group.len() == 1 => verdict.refused.extend(group),
            Err(_) if Instant::now() > give_up => verdict.unknown.extend(group),
            Err(_) => {
                let (first, second) = group.split_at(group.len() / 2);
                groups.extend([second, first]);
            }
        }
    }
    // Linux waits for its readers when a link closes; don't wait with it.
    links::close_behind(taken);
    verdict
}

/// Private and without a writer, as a program's own mappings are: Linux probes no others. This is the one file of others
/// that is mapped, because probing it is what is tried. Whoever truncates it meanwhile harms nobody: only Linux reads it.
fn map(path: &Path) -> io::Result<Mmap> {
    let file = read::open(path)?;
    // SAFETY: nothing reads the bytes.
    unsafe { MmapOptions::new().map_copy_read_only(&file) }
}

fn link(program: BorrowedFd<'_>, path: &Path, offsets: &[u64]) -> io::Result<OwnedFd> {
    let cookies = vec![0; offsets.len()];
    let pid = Some(std::process::id());
    sys::link_uprobe_multi(
        program,
        &UprobeMulti { path, offsets, cookies: &cookies, counters: &[], pid, at_return: false },
    )
}
