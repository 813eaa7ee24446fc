//! The modules of a crate, and the names in each. Only files that a `mod` of a shipped file declares are part of it.

use crate::shipped;
use crate::sources::CrateSource;
use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{HashMap, HashSet};
use syn::{ForeignItem, Item, UseTree};

/// A crate's files and modules.
pub struct Crate {
    /// Its folder in the workspace.
    pub folder: String,
    /// Its name in paths.
    pub name: String,
    pub files: Vec<File>,
    pub modules: Vec<Module>,
    /// The library's root.
    pub library: Option<usize>,
}

/// A file that ships.
pub struct File {
    /// Its path in the workspace.
    pub path: String,
    /// What of it ships.
    pub syntax: syn::File,
    /// The module that it is.
    pub module: usize,
}

/// A module: a file's, or one written inside another.
pub struct Module {
    pub file: usize,
    pub parent: Option<usize>,
    pub root: usize,
    names: HashMap<String, Vec<Meaning>>,
    pub globs: Vec<Vec<String>>,
    /// What calls of macros between the items may define: their result isn't known.
    guessed: HashSet<String>,
}

/// What a name stands for in a module.
#[derive(Clone)]
pub enum Meaning {
    /// An item that is defined here.
    Item,
    /// A macro that is defined here.
    Macro,
    Module(usize),
    /// What a `use` brings in.
    Import(Vec<String>),
}

/// One path that a `use` names.
pub struct Imported {
    pub path: Vec<String>,
    /// The name that it gets; none for `*` and `_`.
    pub name: Option<String>,
    pub is_glob: bool,
}

impl Module {
    pub fn meanings(&self, name: &str) -> &[Meaning] {
        self.names.get(name).map_or(&[], Vec::as_slice)
    }

    /// Whether the call of a macro may define this name.
    pub fn may_define(&self, name: &str) -> bool {
        self.guessed.contains(name)
    }

    /// Returns the module of that name that is declared in this one.
    pub fn child(&self, name: &str) -> Option<usize> {
        self.meanings(name).iter().find_map(|it| if let Meaning::Module(module) = it { Some(*module) } else { None })
    }

    fn add(&mut self, name: &str, meaning: Meaning) {
        self.names.entry(name.to_owned()).or_default().push(meaning);
    }
}

impl Crate {
    /// Reads the modules below `lib.rs`, `main.rs` and the files in `bin`.
    ///
    /// # Errors
    /// A file isn't Rust.
    pub fn parse(source: &CrateSource) -> Result<Self> {
        let mut it = Crate {
            folder: source.folder.clone(),
            name: source.name.clone(),
            files: Vec::new(),
            modules: Vec::new(),
            library: None,
        };
        let folder = format!("{}/src", source.folder);
        for path in source.files.keys() {
            let name = path.strip_prefix(&format!("{folder}/")).unwrap_or(path);
            let in_bin = name.strip_prefix("bin/").is_some_and(|name| !name.contains('/'));
            if name == "lib.rs" || name == "main.rs" || in_bin {
                let root = it.add_file(source, path, None)?;
                it.library = if name == "lib.rs" { root } else { it.library };
            }
        }
        Ok(it)
    }

    /// Adds a file as a module, and all modules that it declares; returns nothing where it doesn't ship.
    fn add_file(&mut self, source: &CrateSource, path: &str, parent: Option<usize>) -> Result<Option<usize>> {
        let text = source.files.get(path).with_context(|| format!("{path} is declared but not there"))?;
        let Some(syntax) = shipped::parse(path, text)? else { return Ok(None) };
        let file = self.files.len();
        let module = self.add_module(file, parent);
        self.files.push(File { path: path.to_owned(), syntax, module });
        let items = std::mem::take(&mut self.files[file].syntax.items);
        self.fill(source, module, &items, &folder_below(path, parent.is_none()))?;
        self.files[file].syntax.items = items;
        Ok(Some(module))
    }

    fn add_module(&mut self, file: usize, parent: Option<usize>) -> usize {
        let id = self.modules.len();
        let root = parent.map_or(id, |parent| self.modules[parent].root);
        let (names, globs, guessed) = (HashMap::new(), Vec::new(), HashSet::new());
        self.modules.push(Module { file, parent, root, names, globs, guessed });
        id
    }

    /// Adds the names of a module's items. `folder` has the files of the modules that it declares.
    fn fill(&mut self, source: &CrateSource, module: usize, items: &[Item], folder: &str) -> Result<()> {
        for item in items {
            match item {
                Item::Mod(it) => self.add_child(source, module, it, folder)?,
                Item::Use(it) => self.add_imports(module, &it.tree),
                _ => self.add_item(module, item, items),
            }
        }
        Ok(())
    }

    fn add_child(&mut self, source: &CrateSource, parent: usize, item: &syn::ItemMod, folder: &str) -> Result<()> {
        let name = item.ident.to_string();
        let below = format!("{folder}/{name}");
        let child = if let Some((_, items)) = &item.content {
            let child = self.add_module(self.modules[parent].file, Some(parent));
            self.fill(source, child, items, &below)?;
            Some(child)
        } else {
            let files = [format!("{below}.rs"), format!("{below}/mod.rs")];
            let [flat, nested] = &files;
            let path = if source.files.contains_key(flat) { flat } else { nested };
            if is_for_tests(path) { None } else { self.add_file(source, path, Some(parent))? }
        };
        if let Some(child) = child {
            self.modules[parent].add(&name, Meaning::Module(child));
        }
        Ok(())
    }

    fn add_imports(&mut self, module: usize, tree: &UseTree) {
        let module = &mut self.modules[module];
        for import in imports(tree) {
            match import.name {
                Some(name) => module.add(&name, Meaning::Import(import.path)),
                None if import.is_glob => module.globs.push(import.path),
                None => {}
            }
        }
    }

    fn add_item(&mut self, module: usize, item: &Item, beside: &[Item]) {
        let module = &mut self.modules[module];
        let mut define = |name: &syn::Ident| module.add(&name.to_string(), Meaning::Item);
        match item {
            Item::Const(it) => define(&it.ident),
            Item::Enum(it) => define(&it.ident),
            Item::Fn(it) => define(&it.sig.ident),
            Item::Static(it) => define(&it.ident),
            Item::Struct(it) => define(&it.ident),
            Item::Trait(it) => define(&it.ident),
            Item::TraitAlias(it) => define(&it.ident),
            Item::Type(it) => define(&it.ident),
            Item::Union(it) => define(&it.ident),
            Item::ForeignMod(it) => it.items.iter().filter_map(foreign_name).for_each(define),
            Item::Macro(it) => match &it.ident {
                Some(name) => module.add(&name.to_string(), Meaning::Macro),
                None => module.guessed.extend(defined_by_call(&it.mac, beside)),
            },
            _ => {}
        }
    }
}

/// Returns the folder where the files of the modules lie that a file declares.
fn folder_below(path: &str, is_root: bool) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if is_root || name == "mod.rs" { folder.to_owned() } else { path.trim_end_matches(".rs").to_owned() }
}

/// Whether a file's name says that it is for tests.
fn is_for_tests(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

fn foreign_name(item: &ForeignItem) -> Option<&syn::Ident> {
    match item {
        ForeignItem::Fn(it) => Some(&it.sig.ident),
        ForeignItem::Static(it) => Some(&it.ident),
        ForeignItem::Type(it) => Some(&it.ident),
        _ => None,
    }
}

/// Returns what a macro's call between items may define: any name in the call, and what a macro of that name beside it
/// declares by a keyword.
fn defined_by_call(call: &syn::Macro, beside: &[Item]) -> HashSet<String> {
    let mut names = HashSet::new();
    shipped::each_token(call.tokens.clone(), &mut |ident, _| names.extend(ident.map(ToString::to_string)));
    for item in beside {
        if let Item::Macro(it) = item
            && it.ident.as_ref().is_some_and(|name| call.path.is_ident(name))
        {
            declared(it.mac.tokens.clone(), &mut names);
        }
    }
    names
}

/// Adds the names after keywords that define something.
fn declared(tokens: TokenStream, names: &mut HashSet<String>) {
    const KEYWORDS: [&str; 8] = ["const", "enum", "fn", "static", "struct", "trait", "type", "union"];
    let mut after_keyword = false;
    for token in tokens {
        match token {
            TokenTree::Group(group) => declared(group.stream(), names),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let is_keyword = KEYWORDS.contains(&name.as_str());
                if after_keyword && !is_keyword {
                    names.insert(name);
                }
                after_keyword = is_keyword;
            }
            _ => after_keyword = false,
        }
    }
}

/// Returns all paths that a `use` names.
pub fn imports(tree: &UseTree) -> Vec<Imported> {
    let mut all = Vec::new();
    add_imports(tree, &mut Vec::new(), &mut all);
    all
}

fn add_imports(tree: &UseTree, path: &mut Vec<String>, all: &mut Vec<Imported>) {
    let full = |path: &[String], last: &syn::Ident| match last.to_string() {
        last if last == "self" && !path.is_empty() => path.to_vec(),
        last => [path, &[last]].concat(),
    };
    match tree {
        UseTree::Path(it) => {
            path.push(it.ident.to_string());
            add_imports(&it.tree, path, all);
            path.pop();
        }
        UseTree::Name(it) => {
            let path = full(path, &it.ident);
            all.push(Imported { name: path.last().cloned(), path, is_glob: false });
        }
        UseTree::Rename(it) => {
            let name = Some(it.rename.to_string()).filter(|name| name != "_");
            all.push(Imported { path: full(path, &it.ident), name, is_glob: false });
        }
        UseTree::Glob(_) => all.push(Imported { path: path.clone(), name: None, is_glob: true }),
        UseTree::Group(it) => it.items.iter().for_each(|it| add_imports(it, path, all)),
    }
}
