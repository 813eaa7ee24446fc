//! Formats the records that handlers write. The plan knows the format; a record carries only the
//! arguments.

use crate::names::Names;
use crate::pipeline::Sink;
use xputrace_model::output::{Output, Piece};
use xputrace_model::plan::{self, Arg, Plan, Print, SwitchId, record};
use xputrace_model::table::Value;
use xputrace_render::{human, shown_text};
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
                sink.output(Output::Print(pieces(print, names, data)));
                true
            }
            None => false,
        },
        record::EXIT => {
            sink.exit(word(data, 8) as i64);
            true
        }
        record::SWITCH => {
            turn(SwitchId((word(data, 0) >> 32) as u32), word(data, 8) != 0, word(data, 16));
            true
        }
        _ => false,
    }
}

/// Returns the line with its stacks as separate pieces, which are named when it is rendered.
fn pieces(print: &Print, names: &Names, data: &[u8]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    for piece in &print.pieces {
        match piece {
            plan::Piece::Text(it) => text.push_str(it),
            plan::Piece::Arg(arg) => match value(arg, names, data) {
                Value::Stack(stack) => {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                    pieces.push(Piece::Stack(stack));
                }
                Value::Missing => text.push('-'),
                Value::Bool(it) => text.push_str(if it { "true" } else { "false" }),
                Value::Int(n) => text.push_str(&arg.human.map_or_else(|| n.to_string(), |unit| human(n, unit))),
                Value::Str(it) => text.push_str(&shown_text(&it)),
            },
        }
    }
    pieces.push(Piece::Text(text));
    pieces
}

fn value(arg: &Arg, names: &Names, data: &[u8]) -> Value {
    match arg.present_at {
        Some(at) if word(data, at) == 0 => Value::Missing,
        _ => decode_scalar(arg.kind, data, arg.at, names),
    }
}
