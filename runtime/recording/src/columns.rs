//! Makes wire bytes easy to compress: splits frequent records into columns of differences.
//!
//! Launches and activities are split into one column per field, by the table of GPU events. A
//! column holds the differences from a simple prediction, as planes of bytes, as few as the largest
//! difference needs. All other bytes stay as they are. Any input is restored bit by bit.

use super::budget::Budget;
use super::entry::RecordingEntry;
use super::schema::{self, Described, RecordColumns, Schema};
use std::collections::HashMap;
use std::sync::LazyLock;
use xputrace_wire::events::{Activity, Column as WireColumn, HostEvent, Launch};
use xputrace_wire::record::{FramedRecord, Header, framed, kind};
use zerocopy::IntoBytes;

/// Codes of the record sequence, besides the kinds of records with columns.
const RAW: u8 = 0;
/// Ends a ring: the bytes after its last record are raw.
const RING_END: u8 = 3;
/// Ends a drain.
const DRAIN_END: u8 = 4;

/// How the records of one kind are split.
#[derive(Debug)]
struct RecordLayout {
    /// Wire kind, and code in the sequence.
    kind: u16,
    /// Bytes of the body; 0 for kinds that this version doesn't know.
    size: usize,
    fields: Vec<Field>,
}

/// A number in a record.
#[derive(Debug)]
struct Field {
    /// Bytes in the file.
    width: usize,
    prediction: Predicted,
    /// Where it is in this version's record, if it has it.
    place: Option<FieldPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldPlace {
    offset: usize,
    width: usize,
}

/// A [`schema::Predicted`] with the field's index instead of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Predicted {
    Previous,
    Same(usize),
    PreviousOf(usize),
    Kept,
}

/// How a file's records are split. Every payload has the first two kinds, in this order; others follow if they occur.
#[derive(Debug)]
pub(super) struct Layouts(Vec<RecordLayout>);
const ALWAYS: usize = 2;

/// Those of this version.
static NOW: LazyLock<Layouts> = LazyLock::new(|| Layouts::new(&Schema::now()).unwrap_or(Layouts(Vec::new())));

impl Layouts {
    /// Returns `None` if the schema is malformed.
    pub(super) fn new(schema: &Schema) -> Option<Self> {
        schema.is_sound().then(|| schema.kinds().iter().map(RecordLayout::new).collect::<Option<_>>())?.map(Layouts)
    }

    fn of_code(&self, code: u8) -> Option<usize> {
        self.0.iter().position(|it| it.kind == u16::from(code))
    }

    /// Returns the layout that preserves all of a record.
    fn of_record(&self, frame: &FramedRecord<'_>) -> Option<usize> {
        let header = frame.header;
        let fits = |it: &RecordLayout| it.kind == header.kind && header.flags == 0 && frame.body().len() == it.size;
        self.0.iter().position(fits)
    }
}

/// Returns the columns of this version's records of a kind, and the bytes of their body.
fn known(record_kind: u16) -> (&'static [WireColumn], usize) {
    match Activity::of_record(record_kind) {
        _ if record_kind == kind::LAUNCH => (Launch::COLUMNS, size_of::<Launch>()),
        Some(it) => (it.columns(), it.record_size()),
        None => HostEvent::of_record(record_kind).map_or((&[], 0), |it| (it.columns(), it.record_size())),
    }
}

impl RecordLayout {
    fn new(record: &RecordColumns) -> Option<Self> {
        let described = record.described()?;
        let (columns, size) = known(record.0);
        let mut first = HashMap::new();
        let mut n_fields = 0;
        for it in &described {
            first.insert(it.name, n_fields);
            n_fields += it.count;
        }
        let mut fields = Vec::with_capacity(n_fields);
        for it in &described {
            let prediction = match it.prediction {
                schema::Predicted::Previous => Predicted::Previous,
                schema::Predicted::Same(other) => Predicted::Same(*first.get(other)?),
                schema::Predicted::PreviousOf(other) => Predicted::PreviousOf(*first.get(other)?),
                schema::Predicted::Kept => Predicted::Kept,
            };
            fields.extend((0..it.count).map(|n| Field { width: it.width, prediction, place: place(columns, it, n) }));
        }
        Some(RecordLayout { kind: record.0, size, fields })
    }

    fn split(&self, body: &[u8], row: &mut Vec<u64>) {
        row.extend(self.fields.iter().map(|it| it.place.map_or(0, |it| it.read(body))));
    }

    /// Returns the numbers in a record as the file's version laid it out: column after column, without a gap.
    fn row_of_file(&self, body: &[u8]) -> Option<Vec<u64>> {
        let mut rest = body;
        let number = |field: &Field| {
            let (bytes, after) = rest.split_at_checked(field.width)?;
            rest = after;
            let mut word = [0; 8];
            word.get_mut(..bytes.len())?.copy_from_slice(bytes);
            Some(u64::from_le_bytes(word))
        };
        let row = self.fields.iter().map(number).collect::<Option<_>>()?;
        rest.is_empty().then_some(row)
    }

    /// Returns the size of a record in its ring. A file may have fewer columns than the record has.
    fn record_bytes(&self) -> usize {
        size_of::<Header>() + self.size
    }

    fn join(&self, out: &mut Vec<u8>, row: &[u64]) {
        out.extend(Header { kind: self.kind, flags: 0, size: self.record_bytes() as u32 }.as_bytes());
        let at = out.len();
        out.resize(at + self.size, 0);
        let body = &mut out[at..];
        let placed = self.fields.iter().zip(row).filter_map(|(field, value)| Some((field.place?, value)));
        placed.for_each(|(place, value)| place.write(body, *value));
    }
}

/// Returns where the `n`th value of a file's column is in this version's record. What it lacks is 0 there.
fn place(columns: &[WireColumn], of: &Described<'_>, n: usize) -> Option<FieldPlace> {
    let known = columns.iter().find(|it| it.name == of.name && n < it.count)?;
    Some(FieldPlace { offset: known.offset + n * known.width, width: known.width })
}

impl FieldPlace {
    // Fields have 8 or 4 bytes: copies of a fixed size are single instructions.
    #[inline]
    fn read(&self, body: &[u8]) -> u64 {
        let at = &body[self.offset..];
        match self.width {
            8 => at.first_chunk().map_or(0, |it| u64::from_le_bytes(*it)),
            _ => at.first_chunk().map_or(0, |it| u32::from_le_bytes(*it).into()),
        }
    }

    #[inline]
    fn write(&self, body: &mut [u8], value: u64) {
        let at = &mut body[self.offset..];
        match self.width {
            8 => at[..8].copy_from_slice(&value.to_le_bytes()),
            _ => at[..4].copy_from_slice(&(value as u32).to_le_bytes()),
        }
    }
}

/// The time at which a process's rings were drained, and the contents of each.
pub(super) type Drain = (u64, Vec<Vec<u8>>);

/// Encodes several drains of one process as a payload.
pub(super) fn encode(process: u32, drains: &[Drain]) -> Vec<u8> {
    let mut split = Split::new();
    drains.iter().for_each(|(_, rings)| split.add_drain(rings));
    let mut out = Vec::new();
    put(&mut out, process.into());
    put(&mut out, drains.len() as u64);
    let mut before = 0u64;
    for (time, _) in drains {
        put(&mut out, zigzag(time.wrapping_sub(before)));
        before = *time;
    }
    put_bytes(&mut out, &split.sequence);
    put_bytes(&mut out, &split.raw);
    for (at, layout) in NOW.0.iter().enumerate() {
        if at >= ALWAYS {
            if split.rows[at].is_empty() {
                continue;
            }
            out.push(layout.kind as u8);
        }
        put_columns(&mut out, &split.rows[at], &layout.fields);
    }
    out
}

/// Decodes the drains of a payload; returns `None` if it is malformed or exceeds the budget.
pub(super) fn decode(bytes: &[u8], layouts: &Layouts, budget: &mut Budget) -> Option<Vec<RecordingEntry>> {
    let mut input = bytes;
    let process = u32::try_from(get(&mut input)?).ok()?;
    let n_drains = get(&mut input)?;
    let mut times = Vec::new();
    let mut before = 0u64;
    for _ in 0..n_drains {
        budget.take_values::<(u64, RecordingEntry)>(1)?;
        before = before.wrapping_add(unzigzag(get(&mut input)?));
        times.push(before);
    }
    let sequence = get_bytes(&mut input)?;
    let raw = get_bytes(&mut input)?;
    let mut rows: Vec<Rows> = layouts.0.iter().map(|_| Rows::default()).collect();
    for (rows, layout) in rows.iter_mut().zip(&layouts.0).take(ALWAYS) {
        rows.values = get_columns(&mut input, &layout.fields, budget)?;
    }
    while let Some((code, rest)) = input.split_first() {
        input = rest;
        let at = layouts.of_code(*code)?;
        rows[at].values = get_columns(&mut input, &layouts.0[at].fields, budget)?;
    }
    let drains = Merge { raw, rows, layouts, budget }.drains(sequence)?;
    if drains.len() != times.len() {
        return None;
    }
    let entry = |(time_nanos, rings)| RecordingEntry::Wire { process, time_nanos, rings };
    Some(times.into_iter().zip(drains).map(entry).collect())
}

struct Split {
    sequence: Vec<u8>,
    raw: Vec<u8>,
    /// By layout: row after row.
    rows: Vec<Vec<u64>>,
}

impl Split {
    fn new() -> Self {
        Split { sequence: Vec::new(), raw: Vec::new(), rows: vec![Vec::new(); NOW.0.len()] }
    }

    fn add_drain(&mut self, rings: &[Vec<u8>]) {
        for ring in rings {
            self.add_ring(ring);
        }
        self.sequence.push(DRAIN_END);
    }

    fn add_ring(&mut self, ring: &[u8]) {
        let mut frames = framed(ring);
        frames.by_ref().for_each(|it| self.add_record(&it));
        put_bytes(&mut self.raw, frames.rest());
        self.sequence.push(RING_END);
    }

    fn add_record(&mut self, frame: &FramedRecord<'_>) {
        match NOW.of_record(frame) {
            Some(at) => {
                self.sequence.push(NOW.0[at].kind as u8);
                NOW.0[at].split(frame.body(), &mut self.rows[at]);
            }
            None => {
                self.sequence.push(RAW);
                put_bytes(&mut self.raw, frame.whole);
            }
        }
    }
}

/// The rows of one layout, and the index of the next.
#[derive(Default)]
struct Rows {
    values: Vec<u64>,
    next: usize,
}

impl Rows {
    fn next(&mut self, n_fields: usize) -> Option<&[u64]> {
        let from = self.next;
        self.next += n_fields;
        self.values.get(from..self.next)
    }
}

struct Merge<'a> {
    raw: &'a [u8],
    /// By layout.
    rows: Vec<Rows>,
    layouts: &'a Layouts,
    budget: &'a mut Budget,
}

impl Merge<'_> {
    fn drains(mut self, sequence: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
        let mut drains = Vec::new();
        let mut rings = Vec::new();
        let mut ring = Vec::new();
        for code in sequence {
            match *code {
                RAW => self.take_raw_record(&mut ring)?,
                RING_END => {
                    self.take_raw(&mut ring)?;
                    self.budget.take_values::<Vec<u8>>(1)?;
                    rings.push(std::mem::take(&mut ring));
                }
                DRAIN_END => {
                    self.budget.take_values::<Vec<Vec<u8>>>(1)?;
                    drains.push(std::mem::take(&mut rings));
                }
                code => {
                    let at = self.layouts.of_code(code)?;
                    let layout = &self.layouts.0[at];
                    let row = self.rows[at].next(layout.fields.len())?;
                    self.budget.take(layout.record_bytes())?;
                    layout.join(&mut ring, row);
                }
            }
        }
        Some(drains)
    }

    /// Takes a record that was kept as it is. Earlier versions kept host events so, as they laid them out.
    fn take_raw_record(&mut self, ring: &mut Vec<u8>) -> Option<()> {
        let at = ring.len();
        self.take_raw(ring)?;
        let frame = framed(&ring[at..]).next();
        let host_event = frame.filter(|it| HostEvent::of_record(it.header.kind).is_some());
        let layout = host_event.and_then(|it| self.layouts.0.iter().find(|layout| layout.kind == it.header.kind));
        let row = layout.zip(host_event).and_then(|(layout, it)| layout.row_of_file(it.body()));
        if let Some((layout, row)) = layout.zip(row) {
            ring.truncate(at);
            self.budget.take(layout.record_bytes())?;
            layout.join(ring, &row);
        }
        Some(())
    }

    fn take_raw(&mut self, ring: &mut Vec<u8>) -> Option<()> {
        let bytes = get_bytes(&mut self.raw)?;
        self.budget.take(bytes.len())?;
        ring.extend(bytes);
        Some(())
    }
}

fn put_columns(out: &mut Vec<u8>, rows: &[u64], fields: &[Field]) {
    let n_fields = fields.len();
    put(out, (rows.len() / n_fields) as u64);
    let first = vec![0u64; n_fields];
    for (at, field) in fields.iter().enumerate() {
        let mut before = first.as_slice();
        let column = rows.chunks_exact(n_fields).map(|row| {
            let residual = residual(row, before, at, field.prediction);
            before = row;
            residual
        });
        put_planes(out, &column.collect::<Vec<_>>());
    }
}

/// Row after row.
fn get_columns(input: &mut &[u8], fields: &[Field], budget: &mut Budget) -> Option<Vec<u64>> {
    let n = usize::try_from(get(input)?).ok()?;
    let columns: Vec<Column<'_>> = fields.iter().map(|_| get_planes(input, n)).collect::<Option<_>>()?;
    let n_fields = fields.len();
    let values = n.checked_mul(n_fields)?;
    budget.take_values::<u64>(values)?;
    // The first row is also its own predecessor.
    let mut rows = vec![0u64; values + n_fields];
    for at in 0..n {
        let (before, row) = rows[at * n_fields..][..2 * n_fields].split_at_mut(n_fields);
        for (place, (field, column)) in fields.iter().zip(&columns).enumerate() {
            let residual = column.get(at, n);
            let value = match field.prediction {
                Predicted::Previous => before[place].wrapping_add(unzigzag(residual)),
                Predicted::Same(other) => row[other].wrapping_add(unzigzag(residual)),
                Predicted::PreviousOf(other) => before[other].wrapping_add(unzigzag(residual)),
                Predicted::Kept => residual,
            };
            row[place] = field.cut(value);
        }
    }
    rows.drain(..n_fields);
    Some(rows)
}

impl Field {
    /// Cuts a value to the column's width: columns of a damaged file may exceed it.
    fn cut(&self, value: u64) -> u64 {
        if self.width == 8 { value } else { value & 0xffff_ffff }
    }
}

fn residual(row: &[u64], before: &[u64], field: usize, prediction: Predicted) -> u64 {
    let predicted = match prediction {
        Predicted::Previous => before[field],
        Predicted::Same(other) => row[other],
        Predicted::PreviousOf(other) => before[other],
        Predicted::Kept => return row[field],
    };
    zigzag(row[field].wrapping_sub(predicted))
}

struct Column<'a> {
    width: usize,
    planes: &'a [u8],
}

impl Column<'_> {
    fn get(&self, at: usize, n: usize) -> u64 {
        (0..self.width).fold(0, |value, plane| value | u64::from(self.planes[plane * n + at]) << (plane * 8))
    }
}

fn put_planes(out: &mut Vec<u8>, column: &[u64]) {
    let widest = column.iter().fold(0, |all, it| all | it);
    let width = (64 - widest.leading_zeros()).div_ceil(8) as usize;
    out.push(width as u8);
    for plane in 0..width {
        out.extend(column.iter().map(|it| (it >> (plane * 8)) as u8));
    }
}

fn get_planes<'a>(input: &mut &'a [u8], n: usize) -> Option<Column<'a>> {
    let (width, rest) = input.split_first()?;
    let width = usize::from(*width);
    if width > 8 {
        return None;
    }
    let (planes, rest) = rest.split_at_checked(width.checked_mul(n)?)?;
    *input = rest;
    Some(Column { width, planes })
}

fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (((difference as i64) >> 63) as u64)
}

fn unzigzag(code: u64) -> u64 {
    (code >> 1) ^ (code & 1).wrapping_neg()
}

/// Writes a number in groups of 7 bits, lowest first.
pub(super) fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(super) fn get(input: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = input.split_first()?;
        *input = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend(bytes);
}

pub(super) fn get_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(get(input)?).ok()?;
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use xputrace_wire::events::Realtime;
    use xputrace_wire::record::{self, Kernel, Memset};
    use zerocopy::FromBytes;

    fn budget() -> Budget {
        Budget::of_file(0)
    }

    fn drains_of(entries: Vec<RecordingEntry>) -> Vec<Drain> {
        let drain = |it| match it {
            RecordingEntry::Wire { time_nanos, rings, .. } => (time_nanos, rings),
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(drain).collect()
    }

    /// Of a version whose launches have a column that this one lacks, lack one that this one has, and have another order.
    #[test]
    fn columns_of_another_version_are_found_by_name() {
        let launch = RecordColumns(kind::LAUNCH, ["later 8", "tid 4", "start 8 same:later"].map(String::from).into());
        let layouts = Layouts(vec![
            RecordLayout::new(&launch).unwrap(),
            RecordLayout::new(&RecordColumns(kind::KERNEL, vec![])).unwrap(),
        ]);
        let mut payload = vec![0, 1, 0];
        put_bytes(&mut payload, &[kind::LAUNCH as u8, kind::LAUNCH as u8, RING_END, DRAIN_END]);
        put_bytes(&mut payload, &[0]);
        put_columns(&mut payload, &[1000, 7, 1001, 2000, 8, 2002], &layouts.0[0].fields);
        payload.push(0);
        let drains = drains_of(decode(&payload, &layouts, &mut budget()).unwrap());
        let launches: Vec<Launch> =
            framed(&drains[0].1[0]).map(|it| Launch::read_from_bytes(it.body()).unwrap()).collect();
        let expected = [(1001, 7), (2002, 8)].map(|(start, tid)| Launch { start, tid, ..Launch::default() });
        assert_eq!(launches, expected);
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(drains in proptest::collection::vec(
            (any::<u64>(), proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..4)), 0..4)) {
            prop_assert_eq!(drains_of(decode(&encode(7, &drains), &NOW, &mut budget()).unwrap()), drains);
        }

        #[test]
        fn records_come_back(starts in proptest::collection::vec(any::<(u64, u64, u32, bool)>(), 0..40)) {
            let mut ring = Vec::new();
            for (start, end, id, launch) in starts {
                if launch {
                    let it = Launch { start, end, correlation: id, tag: -1, flags: id, ..Default::default() };
                    record::push(&mut ring, kind::LAUNCH, &it, &[]);
                } else if end % 2 == 0 {
                    let (start, end) = (Realtime(start), Realtime(end));
                    let it = Kernel { start, end, correlation: id, local_memory: id, graph_node: end.0, ..Default::default() };
                    record::push(&mut ring, kind::KERNEL, &it, &[]);
                } else {
                    let it = Memset { start: Realtime(start), bytes: end, value: id, known: 1, ..Default::default() };
                    record::push(&mut ring, Activity::Memset.record_kind(), &it, &[]);
                }
                record::push(&mut ring, kind::NAME, &record::Name { id, len: 3 }, b"abc");
            }
            let drains = vec![(1, vec![ring.clone(), vec![], ring])];
            prop_assert_eq!(drains_of(decode(&encode(0, &drains), &NOW, &mut budget()).unwrap()), drains);
        }

        #[test]
        fn any_payload_is_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes, &NOW, &mut budget());
        }
    }
}
