//! Lists the probes of this machine.

use crate::catalog;
use crate::resolve::{self, Named, glob};
use crate::scope::Scope;
use crate::usdt;
use std::path::PathBuf;
use xputrace_model::catalog::{is_attachable, split_function};
use xputrace_model::listing::Listed;
use xputrace_model::plan::UsdtPattern;
use xputrace_model::schema::Event;

const INDIRECT: &str = "the program chooses the function's code when it starts";
const UNATTACHABLE: &str = "it is a record of Linux's function tracer";

/// Returns the functions that match a pattern such as `libcudart*:cudaMem*`, sorted by file and
/// name. Indirect functions, which cannot be probed, are among them. Errors are sentences.
pub fn list_functions(event: Event, pattern: &str) -> Result<Vec<Listed>, String> {
    let (object, function) = match split_function(pattern) {
        Some((object, "")) => (object, "*"),
        Some(split) => split,
        None => (pattern, "*"),
    };
    let files = resolve::candidates(object, &Scope::System);
    if files.is_empty() {
        return Err(no_file(object));
    }
    let mut found = Vec::new();
    for file in files {
        let Named { direct, indirect } = Named::matching(&file, function);
        let path = file.path.canonicalize().unwrap_or(file.path);
        let listed = |name: &str| Listed::new(event, format!("{}:{}:{name}", event.name(), path.display()));
        found.extend(direct.iter().map(|it| listed(&it.name)));
        found.extend(indirect.iter().map(|it| Listed { refused: Some(INDIRECT), ..listed(it) }));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup();
    Ok(found)
}

fn no_file(object: &str) -> String {
    format!("there is no file or library `{object}` here; a path works too: ./{object}")
}

/// Returns the USDT probes that match a pattern such as `libstdc++:*` or `./server:shop:*`, sorted by file and name. For
/// `*`, they are those of every file that these processes have mapped. Each has the arguments of its places. Errors are
/// sentences.
pub fn list_usdt(pattern: &str, pids: &[u32]) -> Result<Vec<Listed>, String> {
    let (object, pattern) = match UsdtPattern::split(pattern) {
        Some(split) => split,
        None => (pattern.trim_end_matches(":*").trim_end_matches(':'), UsdtPattern::any()),
    };
    let files = match object {
        "*" | "" if pids.is_empty() => return Err("name a file, `usdt:FILE:*`, or a process: -p PID".into()),
        "*" | "" => pids.iter().flat_map(|it| resolve::mapped(*it)).collect(),
        object if pids.is_empty() => resolve::candidates(object, &Scope::System),
        object => resolve::candidates(object, &Scope::Processes(pids.to_vec())),
    };
    if files.is_empty() {
        return Err(match object {
            "*" | "" => "the process has ended, or its files cannot be read".to_owned(),
            object => no_file(object),
        });
    }
    let mut found: Vec<Listed> = files.into_iter().flat_map(|it| listed_usdt(it.path, &pattern)).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found.dedup();
    Ok(found)
}

fn listed_usdt(path: PathBuf, pattern: &UsdtPattern) -> impl Iterator<Item = Listed> {
    let found = usdt::matching(&path, pattern);
    let path = path.canonicalize().unwrap_or(path);
    found.into_iter().map(move |(name, details)| Listed {
        own: details.described(),
        ..Listed::new(Event::Usdt, format!("{}:{}:{name}", Event::Usdt.name(), path.display()))
    })
}

/// Returns the tracepoints that match a pattern such as `sched:*`, sorted. Those that no program can
/// attach to are among them. Errors are sentences.
pub fn list_tracepoints(pattern: &str) -> Result<Vec<Listed>, String> {
    let pattern = if pattern.contains(':') { pattern.to_owned() } else { format!("{pattern}:*") };
    let listed = |name: String| Listed {
        refused: (!is_attachable(&name)).then_some(UNATTACHABLE),
        ..Listed::new(Event::Tracepoint, format!("{}:{name}", Event::Tracepoint.name()))
    };
    Ok(catalog::tracepoints()?.into_iter().filter(|it| glob(&pattern, it)).map(listed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_listed_sorted() {
        let found = list_functions(Event::Uprobe, "libc:mallo*").unwrap();
        assert!(found.iter().any(|it| it.name.ends_with(":malloc")), "{found:?}");
        assert!(found.is_sorted_by(|a, b| a.name <= b.name));
    }

    #[test]
    fn what_cannot_be_probed_is_marked() {
        let found = list_functions(Event::Uprobe, "libc:mem*").unwrap();
        let libc = resolve::candidates("libc", &Scope::System).remove(0);
        let probed = |name: &str| resolve::places(&libc, name).is_ok();
        let libc = libc.path.canonicalize().unwrap();
        let of_libc =
            found.iter().filter_map(|it| Some((it, it.name.strip_prefix(&format!("uprobe:{}:", libc.display()))?)));
        let mut n = 0;
        for (listed, name) in of_libc {
            assert_eq!(listed.refused.is_none(), probed(name), "{name}");
            n += 1;
        }
        assert!(n > 0);
        let tracer = list_tracepoints("ftrace:*").unwrap();
        assert!(tracer.iter().all(|it| it.refused.is_some()), "{tracer:?}");
    }

    #[test]
    fn a_library_that_is_not_here_is_an_error() {
        assert!(list_functions(Event::Uprobe, "libnothing:x").unwrap_err().contains("`libnothing`"));
    }
}
