//! What interpreted handlers can do with a run.

use super::RunState;
use std::sync::Arc;
use xputrace_model::output::Output;
use xputrace_model::plan::MapAction;
use xputrace_model::schema::Unit;
use xputrace_model::table::{Table, TableId, TableKind, Value};
use xputrace_script::{Host, RunNumber};

impl RunState {
    fn known(&self, name: &str) -> Result<TableId, String> {
        self.id(name).ok_or_else(|| format!("there is no map {name}"))
    }

    /// Does with a map what a compiled handler asked for.
    pub fn act_on(&mut self, map: TableId, action: MapAction) {
        match action {
            MapAction::Clear => self.maps().clear(map),
            MapAction::Print { top } => {
                let table = Arc::new(self.maps().snapshot(map));
                self.emit(&Output::table(table, top));
            }
        }
    }
}

impl Host for RunState {
    fn table(&mut self, name: &str) -> Option<Arc<Table>> {
        let id = self.id(name)?;
        Some(Arc::new(self.maps().snapshot(id)))
    }

    fn get(&mut self, name: &str, key: &[Value]) -> Value {
        self.id(name).and_then(|id| self.maps().get(id, key)).unwrap_or(Value::Missing)
    }

    fn contains(&mut self, name: &str, key: &[Value]) -> bool {
        self.id(name).is_some_and(|id| self.maps().get(id, key).is_some())
    }

    fn set(&mut self, name: &str, key: &[Value], value: Value) -> Result<(), String> {
        let id = self.known(name)?;
        self.maps().set(id, key, value)
    }

    fn add(&mut self, name: &str, key: &[Value], delta: i64) -> Result<(), String> {
        let id = self.known(name)?;
        self.maps().add(id, key, delta)
    }

    fn update(&mut self, name: &str, key: &[Value], kind: TableKind, value: i64) -> Result<(), String> {
        let id = self.known(name)?;
        self.maps().aggregate(id, key, kind, value);
        Ok(())
    }

    fn remove(&mut self, name: &str, key: &[Value]) {
        if let Some(id) = self.id(name) {
            self.maps().remove(id, key);
        }
    }

    fn clear(&mut self, name: &str) {
        if let Some(id) = self.id(name) {
            self.maps().clear(id);
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

    fn fit(&mut self, texts: &[String], beside: usize) -> Vec<String> {
        self.printer.fit(texts, beside, self.stacks.shows_whole_names())
    }

    fn flamegraph(&mut self, path: &str, name: &str) -> Result<(), String> {
        let id = self.known(name)?;
        self.draw(id, path)
    }

    fn busy_nanos_of(&mut self, uuid: &str) -> Option<i64> {
        self.pipeline.busy_nanos_of(uuid).map(|it| it as i64)
    }

    fn number(&mut self, number: RunNumber) -> Option<Value> {
        match number {
            RunNumber::Losses => {
                Some(Value::Int(self.all_losses().iter().map(|(_, _, n)| n).fold(0, u64::saturating_add) as i64))
            }
            RunNumber::OutputIsJson => Some(Value::Bool(self.printer.machine_readable())),
            _ => self.numbers.get(&number).map(|it| Value::Int(*it)),
        }
    }

    fn switch(&mut self, declared: u32, on: bool) {
        if let Some(switch) = self.plan.switch_of(declared) {
            self.pipeline.state_mut().switch(switch, on);
        }
    }

    fn exit(&mut self, code: i64) {
        self.exit.get_or_insert(code);
    }
}
