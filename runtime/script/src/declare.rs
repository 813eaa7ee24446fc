//! Declaring functions: `kernel(…)`, `uprobe(…)`, `map(…)`, `arg(…)` and so on.
//!
//! Each accepts any number of values of any type, so that we report mistakes in our own words and
//! still check the rest of the script.

use crate::errors::Failure;
use crate::handler::{Captured, DeclaredProbe, Function, Handler, MOST_LISTED, MapDeclaration, Options, Per, map_name};
use crate::lexer::MODULE_FUNCTION;
use crate::maps::MapRef;
use crate::session::{Body, Closure, Session, Shared};
use crate::source::Clocks;
use crate::stage::{ArgumentSpec, ArgumentValue};
use crate::{arguments, lexer, units};
use rhai::{Array, Dynamic, Engine, FnPtr, ImmutableString, Map, NativeCallContext};
use std::any::TypeId;
use xputrace_cuda_calls::{Function as CudaFunction, Functions, functions};
use xputrace_model::api::functions_like;
use xputrace_model::catalog::split_function;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, nearest};
use xputrace_model::plan::{
    Call as LaunchCall, Calls, ClosureId, DeviceWay, KernelPattern, PatternOfHandler, ProbeScope, ReturnWay, Target,
    UsdtPattern,
};
use xputrace_model::schema::{DeviceEvent, Event, HostEvent};

/// Maximum number of arguments that declaring functions are registered for; beyond it Rhai reports
/// the error.
const MOST_ARGUMENTS: usize = 6;
/// Maximum samples per second; a higher rate is surely a mistake.
const MOST_SAMPLES: i64 = 20_000;
/// Limits for the size of the stack table.
/// Code of the error for a pattern that is not understood.
pub const PATTERN: &str = "pattern";
const FEWEST_STACKS: i64 = 1024;
const MOST_STACKS: i64 = 1 << 20;
/// How deep in lists of lists a handler may hold a probe. A list may contain itself.
const MOST_NESTED: usize = 8;
/// Shortest interval, in nanoseconds.
const SHORTEST_INTERVAL: i64 = 1_000_000;

/// Returns the names of all functions registered here, as scripts write them.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    Event::all().map(Event::name).chain(["map", "stacks", "arg", "interpret", "loaded_ns", "clock_ahead_ns"])
}

/// Returns what scripts write for a function of Rhai's.
pub(crate) fn as_written(function: &str) -> &str {
    if function == MODULE_FUNCTION { HostEvent::Module.name() } else { function }
}

/// Returns the function of Rhai's that declares a handler of an event.
fn function(event: Event) -> &'static str {
    match event {
        Event::Host(HostEvent::Module) => MODULE_FUNCTION,
        other => other.name(),
    }
}

pub(crate) fn register(engine: &mut Engine, session: &Shared) {
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

/// A declared probe, as scripts hold it; with several targets it has the first one's name.
#[derive(Clone, Debug)]
pub(crate) struct ProbeRef {
    name: ImmutableString,
    /// Its position in [`Session::probes`]; beyond them after a mistake.
    declared: u32,
}

impl ProbeRef {
    /// Returned after a mistake, which has been reported.
    fn none(name: &str) -> Self {
        ProbeRef { name: name.into(), declared: u32::MAX }
    }
}

/// Returned by `interpret` after misuse, which has been reported.
#[derive(Clone, Debug)]
struct Reported;

/// A handler wrapped in `interpret(…)`.
#[derive(Clone, Debug)]
struct Interpreted(FnPtr);

/// A call of a declaring function.
struct Call<'a> {
    session: &'a Shared,
    at: Label,
    caller: FileId,
    arguments: Vec<Dynamic>,
}

fn each_arity(engine: &mut Engine, session: &Shared, name: &str, declare: impl Fn(&Call) -> Dynamic + Clone + 'static) {
    for arity in 0..=MOST_ARGUMENTS {
        let (session, declare) = (session.clone(), declare.clone());
        let types = vec![TypeId::of::<Dynamic>(); arity];
        engine.register_raw_fn(name, types, move |ctx: NativeCallContext, arguments| {
            // Reached where the script's text does not show that a handler makes the call.
            if session.borrow().host.is_some() {
                let message = format!("`{}` cannot be called in a handler", ctx.fn_name());
                return Failure::raise("late-declaration", message, Some("call it at the top level of the script"));
            }
            let call = Call {
                session: &session,
                at: session.borrow().call_label(&ctx),
                caller: session.borrow().caller(&ctx),
                // Captured variables are shared with the script; their values as of now count.
                arguments: arguments.iter_mut().map(|it| it.flatten_clone()).collect(),
            };
            Ok(declare(&call))
        });
    }
}

/// Completes and reports a diagnostic.
trait Report {
    fn report(self, call: &Call);
}

impl Report for Diagnostic {
    fn report(self, call: &Call) {
        call.session.borrow_mut().diagnostics.push(self);
    }
}

impl Call<'_> {
    fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message, self.at.clone())
    }

    /// Returns the place of an option's name in the call's text; that of the call where the script computes its options.
    fn label_of_option(&self, name: &str) -> Label {
        let session = self.session.borrow();
        let source = session.sources.files.get(self.at.file.0 as usize);
        let text = source.and_then(|it| it.text.get(self.at.span.end..));
        match text.and_then(|it| option_in(it, name)) {
            Some(at) => {
                let start = self.at.span.end + at;
                Label { span: start..start + name.len(), ..self.at.clone() }
            }
            None => self.at.clone(),
        }
    }
}

/// Declares the handlers of one call. Returns a probe value even after a mistake.
fn declare(call: &Call, event: Event) -> ProbeRef {
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
            target: if event == Event::Launch { Target::Calls(options.calls()) } else { target },
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

fn is_interpreted(event: Event) -> bool {
    matches!(event, Event::Interval | Event::Begin | Event::End)
}

/// Whether the interpreter can run handlers of this event: it is in the tracer.
pub(crate) fn can_be_interpreted(event: Event) -> bool {
    is_interpreted(event) || event.is_gpu() && !matches!(event, Event::Device(_))
}

/// Takes the last argument: a closure, or one in `interpret(…)`.
fn take_handler(call: &Call, event: Event, arguments: &mut Vec<Dynamic>) -> Option<(FnPtr, bool)> {
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
fn body_of(call: &Call, event: Event, function: &FnPtr, wrapped: bool) -> Option<Body> {
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

fn captured(session: &Session, body: &Body, function: &FnPtr) -> Vec<(String, Captured)> {
    let values = body.captures.iter().zip(function.curry());
    values
        .filter(|(name, _)| map_name(name).is_none())
        .map(|(name, value)| (name.clone(), constant(session, body.file, value, MOST_NESTED)))
        .collect()
}

/// Returns the constant that a captured value is, with the lists in it down to so many levels.
fn constant(session: &Session, file: FileId, value: &Dynamic, levels: usize) -> Captured {
    let Some(levels) = levels.checked_sub(1) else { return Captured::Other("a list that is nested too deeply".into()) };
    let value = value.flatten_clone();
    let element = |it: &Dynamic| constant(session, file, it, levels);
    if let Some(list) = value.read_lock::<Array>() {
        return match list.len() {
            0..=MOST_LISTED => Captured::List(list.iter().map(element).collect()),
            _ => Captured::Other(format!("a list of more than {MOST_LISTED} values")),
        };
    }
    if let Some(object) = value.read_lock::<Map>() {
        let named = || object.iter().map(|(name, it)| (name.to_string(), element(it)));
        return match object.len() {
            0..=MOST_LISTED => Captured::Object(named().collect()),
            _ => Captured::Other(format!("a `#{{…}}` of more than {MOST_LISTED} values")),
        };
    }
    if let Some(function) = value.clone().try_cast::<FnPtr>()
        && let Some(body) = session.body(&function, file)
    {
        return Captured::Closure(Box::new(Function {
            file: body.file,
            name: function.fn_name().to_owned(),
            captured: captured(session, &body, &function),
            parameters: body.parameters,
            body: body.statements,
        }));
    }
    if let Some(probe) = value.read_lock::<ProbeRef>() {
        return Captured::Probe(probe.declared);
    }
    if let Ok(n) = value.as_int() {
        Captured::Int(n)
    } else if let Ok(on) = value.as_bool() {
        Captured::Bool(on)
    } else if let Ok(text) = value.as_immutable_string_ref() {
        Captured::Str(text.to_string())
    } else if let Ok(c) = value.as_char() {
        Captured::Str(c.to_string())
    } else if value.is_unit() {
        Captured::Unit
    } else {
        Captured::Other(kind_of(&value).to_owned())
    }
}

/// Returns the probes that a function holds: among its captured values, also in lists and objects.
fn probes_of(function: &FnPtr) -> Vec<u32> {
    let mut found = Vec::new();
    function.curry().iter().for_each(|it| find_probes(it, MOST_NESTED, &mut found));
    found.sort_unstable();
    found.dedup();
    found
}

fn find_probes(value: &Dynamic, levels: usize, found: &mut Vec<u32>) {
    let Some(levels) = levels.checked_sub(1) else { return };
    if let Some(probe) = value.read_lock::<ProbeRef>() {
        found.push(probe.declared);
    } else if let Some(list) = value.read_lock::<Array>() {
        list.iter().for_each(|it| find_probes(it, levels, found));
    } else if let Some(object) = value.read_lock::<Map>() {
        object.values().for_each(|it| find_probes(it, levels, found));
    } else if let Some(function) = value.read_lock::<FnPtr>() {
        function.curry().iter().for_each(|it| find_probes(it, levels, found));
    }
}

/// Takes the targets, with their full names, from the first of `arguments` if there is one.
fn take_targets(call: &Call, event: Event, arguments: &mut Vec<Dynamic>) -> Option<Vec<(Target, String)>> {
    match event {
        Event::Host(HostEvent::Api) | Event::Device(_) => take_patterns(call, event, arguments),
        event if event.has_places() => take_patterns(call, event, arguments),
        Event::Profile | Event::Interval => take_rate(call, event, arguments).map(|it| vec![it]),
        _ => Some(vec![(Target::None, event.name().to_owned())]),
    }
}

fn take_patterns(call: &Call, event: Event, arguments: &mut Vec<Dynamic>) -> Option<Vec<(Target, String)>> {
    let first = if arguments.is_empty() { Dynamic::UNIT } else { arguments.remove(0) };
    let texts: Option<Vec<String>> = if let Some(text) = text_of(&first) {
        Some(vec![text])
    } else {
        let list = first.as_array_ref().ok();
        list.and_then(|list| list.iter().map(text_of).collect())
    };
    match texts {
        Some(texts) if !texts.is_empty() => match event {
            Event::Host(HostEvent::Api) => texts.iter().map(|it| api(call, it)).collect(),
            Event::Device(_) => kernels(call, event, texts),
            Event::Usdt => texts.iter().map(|it| usdt(call, it)).collect(),
            _ => texts.iter().map(|it| target(call, event, it)).collect(),
        },
        _ => {
            let message =
                format!("the first argument of `{}` is what to probe: a string or a list of strings", event.name());
            call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
            None
        }
    }
}

/// Finds the CUDA calls that a pattern of `api` matches: by their name, or as programs write it.
fn api(call: &Call, pattern: &str) -> Option<(Target, String)> {
    let found: Functions = functions_like(pattern).map(|it| it.id).collect();
    if !found.is_empty() {
        return Some((Target::Api(Box::new(found)), format!("api:{pattern}")));
    }
    let help = match nearest(pattern, functions().iter().map(CudaFunction::plain_name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "patterns are names of CUDA's runtime or driver, with `*` for any text: \"cudaMalloc*\"".to_owned(),
    };
    call.error("unknown-call", format!("CUDA has no call `{pattern}`")).help(help).report(call);
    None
}

/// Parses the names of kernels; keeps wildcards. Which kernels there are is known once they run.
fn kernels(call: &Call, event: Event, patterns: Vec<String>) -> Option<Vec<(Target, String)>> {
    if !patterns.iter().all(|it| is_of_kernels(call, event, it)) {
        return None;
    }
    let named = |it: PatternOfHandler| {
        let name = format!("{}:{}", event.name(), it.pattern().text());
        (Target::Kernels(it), name)
    };
    let patterns = patterns.into_iter().map(KernelPattern::new);
    Some(PatternOfHandler::each(patterns).into_iter().map(named).collect())
}

/// Whether a pattern is one of kernels' names; reports one that is not.
fn is_of_kernels(call: &Call, event: Event, pattern: &str) -> bool {
    if repeats_kind(call, pattern) {
        return false;
    }
    if pattern.is_empty() || pattern.contains('\0') {
        let message =
            format!("the first argument of `{}` is the name of a kernel, with `*` for any text", event.name());
        call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
        return false;
    }
    if pattern.ends_with(')') && !pattern.ends_with("operator()") {
        let name = pattern.split('(').next().unwrap_or(pattern);
        call.error(PATTERN, format!("names of kernels have no parameters: `{pattern}`"))
            .help(format!("write `\"{name}\"`; for one of several with this name, write its mangled name"))
            .report(call);
        return false;
    }
    true
}

/// Reports a pattern that begins with the name of an event, as bpftrace's do.
fn repeats_kind(call: &Call, pattern: &str) -> bool {
    let Some((kind, rest)) = pattern.split_once(':') else { return false };
    let Some(event) = Event::all().find(|it| it.name() == kind && !rest.starts_with(':')) else { return false };
    let message = format!("`{pattern}` repeats the kind of probe");
    call.error(PATTERN, message).help(format!("write `{}(\"{rest}\", …)`", event.name())).report(call);
    true
}

/// Parses `./server:shop:sold`; keeps wildcards.
fn usdt(call: &Call, text: &str) -> Option<(Target, String)> {
    if repeats_kind(call, text) {
        return None;
    }
    let Some((object, pattern)) = UsdtPattern::split(text) else {
        call.error(PATTERN, format!("`{text}` is not file, provider and name separated by colons"))
            .help(format!("write `{}`; `FILE::NAME` if one provider has the probe", Event::Usdt.about().usage))
            .report(call);
        return None;
    };
    Some((Target::Usdt { object: object.to_owned(), pattern }, format!("{}:{text}", Event::Usdt.name())))
}

/// Parses `libc:malloc` or `sched:sched_switch`; keeps wildcards.
fn target(call: &Call, event: Event, pattern: &str) -> Option<(Target, String)> {
    let name = format!("{}:{pattern}", event.name());
    if repeats_kind(call, pattern) {
        return None;
    }
    let parts = if event == Event::Tracepoint { pattern.split_once(':') } else { split_function(pattern) };
    let (first, second) = match parts {
        Some((first, second)) if !first.is_empty() && !second.is_empty() => (first.to_owned(), second.to_owned()),
        _ => {
            let what = if event == Event::Tracepoint { "category and name" } else { "library and function" };
            let message = format!("`{pattern}` is not {what} separated by a colon");
            call.error(PATTERN, message).help(format!("write `{}`", event.about().usage)).report(call);
            return None;
        }
    };
    let target = match event {
        Event::Tracepoint => Target::Tracepoint { category: first, name: second },
        _ => Target::Function { object: first, function: second },
    };
    Some((target, name))
}

fn take_rate(call: &Call, event: Event, arguments: &mut Vec<Dynamic>) -> Option<(Target, String)> {
    let first = if arguments.is_empty() { Dynamic::UNIT } else { arguments.remove(0) };
    let Ok(nanos) = first.as_int() else {
        let message = format!("`{}` takes a rate or a duration first, not {}", event.name(), kind_of(&first));
        call.error("rate", message).help(format!("write `{}`", event.about().usage)).report(call);
        return None;
    };
    if let Some(problem) = rate_problem(event, nanos) {
        let range = match event {
            Event::Profile => format!("from 1 to {MOST_SAMPLES} samples a second"),
            _ => format!("from {} up", units::shown(SHORTEST_INTERVAL)),
        };
        call.error("rate", problem).help(format!("write `{}`: {range}", event.about().usage)).report(call);
        return None;
    }
    Some(match event {
        Event::Profile => {
            let hz = (units::SECOND + nanos / 2) / nanos;
            (Target::Profile { hz: hz as u64 }, format!("profile:hz:{hz}"))
        }
        _ => {
            let (unit, one) = units::largest(nanos);
            (Target::Interval { nanos: nanos as u64 }, format!("interval:{unit}:{}", nanos / one))
        }
    })
}

/// Returns what is wrong with the interval between samples or between runs.
fn rate_problem(event: Event, nanos: i64) -> Option<String> {
    let shown = units::shown(nanos);
    // A number without a unit means nanoseconds, which is hardly intended.
    let unit = if nanos < 1_000 { "; a number without a unit means nanoseconds" } else { "" };
    match event {
        _ if nanos <= 0 => Some(format!("{shown} is not a positive time")),
        Event::Profile if nanos < units::SECOND / MOST_SAMPLES => {
            Some(format!("one sample every {shown} is more than {MOST_SAMPLES} a second{unit}"))
        }
        Event::Profile if nanos > units::SECOND => Some(format!("one sample every {shown} is less than one a second")),
        Event::Interval if nanos < SHORTEST_INTERVAL => {
            Some(format!("an interval of {shown} is shorter than {}{unit}", units::shown(SHORTEST_INTERVAL)))
        }
        _ => None,
    }
}

/// Takes the options. Those that are wrong are reported, and left out: the handler's own mistakes are told, too.
fn take_options(call: &Call, event: Event, arguments: &mut Vec<Dynamic>) -> Options {
    let per = if event == Event::Device(DeviceEvent::BlockBegin) { Per::Block } else { Per::default() };
    let mut options = Options { per, ..Options::default() };
    let Some(at) = arguments.iter().position(|it| it.is_map()) else { return options };
    let map = arguments.remove(at).cast::<Map>();
    let allowed: &[&str] = match event {
        Event::Activity(_) => &["every"],
        Event::Host(_) => &["every", "optional"],
        Event::Launch => &["every", "kinds"],
        Event::Device(place) if place.is_of_blocks() => &["every", "tag", "stream", "via"],
        Event::Device(_) => &["per", "every", "tag", "stream", "via"],
        Event::Begin | Event::End | Event::Interval => &[],
        Event::Uretprobe => &["scope", "every", "optional", "return"],
        Event::Profile => &["scope", "every"],
        _ => &["scope", "every", "optional"],
    };
    for (name, value) in &map {
        // It has been reported.
        let _ = option(call, event, allowed, name, value, &mut options);
    }
    options
}

/// Finds an option's name in the text that follows a function's name: `name:` in the first `#{…}` of its arguments.
fn option_in(text: &str, name: &str) -> Option<usize> {
    let open = text.find("#{")?;
    // A handler's own braces and other calls begin behind the options.
    if text[..open].contains([';', '|', '{']) {
        return None;
    }
    let end = open + text[open..].find('}')?;
    let is_word = |it: char| it.is_alphanumeric() || it == '_';
    text[open..end].match_indices(name).map(|it| open + it.0).find(|at| {
        let (before, after) = (&text[..*at], &text[at + name.len()..]);
        !before.ends_with(is_word) && after.trim_start_matches('"').trim_start().starts_with(':')
    })
}

fn option(
    call: &Call,
    event: Event,
    allowed: &[&str],
    name: &str,
    value: &Dynamic,
    options: &mut Options,
) -> Option<()> {
    let wrong = |message: String, help: String| {
        let at = call.label_of_option(name);
        Diagnostic::error("option", message, at).help(help).report(call);
        None
    };
    match name {
        _ if !allowed.contains(&name) => {
            let help = match (nearest(name, allowed.iter().copied()), allowed) {
                (Some(near), _) => format!("did you mean `{near}`?"),
                (None, []) => "it takes none".to_owned(),
                (None, _) => format!("it has {}", allowed.join(", ")),
            };
            wrong(format!("`{}` has no option `{name}`", event.name()), help)
        }
        "every" => match value.as_int() {
            Ok(n) if n > 0 => {
                options.every = Some(n as u64);
                Some(())
            }
            _ => wrong(
                "`every` takes a positive integer".to_owned(),
                match event {
                    Event::Device(_) => "`every: 100` runs the handler in each hundredth launch of a kernel",
                    _ => "`every: 100` handles one event in a hundred",
                }
                .to_owned(),
            ),
        },
        "optional" => match value.as_bool() {
            Ok(optional) => {
                options.optional = optional;
                Some(())
            }
            Err(_) => wrong(
                "`optional` is true or false".to_owned(),
                "`optional: true` leaves the handler out where there are no such events".to_owned(),
            ),
        },
        "kinds" => match kinds(value) {
            Ok(calls) => {
                options.kinds = Some(calls);
                Some(())
            }
            Err(help) => wrong("`kinds` takes a list of the kinds of calls".to_owned(), help),
        },
        "per" => match text_of(value).and_then(|it| Per::named(&it)) {
            Some(per) => {
                options.per = per;
                Some(())
            }
            None => wrong(
                "`per` is \"thread\", \"warp\" or \"block\"".to_owned(),
                "\"thread\" is the default; `per: \"warp\"` runs it once for the threads of a warp".to_owned(),
            ),
        },
        // A tool's option may leave it open.
        "via" if value.is_unit() => Some(()),
        "via" => match text_of(value).and_then(|it| DeviceWay::named(&it)) {
            Some(way) => {
                options.via = Some(way);
                Some(())
            }
            None => wrong(
                "`via` is \"twin\" or \"patch\"".to_owned(),
                "\"twin\" is a copy of the kernel, made from its PTX; \"patch\" changes the machine code of any kernel; without it \
                 each process gets what reaches its kernels"
                    .to_owned(),
            ),
        },
        "tag" => match value.as_int() {
            Ok(tag) => {
                options.tag = Some(tag);
                Some(())
            }
            Err(_) => wrong(
                "`tag` takes an integer".to_owned(),
                "`tag: 1` runs the handler at launches to which a `launch` handler gave this tag: `l.tag = 1`"
                    .to_owned(),
            ),
        },
        "stream" => match value.as_int().map(u32::try_from) {
            Ok(Ok(stream)) => {
                options.stream = Some(stream);
                Some(())
            }
            _ => wrong(
                "`stream` takes the id of a stream".to_owned(),
                "`stream: 7` runs the handler at launches in the stream of that number, as `k.stream` shows it".to_owned(),
            ),
        },
        "return" => match text_of(value).and_then(|it| ReturnWay::named(&it)) {
            Some(way) => {
                options.returns = way;
                Some(())
            }
            None => wrong(
                "`return` is \"safe\" or \"trampoline\"".to_owned(),
                "\"safe\" is the default; \"trampoline\" is cheaper, and can kill the program".to_owned(),
            ),
        },
        _ => {
            let named = text_of(value).and_then(|it| ProbeScope::NAMES.into_iter().find(|(name, _)| *name == it));
            let Some((_, scope)) = named else {
                let message = "`scope` is \"tree\", \"process\" or \"system\"".to_owned();
                return wrong(message, "\"tree\" is the default: the program and its children".to_owned());
            };
            options.scope = Some(scope);
            Some(())
        }
    }
}

/// Parses `kinds: ["kernel", "memset"]`; the error says what to write instead.
fn kinds(value: &Dynamic) -> Result<Calls, String> {
    let all = || LaunchCall::ALL.iter().map(|it| it.name());
    let known = || all().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
    let names = value.clone().into_typed_array::<ImmutableString>();
    let names = names
        .ok()
        .filter(|it| !it.is_empty())
        .ok_or_else(|| format!("write `kinds: [\"memset\"]`; the kinds are {}", known()))?;
    names.iter().try_fold(Calls::NONE, |calls, name| {
        match LaunchCall::ALL.iter().find(|it| it.name() == name.as_str()) {
            Some(call) => Ok(calls.with(Calls::of(&[*call]))),
            None => Err(match nearest(name, all()) {
                Some(near) => format!("there is no \"{name}\": did you mean \"{near}\"?"),
                None => format!("there is no \"{name}\"; the kinds are {}", known()),
            }),
        }
    })
}

/// Handles `map(#{name: "calls", size: 1000, evict: true})`.
fn declare_map(call: &Call) -> Dynamic {
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

fn map_declaration(call: &Call, map: &Map) -> Result<MapDeclaration, String> {
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
fn declare_stacks(call: &Call) -> Dynamic {
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
fn argument(call: &Call) -> Dynamic {
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
fn of_clocks(call: &Call, read: fn(&Clocks) -> i64) -> Dynamic {
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

fn argument_problem(call: &Call, name: &str) -> Option<String> {
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
fn value_of(call: &Call, value: &Dynamic) -> Option<ArgumentValue> {
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

fn interpret(call: &Call) -> Dynamic {
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

fn register_probe(engine: &mut Engine, session: &Shared) {
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
        let diagnostic = never_switched(declared.event, at);
        session.diagnostics.push(diagnostic);
    }
}

/// The methods that switch a probe.
pub(crate) const SWITCHING: [&str; 2] = [ENABLE, "disable"];
pub(crate) const ENABLE: &str = "enable";

/// Whether probes of this event can be switched off and on.
pub(crate) fn can_be_switched(event: Event) -> bool {
    !matches!(event, Event::Begin | Event::End)
}

/// Reports that a probe of this event is switched.
pub(crate) fn never_switched(event: Event, at: Label) -> Diagnostic {
    let message = format!("an `{}` handler runs once, so it cannot be switched off and on", event.name());
    let message = if event == Event::Begin { message.replacen("an ", "a ", 1) } else { message };
    Diagnostic::error("never-switched", message, at).help("test a map in the handler: `if @on == 1 { … }`")
}

/// Reports a method that probes do not have.
pub(crate) fn no_probe_method(name: &str, at: Label) -> Diagnostic {
    let diagnostic = Diagnostic::error("unknown-method", format!("a probe has no method `{name}`"), at);
    match nearest(name, SWITCHING) {
        Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
        None => diagnostic.help("it has `enable()` and `disable()`"),
    }
}

/// Reports that something else than a probe is switched.
pub(crate) fn no_probe(method: &str, got: &str, at: Label) -> Diagnostic {
    Diagnostic::error("not-a-probe", format!("only a probe has `{method}`, not {got}"), at)
        .help(format!("keep the probe in a variable: `let detail = kernel(|k| …);`, then `detail.{method}()`"))
}

fn text_of(value: &Dynamic) -> Option<String> {
    value.as_immutable_string_ref().ok().map(|it| it.to_string())
}

/// Names a value's type for messages.
pub(crate) fn kind_of(value: &Dynamic) -> &'static str {
    match value.type_name() {
        "()" => "`()`",
        "i64" => "an integer",
        "f64" => "a fraction",
        "bool" => "a boolean",
        "char" => "a character",
        "string" => "text",
        "array" => "a list",
        "map" => "a `#{…}`",
        "Fn" => "a function",
        "range" | "range=" => "a range",
        _ if value.is::<ProbeRef>() => "a probe",
        _ if value.is::<MapRef>() => "a map",
        _ if value.is::<Interpreted>() => "an interpreted handler",
        _ => "a value of another type",
    }
}
