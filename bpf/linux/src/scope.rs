//! Which processes a run is about.

use std::path::PathBuf;

/// The processes whose events fire probes. Children belong to their parent's scope.
#[derive(Clone, Debug)]
pub enum Scope {
    /// Running processes and the children they will have.
    Processes(Vec<u32>),
    /// A command that is stopped before its `exec`: see [`crate::StoppedChild::scope`].
    Command(CommandScope),
    /// Every process.
    System,
}

/// A command that has a process but does not run in it yet, so that its executable and libraries
/// must be foretold.
#[derive(Clone, Debug)]
pub struct CommandScope {
    pub pid: u32,
    /// The executable as `execvp` will find it.
    pub executable: PathBuf,
    /// Directories of the command's `LD_LIBRARY_PATH`.
    pub library_path: Vec<PathBuf>,
    /// Libraries of the command's `LD_PRELOAD`: paths, or names as programs ask for libraries.
    pub preloaded: Vec<String>,
}

impl Scope {
    /// The processes that it begins with; none for [`Scope::System`].
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Scope::Processes(pids) => pids.clone(),
            Scope::Command(command) => vec![command.pid],
            Scope::System => Vec::new(),
        }
    }
}

/// Every process there is now.
pub(crate) fn all_processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|it| it.file_name().to_str()?.parse().ok()).collect()
}

/// The given processes and all that descend from them now.
pub(crate) fn with_descendants(pids: &[u32]) -> Vec<u32> {
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

/// Children by Linux's own lists, one a thread; `None` where it keeps none (it needs
/// `CONFIG_PROC_CHILDREN`). A list can leave one out when another child ends while it is read, so
/// it counts when it reads the same twice.
fn listed_children(pid: u32) -> Option<Vec<u32>> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Some(Vec::new()) };
    let mut children = Vec::new();
    for thread in threads.flatten() {
        let path = thread.path().join("children");
        let mut list = std::fs::read_to_string(&path).ok()?;
        loop {
            let again = std::fs::read_to_string(&path).ok()?;
            if again == list {
                break;
            }
            list = again;
        }
        children.extend(list.split_whitespace().filter_map(|it| it.parse::<u32>().ok()));
    }
    Some(children)
}

/// Every process with its parent: many files, where Linux lists no children.
fn parents() -> Vec<(u32, u32)> {
    all_processes().into_iter().filter_map(|it| Some((it, parent_of(it)?))).collect()
}

fn children_among(everyone: &[(u32, u32)], pid: u32) -> Vec<u32> {
    everyone.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child).collect()
}

/// A process's parent; `None` where the process is not there. The fourth field of `/proc/PID/stat`; the second is
/// a name in parentheses that may hold anything.
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
