//! A call of a declaring function: its arguments, and how its mistakes are reported.

use crate::failure::NativeFailure;
use crate::session::SharedSession;
use rhai::{Dynamic, Engine, NativeCallContext};
use std::any::TypeId;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label};

/// Maximum number of arguments that declaring functions are registered for; beyond it Rhai reports
/// the error.
const MOST_ARGUMENTS: usize = 6;

/// A call of a declaring function.
pub(super) struct Declaring<'a> {
    pub(super) session: &'a SharedSession,
    pub(super) at: Label,
    pub(super) caller: FileId,
    pub(super) arguments: Vec<Dynamic>,
}

/// Registers a declaring function for any number of arguments.
pub(super) fn each_arity(
    engine: &mut Engine,
    session: &SharedSession,
    name: &str,
    declare: impl Fn(&Declaring) -> Dynamic + Clone + 'static,
) {
    for arity in 0..=MOST_ARGUMENTS {
        let (session, declare) = (session.clone(), declare.clone());
        let types = vec![TypeId::of::<Dynamic>(); arity];
        engine.register_raw_fn(name, types, move |ctx: NativeCallContext, arguments| {
            // Reached where the script's text does not show that a handler makes the call.
            if session.borrow().host.is_some() {
                let message = format!("`{}` cannot be called in a handler", ctx.fn_name());
                return NativeFailure::raise(
                    "late-declaration",
                    message,
                    Some("call it at the top level of the script"),
                );
            }
            let call = Declaring {
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
pub(super) trait Report {
    fn report(self, call: &Declaring);
}

impl Report for Diagnostic {
    fn report(self, call: &Declaring) {
        call.session.borrow_mut().diagnostics.push(self);
    }
}

impl Declaring<'_> {
    pub(super) fn error(&self, code: &'static str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(code, message, self.at.clone())
    }

    /// Returns the place of an option's name in the call's text; that of the call where the script computes its options.
    pub(super) fn label_of_option(&self, name: &str) -> Label {
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

pub(super) fn text_of(value: &Dynamic) -> Option<String> {
    value.as_immutable_string_ref().ok().map(|it| it.to_string())
}
