//! A script's maps: their shape, the bytes of their keys and values, and their contents when read.
//!
//! A key is a sequence of parts of fixed size, each a multiple of 8 bytes:
//!
//! | part | bytes |
//! |---|---|
//! | integer, boolean, name, stack | 8 |
//! | text of capacity n | n rounded up to 8, NUL padded |
//! | optional part | 8 (0 or 1), then the part (zeros when missing) |
//!
//! Histograms and quantiles are sparse: their keys end in another 8-byte part, the bucket. A map
//! without a key and without buckets has an empty key here (its BPF map is an array of one
//! element).

use crate::bucket::{self, Bounds, HIST_BITS};
use crate::schema::Unit;
use crate::stack::StackKey;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Default capacity of a map.
pub const DEFAULT_CAPACITY: u32 = 65_536;

pub use crate::id::TableId;
use xputrace_bytecode::BpfMapId;

/// A map of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDef {
    /// The name as the user writes it, with its `@`; `@` alone is a name too.
    pub name: String,
    pub keys: Vec<KeyPart>,
    pub kind: TableKind,
    /// What its values measure.
    pub unit: Unit,
    /// Its capacity; see [`TableDef::stored_capacity`] for histograms.
    pub capacity: u32,
    /// Whether it evicts the oldest element to make room for a new one.
    pub evict: bool,
    /// Where its values are stored.
    pub storage: Storage,
}

/// Where a map's values are stored. The compiler decides it once, from all handlers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the interpreter: no compiled handler uses the map.
    Interpreter,
    /// In this map of the tracer's engine.
    Tracer(BpfMapId),
    /// In this map in Linux. Handlers in the tracer access it by system calls.
    Linux { map: BpfMapId, from_tracer: bool },
    /// On the GPU: a map of each GPU's memory, or of the tracer's engine for the software GPU.
    Gpu(BpfMapId),
    /// An aggregation: each engine updates its own part, and readers merge them.
    Parts(Parts),
}

/// The engines' parts of an aggregation: at least two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    pub linux: Option<BpfMapId>,
    pub tracer: Option<BpfMapId>,
    pub gpu: Option<BpfMapId>,
}

impl Storage {
    /// Returns the map in Linux that holds the values or a part of them.
    pub fn linux(self) -> Option<BpfMapId> {
        match self {
            Storage::Linux { map, .. } => Some(map),
            Storage::Parts(parts) => parts.linux,
            Storage::Interpreter | Storage::Tracer(_) | Storage::Gpu(_) => None,
        }
    }

    /// Returns the map in the tracer's engine that holds the values or a part of them.
    pub fn tracer(self) -> Option<BpfMapId> {
        match self {
            Storage::Tracer(map) => Some(map),
            Storage::Parts(parts) => parts.tracer,
            Storage::Interpreter | Storage::Linux { .. } | Storage::Gpu(_) => None,
        }
    }

    /// Returns the map on the GPU that holds the values or a part of them.
    pub fn gpu(self) -> Option<BpfMapId> {
        match self {
            Storage::Gpu(map) => Some(map),
            Storage::Parts(parts) => parts.gpu,
            Storage::Interpreter | Storage::Linux { .. } | Storage::Tracer(_) => None,
        }
    }

    /// Returns the map that handlers in the tracer use, wherever it is.
    pub fn used_by_tracer(self) -> Option<BpfMapId> {
        match self {
            Storage::Linux { map, from_tracer: true } => Some(map),
            other => other.tracer(),
        }
    }
}

/// One part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyPart {
    pub kind: Scalar,
    /// Whether this part can be `()`, which prints as `-`.
    pub optional: bool,
    pub unit: Unit,
}

/// The type of a key part or of a plain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    Int,
    Bool,
    /// A string of the run's string table, by id.
    Name,
    /// Text of at most this many bytes, in place.
    Text(u32),
    Stack,
}

impl Scalar {
    /// Returns its size in a key or value.
    pub fn size(self) -> usize {
        match self {
            Scalar::Text(n) => (n as usize).next_multiple_of(8),
            _ => 8,
        }
    }
}

impl KeyPart {
    /// Returns its size in a key.
    pub fn size(self) -> usize {
        self.kind.size() + if self.optional { 8 } else { 0 }
    }
}

/// What a map holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TableKind {
    /// Assigned values. An optional value is never stored: assigning `()` removes the element.
    Plain(Scalar),
    /// 8 bytes: the count.
    Count,
    /// 8 bytes: the wrapping sum.
    Sum,
    /// 8 bytes: the minimum XOR `i64::MAX`, so that zeroed memory is the identity.
    Min,
    /// 8 bytes: the maximum XOR `i64::MIN`, likewise.
    Max,
    /// 24 bytes: count, and the total in two words: the sum of the values' low 32 bits, and the
    /// signed sum of their upper bits. Neither overflows before 2³² values.
    Avg,
    /// 40 bytes: as for `Avg`, then minimum and maximum coded as in `Min` and `Max`.
    Stats,
    /// 8 bytes per bucket: count. Buckets are [`crate::bucket::index`] with `bits`.
    Hist { bits: u32 },
    /// 8 bytes per bucket: count. Bucket −1 is below `min`, bucket `n` starts at `min + n·step`,
    /// the last covers everything from `max` on.
    Lhist { min: i64, max: i64, step: i64 },
    /// Like `Hist` with [`crate::bucket::QUANTILE_BITS`], but negative values have buckets of their own
    /// ([`crate::bucket::signed_index`]). Printed as quantiles.
    Quantiles,
}

impl TableKind {
    /// The aggregations, each with its default parameters.
    pub const AGGREGATIONS: [TableKind; 9] = [
        TableKind::Count,
        TableKind::Sum,
        TableKind::Min,
        TableKind::Max,
        TableKind::Avg,
        TableKind::Stats,
        TableKind::Hist { bits: HIST_BITS },
        TableKind::Lhist { min: 0, max: 0, step: 1 },
        TableKind::Quantiles,
    ];

    /// Returns the aggregation of a method.
    pub fn of_method(name: &str) -> Option<TableKind> {
        TableKind::AGGREGATIONS.into_iter().find(|it| it.method() == name)
    }

    /// Returns the aggregation of a method that takes exactly one value.
    pub fn of_one_value(name: &str) -> Option<TableKind> {
        TableKind::of_method(name).filter(|it| !matches!(it, TableKind::Count | TableKind::Lhist { .. }))
    }

    /// Returns the names of all aggregation methods.
    pub fn methods() -> impl Iterator<Item = &'static str> + Clone {
        TableKind::AGGREGATIONS.iter().map(|it| it.method())
    }

    /// Returns the method's name; `=` for a plain value.
    pub fn method(self) -> &'static str {
        self.verb().trim_end_matches("()")
    }

    /// Returns the method for messages: `count()`, `=`.
    pub fn verb(self) -> &'static str {
        match self {
            TableKind::Plain(_) => "=",
            TableKind::Count => "count()",
            TableKind::Sum => "sum()",
            TableKind::Min => "min()",
            TableKind::Max => "max()",
            TableKind::Avg => "avg()",
            TableKind::Stats => "stats()",
            TableKind::Hist { .. } => "hist()",
            TableKind::Lhist { .. } => "lhist()",
            TableKind::Quantiles => "quantiles()",
        }
    }

    /// Whether its BPF keys end in a bucket number.
    pub fn is_bucketed(self) -> bool {
        matches!(self, TableKind::Hist { .. } | TableKind::Lhist { .. } | TableKind::Quantiles)
    }

    /// Returns the maximum number of buckets of an element; 1 without buckets.
    pub fn buckets(self) -> u64 {
        let of_log = |bits| bucket::index(i64::MAX, bits) as u64 + 2;
        match self {
            TableKind::Hist { bits } => of_log(bits),
            TableKind::Quantiles => 2 * (of_log(bucket::QUANTILE_BITS) - 1),
            TableKind::Lhist { min, max, step } => (bucket::last_linear(min, max, step) as u64).saturating_add(2),
            _ => 1,
        }
    }

    /// Returns the bucket of a value; 0 without buckets.
    pub fn bucket(self, value: i64) -> i64 {
        match self {
            TableKind::Hist { bits } => bucket::index(value, bits),
            TableKind::Quantiles => bucket::signed_index(value, bucket::QUANTILE_BITS),
            TableKind::Lhist { min, max, step } => bucket::linear(value, min, max, step),
            _ => 0,
        }
    }

    /// Returns the range of a bucket.
    pub fn bucket_bounds(self, index: i64) -> Bounds {
        match self {
            TableKind::Lhist { min, max, step } => bucket::linear_bounds(index, min, max, step),
            TableKind::Quantiles => bucket::signed_bounds(index, bucket::QUANTILE_BITS),
            _ => bucket::log_bounds(index, self.bucket_bits()),
        }
    }

    /// Returns the sub-bucket bits of a logarithmic histogram.
    pub fn bucket_bits(self) -> u32 {
        match self {
            // Scripts give five at most; more means damaged data.
            TableKind::Hist { bits } => bits.min(16),
            TableKind::Quantiles => bucket::QUANTILE_BITS,
            _ => HIST_BITS,
        }
    }

    /// Whether it is stored in parts, one per engine and CPU, and merged when read.
    pub fn is_aggregation(self) -> bool {
        !matches!(self, TableKind::Plain(_))
    }

    /// Returns the size of a stored value (of one bucket, if there are buckets).
    pub fn value_size(self) -> usize {
        match self {
            TableKind::Plain(scalar) => scalar.size(),
            TableKind::Avg => 24,
            TableKind::Stats => 40,
            _ => 8,
        }
    }
}

/// Maximum number of buckets in a histogram's map, unless it has more keys.
const MOST_BUCKETS: u64 = 1 << 20;

impl TableDef {
    /// Returns the capacity of the stored map. A histogram stores each used bucket as an element:
    /// there is room for all buckets of every key, up to a million buckets in total.
    pub fn stored_capacity(&self) -> u32 {
        let keys = if self.keys.is_empty() { 1 } else { u64::from(self.capacity) };
        let wanted = keys.saturating_mul(self.kind.buckets());
        wanted.min(MOST_BUCKETS.max(keys)) as u32
    }

    /// Whether stacks are in its keys or values.
    pub fn holds_stacks(&self) -> bool {
        self.kind == TableKind::Plain(Scalar::Stack) || self.keys.iter().any(|it| it.kind == Scalar::Stack)
    }

    /// Whether it evicts: a map with a single element never needs to.
    pub fn evicts(&self) -> bool {
        self.evict && self.stored_key_size() > 0
    }

    /// Returns the size of the script's key, without the bucket.
    pub fn key_size(&self) -> usize {
        self.keys.iter().map(|it| it.size()).sum()
    }

    /// Returns the size of the stored key, with the bucket; 0 for a map with a single element.
    pub fn stored_key_size(&self) -> usize {
        self.key_size() + if self.kind.is_bucketed() { 8 } else { 0 }
    }
}

/// A decoded key: its parts in order.
pub type Key = Vec<Value>;

/// A value that a script can see.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// `()`, printed as `-`.
    Missing,
    Bool(bool),
    Int(i64),
    Str(Arc<str>),
    Stack(StackKey),
}

/// The contents of an element, merged over engines and CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Plain(Value),
    /// Count, sum, minimum or maximum.
    Number(i64),
    Avg {
        count: i64,
        total: i128,
    },
    Stats {
        count: i64,
        total: i128,
        min: i64,
        max: i64,
    },
    /// Counts by bucket number: `Hist`, `Lhist` and `Quantiles`.
    Buckets(BTreeMap<i64, u64>),
}

/// Returns the average of `count` values, rounded towards zero; `None` without values.
pub fn average(total: i128, count: i64) -> Option<i64> {
    i64::try_from(total.checked_div(count.into())?).ok()
}

/// Returns the total stored in two words, as [`TableKind::Avg`] describes.
pub fn total(low: u64, rest: i64) -> i128 {
    (i128::from(rest) << 32) + i128::from(low)
}

impl Cell {
    /// Returns an aggregation of one value.
    pub fn of(kind: TableKind, value: i64) -> Cell {
        match kind {
            TableKind::Plain(_) => Cell::Plain(Value::Int(value)),
            TableKind::Count => Cell::Number(1),
            TableKind::Sum | TableKind::Min | TableKind::Max => Cell::Number(value),
            TableKind::Avg => Cell::Avg { count: 1, total: value.into() },
            TableKind::Stats => Cell::Stats { count: 1, total: value.into(), min: value, max: value },
            TableKind::Hist { .. } | TableKind::Quantiles | TableKind::Lhist { .. } => {
                Cell::Buckets([(kind.bucket(value), 1)].into())
            }
        }
    }

    /// Returns what tables sort by: the number, the average, the total of statistics, the histogram's count.
    pub fn weight(&self) -> i64 {
        match self {
            Cell::Plain(Value::Int(n)) | Cell::Number(n) => *n,
            Cell::Plain(_) => 0,
            Cell::Avg { count, total } => average(*total, *count).unwrap_or(0),
            Cell::Stats { total, .. } => (*total).clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            // Counts may be damaged: those of a GPU's memory are the program's.
            Cell::Buckets(buckets) => {
                let all = buckets.values().fold(0u64, |all, it| all.saturating_add(*it));
                i64::try_from(all).unwrap_or(i64::MAX)
            }
        }
    }

    /// Merges another part of the same element. Parts of a plain value replace each other.
    pub fn merge(&mut self, kind: TableKind, other: Cell) {
        match (self, other) {
            (Cell::Number(a), Cell::Number(b)) => match kind {
                TableKind::Min => *a = (*a).min(b),
                TableKind::Max => *a = (*a).max(b),
                _ => *a = a.wrapping_add(b),
            },
            (Cell::Avg { count, total }, Cell::Avg { count: c, total: t }) => {
                *count = count.wrapping_add(c);
                *total = total.wrapping_add(t);
            }
            (Cell::Stats { count, total, min, max }, Cell::Stats { count: c, total: t, min: lo, max: hi }) => {
                *count = count.wrapping_add(c);
                *total = total.wrapping_add(t);
                *min = (*min).min(lo);
                *max = (*max).max(hi);
            }
            (Cell::Buckets(a), Cell::Buckets(b)) => {
                for (bucket, n) in b {
                    let sum = a.entry(bucket).or_default();
                    *sum = sum.saturating_add(n);
                }
            }
            (this, other) => *this = other,
        }
    }
}

/// A snapshot of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    pub def: Arc<TableDef>,
    /// Unsorted; each key occurs once.
    pub rows: Vec<(Key, Cell)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_kept_in_one_place_or_in_a_part_for_each_engine() {
        let [one, two, three] = [1, 2, 3].map(BpfMapId);
        let of = |it: Storage| (it.linux(), it.tracer(), it.used_by_tracer(), it.gpu());
        assert_eq!(of(Storage::Interpreter), (None, None, None, None));
        assert_eq!(of(Storage::Tracer(two)), (None, Some(two), Some(two), None));
        assert_eq!(of(Storage::Linux { map: one, from_tracer: false }), (Some(one), None, None, None));
        assert_eq!(of(Storage::Linux { map: one, from_tracer: true }), (Some(one), None, Some(one), None));
        assert_eq!(of(Storage::Gpu(three)), (None, None, None, Some(three)));
        let parts = Parts { linux: Some(one), tracer: Some(two), gpu: Some(three) };
        assert_eq!(of(Storage::Parts(parts)), (Some(one), Some(two), Some(two), Some(three)));
    }

    #[test]
    fn damaged_counts_of_buckets_are_many() {
        let kind = TableKind::Quantiles;
        let of = |n| Cell::Buckets([(3, n), (4, n)].into());
        let mut all = of(u64::MAX - 1);
        all.merge(kind, of(2));
        assert_eq!((&all, all.weight()), (&of(u64::MAX), i64::MAX));
    }

    #[test]
    fn linear_buckets_as_bpftrace_draws_them() {
        let kind = TableKind::Lhist { min: 0, max: 10, step: 4 };
        let all: Vec<_> = (-1..4).map(|it| kind.bucket_bounds(it)).map(|it| (it.min, it.max)).collect();
        assert_eq!(
            all,
            [(None, Some(-1)), (Some(0), Some(3)), (Some(4), Some(7)), (Some(8), Some(9)), (Some(10), None)]
        );
    }
}
