//! Short constructors for tables, and stacks with known frames.

use std::sync::Arc;
use xputrace_model::output::{Output, StackNames, View};
use xputrace_model::schema::Unit;
use xputrace_model::stack::{Frame, Frames, StackKey};
use xputrace_model::table::{Cell, Key, KeyPart, Scalar, Storage, Table, TableDef, TableKind, Value};

/// Stacks 1 and 2 differ but read the same; 3 has no names; all others are lost.
pub(crate) struct Names;

impl StackNames for Names {
    fn frames(&mut self, stack: StackKey) -> Option<Frames> {
        let frame =
            |function: &str, module: &str, offset| Frame { function: function.into(), module: module.into(), offset };
        match stack {
            StackKey::Collector { id: id @ (1 | 2), .. } => Some(
                [
                    frame("cudaLaunchKernel", "libcudart.so.13", u64::from(id)),
                    frame("forward", "chat", 9),
                    frame("main", "chat", 40),
                ]
                .into(),
            ),
            StackKey::Collector { id: 3, .. } => Some([frame("0x7f12", "", 0), frame("x;y z", "lib.so", 0)].into()),
            _ => None,
        }
    }
}

pub(crate) fn stack(id: u32) -> Value {
    Value::Stack(StackKey::Collector { process: 0, id })
}

pub(crate) fn string(text: &str) -> Value {
    Value::Str(text.into())
}

pub(crate) fn def(name: &str, keys: &[Scalar], kind: TableKind, unit: Unit) -> TableDef {
    TableDef {
        name: name.into(),
        keys: keys.iter().map(|it| KeyPart { kind: *it, optional: false, unit: Unit::None }).collect(),
        kind,
        unit,
        capacity: 65_536,
        evict: false,
        storage: Storage::Interpreter,
    }
}

pub(crate) fn table(name: &str, keys: &[Scalar], kind: TableKind, unit: Unit, rows: Vec<(Key, Cell)>) -> Arc<Table> {
    Arc::new(Table { def: Arc::new(def(name, keys, kind, unit)), rows })
}

#[allow(dead_code, reason = "not every test file shows tables")]
pub(crate) fn view(table: Arc<Table>) -> Output {
    Output::Table(View { table, top: None })
}
