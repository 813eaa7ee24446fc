//! The imports of a text, found in its tokens.

use super::token::{Token, TokenKind};

/// A top-level `import "name" as alias`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    /// The name with its quotes.
    pub(crate) name_span: std::ops::Range<usize>,
    /// The whole statement without its semicolon.
    pub(super) span: std::ops::Range<usize>,
}

/// Returns the imports of a text, in order.
pub(super) fn imports(text: &str, tokens: &[Token]) -> Vec<Import> {
    let slice = |at: usize| tokens.get(at).map_or("", |it: &Token| &text[it.span.clone()]);
    let is_name = |at: usize| tokens.get(at).is_some_and(|it| it.kind == TokenKind::Text) && slice(at).starts_with('"');
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if slice(at) != "import" || tokens[at].kind != TokenKind::Identifier || !is_name(at + 1) {
            continue;
        }
        let alias = (slice(at + 2) == "as").then(|| slice(at + 3).to_owned());
        let last = if alias.is_some() { at + 3 } else { at + 1 };
        let Some(end) = tokens.get(last).map(|it| it.span.end) else { continue };
        found.push(Import {
            name: slice(at + 1).trim_matches('"').to_owned(),
            alias,
            name_span: tokens[at + 1].span.clone(),
            span: tokens[at].span.start..end,
        });
    }
    found
}
