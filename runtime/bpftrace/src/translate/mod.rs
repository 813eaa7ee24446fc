//! Turns a program's tree into a script.

mod call;
mod expression;
mod format;
mod handler;

use crate::facts::{self, Facts};
use crate::layout::{self, Piece};
use crate::names::{self, Named, ScriptNames};
use crate::scanner::Comment;
use crate::target::{AttachPoint, Event};
use crate::translation::{Translation, Untranslated, position};
use crate::tree::{Item, Other, Probe, Program, Span};
use handler::Handler;
use std::collections::{BTreeMap, BTreeSet};

/// Why something has no translation, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) span: Span,
    pub(crate) because: String,
}

pub(crate) type Coded<T> = Result<T, Refused>;

/// Whole translations at most, each without the maps that the one before could not fill.
const MOST_ROUNDS: usize = 20;

/// Translates a parsed program.
pub(crate) fn translate(text: &str, program: &Program, comments: &[Comment]) -> Translation {
    let facts = Facts::of(program);
    let mut unfilled = BTreeSet::new();
    for _ in 0..MOST_ROUNDS {
        let mut translator = Translator::new(text, program, &facts, comments, &unfilled);
        let pieces = translator.program();
        let more: Vec<String> = translator.read.difference(&translator.filled).cloned().collect();
        if more.is_empty() {
            return Translation { text: layout::text(&pieces), untranslated: translator.untranslated };
        }
        unfilled.extend(more);
    }
    let because = "its maps depend on each other too deeply".to_owned();
    let untranslated = vec![Untranslated { line: 1, column: 1, what: "the program".into(), because }];
    Translation { text: format!("// not translated: the program, because {}\n", untranslated[0].because), untranslated }
}

/// What a whole translation needs and finds out.
pub(crate) struct Translator<'t> {
    pub(crate) text: &'t str,
    pub(crate) program: &'t Program,
    pub(crate) facts: &'t Facts,
    comments: &'t [Comment],
    next_comment: usize,
    /// Where the last piece ended in the text.
    end: usize,
    /// Maps that nothing fills whose translation is known.
    unfilled: &'t BTreeSet<String>,
    filled: BTreeSet<String>,
    read: BTreeSet<String>,
    /// Declarations before all handlers, by what they are for.
    declared: BTreeMap<String, String>,
    untranslated: Vec<Untranslated>,
    names: ScriptNames,
    /// Differences that are said once.
    said: BTreeSet<&'static str>,
}

impl<'t> Translator<'t> {
    fn new(
        text: &'t str,
        program: &'t Program,
        facts: &'t Facts,
        comments: &'t [Comment],
        unfilled: &'t BTreeSet<String>,
    ) -> Self {
        Translator {
            text,
            program,
            facts,
            comments,
            next_comment: 0,
            end: 0,
            unfilled,
            filled: BTreeSet::new(),
            read: BTreeSet::new(),
            declared: BTreeMap::new(),
            untranslated: Vec::new(),
            names: ScriptNames::default(),
            said: BTreeSet::new(),
        }
    }

    fn program(&mut self) -> Vec<Piece> {
        let program = self.program;
        let mut pieces = Vec::new();
        for (number, item) in program.items.iter().enumerate() {
            let span = match item {
                Item::Probe(it) => &it.span,
                Item::Macro(it) => &it.span,
                Item::Other { span, .. } => span,
            };
            self.come_to(span.start, &mut pieces);
            match item {
                Item::Probe(it) => self.probe(number, it, &mut pieces),
                // Where it is called, its body stands.
                Item::Macro(_) => {}
                Item::Other { what, span } => self.other(*what, span, &mut pieces),
            }
            self.leave(span);
        }
        self.come_to(self.text.len(), &mut pieces);
        self.with_declarations(pieces)
    }

    /// Puts what handlers need before them, behind the comments at the program's beginning.
    fn with_declarations(&self, mut pieces: Vec<Piece>) -> Vec<Piece> {
        if self.declared.is_empty() {
            return pieces;
        }
        let first_code = pieces.iter().position(Piece::is_code).unwrap_or(pieces.len());
        let at = pieces[..first_code].iter().position(|it| *it == Piece::Blank).map_or(0, |it| it + 1);
        let lines = self.declared.values().map(|it| Piece::Line(it.clone())).chain([Piece::Blank]);
        pieces.splice(at..at, lines.collect::<Vec<_>>());
        pieces
    }

    /// Takes the comments before a place, and an empty line if the text has one.
    pub(crate) fn come_to(&mut self, place: usize, pieces: &mut Vec<Piece>) {
        while let Some(comment) = self.comments.get(self.next_comment).filter(|it| it.span.start < place) {
            self.next_comment += 1;
            if comment.span.start < self.end {
                continue;
            }
            let is_behind = !self.text[self.end..comment.span.start].contains('\n');
            let text = comment_text(&self.text[comment.span.clone()]);
            match pieces.pop() {
                Some(Piece::Line(code)) if is_behind && !text.contains('\n') => {
                    pieces.push(Piece::Commented(code, text));
                }
                last => {
                    pieces.extend(last);
                    self.blank(comment.span.start, pieces);
                    pieces.push(Piece::Comment(text));
                }
            }
            self.end = comment.span.end;
        }
        self.blank(place, pieces);
    }

    /// Whether a comment stands before a place that nothing has taken yet.
    pub(crate) fn has_comment_before(&self, place: usize) -> bool {
        self.comments.get(self.next_comment).is_some_and(|it| it.span.start < place)
    }

    fn blank(&self, place: usize, pieces: &mut Vec<Piece>) {
        let gap = self.text.get(self.end..place).unwrap_or_default();
        if gap.matches('\n').count() > 1 && !pieces.is_empty() {
            pieces.push(Piece::Blank);
        }
    }

    /// Notes that the text up to the end of a piece is translated. Comments within it that are left are dropped with it.
    pub(crate) fn leave(&mut self, span: &Span) {
        self.end = self.end.max(span.end);
    }

    /// Enters a block: comments in it come before its statements.
    pub(crate) fn enter(&mut self, place: usize) {
        self.end = self.end.max(place);
    }

    fn other(&mut self, what: Other, span: &Span, pieces: &mut Vec<Piece>) {
        let refused = |because: &str| Refused { span: span.clone(), because: because.to_owned() };
        match what {
            // Casts to them are what cannot be translated.
            Other::Type => {}
            Other::Config => {
                pieces.push(Piece::Comment(format!("left out, as it sets up bpftrace: {}", self.quote(span))));
            }
            Other::MapDeclaration => self.refuse(refused("maps are declared by `map(#{name: …, size: …})`"), pieces),
            Other::Function => self.refuse_whole(refused("its functions have types; write `fn name(a) { … }`"), pieces),
            Other::Import => self.refuse(refused("it imports a file of bpftrace or of C"), pieces),
        }
    }

    fn probe(&mut self, number: usize, probe: &'t Probe, pieces: &mut Vec<Piece>) {
        let mut groups: Vec<(Event, Vec<AttachPoint>)> = Vec::new();
        let mut refusals: Vec<(String, &'static str)> = Vec::new();
        for point in &probe.points {
            match AttachPoint::of(&point.text) {
                Ok(target) => match groups.iter_mut().find(|it| it.0 == target.event && target.event.takes_list()) {
                    Some(group) => group.1.push(target),
                    None => groups.push((target.event, vec![target])),
                },
                Err(because) => refusals.push((point.text.clone(), because)),
            }
        }
        if groups.is_empty() {
            let because = refusals.first().map_or("it names no event", |it| it.1).to_owned();
            return self.refuse_whole(Refused { span: probe.span.clone(), because }, pieces);
        }
        for (what, because) in refusals {
            self.refuse_as(what, Refused { span: probe.span.clone(), because: because.into() }, pieces);
        }
        for (event, targets) in groups {
            self.declaration(number, probe, event, &targets, pieces);
        }
    }

    fn declaration(
        &mut self,
        number: usize,
        probe: &'t Probe,
        event: Event,
        targets: &[AttachPoint],
        pieces: &mut Vec<Piece>,
    ) {
        let refused_before = self.untranslated.len();
        let body = Handler::new(self, number, event, targets).body(probe);
        match body {
            Ok(body) if body.iter().any(Piece::is_code) => {
                for number in targets.iter().flat_map(|it| &it.parameters) {
                    self.declare_place_parameter(*number, event);
                }
                pieces.push(Piece::Handler { head: head(event, targets), body, tail: ");" });
            }
            Ok(_) if self.untranslated.len() == refused_before => {
                pieces.push(Piece::Comment(format!("left out, as it does nothing: {}", self.quote(&probe.span))));
            }
            // Nothing of it is left: one reason for the whole.
            Ok(_) => {
                let because = self.untranslated[refused_before].because.clone();
                self.untranslated.truncate(refused_before);
                self.refuse_whole(Refused { span: probe.span.clone(), because }, pieces);
            }
            Err(refused) => {
                self.untranslated.truncate(refused_before);
                self.refuse_whole(Refused { span: probe.span.clone(), ..refused }, pieces);
            }
        }
    }

    /// Declares the variable that holds the script's parameter `$number`.
    pub(crate) fn declare_parameter(&mut self, number: u32, default: &str) -> String {
        let name = names::parameter(number);
        let line = self.parameter_line(number, default);
        self.declared.entry(name.clone()).or_insert(line);
        name
    }

    /// Declares a parameter that is part of a place, whatever handlers do with it.
    fn declare_place_parameter(&mut self, number: u32, event: Event) {
        // A period of 0 would be none.
        let line = self.parameter_line(number, if event.takes_list() { "\"\"" } else { "1" });
        self.declared.insert(names::parameter(number), line);
    }

    fn parameter_line(&self, number: u32, default: &str) -> String {
        let name = names::parameter(number);
        let default = if self.facts.text_parameters.contains(&number) { "\"\"" } else { default };
        format!("let {name} = arg(\"{name}\", {default}, \"the script's parameter {number}\");")
    }

    /// Declares a constant; returns its name here. None if there is no such constant.
    pub(crate) fn declare_constant(&mut self, name: &str) -> Option<String> {
        let of_program = self.program.constants.iter().rev().find(|it| it.name == name);
        let value = match of_program {
            Some(it) => facts::constant_value(&it.value),
            None => names::linux_constant(name),
        }?;
        let here = self.name(Named::Constant, name);
        self.declared.insert(here.clone(), format!("let {here} = {value};"));
        Some(here)
    }

    /// Returns the name here of something of the program.
    pub(crate) fn name(&mut self, what: Named, name: &str) -> String {
        self.names.of(what, name)
    }

    pub(crate) fn declare(&mut self, name: &str, line: String) {
        self.declared.insert(name.to_owned(), line);
    }

    /// Whether something is to be said for the first time.
    pub(crate) fn says(&mut self, what: &'static str) -> bool {
        self.said.insert(what)
    }

    /// Notes that a translated statement fills a map.
    pub(crate) fn fill(&mut self, map: &str) {
        self.filled.insert(map.to_owned());
    }

    /// Notes that a translated statement needs what a map holds.
    ///
    /// # Errors
    /// Nothing fills the map.
    pub(crate) fn read(&mut self, map: &str, span: &Span) -> Coded<()> {
        if self.unfilled.contains(map) {
            let because = format!("nothing that could be translated fills `@{map}`");
            return Err(Refused { span: span.clone(), because });
        }
        // A map that the program itself never fills is empty there too.
        if self.facts.is_filled(map) {
            self.read.insert(map.to_owned());
        }
        Ok(())
    }

    /// Writes a comment in place of a statement.
    pub(crate) fn refuse(&mut self, refused: Refused, pieces: &mut Vec<Piece>) {
        self.refuse_as(self.quote(&refused.span), refused, pieces);
    }

    pub(crate) fn refuse_as(&mut self, what: String, refused: Refused, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::Comment(format!("not translated: {what}, because {}", refused.because)));
        self.note(what, refused);
    }

    /// Writes comments in place of several lines, with the lines.
    fn refuse_whole(&mut self, refused: Refused, pieces: &mut Vec<Piece>) {
        let source = &self.text[refused.span.clone()];
        if !source.contains('\n') {
            return self.refuse(refused, pieces);
        }
        let head = source.split('{').next().unwrap_or_default();
        let what = head.split_whitespace().collect::<Vec<_>>().join(" ");
        let body: String = source.lines().map(|it| format!("\n    {}", it.trim_end().replace('\t', "    "))).collect();
        pieces.push(Piece::Comment(format!("not translated: {what}, because {}:{body}", refused.because)));
        self.note(what, refused);
    }

    fn note(&mut self, what: String, refused: Refused) {
        let (line, column) = position(self.text, refused.span.start);
        self.untranslated.push(Untranslated { line, column, what, because: refused.because });
    }

    /// Returns a part of the text on one line.
    pub(crate) fn quote(&self, span: &Span) -> String {
        let without_comments = self.comments.iter().filter(|it| span.contains(&it.span.start)).rev().fold(
            self.text[span.clone()].to_owned(),
            |mut text, it| {
                let end = it.span.end.min(span.end) - span.start;
                text.replace_range(it.span.start - span.start..end, "");
                text
            },
        );
        without_comments.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Writes the beginning of a declaration, up to the handler's body.
fn head(event: Event, targets: &[AttachPoint]) -> String {
    let parameter = if event.is_interpreted() { "||" } else { "|e|" };
    let places: Vec<&str> = targets.iter().map(|it| it.place.as_str()).collect();
    let function = event.function();
    match places[..] {
        [""] => format!("{function}({parameter}"),
        [place] => format!("{function}({place}, {parameter}"),
        _ => {
            let list = places.join(", ");
            // bpftrace leaves out what does not exist, if anything else does.
            match list.len() < 90 {
                true => format!("{function}([{list}], #{{optional: true}}, {parameter}"),
                false => format!("{function}([\n    {},\n], #{{optional: true}}, {parameter}", places.join(",\n    ")),
            }
        }
    }
}

/// Returns a comment's text without its slashes and stars.
fn comment_text(comment: &str) -> String {
    if let Some(line) = comment.strip_prefix("//") {
        return line.trim().to_owned();
    }
    let inner = comment.trim_start_matches("/*").trim_end_matches("*/");
    let lines = inner.lines().map(|it| {
        let line = it.trim_end().trim_start_matches([' ', '\t']);
        line.strip_prefix("* ").or_else(|| line.strip_prefix('*')).unwrap_or(line)
    });
    let lines: Vec<&str> = lines.collect();
    lines.join("\n").trim().to_owned()
}
