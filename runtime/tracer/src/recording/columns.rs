//! Wire bytes, made easy to compress: launches and kernels turned into columns of differences.
//!
//! Records of the two frequent kinds are split into their fields, one column a field; each
//! column holds what is left after a simple prediction, as planes of bytes, as few as the
//! largest needs. All other bytes stay as they are. Any input comes back bit for bit.

use super::budget::Budget;
use super::entry::Entry;
use xputrace_wire::record::{Frame, Header, Kernel, Launch, framed, kind, size_of_record};
use zerocopy::IntoBytes;

const LAUNCH_WORDS: usize = 3 + 18;
const KERNEL_WORDS: usize = 3 + 16;

/// How a field is predicted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prediction {
    /// By the same field of the record before.
    Previous,
    /// By another field of the same record.
    Field(usize),
    /// By another field of the record before.
    PreviousField(usize),
    /// Kept: repeats are found by the compressor.
    None,
}
use Prediction::{Field, None as Kept, Previous, PreviousField};

/// Fields of a launch in order of the struct: start, end, tag, then the 32-bit ones.
const LAUNCH: [Prediction; LAUNCH_WORDS] = [
    PreviousField(1),
    Field(0),
    Previous,
    Previous,
    Previous,
    Kept,
    Kept,
    Kept,
    Previous,
    Previous,
    Previous,
    Previous,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Previous,
    Previous,
];
/// Fields of a kernel: start, end, graph node, then graph, correlation, …
const KERNEL: [Prediction; KERNEL_WORDS] = [
    PreviousField(1),
    Field(0),
    Kept,
    Previous,
    Previous,
    Previous,
    Previous,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
    Kept,
];

/// Codes of the record sequence.
const RAW: u8 = 0;
const IS_LAUNCH: u8 = 1;
const IS_KERNEL: u8 = 2;
/// Ends a ring: the bytes that follow its last record are raw.
const RING_END: u8 = 3;
/// Ends a drain.
const DRAIN_END: u8 = 4;

/// When the rings of a process were drained, and what was in each.
pub(super) type Drain = (u64, Vec<Vec<u8>>);

/// Several drains of one process, as a payload.
pub(super) fn encode(process: u32, drains: &[Drain]) -> Vec<u8> {
    let mut split = Split::default();
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
    put_columns(&mut out, &split.launches, &LAUNCH);
    put_columns(&mut out, &split.kernels, &KERNEL);
    out
}

/// The drains of a payload; `None` when it is not one, or becomes more than the budget allows.
pub(super) fn decode(bytes: &[u8], budget: &mut Budget) -> Option<Vec<Entry>> {
    let mut input = bytes;
    let process = u32::try_from(get(&mut input)?).ok()?;
    let n_drains = get(&mut input)?;
    let mut times = Vec::new();
    let mut before = 0u64;
    for _ in 0..n_drains {
        budget.take_values::<(u64, Entry)>(1)?;
        before = before.wrapping_add(unzigzag(get(&mut input)?));
        times.push(before);
    }
    let sequence = get_bytes(&mut input)?;
    let raw = get_bytes(&mut input)?;
    let launches = get_columns(&mut input, &LAUNCH, budget)?.into_iter();
    let kernels = get_columns(&mut input, &KERNEL, budget)?.into_iter();
    let drains = Merge { raw, launches, kernels, budget }.drains(sequence)?;
    if drains.len() != times.len() {
        return None;
    }
    let entry = |(time_nanos, rings)| Entry::Wire { process, time_nanos, rings };
    Some(times.into_iter().zip(drains).map(entry).collect())
}

#[derive(Default)]
struct Split {
    sequence: Vec<u8>,
    raw: Vec<u8>,
    launches: Vec<[u64; LAUNCH_WORDS]>,
    kernels: Vec<[u64; KERNEL_WORDS]>,
}

impl Split {
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

    fn add_record(&mut self, frame: &Frame<'_>) {
        let Frame { header, whole, .. } = *frame;
        let plain = header.flags == 0;
        if plain && header.kind == kind::LAUNCH && whole.len() == size_of_record::<Launch>(0) {
            self.sequence.push(IS_LAUNCH);
            self.launches.push(words(frame.body()));
        } else if plain && header.kind == kind::KERNEL && whole.len() == size_of_record::<Kernel>(0) {
            self.sequence.push(IS_KERNEL);
            self.kernels.push(words(frame.body()));
        } else {
            self.sequence.push(RAW);
            put_bytes(&mut self.raw, whole);
        }
    }
}

struct Merge<'a> {
    raw: &'a [u8],
    launches: std::vec::IntoIter<[u64; LAUNCH_WORDS]>,
    kernels: std::vec::IntoIter<[u64; KERNEL_WORDS]>,
    budget: &'a mut Budget,
}

impl Merge<'_> {
    fn drains(mut self, sequence: &[u8]) -> Option<Vec<Vec<Vec<u8>>>> {
        let mut drains = Vec::new();
        let mut rings = Vec::new();
        let mut ring = Vec::new();
        for code in sequence {
            match *code {
                RAW => self.take_raw(&mut ring)?,
                IS_LAUNCH => push(&mut ring, kind::LAUNCH, &self.launches.next()?),
                IS_KERNEL => push(&mut ring, kind::KERNEL, &self.kernels.next()?),
                RING_END => {
                    self.take_raw(&mut ring)?;
                    self.budget.take_values::<Vec<u8>>(1)?;
                    rings.push(std::mem::take(&mut ring));
                }
                DRAIN_END => {
                    self.budget.take_values::<Vec<Vec<u8>>>(1)?;
                    drains.push(std::mem::take(&mut rings));
                }
                _ => return None,
            }
        }
        Some(drains)
    }

    fn take_raw(&mut self, ring: &mut Vec<u8>) -> Option<()> {
        let bytes = get_bytes(&mut self.raw)?;
        self.budget.take(bytes.len())?;
        ring.extend(bytes);
        Some(())
    }
}

/// Three 64-bit fields, then 32-bit ones: both structs are laid out so.
fn words<const N: usize>(body: &[u8]) -> [u64; N] {
    std::array::from_fn(|i| match i {
        0..3 => u64::from_le_bytes(std::array::from_fn(|b| body[i * 8 + b])),
        _ => u32::from_le_bytes(std::array::from_fn(|b| body[24 + (i - 3) * 4 + b])).into(),
    })
}

fn push<const N: usize>(out: &mut Vec<u8>, kind: u16, words: &[u64; N]) {
    let size = size_of::<Header>() + 24 + (N - 3) * 4;
    out.extend(Header { kind, flags: 0, size: size as u32 }.as_bytes());
    words[..3].iter().for_each(|it| out.extend(it.to_le_bytes()));
    words[3..].iter().for_each(|it| out.extend((*it as u32).to_le_bytes()));
}

const _: () = assert!(size_of::<Launch>() == 24 + (LAUNCH_WORDS - 3) * 4);
const _: () = assert!(size_of::<Kernel>() == 24 + (KERNEL_WORDS - 3) * 4);

fn put_columns<const N: usize>(out: &mut Vec<u8>, rows: &[[u64; N]], predictions: &[Prediction; N]) {
    put(out, rows.len() as u64);
    for (field, prediction) in predictions.iter().enumerate() {
        let mut before = [0u64; N];
        let column = rows.iter().map(|row| {
            let residual = residual(row, &before, field, *prediction);
            before = *row;
            residual
        });
        put_planes(out, &column.collect::<Vec<_>>());
    }
}

fn get_columns<const N: usize>(
    input: &mut &[u8],
    predictions: &[Prediction; N],
    budget: &mut Budget,
) -> Option<Vec<[u64; N]>> {
    let n = usize::try_from(get(input)?).ok()?;
    let columns: Vec<Column<'_>> = (0..N).map(|_| get_planes(input, n)).collect::<Option<_>>()?;
    // As a row, and as the record in its ring.
    budget.take_values::<([u64; N], [u64; N])>(n)?;
    let mut rows = Vec::with_capacity(n);
    let mut before = [0u64; N];
    for at in 0..n {
        let mut row = [0u64; N];
        for field in 0..N {
            let predicted = predict(&row, &before, field, predictions[field]);
            let residual = columns[field].get(at, n);
            row[field] = match predictions[field] {
                Kept => residual,
                _ => predicted.wrapping_add(unzigzag(residual)),
            };
        }
        before = row;
        rows.push(row);
    }
    Some(rows)
}

fn residual<const N: usize>(row: &[u64; N], before: &[u64; N], field: usize, prediction: Prediction) -> u64 {
    match prediction {
        Kept => row[field],
        _ => zigzag(row[field].wrapping_sub(predict(row, before, field, prediction))),
    }
}

fn predict<const N: usize>(row: &[u64; N], before: &[u64; N], field: usize, prediction: Prediction) -> u64 {
    match prediction {
        Previous => before[field],
        Field(other) => row[other],
        PreviousField(other) => before[other],
        Kept => 0,
    }
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

/// A number in groups of 7 bits, low ones first.
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
    use xputrace_wire::record;

    fn budget() -> Budget {
        Budget::of_file(0)
    }

    fn drains_of(entries: Vec<Entry>) -> Vec<Drain> {
        let drain = |it| match it {
            Entry::Wire { time_nanos, rings, .. } => (time_nanos, rings),
            other => panic!("{other:?}"),
        };
        entries.into_iter().map(drain).collect()
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(drains in proptest::collection::vec(
            (any::<u64>(), proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..4)), 0..4)) {
            prop_assert_eq!(drains_of(decode(&encode(7, &drains), &mut budget()).unwrap()), drains);
        }

        #[test]
        fn records_come_back(starts in proptest::collection::vec(any::<(u64, u64, u32, bool)>(), 0..40)) {
            let mut ring = Vec::new();
            for (start, end, id, launch) in starts {
                if launch {
                    let it = Launch { start, end, correlation: id, tag: -1, flags: id, ..Default::default() };
                    record::push(&mut ring, kind::LAUNCH, &it, &[]);
                } else {
                    let it = Kernel { start, end, correlation: id, local_memory: id, graph_node: end, ..Default::default() };
                    record::push(&mut ring, kind::KERNEL, &it, &[]);
                }
                record::push(&mut ring, kind::NAME, &record::Name { id, len: 3 }, b"abc");
            }
            let drains = vec![(1, vec![ring.clone(), vec![], ring])];
            prop_assert_eq!(drains_of(decode(&encode(0, &drains), &mut budget()).unwrap()), drains);
        }

        #[test]
        fn any_payload_is_accepted(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes, &mut budget());
        }
    }
}
