//! Where control goes in a body.

use crate::instruction::Space;
use crate::tree::*;
use rustc_hash::FxHashSet;

/// The labels that a branch may go to, by name: one that has a namesake in another scope counts too.
pub(super) fn branch_targets(statements: &[Statement]) -> FxHashSet<&str> {
    let mut targets = FxHashSet::default();
    add_targets(statements, &mut targets);
    targets
}

fn add_targets<'a>(statements: &'a [Statement], targets: &mut FxHashSet<&'a str>) {
    for statement in statements {
        match statement {
            Statement::Scope(inner) => add_targets(inner, targets),
            Statement::Instruction(instruction) if instruction.name() == "bra" => {
                if let Some(Operand::Name(label)) = instruction.operands.first() {
                    targets.insert(label);
                }
            }
            Statement::Table(table) if table.directive == ".branchtargets" => {
                targets.extend(table.arguments.split(',').map(str::trim));
            }
            _ => {}
        }
    }
}

/// Where the code of a body begins: behind the declarations at its start, and the labels among them that nothing
/// branches to.
pub(super) fn first_code(statements: &[Statement], targets: &FxHashSet<&str>) -> usize {
    let is_head = |statement: &&Statement| match statement {
        Statement::Declaration(_) | Statement::Location(_) => true,
        Statement::Label(label) => !targets.contains(label.as_str()),
        _ => false,
    };
    let head = statements.iter().take_while(is_head).count();
    let last = statements[..head].iter().rposition(|statement| !matches!(statement, Statement::Location(_)));
    last.map_or(0, |last| last + 1)
}

/// Whether control can reach the end of a body: its last instruction goes on, or something branches behind it.
pub(super) fn falls_through(statements: &[Statement], targets: &FxHashSet<&str>) -> bool {
    for statement in statements.iter().rev() {
        match statement {
            Statement::Instruction(instruction) => return !instruction.never_goes_on(),
            Statement::Label(label) if targets.contains(label.as_str()) => return true,
            Statement::Scope(inner) if has_code(inner) => return falls_through(inner, targets),
            _ => {}
        }
    }
    true
}

fn has_code(statements: &[Statement]) -> bool {
    statements.iter().any(|statement| match statement {
        Statement::Instruction(_) => true,
        Statement::Label(_) => true,
        Statement::Scope(inner) => has_code(inner),
        _ => false,
    })
}

/// Whether a scope passes parameters to a call. Nothing may be put in behind where the call begins ([`CallSite::begins_at`]).
pub(super) fn is_call_sequence(statements: &[Statement]) -> bool {
    let has_parameter = |it: &Statement| matches!(it, Statement::Declaration(it) if it.has(".param"));
    statements.iter().any(has_parameter) && calls(statements).next().is_some()
}

/// A call, and where it begins.
pub(super) struct CallSite<'a> {
    pub(super) instruction: &'a Instruction,
    /// Which statement passes its first parameter, or the call itself if none does: `st.param`, `call` and `ld.param` must stay in
    /// one basic block (PTX ISA, §9.7.9.8 "ld", §9.7.9.11 "st": `.param::func`).
    pub(super) begins_at: usize,
}

/// Returns the calls of a list of statements, without the scopes in it, in their order.
pub(super) fn calls(statements: &[Statement]) -> impl Iterator<Item = CallSite<'_>> {
    let begins_at = |call: usize, is_guarded: bool| {
        let passing = statements[..call].iter().enumerate().rev().take_while(|it| may_pass(it.1, is_guarded));
        passing.filter(|it| passes(it.1)).last().map_or(call, |it| it.0)
    };
    statements.iter().enumerate().filter_map(move |(at, statement)| match statement {
        Statement::Instruction(instruction) if instruction.name() == "call" => {
            Some(CallSite { instruction, begins_at: begins_at(at, instruction.guard.is_some()) })
        }
        _ => None,
    })
}

/// Whether a statement passes a parameter to a call, or may stand between some that do: what ends a block may not, nor what
/// may compute the call's guard, which is read where the call begins.
fn may_pass(statement: &Statement, is_guarded: bool) -> bool {
    match statement {
        Statement::Label(_) => false,
        Statement::Scope(inner) => !has_code(inner),
        Statement::Instruction(it) => passes(statement) || !is_guarded && !ENDS_BLOCK.contains(&it.name()),
        _ => true,
    }
}

/// Instructions after which, in a list of statements, another block begins.
const ENDS_BLOCK: [&str; 6] = ["call", "bra", "brx", "ret", "exit", "trap"];

fn passes(statement: &Statement) -> bool {
    matches!(statement, Statement::Instruction(it) if it.name() == "st" && it.spaces().any(|it| it.0 == Space::Param))
}
