//! What a name of a body stands for: PTX has nested scopes, and an inner name hides an outer one (PTX ISA, §4.3
//! "Statements", and §5.4.6 "Parameterized Variable Names").

use crate::tree::*;
use rustc_hash::FxHashMap;

/// The names that are declared around a place in a function.
#[derive(Default)]
pub(crate) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
}

#[derive(Default)]
struct Scope<'a> {
    names: FxHashMap<&'a str, &'a Declaration>,
    /// `%r<20>`, by what stands in front of the number.
    ranges: FxHashMap<&'a str, &'a Declaration>,
}

impl<'a> Names<'a> {
    /// The names of a function's parameters.
    pub(crate) fn of_parameters(function: &'a Function) -> Self {
        let lists = function.returns.iter().chain(&function.parameters).flatten();
        let mut scope = Scope::default();
        lists.for_each(|declaration| scope.add(declaration));
        Names { scopes: vec![scope] }
    }

    /// Enters a scope with these statements.
    pub(crate) fn enter(&mut self, statements: &'a [Statement]) {
        let mut scope = Scope::default();
        for statement in statements {
            if let Statement::Declaration(declaration) = statement {
                scope.add(declaration);
            }
        }
        self.scopes.push(scope);
    }

    pub(crate) fn leave(&mut self) {
        self.scopes.pop();
    }

    /// The declaration of a name; of `%v` for `%v.x`. `None` for what the function doesn't declare.
    pub(crate) fn find(&self, name: &str) -> Option<&'a Declaration> {
        let name = name.split('.').next().unwrap_or_default();
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        self.scopes.iter().rev().find_map(|scope| scope.names.get(name).or_else(|| scope.ranges.get(prefix)).copied())
    }

    /// The bits of a register; `None` for what is no register.
    pub(crate) fn register_bits(&self, name: &str) -> Option<u32> {
        self.find(name).filter(|declaration| declaration.has(".reg"))?.bits()
    }
}

impl<'a> Scope<'a> {
    fn add(&mut self, declaration: &'a Declaration) {
        for declarator in &declaration.names {
            let names = if declarator.count.is_some() { &mut self.ranges } else { &mut self.names };
            names.insert(&declarator.name, declaration);
        }
    }
}
