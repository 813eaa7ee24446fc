//! Places that probes are at: which of them this machine is known to lack, and what to say then.

use xputrace_model::catalog::Catalog;
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::plan::ProbePlace;
use xputrace_script::handler::Staged;

/// Code of the error for a function that the probed file lacks.
const NO_SUCH_FUNCTION: &str = "no-such-function";
/// The same for a USDT probe.
const NO_SUCH_USDT: &str = "no-such-usdt";
/// The same for a tracepoint.
pub(super) const UNKNOWN_TRACEPOINT: &str = "unknown-tracepoint";
/// The same for tracepoints of a pattern.
pub(super) const TRACEPOINT_PATTERN: &str = "tracepoint-pattern";
/// Codes of the errors for places that this machine lacks, and another one may have.
pub const MISSING_PLACES: [&str; 4] = [NO_SUCH_FUNCTION, NO_SUCH_USDT, UNKNOWN_TRACEPOINT, TRACEPOINT_PATTERN];

/// Returns the code and the reason of the error for a place that is known not to exist.
pub(super) fn missing_place(target: &ProbePlace, catalog: &dyn Catalog) -> Option<(&'static str, String)> {
    match target {
        ProbePlace::Tracepoint { category, name } => {
            catalog.tracepoint(category, name).err().map(|why| (UNKNOWN_TRACEPOINT, why))
        }
        ProbePlace::Function { object, function } if catalog.has_file(object) => {
            catalog.function(object, function).err().map(|why| (NO_SUCH_FUNCTION, why))
        }
        ProbePlace::Usdt { object, pattern } if catalog.has_file(object) => {
            catalog.usdt(object, pattern).err().map(|why| (NO_SUCH_USDT, why))
        }
        _ => None,
    }
}

/// Warns of a file that is not there now; the program of a run may bring it along.
pub(super) fn no_file(object: &str, label: Label) -> Diagnostic {
    if object.contains('/') {
        return Diagnostic::warning("no-such-file", format!("there is no file `{object}` here"), label)
            .help("a path is relative to the directory in which xputrace is started; a run without the file fails");
    }
    Diagnostic::warning("no-such-file", format!("no file of the name `{object}` is installed or running here"), label)
        .help("a run in which no process maps such a file fails")
        .help("if the program brings it along, name it by its path, so that `check` knows its functions")
}

/// Says how to find tracepoints, or how to record them.
pub(super) fn tracepoints_help(staged: &Staged, catalog: &dyn Catalog, category: &str) -> String {
    match catalog.is_recording() {
        true => format!("record what the script reads: `{}`", staged.sources.record_command()),
        false => format!("`xputrace list 'tracepoint:{category}:*'` lists this machine's"),
    }
}
