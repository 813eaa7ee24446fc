//! A column: a member of a wire record, its prediction in recordings, and its meaning to scripts.

use crate::clock::Realtime;
use crate::field::{Field, FieldType, From, Unit};
use crate::table::Choice;
use crate::word::{self, GpuContext};

/// One member of a record: little endian, at a fixed offset.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    /// Bytes from the start of the record's body.
    pub offset: usize,
    /// Size of a value: 4 or 8 bytes.
    pub width: usize,
    /// Number of values: 1, 3 for a size in three dimensions, or those of an array.
    pub count: usize,
    /// Whether its values may be negative. An unsigned one of 8 bytes may be an address beyond the signed ones.
    pub is_signed: bool,
    pub prediction: Prediction,
    pub meaning: Option<Meaning>,
}

impl Column {
    const fn is_field(&self) -> bool {
        matches!(self.meaning, Some(it) if it.is_field)
    }
}

/// How a recording predicts a column; it stores the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prediction {
    /// By the same column of the previous record.
    Previous,
    /// By another column of the same record.
    Same(&'static str),
    /// By another column of the previous record.
    PreviousOf(&'static str),
    /// Not predicted: the compressor finds repeats.
    Kept,
}

/// What a column's value means to a script: a field, at a word of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub kind: FieldType,
    pub unit: Unit,
    pub from: From,
    pub how: How,
    /// Whether scripts can read it; otherwise the word is a flag.
    pub is_field: bool,
    pub doc: &'static str,
}

/// How the word is derived from the column's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As it is.
    Plain,
    /// Converted by the tracer: a time on its own clock.
    Converted,
    /// The string with that number in a fixed list.
    Choice(Choice),
}

/// An integer without a unit.
pub const fn int(at: usize, doc: &'static str) -> Meaning {
    Meaning { kind: FieldType::Int, unit: Unit::None, from: From::Word(at), how: How::Plain, is_field: true, doc }
}

/// Whether something is so: 0 or 1.
pub const fn boolean(at: usize, doc: &'static str) -> Meaning {
    Meaning { kind: FieldType::Bool, ..int(at, doc) }
}

/// A flag that other columns' fields depend on.
pub const fn hidden(at: usize) -> Meaning {
    Meaning { is_field: false, ..int(at, "") }
}

/// A number of bytes.
pub const fn bytes(at: usize, doc: &'static str) -> Meaning {
    Meaning { unit: Unit::Bytes, ..int(at, doc) }
}

/// A time on the GPU: the tracer converts it.
pub const fn time(at: usize, doc: &'static str) -> Meaning {
    Meaning { unit: Unit::Clock, how: How::Converted, ..int(at, doc) }
}

/// Three sizes.
pub const fn dim3(at: usize, doc: &'static str) -> Meaning {
    Meaning { kind: FieldType::Dim3, ..int(at, doc) }
}

/// One string of a fixed list.
pub const fn choice(choice: Choice, at: usize, doc: &'static str) -> Meaning {
    Meaning { kind: FieldType::Name, how: How::Choice(choice), ..int(at, doc) }
}

impl Meaning {
    /// Makes the field `()` if the word `flag` is 0.
    pub const fn unless_0(self, flag: usize) -> Meaning {
        match self.from {
            From::Word(value) => Meaning { from: From::Optional { flag, value }, ..self },
            _ => self,
        }
    }

    const fn field(self, name: &'static str) -> Field {
        let texts = match self.how {
            How::Choice(choice) => choice.texts(),
            _ => &[],
        };
        Field { name, kind: self.kind, unit: self.unit, from: self.from, doc: self.doc, texts }
    }
}

/// Ids of the strings that a record refers to by number.
pub trait Texts {
    /// Returns the id of a string in a fixed list, or 0, the empty string's, if the list has no
    /// such number.
    fn choice(&self, choice: Choice, number: u32) -> u64;
}

/// The type of a column.
pub trait Wire: Copy {
    const WIDTH: usize;
    const COUNT: usize;
    const IS_SIGNED: bool = false;
    /// Writes a value to its word.
    fn put(self, meaning: Meaning, words: &mut GpuContext, texts: &impl Texts);
}

impl Wire for u64 {
    const WIDTH: usize = 8;
    const COUNT: usize = 1;

    #[inline(always)]
    fn put(self, meaning: Meaning, words: &mut GpuContext, _: &impl Texts) {
        if let Some(at) = meaning.from.word() {
            words[at] = self;
        }
    }
}

impl Wire for i64 {
    const WIDTH: usize = 8;
    const COUNT: usize = 1;
    const IS_SIGNED: bool = true;

    #[inline(always)]
    fn put(self, meaning: Meaning, words: &mut GpuContext, texts: &impl Texts) {
        (self as u64).put(meaning, words, texts);
    }
}

impl Wire for i32 {
    const WIDTH: usize = 4;
    const COUNT: usize = 1;
    const IS_SIGNED: bool = true;

    #[inline(always)]
    fn put(self, meaning: Meaning, words: &mut GpuContext, texts: &impl Texts) {
        i64::from(self).put(meaning, words, texts);
    }
}

impl Wire for u32 {
    const WIDTH: usize = 4;
    const COUNT: usize = 1;

    #[inline(always)]
    fn put(self, meaning: Meaning, words: &mut GpuContext, texts: &impl Texts) {
        let value = match meaning.how {
            How::Choice(choice) => texts.choice(choice, self),
            How::Plain | How::Converted => self.into(),
        };
        value.put(meaning, words, texts);
    }
}

impl Wire for [u32; 3] {
    const WIDTH: usize = 4;
    const COUNT: usize = 3;

    #[inline(always)]
    fn put(self, meaning: Meaning, words: &mut GpuContext, _: &impl Texts) {
        if let Some(at) = meaning.from.word() {
            (0..3).for_each(|i| words[at + i] = self[i].into());
        }
    }
}

/// Bytes that only the tracer understands.
impl<const N: usize> Wire for [u64; N] {
    const WIDTH: usize = 8;
    const COUNT: usize = N;

    #[inline(always)]
    fn put(self, _: Meaning, _: &mut GpuContext, _: &impl Texts) {}
}

impl Wire for Realtime {
    const WIDTH: usize = 8;
    const COUNT: usize = 1;

    #[inline(always)]
    fn put(self, _: Meaning, _: &mut GpuContext, _: &impl Texts) {}
}

/// Describes a field that is not a column.
pub(crate) const fn derived(name: &'static str, kind: FieldType, unit: Unit, at: usize, doc: &'static str) -> Field {
    Field { name, kind, unit, from: From::Word(at), doc, texts: &[] }
}

/// Describes a field that is not a column, at word `value`; `()` if word `flag` is 0.
pub(crate) const fn optional(
    name: &'static str,
    kind: FieldType,
    unit: Unit,
    (flag, value): (usize, usize),
    doc: &'static str,
) -> Field {
    Field { name, kind, unit, from: From::Optional { flag, value }, doc, texts: &[] }
}

/// Returns the number of columns that are fields.
pub(crate) const fn n_fields(columns: &[Column]) -> usize {
    let (mut n, mut at) = (0, 0);
    while at < columns.len() {
        n += columns[at].is_field() as usize;
        at += 1;
    }
    n
}

/// Returns the derived fields and the columns' fields, `N` in all, in the order of their words.
pub(crate) const fn fields<const N: usize>(derived: &[&[Field]], columns: &[Column]) -> [Field; N] {
    let blank = Field { name: "", kind: FieldType::Int, unit: Unit::None, from: From::Probe, doc: "", texts: &[] };
    let mut all = [blank; N];
    let (mut n, mut list) = (0, 0);
    while list < derived.len() {
        let mut at = 0;
        while at < derived[list].len() {
            all[n] = derived[list][at];
            (n, at) = (n + 1, at + 1);
        }
        list += 1;
    }
    let mut at = 0;
    while at < columns.len() {
        if let (Some(meaning), true) = (columns[at].meaning, columns[at].is_field()) {
            all[n] = meaning.field(columns[at].name);
            n += 1;
        }
        at += 1;
    }
    assert!(n == N);
    in_order(all)
}

/// Sorts by word; fields of one word keep their order.
const fn in_order<const N: usize>(mut all: [Field; N]) -> [Field; N] {
    let mut n = 1;
    while n < N {
        let mut at = n;
        while at > 0 && word_of(&all[at]) < word_of(&all[at - 1]) {
            (all[at], all[at - 1]) = (all[at - 1], all[at]);
            at -= 1;
        }
        n += 1;
    }
    all
}

const fn word_of(field: &Field) -> usize {
    match field.from.word() {
        Some(at) => at,
        None => word::WORDS,
    }
}

/// Defines a wire record and its columns from one list.
macro_rules! record {
    (
        $(#[$doc:meta])*
        $Record:ident {
            $( $(#[$field_doc:meta])* $field:ident : $type:ty, $prediction:expr $(, $meaning:expr)? ; )*
        }
    ) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(C)]
        pub struct $Record {
            $( $(#[$field_doc])* pub $field: $type, )*
        }

        impl $Record {
            /// Its members, in order.
            pub const COLUMNS: &'static [$crate::column::Column] = &[$(
                $crate::column::Column {
                    name: stringify!($field),
                    offset: std::mem::offset_of!($Record, $field),
                    width: <$type as $crate::column::Wire>::WIDTH,
                    count: <$type as $crate::column::Wire>::COUNT,
                    is_signed: <$type as $crate::column::Wire>::IS_SIGNED,
                    prediction: $prediction,
                    meaning: record!(@meaning $($meaning)?),
                },
            )*];

            /// Fills the words of all columns that are fields, except times.
            #[inline]
            pub fn put_words(&self, words: &mut $crate::word::GpuContext, texts: &impl $crate::column::Texts) {
                $( record!(@put self.$field, $type, words, texts $(, $meaning)?); )*
            }
        }
    };
    (@meaning) => { None };
    (@meaning $meaning:expr) => { Some($meaning) };
    (@put $value:expr, $type:ty, $words:ident, $texts:ident) => {};
    (@put $value:expr, $type:ty, $words:ident, $texts:ident, $meaning:expr) => {
        <$type as $crate::column::Wire>::put($value, const { $meaning }, $words, $texts)
    };
}
pub(crate) use record;
