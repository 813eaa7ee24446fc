//! Records that handlers write, to lines: the format is known to the plan, the record carries
//! only the arguments.

use crate::names::Names;
use crate::pipeline::Sink;
use crate::state::{Target, frames_of};
use crate::tables::{decode_scalar, word};
use xputrace_model::output::Output;
use xputrace_model::plan::{Arg, Piece, Plan, Print, record};
use xputrace_model::table::Value;
use xputrace_render::human;

/// Hands a print or an exit to the sink; false for records of other kinds and broken ones.
pub(crate) fn record(plan: &Plan, names: &Names, targets: &[Target], data: &[u8], sink: &mut dyn Sink) -> bool {
    let Some(kind) = data.first_chunk::<4>().map(|it| u32::from_le_bytes(*it)) else { return false };
    match kind {
        record::PRINT => match plan.prints.get((word(data, 0) >> 32) as usize) {
            Some(print) => {
                let line = line(print, names, targets, data, sink);
                sink.output(Output::Text(line));
                true
            }
            None => false,
        },
        record::EXIT => {
            sink.exit(word(data, 8) as i64);
            true
        }
        _ => false,
    }
}

fn line(print: &Print, names: &Names, targets: &[Target], data: &[u8], sink: &mut dyn Sink) -> String {
    let mut out = String::new();
    for piece in &print.pieces {
        match piece {
            Piece::Text(text) => out.push_str(text),
            Piece::Arg(arg) => out.push_str(&argument(arg, names, targets, data, sink)),
        }
    }
    out
}

fn argument(arg: &Arg, names: &Names, targets: &[Target], data: &[u8], sink: &mut dyn Sink) -> String {
    if arg.present_at.is_some_and(|at| word(data, at) == 0) {
        return "-".into();
    }
    match decode_scalar(arg.kind, data, arg.at, names) {
        Value::Missing => "-".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => arg.human.map_or_else(|| n.to_string(), |unit| human(n, unit)),
        Value::Str(text) => text.to_string(),
        Value::Stack(stack) => sink.stack_text(stack, frames_of(targets, stack)),
    }
}
