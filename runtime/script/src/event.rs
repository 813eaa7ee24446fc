//! A GPU event as a value of the interpreter, for `interpret(|k| …)`; its fields follow the schema.

use crate::failure::NativeFailure;
use crate::host::EventView;
use crate::maps::{Stack, to_dynamic};
use crate::operators::Symbols;
use crate::units;
use rhai::{Dynamic, Engine, EvalAltResult, FuncRegistration, ImmutableString, Module, Position};
use rustc_hash::FxHashMap;
use std::any::TypeId;
use std::rc::Rc;
use std::sync::Arc;
use xputrace_model::context::{GpuContext, word};
use xputrace_model::diagnostic::nearest;
use xputrace_model::schema::{Event, Field, FieldType, From};
use xputrace_model::stack::StackKey;
use xputrace_model::table::Value;
use xputrace_model::text;

/// An event or its launch. Cheap to copy.
#[derive(Clone)]
pub(crate) struct EventValue {
    /// The fields that it has: those of a kernel or of a launch.
    fields: &'static [Field],
    data: Rc<Data>,
}

struct Data {
    words: GpuContext,
    /// The text of each id in `words`.
    names: FxHashMap<u64, Arc<str>>,
    symbols: Symbols,
    /// Names of the parameters of a CUDA call, in the order of their words.
    arguments: Vec<String>,
}

/// `a.args`: parameters of a CUDA call.
#[derive(Clone)]
struct CallArguments(Rc<Data>);

impl CallArguments {
    fn get(&self, name: &str) -> Result<Dynamic, Box<EvalAltResult>> {
        let Data { words, arguments, .. } = &*self.0;
        match arguments.iter().position(|it| it == name) {
            Some(at) if words[word::call::HAS_ARGUMENT + at] == 0 => Ok(Dynamic::UNIT),
            Some(at) => Ok(Dynamic::from_int(words[word::call::ARGUMENT + at] as i64)),
            None => {
                let help = format!("read it from the event where the handler names it: `a.args.{name}`");
                NativeFailure::raise("unknown-field", format!("the parameter `{name}` is not at hand"), Some(&help))
            }
        }
    }
}

/// `k.grid`: three sizes.
#[derive(Clone, Copy)]
struct Dim3([i64; 3]);

impl EventValue {
    /// Copies an event out of the run's buffers.
    pub(crate) fn of(view: &EventView, symbols: &Symbols) -> Self {
        let mut names = FxHashMap::default();
        add_names(view, view.event.fields(), &mut names);
        EventValue {
            fields: view.event.fields(),
            data: Rc::new(Data {
                words: *view.words,
                names,
                symbols: symbols.clone(),
                arguments: view.arguments.to_vec(),
            }),
        }
    }

    fn get(&self, name: &str) -> Result<Dynamic, Box<EvalAltResult>> {
        match self.fields.iter().find(|it| it.name == name) {
            Some(field) => Ok(self.field(field)),
            None => {
                let near = nearest(name, self.fields.iter().map(|it| it.name));
                let help = match near {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => {
                        format!("there are {}", self.fields.iter().map(|it| it.name).collect::<Vec<_>>().join(", "))
                    }
                };
                NativeFailure::raise("unknown-field", format!("this event has no field `{name}`"), Some(&help))
            }
        }
    }

    fn field(&self, field: &Field) -> Dynamic {
        let words = &self.data.words;
        let at = match field.from {
            From::Word(at) => at,
            From::Optional { flag, value } if words[flag] != 0 => value,
            _ => return Dynamic::UNIT,
        };
        match field.kind {
            FieldType::Int => units::tagged(words[at] as i64, field.unit),
            FieldType::Bool => Dynamic::from(words[at] != 0),
            FieldType::Name => match self.data.names.get(&words[at]) {
                Some(text) => self.tagged(field, Dynamic::from(ImmutableString::from(&**text))),
                None => Dynamic::UNIT,
            },
            FieldType::Comm => Dynamic::from(text::of_words(words[at], words[at + 1])),
            FieldType::Stack => Dynamic::from(Stack(StackKey::from_word(words[at]))),
            FieldType::Dim3 => Dynamic::from(Dim3([words[at] as i64, words[at + 1] as i64, words[at + 2] as i64])),
            FieldType::Launch if words[word::JOINED] != 0 => {
                Dynamic::from(EventValue { fields: Event::Launch.fields(), data: self.data.clone() })
            }
            FieldType::Launch => no_launch(),
            FieldType::Parts(fields) => Dynamic::from(EventValue { fields, data: self.data.clone() }),
            FieldType::Entry => Dynamic::UNIT,
            FieldType::Arguments => Dynamic::from(CallArguments(self.data.clone())),
        }
    }
}

impl EventValue {
    /// Makes a kernel's name equal to its mangled form too.
    fn tagged(&self, field: &Field, mut text: Dynamic) -> Dynamic {
        let symbol = self.fields.iter().find(|it| field.name == "name" && it.name == "symbol");
        if let Some(id) = symbol.and_then(|it| it.from.word()).map(|at| self.data.words[at])
            && let Some(symbol) = self.data.names.get(&id)
        {
            text.set_tag(self.data.symbols.tag(id, symbol));
        }
        text
    }
}

/// Adds the texts of these fields and of those below them.
fn add_names(view: &EventView, fields: &[Field], names: &mut FxHashMap<u64, Arc<str>>) {
    for field in fields {
        add_names(view, field.below().unwrap_or_default(), names);
        if field.kind == FieldType::Name
            && let Some(at) = field.from.word()
            && let Some(text) = (view.strings)(view.words[at])
        {
            names.insert(view.words[at], text);
        }
    }
}

/// The tag of the missing value that stands for a launch that is not known.
const NO_LAUNCH: i32 = 1;

fn no_launch() -> Dynamic {
    let mut launch = Dynamic::UNIT;
    launch.set_tag(NO_LAUNCH);
    launch
}

/// A handler that tests `.launch` sees events without one: its fields are missing then too. Other missing
/// values have no fields.
fn field_of_missing(value: &Dynamic, field: &str) -> Result<(), Box<EvalAltResult>> {
    if value.tag() == NO_LAUNCH {
        return Ok(());
    }
    // Rhai's own words, which `errors` reads.
    let text = format!("Unknown property '{field}' - a getter is not registered for type '()'");
    Err(EvalAltResult::ErrorDotExpr(text, Position::NONE).into())
}

pub(crate) fn register(engine: &mut Engine) {
    engine.register_type_with_name::<EventValue>("event");
    engine.register_type_with_name::<Dim3>("size");
    engine.register_type_with_name::<CallArguments>("arguments");
    let mut module = Module::new();
    FuncRegistration::new_index_getter()
        .set_into_module(&mut module, |arguments: &mut CallArguments, name: ImmutableString| arguments.get(&name));
    // Rhai asks the index getter for properties without a registered getter.
    FuncRegistration::new_index_getter()
        .set_into_module(&mut module, |event: &mut EventValue, name: ImmutableString| event.get(&name));
    engine.register_global_module(module.into());
    // Every Rhai value has a `tag` of its own.
    engine.register_get("tag", |event: &mut EventValue| event.get("tag"));
    for field in Event::Launch.fields() {
        // As Rhai names the function that reads a property.
        let name = format!("get${}", field.name);
        engine.register_raw_fn(name, [TypeId::of::<()>()], |_, args| field_of_missing(&*args[0], field.name));
    }
    for (i, name) in ["x", "y", "z"].into_iter().enumerate() {
        engine.register_get(name, move |size: &mut Dim3| size.0[i]);
    }
    engine.register_get("size", |size: &mut Dim3| size.0.iter().fold(1i64, |a, b| a.wrapping_mul(*b)));
    engine.register_fn("to_string", |size: &mut Dim3| format!("({}, {}, {})", size.0[0], size.0[1], size.0[2]));
    engine.register_fn("to_string", |event: &mut EventValue| match event.get("name") {
        Ok(name) => name.to_string(),
        Err(_) => to_dynamic(Value::Missing).to_string(),
    });
}
