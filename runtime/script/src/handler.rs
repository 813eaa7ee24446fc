//! What staging passes to the compiler: each handler's syntax and captured values.

use rhai::{Position, Stmt};
use std::ops::Range;
use xputrace_model::diagnostic::{FileId, Label, Site, Sources};
use xputrace_model::plan::{Calls, ClosureId, DeviceWay, LaunchFilter, ProbePlace, ProbeScope, ReturnWay};
use xputrace_model::schema::Event;

/// A handler as the script declared it.
#[derive(Clone, Debug)]
pub struct Handler {
    pub event: Event,
    pub target: ProbePlace,
    /// Its name in bpftrace's notation: `uprobe:libc:malloc`, `kernel`.
    pub name: String,
    pub options: Options,
    /// Name of the closure's event parameter, empty if it has none.
    pub parameter: String,
    pub body: Vec<Stmt>,
    /// Values captured from the script's top level when the handler was declared.
    pub captured: Vec<(String, Captured)>,
    /// Its declaration: a position in [`Staged::probes`].
    pub declared: u32,
    /// The probes that it can switch: those among the captured values, also in lists.
    pub holds: Vec<u32>,
    /// Source file of the body, for [`Positions`].
    pub file: FileId,
    /// Where it is declared.
    pub site: Site,
    pub declared_at: Label,
    /// Index of the closure, for handlers that must run in the interpreter: `interval`, `begin`,
    /// `end`, and those wrapped in `interpret(…)`.
    pub interpreted: Option<ClosureId>,
}

/// The `#{…}` before the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The scope, if the script gives one.
    pub scope: Option<ProbeScope>,
    /// `every: n`: only every n-th event.
    pub every: Option<u64>,
    /// `optional: true`: where the machine has no such place, or the recording no such events, the handler is left out.
    pub optional: bool,
    /// `kinds: […]`: the calls that a `launch` handler sees, if the script says.
    pub kinds: Option<Calls>,
    /// `per: "warp"`: in which threads a device handler runs.
    pub per: Per,
    /// `via: "patch"`: how a device handler gets into kernels, if the script says.
    pub via: Option<DeviceWay>,
    /// `tag: n`: at which launches a device handler runs.
    pub tag: Option<i64>,
    /// `stream: n`: likewise.
    pub stream: Option<u32>,
    /// `return: "trampoline"`: how a return probe detects returns.
    pub returns: ReturnWay,
}

/// In which threads of a kernel a handler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Per {
    #[default]
    Thread,
    /// In one of the threads of a warp that are there together.
    Warp,
    /// In the first thread of each block.
    Block,
}

impl Per {
    /// Returns what an option's value names.
    pub fn named(text: &str) -> Option<Per> {
        Some(match text {
            "thread" => Per::Thread,
            "warp" => Per::Warp,
            "block" => Per::Block,
            _ => return None,
        })
    }
}

impl Options {
    pub fn scope(&self) -> ProbeScope {
        self.scope.unwrap_or_default()
    }

    /// Returns the launches at which a device handler runs.
    pub fn launches(&self) -> LaunchFilter {
        LaunchFilter { every: self.every.unwrap_or(1), tag: self.tag, stream: self.stream }
    }

    /// Returns the calls that a `launch` handler sees.
    pub fn calls(&self) -> Calls {
        self.kinds.unwrap_or(Calls::LAUNCHES)
    }
}

/// Most elements of a list or an object that compiled handlers read.
pub const MOST_LISTED: usize = 256;

/// A constant of the compiled handler.
#[derive(Clone, Debug, PartialEq)]
pub enum Captured {
    Int(i64),
    Bool(bool),
    Str(String),
    Unit,
    /// A list, at most [`MOST_LISTED`] long.
    List(Vec<Captured>),
    /// An object `#{…}` with at most as many names.
    Object(Vec<(String, Captured)>),
    /// A closure in a variable: `f.call(x)` is inlined.
    Closure(Box<ScriptFunction>),
    /// A probe: a position in [`Staged::probes`].
    Probe(u32),
    /// A value that means nothing in compiled code; the text names its type.
    Other(String),
}

/// A function of the script or of a module; compiled handlers inline its calls.
#[derive(Clone, Debug)]
pub struct ScriptFunction {
    /// The file of the body.
    pub file: FileId,
    pub name: String,
    pub parameters: Vec<String>,
    /// What a closure captured; empty for named functions.
    pub captured: Vec<(String, Captured)>,
    pub body: Vec<Stmt>,
}

/// Functions at the same place are the same.
impl PartialEq for ScriptFunction {
    fn eq(&self, other: &Self) -> bool {
        (self.file, &self.name, &self.captured) == (other.file, &other.name, &other.captured)
    }
}

/// A module made available in a file by `import "name" as alias;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleAlias {
    /// The file that imports.
    pub importer: FileId,
    pub alias: String,
    /// The imported file.
    pub module: FileId,
}

/// A map declared with `map(#{name: …, size: …, evict: …})`.
#[derive(Clone, Debug, PartialEq)]
pub struct MapDeclaration {
    /// The name with its `@`.
    pub name: String,
    pub size: Option<u32>,
    pub evict: bool,
    pub declared_at: Label,
}

/// A probe value: what one call of a declaring function returned.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredProbe {
    pub event: Event,
    /// The name of its first handler.
    pub name: String,
    /// Whether it runs from the start on: not after `probe.disable()` at the top level.
    pub begins_on: bool,
    pub declared_at: Label,
}

/// Everything that staging found, for `compile`.
#[derive(Clone, Debug, Default)]
pub struct Staged {
    pub sources: Sources,
    pub handlers: Vec<Handler>,
    pub probes: Vec<DeclaredProbe>,
    pub maps: Vec<MapDeclaration>,
    /// `stacks(65_536)`: the number of CPU-probe stacks to keep, if the script says.
    pub stacks: Option<u32>,
    /// For each source file, the mapping from rewritten to user's text.
    pub positions: Vec<Positions>,
    /// The functions of all files.
    pub functions: Vec<ScriptFunction>,
    pub modules: Vec<ModuleAlias>,
}

/// Maps positions in the text that Rhai parsed to byte offsets in the user's text.
#[derive(Clone, Debug, Default)]
pub struct Positions {
    /// Byte offset of each line of the rewritten text.
    pub lines: Vec<usize>,
    /// (offset in the rewritten text, offset in the user's text), ascending; both advance together
    /// between entries.
    pub anchors: Vec<(usize, usize)>,
    /// Characters of the rewritten text that are longer than one byte: (offset, bytes beyond one),
    /// ascending. Rhai's columns count characters.
    pub wide: Vec<(usize, usize)>,
    /// Byte offset of each line of the user's text.
    pub user_lines: Vec<usize>,
}

/// The variable that stands for a bare `@`. No other map's variable has this name, because map
/// names start with a letter.
pub const BARE_MAP: &str = "__map";

/// The variable that stands for the event of a handler that names none: `|| @[comm].count()`.
pub const BARE_EVENT: &str = "__event";

/// Returns the map, with its `@`, that a variable of the rewritten text stands for; `None` for the
/// user's own variables, which never start with `_`.
pub fn map_name(variable: &str) -> Option<String> {
    match variable {
        BARE_MAP => Some("@".to_owned()),
        BARE_EVENT => None,
        _ => variable.strip_prefix('_').map(|name| format!("@{name}")),
    }
}

impl Positions {
    /// Returns the byte offset in the user's text of a position that Rhai reported.
    pub fn offset(&self, position: Position) -> usize {
        let (Some(line), column) = (position.line(), position.position().unwrap_or(1)) else { return 0 };
        self.user_offset(self.rewritten_offset(line, column))
    }

    /// Returns the byte offset in the user's text of an offset in the rewritten text.
    pub(crate) fn user_offset(&self, rewritten: usize) -> usize {
        let at = self.anchors.partition_point(|(from, _)| *from <= rewritten);
        match at.checked_sub(1).map(|i| self.anchors[i]) {
            Some((from, to)) => to + (rewritten - from),
            None => rewritten,
        }
    }

    /// Returns the 1-based line and column, in bytes, of an offset in the user's text.
    pub fn line_and_column(&self, offset: usize) -> (u32, u32) {
        let line = self.user_lines.partition_point(|it| *it <= offset);
        let start = line.checked_sub(1).map_or(0, |it| self.user_lines[it]);
        (line.max(1) as u32, (offset - start) as u32 + 1)
    }

    /// Returns the byte offset in the rewritten text of a 1-based line and column.
    fn rewritten_offset(&self, line: usize, column: usize) -> usize {
        let start = self.lines.get(line - 1).copied().unwrap_or(0);
        let mut offset = start + column.saturating_sub(1);
        let first = self.wide.partition_point(|(at, _)| *at < start);
        for (at, extra) in &self.wide[first..] {
            if *at >= offset {
                break;
            }
            offset += extra;
        }
        offset
    }
}

impl Staged {
    /// Returns the function that `name(…)` or `module::name(…)` with this many arguments means in
    /// `file`.
    pub fn function(
        &self,
        file: FileId,
        module: Option<&str>,
        name: &str,
        n_arguments: usize,
    ) -> Option<&ScriptFunction> {
        let file = match module {
            None => file,
            Some(alias) => self.modules.iter().find(|it| it.importer == file && it.alias == alias)?.module,
        };
        self.functions.iter().find(|it| it.file == file && it.name == name && it.parameters.len() == n_arguments)
    }

    /// Returns a label for the word or token at a Rhai position in `file`.
    pub fn label(&self, file: FileId, position: Position) -> Label {
        let offset = self.positions[file.0 as usize].offset(position);
        Label { file, span: token_at(&self.sources.files[file.0 as usize].text, offset), note: None }
    }

    /// Returns the line of a position, for counters and `explain`.
    pub fn site(&self, file: FileId, position: Position) -> Site {
        let positions = &self.positions[file.0 as usize];
        let offset = positions.offset(position);
        Site { file, offset: offset as u32, line: positions.line_and_column(offset).0 }
    }
}

/// Returns the span of the word or symbol at `offset`.
pub(crate) fn token_at(text: &str, offset: usize) -> Range<usize> {
    let offset = (0..=offset.min(text.len())).rev().find(|it| text.is_char_boundary(*it)).unwrap_or(0);
    let rest = &text[offset..];
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '@';
    let len = match rest.chars().next() {
        Some(c) if word(c) => rest.find(|c| !word(c)).unwrap_or(rest.len()),
        Some(c) => c.len_utf8(),
        None => 0,
    };
    offset..offset + len
}
