//! Lays out the script that is written, as the bundled scripts are: four spaces, and handlers of one statement on a line.

/// Columns of a line that is put together from several.
const MOST_COLUMNS: usize = 110;

/// A piece of the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A statement with its semicolon.
    Line(String),
    /// A statement with its semicolon, and a comment behind it.
    Commented(String, String),
    /// A comment on lines of its own, without the slashes.
    Comment(String),
    /// An empty line.
    Blank,
    /// `if a { … } else { … }`, a loop: each part's head and body.
    Blocks(Vec<(String, Vec<Piece>)>),
    /// A declaration with a handler: `uprobe("libc:malloc", |e| …);`.
    Handler { head: String, body: Vec<Piece>, tail: &'static str },
}

impl Piece {
    /// Whether it does something.
    pub(crate) fn is_code(&self) -> bool {
        !matches!(self, Piece::Comment(_) | Piece::Blank)
    }
}

/// Returns the text of a script.
pub(crate) fn text(pieces: &[Piece]) -> String {
    let mut text = String::new();
    for line in lines(pieces) {
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn lines(pieces: &[Piece]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Blank if lines.last().is_none_or(|it| it.is_empty()) => {}
            Piece::Blank => lines.push(String::new()),
            Piece::Line(it) => lines.push(it.clone()),
            Piece::Commented(code, comment) => lines.push(format!("{code} // {}", comment.replace(['\n', '\r'], " "))),
            // A carriage return alone ends a line, too: what follows would be code.
            Piece::Comment(it) => lines.extend(it.split(['\n', '\r']).map(|it| format!("// {it}"))),
            Piece::Blocks(parts) => lines.extend(blocks(parts)),
            Piece::Handler { head, body, tail } => lines.extend(handler(head, body, tail)),
        }
    }
    while lines.last().is_some_and(|it| it.is_empty()) {
        lines.pop();
    }
    lines
}

fn indented(lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().map(|it| if it.is_empty() { it } else { format!("    {it}") })
}

fn blocks(parts: &[(String, Vec<Piece>)]) -> Vec<String> {
    if let [(head, body)] = parts
        && let [Piece::Line(line)] = &body[..]
        && head.len() + line.len() + 6 <= MOST_COLUMNS
    {
        return vec![format!("{head} {{ {line} }}")];
    }
    let mut written = Vec::new();
    for (at, (head, body)) in parts.iter().enumerate() {
        let before = if at > 0 { "} " } else { "" };
        written.push(format!("{before}{head} {{"));
        written.extend(indented(lines(body)));
    }
    written.push("}".into());
    written
}

fn handler(head: &str, body: &[Piece], tail: &str) -> Vec<String> {
    if let [only @ (Piece::Line(_) | Piece::Blocks(_))] = body {
        let mut code = lines(std::slice::from_ref(only));
        if let [line] = &mut code[..]
            && matches!(only, Piece::Line(_))
        {
            line.truncate(line.trim_end_matches(';').len());
        }
        if code.len() > 1 || head.len() + code[0].len() + tail.len() < MOST_COLUMNS {
            code[0].insert_str(0, &format!("{head} "));
            if let Some(last) = code.last_mut() {
                last.push_str(tail);
            }
            return code;
        }
    }
    let mut written = vec![format!("{head} {{")];
    written.extend(indented(lines(body)));
    written.push(format!("}}{tail}"));
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handlers_of_one_statement_are_one_line() {
        let line = |it: &str| Piece::Line(it.into());
        let body = vec![Piece::Blocks(vec![("if a".into(), vec![line("b;")]), ("else".into(), vec![line("c;")])])];
        let commented = vec![Piece::Commented("b;".into(), "why;".into())];
        let pieces = [
            Piece::Handler {
                head: "end(||".into(),
                body: vec![Piece::Blocks(vec![("if a".into(), commented)])],
                tail: ");",
            },
            Piece::Handler { head: "end(||".into(), body: vec![line("print(@m);")], tail: ");" },
            Piece::Blank,
            Piece::Blank,
            Piece::Handler { head: "end(||".into(), body, tail: ");" },
            Piece::Handler { head: "end(||".into(), body: vec![Piece::Comment("a\nb".into()), line("c;")], tail: ");" },
        ];
        let expected = "end(|| if a {\n    b; // why;\n});\nend(|| print(@m));\n\nend(|| if a {\n    b;\n} else {\n    c;\n});\nend(|| {\n    // a\n    // b\n    c;\n});\n";
        assert_eq!(text(&pieces), expected);
    }
}
