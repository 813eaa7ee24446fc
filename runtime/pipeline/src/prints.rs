//! Formats the records that handlers write. The plan knows the format; a record carries only the
//! arguments.

use crate::outputs::Outputs;
use crate::switches::Switches;
use xputrace_model::names::Names;
use xputrace_model::output::{Member, Output, Piece};
use xputrace_model::plan::{self, Arg, Form, MapAction, Plan, Print, SwitchId, record};
use xputrace_model::schema::Unit;
use xputrace_model::style::{Digits, Style, hex, padded};
use xputrace_model::table::{TableId, Value};
use xputrace_render::human;
use xputrace_store::codec::{decode_scalar, word};

/// What the records of handlers refer to, and what they change.
pub struct Prints<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) names: &'a Names,
    pub(crate) switches: &'a mut Switches,
}

impl Prints<'_> {
    /// Returns a text of the string table; empty if there is none with this id.
    pub fn name(&self, id: u64) -> &[u8] {
        self.names.bytes(id)
    }

    /// Passes a print or an exit to the sink, and turns switches; returns false for records of other kinds and malformed
    /// ones.
    pub fn record(&mut self, data: &[u8], sink: &mut dyn Outputs) -> bool {
        self.record_at(None, data, sink)
    }

    /// Like [`Prints::record`], with the time from which on the record turns a switch, if that isn't the record's own.
    pub(crate) fn record_at(&mut self, at: Option<u64>, data: &[u8], sink: &mut dyn Outputs) -> bool {
        if !record::is_of(data, record::SWITCH) {
            return output(self.plan, self.names, data, sink);
        }
        let (switch, on) = (SwitchId((word(data, 0) >> 32) as u32), word(data, 8) != 0);
        self.switches.turn(switch, on, at.unwrap_or_else(|| word(data, 16)));
        true
    }
}

/// Passes a record that prints or ends the run to the sink; returns false for other ones.
fn output(plan: &Plan, names: &Names, data: &[u8], sink: &mut dyn Outputs) -> bool {
    let Some(kind) = data.first_chunk::<4>().map(|it| u32::from_le_bytes(*it)) else { return false };
    let number = (word(data, 0) >> 32) as usize;
    match kind {
        record::PRINT => plan.prints.get(number).map(|it| sink.output(printed(it, names, data))).is_some(),
        record::EXIT => {
            sink.exit(word(data, 8) as i64);
            true
        }
        record::MAP => plan.tables.get(number).map(|_| sink.map(TableId::at(number), action(word(data, 8)))).is_some(),
        _ => false,
    }
}

/// Passes a record from memory that the program can write to the sink: it prints or ends the run. What else handlers
/// ask of the tracer, device code does not.
pub(crate) fn record_of_gpu(plan: &Plan, names: &Names, data: &[u8], sink: &mut dyn Outputs) -> bool {
    let clears = record::is_of(data, record::MAP) && action(word(data, 8)) == MapAction::Clear;
    !clears && output(plan, names, data, sink)
}

fn action(word: u64) -> MapAction {
    match word {
        record::CLEAR => MapAction::Clear,
        record::WHOLE => MapAction::Print { top: None },
        n => MapAction::Print { top: Some(usize::try_from(n).unwrap_or(usize::MAX)) },
    }
}

fn printed(print: &Print, names: &Names, data: &[u8]) -> Output {
    match &print.form {
        Form::Line(line) => Output::Print(pieces(line, names, data)),
        Form::Object(members) => {
            Output::Object(members.iter().map(|(name, piece)| member(name, piece, names, data)).collect())
        }
    }
}

fn member(name: &str, piece: &plan::Piece, names: &Names, data: &[u8]) -> Member {
    let (value, unit) = match piece {
        plan::Piece::Text(it) => (Value::Str(it.as_str().into()), Unit::None),
        plan::Piece::Arg(arg) if arg.style == Style::default() => (value(arg, names, data), arg.unit),
        plan::Piece::Arg(arg) => (Value::Str(styled(&value(arg, names, data), arg.style).into()), Unit::None),
    };
    Member { name: name.to_owned(), value, unit }
}

/// Returns the line with its stacks as separate pieces, which are named when it is rendered.
fn pieces(line: &[plan::Piece], names: &Names, data: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    for piece in line {
        match piece {
            plan::Piece::Text(it) => text.push_str(it),
            plan::Piece::Arg(arg) => match value(arg, names, data) {
                Value::Stack(stack) => {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                    pieces.push(Piece::Stack(stack));
                }
                value @ Value::Str(_) => {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                    pieces.push(Piece::Value(styled(&value, arg.style)));
                }
                other => text.push_str(&styled(&other, arg.style)),
            },
        }
    }
    pieces.push(Piece::Text(text));
    pieces
}

/// Formats a value that is no stack.
fn styled(value: &Value, style: Style) -> String {
    let text = match value {
        Value::Missing | Value::Stack(_) => "-".to_owned(),
        Value::Bool(it) => it.to_string(),
        Value::Int(n) => match style.digits {
            Digits::Decimal => n.to_string(),
            Digits::Human(unit) => human(*n, unit),
            Digits::Hex => hex(*n),
        },
        Value::Str(it) => it.to_string(),
    };
    padded(&text, style.columns.into())
}

fn value(arg: &Arg, names: &Names, data: &[u8]) -> Value {
    match arg.present_at {
        Some(at) if word(data, at) == 0 => Value::Missing,
        _ => decode_scalar(arg.kind, data, arg.at, names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes that the run was ended with.
    struct Exits(Vec<i64>);

    impl Outputs for Exits {
        fn output(&mut self, _: Output) {}
        fn map(&mut self, _: TableId, _: MapAction) {}
        fn exit(&mut self, code: i64) {
            self.0.push(code);
        }
    }

    #[test]
    fn a_record_that_device_code_does_not_write_is_refused() {
        let (plan, names, mut exits) = (Plan::default(), Names::default(), Exits(Vec::new()));
        let mut is_known = |kind: u32| {
            let data: Vec<u8> = [kind.into(), 1, 0_u64].iter().flat_map(|it| it.to_le_bytes()).collect();
            record_of_gpu(&plan, &names, &data, &mut exits)
        };
        assert_eq!([record::SWITCH, record::EXIT].map(&mut is_known), [false, true]);
        assert_eq!(exits.0, [1]);
    }
}
