//! Which files of a crate use which.
//!
//! There is an edge from file A to file B if shipped code of A names an item that B defines. Exactly:
//!
//! - Code names an item by a `use` (a re-export, too), or by a path: of an expression, a type, a pattern, a trait, a macro's
//!   call. Of a call's arguments and of a macro's definition, all that look like paths count if they have two parts or more, are
//!   called as a macro, or start with a capital.
//! - An item is what has a name in a module: a function, type, trait, constant, static or macro. What is inside it
//!   (`Type::function`, `Enum::Variant`) counts as the item itself. A module is none: neither `mod x;` nor a `use` of a module
//!   is an edge, but `x::item` is one, to the file that defines `item`. A `use` of both a module and an item of its name counts
//!   as one of the module.
//! - A path is followed through modules, `use` with and without `*`, and `pub use`, to the file where the item is defined. So a
//!   parent that re-exports its children's items, uses them; who takes them from the parent, uses the children.
//! - What calls of macros between items define isn't known: names in the call are taken as defined there if nothing else has
//!   them.
//!
//! Not seen: calls of methods (`it.method()`), fields, and what attributes name. A local variable called like an item that a
//! `*` brings in is taken for it.

use crate::modules::{Crate, Imported, imports};
use crate::resolve::Place;
use crate::shipped;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use syn::visit::{self, Visit};

/// The names by which a file uses another, by both files.
pub type Edges = BTreeMap<(usize, usize), BTreeSet<String>>;

/// Returns which files of a crate use which.
pub fn edges(of: &Crate) -> Edges {
    let mut edges = Edges::new();
    for (number, file) in of.files.iter().enumerate() {
        let mut names = Names { of, file: number, module: file.module, scopes: Vec::new(), edges: &mut edges };
        names.visit_file(&file.syntax);
    }
    edges
}

/// Walks through a file and gathers what it names.
struct Names<'a> {
    of: &'a Crate,
    file: usize,
    module: usize,
    /// What the blocks around define: names of paths, and of the blocks' own items.
    scopes: Vec<HashMap<String, Option<Vec<String>>>>,
    edges: &'a mut Edges,
}

impl Names<'_> {
    fn note(&mut self, place: Place) {
        if let Place::Item { file, name } = place
            && file != self.file
        {
            self.edges.entry((self.file, file)).or_default().insert(name);
        }
    }

    fn name(&mut self, path: &[String]) {
        let in_scope = path.first().and_then(|first| self.scopes.iter().rev().find_map(|scope| scope.get(first)));
        let path = match in_scope {
            Some(None) => return,
            Some(Some(import)) => [import, &path[1..]].concat(),
            None => path.to_vec(),
        };
        for place in self.of.resolve(self.module, &path) {
            self.note(place);
        }
    }

    fn call_macro(&mut self, path: &[String]) {
        match path {
            [name] => self.of.resolve_macro(self.module, name).into_iter().for_each(|place| self.note(place)),
            _ => self.name(path),
        }
    }

    /// Takes what looks like a path in the tokens of a macro.
    fn guess(&mut self, tokens: TokenStream) {
        let tokens = shipped::without_docs(tokens);
        let mut at = 0;
        while at < tokens.len() {
            if let TokenTree::Group(group) = &tokens[at] {
                self.guess(group.stream());
            }
            let (path, after) = path_at(&tokens, at);
            let follows_dot = at > 0 && shipped::is_punct(&tokens[at - 1], '.');
            if !path.is_empty() && !follows_dot {
                if tokens.get(after).is_some_and(|it| shipped::is_punct(it, '!')) {
                    self.call_macro(&path);
                } else if path.len() > 1 || path[0].starts_with(char::is_uppercase) {
                    self.name(&path);
                }
            }
            at = after.max(at + 1);
        }
    }
}

/// Returns the path that starts at a token, and where it ends.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut path = Vec::new();
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        path.push(ident.to_string());
        at += 1;
        let goes_on = tokens.get(at..at + 2).is_some_and(|it| it.iter().all(|it| shipped::is_punct(it, ':')));
        if !goes_on {
            break;
        }
        at += 2;
    }
    (path, at)
}

fn segments(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|it| it.ident.to_string()).collect()
}

/// Returns what a block's own items mean.
fn scope(block: &syn::Block) -> HashMap<String, Option<Vec<String>>> {
    let mut scope = HashMap::new();
    for statement in &block.stmts {
        let syn::Stmt::Item(item) = statement else { continue };
        match item {
            syn::Item::Use(it) => {
                let named =
                    imports(&it.tree).into_iter().filter_map(|Imported { path, name, .. }| Some((name?, Some(path))));
                scope.extend(named);
            }
            syn::Item::Const(it) => _ = scope.insert(it.ident.to_string(), None),
            syn::Item::Enum(it) => _ = scope.insert(it.ident.to_string(), None),
            syn::Item::Fn(it) => _ = scope.insert(it.sig.ident.to_string(), None),
            syn::Item::Static(it) => _ = scope.insert(it.ident.to_string(), None),
            syn::Item::Struct(it) => _ = scope.insert(it.ident.to_string(), None),
            _ => {}
        }
    }
    scope
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if node.content.is_none() {
            return;
        }
        let Some(child) = self.of.modules[self.module].child(&node.ident.to_string()) else { return };
        let outer = std::mem::replace(&mut self.module, child);
        visit::visit_item_mod(self, node);
        self.module = outer;
    }

    fn visit_item_use(&mut self, node: &'ast syn::ItemUse) {
        for import in imports(&node.tree) {
            let places = self.of.resolve(self.module, &import.path);
            let has_module = places.iter().any(|it| matches!(it, Place::Module(_)));
            // Of an item that shares a module's name, the code says which one it means.
            places.into_iter().filter(|_| !has_module).for_each(|place| self.note(place));
        }
    }

    fn visit_block(&mut self, node: &'ast syn::Block) {
        self.scopes.push(scope(node));
        visit::visit_block(self, node);
        self.scopes.pop();
    }

    fn visit_path(&mut self, node: &'ast syn::Path) {
        if node.leading_colon.is_none() {
            self.name(&segments(node));
        }
        visit::visit_path(self, node);
    }

    fn visit_macro(&mut self, node: &'ast syn::Macro) {
        self.call_macro(&segments(&node.path));
        self.guess(node.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
