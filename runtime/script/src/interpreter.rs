//! Runs the handlers that need all of Rhai, and creates the engine, which also runs the top level.

use crate::errors::{self, MOST_ELEMENTS, MOST_TEXT_MIB};
use crate::failure::NativeFailure;
use crate::handler::map_name;
use crate::host::{EventView, Host, RunNumber};
use crate::maps::{self, MapRef, TakenTable, Top};
use crate::operators::{self, Symbols};
use crate::session::SharedSession;
use crate::width::WIDTHS;
use crate::words::DISABLED;
use crate::{declare, event, units};
use rhai::{Array, Dynamic, Engine, EvalAltResult, Identifier, Map, OptimizationLevel, Position, Scope};
use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use xputrace_model::diagnostic::{Diagnostic, Label, Site};
use xputrace_model::loss::Loss;
use xputrace_model::output::{Member, Output};
use xputrace_model::plan::ClosureId;
use xputrace_model::schema::Unit;
use xputrace_model::style;
use xputrace_model::table::Value;

/// Maximum number of operations for the top level: about a second.
const STAGING_OPERATIONS: u64 = 5_000_000;
/// Maximum number of operations for one run of a handler.
const HANDLER_OPERATIONS: u64 = 50_000_000;

/// Maximum time for one run of a handler: operations on long lists take long.
const HANDLER_TIME: Duration = Duration::from_secs(60);
/// An interrupt ends a handler that has run for so long. Others finish what they print.
const INTERRUPTIBLE_AFTER: Duration = Duration::from_millis(500);
/// Operations from one look at the clock to the next. Each may take a millisecond.
const OPERATIONS_UNWATCHED: u64 = 64;

/// Returned by `print` when it has printed already; no text of a script starts with NUL.
const PRINTED: &str = "\0printed";

/// A script's interpreted handlers, ready to run.
pub struct Interpreter {
    engine: Engine,
    session: SharedSession,
    symbols: Symbols,
    watch: Rc<Watch>,
}

/// What ends a handler that runs too long.
struct Watch {
    started: Cell<Instant>,
    is_interrupted: Cell<fn() -> bool>,
}

impl Watch {
    fn new() -> Watch {
        Watch { started: Cell::new(Instant::now()), is_interrupted: Cell::new(|| false) }
    }

    /// Returns why the handler is to end now, if it is.
    fn look(&self, operations: u64) -> Option<NativeFailure> {
        if !operations.is_multiple_of(OPERATIONS_UNWATCHED) {
            return None;
        }
        let took = self.started.get().elapsed();
        let (code, message) = if took > HANDLER_TIME {
            ("too-long", format!("this handler ran for more than {} s; is it an endless loop?", HANDLER_TIME.as_secs()))
        } else if took > INTERRUPTIBLE_AFTER && (self.is_interrupted.get())() {
            ("interrupted", format!("an interrupt ended this handler, which had run for {} ms", took.as_millis()))
        } else {
            return None;
        };
        Some(NativeFailure { code, message, help: None })
    }
}

impl Interpreter {
    pub(crate) fn new(mut engine: Engine, session: SharedSession) -> Self {
        engine.set_max_operations(HANDLER_OPERATIONS);
        let symbols = Symbols::default();
        operators::register(&mut engine, &symbols);
        let watch = Rc::new(Watch::new());
        let watched = watch.clone();
        engine.on_progress(move |operations| watched.look(operations).map(Dynamic::from));
        Interpreter { engine, session, symbols, watch }
    }

    /// Ends a handler that has run for a while once `is_interrupted`.
    pub fn end_if(&mut self, is_interrupted: fn() -> bool) {
        self.watch.is_interrupted.set(is_interrupted);
    }

    /// Gives the handlers the run that they read and change. Prints what the top level printed
    /// earlier.
    pub fn bind(&mut self, host: Rc<RefCell<dyn Host>>) {
        let early = std::mem::take(&mut self.session.borrow_mut().early);
        early.into_iter().for_each(|it| host.borrow_mut().output(it));
        self.session.borrow_mut().host = Some(host);
    }

    /// Runs handler number `closure` (`Handler::interpreted`, `Probe::closure`); requires
    /// [`Interpreter::bind`]. `event` is the argument for handlers with a parameter.
    ///
    /// The error says what ended the handler, and at which line; it can be run again.
    #[expect(clippy::result_large_err, reason = "a handler's failure is rare, and is printed")]
    pub fn run(&mut self, closure: ClosureId, event: Option<&EventView>) -> Result<(), Diagnostic> {
        let Some(closure) = self.session.borrow().closures.get(closure.index()).cloned() else {
            let label = Label { file: Default::default(), span: 0..0, note: None };
            return Err(Diagnostic::error("handler", format!("there is no interpreted handler {}", closure.0), label));
        };
        let ast = self.session.borrow().files[closure.file.0 as usize].interpreted.ast.clone();
        let arguments: Vec<Dynamic> = match event {
            Some(event) if closure.takes_event => vec![Dynamic::from(event::EventValue::of(event, &self.symbols))],
            _ => Vec::new(),
        };
        self.watch.started.set(Instant::now());
        match closure.function.call::<Dynamic>(&self.engine, &ast, arguments) {
            Ok(_) => Ok(()),
            Err(error) if ended_itself(&error) => Ok(()),
            Err(error) => {
                let mut diagnostic = errors::diagnostic(&self.session.borrow(), closure.file, *error);
                if diagnostic.primary.span.is_empty() {
                    diagnostic.primary = closure.declared_at;
                }
                Err(diagnostic)
            }
        }
    }

    /// What ended a handler of events as a loss at its line, where it would end a compiled handler so:
    /// a missing value, or a division by zero.
    pub fn as_loss(&self, failure: &Diagnostic) -> Option<(Loss, Site)> {
        let loss = match failure.code {
            errors::MISSING_VALUE => Loss::MissingValue,
            errors::DIVISION_BY_ZERO => Loss::DivisionByZero,
            _ => return None,
        };
        Some((loss, self.session.borrow().site(&failure.primary)))
    }
}

/// Whether the handler called `exit`.
fn ended_itself(error: &EvalAltResult) -> bool {
    match error {
        EvalAltResult::ErrorInFunctionCall(_, _, inner, _) => ended_itself(inner),
        EvalAltResult::ErrorTerminated(why, _) => why.is_unit(),
        EvalAltResult::Exit(..) => true,
        _ => false,
    }
}

/// Creates an engine that knows every name available to scripts.
pub(crate) fn engine(session: &SharedSession) -> Engine {
    let mut engine = Engine::new();
    engine.set_optimization_level(OptimizationLevel::None);
    engine.set_strict_variables(true);
    engine.set_max_operations(STAGING_OPERATIONS);
    engine.set_max_call_levels(64);
    engine.set_max_expr_depths(128, 128);
    engine.set_max_string_size(MOST_TEXT_MIB << 20);
    engine.set_max_array_size(MOST_ELEMENTS);
    engine.set_max_map_size(1 << 16);
    for name in DISABLED {
        engine.disable_symbol(name);
    }
    resolve_maps(&mut engine, session);
    declare::register(&mut engine, session);
    maps::register(&mut engine, session);
    event::register(&mut engine);
    register_units(&mut engine, session);
    register_output(&mut engine, session);
    engine
}

/// Returns the scope with a text's maps: closures can only capture what is in the scope.
pub(crate) fn scope(session: &SharedSession, variables: &[String]) -> Scope<'static> {
    let mut scope = Scope::new();
    for variable in variables {
        if let Some(name) = map_name(variable) {
            scope.push(variable.clone(), MapRef::new(&name, session));
        }
    }
    scope
}

/// Resolves map names in function bodies and imported modules, which do not see the scope.
fn resolve_maps(engine: &mut Engine, session: &SharedSession) {
    let session = session.clone();
    #[expect(deprecated, reason = "not deprecated: Rhai marks what may change so, and its version is pinned")]
    engine.on_var(move |name, _, _| Ok(map_name(name).map(|name| Dynamic::from(MapRef::new(&name, &session)))));
}

/// Registers `100.ms`, `x / 1.us`, `99.hz` and `x.human`.
fn register_units(engine: &mut Engine, session: &SharedSession) {
    for (name, nanos) in units::NANOS {
        engine.register_get(*name, move |n: &mut f64| (*n * *nanos as f64).round() as i64);
    }
    for name in units::NANOS.iter().map(|it| it.0).chain(["hz"]) {
        engine.register_get(name, move |n: &mut i64| match units::whole(*n, name) {
            Some(nanos) => Ok(nanos),
            None => {
                let (message, help) = units::refusal(*n, name);
                NativeFailure::raise(if name == "hz" { "rate" } else { "overflow" }, message, Some(help))
            }
        });
    }
    for width in WIDTHS {
        engine.register_get(width.name, |n: &mut i64| width.of_integer(*n));
    }
    engine.register_get("hex", |n: &mut i64| style::hex(*n));
    register_padding(engine, session);
    let session = session.clone();
    // As Rhai names the function that reads a property; only such a function sees the unit that the integer carries.
    engine.register_raw_fn("get$human", [TypeId::of::<i64>()], move |_, args| {
        let (n, unit) = (args[0].as_int().unwrap_or_default(), units::of_tagged(args[0]));
        match maps::host(&session) {
            Ok(host) if unit != Unit::None => Ok(host.borrow_mut().text(&Value::Int(n), unit, true)),
            _ => Ok(n.to_string()),
        }
    });
}

/// Registers `x.pad(n)`.
fn register_padding(engine: &mut Engine, session: &SharedSession) {
    let session = session.clone();
    engine.register_fn("pad", move |value: Dynamic, columns: i64| -> Result<String, Box<EvalAltResult>> {
        Ok(style::padded(&maps::text(&session, &value)?, columns))
    });
}

fn register_output(engine: &mut Engine, session: &SharedSession) {
    // Rhai passes `print`'s result to `on_print`, and already knows `print` for its own types.
    let shared = session.clone();
    engine.on_print(move |text| {
        if text != PRINTED {
            output(&shared, Output::print(text));
        }
    });
    let shared = session.clone();
    engine.register_fn("print", move |value: Dynamic| print(&shared, &value));
    for name in ["print", "to_string"] {
        engine.register_fn(name, |(): ()| "-".to_owned());
    }
    engine.register_fn("print", |_: Dynamic, _: Dynamic| -> Result<(), Box<EvalAltResult>> {
        let help = "write `print(`…${x}…`)`, or `print(@map.top(5))`";
        NativeFailure::raise("wrong-arguments", "`print` takes one value", Some(help))
    });
    let shared = session.clone();
    engine.register_fn("flamegraph", move |path: &str, map: MapRef| {
        let drawn = maps::host(&shared)?.borrow_mut().flamegraph(path, &map.name);
        drawn.or_else(|it| NativeFailure::raise("flamegraph", it, None))
    });
    engine.register_fn("flamegraph", |_: Dynamic, _: Dynamic| -> Result<(), Box<EvalAltResult>> {
        let help = "write `flamegraph(\"gpu.svg\", @gpu)`";
        NativeFailure::raise("wrong-arguments", "`flamegraph` takes a file name and a map", Some(help))
    });
    engine.register_fn("str", |value: Dynamic| value);
    let shared = session.clone();
    engine.register_fn("fit", move |texts: Array, beside: i64| -> Result<Array, Box<EvalAltResult>> {
        let texts = texts.iter().map(|it| maps::text(&shared, it)).collect::<Result<Vec<_>, _>>()?;
        let fitted = maps::host(&shared)?.borrow_mut().fit(&texts, usize::try_from(beside).unwrap_or(0));
        Ok(fitted.into_iter().map(Dynamic::from).collect())
    });
    let shared = session.clone();
    engine.register_fn("exit", move |code: i64| exit(&shared, code));
    let shared = session.clone();
    engine.register_fn("exit", move || exit(&shared, 0));
    let shared = session.clone();
    engine.register_fn("gpu_busy_ns", move |uuid: &str| -> Result<Dynamic, Box<EvalAltResult>> {
        let help = "call it in a handler: `end(|| print(gpu_busy_ns(uuid)))`";
        let host = maps::host_for(&shared, "there are no numbers about the run yet", help)?;
        let busy = host.borrow_mut().busy_nanos_of(uuid);
        Ok(busy.map_or(Dynamic::UNIT, Dynamic::from))
    });
    for number in RunNumber::ALL {
        let (shared, name) = (session.clone(), number.name());
        engine.register_fn(name, move || {
            let help = format!("call it in a handler: `end(|| print({name}()))`");
            let host = maps::host_for(&shared, "there are no numbers about the run yet", &help)?;
            let value = host.borrow_mut().number(*number).unwrap_or(Value::Missing);
            Ok::<_, Box<EvalAltResult>>(maps::to_dynamic(value))
        });
    }
}

/// Prints a map as a table; returns the text of anything else for `on_print`.
fn print(session: &SharedSession, value: &Dynamic) -> Result<String, Box<EvalAltResult>> {
    if let Some(taken) = value.clone().try_cast::<TakenTable>() {
        output(session, Output::table(taken.0, None));
        return Ok(PRINTED.to_owned());
    }
    let (map, top) = match (value.clone().try_cast::<MapRef>(), value.clone().try_cast::<Top>()) {
        (Some(map), _) => (Some(map), None),
        (_, Some(top)) => (Some(top.map), Some(top.n)),
        _ => (None, None),
    };
    if let Some(object) = value.read_lock::<Map>() {
        output(session, Output::Object(members(session, &object)?));
        return Ok(PRINTED.to_owned());
    }
    let Some(map) = map else { return maps::text(session, value) };
    let shown = map.table()?.map_or_else(|| Output::empty(&map.name), |table| Output::table(table, top));
    output(session, shown);
    Ok(PRINTED.to_owned())
}

/// Returns the members of a printed `#{…}`. Lists and objects in it are texts.
fn members(session: &SharedSession, object: &Map) -> Result<Vec<Member>, Box<EvalAltResult>> {
    let member = |(name, it): (&Identifier, &Dynamic)| {
        let value = match maps::from_dynamic(it) {
            Ok(value) => value,
            Err(_) => Value::Str(maps::text(session, it)?.into()),
        };
        Ok(Member { name: name.to_string(), value, unit: units::of_tagged(it) })
    };
    object.iter().map(member).collect()
}

/// Passes an output to the host, or keeps it until there is one.
fn output(session: &SharedSession, out: Output) {
    let host = session.borrow().host.clone();
    match host {
        Some(host) => host.borrow_mut().output(out),
        None => session.borrow_mut().early.push(out),
    }
}

/// Requests the end of the run and ends the handler.
fn exit(session: &SharedSession, code: i64) -> Result<(), Box<EvalAltResult>> {
    const HELP: &str = "end it in a handler: `interval(10.s, || exit(0))`; `--for 10s` ends a run too";
    maps::host_for(session, "there is no run to end yet", HELP)?.borrow_mut().exit(code);
    Err(Box::new(EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE)))
}
