//! The state shared by handlers, sources and output of a run: engines, maps, names of stacks,
//! output.

use crate::console;
use crate::creator::creator;
use crate::printer::Printer;
use crate::stacks::Stacks;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use xputrace_boundary::create::{Destination, Draft, FileAccess};
use xputrace_linux::Linux;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::plan::{Place, Plan, Probe, ProbeId, ProbePlace, SwitchId};
use xputrace_model::schema::Event;
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::{Table, TableDef, TableId};
use xputrace_nvidia_tracer::drivers::Drivers;
use xputrace_pipeline::Pipeline;
use xputrace_render::{Exporter, Maps, StackFile};
use xputrace_script::RunNumber;
use xputrace_store::Store;
use xputrace_symbols::Omission;

/// The state of a run. [`super::Running`] owns it.
pub struct RunState {
    pub plan: Arc<Plan>,
    pub linux: Option<Linux>,
    pub pipeline: Pipeline,
    pub stacks: Stacks,
    /// The processes that have loaded CUDA's driver library.
    pub drivers: Drivers,
    /// Losses counted by the run itself.
    pub losses: Losses,
    /// Set by `exit(code)`.
    pub exit: Option<i64>,
    /// Built-in values by name, as last computed.
    pub numbers: HashMap<RunNumber, i64>,
    pub(super) store: Store,
    /// Maps that a handler has printed, drawn or cleared.
    pub(super) shown: HashSet<TableId>,
    pub(super) printer: Printer,
    /// Notes for the user that have not been printed.
    notes: Vec<String>,
    /// Turned in Linux; its map may say something else.
    unconfirmed: BTreeSet<SwitchId>,
}

impl RunState {
    pub fn new(plan: Arc<Plan>, linux: Option<Linux>, pipeline: Pipeline, stacks: Stacks, printer: Printer) -> Self {
        let store = Store::new(&plan, linux.is_some());
        RunState {
            plan,
            linux,
            pipeline,
            stacks,
            drivers: Drivers::default(),
            losses: Losses::default(),
            exit: None,
            numbers: HashMap::new(),
            store,
            shown: HashSet::new(),
            printer,
            notes: Vec::new(),
            unconfirmed: BTreeSet::new(),
        }
    }

    /// Writes one output now.
    pub fn emit(&mut self, output: &Output) {
        let mut names = self.stacks.names(self.linux.as_ref(), self.pipeline.state());
        self.printer.write(output, &mut names, &self.plan);
    }

    /// Lets handlers in Linux record, or not.
    ///
    /// # Errors
    /// Linux refuses to change the map that says so.
    pub fn set_window(&self, open: bool) -> Result<(), xputrace_linux::Error> {
        let map = self.plan.window.and_then(|it| self.linux.as_ref()?.map(it));
        map.map_or(Ok(()), |it| it.update(&0u32.to_ne_bytes(), &u64::from(open).to_ne_bytes(), 0))
    }

    /// Tells handlers in Linux which switches are on, of those turned since the last call that handlers elsewhere turn.
    ///
    /// # Errors
    /// Linux refuses to change the map that says so.
    pub fn tell_linux_switches(&mut self) -> Result<(), xputrace_linux::Error> {
        for (switch, on) in self.pipeline.state_mut().switches_mut().drain_turned() {
            if self.plan.switches.get(switch.index()).is_some_and(|it| it.is_turned_elsewhere) {
                self.write_linux_switch(switch, on)?;
            } else {
                self.unconfirmed.insert(switch);
            }
        }
        Ok(())
    }

    /// Writes the map by which handlers in Linux know which switches are on.
    ///
    /// # Errors
    /// Linux refuses.
    pub fn write_linux_switches(&self) -> Result<(), xputrace_linux::Error> {
        self.pipeline.state().switches().all().try_for_each(|(switch, on)| self.write_linux_switch(switch, on))
    }

    fn write_linux_switch(&self, switch: SwitchId, on: bool) -> Result<(), xputrace_linux::Error> {
        let map = self.plan.linux_switches.and_then(|it| self.linux.as_ref()?.map(it));
        map.map_or(Ok(()), |it| it.update(&switch.0.to_ne_bytes(), &u64::from(!on).to_ne_bytes(), 0))
    }

    /// Returns what Linux's map says of the switches that its handlers have turned since that was last confirmed.
    pub fn unconfirmed_switches(&self) -> Vec<(SwitchId, bool)> {
        let Some(map) = self.plan.linux_switches.and_then(|it| self.linux.as_ref()?.map(it)) else { return Vec::new() };
        let is_on =
            |switch: &SwitchId| Some(map.lookup(&switch.0.to_ne_bytes()).ok()??.first()?.iter().all(|it| *it == 0));
        self.unconfirmed.iter().filter_map(|it| Some((*it, is_on(it)?))).collect()
    }

    /// Takes over what [`RunState::unconfirmed_switches`] said then (CLOCK_MONOTONIC nanoseconds), once no record of Linux
    /// is left from before. Where several handlers turned a switch at the same moment, only the map tells who was last.
    pub fn confirm_switches(&mut self, said: &[(SwitchId, bool)], then: u64) {
        let switches = self.pipeline.state_mut().switches_mut();
        for (switch, on) in said {
            self.unconfirmed.remove(switch);
            if switches.is_on(*switch) != *on {
                switches.turn(*switch, *on, then);
            }
        }
    }

    /// Sends what was written to the reader.
    ///
    /// # Errors
    /// The first failure to write; everything after it is dropped.
    pub fn flush(&mut self) -> io::Result<()> {
        self.printer.flush()
    }

    /// Whether nothing more can be written: the output is closed, or there is no room.
    pub fn is_closed(&self) -> bool {
        self.printer.is_closed()
    }

    /// Returns the failures of maps and of the output since the last call, after which the run goes on.
    pub fn take_failures(&mut self) -> Vec<String> {
        self.store.take_failures().into_iter().chain(self.printer.take_misplaced()).collect()
    }

    /// Returns what names of stacks left out since the last call.
    pub fn take_omissions(&mut self) -> Vec<Omission> {
        self.stacks.take_omissions()
    }

    /// Returns the notes since the last call.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Starts the end: from now on, maps that handlers print, draw or clear count as shown. What
    /// `interval` handlers showed earlier was not final.
    pub fn begin_end(&mut self) {
        self.shown.clear();
    }

    /// Prints every map that no `end` handler showed, then the losses. A map that an `end` handler
    /// should show is left to it, unless one of them failed (`all_said` is false).
    pub fn finish(&mut self, account: Option<Account>, all_said: bool) {
        let plan = self.plan.clone();
        let is_ends = |id: &TableId| all_said && plan.shown_by_end.contains(id);
        let is_left = |(id, _): &(TableId, &Arc<TableDef>)| !self.shown.contains(id) && !is_ends(id);
        let mut left: Vec<_> = TableId::each(&plan.tables).filter(is_left).collect();
        left.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
        for (id, _) in left {
            let table = self.maps().snapshot(id);
            if !table.rows.is_empty() {
                self.emit(&Output::Table(View { table: Arc::new(table), top: None }));
            }
        }
        let losses = self.all_losses();
        self.emit(&Output::End { losses, account: account.map(Box::new) });
    }

    /// Returns the names of the probes of functions, tracepoints and CUDA calls whose handlers never ran, each once. Left out
    /// are those that are not attached (`pending`), those that handlers switch, and tracepoints of a pattern of which one was
    /// hit.
    pub fn unhit(&self, pending: &HashSet<ProbeId>) -> Vec<String> {
        let is_silent = self.pipeline.account().is_silent();
        let is_meant = |id: ProbeId, it: &Probe| match it.target {
            _ if it.switch.is_some() || pending.contains(&id) => false,
            ProbePlace::Function { .. } | ProbePlace::Usdt { .. } | ProbePlace::Tracepoint { .. } => {
                self.plan.linux_hits.is_some()
            }
            ProbePlace::Api(_) => !is_silent,
            _ => false,
        };
        let meant: Vec<(ProbeId, &Probe)> =
            ProbeId::each(&self.plan.probes).filter(|(id, it)| is_meant(*id, it)).collect();
        let (hit, unhit): (Vec<_>, Vec<_>) = meant.into_iter().partition(|(id, it)| self.is_hit(*id, it.place));
        let has_hit_sibling = |it: &Probe| hit.iter().any(|(_, other)| other.site == it.site);
        let is_of_pattern = |it: &Probe| it.event == Event::Tracepoint && has_hit_sibling(it);
        let mut names: Vec<String> =
            unhit.iter().filter(|(_, it)| !is_of_pattern(it)).map(|(_, it)| it.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    fn is_hit(&self, probe: ProbeId, place: Place) -> bool {
        if place != Place::Linux {
            return self.pipeline.state().is_hit(probe);
        }
        let map = self.plan.linux_hits.and_then(|it| self.linux.as_ref()?.map(it));
        let word = map.and_then(|it| it.lookup(&probe.0.to_ne_bytes()).ok().flatten());
        word.is_none_or(|values| values.iter().flatten().any(|it| *it != 0))
    }

    /// Returns all losses so far, of every engine.
    pub fn all_losses(&self) -> Losses {
        let mut losses = self.pipeline.losses();
        losses.merge(&self.cpu_losses());
        losses
    }

    /// Returns the losses of CPU probes and of the run itself so far, which no GPU record tells.
    pub fn cpu_losses(&self) -> Losses {
        let mut losses = self.losses.clone();
        losses.add(Loss::UnnamedStack, self.stacks.n_unnamed());
        self.store.refused().for_each(|(map, n)| losses.add_at(Loss::MapFull, map, n));
        if let Some(linux) = &self.linux {
            for (slot, n) in linux.loss_counts().into_iter().enumerate() {
                if let Some(site) = self.plan.loss_sites.get(slot) {
                    losses.add_at(site.loss, *site, n);
                }
            }
            losses.add(Loss::LinuxMissed, linux.missed_hits());
            losses.add(Loss::LinuxRingFull, linux.lost_object_records());
            for (id, def) in TableId::each(&self.plan.tables).filter(|(_, def)| def.evicts()) {
                let evicted = def.storage.linux().map_or(0, |map| linux.evicted(map, id));
                losses.add_at(Loss::MapEvicted, id, evicted);
            }
        }
        losses
    }

    /// Draws a map's stacks to a file. Errors are sentences.
    pub(super) fn draw(&mut self, id: TableId, path: &str) -> Result<(), String> {
        let mut drawing = StackFile { map: id, is_drawn: true, path: path.to_owned() };
        self.write_file(&mut drawing, path)?;
        self.shown.insert(id);
        Ok(())
    }

    /// Lets an exporter write its file. Errors are sentences.
    pub fn write_file(&mut self, exporter: &mut dyn Exporter, path: &str) -> Result<(), String> {
        let mut file = LazyFile { path, file: None };
        let written = exporter.finish(&mut file, self)?;
        file.finish().map_err(|it| format!("cannot write {path}: {it}"))?;
        self.notes.extend(written);
        Ok(())
    }

    /// Returns a stack as indented lines.
    pub(super) fn stack_lines(&mut self, stack: StackKey) -> String {
        let mut names = self.stacks.names(self.linux.as_ref(), self.pipeline.state());
        xputrace_render::stack_lines(stack, &mut names)
    }

    /// Returns all frames of a stack.
    pub fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        self.stacks.names(self.linux.as_ref(), self.pipeline.state()).whole(stack)
    }
}

impl Maps for RunState {
    fn defs(&self) -> Vec<Arc<TableDef>> {
        self.plan.tables.clone()
    }

    fn read(&mut self, id: TableId, hear: &mut dyn FnMut(&Table, &mut dyn StackNames)) {
        let table = self.maps().snapshot(id);
        hear(&table, &mut self.stacks.names(self.linux.as_ref(), self.pipeline.state()));
    }
}

/// A file created when the first byte is written, so that nothing is created if there is nothing to
/// write.
struct LazyFile<'a> {
    path: &'a str,
    file: Option<Begun>,
}

enum Begun {
    Draft(Draft),
    Stream(File),
}

impl LazyFile<'_> {
    fn begun(&mut self) -> io::Result<&mut Begun> {
        if self.file.is_none() {
            self.file = Some(match creator().destination(Path::new(self.path))? {
                Destination::File(place) => Begun::Draft(place.draft(FileAccess::Usual)?),
                Destination::Stream(stream) => Begun::Stream(console::open(&stream)?),
            });
        }
        self.file.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Puts the file in its place, if there is one.
    fn finish(self) -> io::Result<()> {
        match self.file {
            Some(Begun::Draft(draft)) => draft.finish(),
            Some(Begun::Stream(_)) | None => Ok(()),
        }
    }
}

impl Write for LazyFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.begun()? {
            Begun::Draft(draft) => draft.write(bytes),
            Begun::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
