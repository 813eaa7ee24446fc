//! Lists available probes.

use crate::catalog;
use crate::resolve::{self, glob};
use crate::scope::Scope;
use xputrace_model::catalog::split_function;

/// Returns the probes that match a pattern such as `uprobe:libcudart*:cudaMem*` or
/// `tracepoint:sched:*`, sorted. Functions are listed as `uprobe:PATH:NAME`. Errors are sentences.
pub fn list(pattern: &str) -> Result<Vec<String>, String> {
    match pattern.split_once(':') {
        Some((kind @ ("uprobe" | "uretprobe"), rest)) => functions(kind, rest),
        Some(("tracepoint", rest)) => tracepoints(rest),
        None if pattern == "tracepoint" => tracepoints("*"),
        _ => Err(format!(
            "cannot list `{pattern}`: give uprobe:LIBRARY:FUNCTION, uretprobe:LIBRARY:FUNCTION or \
             tracepoint:CATEGORY:NAME, with * for any text"
        )),
    }
}

fn functions(kind: &str, rest: &str) -> Result<Vec<String>, String> {
    let (object, function) = match split_function(rest) {
        Some((object, "")) => (object, "*"),
        Some(split) => split,
        None => (rest, "*"),
    };
    let files = resolve::candidates(object, &Scope::System);
    if files.is_empty() {
        return Err(format!("there is no file or library `{object}` here; a path works too: ./{object}"));
    }
    let mut found = Vec::new();
    for file in files {
        let path = file.path.canonicalize().unwrap_or(file.path);
        let names = resolve::function_names(&path, function);
        found.extend(names.into_iter().map(|it| format!("{kind}:{}:{it}", path.display())));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn tracepoints(pattern: &str) -> Result<Vec<String>, String> {
    let pattern = if pattern.contains(':') { pattern.to_owned() } else { format!("{pattern}:*") };
    let all = catalog::tracepoints()?;
    Ok(all.into_iter().filter(|it| glob(&pattern, it)).map(|it| format!("tracepoint:{it}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_listed_sorted() {
        let found = list("uprobe:libc:mallo*").unwrap();
        assert!(found.iter().any(|it| it.ends_with(":malloc")), "{found:?}");
        assert!(found.is_sorted());
    }

    #[test]
    fn what_cannot_be_listed_is_said() {
        assert!(list("kprobe:x").unwrap_err().contains("uprobe:LIBRARY:FUNCTION"));
        assert!(list("uprobe:libnothing:x").unwrap_err().contains("`libnothing`"));
    }
}
