//! Formats the records that handlers write. The plan knows the format; a record carries only the
//! arguments.

use crate::names::Names;
use crate::pipeline::Sink;
use xputrace_model::output::{Member, Output, Piece};
use xputrace_model::plan::{self, Arg, Form, MapAction, Plan, Print, SwitchId, record};
use xputrace_model::schema::Unit;
use xputrace_model::style::{Digits, Style, hex, padded};
use xputrace_model::table::{TableId, Value};
use xputrace_render::human;
use xputrace_store::codec::{decode_scalar, word};

/// Passes a print or an exit to the sink, and turns switches; returns false for records of other kinds and malformed
/// ones.
pub(crate) fn record(
    plan: &Plan,
    names: &Names,
    turn: &mut dyn FnMut(SwitchId, bool, u64),
    data: &[u8],
    sink: &mut dyn Sink,
) -> bool {
    let Some(kind) = data.first_chunk::<4>().map(|it| u32::from_le_bytes(*it)) else { return false };
    match kind {
        record::PRINT => match plan.prints.get((word(data, 0) >> 32) as usize) {
            Some(print) => {
                sink.output(printed(print, names, data));
                true
            }
            None => false,
        },
        record::EXIT => {
            sink.exit(word(data, 8) as i64);
            true
        }
        record::MAP => match plan.tables.get((word(data, 0) >> 32) as usize) {
            Some(_) => {
                sink.map(TableId::at((word(data, 0) >> 32) as usize), action(word(data, 8)));
                true
            }
            None => false,
        },
        record::SWITCH => {
            turn(SwitchId((word(data, 0) >> 32) as u32), word(data, 8) != 0, word(data, 16));
            true
        }
        _ => false,
    }
}

/// Like [`record`], for a record from memory that the program can write: it prints or ends the run. What else handlers
/// ask of the tracer, device code does not.
pub(crate) fn record_of_gpu(plan: &Plan, names: &Names, data: &[u8], sink: &mut dyn Sink) -> bool {
    let prints_map = record::is_of(data, record::MAP) && action(word(data, 8)) != MapAction::Clear;
    let is_known = prints_map || [record::PRINT, record::EXIT].into_iter().any(|it| record::is_of(data, it));
    is_known && record(plan, names, &mut |_, _, _| (), data, sink)
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
    use crate::state::State;
    use xputrace_model::context::GpuContext;
    use xputrace_model::plan::ProbeId;

    /// The codes that the run was ended with.
    struct Exits(Vec<i64>);

    impl Sink for Exits {
        fn output(&mut self, _: Output) {}
        fn interpret(&mut self, _: ProbeId, _: &GpuContext, _: &mut State) {}
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
