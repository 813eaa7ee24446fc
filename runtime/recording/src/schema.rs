//! The columns of a recording's records: each file says which it has, so records may get more of them.

use serde::{Deserialize, Serialize};
use xputrace_wire::events::{Activity, Column, HostEvent, Launch, Prediction};
use xputrace_wire::record::kind;

/// Which columns the records of each kind have, launches first, then kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Schema(Vec<RecordColumns>);

/// Wire kind of a record, and its columns in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordColumns(pub(super) u16, pub(super) Vec<String>);

/// A column as a schema describes it: `NAME WIDTH`, `NAME WIDTHxCOUNT`, each with a prediction behind it: `previous`
/// (by the same column of the previous record), `same:COLUMN` (by another column of the same record) or
/// `previous:COLUMN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described<'a> {
    pub(super) name: &'a str,
    /// Bytes of a value: 4 or 8.
    pub(super) width: usize,
    /// Number of values, up to [`MOST_VALUES`].
    pub(super) count: usize,
    pub(super) prediction: Predicted<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Predicted<'a> {
    Previous,
    Same(&'a str),
    PreviousOf(&'a str),
    Kept,
}

/// Bounds of what a file may claim.
const MOST_VALUES: usize = 64;
const MOST_COLUMNS: usize = 256;
const MOST_KINDS: usize = 64;

impl Schema {
    /// Returns the columns of this version's records.
    pub(super) fn now() -> Self {
        let columns = |all: &[Column]| all.iter().map(description).collect();
        let activity = |it: &Activity| RecordColumns(it.record_kind(), columns(it.columns()));
        let launch = RecordColumns(kind::LAUNCH, columns(Launch::COLUMNS));
        let host_event = |it: &HostEvent| RecordColumns(it.record_kind(), columns(it.columns()));
        let activities = Activity::ALL.iter().map(activity);
        Schema(std::iter::once(launch).chain(activities).chain(HostEvent::ALL.iter().map(host_event)).collect())
    }

    pub(super) fn kinds(&self) -> &[RecordColumns] {
        &self.0
    }

    /// Whether it is within the bounds.
    pub(super) fn is_sound(&self) -> bool {
        // Rows without columns would be as many as a file says, and take nothing of it.
        let is_sound = |it: &RecordColumns| (1..=MOST_COLUMNS).contains(&it.1.len()) && it.described().is_some();
        let first: Vec<u16> = self.0.iter().map(|it| it.0).take(2).collect();
        self.0.len() <= MOST_KINDS && first == [kind::LAUNCH, kind::KERNEL] && self.0.iter().all(is_sound)
    }
}

/// The columns of files that don't say which they have.
impl Default for Schema {
    fn default() -> Self {
        let columns = |text: &str| text.split(", ").map(str::to_owned).collect();
        Schema(FIRST.iter().map(|(kind, text)| RecordColumns(*kind, columns(text))).collect())
    }
}

const FIRST: [(u16, &str); 3] = [
    (
        1,
        "start 8 previous:end, end 8 same:start, tag 8 previous, correlation 4 previous, tid 4 previous, api 4, stack 4, \
         symbol 4, result 4 previous, context 4 previous, device 4 previous, stream 4 previous, grid 4x3, block 4x3, \
         dynamic_shared 4, launch_kind 4 previous, flags 4 previous",
    ),
    (
        2,
        "start 8 previous:end, end 8 same:start, graph_node 8, graph 4 previous, correlation 4 previous, \
         device 4 previous, context 4 previous, stream 4, symbol 4, grid 4x3, block 4x3, registers 4, static_shared 4, \
         dynamic_shared 4, local_memory 4",
    ),
    (
        9,
        "start 8 previous:end, end 8 same:start, bytes 8, graph_node 8, graph 4 previous, correlation 4 previous, \
         device 4 previous, context 4 previous, stream 4, value 4, memory_kind 4, known 4",
    ),
];

fn description(it: &Column) -> String {
    let count = if it.count == 1 { String::new() } else { format!("x{}", it.count) };
    let prediction = match it.prediction {
        Prediction::Previous => " previous".to_owned(),
        Prediction::Same(other) => format!(" same:{other}"),
        Prediction::PreviousOf(other) => format!(" previous:{other}"),
        Prediction::Kept => String::new(),
    };
    format!("{} {}{count}{prediction}", it.name, it.width)
}

impl RecordColumns {
    /// Returns the columns; `None` if one is malformed.
    pub(super) fn described(&self) -> Option<Vec<Described<'_>>> {
        self.1.iter().map(|it| Described::parse(it)).collect()
    }
}

impl<'a> Described<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut words = text.split(' ');
        let (name, size) = (words.next()?, words.next()?);
        let (width, count) = size.split_once('x').unwrap_or((size, "1"));
        let width = width.parse().ok().filter(|it| [4, 8].contains(it))?;
        let count = count.parse().ok().filter(|it| (1..=MOST_VALUES).contains(it))?;
        let prediction = match words.next().map(|it| it.split_once(':').unwrap_or((it, ""))) {
            None => Predicted::Kept,
            Some(("previous", "")) => Predicted::Previous,
            Some(("previous", other)) => Predicted::PreviousOf(other),
            Some(("same", other)) => Predicted::Same(other),
            Some(_) => return None,
        };
        words.next().is_none().then_some(Described { name, width, count, prediction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_sound_and_say_what_the_table_says() {
        assert!(Schema::default().is_sound() && Schema::now().is_sound());
        let now = Schema::now();
        let launch = now.kinds()[0].described().unwrap();
        assert_eq!(launch.len(), Launch::COLUMNS.len());
        assert_eq!((launch[0].name, launch[0].width, launch[0].prediction), ("start", 8, Predicted::PreviousOf("end")));
        assert!(launch.iter().any(|it| it.name == "grid" && it.count == 3));
        let json = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Schema>(&json).unwrap(), now);
    }

    #[test]
    fn what_a_file_may_not_claim_is_refused() {
        for bad in ["", "a", "a 3", "a 4x0", "a 4x65", "a 4 next", "a 4 previous b", "a 8x 4"] {
            assert_eq!(Described::parse(bad), None, "{bad}");
        }
        assert!(!Schema(Vec::new()).is_sound());
        let mut without_columns = Schema::now();
        without_columns.0[1].1.clear();
        assert!(!without_columns.is_sound());
        assert!(!Schema(vec![RecordColumns(2, Vec::new()), RecordColumns(1, Vec::new())]).is_sound());
    }
}
