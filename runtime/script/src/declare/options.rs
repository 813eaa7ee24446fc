//! The options of declarations, a row each: the `#{…}` before a handler.

use super::call::{Declaring, Report, text_of};
use crate::handler::{Options, Per};
use rhai::{Dynamic, ImmutableString, Map};
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_model::plan::{Call, Calls, DeviceWay, ProbeScope, ReturnWay};
use xputrace_model::schema::{DeviceEvent, Event};

/// An option that declarations may have.
struct OptionRule {
    name: &'static str,
    /// Whether declarations of an event have it.
    is_of: fn(Event) -> bool,
    /// Returns the options with it; `None` if it can't have this value.
    set: fn(Options, &Dynamic) -> Option<Options>,
    /// What it takes.
    takes: &'static str,
    /// What to write in place of a value that it can't have.
    instead: fn(Event, &Dynamic) -> String,
}

/// All options, in the order in which messages list them.
const RULES: [OptionRule; 9] = [
    OptionRule {
        name: "scope",
        is_of: |event| event.is_of_cpu(),
        set: |options, value| Some(Options { scope: Some(scope_named(&text_of(value)?)?), ..options }),
        takes: "`scope` is \"tree\", \"process\" or \"system\"",
        instead: |_, _| "\"tree\" is the default: the program and its children".into(),
    },
    OptionRule {
        name: "per",
        is_of: |event| matches!(event, Event::Device(place) if !place.is_of_blocks()),
        set: |options, value| Some(Options { per: Per::named(&text_of(value)?)?, ..options }),
        takes: "`per` is \"thread\", \"warp\" or \"block\"",
        instead: |_, _| "\"thread\" is the default; `per: \"warp\"` runs it once for the threads of a warp".into(),
    },
    OptionRule {
        name: "every",
        is_of: |event| !matches!(event, Event::Begin | Event::End | Event::Interval),
        set: |options, value| {
            Some(Options { every: Some(value.as_int().ok().filter(|it| *it > 0)? as u64), ..options })
        },
        takes: "`every` takes a positive integer",
        instead: |event, _| match event {
            Event::Device(_) => "`every: 100` runs the handler in each hundredth launch of a kernel".into(),
            _ => "`every: 100` handles one event in a hundred".into(),
        },
    },
    OptionRule {
        name: "kinds",
        is_of: |event| event == Event::Launch,
        set: |options, value| Some(Options { kinds: Some(kinds(value).ok()?), ..options }),
        takes: "`kinds` takes a list of the kinds of calls",
        instead: |_, value| kinds(value).err().unwrap_or_default(),
    },
    OptionRule {
        name: "optional",
        is_of: |event| matches!(event, Event::Host(_)) || event.is_of_cpu() && event != Event::Profile,
        set: |options, value| Some(Options { optional: value.as_bool().ok()?, ..options }),
        takes: "`optional` is true or false",
        instead: |_, _| "`optional: true` leaves the handler out where there are no such events".into(),
    },
    OptionRule {
        name: "tag",
        is_of: |event| matches!(event, Event::Device(_)),
        set: |options, value| Some(Options { tag: Some(value.as_int().ok()?), ..options }),
        takes: "`tag` takes an integer",
        instead: |_, _| {
            "`tag: 1` runs the handler at launches to which a `launch` handler gave this tag: `l.tag = 1`".into()
        },
    },
    OptionRule {
        name: "stream",
        is_of: |event| matches!(event, Event::Device(_)),
        set: |options, value| Some(Options { stream: Some(u32::try_from(value.as_int().ok()?).ok()?), ..options }),
        takes: "`stream` takes the id of a stream",
        instead: |_, _| {
            "`stream: 7` runs the handler at launches in the stream of that number, as `k.stream` shows it".into()
        },
    },
    OptionRule {
        name: "via",
        is_of: |event| matches!(event, Event::Device(_)),
        // A tool's option may leave it open.
        set: |options, value| match value.is_unit() {
            true => Some(options),
            false => Some(Options { via: Some(DeviceWay::named(&text_of(value)?)?), ..options }),
        },
        takes: "`via` is \"twin\" or \"patch\"",
        instead: |_, _| {
            "\"twin\" is a copy of the kernel, made from its PTX; \"patch\" changes the machine code of any kernel; without it \
             each process gets what reaches its kernels"
                .into()
        },
    },
    OptionRule {
        name: "return",
        is_of: |event| event == Event::Uretprobe,
        set: |options, value| Some(Options { returns: ReturnWay::named(&text_of(value)?)?, ..options }),
        takes: "`return` is \"safe\" or \"trampoline\"",
        instead: |_, _| "\"safe\" is the default; \"trampoline\" is cheaper, and can kill the program".into(),
    },
];

/// Takes the options. Those that are wrong are reported, and left out: the handler's own mistakes are told, too.
pub(super) fn take_options(call: &Declaring, event: Event, arguments: &mut Vec<Dynamic>) -> Options {
    let per = if event == Event::Device(DeviceEvent::BlockBegin) { Per::Block } else { Per::default() };
    let mut options = Options { per, ..Options::default() };
    let Some(at) = arguments.iter().position(|it| it.is_map()) else { return options };
    for (name, value) in &arguments.remove(at).cast::<Map>() {
        if let Err((message, help)) = set_option(event, name, value, &mut options) {
            Diagnostic::error("option", message, call.label_of_option(name)).help(help).report(call);
        }
    }
    options
}

/// Sets one option; the error is what is wrong, and what to write instead.
fn set_option(event: Event, name: &str, value: &Dynamic, options: &mut Options) -> Result<(), (String, String)> {
    let allowed = || RULES.iter().filter(|it| (it.is_of)(event));
    let Some(rule) = allowed().find(|it| it.name == name) else {
        let known: Vec<&str> = allowed().map(|it| it.name).collect();
        let help = match (nearest(name, known.iter().copied()), &known[..]) {
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, []) => "it takes none".to_owned(),
            (None, _) => format!("it has {}", known.join(", ")),
        };
        return Err((format!("`{}` has no option `{name}`", event.name()), help));
    };
    let set = (rule.set)(options.clone(), value);
    *options = set.ok_or_else(|| (rule.takes.to_owned(), (rule.instead)(event, value)))?;
    Ok(())
}

fn scope_named(text: &str) -> Option<ProbeScope> {
    ProbeScope::NAMES.into_iter().find(|(name, _)| *name == text).map(|it| it.1)
}

/// Parses `kinds: ["kernel", "memset"]`; the error says what to write instead.
fn kinds(value: &Dynamic) -> Result<Calls, String> {
    let all = || Call::ALL.iter().map(|it| it.name());
    let known = || all().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
    let names = value.clone().into_typed_array::<ImmutableString>();
    let names = names
        .ok()
        .filter(|it| !it.is_empty())
        .ok_or_else(|| format!("write `kinds: [\"memset\"]`; the kinds are {}", known()))?;
    names.iter().try_fold(Calls::NONE, |calls, name| match Call::ALL.iter().find(|it| it.name() == name.as_str()) {
        Some(call) => Ok(calls.with(Calls::of(&[*call]))),
        None => Err(match nearest(name, all()) {
            Some(near) => format!("there is no \"{name}\": did you mean \"{near}\"?"),
            None => format!("there is no \"{name}\"; the kinds are {}", known()),
        }),
    })
}
