//! What handlers, sources and output of a run share: engines, maps, names of stacks, output.

use super::maps::Map;
use crate::cli::StackFiles;
use crate::printer::Printer;
use crate::stacks::Stacks;
use anyhow::{Context as _, Result, anyhow, bail};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use xputrace_linux::Linux;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::plan::Plan;
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::{Scalar, TableId};
use xputrace_tracer::Pipeline;

/// The state of a run. [`super::Running`] owns it.
pub struct State {
    pub plan: Arc<Plan>,
    pub linux: Option<Linux>,
    pub pipeline: Pipeline,
    pub stacks: Stacks,
    /// Losses that the session itself met.
    pub losses: Losses,
    /// Set by `exit(code)`.
    pub exit: Option<i64>,
    /// Built-in values by name, as the session last computed them.
    pub builtins: HashMap<&'static str, i64>,
    pub(super) maps: Vec<Map>,
    pub(super) by_name: HashMap<String, TableId>,
    pub(super) printer: Printer,
    /// Maps that could not be read or changed, until they are reported.
    pub(super) failures: Vec<String>,
    /// What the user may want to know, until it is said.
    notes: Vec<String>,
}

impl State {
    pub fn new(plan: Arc<Plan>, linux: Option<Linux>, pipeline: Pipeline, stacks: Stacks, printer: Printer) -> Self {
        let by_name = plan.tables.iter().enumerate().map(|(i, it)| (it.name.clone(), TableId(i as u32))).collect();
        let maps = plan.tables.iter().map(|it| Map::new(it.clone(), &plan, linux.is_some())).collect();
        State {
            plan,
            linux,
            pipeline,
            stacks,
            losses: Losses::default(),
            exit: None,
            builtins: HashMap::new(),
            maps,
            by_name,
            printer,
            failures: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Writes one output now.
    pub fn emit(&mut self, output: &Output) {
        let mut names = self.stacks.names(self.linux.as_ref(), self.pipeline.state());
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

    /// What there is to say beside the results since this was last asked.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// From here on, what handlers print, draw or clear counts as shown: `end` handlers come now, and
    /// what `interval` handlers showed before was not the last of it.
    pub fn begin_end(&mut self) {
        self.maps.iter_mut().for_each(|it| it.shown = false);
    }

    /// The end of the run: every map that no `end` handler showed, then the losses. A map that an `end` handler
    /// is to show is its business, unless one of them failed (`all_said` is false).
    pub fn finish(&mut self, account: Option<Account>, all_said: bool) {
        let is_ends = |id: &TableId| all_said && self.plan.shown_by_end.contains(id);
        let is_left = |(id, it): &(TableId, &Map)| !it.shown && !is_ends(id);
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
        losses.merge(&self.cpu_losses());
        losses
    }

    /// What CPU probes and the session itself lost so far: what no record of the GPU side tells.
    pub fn cpu_losses(&self) -> Losses {
        let mut losses = self.losses.clone();
        if let Some(linux) = &self.linux {
            for (slot, n) in linux.loss_counts().into_iter().enumerate() {
                if let Some(site) = self.plan.loss_sites.get(slot) {
                    losses.add_at(site.loss, site.site, n);
                }
            }
            losses.add(Loss::KernelMissed, linux.missed_hits());
        }
        losses
    }

    /// A map's folded stacks, which there are, to be written to `path`.
    pub(super) fn folded_for(&mut self, id: TableId, path: &str) -> Result<String, String> {
        let table = self.snapshot(id);
        let mut names = self.stacks.names(self.linux.as_ref(), self.pipeline.state());
        let folded = xputrace_render::folded(&table, &mut names).map_err(|e| e.to_string())?;
        match folded.is_empty() {
            true => Err(format!("{} is empty: {path} is not written", table.def.name)),
            false => Ok(folded),
        }
    }

    pub(super) fn write_file(&mut self, path: &str, bytes: &[u8], what: &str) -> Result<(), String> {
        std::fs::write(path, bytes).map_err(|e| format!("cannot write {path}: {e}"))?;
        self.notes.push(format!("wrote {path}: {what}"));
        Ok(())
    }

    /// Which map `FILE` or `@name=FILE` means, and the file.
    fn stack_file(&self, wish: &str, option: &str) -> Result<(TableId, String)> {
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

    /// Whether every file of stacks that was asked for has a map to come from: said before anything is run.
    ///
    /// # Errors
    /// The option, and what is wrong with it.
    pub fn check_stack_files(&self, files: &StackFiles) -> Result<()> {
        files.folded.iter().try_for_each(|it| self.stack_file(it, "--folded").map(drop))?;
        files.flamegraphs.iter().try_for_each(|it| self.stack_file(it, "--flamegraph").map(drop))
    }

    /// Writes each file; returns the errors.
    pub fn write_stack_files(&mut self, files: &StackFiles) -> Vec<anyhow::Error> {
        let folded = files.folded.iter().map(|wish| self.write_folded(wish).err()).collect::<Vec<_>>();
        let drawn = files.flamegraphs.iter().map(|wish| self.write_flamegraph(wish).err());
        folded.into_iter().chain(drawn).flatten().collect()
    }

    fn write_folded(&mut self, wish: &str) -> Result<()> {
        let (id, path) = self.stack_file(wish, "--folded")?;
        let name = self.map(id).def.name.clone();
        let folded = self.folded_for(id, &path);
        let written = folded.and_then(|it| self.write_file(&path, it.as_bytes(), &format!("folded stacks of {name}")));
        written.map_err(|it| anyhow!("--folded: {it}"))
    }

    fn write_flamegraph(&mut self, wish: &str) -> Result<()> {
        let (id, path) = self.stack_file(wish, "--flamegraph")?;
        self.draw(id, &path).map_err(|it| anyhow!("--flamegraph: {it}"))
    }

    /// Draws a map's stacks into a file. The error is a sentence.
    pub(super) fn draw(&mut self, id: TableId, path: &str) -> Result<(), String> {
        let def = self.map(id).def.clone();
        let folded = self.folded_for(id, path)?;
        let svg = xputrace_render::flamegraph(&folded, &format!("xputrace {}", def.name), def.unit);
        self.write_file(path, &svg.map_err(|e| e.to_string())?, &format!("a flame graph of {}", def.name))?;
        self.map(id).shown = true;
        Ok(())
    }

    /// The maps whose first key is a stack.
    fn stack_maps(&self) -> Vec<(TableId, &str)> {
        let all = (0..).map(TableId).zip(&self.maps);
        let is_stack = |it: &Map| it.def.keys.first().is_some_and(|k| k.kind == Scalar::Stack);
        all.filter(|(_, it)| is_stack(it)).map(|(id, it)| (id, it.def.name.as_str())).collect()
    }

    /// A stack as indented lines.
    pub(super) fn stack_lines(&mut self, stack: StackKey) -> String {
        let mut names = self.stacks.names(self.linux.as_ref(), self.pipeline.state());
        xputrace_render::stack_lines(stack, &mut names)
    }

    /// A stack's frames.
    pub fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        self.stacks.names(self.linux.as_ref(), self.pipeline.state()).frames(stack)
    }
}
