//! What a name of a body stands for: PTX has nested scopes, and an inner name hides an outer one (PTX ISA, §4.3
//! "Statements", and §5.4.6 "Parameterized Variable Names").

use crate::tree::*;
use rustc_hash::FxHashMap;

/// The names that are declared around a place in a function.
#[derive(Default)]
pub(crate) struct DeclaredNames<'a> {
    scopes: Vec<NameScope<'a>>,
}

#[derive(Default)]
struct NameScope<'a> {
    names: FxHashMap<&'a str, &'a Declaration>,
    /// `%r<20>`, by what stands in front of the number.
    ranges: FxHashMap<&'a str, &'a Declaration>,
}

impl<'a> DeclaredNames<'a> {
    /// The names of a function's parameters.
    pub(crate) fn of_parameters(function: &'a Function) -> Self {
        let lists = function.returns.iter().chain(&function.parameters).flatten();
        let mut scope = NameScope::default();
        lists.for_each(|declaration| scope.add(declaration));
        DeclaredNames { scopes: vec![scope] }
    }

    /// Enters a scope with these statements.
    pub(crate) fn enter(&mut self, statements: &'a [Statement]) {
        let mut scope = NameScope::default();
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
        self.scopes.iter().rev().find_map(|scope| scope.find(name))
    }

    /// The bits of a register; `None` for what is no register.
    pub(crate) fn register_bits(&self, name: &str) -> Option<u32> {
        self.find(name).filter(|declaration| declaration.has(".reg"))?.bits()
    }
}

impl<'a> NameScope<'a> {
    fn find(&self, name: &str) -> Option<&'a Declaration> {
        self.names.get(name).or_else(|| self.find_range(name)).copied()
    }

    /// `%r12` is of `%r<20>`, and may be of `%r1<5>`.
    fn find_range(&self, name: &str) -> Option<&&'a Declaration> {
        let shortest = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        (shortest..name.len()).find_map(|end| self.ranges.get(&name[..end]))
    }

    fn add(&mut self, declaration: &'a Declaration) {
        for declarator in &declaration.names {
            let names = if declarator.count.is_some() { &mut self.ranges } else { &mut self.names };
            names.insert(&declarator.name, declaration);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_statements;

    #[test]
    fn inner_names_hide_outer_ones() {
        let outer = parse_statements(".reg .b64 %r<20>; .reg .b32 %r1<5>, a; .reg .v4 .f32 v;").unwrap();
        let inner = parse_statements(".reg .b16 a, %r3; .shared .b32 s;").unwrap();
        let mut names = DeclaredNames::default();
        names.enter(&outer);
        names.enter(&inner);
        let found = ["%r7", "%r13", "%r3", "a", "v.x", "s", "b", "%r", ""].map(|name| names.register_bits(name));
        let bits = Some;
        assert_eq!(found, [bits(64), bits(64), bits(16), bits(16), bits(128), None, None, None, None]);
        names.leave();
        assert_eq!(["a", "%r3", "s"].map(|name| names.register_bits(name)), [bits(32), bits(64), None]);
    }
}
