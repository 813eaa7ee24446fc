//! The processes that a run traces.

use std::path::PathBuf;
use xputrace_model::process_name::ProcessName;

/// The processes whose events fire probes. Children belong to their parent's scope.
#[derive(Clone, Debug)]
pub enum Scope {
    /// Running processes and the children they will have.
    Processes(Vec<u32>),
    /// A command that is stopped before its `exec`: see [`crate::StoppedChild::scope`].
    Command(CommandScope),
    /// Every process.
    System,
    /// Running and later processes of this name, as long as it is theirs.
    Named(ProcessName),
}

/// A command that is stopped before its `exec`. Its executable and libraries are therefore
/// predicted.
#[derive(Clone, Debug)]
pub struct CommandScope {
    pub pid: u32,
    /// The executable that `execvp` will find.
    pub executable: PathBuf,
    /// Directories of the command's `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Libraries of the command's `LD_PRELOAD`: paths, or library names.
    pub preloaded: Vec<String>,
}

impl Scope {
    /// Whether it may include any process, so that all files and events are watched.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Scope::System | Scope::Named(_))
    }

    /// Returns the processes to start from; empty if the scope [is open](Scope::is_open).
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Scope::Processes(pids) => pids.clone(),
            Scope::Command(command) => vec![command.pid],
            Scope::System | Scope::Named(_) => Vec::new(),
        }
    }
}

/// Returns all running processes.
pub fn all_processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect()
}

/// Returns all running processes of a name.
pub(crate) fn processes_named(name: &ProcessName) -> Vec<u32> {
    all_processes().into_iter().filter(|it| has_name(*it, name)).collect()
}

/// Whether a process runs and has this name.
pub(crate) fn has_name(pid: u32, name: &ProcessName) -> bool {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.matches(&String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)))
}

/// Returns the given processes and all their current descendants.
pub fn with_descendants(pids: &[u32]) -> Vec<u32> {
    let mut tree = pids.to_vec();
    let mut everyone = None;
    let mut next = 0;
    while let Some(pid) = tree.get(next).copied() {
        let children = match listed_children(pid) {
            Some(children) => children,
            None => children_among(everyone.get_or_insert_with(parents), pid),
        };
        for child in children {
            if !tree.contains(&child) {
                tree.push(child);
            }
        }
        next += 1;
    }
    tree
}

/// Returns a process's children from Linux's own lists, one per thread; `None` if it has none (that
/// takes `CONFIG_PROC_CHILDREN`). A list may omit a child if another one ends while it is read, so
/// it is read until two readings agree.
fn listed_children(pid: u32) -> Option<Vec<u32>> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Some(Vec::new()) };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        let path = thread.path().join("children");
        let mut list = xputrace_boundary::read::of_linux(&path).ok()?;
        loop {
            let again = xputrace_boundary::read::of_linux(&path).ok()?;
            if again == list {
                break;
            }
            list = again;
        }
        children.extend(list.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
    }
    Some(children)
}

/// Returns every process with its parent. Reads many files; used only if Linux lists no children.
fn parents() -> Vec<(u32, u32)> {
    all_processes().into_iter().filter_map(|it| Some((it, parent_of(it)?))).collect()
}

fn children_among(everyone: &[(u32, u32)], pid: u32) -> Vec<u32> {
    everyone.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child).collect()
}

/// Returns a process's parent, or `None` if there is no such process. It is the fourth field of
/// `/proc/PID/stat`; the second is a name in parentheses that may contain anything.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let tree = with_descendants(&[std::process::id()]);
        assert!(tree.contains(&child.id()) && tree[0] == std::process::id());
        assert!(children_among(&parents(), std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
