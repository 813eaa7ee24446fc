//! The strings that events refer to, by the ids that handlers know them by.

use crate::context::Symbol;
use crate::fields_read::FieldsRead;
use rustc_hash::FxHashMap;
use xputrace_model::names::Names;
use xputrace_model::plan::{Activity, Call, Details, StringId};
use xputrace_wire::api::{FunctionId, Layer, error_name};
use xputrace_wire::device::original_symbol;
use xputrace_wire::events::host::{Common, Range};
use xputrace_wire::events::{Choice, HostEventRecord, Launch, Texts};

/// Returns the two readable forms of a mangled name, with and without template arguments, both
/// without parameters. Names that are not mangled are returned as they are.
pub type Demangle = fn(&str) -> (String, String);

/// String ids that events refer to.
pub(crate) struct Strings {
    demangle: Demangle,
    demangled: FxHashMap<StringId, Symbol>,
    calls: [u64; Call::COUNT],
    activities: [u64; Activity::COUNT],
    /// By number.
    functions: FxHashMap<u32, u64>,
    errors: FxHashMap<(Layer, i32), u64>,
    /// Texts of payloads that are floating-point numbers, by bits and type.
    payloads: FxHashMap<(i64, u32), u64>,
    /// For further ones.
    other_payload: u64,
    /// By number, of each [`Choice`].
    choices: Vec<Vec<u64>>,
    pub(crate) unnamed: StringId,
    pub(crate) reads: Details,
    pub(crate) activity_fields: FieldsRead,
    null_stream: u64,
    thread_stream: u64,
    created_stream: u64,
}

impl Strings {
    pub(crate) fn new(demangle: Demangle, reads: Details, activity_fields: FieldsRead, names: &mut Names) -> Self {
        let mut calls = [0; Call::COUNT];
        Call::ALL.iter().for_each(|it| calls[it.index()] = names.intern(it.name()).into());
        let of_choice =
            |it: &Choice, names: &mut Names| it.texts().iter().map(|text| names.intern(text).into()).collect();
        Strings {
            demangle,
            demangled: FxHashMap::default(),
            calls,
            activities: std::array::from_fn(|at| names.intern(Activity::ALL[at].name()).into()),
            functions: FxHashMap::default(),
            errors: FxHashMap::default(),
            payloads: FxHashMap::default(),
            other_payload: 0,
            choices: Choice::ALL.iter().map(|it| of_choice(it, names)).collect(),
            unnamed: names.intern("(launch record lost)"),
            reads,
            activity_fields,
            null_stream: names.intern("null").into(),
            thread_stream: names.intern("per-thread").into(),
            created_stream: names.intern("created").into(),
        }
    }

    /// Returns the name of a kind of call in scripts.
    #[inline]
    pub(crate) fn call(&self, kind: Call) -> u64 {
        self.calls[kind.index()]
    }

    /// Returns the name of a kind of activity in scripts.
    pub(crate) fn activity(&self, kind: Activity) -> u64 {
        self.activities[kind.index()]
    }

    /// Returns what the stream of a launch is, in scripts.
    pub(crate) fn stream_kind(&self, launch: &Launch) -> u64 {
        match launch.flags {
            it if it & Launch::NULL_STREAM != 0 => self.null_stream,
            it if it & Launch::THREAD_STREAM != 0 => self.thread_stream,
            _ => self.created_stream,
        }
    }

    /// Learns the names that a CUDA call refers to.
    pub(crate) fn learn(&mut self, common: &Common, names: &mut Names) {
        for number in [common.function, common.nested] {
            self.functions.entry(number).or_insert_with(|| {
                let function = FunctionId::of_number(number).and_then(FunctionId::function);
                function.map_or(0, |it| names.intern(it.name()).into())
            });
        }
        if common.result == 0 || self.errors.len() >= MOST_ERRORS {
            return;
        }
        let layer = layer_of(common.function);
        self.errors.entry((layer, common.result)).or_insert_with(|| match error_name(layer, common.result) {
            Some(name) => names.intern(name).into(),
            None => names.intern(&format!("error {}", common.result)).into(),
        });
    }

    /// Learns the text of a payload.
    pub(crate) fn learn_payload(&mut self, record: &HostEventRecord, names: &mut Names) {
        let HostEventRecord::Range(it) = record else { return };
        let key = (it.payload, it.payload_float);
        if it.payload_float == 0 || self.payloads.contains_key(&key) {
            return;
        }
        if self.payloads.len() >= MOST_PAYLOADS {
            self.other_payload = names.intern(UNKNOWN_PAYLOAD).into();
        } else if let Some(text) = it.payload_text() {
            self.payloads.insert(key, names.intern(&text).into());
        }
    }

    /// Returns the text of a payload; 0 unless it is a floating-point number.
    pub(crate) fn payload(&self, it: &Range) -> u64 {
        match it.payload_float {
            0 => 0,
            float => self.payloads.get(&(it.payload, float)).copied().unwrap_or(self.other_payload),
        }
    }

    /// Returns the name of a function; 0 if there is none.
    pub(crate) fn function(&self, number: u32) -> u64 {
        self.functions.get(&number).copied().unwrap_or(0)
    }

    /// Returns the name of the error that a function returned; 0 if it is unknown.
    pub(crate) fn error(&self, function: u32, result: i32) -> u64 {
        self.errors.get(&(layer_of(function), result)).copied().unwrap_or(0)
    }

    pub(crate) fn symbol(&mut self, text: &str, names: &mut Names) -> Symbol {
        let id = names.intern(text);
        let demangle = self.demangle;
        *self.demangled.entry(id).or_insert_with(|| {
            if let Some(path) = text.strip_prefix(RANGE_SEPARATOR) {
                return ranges(path, names);
            }
            let original = original_symbol(text);
            let (name, short_name) = demangle(original);
            Symbol {
                symbol: names.intern(original).into(),
                name: names.intern(&name).into(),
                short_name: names.intern(&short_name).into(),
                is_twin: original != text,
            }
        })
    }
}

const RANGE_SEPARATOR: char = xputrace_wire::record::RANGE_SEPARATOR as char;

/// Returns the innermost of these NVTX ranges as the name, and all of them as the symbol. There a `/` that is part of a
/// name has a `\` before it, and so has a `\`.
fn ranges(path: &str, names: &mut Names) -> Symbol {
    let innermost = path.rsplit(RANGE_SEPARATOR).next().unwrap_or(path);
    let name = names.intern(innermost).into();
    let escaped = path.replace('\\', r"\\").replace('/', r"\/");
    let symbol = names.intern(&escaped.replace(RANGE_SEPARATOR, "/")).into();
    Symbol { symbol, name, short_name: name, is_twin: false }
}

/// Maximum number of error codes with a name: a target may make any up.
const MOST_ERRORS: usize = 1024;
/// Likewise of different payloads.
const MOST_PAYLOADS: usize = 1 << 16;
const UNKNOWN_PAYLOAD: &str = "[unknown]";

fn layer_of(function: u32) -> Layer {
    FunctionId::of_number(function).map_or(Layer::Driver, FunctionId::layer)
}

impl Texts for Strings {
    #[inline]
    fn choice(&self, choice: Choice, number: u32) -> u64 {
        self.choices[choice as usize].get(number as usize).copied().unwrap_or(0)
    }
}
