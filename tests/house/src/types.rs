//! The names of types, and those that too many types share.

use crate::modules::File;
use std::collections::BTreeMap;
use syn::visit::{self, Visit};

/// Where types of each name are defined: `PATH:LINE`.
pub type Types = BTreeMap<String, Vec<String>>;

/// Adds the types that a file defines.
pub fn add_types(file: &File, types: &mut Types) {
    Definitions { path: &file.path, types }.visit_file(&file.syntax);
}

struct Definitions<'a> {
    path: &'a str,
    types: &'a mut Types,
}

impl Definitions<'_> {
    fn add(&mut self, name: &syn::Ident) {
        let place = format!("{}:{}", self.path, name.span().start().line);
        self.types.entry(name.to_string()).or_default().push(place);
    }
}

macro_rules! adds {
    ($($visit:ident: $node:ty;)*) => {$(
        fn $visit(&mut self, node: &'ast $node) {
            self.add(&node.ident);
            visit::$visit(self, node);
        }
    )*};
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    adds! {
        visit_item_enum: syn::ItemEnum;
        visit_item_struct: syn::ItemStruct;
        visit_item_trait: syn::ItemTrait;
        visit_item_type: syn::ItemType;
        visit_item_union: syn::ItemUnion;
    }
}
