//! Turns Rhai's errors into our diagnostics: a place in the user's text, our words, advice.

use crate::failure::NativeFailure;
use crate::handler::{Positions, token_at};
use crate::mistakes::no_field;
use crate::session::{Session, file_id};
use crate::{mistakes, words};
use rhai::{Dynamic, EvalAltResult, LexError, ParseError, ParseErrorType, Position};
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, nearest};
use xputrace_model::table::TableKind;

/// Maximum size of a text, and of all texts of a list or object: the rows of a map may have 65,536 keys of 512 bytes.
pub(crate) const MOST_TEXT_MIB: usize = 64;
/// Maximum number of elements of a list.
pub(crate) const MOST_ELEMENTS: usize = 1 << 20;

/// Code for computing with a missing value.
pub(crate) const MISSING_VALUE: &str = "missing-value";
/// Code for a division by zero.
pub(crate) const DIVISION_BY_ZERO: &str = "division-by-zero";

/// Converts a run-time error. `file` is where it ran, unless the error names another.
pub(crate) fn diagnostic(session: &Session, file: FileId, error: EvalAltResult) -> Diagnostic {
    match error {
        EvalAltResult::ErrorInFunctionCall(_, source, inner, position) => {
            let inside = if source.is_empty() { file } else { file_id(Some(&source)) };
            match inner.position().is_none() {
                // The function is ours, so the place is its call.
                true => at(session, file, *inner, position),
                false => diagnostic(session, inside, *inner),
            }
        }
        EvalAltResult::ErrorInModule(source, inner, _) => diagnostic(session, file_id(Some(&source)), *inner),
        other => {
            let position = other.position();
            at(session, file, other, position)
        }
    }
}

fn at(session: &Session, file: FileId, error: EvalAltResult, position: Position) -> Diagnostic {
    let label = session.label(file, position);
    match error {
        EvalAltResult::ErrorRuntime(value, _) | EvalAltResult::ErrorTerminated(value, _) => thrown(value, label),
        EvalAltResult::ErrorFunctionNotFound(signature, _) => function_not_found(session, file, &signature, label),
        EvalAltResult::ErrorVariableNotFound(name, _) => {
            let text = session.sources.files.get(label.file.0 as usize).map_or("", |it| it.text.as_str());
            unknown_name(&name, text, label)
        }
        EvalAltResult::ErrorDotExpr(text, _) => unknown_field(&text, label),
        EvalAltResult::ErrorPropertyNotFound(name, _) => {
            Diagnostic::error("unknown-field", format!("there is no field `{name}` here"), label)
        }
        EvalAltResult::ErrorIndexingType(..) => {
            Diagnostic::error("type", "this value has no elements or fields", label)
        }
        EvalAltResult::ErrorArithmetic(text, _) => {
            let code = if text.contains("zero") { DIVISION_BY_ZERO } else { "arithmetic" };
            Diagnostic::error(code, plain(&text), label)
        }
        EvalAltResult::ErrorTooManyOperations(_) => {
            Diagnostic::error("too-long", "this runs too long; is it an endless loop?", label)
        }
        EvalAltResult::ErrorDataTooLarge(..) => {
            let help = format!(
                "the limit is {MOST_TEXT_MIB} MiB for a text, or for all texts of a list, and {MOST_ELEMENTS} elements for a list"
            );
            Diagnostic::error("too-large", "a text, list or object grows too large here", label).help(help)
        }
        EvalAltResult::ErrorStackOverflow(_) => {
            Diagnostic::error("too-deep", "functions call each other too deeply", label)
        }
        EvalAltResult::ErrorMismatchDataType(wanted, got, _) => {
            Diagnostic::error("type", format!("this must be {}, not {}", kind(&wanted), kind(&got)), label)
        }
        EvalAltResult::ErrorAssignmentToConstant(name, _) => {
            Diagnostic::error("constant", format!("`{name}` is a constant and cannot be assigned"), label)
        }
        EvalAltResult::ErrorFor(_) => {
            Diagnostic::error("type", "`for` goes over lists, ranges and maps, not this", label)
        }
        other => Diagnostic::error("script", plain(&other.to_string()), label),
    }
}

/// Handles our own failures and what a script throws.
fn thrown(value: Dynamic, label: Label) -> Diagnostic {
    match value.clone().try_cast::<NativeFailure>() {
        Some(failure) => {
            let diagnostic = Diagnostic::error(failure.code, failure.message, label);
            failure.help.into_iter().fold(diagnostic, Diagnostic::help)
        }
        None => Diagnostic::error("thrown", value.to_string(), label),
    }
}

/// Handles an unknown function, which Rhai names with its argument types: `+ (i64, ())`.
fn function_not_found(session: &Session, file: FileId, signature: &str, label: Label) -> Diagnostic {
    let (name, types) = signature.split_once(" (").unwrap_or((signature, ""));
    let name = words::as_written(name);
    let types: Vec<&str> = types.trim_end_matches(')').split(", ").filter(|it| !it.is_empty()).map(strip).collect();
    match (name, types.first()) {
        (_, Some(got)) if words::SWITCHING.contains(&name) => {
            return match *got {
                "probe" => Diagnostic::error("wrong-arguments", format!("`{name}` takes no argument"), label),
                other => mistakes::no_probe(name, kind(other), label),
            };
        }
        (_, Some(&"probe")) if name.starts_with(|c: char| c.is_ascii_alphabetic()) && !words::is_known(name) => {
            return mistakes::no_probe_method(name, label);
        }
        _ => {}
    }
    let computes = matches!(name, "min" | "max" | "abs") && types.contains(&"()");
    if computes || !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        return operator(name, &types, label);
    }
    let defined = session.files.get(file.0 as usize).is_some_and(|it| it.interpreted.defines(name));
    if !defined && !words::is_known(name) {
        return mistakes::unknown_function(name, label);
    }
    let near = nearest(name, words::declaring().filter(|it| *it != name));
    if let (true, Some(near)) = (types.contains(&"Fn") && !words::declaring().any(|it| it == name), near) {
        return Diagnostic::error("wrong-arguments", format!("`{name}` does not take a handler"), label)
            .help(format!("did you mean `{near}`?"));
    }
    let got: Vec<&str> = types.iter().map(|it| kind(it)).collect();
    let got = if got.is_empty() { "no argument".to_owned() } else { got.join(", ") };
    Diagnostic::error("wrong-arguments", format!("`{name}` does not take {got}"), label)
}

/// Strips the signature's parenthesis but keeps the `)` of a final `()`.
fn strip(text: &str) -> &str {
    if text == "(" { "()" } else { text }
}

fn operator(name: &str, types: &[&str], label: Label) -> Diagnostic {
    if types.contains(&"()") {
        return Diagnostic::error(MISSING_VALUE, format!("`{name}` is applied to a missing value"), label)
            .help("test it first: `if key in @map { … }`, or use a default: `@map[key] ?? 0`");
    }
    let kinds: Vec<&str> = types.iter().map(|it| kind(it)).collect();
    Diagnostic::error("type", format!("`{name}` does not work on {}", kinds.join(" and ")), label)
}

fn kind(name: &str) -> &str {
    match name {
        "i64" => "an integer",
        "f64" => "a fraction",
        "bool" => "a boolean",
        "()" => "a missing value",
        "array" => "a list",
        "Fn" => "a function",
        "&str | ImmutableString | String" | "string" => "text",
        "probe" => "a probe",
        "map handle" => "a map",
        "map element" => "an element of a map",
        "row of a map" => "a row of a map",
        other => other,
    }
}

/// Whether a name is followed by a key or a map method, so that its `@` is probably missing.
fn is_used_as_map(text: &str, label: &Label) -> bool {
    let follows = text.get(label.span.end..).unwrap_or_default();
    let method = follows.strip_prefix('.').and_then(|it| it.split_once('(')).map_or("", |it| it.0);
    follows.starts_with('[') || TableKind::of_method(method).is_some()
}

/// Returns the rest of a pattern whose quotes are missing: `:malloc`.
fn rest_of_pattern<'a>(text: &'a str, label: &Label) -> Option<&'a str> {
    let follows = text.get(label.span.end..)?;
    let end = follows.find(|it: char| !(it.is_alphanumeric() || ":_*?.".contains(it))).unwrap_or(follows.len());
    Some(&follows[..end]).filter(|it| it.len() > 1 && it.starts_with(':'))
}

fn unknown_name(name: &str, text: &str, label: Label) -> Diagnostic {
    let (is_map, rest) = (is_used_as_map(text, &label), rest_of_pattern(text, &label));
    let diagnostic = Diagnostic::error("unknown-name", format!("there is no `{name}` here"), label);
    if let Some(rest) = rest {
        return diagnostic.help(format!("a pattern is a string: `\"{name}{rest}\"`"));
    }
    if is_map {
        return diagnostic.help(format!("map names start with `@`: `@{name}`"));
    }
    let bare = ["pid", "tid", "comm", "nsecs", "arg0", "arg1", "args", "retval", "ustack", "kstack", "cpu", "func"];
    match name {
        "args" => diagnostic.help("read a tracepoint's fields from its event: `|e| … e.NAME`"),
        "threadIdx" | "blockIdx" | "blockDim" | "gridDim" => {
            diagnostic.help("handlers on the device are not implemented yet")
        }
        "k" | "e" | "l" => {
            diagnostic.help(format!("a handler names its event between bars: `|{name}| …`; other code cannot see it"))
        }
        _ if words::is_known(name) => diagnostic.help(format!("it is a function: `{name}(…)`")),
        _ if bare.contains(&name) => {
            let field = if name == "nsecs" { "time" } else { name };
            diagnostic.help(format!("read it from the event: `|e| … e.{field}`"))
        }
        _ => match nearest(name, words::suggested()) {
            Some(near) => diagnostic.help(format!("did you mean `{near}`?")),
            None => diagnostic.help(format!("declare a variable with `let {name} = …;`, or write `@{name}` for a map")),
        },
    }
}

/// Handles `Unknown property 'x' - a getter is not registered for type 'i64'`.
fn unknown_field(text: &str, label: Label) -> Diagnostic {
    let mut quoted = text.split('\'').skip(1).step_by(2);
    match (quoted.next(), quoted.next()) {
        (Some(field), Some("()")) => {
            Diagnostic::error(MISSING_VALUE, format!("a missing value has no field `{field}`"), label)
                .help("test it first with `== ()`, or use `?.`")
        }
        (Some(field), Some("i64")) => {
            let units = crate::units::NANOS.iter().map(|it| it.0).chain(["hz"]);
            let diagnostic = Diagnostic::error("unknown-field", format!("an integer has no unit `{field}`"), label);
            let names: Vec<&str> = units.collect();
            diagnostic.help(format!("there are {}", names.join(", ")))
        }
        (Some(field), Some(of)) => no_field(kind(of), field, &fields_of(of), label),
        _ => Diagnostic::error("unknown-field", plain(text), label),
    }
}

/// Returns the fields of one of our types, by its name in Rhai.
fn fields_of(kind: &str) -> Vec<&'static str> {
    match kind {
        "row of a map" => words::row_fields().collect(),
        "map element" => words::element_fields().collect(),
        "probe" => vec!["name"],
        _ => Vec::new(),
    }
}

/// Converts a parse error that the tokens alone did not show.
pub(crate) fn parse(file: FileId, text: &str, positions: &Positions, error: &ParseError) -> Diagnostic {
    let offset = match error.position() {
        position if position.is_none() => text.trim_end().len(),
        position => positions.offset(position),
    };
    let label = Label { file, span: token_at(text, offset), note: None };
    match error.err_type() {
        ParseErrorType::VariableUndefined(name) => unknown_name(name, text, label),
        ParseErrorType::ModuleUndefined(name) => {
            let known = crate::bundle::stdlib().iter().find(|it| it.name == name).map_or("…", |it| it.name);
            let help = format!("add `import \"{known}\" as {name};` at the top");
            Diagnostic::error("unknown-module", format!("there is no module `{name}` here"), label).help(help)
        }
        ParseErrorType::MissingToken(token, purpose) => {
            Diagnostic::error("syntax", format!("`{token}` is missing {}", plain(&user_names(purpose))), label)
        }
        ParseErrorType::Reserved(word) => {
            Diagnostic::error("reserved-word", format!("`{word}` is a reserved word"), label).help("use another name")
        }
        ParseErrorType::AssignmentToConstant(name) => {
            Diagnostic::error("constant", format!("`{name}` is a constant and cannot be assigned"), label)
        }
        ParseErrorType::AssignmentToInvalidLHS(_) if is_guarded(text, label.span.start) => {
            Diagnostic::error("assignment", "an assignment cannot follow `&&` or `||`", label)
                .help("write `if condition { @n += 1; }`")
        }
        ParseErrorType::AssignmentToInvalidLHS(_) => {
            Diagnostic::error("assignment", "this cannot be assigned to", label)
                .help("assign to a variable, an `@map`, its element or `l.tag`")
        }
        ParseErrorType::ExprTooDeep => Diagnostic::error("too-deep", "this is nested too deeply", label)
            .help("move parts of it to a variable, `let part = …;`, or a function"),
        ParseErrorType::UnexpectedEOF => {
            Diagnostic::error("syntax", "the script ends in the middle of an expression", label)
        }
        ParseErrorType::FnDuplicatedDefinition(name, _) => {
            Diagnostic::error("defined-twice", format!("the function `{name}` is defined twice"), label)
        }
        ParseErrorType::BadInput(LexError::ImproperSymbol(symbol, hint)) if !symbol.is_empty() => {
            let diagnostic = Diagnostic::error("syntax", format!("`{symbol}` is not allowed here"), label);
            if hint.is_empty() { diagnostic } else { diagnostic.help(plain(hint)) }
        }
        other => Diagnostic::error("syntax", plain(&user_names(&other.to_string())), label),
    }
}

/// Whether the statement around an offset has a `&&` or `||` before an assignment.
fn is_guarded(text: &str, offset: usize) -> bool {
    let ends = [';', '{', '}'];
    let before = text.get(..offset).unwrap_or_default();
    let start = before.rfind(ends).map_or(0, |it| it + 1);
    let rest = text.get(start..).unwrap_or_default();
    let statement = rest.split(ends).next().unwrap_or_default();
    statement.contains("&&") || statement.contains("||")
}

/// Restores the names of maps as the user wrote them.
fn user_names(text: &str) -> String {
    text.replace(crate::handler::BARE_MAP, "@").replace("'_", "'@")
}

/// Turns Rhai's sentence into ours: lower-case, without position and final dot.
fn plain(text: &str) -> String {
    let text = text.split(" (line ").next().unwrap_or(text).trim_end_matches('.').replace('\'', "`");
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}
