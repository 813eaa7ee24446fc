//! What a run holds: the engines' parts of every map, the interpreter's own part, the output.
//!
//! ```text
//! kernel's part ─┐
//! tracer's part ─┼─ read: drained or copied, merged ──▶ Table ──▶ output
//! own part ──────┘   (own: what interpreted handlers wrote, and what reads drained)
//! ```
//! A map of two generations is drained into the own part by each read, so that an interpreted
//! handler sees one consistent snapshot, and `clear` removes exactly that.

use crate::stacks::Stacks;
use anyhow::{Context as _, Result, bail};
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use xputrace_bytecode::MapKind;
use xputrace_bytecode::insn::atomic;
use xputrace_bytecode::vm::Change;
use xputrace_kernel::Kernel;
use xputrace_model::bucket;
use xputrace_model::loss::{Account, Loss, Losses};
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::plan::Plan;
use xputrace_model::schema::Unit;
use xputrace_model::stack::{Frames, StackKey};
use xputrace_model::table::{Cell, Key, Scalar, Table, TableDef, TableId, TableKind, Value};
use xputrace_script::Host;
use xputrace_tracer::{Pipeline, tables};

/// Where a run's output goes, and in what form.
pub struct Printer {
    out: Box<dyn Write>,
    json: bool,
    width: usize,
}

impl Printer {
    /// To a file, or to standard output.
    pub fn new(options: &crate::cli::Options) -> Result<Self> {
        let out: Box<dyn Write> = match &options.output {
            Some(path) => Box::new(std::io::BufWriter::new(
                std::fs::File::create(path).with_context(|| format!("creating {}", path.display()))?,
            )),
            None => Box::new(std::io::BufWriter::new(std::io::stdout())),
        };
        let width = if options.output.is_some() { xputrace_render::DEFAULT_WIDTH } else { terminal_width() };
        Ok(Printer { out, json: options.format == "json", width })
    }
}

fn terminal_width() -> usize {
    // SAFETY: a zeroed winsize is valid, and the call fills it or fails.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a winsize, which this request fills.
    let answered = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) } == 0;
    if answered && size.ws_col >= 40 { usize::from(size.ws_col) } else { xputrace_render::DEFAULT_WIDTH }
}

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
    own: Vec<HashMap<Key, Cell>>,
    shown: HashSet<TableId>,
    by_name: HashMap<String, TableId>,
    printer: Printer,
    /// The first failure to write; the run ends with it.
    write_error: Option<std::io::Error>,
}

impl Results {
    pub fn new(plan: Arc<Plan>, kernel: Option<Kernel>, pipeline: Pipeline, stacks: Stacks, printer: Printer) -> Self {
        let by_name = plan.tables.iter().enumerate().map(|(i, it)| (it.name.clone(), TableId(i as u32))).collect();
        let own = plan.tables.iter().map(|_| HashMap::new()).collect();
        Results {
            plan,
            kernel,
            pipeline,
            stacks,
            losses: Losses::default(),
            exit: None,
            builtins: HashMap::new(),
            own,
            shown: HashSet::new(),
            by_name,
            printer,
            write_error: None,
        }
    }

    /// Writes one output now.
    pub fn emit(&mut self, output: &Output) {
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        let mut context =
            xputrace_render::Context { names: &mut names, sources: &self.plan.sources, width: self.printer.width };
        let write = if self.printer.json { xputrace_render::json } else { xputrace_render::text };
        if let Err(error) = write(&mut self.printer.out, output, &mut context) {
            self.write_error.get_or_insert(error);
        }
    }

    /// Hands what was written to the reader.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.printer.out.flush();
        match self.write_error.take().or(flushed.err()) {
            Some(error) => Err(error).context("writing the output"),
            None => Ok(()),
        }
    }

    /// From here on, what handlers print, draw or clear counts as shown: `end` handlers come now, and
    /// what `interval` handlers showed before was not the last of it.
    pub fn begin_end(&mut self) {
        self.shown.clear();
    }

    /// The end of the run: every map that no `end` handler showed, then the losses.
    pub fn finish(&mut self, account: Option<Account>) {
        let mut ids: Vec<TableId> = (0..self.plan.tables.len() as u32).map(TableId).collect();
        ids.sort_by_key(|id| self.plan.tables[id.0 as usize].name.clone());
        for id in ids {
            if self.shown.contains(&id) || self.plan.shown_by_end.contains(&id) {
                continue;
            }
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

    /// A map's contents now: one consistent snapshot.
    pub fn snapshot(&mut self, id: TableId) -> Table {
        let def = self.def(id);
        let mut parts: Vec<Vec<(Key, Cell)>> = Vec::new();
        if self.is_two_generations(&def) {
            self.drain(id, &def);
        } else {
            parts.push(self.kernel_part(&def));
            if self.pipeline_has(&def) {
                parts.push(self.pipeline.part(id));
            }
        }
        parts.push(self.own[id.0 as usize].iter().map(|(k, c)| (k.clone(), c.clone())).collect());
        tables::merge(&def, parts)
    }

    fn def(&self, id: TableId) -> Arc<TableDef> {
        self.plan.tables[id.0 as usize].clone()
    }

    /// Whether the tracer's engine holds a part: its own map, or over a recording all of them.
    fn pipeline_has(&self, def: &TableDef) -> bool {
        self.kernel.is_none() || (def.tracer_map.is_some() && def.tracer_map != def.kernel_map)
    }

    fn is_two_generations(&self, def: &TableDef) -> bool {
        let maps = [def.kernel_map, def.tracer_map];
        maps.into_iter().flatten().any(|it| self.plan.image.maps[it].kind == MapKind::ArrayOfMaps)
    }

    fn kernel_part(&self, def: &TableDef) -> Vec<(Key, Cell)> {
        let Some(map) = def.kernel_map.and_then(|it| self.kernel.as_ref()?.map(it)) else { return Vec::new() };
        let mut collector = tables::Collector::new(def, self.pipeline.names());
        let single = def.stored_key_size() == 0;
        let read = map.for_each(&mut |key, values| {
            values.iter().for_each(|value| collector.add(if single { &[] } else { key }, value));
        });
        // A map that cannot be read any more (the kernel is going away) reads as what was seen.
        drop(read);
        collector.finish()
    }

    /// Moves what the engines' generations hold into the own part.
    fn drain(&mut self, id: TableId, def: &Arc<TableDef>) {
        let single = def.stored_key_size() == 0;
        let mut drained = Vec::new();
        if let (Some(map), Some(kernel)) = (def.kernel_map, &mut self.kernel) {
            let mut collector = tables::Collector::new(def, self.pipeline.names());
            let swapped = kernel.swap(map, &mut |key, values| {
                values.iter().for_each(|value| collector.add(if single { &[] } else { key }, value));
            });
            if let Err(error) = swapped {
                eprintln!("xputrace: reading {}: {error}", def.name);
            }
            drained.extend(collector.finish());
        }
        if self.pipeline_has(def) {
            drained.extend(self.pipeline.drain_part(id));
        }
        for (key, cell) in drained {
            self.merge_own(id, def, key, cell);
        }
    }

    /// Adds to the own part; refusals because it is full are counted.
    fn merge_own(&mut self, id: TableId, def: &TableDef, key: Key, cell: Cell) {
        let own = &mut self.own[id.0 as usize];
        if let Some(row) = own.get_mut(&key) {
            row.merge(def.kind, cell);
        } else if own.len() < def.capacity as usize {
            own.insert(key, cell);
        } else {
            self.losses.add(Loss::MapFull, 1);
        }
    }

    fn id(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// Whether a plain value lives in the own part: no compiled handler uses the map.
    fn is_own(def: &TableDef) -> bool {
        def.kernel_map.is_none() && def.tracer_map.is_none()
    }

    fn plain(&mut self, id: TableId, key: &[Value]) -> Option<Value> {
        let def = self.def(id);
        if Self::is_own(&def) {
            return match self.own[id.0 as usize].get(key) {
                Some(Cell::Plain(value)) => Some(value.clone()),
                _ => None,
            };
        }
        let Some(map) = def.kernel_map.filter(|_| self.kernel.is_some()) else {
            return self.pipeline.state_mut().get_plain(id, key);
        };
        let stored = self.stored_key(&def, key)?;
        let values = self.kernel.as_ref()?.map(map)?.lookup(&stored).ok()??;
        match tables::decode_value(&def, &stored, values.first()?, self.pipeline.names()) {
            Cell::Plain(value) => Some(value),
            _ => None,
        }
    }

    /// The key as the BPF map has it: a map without a key is an array of one element.
    fn stored_key(&mut self, def: &TableDef, key: &[Value]) -> Option<Vec<u8>> {
        let stored = tables::encode_key(def, key, self.pipeline.state_mut().names_mut())?;
        Some(if stored.is_empty() { 0u32.to_le_bytes().to_vec() } else { stored })
    }

    fn set_plain(&mut self, id: TableId, key: &[Value], value: Value) -> Result<(), String> {
        let def = self.def(id);
        if Self::is_own(&def) {
            return self.set_own(id, &def, key, value);
        }
        let Some(map) = def.kernel_map.filter(|_| self.kernel.is_some()) else {
            let done = self.pipeline.state_mut().set_plain(id, key, &value);
            return if done { Ok(()) } else { Err(misfit(&def)) };
        };
        let TableKind::Plain(kind) = def.kind else { return Err(misfit(&def)) };
        let stored = self.stored_key(&def, key).ok_or_else(|| misfit(&def))?;
        let bytes = tables::encode_plain(kind, &value, self.pipeline.state_mut().names_mut());
        let handle = self.kernel.as_ref().and_then(|it| it.map(map)).ok_or("the map is not loaded")?;
        match (value, bytes) {
            (Value::Missing, _) => handle.delete(&stored).map(|_| ()).map_err(|e| e.to_string()),
            (_, Some(bytes)) => handle.update(&stored, &bytes, 0).map_err(|e| e.to_string()),
            (_, None) => Err(misfit(&def)),
        }
    }

    /// Removes an element of an aggregation from the kernel's part; of a histogram, all its buckets.
    fn remove_in_kernel(&mut self, def: &TableDef, key: &[Value]) {
        let Some(stored) = tables::encode_key(def, key, self.pipeline.state_mut().names_mut()) else { return };
        let Some(map) = def.kernel_map.and_then(|it| self.kernel.as_ref()?.map(it)) else { return };
        let removed = match (stored.is_empty(), def.kind.is_bucketed()) {
            (true, _) => map.clear(),
            (false, false) => map.delete(&stored).map(|_| ()),
            (false, true) => {
                let mut buckets: Vec<Vec<u8>> = Vec::new();
                map.for_each(&mut |it, _| buckets.extend(it.starts_with(&stored).then(|| it.to_vec())))
                    .and_then(|()| buckets.iter().try_for_each(|it| map.delete(it).map(|_| ())))
            }
        };
        if let Err(error) = removed {
            eprintln!("xputrace: removing from {}: {error}", def.name);
        }
    }

    /// Adds to an integer that lives in the kernel, where its probes may be adding too: exactly.
    fn add_in_kernel(&mut self, id: TableId, key: &[Value], delta: i64) -> Option<Result<(), String>> {
        let def = self.def(id);
        if def.kind != TableKind::Plain(Scalar::Int) {
            return None;
        }
        let map = def.kernel_map?;
        let stored = self.stored_key(&def, key)?;
        let change = Change::new(atomic::ADD, delta as u64)?;
        let handle = self.kernel.as_ref()?.map(map)?;
        Some(handle.modify(&stored, change).map_err(|e| e.to_string()))
    }

    fn set_own(&mut self, id: TableId, def: &TableDef, key: &[Value], value: Value) -> Result<(), String> {
        let own = &mut self.own[id.0 as usize];
        if value == Value::Missing {
            own.remove(key);
        } else if own.contains_key(key) || own.len() < def.capacity as usize {
            own.insert(key.to_vec(), Cell::Plain(value));
        } else {
            self.losses.add(Loss::MapFull, 1);
        }
        Ok(())
    }

    fn clear_table(&mut self, id: TableId) {
        let def = self.def(id);
        self.own[id.0 as usize].clear();
        if self.is_two_generations(&def) {
            return;
        }
        if let Some(map) = def.kernel_map.and_then(|it| self.kernel.as_ref()?.map(it))
            && let Err(error) = map.clear()
        {
            eprintln!("xputrace: clearing {}: {error}", def.name);
        }
        if self.pipeline_has(&def) {
            self.pipeline.state_mut().clear_part(id);
        }
    }

    /// A map's folded stacks.
    pub fn folded(&mut self, id: TableId) -> Result<String> {
        let table = self.snapshot(id);
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        Ok(xputrace_render::folded(&table, &mut names)?)
    }

    /// The maps whose first key is a stack.
    pub fn stack_tables(&self) -> Vec<(TableId, String)> {
        let is_stack = |it: &TableDef| it.keys.first().is_some_and(|k| k.kind == Scalar::Stack);
        let all = self.plan.tables.iter().enumerate();
        all.filter(|(_, it)| is_stack(it)).map(|(i, it)| (TableId(i as u32), it.name.clone())).collect()
    }

    /// A stack as indented lines.
    pub fn stack_lines(&mut self, stack: StackKey) -> String {
        let mut names = self.stacks.names(self.kernel.as_ref(), self.pipeline.state());
        crate::stacks::lines(&mut names, stack)
    }

    /// A stack's frames.
    pub fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        self.stacks.names(self.kernel.as_ref(), self.pipeline.state()).frames(stack)
    }

    /// Whether the output is for programs.
    pub fn is_json(&self) -> bool {
        self.printer.json
    }

    /// Which map `FILE` or `@name=FILE` means, and the file.
    pub fn stack_file(&self, wish: &str, option: &str) -> Result<(TableId, String)> {
        let tables = self.stack_tables();
        if let Some((name, path)) = wish.split_once('=').filter(|(name, _)| name.starts_with('@')) {
            let found = tables.iter().find(|(_, it)| it == name);
            let (id, _) = found.with_context(|| format!("{option}: no map {name} begins with a stack"))?;
            return Ok((*id, path.into()));
        }
        match tables.as_slice() {
            [(id, _)] => Ok((*id, wish.into())),
            [] => bail!(
                "{option}: no map of the script has a stack as its first key, as in @gpu[k.launch.ustack, k.name].sum(k.duration)"
            ),
            several => {
                let names: Vec<&str> = several.iter().map(|(_, it)| it.as_str()).collect();
                bail!(
                    "{option}: several maps begin with a stack ({}); say which: {option} {}={wish}",
                    names.join(", "),
                    names[0]
                )
            }
        }
    }

    /// What a map's values measure.
    pub fn unit(&self, id: TableId) -> Unit {
        self.plan.tables[id.0 as usize].unit
    }
}

fn misfit(def: &TableDef) -> String {
    format!("{} holds values or keys of another type", def.name)
}

impl Host for Results {
    fn table(&mut self, name: &str) -> Option<Arc<Table>> {
        let id = self.id(name)?;
        Some(Arc::new(self.snapshot(id)))
    }

    fn get(&mut self, name: &str, key: &[Value]) -> Value {
        let Some(id) = self.id(name) else { return Value::Missing };
        match self.def(id).kind {
            TableKind::Plain(_) => self.plain(id, key).unwrap_or(Value::Missing),
            _ => {
                let table = self.snapshot(id);
                let cell = table.rows.into_iter().find(|(it, _)| it == key).map(|(_, cell)| cell);
                cell.map_or(Value::Missing, |it| Value::Int(it.weight()))
            }
        }
    }

    fn contains(&mut self, name: &str, key: &[Value]) -> bool {
        let Some(id) = self.id(name) else { return false };
        match self.def(id).kind {
            TableKind::Plain(_) => self.plain(id, key).is_some(),
            _ => self.snapshot(id).rows.iter().any(|(it, _)| it == key),
        }
    }

    fn set(&mut self, name: &str, key: &[Value], value: Value) -> Result<(), String> {
        let id = self.id(name).ok_or_else(|| format!("there is no map {name}"))?;
        self.set_plain(id, key, value)
    }

    fn add(&mut self, name: &str, key: &[Value], delta: i64) -> Result<(), String> {
        let id = self.id(name).ok_or_else(|| format!("there is no map {name}"))?;
        if let Some(done) = self.add_in_kernel(id, key, delta) {
            return done;
        }
        let old = match self.plain(id, key) {
            Some(Value::Int(n)) => n,
            None | Some(Value::Missing) => 0,
            Some(_) => return Err(format!("{name} does not hold integers")),
        };
        self.set_plain(id, key, Value::Int(old.wrapping_add(delta)))
    }

    fn update(&mut self, name: &str, key: &[Value], kind: TableKind, value: i64) -> Result<(), String> {
        let id = self.id(name).ok_or_else(|| format!("there is no map {name}"))?;
        let def = self.def(id);
        self.merge_own(id, &def, key.to_vec(), single(kind, value));
        Ok(())
    }

    fn remove(&mut self, name: &str, key: &[Value]) {
        let Some(id) = self.id(name) else { return };
        let def = self.def(id);
        self.own[id.0 as usize].remove(key);
        if let TableKind::Plain(_) = def.kind {
            let _ = self.set_plain(id, key, Value::Missing);
        } else if !self.is_two_generations(&def) {
            self.pipeline.state_mut().remove(id, key);
            self.remove_in_kernel(&def, key);
        }
    }

    fn clear(&mut self, name: &str) {
        if let Some(id) = self.id(name) {
            self.clear_table(id);
            self.shown.insert(id);
        }
    }

    fn output(&mut self, out: Output) {
        if let Output::Table(view) = &out
            && let Some(id) = self.id(&view.table.def.name)
        {
            self.shown.insert(id);
        }
        self.emit(&out);
    }

    fn text(&mut self, value: &Value, unit: Unit, human: bool) -> String {
        match value {
            Value::Missing => "-".into(),
            Value::Bool(it) => it.to_string(),
            Value::Int(it) if human => xputrace_render::human(*it, unit),
            Value::Int(it) => it.to_string(),
            Value::Str(it) => it.to_string(),
            Value::Stack(it) => self.stack_lines(*it),
        }
    }

    fn flamegraph(&mut self, path: &str, name: &str) -> Result<(), String> {
        let id = self.id(name).ok_or_else(|| format!("there is no map {name}"))?;
        self.shown.insert(id);
        let folded = self.folded(id).map_err(|e| e.to_string())?;
        let svg = match xputrace_render::flamegraph(&folded, &format!("xputrace {name}"), self.unit(id)) {
            Ok(svg) => svg,
            Err(xputrace_render::FoldError::Empty) => return Err(format!("{name} is empty: {path} is not written")),
            Err(error) => return Err(error.to_string()),
        };
        std::fs::write(path, svg).map_err(|e| format!("writing {path}: {e}"))
    }

    fn builtin(&mut self, name: &str) -> Option<Value> {
        if name == "losses" {
            let lost: u64 = self.all_losses().iter().map(|(_, _, n)| n).sum();
            return Some(Value::Int(lost as i64));
        }
        if name == "output_is_json" {
            return Some(Value::Bool(self.printer.json));
        }
        self.builtins.get(name).map(|it| Value::Int(*it))
    }

    fn exit(&mut self, code: i64) {
        self.exit.get_or_insert(code);
    }
}

/// An aggregation of one value.
fn single(kind: TableKind, value: i64) -> Cell {
    let one = |bucket| Cell::Buckets([(bucket, 1)].into());
    match kind {
        TableKind::Plain(_) => Cell::Plain(Value::Int(value)),
        TableKind::Count => Cell::Number(1),
        TableKind::Sum | TableKind::Min | TableKind::Max => Cell::Number(value),
        TableKind::Avg => Cell::Avg { count: 1, total: value },
        TableKind::Stats => Cell::Stats { count: 1, total: value, min: value, max: value },
        TableKind::Hist { bits } => one(bucket::index(value, bits)),
        TableKind::Quantiles => one(bucket::index(value, bucket::QUANTILE_BITS)),
        TableKind::Lhist { min, max, step } => one(linear_bucket(value, min, max, step)),
    }
}

fn linear_bucket(value: i64, min: i64, max: i64, step: i64) -> i64 {
    if value < min {
        -1
    } else if value >= max {
        max.wrapping_sub(min).checked_div(step).unwrap_or(0)
    } else {
        value.wrapping_sub(min).checked_div(step).unwrap_or(0)
    }
}
