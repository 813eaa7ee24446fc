//! Where a path leads: to the file that defines the item, through modules and re-exports.

use crate::modules::{Crate, Meaning};
use std::collections::HashSet;

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// An item, by the name that it is defined with. What is inside it (a variant, an associated function) counts as it.
    Item {
        file: usize,
        name: String,
    },
    Module(usize),
}

/// Imports that are being followed: one that leads to itself leads nowhere.
type Followed = HashSet<(usize, Vec<String>)>;

impl Crate {
    /// Returns what a path in a module leads to in this crate: nothing for other crates' items, and more than one place where
    /// a module and an item share a name.
    pub fn resolve(&self, module: usize, path: &[String]) -> Vec<Place> {
        self.follow(module, path, &mut Followed::new())
    }

    /// Returns the place of a macro that a plain name calls: also one of an outer module, since such names are in scope in the
    /// modules below.
    pub fn resolve_macro(&self, module: usize, name: &str) -> Option<Place> {
        let defines = |at: &usize| self.modules[*at].meanings(name).iter().any(|it| matches!(it, Meaning::Macro));
        let outward = std::iter::successors(Some(module), |at| self.modules[*at].parent);
        let defined = outward.clone().find(defines).map(|at| self.item(at, name));
        defined.or_else(|| {
            self.resolve(module, &[name.to_owned()]).into_iter().find(|it| matches!(it, Place::Item { .. }))
        })
    }

    fn follow(&self, module: usize, path: &[String], followed: &mut Followed) -> Vec<Place> {
        let Some((mut at, mut rest)) = self.start(module, path) else { return Vec::new() };
        while let Some((name, after)) = rest.split_first() {
            let found = self.look_up(at, name, followed);
            if after.is_empty() {
                return found;
            }
            match found.iter().find_map(|it| if let Place::Module(module) = it { Some(*module) } else { None }) {
                Some(module) => (at, rest) = (module, after),
                None => return found,
            }
        }
        vec![Place::Module(at)]
    }

    /// Returns the module where a path starts, and what follows.
    fn start<'a>(&self, module: usize, path: &'a [String]) -> Option<(usize, &'a [String])> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some((self.modules[module].root, rest)),
            "self" => Some((module, rest)),
            "super" => self.outward(self.modules[module].parent?, rest),
            name if name == self.name && self.modules[module].meanings(name).is_empty() => Some((self.library?, rest)),
            _ => Some((module, path)),
        }
    }

    fn outward<'a>(&self, module: usize, path: &'a [String]) -> Option<(usize, &'a [String])> {
        match path.split_first() {
            Some((first, rest)) if first == "super" => self.outward(self.modules[module].parent?, rest),
            _ => Some((module, path)),
        }
    }

    fn look_up(&self, at: usize, name: &str, followed: &mut Followed) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for meaning in self.modules[at].meanings(name) {
            match meaning {
                Meaning::Item | Meaning::Macro => places.push(self.item(at, name)),
                Meaning::Module(module) => places.push(Place::Module(*module)),
                Meaning::Import(path) if followed.insert((at, path.clone())) => {
                    places.extend(self.follow(at, path, followed));
                }
                Meaning::Import(_) => {}
            }
        }
        if places.is_empty() {
            places = self.look_up_globs(at, name, followed);
        }
        if places.is_empty() && self.modules[at].may_define(name) {
            places.push(self.item(at, name));
        }
        places
    }

    fn look_up_globs(&self, at: usize, name: &str, followed: &mut Followed) -> Vec<Place> {
        let mut places = Vec::new();
        for glob in &self.modules[at].globs {
            let through = [glob.as_slice(), &["*".to_owned(), name.to_owned()]].concat();
            if !followed.insert((at, through)) {
                continue;
            }
            for place in self.follow(at, glob, followed) {
                if let Place::Module(module) = place {
                    places.extend(self.look_up(module, name, followed));
                }
            }
        }
        places
    }

    fn item(&self, module: usize, name: &str) -> Place {
        Place::Item { file: self.modules[module].file, name: name.to_owned() }
    }
}
