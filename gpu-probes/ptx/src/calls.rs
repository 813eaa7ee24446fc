//! Which functions call which, and copies of those that callers want to be different.

use crate::faithful::call_target;
use crate::reach::alias;
use crate::tree::*;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Who calls whom in a module, of the functions that it has a body of. A call of an alias is one of what it stands for; calls by
/// an address are left out ([`Module::faithful`] finds them).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls(FxHashMap<String, BTreeSet<String>>);

impl Calls {
    /// Returns the functions that a function may run: those that it calls, and those that they call. It is one of them only if
    /// it may run itself again.
    pub fn below<'a>(&'a self, function: &str) -> BTreeSet<&'a str> {
        let callees = |it: &str| self.0.get(it).into_iter().flatten().map(String::as_str);
        let (mut below, mut open) = (BTreeSet::new(), callees(function).collect::<Vec<_>>());
        while let Some(next) = open.pop() {
            if below.insert(next) {
                open.extend(callees(next));
            }
        }
        below
    }

    /// Whether a function may run one that may run itself again.
    pub fn leads_to_recursion(&self, function: &str) -> bool {
        self.below(function).into_iter().any(|it| self.below(it).contains(it))
    }
}

impl Module {
    /// Returns who calls whom.
    pub fn calls(&self) -> Calls {
        let aliases = self.alias_targets();
        let bodies: FxHashMap<&str, &[Statement]> =
            self.functions().filter_map(|it| Some((it.name.as_str(), it.body.as_deref()?))).collect();
        let callees = |statements: &[Statement]| {
            let mut callees = BTreeSet::new();
            visit_calls(statements, &mut |name| {
                let name = aliases.get(name).map_or(name, String::as_str);
                if bodies.contains_key(name) {
                    callees.insert(name.to_owned());
                }
            });
            callees
        };
        Calls(bodies.iter().map(|(name, body)| ((*name).to_owned(), callees(body))).collect())
    }

    /// Adds a copy of a function under a name that the module doesn't have. It stands behind the function, and its prototypes
    /// behind the function's.
    pub fn copy_function(&mut self, function: &str, to: &str) {
        let copy = |it: Item| match &it {
            Item::Function(of) if of.name == function => {
                let copy = Item::Function(Function { name: to.to_owned(), ..of.clone() });
                vec![it, copy]
            }
            _ => vec![it],
        };
        self.items = std::mem::take(&mut self.items).into_iter().flat_map(copy).collect();
    }

    /// Has a function call others: the values instead of the keys.
    pub fn call_instead(&mut self, function: &str, others: &BTreeMap<String, String>) {
        let aliases = self.alias_targets();
        let other = |name: &str| others.get(aliases.get(name).map_or(name, String::as_str)).cloned();
        for it in self.functions_mut().filter(|it| it.name == function) {
            replace_calls(it.body.as_deref_mut().unwrap_or_default(), &other);
        }
    }

    /// Returns what aliases stand for.
    fn alias_targets(&self) -> FxHashMap<String, String> {
        let aliases = self.directives(".alias").filter_map(alias);
        aliases.map(|(name, target)| (name.to_owned(), target.to_owned())).collect()
    }
}

fn visit_calls<'a>(statements: &'a [Statement], each: &mut dyn FnMut(&'a str)) {
    for statement in statements {
        match statement {
            Statement::Scope(inner) => visit_calls(inner, each),
            Statement::Instruction(it) => call_target(it).iter().for_each(|target| each(target.name)),
            _ => {}
        }
    }
}

fn replace_calls(statements: &mut [Statement], other: &dyn Fn(&str) -> Option<String>) {
    for statement in statements {
        match statement {
            Statement::Scope(inner) => replace_calls(inner, other),
            Statement::Instruction(it) => {
                let found = call_target(it).and_then(|target| Some((target.at, other(target.name)?)));
                if let Some((at, name)) = found {
                    it.operands[at] = Operand::Name(name);
                }
            }
            _ => {}
        }
    }
}
