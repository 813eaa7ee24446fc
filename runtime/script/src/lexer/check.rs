//! Finds mistakes that show in the tokens: syntax of other languages, and what Rhai's parser would
//! explain badly. Reports all of them, unlike a parser, which stops at the first.

use super::token::{self, Token, TokenKind};
use super::{bare, bpftrace};
use crate::words;
use std::ops::Range;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label};

pub(super) fn check(file: FileId, text: &str, tokens: &[Token]) -> Vec<Diagnostic> {
    let mut checker = Checker { file, text, tokens, open: Vec::new(), found: Vec::new() };
    let mut at = 0;
    while at < tokens.len() {
        at = match checker.foreign_probe(at) {
            Some(end) => end,
            None => {
                checker.token(at);
                at + 1
            }
        };
    }
    checker.unclosed();
    checker.own_names_of_fields();
    checker.found.sort_by_key(|it| it.primary.span.start);
    checker.found
}

struct Checker<'a> {
    file: FileId,
    text: &'a str,
    tokens: &'a [Token],
    /// Open brackets at this point, by token.
    open: Vec<usize>,
    found: Vec<Diagnostic>,
}

impl Checker<'_> {
    /// Warns of names in a handler `|| …` that could be fields of its event, and are the script's own.
    fn own_names_of_fields(&mut self) {
        for at in bare::handlers(self.text, self.tokens).iter().flat_map(|it| &it.own) {
            let name = self.slice(*at);
            let message = format!("`{name}` is the script's own here, and not the event's field");
            let warning = Diagnostic::warning("own-name", message, self.label_of(*at));
            self.found.push(warning.help(format!("for the field, name the event: `|e| … e.{name}`")));
        }
    }

    fn token(&mut self, at: usize) {
        match self.tokens[at].kind {
            TokenKind::OpenText | TokenKind::OpenTemplate | TokenKind::OpenComment => self.open_text(at),
            TokenKind::Identifier => self.identifier(at),
            TokenKind::Map => self.map_name(at),
            TokenKind::Float => self.fraction(at),
            TokenKind::Integer => self.too_long(at),
            TokenKind::Text => self.character(at),
            TokenKind::Symbol => self.symbol(at),
            _ => {}
        }
        self.missing_separator(at);
        self.brackets(at);
    }

    fn symbol(&mut self, at: usize) {
        match self.slice(at) {
            "?" => self.ternary(at),
            "++" | "--" => self.increment(at),
            "|" if self.word(at + 1) == "_" && matches!(self.slice(at + 2), "|" | ",") => {
                self.unnamed_parameter(at + 1)
            }
            "===" | "!==" => {
                let right = &self.slice(at)[..2];
                self.say(
                    at,
                    "equality",
                    format!("`{}` is not an operator", self.slice(at)),
                    &[&format!("write `{right}`")],
                );
            }
            "$" => self.dollar(at),
            "->" => self.arrow(at),
            "<" if self.slice(at + 1) == ">" && self.touches(at) => {
                self.say(at, "operator", "`<>` means nothing here", &["write `!=`"]);
            }
            "“" | "”" | "„" | "‘" | "’" | "«" | "»" => {
                let help = ["write straight quotes: `\"…\"`"];
                self.say(at, "quotes", format!("`{}` does not quote strings", self.slice(at)), &help);
            }
            "~" => self.say(
                at,
                "operator",
                "there is no `~` operator",
                &["write `k.name.contains(\"gemm\")`, or `.starts_with(…)`, `.ends_with(…)`"],
            ),
            "=>" if self.innermost() == "(" => self.arrow_function(at),
            ";" if self.innermost() == "[" => {
                self.say(
                    at,
                    "separator",
                    "`;` is not allowed in brackets",
                    &["write `,` between the parts: `@m[a, b]`"],
                );
            }
            ";" if self.innermost() == "(" => self.handler_without_braces(at),
            "=" => self.assignment_in_condition(at),
            "/" => self.predicate(at),
            _ => {}
        }
    }

    fn ternary(&mut self, at: usize) {
        self.say(at, "ternary", "there is no `? :` operator", &["write `if condition { a } else { b }`"]);
    }

    fn increment(&mut self, at: usize) {
        let operator = self.slice(at);
        let name = match at.checked_sub(1).map(|before| self.tokens[before].kind) {
            Some(TokenKind::Identifier | TokenKind::Map) => self.slice(at - 1),
            _ => "x",
        };
        let help = format!("write `{name} {}= 1`", &operator[..1]);
        self.say(at, "increment", format!("there is no `{operator}` operator"), &[&help]);
    }

    fn unnamed_parameter(&mut self, at: usize) {
        self.say(at, "unnamed-parameter", "a parameter needs a name", &["write `|e|`, even if you don't use it"]);
    }

    fn dollar(&mut self, at: usize) {
        let name = match self.word(at + 1) {
            "" => "x",
            name => name,
        };
        let help = format!("write `let {name} = …;` once, then `{name}`; `@{name}` is a map");
        self.say(at, "dollar-variable", "variables are written without `$`", &[&help]);
    }

    /// Reports C's `args->name`.
    fn arrow(&mut self, at: usize) {
        let help = format!("write `e.{}`, where `|e|` is the handler's parameter", self.word(at + 1));
        self.say(at, "field-arrow", "read fields with a dot", &[&help]);
    }

    /// Reports `k => …`, which is not a closure here.
    fn arrow_function(&mut self, at: usize) {
        let name = at.checked_sub(1).map_or("k", |before| self.word(before));
        let help = format!("write `|{name}| …`");
        self.say(at, "closure", "write closures with bars", &[&help]);
    }

    /// Reports a probe in bpftrace's notation, and returns the token after it.
    fn foreign_probe(&mut self, at: usize) -> Option<usize> {
        let is_name = self.tokens[at].kind == TokenKind::Identifier && self.open.is_empty();
        let probe = is_name.then(|| bpftrace::probe(self.text, self.tokens, at)).flatten()?;
        self.say(at, "probe-block", "declare probes by calling a function with a handler", &[&probe.help]);
        Some(probe.tokens.end)
    }

    /// Reports operators and keywords of other languages.
    fn foreign_word(&mut self, at: usize) -> bool {
        let after_operand = at > 0 && self.ends_operand(at - 1);
        let instead = match self.slice(at) {
            "and" if after_operand => "&&",
            "or" if after_operand => "||",
            "not" if !after_operand && matches!(self.slice(at + 1), "(") => "!",
            "elif" | "elsif" | "elseif" if at > 0 && self.slice(at - 1) == "}" => "else if",
            _ => return false,
        };
        let word = self.slice(at).to_owned();
        self.say(at, "operator", format!("`{word}` means nothing here"), &[&format!("write `{instead}`")]);
        true
    }

    fn innermost(&self) -> &str {
        self.open.last().map_or("", |it| self.slice(*it))
    }

    /// Reports `uprobe(…, |e| a; b)`.
    fn handler_without_braces(&mut self, at: usize) {
        let Some(open) = self.open.last().copied() else { return };
        // Nothing after such a text can be told.
        if self.found.iter().any(|it| it.code == "unclosed-text") {
            return;
        }
        let is_bar = |it: &usize| self.tokens[*it].kind == TokenKind::Symbol && matches!(self.slice(*it), "|" | "||");
        let mut bars = (open + 1..at).filter(is_bar);
        let Some(first) = bars.next() else { return };
        let last = if self.slice(first) == "||" { first } else { bars.next().unwrap_or(first) };
        let bars = &self.text[self.tokens[first].span.start..self.tokens[last].span.end];
        let help = format!("write `{bars} {{ …; … }}`");
        self.say(at, "missing-braces", "a handler of several statements needs braces", &[&help]);
    }

    /// Reports `if a = b {` at the first assignment in the condition.
    fn assignment_in_condition(&mut self, at: usize) {
        let mut depth = 0i32;
        for before in (0..at).rev() {
            match self.slice(before) {
                ")" | "]" => depth += 1,
                "(" | "[" => depth -= 1,
                "{" | "}" | ";" | "|" | "||" | "#{" => return,
                "if" | "while" if depth <= 0 && self.tokens[before].kind == TokenKind::Identifier => {
                    let help = ["write `==` to compare"];
                    return self.say(at, "assignment-in-condition", "a condition cannot assign", &help);
                }
                _ => {}
            }
        }
    }

    /// Reports bpftrace's `probe /condition/ { … }`.
    fn predicate(&mut self, at: usize) {
        let follows = at.checked_sub(1).is_some_and(|before| matches!(self.slice(before), ")" | ":" | "|"));
        let line_end = self.text[self.tokens[at].span.end..].find('\n').unwrap_or(usize::MAX);
        let closing = (at + 1..self.tokens.len())
            .take_while(|it| self.tokens[*it].span.start - self.tokens[at].span.end < line_end)
            .find(|it| self.slice(*it) == "/" && self.slice(it + 1) == "{");
        if follows && closing.is_some() {
            let help = ["write `if condition { … }` inside the handler"];
            self.say(at, "predicate", "there are no `/…/` conditions", &help);
        }
    }

    fn identifier(&mut self, at: usize) {
        if !self.foreign_word(at) {
            self.name(at);
        }
    }

    fn name(&mut self, at: usize) {
        let name = self.slice(at);
        if name == "fn" && words::declaring().any(|it| it == self.word(at + 1)) {
            let message =
                format!("`{}` is a function of xputrace, which this definition would hide", self.word(at + 1));
            return self.say(at + 1, "taken-name", message, &["give the function another name"]);
        }
        if name == "import" && !(at > 0 && matches!(self.slice(at - 1), "." | "?.")) {
            return self.import(at);
        }
        if name == "_" || !name.starts_with('_') {
            return;
        }
        let help = format!("`{}` would do; `@{}` is a map", name.trim_start_matches('_'), name.trim_start_matches('_'));
        self.say(at, "underscore-name", format!("names that start with `_` are reserved: `{name}`"), &[&help]);
    }

    fn import(&mut self, at: usize) {
        let literal = self.tokens.get(at + 1).is_some_and(|it| it.kind == TokenKind::Text);
        let help = "write `import \"latency\" as l;` outside any braces";
        if !self.open.is_empty() {
            self.say(at, "import-place", "imports must be at the top level", &[help]);
        } else if !literal {
            self.say(at, "import-name", "an import's name must be a plain double-quoted string", &[help]);
        }
    }

    fn map_name(&mut self, at: usize) {
        let name = &self.slice(at)[1..];
        let touching = self.touches(at);
        let digit = name.starts_with(|c: char| c.is_ascii_digit());
        if digit || name.starts_with('_') {
            let help = "`@calls`, or `@` alone, is a map";
            self.say(at, "map-name", format!("map names start with a letter: `@{name}`"), &[help]);
        } else if name.is_empty() && touching && self.tokens[at + 1].kind == TokenKind::Map {
            self.say(at, "map-name", "a map name has one `@`", &["`@calls`, or `@` alone, is a map"]);
        } else if name.is_empty() && touching && matches!(self.tokens[at + 1].kind, TokenKind::Text) {
            self.say(at, "map-name", "write map names without quotes", &["write `@calls`"]);
        } else {
            self.map_property(at);
        }
    }

    /// Whether a token directly follows.
    fn touches(&self, at: usize) -> bool {
        self.tokens.get(at + 1).is_some_and(|it| it.span.start == self.tokens[at].span.end)
    }

    /// Reports `@x.foo`, which Rhai would take for an element of that name.
    fn map_property(&mut self, at: usize) {
        let property = self.word(at + 2);
        let is_method = self.slice(at + 3) == "(";
        if property.is_empty()
            || is_method
            || !matches!(self.slice(at + 1), "." | "?.")
            || MAP_PROPERTIES.contains(&property)
        {
            return;
        }
        let percentile = property.strip_prefix('p').is_some_and(|it| it.parse::<u8>().is_ok());
        if !percentile {
            let help = format!("for an element, write `{}[\"{property}\"]`; methods need parentheses", self.slice(at));
            self.say(at + 2, "map-property", format!("a map has no field `{property}`"), &[&help]);
        }
    }

    /// Reports `1.5.ms` unless it is whole nanoseconds, and fractions of anything else.
    fn fraction(&mut self, at: usize) {
        let unit = self.word(at + 2);
        if self.slice(at + 1) != "." || !crate::units::is_unit(unit) {
            return;
        }
        let number = self.slice(at);
        if crate::units::fraction(number, unit).is_none() {
            let message = format!("`{number}.{unit}` is not a whole number of nanoseconds");
            self.say(at, "fraction", message, &["times are integers, in nanoseconds"]);
        }
    }

    /// Reports an integer that is too long: Rhai would read it as a float.
    fn too_long(&mut self, at: usize) {
        let digits = self.slice(at).replace('_', "");
        if digits.bytes().all(|it| it.is_ascii_digit()) && digits.parse::<i64>().is_err() {
            let help = format!("integers have 64 bits: the largest is {}", i64::MAX);
            self.say(at, "too-long", format!("`{}` is not a valid integer", self.slice(at)), &[&help]);
        }
    }

    /// Reports single quotes around more than one character.
    fn character(&mut self, at: usize) {
        let text = self.slice(at);
        let inner = text.trim_matches('\'');
        if text.starts_with('\'') && !inner.starts_with('\\') && inner.chars().count() > 1 {
            let help = format!("write `\"{inner}\"`");
            self.say(at, "quotes", "strings need double quotes", &[&help]);
        }
        self.quoted_template(at);
    }

    fn quoted_template(&mut self, at: usize) {
        let text = self.slice(at);
        if text.starts_with('"') && text.split_once("${").is_some_and(|(_, rest)| rest.contains('}')) {
            let message = "double quotes insert no values: `${…}` stays as it is";
            let warning = Diagnostic::warning("template", message, self.label_of(at));
            self.found.push(warning.help("write backticks instead of the quotes"));
        }
    }

    fn open_text(&mut self, at: usize) {
        let (what, end) = match (self.tokens[at].kind, self.slice(at).chars().next()) {
            (TokenKind::OpenComment, _) => ("comment", "*/"),
            (TokenKind::OpenTemplate, _) => ("template", "`"),
            (_, Some('\'')) => ("character", "'"),
            (_, Some('#')) => ("raw string", "\"#"),
            _ => ("string", "\""),
        };
        let start = self.tokens[at].span.start;
        let help = match what {
            "string" => "close it on the same line, or use backticks for several lines".to_owned(),
            "template" => "close it with a backtick".to_owned(),
            _ => format!("close it with `{end}`"),
        };
        let span = start..start + 1;
        self.found.push(
            Diagnostic::error("unclosed-text", format!("this {what} is not closed"), self.label(span)).help(help),
        );
    }

    /// Reports `uprobe("libc:malloc" |e| …)`, whose bars would be operators.
    fn missing_comma_before_handler(&mut self, at: usize) -> bool {
        let (Some(before), Some(open)) = (at.checked_sub(1), self.open.last().copied()) else { return false };
        let declares = open > 0 && words::declaring().any(|it| it == self.word(open - 1));
        let is_bar = |it: usize| matches!(self.slice(it), "|" | "||");
        let ends = matches!(self.slice(before), "}" | "]") || self.ends_operand(before);
        if !is_bar(at) || !declares || self.slice(open) != "(" || !ends || (open..at).any(is_bar) {
            return false;
        }
        let gap = self.tokens[before].span.end..self.tokens[at].span.start;
        let place = self.label(gap.start..gap.start + usize::from(!gap.is_empty()));
        let diagnostic = Diagnostic::error("missing-comma", "a `,` is missing here", place);
        self.found.push(diagnostic.also(self.label_of(at), "the handler starts here"));
        true
    }

    /// Returns the `if` or `while` whose condition includes `at`.
    fn open_condition(&self, at: usize) -> Option<usize> {
        let mut depth = 0usize;
        for before in (0..at).rev() {
            match self.slice(before) {
                ")" | "]" => depth += 1,
                "(" | "[" | "#{" | "?[" => depth = depth.checked_sub(1)?,
                "{" | "}" | ";" | "," => return None,
                "if" | "while" if depth == 0 && self.tokens[before].kind == TokenKind::Identifier => {
                    return Some(before);
                }
                _ => {}
            }
        }
        None
    }

    /// Reports an operand that directly follows another.
    fn missing_separator(&mut self, at: usize) {
        let Some(before) = at.checked_sub(1) else { return };
        if self.missing_comma_before_handler(at) {
            return;
        }
        let quoted_map = self.tokens[before].kind == TokenKind::Map && self.slice(before) == "@";
        if !self.ends_operand(before) || !self.begins_operand(at) || quoted_map {
            return;
        }
        let gap = self.tokens[before].span.end..self.tokens[at].span.start;
        let place = self.label(gap.start..gap.start + usize::from(!gap.is_empty()));
        let diagnostic = if let Some(whole) = self.magnitude(before, at) {
            let message = format!("numbers have no suffix `{}`", self.slice(at));
            Diagnostic::error("number", message, self.label_of(at)).help(whole)
        } else if self.is_bare_unit(before, at) {
            let help = format!("write `{}.{}`", self.slice(before), self.slice(at));
            Diagnostic::error("unit", "join a number and its unit with a dot", self.label_of(at)).help(help)
        } else if let Some(keyword) = self.open_condition(at) {
            let word = self.slice(keyword);
            let condition = &self.text[self.tokens[keyword].span.start..self.tokens[before].span.end];
            Diagnostic::error("missing-braces", format!("the body of `{word}` needs braces"), place)
                .also(self.label_of(at), "it starts here")
                .help(format!("write `{condition} {{ … }}`"))
        } else if self.in_list() {
            Diagnostic::error("missing-comma", "a `,` or an operator is missing here", place)
                .also(self.label_of(at), "another value starts here")
        } else {
            Diagnostic::error("missing-semicolon", "a `;` is missing between two statements", place)
                .also(self.label_of(at), "the second starts here")
                .help("end the first statement with `;`")
        };
        self.found.push(diagnostic);
    }

    /// Whether commas separate items in the innermost open bracket.
    fn in_list(&self) -> bool {
        self.open.last().is_some_and(|open| matches!(self.slice(*open), "(" | "[" | "?[" | "#{"))
    }

    /// Returns what to write instead of `1k`, `4KiB` and the like.
    fn magnitude(&self, before: usize, at: usize) -> Option<String> {
        let digits = self.slice(before).trim_end_matches('_');
        if self.tokens[before].kind != TokenKind::Integer || !self.touches(before) {
            return None;
        }
        let (zeros, binary) = match self.word(at) {
            "k" | "K" | "kB" | "KB" => ("000", None),
            "M" | "MB" => ("000_000", None),
            "G" | "GB" => ("000_000_000", None),
            "KiB" | "Ki" => ("", Some("1024")),
            "MiB" | "Mi" => ("", Some("1024 * 1024")),
            "GiB" | "Gi" => ("", Some("1024 * 1024 * 1024")),
            _ => return None,
        };
        Some(match binary {
            Some(factor) => format!("write `{digits} * {factor}`"),
            None => format!("write `{digits}{}` or `{digits}_{zeros}`", zeros.replace('_', "")),
        })
    }

    fn is_bare_unit(&self, before: usize, at: usize) -> bool {
        let number = matches!(self.tokens[before].kind, TokenKind::Integer | TokenKind::Float);
        number && crate::units::is_unit(self.word(at))
    }

    fn ends_operand(&self, at: usize) -> bool {
        match self.tokens[at].kind {
            TokenKind::Identifier => {
                !KEYWORDS.contains(&self.slice(at)) || (at > 0 && matches!(self.slice(at - 1), "." | "?."))
            }
            TokenKind::Map
            | TokenKind::Integer
            | TokenKind::Float
            | TokenKind::Text
            | TokenKind::Template
            | TokenKind::TemplateEnd => true,
            TokenKind::Symbol => match self.slice(at) {
                "]" => true,
                ")" => !self.closes_condition(at),
                _ => false,
            },
            _ => false,
        }
    }

    fn begins_operand(&self, at: usize) -> bool {
        match self.tokens[at].kind {
            TokenKind::Identifier => {
                !CONNECTIVES.contains(&self.slice(at)) || (self.slice(at) == "if" && self.on_new_line(at))
            }
            TokenKind::Map
            | TokenKind::Integer
            | TokenKind::Float
            | TokenKind::Text
            | TokenKind::Template
            | TokenKind::TemplateStart => true,
            _ => false,
        }
    }

    fn on_new_line(&self, at: usize) -> bool {
        self.text[self.tokens[at - 1].span.end..self.tokens[at].span.start].contains('\n')
    }

    /// Whether the `)` at `at` ends `if (…)` or the like, which anything may follow.
    fn closes_condition(&self, at: usize) -> bool {
        let mut depth = 0usize;
        for before in (0..=at).rev() {
            match self.slice(before) {
                ")" => depth += 1,
                "(" if depth == 1 => return before > 0 && KEYWORDS.contains(&self.word(before - 1)),
                "(" => depth -= 1,
                _ => {}
            }
        }
        false
    }

    fn brackets(&mut self, at: usize) {
        match self.tokens[at].kind {
            TokenKind::TemplateStart => self.open.push(at),
            TokenKind::TemplateEnd => self.close(at, "${"),
            TokenKind::Symbol => match self.slice(at) {
                "(" | "[" | "{" | "#{" | "?[" => self.open.push(at),
                ")" => self.close(at, "("),
                "]" => self.close(at, "["),
                "}" => self.close(at, "{"),
                _ => {}
            },
            _ => {}
        }
    }

    fn close(&mut self, at: usize, opener: &str) {
        match self.open.pop() {
            Some(open) if self.slice(open).ends_with(opener) => {}
            Some(open) => {
                let message = format!(
                    "`{}` does not close `{}`",
                    self.slice(at).chars().next().unwrap_or('}'),
                    self.bracket(open)
                );
                let diagnostic =
                    Diagnostic::error("bracket", message, self.label_of(at)).also(self.label_of(open), "opened here");
                self.found.push(diagnostic);
                // Report a wrong bracket once.
                self.open.clear();
                self.open.shrink_to(0);
            }
            None if !self.found.iter().any(|it| it.code == "bracket") => {
                self.say(at, "bracket", format!("`{}` closes nothing", self.slice(at)), &[]);
            }
            None => {}
        }
    }

    fn unclosed(&mut self) {
        let text_is_open = self.found.iter().any(|it| matches!(it.code, "bracket" | "unclosed-text"));
        if let (Some(open), false) = (self.open.last().copied(), text_is_open) {
            self.say(open, "bracket", format!("this `{}` is not closed", self.bracket(open)), &[]);
        }
    }

    fn bracket(&self, open: usize) -> &str {
        match self.tokens[open].kind {
            TokenKind::Symbol => self.slice(open),
            _ => "${",
        }
    }

    fn say(&mut self, at: usize, code: &'static str, message: impl Into<String>, help: &[&str]) {
        let mut diagnostic = Diagnostic::error(code, message, self.label_of(at));
        diagnostic.help = help.iter().map(|it| (*it).to_owned()).collect();
        self.found.push(diagnostic);
    }

    fn slice(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |it| &self.text[it.span.clone()])
    }

    fn word(&self, at: usize) -> &str {
        token::word(self.text, self.tokens, at)
    }

    fn label_of(&self, at: usize) -> Label {
        self.label(self.tokens[at].span.clone())
    }

    fn label(&self, span: Range<usize>) -> Label {
        Label { file: self.file, span, note: None }
    }
}

/// Properties of a map without a key.
const MAP_PROPERTIES: &[&str] =
    &["value", "human", "hex", "name", "count", "sum", "total", "min", "max", "avg", "average"];

/// Words that an operand may follow.
const KEYWORDS: &[&str] = &[
    "let", "const", "if", "else", "switch", "do", "while", "until", "loop", "for", "in", "continue", "break", "return",
    "throw", "fn", "private", "import", "export", "as", "try", "catch", "and", "or", "elif", "elsif", "elseif",
];

/// Words that no operand begins with; `if` may, on a new line.
const CONNECTIVES: &[&str] =
    &["in", "as", "else", "is", "until", "while", "catch", "if", "and", "or", "elif", "elsif", "elseif"];
