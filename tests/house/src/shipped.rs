//! What of a file ships: its syntax without what `cfg` leaves out of a build that isn't a test, and its tokens without
//! documentation.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use syn::punctuated::{Pair, Punctuated};
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Meta, MetaList, Token};

/// Returns the shipped part of a file, or nothing where none of it ships.
///
/// # Errors
/// The text isn't Rust.
pub fn parse(path: &str, text: &str) -> Result<Option<syn::File>> {
    let mut file = syn::parse_file(text).map_err(|e| anyhow!("{path}:{}: {e}", e.span().start().line))?;
    if !ships(&file.attrs) {
        return Ok(None);
    }
    if text.contains("cfg(") {
        Prune.visit_file_mut(&mut file);
    }
    Ok(Some(file))
}

/// Whether what has these attributes can be in a build that isn't a test.
pub fn ships(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|it| it.path().is_ident("cfg"));
    conditions.filter_map(|it| it.parse_args::<Meta>().ok()).all(|condition| holds(&condition) != Some(false))
}

/// Whether a condition holds outside of tests; nothing where that depends on the build.
fn holds(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) if path.is_ident("test") => Some(false),
        Meta::List(list) if list.path.is_ident("not") => holds(conditions(list).first()?).map(|it| !it),
        Meta::List(list) if list.path.is_ident("all") => any_is(&conditions(list), false),
        Meta::List(list) if list.path.is_ident("any") => any_is(&conditions(list), true),
        _ => None,
    }
}

/// Joins conditions of which a single `deciding` one decides.
fn any_is(conditions: &[Meta], deciding: bool) -> Option<bool> {
    let each: Vec<_> = conditions.iter().map(holds).collect();
    if each.contains(&Some(deciding)) {
        return Some(deciding);
    }
    if each.contains(&None) { None } else { Some(!deciding) }
}

fn conditions(list: &MetaList) -> Vec<Meta> {
    let parsed = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    parsed.map(|it| it.into_iter().collect()).unwrap_or_default()
}

/// Removes what doesn't ship.
struct Prune;

macro_rules! prunes {
    ($($visit:ident: $node:ty, $list:ident;)*) => {$(
        fn $visit(&mut self, node: &mut $node) {
            node.$list.retain(|it| ships(&outer_attributes(it)));
            visit_mut::$visit(self, node);
        }
    )*};
}

impl VisitMut for Prune {
    prunes! {
        visit_file_mut: syn::File, items;
        visit_item_impl_mut: syn::ItemImpl, items;
        visit_item_trait_mut: syn::ItemTrait, items;
        visit_item_foreign_mod_mut: syn::ItemForeignMod, items;
        visit_block_mut: syn::Block, stmts;
        visit_expr_match_mut: syn::ExprMatch, arms;
    }

    fn visit_item_mod_mut(&mut self, node: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut node.content {
            items.retain(|it| ships(&outer_attributes(it)));
        }
        visit_mut::visit_item_mod_mut(self, node);
    }

    fn visit_item_enum_mut(&mut self, node: &mut syn::ItemEnum) {
        retain(&mut node.variants);
        visit_mut::visit_item_enum_mut(self, node);
    }

    fn visit_fields_named_mut(&mut self, node: &mut syn::FieldsNamed) {
        retain(&mut node.named);
        visit_mut::visit_fields_named_mut(self, node);
    }

    fn visit_expr_struct_mut(&mut self, node: &mut syn::ExprStruct) {
        retain(&mut node.fields);
        visit_mut::visit_expr_struct_mut(self, node);
    }
}

fn retain<T: syn::spanned::Spanned + quote::ToTokens, P>(list: &mut Punctuated<T, P>)
where
    P: Default,
{
    let all = std::mem::take(list).into_pairs();
    *list = all.filter(|pair: &Pair<T, P>| ships(&outer_attributes(pair.value()))).collect();
}

/// Returns the attributes before a piece of syntax.
///
/// Many kinds of syntax have them in fields of their own; what they print is the same for all.
fn outer_attributes(node: &impl quote::ToTokens) -> Vec<Attribute> {
    let mut leading = TokenStream::new();
    let mut tokens = node.to_token_stream().into_iter();
    while let (Some(TokenTree::Punct(hash)), Some(TokenTree::Group(group))) = (tokens.next(), tokens.next()) {
        if hash.as_char() != '#' {
            break;
        }
        leading.extend([TokenTree::from(hash), TokenTree::from(group)]);
    }
    syn::parse::Parser::parse2(Attribute::parse_outer, leading).unwrap_or_default()
}

/// Calls `each` with the identifier, if it is one, and the place of each token that isn't documentation.
pub fn each_token(tokens: TokenStream, each: &mut impl FnMut(Option<&Ident>, Span)) {
    for token in without_docs(tokens) {
        match token {
            TokenTree::Group(group) => {
                if group.delimiter() != Delimiter::None {
                    each(None, group.span_open());
                    each(None, group.span_close());
                }
                each_token(group.stream(), each);
            }
            TokenTree::Ident(ident) => each(Some(&ident), ident.span()),
            other => each(None, other.span()),
        }
    }
}

/// Returns the tokens without documentation, which the lexer turns into attributes `#[doc = "…"]`; not so in groups.
pub fn without_docs(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept: Vec<TokenTree> = Vec::new();
    for token in tokens {
        if is_doc(&token) {
            while kept.last().is_some_and(|it| is_punct(it, '#') || is_punct(it, '!')) {
                kept.pop();
            }
        } else {
            kept.push(token);
        }
    }
    kept
}

fn is_doc(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else { return false };
    let mut inside = group.stream().into_iter();
    group.delimiter() == Delimiter::Bracket
        && matches!(inside.next(), Some(TokenTree::Ident(name)) if name == "doc")
        && inside.next().is_some_and(|it| is_punct(&it, '='))
}

pub fn is_punct(token: &TokenTree, char: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == char)
}
