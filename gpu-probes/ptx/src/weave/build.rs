//! The statements around what a caller puts in.

use super::ADDRESS;
use crate::names::DeclaredNames;
use crate::tree::*;

/// Where a 32-bit address is computed.
const NARROW_ADDRESS: &str = "%xpt_address32";

/// Statements that run only where a guard holds.
pub(super) fn guarded(guard: &Guard, label: &str, statements: Vec<Statement>) -> Statement {
    let skip = Instruction {
        guard: Some(Guard { is_negated: !guard.is_negated, ..guard.clone() }),
        ..instruction("bra", vec![name(label)])
    };
    let mut scope = vec![Statement::Instruction(skip)];
    scope.extend(statements);
    scope.push(Statement::Label(label.to_owned()));
    Statement::Scope(scope)
}

/// Statements that declare [`ADDRESS`] and compute it. `None` where the operand's form is not known.
pub(super) fn address(operand: &Operand, names: &DeclaredNames) -> Option<Vec<Statement>> {
    let Operand::Address(parts) = operand else { return None };
    let source = parts.first()?;
    let mut statements = vec![register(".b64", ADDRESS)];
    let bits_of = |register: &str| names.register_bits(register);
    match source {
        Operand::Name(base) if bits_of(base) == Some(32) => statements.push(widen(base)),
        Operand::Sum { name: base, offset } => match bits_of(base) {
            Some(32) => {
                statements.push(register(".b32", NARROW_ADDRESS));
                statements.push(sum("add.s32", NARROW_ADDRESS, base, offset));
                statements.push(widen(NARROW_ADDRESS));
            }
            Some(_) => statements.push(sum("add.s64", ADDRESS, base, offset)),
            None => statements.push(copy(source)),
        },
        Operand::Name(_) | Operand::Expression(_) => statements.push(copy(source)),
        _ => return None,
    }
    Some(statements)
}

fn copy(source: &Operand) -> Statement {
    Statement::Instruction(instruction("mov.b64", vec![name(ADDRESS), source.clone()]))
}

fn widen(base: &str) -> Statement {
    Statement::Instruction(instruction("cvt.u64.u32", vec![name(ADDRESS), name(base)]))
}

fn sum(opcode: &str, to: &str, base: &str, offset: &str) -> Statement {
    let constant = Operand::of_offset(offset);
    Statement::Instruction(instruction(opcode, vec![name(to), name(base), constant]))
}

fn instruction(opcode: &str, operands: Vec<Operand>) -> Instruction {
    Instruction { guard: None, opcode: opcode.to_owned(), operands }
}

fn name(name: &str) -> Operand {
    Operand::Name(name.to_owned())
}

fn register(kind: &str, name: &str) -> Statement {
    let names = vec![Declarator { name: name.to_owned(), ..Declarator::default() }];
    Statement::Declaration(Declaration { words: vec![".reg".to_owned(), kind.to_owned()], names })
}
