//! Every name that a function or a declaration mentions.

use crate::tree::*;

impl Function {
    /// Calls `each` with every name in the operands, tables and initial values of the body. Names inside expressions
    /// count; directives and numbers don't.
    pub(crate) fn visit_names<'a>(&'a self, each: &mut dyn FnMut(&'a str)) {
        visit_statements(self.body.as_deref().unwrap_or_default(), each);
    }
}

impl Declaration {
    /// The same for the initial values.
    pub(crate) fn visit_names<'a>(&'a self, each: &mut dyn FnMut(&'a str)) {
        self.names.iter().filter_map(|it| it.initialiser.as_deref()).for_each(|text| visit_text(text, each));
    }
}

fn visit_statements<'a>(statements: &'a [Statement], each: &mut dyn FnMut(&'a str)) {
    for statement in statements {
        match statement {
            Statement::Scope(inner) => visit_statements(inner, each),
            Statement::Declaration(declaration) => declaration.visit_names(each),
            Statement::Instruction(it) => it.operands.iter().for_each(|operand| visit_operand(operand, each)),
            Statement::Table(table) => visit_text(&table.arguments, each),
            Statement::Label(_) | Statement::Location(_) | Statement::Directive(_) | Statement::Empty => {}
        }
    }
}

/// Calls `each` with every name in an operand.
pub(crate) fn visit_operand<'a>(operand: &'a Operand, each: &mut dyn FnMut(&'a str)) {
    match operand {
        Operand::Name(name) | Operand::Sum { name, .. } | Operand::Not(name) => each(name),
        Operand::Pair(first, second) => [first, second].into_iter().for_each(|name| each(name)),
        Operand::Expression(text) => visit_text(text, each),
        Operand::Address(parts) | Operand::Vector(parts) | Operand::List(parts) => {
            parts.iter().for_each(|part| visit_operand(part, each));
        }
    }
}

/// Calls `each` with every name in a text.
pub(crate) fn visit_text<'a>(text: &'a str, each: &mut dyn FnMut(&'a str)) {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')));
    words.filter(|word| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit() || c == '.')).for_each(each);
}
