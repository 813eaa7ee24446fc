//! Translates what prints: `printf`'s formats to templates, and several calls that write one line to one `print`.

use super::Coded;
use super::expression::ADDITION;
use super::expression::TIGHTEST;
use super::handler::{Handler, refused};
use crate::facts::{self, ValueKind};
use crate::layout::Piece;
use crate::quoted::{quoted, within_backticks};
use crate::tree::{Binary, Expr, ExprKind, Stmt, StmtKind};

/// A part of what is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPart {
    Text(String),
    /// Code of a value.
    Value(String),
}

/// A conversion of `printf`: `%-6d`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Conversion {
    is_left: bool,
    has_zeros: bool,
    /// `#`: with `0x` before hexadecimal digits.
    has_prefix: bool,
    width: usize,
    has_precision: bool,
    /// `+` or a space before numbers that are not negative.
    has_sign: bool,
    letter: char,
}

impl Conversion {
    /// Whether a number is printed with a sign even if it is not negative.
    fn shows_sign(&self) -> bool {
        self.has_sign && matches!(self.letter, 'd' | 'i')
    }
}

/// The only part of a format of `strftime` that is known.
pub(super) const TIME_OF_DAY: &str = "%H:%M:%S";

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPiece {
    Text(String),
    Conversion(Conversion),
}

/// Columns that `.pad` fills at most.
const MOST_COLUMNS: usize = 256;

impl Handler<'_, '_> {
    /// Translates the calls at the beginning that print, up to the end of a line; returns how many there are.
    ///
    /// # Errors
    /// The first one has no translation.
    pub(super) fn printed(&mut self, statements: &[Stmt], pieces: &mut Vec<Piece>) -> Coded<usize> {
        let mut parts = Vec::new();
        let mut taken = 0;
        for statement in statements {
            // A comment between two calls stays there.
            if taken > 0 && self.translator.has_comment_before(statement.span.start) {
                break;
            }
            match self.parts_of(statement) {
                Some(Ok(more)) => parts.extend(more),
                Some(Err(refused)) if taken == 0 => return Err(refused),
                _ => break,
            }
            taken += 1;
            if ends_line(&parts) {
                break;
            }
        }
        if taken == 0 {
            return Ok(0);
        }
        if !ends_line(&parts) {
            self.differences.push("`print` ends the line here".into());
        }
        self.say_differences(pieces);
        if let Some(FormatPart::Text(last)) = parts.last_mut().filter(|it| matches!(it, FormatPart::Text(_)))
            && last.ends_with('\n')
        {
            last.pop();
        }
        pieces.push(Piece::Line(format!("print({});", template(&parts))));
        Ok(taken)
    }

    /// Returns what a statement prints; none if it isn't one that prints text.
    fn parts_of(&mut self, statement: &Stmt) -> Option<Coded<Vec<FormatPart>>> {
        let StmtKind::Expr(call) = &statement.kind else { return None };
        let ExprKind::Call { name, arguments } = &call.kind else { return None };
        match (name.as_str(), &arguments[..]) {
            ("printf", [Expr { kind: ExprKind::Text(format), .. }, values @ ..]) => {
                Some(self.formatted(format, values, call))
            }
            ("time", []) => Some(self.time_of_day("%H:%M:%S\n", call)),
            ("time", [Expr { kind: ExprKind::Text(format), .. }]) => Some(self.time_of_day(format, call)),
            ("print", [Expr { kind: ExprKind::Map { keys, .. }, .. }, ..]) if keys.is_empty() => None,
            ("print", [value]) => Some(self.formatted("%s\n", std::slice::from_ref(value), call)),
            _ => None,
        }
    }

    /// Translates a format of `strftime`. Only the time of day is known.
    fn time_of_day(&mut self, format: &str, it: &Expr) -> Coded<Vec<FormatPart>> {
        if format.replace(TIME_OF_DAY, "").contains('%') {
            return Err(refused(it, "only the time of day, %H:%M:%S, can be printed"));
        }
        let now = self.clock_time(&Expr { kind: ExprKind::Name("nsecs".into()), span: it.span.clone() })?;
        let mut parts = Vec::new();
        for (at, text) in format.split(TIME_OF_DAY).enumerate() {
            if at > 0 {
                parts.push(FormatPart::Value(now.clone()));
            }
            parts.push(FormatPart::Text(text.to_owned()));
        }
        Ok(parts)
    }

    /// Writes a time of the events' clock as a time of day.
    pub(super) fn clock_time(&mut self, nsecs: &Expr) -> Coded<String> {
        self.translator.declare(" clock", "import \"clock\" as clock;".into());
        self.translator.declare("ahead", "let ahead = clock_ahead_ns();".into());
        Ok(format!("clock::of_day({} + ahead)", self.operand(nsecs, ADDITION)?))
    }

    fn formatted(&mut self, format: &str, values: &[Expr], call: &Expr) -> Coded<Vec<FormatPart>> {
        let pieces = format_pieces(format);
        let wanted = pieces.iter().filter(|it| matches!(it, FormatPiece::Conversion(_))).count();
        if wanted != values.len() {
            let given = values.len();
            let because = format!("the number of values its format takes is {wanted}, and {given} are given");
            return Err(refused(call, &because));
        }
        let mut parts = Vec::new();
        let mut values = values.iter();
        for piece in pieces {
            match piece {
                FormatPiece::Text(text) => parts.push(FormatPart::Text(text)),
                FormatPiece::Conversion(conversion) => {
                    let Some(value) = values.next() else { continue };
                    let more = self.converted(&conversion, value, &mut parts)?;
                    parts.extend(more);
                }
            }
        }
        Ok(parts)
    }

    /// Translates a value as it is to be formatted; `before` is what is printed before it.
    fn converted(
        &mut self,
        conversion: &Conversion,
        value: &Expr,
        before: &mut [FormatPart],
    ) -> Coded<Vec<FormatPart>> {
        if conversion.letter != 's' && matches!(value.kind, ExprKind::Text(_)) {
            return Err(refused(value, "its format prints a number, and this is text"));
        }
        if let Some(text) = known(conversion, value) {
            return Ok(vec![FormatPart::Text(text)]);
        }
        match conversion.letter {
            'd' | 'i' | 'u' | 's' => {}
            'x' | 'X' | 'p' => {
                return self.hexadecimal(conversion, value, before).map(|it| vec![FormatPart::Value(it)]);
            }
            'o' => return Err(refused(value, "numbers are printed in decimal or hexadecimal digits")),
            'c' => return Err(refused(value, "a number cannot be printed as a character")),
            'r' => return Err(refused(value, "only text can be read from memory, by `str`")),
            _ => return Err(refused(value, "its format is not known")),
        }
        if conversion.has_precision {
            return Err(refused(value, "a text cannot be cut where it is printed; pass a length to `str`"));
        }
        if conversion.shows_sign() {
            return Err(refused(value, "only a negative number has a sign where it is printed"));
        }
        self.say_of_negative(conversion, value);
        if conversion.has_zeros && conversion.width > 1 && conversion.letter != 's' {
            return Ok(self.digits(conversion.width, value)?.into_iter().map(FormatPart::Value).collect());
        }
        let code = self.number(value)?;
        // A stack has several lines.
        let is_plain = conversion.width < 2 || code.kind == ValueKind::Stack;
        let text = if is_plain { code.text } else { padded(conversion, &code.at_least(TIGHTEST)) };
        Ok(vec![FormatPart::Value(text)])
    }

    /// Says how a negative number is printed otherwise, where the value may be one.
    fn say_of_negative(&mut self, conversion: &Conversion, value: &Expr) {
        const DIGITS: &str = "leading zeros are right only before numbers that are not negative";
        const UNSIGNED: &str = "`%u` prints a negative number with its sign";
        let difference = match conversion.letter {
            's' => return,
            _ if conversion.has_zeros && conversion.width > 1 => DIGITS,
            'u' => UNSIGNED,
            _ => return,
        };
        if !is_never_negative(value) && self.translator.says(difference) {
            self.differences.push(difference.into());
        }
    }

    /// Writes `x.hex`, which begins with `0x`: a `0x` of the format before it is left out.
    fn hexadecimal(&mut self, conversion: &Conversion, value: &Expr, before: &mut [FormatPart]) -> Coded<String> {
        const PREFIXED: &str = "hexadecimal digits have `0x` before them, and are small";
        if conversion.has_zeros && conversion.width > 1 {
            return Err(refused(value, "hexadecimal numbers are printed without leading zeros"));
        }
        let code = format!("{}.hex", self.operand(value, TIGHTEST)?);
        match before.last_mut() {
            _ if conversion.letter == 'p' || conversion.has_prefix => {}
            Some(FormatPart::Text(text)) if text.ends_with("0x") && conversion.letter == 'x' => {
                text.truncate(text.len() - "0x".len());
            }
            _ if self.translator.says(PREFIXED) => self.differences.push(PREFIXED.into()),
            _ => {}
        }
        Ok(if conversion.width < 2 { code } else { padded(conversion, &code) })
    }

    /// Writes each digit of a number with leading zeros by itself.
    fn digits(&mut self, width: usize, value: &Expr) -> Coded<Vec<String>> {
        const MOST_DIGITS: usize = 9;
        if width > MOST_DIGITS {
            return Err(refused(value, "numbers are printed without leading zeros"));
        }
        let number = self.operand(value, TIGHTEST)?;
        Ok((0..width)
            .rev()
            .map(|at| {
                let unit = 10u64.pow(at as u32);
                match (at + 1 == width, at) {
                    (true, _) => format!("{number} / {unit}"),
                    (_, 0) => format!("{number} % 10"),
                    _ => format!("{number} / {unit} % 10"),
                }
            })
            .collect())
    }
}

/// Writes `x.pad(8)`: spaces before the text, or after it for negative numbers.
fn padded(conversion: &Conversion, code: &str) -> String {
    let sign = if conversion.is_left { "-" } else { "" };
    format!("{code}.pad({sign}{})", conversion.width.min(MOST_COLUMNS))
}

/// Whether a value is surely 0 or more.
fn is_never_negative(value: &Expr) -> bool {
    match &value.kind {
        ExprKind::Int(number) => *number >= 0,
        ExprKind::Name(name) => {
            matches!(name.as_str(), "pid" | "tid" | "uid" | "gid" | "cpu" | "cgroup" | "nsecs" | "elapsed")
        }
        ExprKind::Cast { to, .. } => matches!(to.as_str(), "uint8" | "uint16" | "uint32"),
        ExprKind::Binary(Binary::Divide | Binary::Remainder, a, b) => is_never_negative(a) && is_never_negative(b),
        _ => false,
    }
}

/// Formats a value that is known now.
fn known(conversion: &Conversion, value: &Expr) -> Option<String> {
    let text = match (&value.kind, conversion.letter) {
        (ExprKind::Text(text), 's') => text.clone(),
        _ => {
            let number = facts::constant_value(value)?;
            match conversion.letter {
                'd' | 'i' | 's' => number.to_string(),
                'u' => (number as u64).to_string(),
                'x' => format!("{number:x}"),
                'X' => format!("{number:X}"),
                'o' => format!("{number:o}"),
                'p' => format!("{number:#x}"),
                'c' => u8::try_from(number).ok().filter(u8::is_ascii).map(char::from)?.to_string(),
                _ => return None,
            }
        }
    };
    let width = conversion.width;
    (width <= MOST_COLUMNS && !conversion.has_precision && !conversion.shows_sign()).then(|| {
        match (conversion.is_left, conversion.has_zeros) {
            (true, _) => format!("{text:<width$}"),
            (false, true) if conversion.letter != 's' => {
                let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |it| ("-", it));
                format!("{sign}{digits:0>zeros$}", zeros = width.saturating_sub(sign.len()))
            }
            (false, _) => format!("{text:>width$}"),
        }
    })
}

/// Splits a format of `printf`.
fn format_pieces(format: &str) -> Vec<FormatPiece> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let (conversion, length) = conversion(&rest[at + 1..]);
        rest = &rest[at + 1 + length..];
        match conversion {
            Some(it) => {
                if !text.is_empty() {
                    pieces.push(FormatPiece::Text(std::mem::take(&mut text)));
                }
                pieces.push(FormatPiece::Conversion(it));
            }
            None => text.push('%'),
        }
    }
    text.push_str(rest);
    if !text.is_empty() {
        pieces.push(FormatPiece::Text(text));
    }
    pieces
}

/// Reads what follows a `%`; none for `%%`. Also returns its length.
fn conversion(rest: &str) -> (Option<Conversion>, usize) {
    let mut conversion = Conversion::default();
    let mut chars = rest.char_indices().peekable();
    while let Some((_, flag)) = chars.next_if(|it| matches!(it.1, '-' | '+' | ' ' | '0' | '#')) {
        conversion.is_left |= flag == '-';
        conversion.has_zeros |= flag == '0';
        conversion.has_prefix |= flag == '#';
        conversion.has_sign |= matches!(flag, '+' | ' ');
    }
    while let Some((_, digit)) = chars.next_if(|it| it.1.is_ascii_digit()) {
        let digit = digit.to_digit(10).unwrap_or(0) as usize;
        conversion.width = conversion.width.saturating_mul(10).saturating_add(digit);
    }
    while chars.next_if(|it| it.1 == '.' || it.1.is_ascii_digit()).is_some() {
        conversion.has_precision = true;
    }
    while chars.next_if(|it| matches!(it.1, 'l' | 'h' | 'z' | 'j' | 't')).is_some() {}
    match chars.next() {
        Some((at, '%')) => (None, at + 1),
        Some((at, letter)) => {
            conversion.letter = letter;
            // `%rx` and `%rh` are buffers too.
            let more = usize::from(letter == 'r' && rest[at + 1..].starts_with(['x', 'h']));
            (Some(conversion), at + letter.len_utf8() + more)
        }
        None => (None, rest.len()),
    }
}

fn ends_line(parts: &[FormatPart]) -> bool {
    matches!(parts.last(), Some(FormatPart::Text(text)) if text.ends_with('\n'))
}

/// Writes the argument of `print`.
fn template(parts: &[FormatPart]) -> String {
    let text = |it: &FormatPart| if let FormatPart::Text(it) = it { Some(it.clone()) } else { None };
    // In quotes, `${` looks like a mistake.
    if let Some(text) = parts.iter().map(text).collect::<Option<String>>().filter(|it| !it.contains("${")) {
        return quoted(&text);
    }
    let mut code = String::from("`");
    for part in parts {
        match part {
            FormatPart::Value(value) => code += &format!("${{{value}}}"),
            FormatPart::Text(text) => code += &within_backticks(text),
        }
    }
    code.push('`');
    code
}
