//! Where a handler's probe is, as far as that is known in advance.

use super::checker::Checker;
use crate::places::{missing_place, no_file, tracepoints_help};
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::plan::{ProbePlace, is_instruction};

impl Checker<'_> {
    /// Checks that the probe's target exists on this machine, as far as that is known in advance.
    pub(super) fn check_target(&mut self) {
        let target = &self.handler.target;
        if let ProbePlace::Function { object, .. } | ProbePlace::Usdt { object, .. } = target
            && !self.catalog.has_file(object)
        {
            let diagnostic = no_file(object, self.pattern_label());
            return self.error(diagnostic);
        }
        let Some((code, why)) = missing_place(target, self.catalog) else { return };
        let help = match target {
            ProbePlace::Tracepoint { category, .. } => tracepoints_help(self.staged, self.catalog, category),
            ProbePlace::Function { function, .. } if is_instruction(function) => {
                "`objdump -d` shows where instructions begin".to_owned()
            }
            ProbePlace::Function { object, .. } => {
                format!("`xputrace list 'uprobe:{object}:*'` lists the functions that can be probed")
            }
            ProbePlace::Usdt { object, .. } => {
                format!("`xputrace list 'usdt:{object}:*'` lists the file's probes, `list 'usdt:*' -p PID` a process's")
            }
            _ => return,
        };
        self.error(Diagnostic::error(code, why, self.pattern_label()).help(help));
    }

    /// Labels the pattern if the declaration contains it literally, else the declaration.
    pub(super) fn pattern_label(&self) -> Label {
        let declared = self.handler.declared_at.clone();
        let file = self.staged.sources.files.get(declared.file.0 as usize);
        let behind = file.and_then(|it| it.text.get(declared.span.end..)).unwrap_or_default();
        // The handler starts at its bars.
        let before_handler = behind.split('|').next().unwrap_or_default();
        let pattern = self.handler.name.split_once(':').map_or("", |it| it.1);
        match before_handler.find(&format!("\"{pattern}\"")) {
            Some(at) => {
                let start = declared.span.end + at;
                Label { span: start..start + pattern.len() + 2, ..declared }
            }
            None => declared,
        }
    }
}
