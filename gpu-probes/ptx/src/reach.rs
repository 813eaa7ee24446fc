//! What a kernel needs of its module.

use crate::tree::*;
use crate::weave::WeaveError;
use rustc_hash::{FxHashMap, FxHashSet};

/// A section that `.loc` refers to: the names of inlined functions. The others describe whole modules to debuggers.
const NAMES_OF_INLINED: &str = ".debug_str";

impl Module {
    /// Keeps of the module what these kernels reach: functions that they call, variables that they use, and what
    /// those use. Debug sections go, because they describe what is gone, and with them the `debug` of `.target`, which
    /// demands them (PTX ISA, §11.1.2 ".target"); `.loc` stays.
    ///
    /// # Errors
    /// The module lacks a kernel. The module is as it was then.
    pub fn only(&mut self, kernels: &[&str]) -> Result<(), WeaveError> {
        if let Some(missing) = kernels.iter().find(|name| self.kernel(name).is_none()) {
            return Err(WeaveError::NoKernel((*missing).to_owned()));
        }
        let reached = self.reached(kernels.iter().copied());
        self.items.retain_mut(|item| match item {
            Item::Directive(directive) if directive.name == ".target" => {
                directive.arguments = without_debug(&directive.arguments);
                true
            }
            Item::Directive(directive) => alias(directive).is_none_or(|(name, _)| reached.contains(name)),
            Item::Variable(declaration) => {
                declaration.names.retain(|declarator| reached.contains(&declarator.name));
                !declaration.names.is_empty()
            }
            Item::Function(function) => reached.contains(&function.name),
            Item::Section(section) => section.name == NAMES_OF_INLINED,
        });
        Ok(())
    }

    /// Gives a function another name, wherever it is mentioned.
    ///
    /// # Errors
    /// The module has no kernel `from`, or something else has the name `to`. The module is as it was then.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), RenameError> {
        if self.kernel(from).is_none() {
            return Err(RenameError::NoKernel(from.to_owned()));
        }
        if self.uses().contains_key(to) {
            return Err(RenameError::Taken(to.to_owned()));
        }
        for item in &mut self.items {
            match item {
                Item::Function(function) => rename_function(function, from, to),
                Item::Directive(directive) if alias(directive).is_some() => {
                    directive.arguments = renamed_in_text(&directive.arguments, from, to);
                }
                Item::Variable(declaration) => rename_initialisers(declaration, from, to),
                _ => {}
            }
        }
        Ok(())
    }

    /// The names of everything that these names lead to, themselves included.
    pub(crate) fn reached<'a>(&self, names: impl Iterator<Item = &'a str>) -> FxHashSet<String> {
        let uses = self.uses();
        let mut reached: FxHashSet<String> = FxHashSet::default();
        let mut open: Vec<&str> = names.filter_map(|name| uses.get_key_value(name)).map(|(name, _)| *name).collect();
        while let Some(name) = open.pop() {
            if reached.insert(name.to_owned()) {
                open.extend(uses[name].iter().filter_map(|used| uses.get_key_value(used)).map(|(used, _)| *used));
            }
        }
        reached
    }

    /// What each name of the module mentions. A local name that is also a module's counts as that one: too much is
    /// kept then, never too little.
    fn uses(&self) -> FxHashMap<&str, Vec<&str>> {
        let mut uses: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
        for item in &self.items {
            match item {
                Item::Function(function) => {
                    let used = uses.entry(&function.name).or_default();
                    function.visit_names(&mut |name| used.push(name));
                }
                Item::Variable(declaration) => {
                    for declarator in &declaration.names {
                        let used = uses.entry(&declarator.name).or_default();
                        let text = declarator.initialiser.as_deref().unwrap_or_default();
                        crate::visit::visit_text(text, &mut |name| used.push(name));
                    }
                }
                Item::Directive(directive) => {
                    if let Some((name, target)) = alias(directive) {
                        uses.entry(name).or_default().push(target);
                    }
                }
                Item::Section(_) => {}
            }
        }
        uses
    }
}

fn without_debug(targets: &str) -> String {
    let targets = targets.split(',').map(str::trim).filter(|target| !matches!(*target, "debug" | ""));
    targets.collect::<Vec<_>>().join(", ")
}

/// Why a kernel has no new name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenameError {
    #[error("the module has no kernel `{0}` with a body")]
    NoKernel(String),
    #[error("the module has something with the name `{0}` already")]
    Taken(String),
}

/// The name that `.alias a, b;` defines, and the function that it stands for (PTX ISA, §11.3 ".alias").
pub(crate) fn alias(directive: &Directive) -> Option<(&str, &str)> {
    let arguments = (directive.name == ".alias").then_some(directive.arguments.as_str())?;
    let (name, target) = arguments.split_once(',')?;
    Some((name.trim(), target.trim()))
}

fn rename_function(function: &mut Function, from: &str, to: &str) {
    if function.name == from {
        function.name = to.to_owned();
    }
    rename_statements(function.body.as_deref_mut().unwrap_or_default(), from, to);
}

fn rename_statements(statements: &mut [Statement], from: &str, to: &str) {
    for statement in statements {
        match statement {
            Statement::Scope(inner) => rename_statements(inner, from, to),
            Statement::Declaration(declaration) => rename_initialisers(declaration, from, to),
            Statement::Instruction(it) => it.operands.iter_mut().for_each(|operand| rename_operand(operand, from, to)),
            Statement::Table(table) => table.arguments = renamed_in_text(&table.arguments, from, to),
            _ => {}
        }
    }
}

fn rename_operand(operand: &mut Operand, from: &str, to: &str) {
    match operand {
        Operand::Name(name) | Operand::Sum { name, .. } if name == from => *name = to.to_owned(),
        Operand::Expression(text) => *text = renamed_in_text(text, from, to),
        Operand::Address(parts) | Operand::Vector(parts) | Operand::List(parts) => {
            parts.iter_mut().for_each(|part| rename_operand(part, from, to));
        }
        _ => {}
    }
}

fn rename_initialisers(declaration: &mut Declaration, from: &str, to: &str) {
    let texts = declaration.names.iter_mut().filter_map(|it| it.initialiser.as_mut());
    texts.for_each(|text| *text = renamed_in_text(text, from, to));
}

/// A text with every word `from` replaced.
fn renamed_in_text(text: &str, from: &str, to: &str) -> String {
    let mut renamed = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.');
        let starts_word = rest.starts_with(is_word);
        let end = rest.find(|c| is_word(c) != starts_word).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        renamed.push_str(if word == from { to } else { word });
        rest = behind;
    }
    renamed
}
