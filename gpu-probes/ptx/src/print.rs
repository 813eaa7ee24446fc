//! The tree as text, as NVIDIA's compilers lay it out: a statement a line, tabs, labels at the margin.

use crate::tree::*;
use std::fmt::{self, Display, Formatter, Write};

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for item in &self.items {
            match item {
                Item::Directive(directive) => writeln!(f, "{directive}")?,
                Item::Variable(declaration) => writeln!(f, "{declaration};")?,
                Item::Function(function) => writeln!(f, "\n{function}")?,
                Item::Section(section) => writeln!(f, "{section}")?,
            }
        }
        Ok(())
    }
}

impl Display for Directive {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.arguments.is_empty() {
            write!(f, " {}", self.arguments)?;
        }
        f.write_str(if self.has_end { ";" } else { "" })
    }
}

impl Display for Section {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ".section {}\n{{\n{}\n}}", self.name, self.text)
    }
}

impl Display for Declaration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for word in &self.words {
            write!(f, "{word} ")?;
        }
        separated(f, &self.names, ", ")
    }
}

impl Display for Declarator {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(count) = &self.count {
            write!(f, "<{count}>")?;
        }
        for size in &self.dimensions {
            write!(f, "[{size}]")?;
        }
        match &self.initialiser {
            Some(text) => write!(f, " = {text}"),
            None => Ok(()),
        }
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for word in &self.words {
            write!(f, "{word} ")?;
        }
        if let Some(returns) = &self.returns {
            f.write_char('(')?;
            separated(f, returns, ", ")?;
            f.write_str(") ")?;
        }
        f.write_str(&self.name)?;
        if let Some(parameters) = &self.parameters {
            print_parameters(f, parameters)?;
        }
        for directive in &self.directives {
            write!(f, "\n{directive}")?;
        }
        match &self.body {
            Some(body) => {
                f.write_str("\n{\n")?;
                print_statements(f, body, 1)?;
                f.write_char('}')
            }
            None => f.write_char(';'),
        }
    }
}

fn print_parameters(f: &mut Formatter<'_>, parameters: &[Declaration]) -> fmt::Result {
    if parameters.is_empty() {
        return f.write_str("()");
    }
    f.write_str("(\n\t")?;
    separated(f, parameters, ",\n\t")?;
    f.write_str("\n)")
}

/// Prints statements, each on a line of its own.
pub(crate) fn print_statements(f: &mut Formatter<'_>, statements: &[Statement], depth: usize) -> fmt::Result {
    for statement in statements {
        let margin = if matches!(statement, Statement::Label(_) | Statement::Table(_)) { depth - 1 } else { depth };
        for _ in 0..margin {
            f.write_char('\t')?;
        }
        match statement {
            Statement::Scope(inner) => {
                f.write_str("{\n")?;
                print_statements(f, inner, depth + 1)?;
                (0..margin).try_for_each(|_| f.write_char('\t'))?;
                f.write_char('}')?;
            }
            Statement::Declaration(declaration) => write!(f, "{declaration};")?,
            Statement::Label(label) => write!(f, "{label}:")?,
            Statement::Instruction(instruction) => write!(f, "{instruction};")?,
            Statement::Location(location) => write!(f, "{location}")?,
            Statement::Directive(directive) => write!(f, "{directive}")?,
            Statement::Table(table) => write!(f, "{table}")?,
            Statement::Empty => f.write_char(';')?,
        }
        f.write_char('\n')?;
    }
    Ok(())
}

impl Display for Location {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ".loc {} {} {}", self.file, self.line, self.column)?;
        match &self.inlined {
            Some(text) => write!(f, ", {text}"),
            None => Ok(()),
        }
    }
}

impl Display for LabelledDirective {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {};", self.label, self.directive, self.arguments)
    }
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(guard) = &self.guard {
            write!(f, "{guard} ")?;
        }
        f.write_str(&self.opcode)?;
        if !self.operands.is_empty() {
            f.write_char(' ')?;
        }
        separated(f, &self.operands, ", ")
    }
}

impl Display for Guard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "@{}{}", if self.is_negated { "!" } else { "" }, self.predicate)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Name(text) | Operand::Expression(text) => f.write_str(text),
            Operand::Sum { name, offset } => write!(f, "{name}{offset}"),
            Operand::Pair(first, second) => write!(f, "{first}|{second}"),
            Operand::Not(name) => write!(f, "!{name}"),
            Operand::Address(parts) => bracketed(f, '[', parts, ']'),
            Operand::Vector(parts) => bracketed(f, '{', parts, '}'),
            Operand::List(parts) => bracketed(f, '(', parts, ')'),
        }
    }
}

fn bracketed(f: &mut Formatter<'_>, open: char, parts: &[Operand], close: char) -> fmt::Result {
    f.write_char(open)?;
    separated(f, parts, ", ")?;
    f.write_char(close)
}

fn separated<T: Display>(f: &mut Formatter<'_>, parts: &[T], separator: &str) -> fmt::Result {
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        part.fmt(f)?;
    }
    Ok(())
}
