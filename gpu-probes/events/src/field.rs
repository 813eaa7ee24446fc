//! A field of an event value, as scripts see it.

/// One field of an event value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    pub kind: FieldType,
    pub unit: Unit,
    /// Where its value comes from.
    pub from: From,
    /// A sentence for the language reference.
    pub doc: &'static str,
    /// All values of a string that is one of a fixed list, besides the empty one; otherwise none.
    pub texts: &'static [&'static str],
}

impl Field {
    /// Returns the fields below it; `None` if it is a value itself.
    pub const fn below(&self) -> Option<&'static [Field]> {
        match self.kind {
            FieldType::Launch => Some(crate::table::Launch::FIELDS),
            FieldType::Parts(parts) => Some(parts),
            _ => None,
        }
    }

    /// Describes the type for readers: `integer, ns`, `string or ()`.
    pub fn type_text(&self) -> String {
        let kind = match (self.kind, self.unit) {
            (FieldType::Int, Unit::Nanos | Unit::Clock) => "integer, ns",
            (FieldType::Int, Unit::Bytes) => "integer, bytes",
            (FieldType::Int, Unit::None | Unit::Mixed) => "integer",
            (FieldType::Bool, _) => "boolean",
            (FieldType::Comm, _) => "string, 16 bytes",
            (FieldType::Name, _) => "string",
            (FieldType::Stack, _) => "stack",
            (FieldType::Dim3, _) => ".x .y .z .size",
            (FieldType::Launch, _) => "a launch, or ()",
            (FieldType::Parts(parts), _) => {
                let shown: Vec<_> = parts.iter().take(MOST_PARTS).map(|it| format!(".{}", it.name)).collect();
                let more = if parts.len() > MOST_PARTS { " …" } else { "" };
                return shown.join(" ") + more;
            }
            (FieldType::Entry, _) => "an event",
            (FieldType::Arguments, _) => "parameters",
        };
        let missing = if matches!(self.from, From::Optional { .. }) { " or ()" } else { "" };
        format!("{kind}{missing}")
    }
}

/// Maximum number of parts that a type lists; the field's description names the others.
const MOST_PARTS: usize = 4;

/// The type of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Int,
    /// `true` unless the word is 0.
    Bool,
    /// 16 bytes of text, NUL padded.
    Comm,
    /// A string of the run's string table.
    Name,
    Stack,
    /// Three integers `x y z`, and `size`, their product.
    Dim3,
    /// The launch that caused a GPU event; `()` if unknown.
    Launch,
    /// Not a value of its own: the fields below it, `k.gpu.name`.
    Parts(&'static [Field]),
    /// At a `uretprobe`: the event at the function's entry.
    Entry,
    /// The parameters of a CUDA call, by name.
    Arguments,
}

/// What a number measures; printing adds the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub enum Unit {
    #[default]
    None,
    /// A duration in nanoseconds.
    Nanos,
    /// A point in time: nanoseconds of the run's clock.
    Clock,
    /// Values of different units were mixed: a plain number.
    Mixed,
    Bytes,
}

/// Where a field's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At this word of the [`crate::GpuContext`].
    Word(usize),
    /// At word `value`; `()` when word `flag` is 0.
    Optional { flag: usize, value: usize },
    /// Computed from the probe's own context by the program in Linux.
    Probe,
}

impl From {
    /// Returns the first word of the value, in a GPU event's context.
    pub const fn word(self) -> Option<usize> {
        match self {
            From::Word(at) | From::Optional { value: at, .. } => Some(at),
            From::Probe => None,
        }
    }
}
