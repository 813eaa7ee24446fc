//! The length of functions.

use crate::modules::File;
use crate::shipped;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

/// A function longer than it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LongFunction {
    pub path: String,
    pub name: String,
    /// From `fn` to the closing brace.
    pub lines: usize,
    /// The line of `fn`.
    pub at: usize,
}

/// Returns a file's functions of more than `most` lines, those in macros too.
pub fn long_functions(file: &File, most: usize) -> Vec<LongFunction> {
    let mut all = Vec::new();
    add(file.syntax.to_token_stream(), &mut all);
    all.retain(|it| it.lines > most);
    all.iter_mut().for_each(|it| it.path.clone_from(&file.path));
    all.sort();
    all
}

/// Adds all functions in these tokens.
fn add(tokens: TokenStream, all: &mut Vec<LongFunction>) {
    let tokens = shipped::without_docs(tokens);
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => add(group.stream(), all),
            TokenTree::Ident(keyword) if keyword == "fn" => {
                if let Some((name, end)) = name_and_end(&tokens[index + 1..]) {
                    let at = keyword.span().start().line;
                    all.push(LongFunction { path: String::new(), name, lines: end + 1 - at, at });
                }
            }
            _ => {}
        }
    }
}

/// Returns a function's name and the line of its last brace, from what follows `fn`; nothing for a type, or without a body.
fn name_and_end(tokens: &[TokenTree]) -> Option<(String, usize)> {
    let Some(TokenTree::Ident(name)) = tokens.first() else { return None };
    let ends = |token: &&TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        token => shipped::is_punct(token, ';'),
    };
    match tokens.iter().find(ends)? {
        TokenTree::Group(body) => Some((name.to_string(), body.span_close().end().line)),
        _ => None,
    }
}
