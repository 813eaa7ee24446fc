//! Lists the probes of this machine.

use crate::catalog;
use crate::resolve::{self, Named, glob};
use crate::scope::Scope;
use xputrace_model::catalog::{is_attachable, split_function};
use xputrace_model::listing::Listed;
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
        return Err(format!("there is no file or library `{object}` here; a path works too: ./{object}"));
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
