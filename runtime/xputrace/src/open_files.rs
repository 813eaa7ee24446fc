//! The number of open files that a run needs: every handler, map and link in Linux is one, and the
//! usual limit of 1024 is less than a tracepoint with a wildcard needs.

use anyhow::{Result, bail};
use std::fs::File;
use std::io;
use xputrace_model::plan::{Place, Plan};

/// What a run has open besides its programs, maps and links: output, pipes to the command, the
/// rings of process events, a script's files while they are read.
const BESIDE: usize = 24;

/// Raises this process's limit as far as it can without privileges, and checks that the plan fits.
/// The command keeps its own limit.
///
/// # Errors
/// The limit is too low for this plan.
pub fn make_room(plan: &Plan) -> Result<()> {
    raise();
    let needed = least(plan);
    // Ask the system: inherited descriptors count too.
    let opened: io::Result<Vec<File>> = (0..needed).map(|_| File::open("/dev/null")).collect();
    let is_full = |it: &io::Error| matches!(it.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    match opened.err().filter(is_full) {
        None => Ok(()),
        Some(error) => bail!(
            "this script needs at least {needed} open files, which the limit does not allow ({error}); raise it \
             with `ulimit -n {}`",
            needed.next_multiple_of(1024)
        ),
    }
}

/// Returns the minimum number of files that the plan needs.
fn least(plan: &Plan) -> usize {
    let is_linux = |place: Place| place == Place::Linux;
    let links = plan.probes.iter().filter(|it| is_linux(it.place)).count();
    match links {
        0 => BESIDE,
        links => BESIDE + 2 * links + plan.image.maps.len(),
    }
}

fn raise() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills the structure, which lives through it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 && limit.rlim_cur != limit.rlim_max {
        let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
        // SAFETY: the structure lives through the call. Where it is refused, the limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &most) };
    }
}
