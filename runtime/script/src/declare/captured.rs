//! What a handler's function captures of the script: constants, and probes that it can switch.

use crate::handler::{Captured, MOST_LISTED, ScriptFunction, map_name};
use crate::maps::kind_of;
use crate::session::{Body, Session};
use crate::values::ProbeRef;
use rhai::{Array, Dynamic, FnPtr, Map};
use xputrace_model::diagnostic::FileId;

/// How deep in lists of lists a handler may hold a probe. A list may contain itself.
const MOST_NESTED: usize = 8;

/// Returns the values that a handler's function captured, by name.
pub(super) fn captured(session: &Session, body: &Body, function: &FnPtr) -> Vec<(String, Captured)> {
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
        return Captured::Closure(Box::new(ScriptFunction {
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
pub(super) fn probes_of(function: &FnPtr) -> Vec<u32> {
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
