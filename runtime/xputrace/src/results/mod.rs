//! What a run holds: the engines, the maps, the names of stacks, the output.

mod host;
mod maps;

use crate::printer::Printer;
use crate::stacks::Stacks;
use anyhow::{Context as _, Result, bail};
use maps::Map;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use xputrace_kernel::Kernel;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::plan::Plan;
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::{Scalar, TableId};
use xputrace_tracer::Pipeline;

/// A run's state that handlers, printing and the session share.
pub struct Results {
    pub plan: Arc<Plan>,
    pub kernel: Option<Kernel>,
    pub pipeline: Pipeline,
    pub stacks: Stacks,
    /// Losses that the session itself met.
    pub losses: Losses,
    /// Set by `exit(code)`.
    pub exit: Option<i64>,
    /// Built-in values by name, as the session last computed them.
    pub builtins: HashMap<&'static str, i64>,
    maps: Vec<Map>,
    by_name: HashMap<String, TableId>,
    printer: Printer,
    /// Maps that could not be read or changed, until they are reported.
    failures: Vec<String>,
}

impl Results {
    pub fn new(plan: Arc<Plan>, kernel: Option<Kernel>, pipeline: Pipeline, stacks: Stacks, printer: Printer) -> Self {
        let by_name = plan.tables.iter().enumerate().map(|(i, it)| (it.name.clone(), TableId(i as u32))).collect();
        let maps = plan.tables.iter().map(|it| Map::new(it.clone(), &plan, kernel.is_some())).collect();
        Results {
            plan,
            kernel,
            pipeline,
            stacks,
            losses: Losses::default(),
            exit: None,
            builtins: HashMap::new(),
            maps,
            by_name,
            printer,
            failures: Vec::new(),
        }
    }

    /// Writes one output now.
    pub fn emit(&mut self, output: &Output) {
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        self.printer.write(output, &mut names, &self.plan.sources);
    }

    /// Hands what was written to the reader.
    ///
    /// # Errors
    /// The first failure to write; what comes after it is dropped.
    pub fn flush(&mut self) -> io::Result<()> {
        self.printer.flush()
    }

    /// Whether nothing can be written any more: nobody reads, or there is no room.
    pub fn is_closed(&self) -> bool {
        self.printer.is_closed()
    }

    /// What went wrong with maps since this was last asked.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// From here on, what handlers print, draw or clear counts as shown: `end` handlers come now, and
    /// what `interval` handlers showed before was not the last of it.
    pub fn begin_end(&mut self) {
        self.maps.iter_mut().for_each(|it| it.shown = false);
    }

    /// The end of the run: every map that no `end` handler showed, then the losses.
    pub fn finish(&mut self, account: Option<Account>) {
        let is_left = |(id, it): &(TableId, &Map)| !it.shown && !self.plan.shown_by_end.contains(id);
        let mut left: Vec<(TableId, &Map)> = (0..).map(TableId).zip(&self.maps).filter(is_left).collect();
        left.sort_by(|(_, a), (_, b)| a.def.name.cmp(&b.def.name));
        for id in left.into_iter().map(|(id, _)| id).collect::<Vec<_>>() {
            let table = self.snapshot(id);
            if !table.rows.is_empty() {
                self.emit(&Output::Table(View { table: Arc::new(table), top: None }));
            }
        }
        let losses = self.all_losses();
        self.emit(&Output::End { losses, account });
    }

    /// Everything lost so far, of every engine.
    pub fn all_losses(&self) -> Losses {
        let mut losses = self.pipeline.losses();
        losses.merge(&self.losses);
        if let Some(kernel) = &self.kernel {
            for (slot, n) in kernel.loss_counts().into_iter().enumerate() {
                if let Some(site) = self.plan.loss_sites.get(slot) {
                    losses.add_at(site.loss, site.site, n);
                }
            }
            losses.add(Loss::KernelMissed, kernel.missed_hits());
        }
        losses
    }

    /// A map's folded stacks.
    pub fn folded(&mut self, id: TableId) -> Result<String> {
        let table = self.snapshot(id);
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        Ok(xputrace_render::folded(&table, &mut names)?)
    }

    /// Which map `FILE` or `@name=FILE` means, and the file.
    pub fn stack_file(&self, wish: &str, option: &str) -> Result<(TableId, String)> {
        let maps = self.stack_maps();
        if let Some((name, path)) = wish.split_once('=').filter(|(name, _)| name.starts_with('@')) {
            let found = maps.iter().find(|(_, it)| *it == name);
            let (id, _) = found.with_context(|| format!("{option}: no map {name} begins with a stack"))?;
            return Ok((*id, path.into()));
        }
        match maps.as_slice() {
            [(id, _)] => Ok((*id, wish.into())),
            [] => bail!(
                "{option}: no map of the script has a stack as its first key, as in @gpu[k.launch.ustack, k.name].sum(k.duration)"
            ),
            several => {
                let names: Vec<&str> = several.iter().map(|(_, it)| *it).collect();
                bail!(
                    "{option}: several maps begin with a stack ({}); say which: {option} {}={wish}",
                    names.join(", "),
                    names[0]
                )
            }
        }
    }

    /// The maps whose first key is a stack.
    fn stack_maps(&self) -> Vec<(TableId, &str)> {
        let all = (0..).map(TableId).zip(&self.maps);
        let is_stack = |it: &Map| it.def.keys.first().is_some_and(|k| k.kind == Scalar::Stack);
        all.filter(|(_, it)| is_stack(it)).map(|(id, it)| (id, it.def.name.as_str())).collect()
    }

    /// A stack as indented lines.
    fn stack_lines(&mut self, stack: StackKey) -> String {
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        xputrace_render::stack_lines(stack, &mut names)
    }

    /// A stack's frames.
    pub fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        self.stacks.names(self.kernel.as_ref(), self.pipeline.state()).frames(stack)
    }
}
