//! Hits of CPU probes as rows: which fields of an event are known of a recorded hit.
//!
//! Handlers compute fields from a probe's context in Linux. A hit by itself is one moment: what takes two, such as the time
//! from a function's entry to its return, is not in it. The two hits of a return probe are two rows.

use xputrace_model::schema::{CPU, Event, Field, FieldType, UPROBE, URETPROBE, Unit};
use xputrace_model::stack::StackKey;

/// The events whose hits recordings have.
pub const HIT_EVENTS: [Event; 4] = [Event::Uprobe, Event::Uretprobe, Event::Tracepoint, Event::Profile];

/// A field of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitField {
    pub name: &'static str,
    pub kind: FieldType,
    pub unit: Unit,
    /// Whether some hits lack it.
    pub is_optional: bool,
    pub doc: &'static str,
}

impl HitField {
    fn of(field: &Field) -> Self {
        let Field { name, kind, unit, doc, .. } = *field;
        HitField { name, kind, unit, is_optional: kind == FieldType::Stack || name == "func", doc }
    }

    /// Of one of the two hits of a return probe.
    fn of_one(field: &Field) -> Self {
        HitField { is_optional: true, ..Self::of(field) }
    }
}

/// Which hit of a return probe it is.
const AT: HitField = HitField {
    name: "at",
    kind: FieldType::Name,
    unit: Unit::None,
    is_optional: false,
    doc: "\"entry\" or \"return\": each is a hit of its own",
};

/// Returns the fields of an event's hits, in the order of their values. A tracepoint's own are not among them.
pub fn hit_fields(event: Event) -> Vec<HitField> {
    let common = CPU.iter().map(HitField::of);
    let arguments = &UPROBE[CPU.len()..];
    match event {
        Event::Uprobe => common.chain(arguments.iter().map(HitField::of)).collect(),
        Event::Uretprobe => {
            let returned = URETPROBE.iter().filter(|it| it.name == "retval");
            common.chain([AT]).chain(returned.chain(arguments).map(HitField::of_one)).collect()
        }
        Event::Tracepoint => common.collect(),
        // A sample is not at a function.
        Event::Profile => common.filter(|it| it.name != "func").collect(),
        _ => Vec::new(),
    }
}

/// A hit of a CPU probe.
#[derive(Clone, Debug)]
pub struct HitRow<'a> {
    pub event: Event,
    /// The values of [`hit_fields`], in their order.
    pub values: Vec<HitValue<'a>>,
    /// Of a tracepoint: its own fields.
    pub record: Vec<(&'a str, HitValue<'a>)>,
}

/// A value of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HitValue<'a> {
    Missing,
    Int(i64),
    Unsigned(u64),
    Text(std::borrow::Cow<'a, str>),
    Stack(StackKey),
}
