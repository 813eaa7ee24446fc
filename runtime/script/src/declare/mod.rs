//! Declaring functions: `kernel(…)`, `uprobe(…)`, `map(…)`, `arg(…)` and so on.
//!
//! Each accepts any number of values of any type, so that we report mistakes in our own words and
//! still check the rest of the script.

mod call;
mod captured;
mod options;
mod targets;

use crate::arguments::{self, ArgumentSpec, ArgumentValue};
use crate::handler::{DeclaredProbe, Handler, MapDeclaration};
use crate::maps::{MapRef, kind_of};
use crate::session::{Body, Closure, Session, SharedSession};
use crate::source::Clocks;
use crate::values::{Interpreted, ProbeRef, Reported};
use crate::words::{ENABLE, SWITCHING, can_be_interpreted, can_be_switched, function, is_interpreted};
use crate::{lexer, mistakes, units};
use call::{Declaring, Report, each_arity, text_of};
use captured::{captured, probes_of};
use options::take_options;
use rhai::{Dynamic, Engine, FnPtr, Map, NativeCallContext};
pub use targets::PATTERN;
use targets::take_targets;
use xputrace_model::plan::{ClosureId, ProbePlace};
use xputrace_model::schema::Event;

/// Limits for the size of the stack table.
const FEWEST_STACKS: i64 = 1024;
const MOST_STACKS: i64 = 1 << 20;

pub(crate) fn register(engine: &mut Engine, session: &SharedSession) {
    for event in Event::all() {
        each_arity(engine, session, function(event), move |call| Dynamic::from(declare(call, event)));
    }
    each_arity(engine, session, "map", declare_map);
    each_arity(engine, session, "stacks", declare_stacks);
    each_arity(engine, session, "arg", argument);
    each_arity(engine, session, "interpret", interpret);
    each_arity(engine, session, "loaded_ns", |call| of_clocks(call, |it| it.monotonic_ns));
    each_arity(engine, session, "clock_ahead_ns", |call| of_clocks(call, |it| it.wall_ahead_ns));
    register_probe(engine, session);
}

/// Declares the handlers of one call. Returns a probe value even after a mistake.
fn declare(call: &Declaring, event: Event) -> ProbeRef {
    let mut arguments = call.arguments.clone();
    let handler = take_handler(call, event, &mut arguments);
    if handler.is_none() {
        return ProbeRef::none(event.name());
    }
    let targets = take_targets(call, event, &mut arguments);
    let options = take_options(call, event, &mut arguments);
    if !arguments.is_empty() && targets.is_some() {
        let message = format!("`{}` does not take {}", event.name(), kind_of(&arguments[0]));
        call.error("wrong-arguments", message).help(format!("write `{}`", event.about().usage)).report(call);
    }
    let name = targets.as_ref().and_then(|it| it.first()).map_or(event.name(), |it| &*it.1).to_owned();
    let probe = ProbeRef::none(&name);
    let (Some((function, wrapped)), Some(targets)) = (handler, targets) else { return probe };
    let Some(body) = body_of(call, event, &function, wrapped) else { return probe };
    let interpreted = (wrapped || is_interpreted(event)).then(|| {
        let mut session = call.session.borrow_mut();
        session.closures.push(Closure {
            function: function.clone(),
            file: body.file,
            declared_at: call.at.clone(),
            takes_event: !body.parameters.is_empty(),
        });
        ClosureId::at(session.closures.len() - 1)
    });
    let mut session = call.session.borrow_mut();
    let site = session.site(&call.at);
    let captured = captured(&session, &body, &function);
    let holds = probes_of(&function);
    let declared = session.probes.len() as u32;
    session.probes.push(DeclaredProbe { event, name, begins_on: true, declared_at: call.at.clone() });
    let probe = ProbeRef { declared, ..probe };
    for (target, name) in targets {
        session.handlers.push(Handler {
            event,
            target: if event == Event::Launch { ProbePlace::Calls(options.calls()) } else { target },
            name,
            options: options.clone(),
            parameter: body.parameters.first().cloned().unwrap_or_default(),
            body: body.statements.clone(),
            captured: captured.clone(),
            declared,
            holds: holds.clone(),
            file: body.file,
            site,
            declared_at: call.at.clone(),
            interpreted,
        });
    }
    probe
}

/// Takes the last argument: a closure, or one in `interpret(…)`.
fn take_handler(call: &Declaring, event: Event, arguments: &mut Vec<Dynamic>) -> Option<(FnPtr, bool)> {
    let last = arguments.pop();
    let found = match last {
        Some(ref value) if value.is_fnptr() => value.clone().try_cast::<FnPtr>().map(|it| (it, false)),
        Some(ref value) => value.clone().try_cast::<Interpreted>().map(|it| (it.0, true)),
        None => None,
    };
    if found.is_none() && !last.as_ref().is_some_and(|it| it.is::<Reported>()) {
        let got = match &last {
            Some(value) => format!(", not {}", kind_of(value)),
            None => String::new(),
        };
        let message = format!("`{}` takes a handler as its last argument{got}", event.name());
        call.error("missing-handler", message).help(format!("write `{}`", event.about().usage)).report(call);
    }
    found
}

/// Returns the handler's syntax if its parameters are right.
fn body_of(call: &Declaring, event: Event, function: &FnPtr, wrapped: bool) -> Option<Body> {
    let body = call.session.borrow().body(function, call.caller);
    let Some(body) = body else {
        let message = format!("`{}` cannot be a handler", function.fn_name());
        call.error("handler-function", message).help(format!("write `{}`", event.about().usage)).report(call);
        return None;
    };
    let most = usize::from(!is_interpreted(event));
    if body.parameters.len() > most {
        let takes = if most == 0 { "no parameter" } else { "one parameter" };
        let message = format!("a handler of `{}` takes {takes}, not {}", event.name(), body.parameters.len());
        call.error("handler-parameters", message).help(format!("write `{}`", event.about().usage)).report(call);
        return None;
    }
    if wrapped && matches!(event, Event::Device(_)) {
        let message = format!("a handler of `{}` runs on the GPU, where there is no interpreter", event.name());
        call.error("interpret", message).help(format!("write `{}`", event.about().usage)).report(call);
        return None;
    }
    if wrapped && !can_be_interpreted(event) {
        let message = format!("interpreted handlers of `{}` are not implemented yet", event.name());
        call.error("not-yet", message)
            .help("collect data in a map here, and do the rest in `interval` or `end`")
            .report(call);
        return None;
    }
    Some(body)
}

/// Handles `map(#{name: "calls", size: 1000, evict: true})`.
fn declare_map(call: &Declaring) -> Dynamic {
    let help = "write `map(#{name: \"calls\", size: 100_000, evict: true})`";
    let declared = match call.arguments.as_slice() {
        [only] if only.is_map() => map_declaration(call, &only.clone().cast::<Map>()),
        _ => Err("`map` takes one `#{…}`".to_owned()),
    };
    match declared {
        Ok(declaration) => {
            let reference = MapRef::new(&declaration.name, call.session);
            call.session.borrow_mut().maps.push(declaration);
            Dynamic::from(reference)
        }
        Err(message) => {
            call.error("map-declaration", message).help(help).report(call);
            Dynamic::UNIT
        }
    }
}

fn map_declaration(call: &Declaring, map: &Map) -> Result<MapDeclaration, String> {
    let known = ["name", "size", "evict"];
    if let Some(unknown) = map.keys().find(|it| !known.contains(&it.as_str())) {
        return Err(format!("`map` has no option `{unknown}`; it has name, size and evict"));
    }
    let name = map.get("name").and_then(text_of).ok_or("a declared map needs `name: \"…\"`")?;
    let bare = name.trim_start_matches('@');
    let letters = bare.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
    if !letters || bare.starts_with(|c: char| c == '_' || c.is_ascii_digit()) {
        return Err(format!("`{name}` is not a valid map name: use letters, digits and `_`, starting with a letter"));
    }
    let size = match map.get("size").map(|it| it.as_int()) {
        None => None,
        Some(Ok(n)) if (1..=1 << 24).contains(&n) => Some(n as u32),
        Some(_) => return Err("`size` is a number of elements from 1 to 16,777,216".to_owned()),
    };
    let evict = match map.get("evict").map(|it| it.as_bool()) {
        None => false,
        Some(Ok(on)) => on,
        Some(Err(_)) => return Err("`evict` is true or false".to_owned()),
    };
    let name = format!("@{bare}");
    if call.session.borrow().maps.iter().any(|it| it.name == name) {
        return Err(format!("`{name}` is declared twice"));
    }
    Ok(MapDeclaration { name, size, evict, declared_at: call.at.clone() })
}

/// Handles `stacks(65_536)`: the number of distinct CPU-probe stacks to keep.
fn declare_stacks(call: &Declaring) -> Dynamic {
    match call.arguments.as_slice() {
        [n] if n.as_int().is_ok_and(|it| (FEWEST_STACKS..=MOST_STACKS).contains(&it)) => {
            call.session.borrow_mut().stacks = n.as_int().ok().map(|it| it as u32);
        }
        _ => call
            .error("stacks", format!("`stacks` takes a number from {FEWEST_STACKS} to {MOST_STACKS}"))
            .help("write `stacks(65_536);`: each takes about 1 KiB")
            .report(call),
    }
    Dynamic::UNIT
}

/// Handles `arg("ms", 100, "kernels longer than this")`: returns the default or the command line's
/// value.
fn argument(call: &Declaring) -> Dynamic {
    let (name, default, help, least) = match call.arguments.as_slice() {
        [name, default] => (text_of(name), value_of(call, default), Some(String::new()), Some(i64::MIN)),
        [name, default, help] => (text_of(name), value_of(call, default), text_of(help), Some(i64::MIN)),
        [name, default, help, least] => (text_of(name), value_of(call, default), text_of(help), least.as_int().ok()),
        _ => (None, None, None, None),
    };
    let (Some(name), Some(default), Some(help), Some(least)) = (name, default, help, least) else {
        call.error("argument", "`arg` takes a name, a default (integer, string or boolean) and a help text")
            .help("write `arg(\"ms\", 100, \"kernels longer than this\")`")
            .report(call);
        return call.arguments.get(1).cloned().unwrap_or(Dynamic::UNIT);
    };
    if let Some(problem) = argument_problem(call, &name) {
        call.error("argument-clash", problem).help("give it another name").report(call);
        return dynamic(&default);
    }
    let given = call.session.borrow_mut().arguments.take(&name, &default);
    let given = given.and_then(|it| arguments::at_least(least, &name, it));
    let spec = ArgumentSpec { name, default: default.clone(), help, declared_at: call.at.clone() };
    call.session.borrow_mut().declared_arguments.push(spec);
    match given {
        Ok(given) => dynamic(&given.unwrap_or(default)),
        Err(refused) => {
            call.error("argument-value", refused.message).help(refused.help).report(call);
            dynamic(&default)
        }
    }
}

/// Reads the machine's clocks, when the script is loaded.
fn of_clocks(call: &Declaring, read: fn(&Clocks) -> i64) -> Dynamic {
    let clocks = call.session.borrow().clocks;
    match clocks {
        Some(clocks) if call.arguments.is_empty() => return Dynamic::from_int(read(&clocks)),
        Some(_) => call.error("argument", "this function takes no arguments").report(call),
        None => call
            .error("no-clock", "the clocks of the machine that a recording was made on are not known")
            .help("leave this out in a replay: times of events count from its start")
            .report(call),
    }
    Dynamic::from_int(0)
}

fn argument_problem(call: &Declaring, name: &str) -> Option<String> {
    let letters = name.chars().all(|c| c == '-' || c == '_' || c.is_ascii_alphanumeric());
    if name.is_empty() || !letters || name.starts_with('-') {
        return Some(format!(
            "`{name}` is not a valid argument name: use letters, digits, `-` and `_`, without leading dashes"
        ));
    }
    if arguments::TAKEN.contains(&name) {
        return Some(format!("`--{name}` is an option of xputrace itself"));
    }
    let twice = call.session.borrow().declared_arguments.iter().any(|it| it.name == name);
    twice.then(|| format!("the argument `{name}` is declared twice"))
}

/// Returns an argument's default. Rhai sees times as integers; only the script's text shows that
/// one is meant.
fn value_of(call: &Declaring, value: &Dynamic) -> Option<ArgumentValue> {
    if let Ok(n) = value.as_int() {
        let session = call.session.borrow();
        let file = session.files.get(call.at.file.0 as usize);
        Some(match file.and_then(|it| it.tokenized.second_argument(call.at.span.end)) {
            Some(lexer::Written::Time(written)) => ArgumentValue::Time { nanos: n, written },
            Some(lexer::Written::Computed) => {
                ArgumentValue::Time { nanos: n, written: units::shown(n).replace(' ', "") }
            }
            None => ArgumentValue::Int(n),
        })
    } else if let Ok(on) = value.as_bool() {
        Some(ArgumentValue::Bool(on))
    } else {
        text_of(value).map(ArgumentValue::Str)
    }
}

fn dynamic(value: &ArgumentValue) -> Dynamic {
    match value {
        ArgumentValue::Int(n) | ArgumentValue::Time { nanos: n, .. } => Dynamic::from_int(*n),
        ArgumentValue::Bool(on) => Dynamic::from_bool(*on),
        ArgumentValue::Str(text) => Dynamic::from(text.clone()),
    }
}

fn interpret(call: &Declaring) -> Dynamic {
    match call.arguments.as_slice() {
        [only] if only.is_fnptr() => Dynamic::from(Interpreted(only.clone().cast::<FnPtr>())),
        _ => {
            call.error("interpret", "`interpret` takes a handler and nothing else")
                .help("write `kernel(interpret(|k| …))`")
                .report(call);
            Dynamic::from(Reported)
        }
    }
}

fn register_probe(engine: &mut Engine, session: &SharedSession) {
    engine.register_type_with_name::<ProbeRef>("probe");
    engine.register_get("name", |probe: &mut ProbeRef| probe.name.clone());
    for name in SWITCHING {
        let session = session.clone();
        engine.register_fn(name, move |ctx: NativeCallContext, probe: &mut ProbeRef| {
            let host = session.borrow().host.clone();
            match host {
                Some(host) => host.borrow_mut().switch(probe.declared, name == ENABLE),
                None => begin_as(&mut session.borrow_mut(), &ctx, probe, name == ENABLE),
            }
        });
    }
}

/// Handles `probe.disable()` and `probe.enable()` at the top level.
fn begin_as(session: &mut Session, ctx: &NativeCallContext, probe: &ProbeRef, on: bool) {
    let at = session.call_label(ctx);
    let Some(declared) = session.probes.get_mut(probe.declared as usize) else { return };
    declared.begins_on = on;
    if !can_be_switched(declared.event) {
        let diagnostic = mistakes::never_switched(declared.event, at);
        session.diagnostics.push(diagnostic);
    }
}
