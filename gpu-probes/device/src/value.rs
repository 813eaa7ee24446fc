//! What is known of the value in a register or a stack slot, whatever path led there.

use xputrace_bytecode::BpfMapId;

/// A value's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Never written.
    Unset,
    Scalar(Scalar),
    /// The context's address plus an offset.
    Context(i32),
    /// An address in a frame's stack. The place is relative to its frame pointer.
    Stack {
        frame: u8,
        at: Offset,
    },
    /// A map itself.
    Map(BpfMapId),
    /// An address in a value of a map.
    Element {
        map: BpfMapId,
        at: Offset,
        null: Null,
    },
    /// An address in a value of a map of which the thread keeps its part in registers.
    Sum {
        /// Its index in the list of them.
        sum: usize,
        at: Offset,
    },
    /// An address in a reserved record's data.
    Record {
        n_bytes: u32,
        at: Offset,
        null: Null,
    },
    /// Different kinds of value on different paths: good for anything but an access.
    Mixed,
}

/// What is known of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) known: Option<u64>,
    /// The word of the context that it is, of those that are the same wherever a thread reads them.
    pub(crate) word: Option<usize>,
    /// Low bits that are certainly 0.
    pub(crate) zeros: u8,
}

/// An offset from the start of what a pointer points into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offset {
    Fixed(i32),
    /// Known at run time only. So many low bits are certainly 0.
    Varies {
        zeros: u8,
    },
}

/// Whether a pointer may be null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Null {
    Never,
    /// Yes; all copies of one result have the same mark, so that testing one tests all.
    Maybe(Option<usize>),
}

impl Scalar {
    pub(crate) const UNKNOWN: Scalar = Scalar { known: None, word: None, zeros: 0 };

    pub(crate) fn known(value: u64) -> Scalar {
        Scalar { known: Some(value), word: None, zeros: value.trailing_zeros() as u8 }
    }

    fn join(self, other: Scalar) -> Scalar {
        let known = self.known.filter(|it| other.known == Some(*it));
        let word = self.word.filter(|it| other.word == Some(*it));
        Scalar { known, word, zeros: self.zeros.min(other.zeros) }
    }
}

impl Offset {
    pub(crate) const START: Offset = Offset::Fixed(0);

    /// Low bits of the offset that are certainly 0.
    pub(crate) fn zeros(self) -> u8 {
        match self {
            Offset::Fixed(at) => at.trailing_zeros() as u8,
            Offset::Varies { zeros } => zeros,
        }
    }

    /// Moves by a constant; `None` if that is out of any bounds.
    pub(crate) fn plus(self, distance: i64) -> Option<Offset> {
        match self {
            Offset::Fixed(at) => {
                let to = i32::try_from(i64::from(at).checked_add(distance)?).ok()?;
                Some(Offset::Fixed(to))
            }
            Offset::Varies { zeros } => Some(Offset::Varies { zeros: zeros.min(distance.trailing_zeros() as u8) }),
        }
    }

    /// Moves by a number, forward or back.
    pub(crate) fn moved(self, by: Scalar, back: bool) -> Option<Offset> {
        match by.known {
            Some(known) if back => self.plus((known as i64).wrapping_neg()),
            Some(known) => self.plus(known as i64),
            None => Some(Offset::Varies { zeros: self.zeros().min(by.zeros) }),
        }
    }

    fn join(self, other: Offset) -> Offset {
        match (self, other) {
            (Offset::Fixed(a), Offset::Fixed(b)) if a == b => self,
            _ => Offset::Varies { zeros: self.zeros().min(other.zeros()) },
        }
    }
}

impl Null {
    fn join(self, other: Null) -> Null {
        match (self, other) {
            (Null::Never, Null::Never) => Null::Never,
            (Null::Maybe(a), Null::Maybe(b)) if a == b => self,
            _ => Null::Maybe(None),
        }
    }
}

impl Value {
    pub(crate) const UNKNOWN: Value = Value::Scalar(Scalar::UNKNOWN);

    pub(crate) fn known(value: u64) -> Value {
        Value::Scalar(Scalar::known(value))
    }

    /// Returns what is known where two paths meet.
    pub(crate) fn join(self, other: Value) -> Value {
        match (self, other) {
            _ if self == other => self,
            (Value::Unset, _) | (_, Value::Unset) => Value::Unset,
            (Value::Scalar(a), Value::Scalar(b)) => Value::Scalar(a.join(b)),
            (Value::Stack { frame, at }, Value::Stack { frame: other, at: place }) if frame == other => {
                Value::Stack { frame, at: at.join(place) }
            }
            (Value::Element { map, at, null }, Value::Element { map: other, at: place, null: maybe })
                if map == other =>
            {
                Value::Element { map, at: at.join(place), null: null.join(maybe) }
            }
            (Value::Sum { sum, at }, Value::Sum { sum: other, at: place }) if sum == other => {
                Value::Sum { sum, at: at.join(place) }
            }
            (Value::Record { n_bytes, at, null }, Value::Record { n_bytes: other, at: place, null: maybe })
                if n_bytes == other =>
            {
                Value::Record { n_bytes, at: at.join(place), null: null.join(maybe) }
            }
            (Value::Scalar(Scalar { known: Some(0), .. }), pointer) => pointer.or_null(),
            (pointer, Value::Scalar(Scalar { known: Some(0), .. })) => pointer.or_null(),
            _ => Value::Mixed,
        }
    }

    fn or_null(self) -> Value {
        match self {
            Value::Element { map, at, .. } => Value::Element { map, at, null: Null::Maybe(None) },
            Value::Record { n_bytes, at, .. } => Value::Record { n_bytes, at, null: Null::Maybe(None) },
            _ => Value::Mixed,
        }
    }

    /// Returns how the pointer may be null; `None` for what is no such pointer.
    pub(crate) fn null(self) -> Option<Null> {
        match self {
            Value::Element { null, .. } | Value::Record { null, .. } => Some(null),
            _ => None,
        }
    }

    pub(crate) fn with_null(self, null: Null) -> Value {
        match self {
            Value::Element { map, at, .. } => Value::Element { map, at, null },
            Value::Record { n_bytes, at, .. } => Value::Record { n_bytes, at, null },
            other => other,
        }
    }

    /// Whether it is a pointer that is certainly not null.
    pub(crate) fn is_never_null(self) -> bool {
        matches!(self, Value::Context(_) | Value::Stack { .. } | Value::Map(_) | Value::Sum { .. })
            || self.null() == Some(Null::Never)
    }

    /// Returns the number, as far as it is one.
    pub(crate) fn scalar(self) -> Scalar {
        match self {
            Value::Scalar(scalar) => scalar,
            _ => Scalar::UNKNOWN,
        }
    }

    /// Moves a pointer by a number; what is no pointer into anything becomes [`Value::Mixed`].
    pub(crate) fn moved(self, by: Scalar, back: bool) -> Value {
        let moved = |at: Offset| at.moved(by, back);
        let result = match self {
            Value::Context(at) => match Offset::Fixed(at).moved(by, back) {
                Some(Offset::Fixed(at)) => Some(Value::Context(at)),
                _ => None,
            },
            Value::Stack { frame, at } => moved(at).map(|at| Value::Stack { frame, at }),
            Value::Sum { sum, at } => moved(at).map(|at| Value::Sum { sum, at }),
            Value::Element { map, at, null: Null::Never } => {
                moved(at).map(|at| Value::Element { map, at, null: Null::Never })
            }
            Value::Record { n_bytes, at, null: Null::Never } => {
                moved(at).map(|at| Value::Record { n_bytes, at, null: Null::Never })
            }
            _ => None,
        };
        result.unwrap_or(Value::Mixed)
    }

    /// Whether it points into something.
    pub(crate) fn is_pointer(self) -> bool {
        matches!(
            self,
            Value::Context(_)
                | Value::Stack { .. }
                | Value::Element { .. }
                | Value::Sum { .. }
                | Value::Record { .. }
                | Value::Map(_)
        )
    }

    /// Names the kind, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Value::Unset => "a register that was never written",
            Value::Scalar(_) => "a number",
            Value::Context(_) => "the context",
            Value::Stack { .. } => "the stack",
            Value::Map(_) => "a map itself",
            Value::Element { .. } => "a map's value",
            Value::Sum { .. } => "a map's value that is kept in registers",
            Value::Record { .. } => "a record",
            Value::Mixed => "a different kind of value on each path",
        }
    }
}
