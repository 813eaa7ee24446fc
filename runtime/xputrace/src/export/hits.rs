//! Recorded hits of CPU probes as rows: each value is read from the hit's context, as handlers read it.

use std::borrow::Cow;
use xputrace_bytecode::probe::pt_regs;
use xputrace_model::catalog::{Catalog, ReturnType, TracepointField, TracepointFieldType};
use xputrace_model::loss::{Loss, Losses};
use xputrace_model::schema::Event;
use xputrace_model::stack::StackKey;
use xputrace_model::text;
use xputrace_recording::{Hit, Meta, ProbeInfo, RecordedMachine, hits};
use xputrace_render::{HIT_EVENTS, HitField, HitRow, HitValue, hit_fields};

/// Reads the hits of a recording.
pub struct HitReader {
    probes: Vec<RecordedProbe>,
    /// Whether a stack's word of 0 says that it was lost.
    tells_losses: bool,
}

/// A probe whose hits are in the recording.
struct RecordedProbe {
    /// `uprobe:libc:malloc`.
    name: String,
    /// `None` if it is of a later version.
    event: Option<Event>,
    /// The function or tracepoint; `None` for a pattern.
    function: Option<String>,
    fields: Vec<HitField>,
    /// Of a tracepoint: its own, as far as they can be read.
    record: Vec<TracepointField>,
    returns: Option<ReturnType>,
}

impl RecordedProbe {
    fn of(info: &ProbeInfo, machine: &RecordedMachine) -> Self {
        let mut parts = info.name.splitn(3, ':');
        let mut next = || parts.next().unwrap_or_default();
        let (kind, object, function) = (next(), next(), next());
        let event = HIT_EVENTS.into_iter().find(|it| it.name() == kind);
        let format = machine.tracepoint(object, function).ok().filter(|_| event == Some(Event::Tracepoint));
        let can_be_read = |it: &TracepointField| it.kind != TracepointFieldType::Other;
        let is_one = !function.is_empty() && !function.contains(['*', '?', '[', '{']);
        RecordedProbe {
            name: info.name.clone(),
            event,
            function: is_one.then(|| function.to_owned()),
            fields: event.map(hit_fields).unwrap_or_default(),
            record: format.into_iter().flat_map(|it| it.fields).filter(can_be_read).collect(),
            returns: machine.return_type(object, function),
        }
    }
}

impl HitReader {
    pub fn of(meta: &Meta) -> Self {
        let machine = RecordedMachine::new(meta);
        let probes = meta.probes.iter().map(|it| RecordedProbe::of(it, &machine)).collect();
        HitReader { probes, tells_losses: meta.tells_losses }
    }

    /// Returns the probes' names, and the fields of tracepoints with their types.
    pub fn described(&self) -> Vec<(String, Vec<(String, String)>)> {
        let fields = |it: &RecordedProbe| it.record.iter().map(|it| (it.name.clone(), it.kind.text())).collect();
        self.probes.iter().map(|it| (it.name.clone(), fields(it))).collect()
    }

    /// Counts the stacks that Linux could not take, or not keep.
    pub fn count_lost_stacks(&self, hit: &Hit, losses: &mut Losses) {
        for word in [hit.ustack, hit.kstack] {
            match word {
                0 if self.tells_losses => losses.add(Loss::LinuxStack, 1),
                hits::COLLIDED => losses.add(Loss::StackCollision, 1),
                _ => {}
            }
        }
    }

    /// Returns a hit's row; `None` if it is of no known probe.
    pub fn row<'a>(&'a self, hit: &'a Hit) -> Option<HitRow<'a>> {
        let probe = self.probes.get(hit.probe as usize)?;
        Some(HitRow {
            event: probe.event?,
            values: probe.fields.iter().map(|it| value(it.name, hit, probe)).collect(),
            record: probe.record.iter().map(|it| (it.name.as_str(), field(it, &hit.context))).collect(),
        })
    }
}

fn value<'a>(name: &str, hit: &'a Hit, probe: &'a RecordedProbe) -> HitValue<'a> {
    let is_return = probe.event == Some(Event::Uretprobe) && !hit.entry;
    match name {
        "time" => HitValue::Unsigned(hit.time_nanos),
        "pid" => HitValue::Unsigned(hit.pid.into()),
        "tid" => HitValue::Unsigned(hit.tid.into()),
        "comm" => until_nul(&hit.comm),
        "cpu" => HitValue::Unsigned(hit.cpu.into()),
        "uid" => HitValue::Unsigned(hit.uid.into()),
        "gid" => HitValue::Unsigned(hit.gid.into()),
        "cgroup" => HitValue::Unsigned(hit.cgroup),
        "probe" => HitValue::Text(Cow::Borrowed(&probe.name)),
        "func" => function(hit, probe),
        "ustack" => HitValue::Stack(StackKey::from_word(hit.ustack)),
        "kstack" => HitValue::Stack(StackKey::from_word(hit.kstack)),
        "at" => HitValue::Text(Cow::Borrowed(if is_return { "return" } else { "entry" })),
        "retval" if is_return => returned(hit, probe),
        _ if is_return => HitValue::Missing,
        _ => argument(name, hit),
    }
}

/// Returns the name of the function that was hit: of a pattern's, the hit has it.
fn function<'a>(hit: &'a Hit, probe: &'a RecordedProbe) -> HitValue<'a> {
    let recorded = hit.strings.iter().find(|it| it.address == hits::FUNCTION_NAME);
    match (&probe.function, recorded) {
        (Some(name), _) => HitValue::Text(Cow::Borrowed(name)),
        (None, Some(it)) => HitValue::Text(text::from_bytes(&it.text).into()),
        (None, None) => HitValue::Missing,
    }
}

fn argument(name: &str, hit: &Hit) -> HitValue<'static> {
    let number = name.strip_prefix("arg").and_then(|it| it.parse::<usize>().ok());
    let register = number.and_then(|it| pt_regs::ARGUMENTS.get(it));
    register.and_then(|at| word(&hit.context, *at as usize)).map_or(HitValue::Missing, |it| HitValue::Int(it as i64))
}

/// Returns a function's result in its width: the rest of the register is undefined.
fn returned(hit: &Hit, probe: &RecordedProbe) -> HitValue<'static> {
    let Some(register) = word(&hit.context, pt_regs::RETURN_VALUE as usize) else { return HitValue::Missing };
    match probe.returns {
        Some(ReturnType::Integer { bytes, signed }) => integer(register, bytes, signed),
        // A fraction or a structure is elsewhere.
        Some(ReturnType::Other) => HitValue::Missing,
        None => HitValue::Int(register as i64),
    }
}

fn word(context: &[u8], at: usize) -> Option<u64> {
    context.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// Returns the lowest bytes of a word as a number.
fn integer(word: u64, bytes: u32, signed: bool) -> HitValue<'static> {
    let unused = 64u32.saturating_sub(8 * bytes).min(63);
    match signed {
        true => HitValue::Int((word << unused) as i64 >> unused),
        false => HitValue::Unsigned(word << unused >> unused),
    }
}

/// Reads a field of a tracepoint's record.
fn field<'a>(it: &TracepointField, record: &'a [u8]) -> HitValue<'a> {
    let at = it.offset as usize;
    let bytes = |at: usize, n: usize| record.get(at..at.checked_add(n)?);
    let read = match it.kind {
        TracepointFieldType::Int { size, signed } => bytes(at, (size as usize).min(8)).map(|it| {
            let mut word = [0; 8];
            word[..it.len()].copy_from_slice(it);
            integer(u64::from_le_bytes(word), size, signed)
        }),
        TracepointFieldType::Chars(n) => bytes(at, n as usize).map(until_nul),
        TracepointFieldType::DataLoc => located(record, at).map(until_nul),
        TracepointFieldType::Other => None,
    };
    read.unwrap_or(HitValue::Missing)
}

/// Returns the bytes that a field points to: their offset is in its lower half, their number in the upper one.
fn located(record: &[u8], at: usize) -> Option<&[u8]> {
    let word = u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?);
    let (offset, n) = ((word & 0xffff) as usize, (word >> 16) as usize);
    record.get(offset..offset + n)
}

fn until_nul(bytes: &[u8]) -> HitValue<'_> {
    HitValue::Text(text::until_nul(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xputrace_recording::TracepointFieldInfo;

    fn reader(name: &str, fields: &[(&str, u32, &str)], returns: Option<&str>) -> HitReader {
        let field = |(name, offset, kind): &(&str, u32, &str)| TracepointFieldInfo {
            name: (*name).to_owned(),
            offset: *offset,
            kind: (*kind).to_owned(),
        };
        let fields = fields.iter().map(field).collect();
        let probe = ProbeInfo { name: name.into(), fields, returns: returns.map(Into::into), ..ProbeInfo::default() };
        HitReader::of(&Meta { probes: vec![probe], tells_losses: true, ..Meta::default() })
    }

    fn named<'a>(row: &HitRow<'a>, name: &str) -> HitValue<'a> {
        let at = hit_fields(row.event).iter().position(|it| it.name == name).unwrap();
        row.values[at].clone()
    }

    #[test]
    fn the_two_hits_of_a_return_probe_are_told_apart() {
        let reader = reader("uretprobe:libc:read", &[], Some("i4"));
        let mut context = vec![0; pt_regs::SIZE];
        context[pt_regs::RETURN_VALUE as usize..][..8].copy_from_slice(&0xffff_fffe_u64.to_le_bytes());
        context[pt_regs::ARGUMENTS[2] as usize] = 7;
        let hit = |entry| Hit { entry, context: context.clone(), ..Hit::default() };
        let (entry, left) = (hit(true), hit(false));
        let (entry, left) = (reader.row(&entry).unwrap(), reader.row(&left).unwrap());
        assert_eq!((named(&entry, "retval"), named(&entry, "arg2")), (HitValue::Missing, HitValue::Int(7)));
        assert_eq!((named(&left, "retval"), named(&left, "arg2")), (HitValue::Int(-2), HitValue::Missing));
        assert_eq!(named(&left, "func"), HitValue::Text("read".into()));
    }

    #[test]
    fn fields_of_a_record_have_their_types() {
        let fields =
            [("small", 0, "i2"), ("big", 8, "u8"), ("name", 16, "chars4"), ("path", 4, "data_loc"), ("far", 60, "u4")];
        let reader = reader("tracepoint:a:b", &fields, None);
        let mut context = vec![0; 32];
        context[..2].copy_from_slice(&(-3i16).to_le_bytes());
        context[4..8].copy_from_slice(&(24u32 | 5 << 16).to_le_bytes());
        context[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        context[16..20].copy_from_slice(b"abcd");
        context[24..28].copy_from_slice(b"/dev");
        let hit = Hit { context, ..Hit::default() };
        let values: Vec<_> = reader.row(&hit).unwrap().record.into_iter().map(|it| it.1).collect();
        let text = |it: &'static str| HitValue::Text(it.into());
        let expected = [HitValue::Int(-3), HitValue::Unsigned(u64::MAX), text("abcd"), text("/dev"), HitValue::Missing];
        assert_eq!(values, expected);
    }
}
