//! What every output needs besides its values.

use std::sync::Arc;
use xputrace_model::diagnostic::Sources;
use xputrace_model::output::StackNames;
use xputrace_model::table::TableDef;

/// Width when the output is not a terminal: nothing is cut or wrapped.
pub const UNLIMITED: usize = usize::MAX;

/// What every output needs besides its values.
pub struct Context<'a> {
    /// Resolves stacks to frames.
    pub names: &'a mut dyn StackNames,
    /// The script's text, to name the lines of losses.
    pub sources: &'a Sources,
    /// The script's maps, to name those that lost something.
    pub tables: &'a [Arc<TableDef>],
    /// Maximum width of lines made here; text printed by a script is never cut.
    pub width: usize,
}
