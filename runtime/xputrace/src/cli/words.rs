//! Sorts the words before `--`: clap says which are ours; of the others, long options are the script's.

use super::typed::{NOT_YET, ScriptOptions, Typed, UsageError, Verb, usage};
use super::{is_command, is_program, nearest_verb};
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::Path;

/// The words before `--`.
#[derive(Default)]
pub(super) struct TypedWords {
    /// The program name, the verb, and what clap knows.
    ours: Vec<OsString>,
    pub(super) verb: Option<String>,
    /// The script's arguments.
    pub(super) scripts: Vec<String>,
    /// Whether `--help` came after a script, and so asks for its arguments.
    pub(super) help: bool,
    /// An option before any script that resembles one of ours. It is a mistake if the other words are not understood.
    misspelled: Option<UsageError>,
}

impl TypedWords {
    pub(super) fn new(ours: Vec<OsString>) -> Self {
        TypedWords { ours, ..TypedWords::default() }
    }

    /// Lets clap parse the words, and takes out those that it doesn't know but that are the script's, one by one.
    pub(super) fn understand(&mut self) -> Result<Typed, UsageError> {
        loop {
            self.put_verb_first();
            match Typed::try_parse_from(&self.ours) {
                Ok(typed) => return self.unless_misspelled(typed)?.without_early_script(),
                Err(error) => self.give_to_script(error)?,
            }
        }
    }

    /// Takes an option that resembles one of ours for a mistake if what follows it is no script.
    fn unless_misspelled(&mut self, typed: Typed) -> Result<Typed, UsageError> {
        let named = typed.script().and_then(|it| it.script.as_ref());
        match self.misspelled.take_if(|_| named.is_some_and(|it| !is_script(it))) {
            Some(error) => Err(error),
            None => Ok(typed),
        }
    }

    /// Returns the verb, also of a command line that cannot be understood.
    pub(super) fn intended_verb(&self) -> Option<&str> {
        let first = self.ours.get(1).and_then(|it| it.to_str());
        self.verb.as_deref().or_else(|| first.filter(|it| super::table().find_subcommand(it).is_some()))
    }

    /// Moves the verb before the options that precede it, which are the verb's.
    fn put_verb_first(&mut self) {
        let command = Typed::command();
        let is_verb = |at: &usize| self.ours[*at].to_str().is_some_and(|it| command.find_subcommand(it).is_some());
        let is_read_as_verb = |at: &usize| {
            let typed = Typed::try_parse_from(&self.ours[..=*at]);
            typed.is_ok_and(|it| it.verb.is_some() && it.run.script.script.is_none())
        };
        if let Some(at) = (1..self.ours.len()).filter(is_verb).find(is_read_as_verb) {
            self.ours[1..=at].rotate_right(1);
            self.verb = self.ours[1].to_str().map(str::to_owned);
        }
    }

    /// Takes out the word that clap refuses, with its value, if it is the script's.
    ///
    /// # Errors
    /// The word is not the script's.
    fn give_to_script(&mut self, error: UsageError) -> Result<(), UsageError> {
        let is_help = error.kind() == ErrorKind::DisplayHelp;
        let refused = if is_help { self.position_of("--help") } else { self.unknown_option(&error) };
        let before = refused.and_then(|at| Some((at, Typed::try_parse_from(&self.ours[..at]).ok()?)));
        let Some((at, script)) = before.as_ref().and_then(|(at, it)| Some((*at, it.script()?))) else {
            return Err(self.explained(error));
        };
        match (is_help, script.is_given()) {
            (true, false) => return Err(error),
            (true, true) => {
                self.help = true;
                self.ours.remove(at);
            }
            (false, have_script) => {
                self.refuse_option_of_ours(at)?;
                let has_value = have_script && self.has_detached_value(at);
                self.scripts.extend(self.ours.drain(at..=at + usize::from(has_value)).map(lossy));
                if !have_script && error.get(ContextKind::SuggestedArg).is_some() {
                    self.misspelled.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    /// Returns where the long option is that clap doesn't know.
    fn unknown_option(&self, error: &UsageError) -> Option<usize> {
        let name = unknown_word(error)?;
        if name.starts_with("--") { self.position_of(&name) } else { None }
    }

    /// Returns where an option or another word is, with or without `=value`.
    fn position_of(&self, word: &str) -> Option<usize> {
        self.ours.iter().position(|it| it.to_string_lossy().split('=').next() == Some(word))
    }

    fn has_detached_value(&self, at: usize) -> bool {
        let is_value = |it: &OsString| !it.to_string_lossy().starts_with('-');
        !self.ours[at].to_string_lossy().contains('=') && self.ours.get(at + 1).is_some_and(is_value)
    }

    /// Refuses planned options and those of other verbs: they do not belong to a script.
    fn refuse_option_of_ours(&self, at: usize) -> Result<(), UsageError> {
        let word = self.ours[at].to_string_lossy();
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        if NOT_YET.contains(&name) {
            return Err(usage(format!("--{name} is not implemented yet")));
        }
        match Typed::command().get_arguments().any(|it| it.get_long() == Some(name)) {
            true => {
                let verb = self.verb.as_deref().unwrap_or("run");
                let message = format!("`{verb}` has no option `--{name}`; `xputrace {verb} --help` lists those it has");
                Err(usage(message))
            }
            false => Ok(()),
        }
    }

    /// Returns a better explanation of an error if there is one.
    fn explained(&mut self, error: UsageError) -> UsageError {
        if !error.use_stderr() {
            return error;
        }
        if let Some(misspelled) = self.misspelled.take() {
            return misspelled;
        }
        if unknown_word(&error).is_some_and(|it| it == "-l") {
            let message = "there is no option `-l`: to list events, tracepoints and functions, use `xputrace list`";
            return usage(message.into());
        }
        if let Some(name) = self.command_before(&error) {
            return usage(format!("put the command and its options after `--`: -- {name} …"));
        }
        if unknown_word(&error).is_some_and(|it| it == "-c") {
            return usage("there is no option `-c`: put the command and its options after `--`: -- CMD …".into());
        }
        match self.misspelled_verb(&error) {
            Some((word, verb)) => usage(format!("there is no verb or script `{word}`; did you mean `{verb}`?")),
            None => error,
        }
    }

    /// Returns the word in the script's place, and the verb that it may be meant as.
    fn misspelled_verb(&self, error: &UsageError) -> Option<(String, String)> {
        let at = self.position_of(&unknown_word(error)?)?;
        let word = Typed::try_parse_from(&self.ours[..at]).ok()?.run.script.script?;
        let verb = nearest_verb(&word).filter(|_| !is_script(&word))?;
        Some((word, verb))
    }

    /// Returns the word that must be a command's: the name in the script's place, or else the word that clap doesn't know.
    fn command_before(&self, error: &UsageError) -> Option<String> {
        let at = self.position_of(&unknown_word(error)?)?;
        let before = Typed::try_parse_from(&self.ours[..at]).ok()?;
        let ScriptOptions { script, one_liner, .. } = match before.verb {
            None => before.run.script,
            Some(Verb::Run(it)) => it.script,
            Some(_) => return None,
        };
        let word = unknown_word(error)?;
        let script = script?;
        match one_liner.is_some() || is_program(&script) || !is_script(&script) && is_command(&script) {
            true => Some(script),
            false => Some(word).filter(|it| is_command(it)),
        }
    }
}

impl Typed {
    /// Refuses a script before the verb.
    fn without_early_script(self) -> Result<Self, UsageError> {
        match (&self.verb, &self.run.script.script) {
            (Some(_), Some(name)) => Err(usage(format!("a verb comes before the script: put `{name}` after it"))),
            _ => Ok(self),
        }
    }

    /// The script of its verb, if that takes one.
    fn script(&self) -> Option<&ScriptOptions> {
        match &self.verb {
            None => Some(&self.run.script),
            Some(Verb::Run(it)) => Some(&it.script),
            Some(Verb::Record(it)) => Some(&it.script),
            Some(Verb::Check(it)) => Some(&it.script),
            Some(Verb::Explain(it)) => Some(&it.script),
            Some(Verb::Build(it)) => Some(&it.script),
            Some(_) => None,
        }
    }
}

impl ScriptOptions {
    fn is_given(&self) -> bool {
        self.script.is_some() || self.one_liner.is_some()
    }
}

/// Returns the word that clap doesn't know.
fn unknown_word(error: &UsageError) -> Option<String> {
    let word = error.get(ContextKind::InvalidArg).filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    Some(word.to_string())
}

fn is_script(name: &str) -> bool {
    Path::new(name).exists() || xputrace_script::scripts().iter().any(|it| it.name == name)
}

fn lossy(word: OsString) -> String {
    word.to_string_lossy().into_owned()
}
