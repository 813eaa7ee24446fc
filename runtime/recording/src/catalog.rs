//! The recorded machine, as described by the recording: the tracepoints whose hits are in the file.

use super::entry::{Meta, TracepointFieldInfo};
use xputrace_bytecode::probe::PidNamespace;
use xputrace_model::catalog::{Catalog, ReturnType, TracepointField, TracepointFieldType, TracepointFormat};

/// Made-up offset, relative to the task, where programs over a recording find the exec generation
/// of a hit's process, for [`Catalog::exec_id_offset`].
pub const EXEC_ID_OFFSET: u32 = 0x3000;

/// The catalog for compiling a script that runs over a recording.
#[derive(Clone, Debug)]
pub struct RecordedMachine(Meta);

impl RecordedMachine {
    /// Returns the machine described by a recording's header.
    pub fn new(meta: &Meta) -> Self {
        RecordedMachine(meta.clone())
    }
}

impl Catalog for RecordedMachine {
    fn tracepoint(&self, category: &str, name: &str) -> Result<TracepointFormat, String> {
        let wanted = format!("tracepoint:{category}:{name}");
        match self.0.probes.iter().find(|it| it.name == wanted) {
            Some(probe) => Ok(TracepointFormat { fields: probe.fields.iter().filter_map(field).collect() }),
            None => {
                let recorded: Vec<&str> = self.0.probes.iter().map(|it| it.name.as_str()).collect();
                let recorded = if recorded.is_empty() { "no CPU probes".into() } else { recorded.join(", ") };
                Err(format!("the recording has no hits of `{wanted}`; it has {recorded}"))
            }
        }
    }

    fn tracepoints(&self) -> Result<Vec<String>, String> {
        Ok(self.0.probes.iter().filter_map(|it| it.name.strip_prefix("tracepoint:").map(str::to_owned)).collect())
    }

    fn return_type(&self, object: &str, function: &str) -> Option<ReturnType> {
        let wanted = format!("uretprobe:{object}:{function}");
        let written = self.0.probes.iter().find(|it| it.name == wanted)?.returns.as_deref()?;
        match kind(written)? {
            TracepointFieldType::Int { size, signed } => Some(ReturnType::Integer { bytes: size, signed }),
            TracepointFieldType::Other => Some(ReturnType::Other),
            TracepointFieldType::Chars(_) | TracepointFieldType::DataLoc => None,
        }
    }

    fn has_probe(&self, name: &str) -> bool {
        self.0.probes.iter().any(|it| it.name == name)
    }

    fn is_recording(&self) -> bool {
        true
    }

    fn pid_namespace(&self) -> Option<PidNamespace> {
        None
    }

    fn exec_id_offset(&self) -> Option<u32> {
        Some(EXEC_ID_OFFSET)
    }
}

/// Converts a tracepoint's fields for the header.
pub(super) fn recorded(format: &TracepointFormat) -> Vec<TracepointFieldInfo> {
    let info = |it: &TracepointField| TracepointFieldInfo {
        name: it.name.clone(),
        offset: it.offset,
        kind: kind_text(it.kind),
    };
    format.fields.iter().map(info).collect()
}

/// Converts what a function returns for the header.
pub(super) fn returned(it: ReturnType) -> String {
    kind_text(match it {
        ReturnType::Integer { bytes: size, signed } => TracepointFieldType::Int { size, signed },
        ReturnType::Other => TracepointFieldType::Other,
    })
}

/// Converts a field of the header; returns `None` for kinds that only later versions know.
fn field(info: &TracepointFieldInfo) -> Option<TracepointField> {
    Some(TracepointField { name: info.name.clone(), offset: info.offset, kind: kind(&info.kind)? })
}

fn kind_text(kind: TracepointFieldType) -> String {
    match kind {
        TracepointFieldType::Int { size, signed: true } => format!("i{size}"),
        TracepointFieldType::Int { size, signed: false } => format!("u{size}"),
        TracepointFieldType::Chars(n) => format!("chars{n}"),
        TracepointFieldType::DataLoc => "data_loc".into(),
        TracepointFieldType::Other => "other".into(),
    }
}

fn kind(text: &str) -> Option<TracepointFieldType> {
    let number = |prefix: &str| text.strip_prefix(prefix)?.parse::<u32>().ok();
    match text {
        "data_loc" => Some(TracepointFieldType::DataLoc),
        "other" => Some(TracepointFieldType::Other),
        _ => None
            .or_else(|| number("chars").map(TracepointFieldType::Chars))
            .or_else(|| number("i").map(|size| TracepointFieldType::Int { size, signed: true }))
            .or_else(|| number("u").map(|size| TracepointFieldType::Int { size, signed: false })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::ProbeInfo;

    #[test]
    fn a_script_is_compiled_against_the_fields_that_were_recorded() {
        let sizes = [1, 2, 4, 8];
        let int = |size, signed| TracepointFieldType::Int { size, signed };
        let ints = sizes.into_iter().flat_map(|it| [int(it, true), int(it, false)]);
        let others = [TracepointFieldType::Chars(16), TracepointFieldType::DataLoc, TracepointFieldType::Other];
        let field = |(n, kind): (u32, _)| TracepointField { name: format!("field{n}"), offset: n * 8, kind };
        let format = TracepointFormat { fields: (0..).zip(ints.chain(others)).map(field).collect() };
        let probe = ProbeInfo { name: "tracepoint:a:b".into(), fields: recorded(&format), ..ProbeInfo::default() };
        let machine = RecordedMachine::new(&Meta { probes: vec![probe], ..Meta::default() });
        assert_eq!(machine.tracepoint("a", "b"), Ok(format));
        let refused = machine.tracepoint("a", "c").unwrap_err();
        assert_eq!(refused, "the recording has no hits of `tracepoint:a:c`; it has tracepoint:a:b");
    }

    #[test]
    fn a_field_of_a_kind_that_is_not_known_is_left_out() {
        for text in ["", "i", "chars", "i-4", "float8", "u4294967296"] {
            assert_eq!(kind(text), None, "{text}");
        }
    }
}
