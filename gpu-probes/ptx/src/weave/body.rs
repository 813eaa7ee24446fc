//! Walks a body and finds its points.

use super::flow::{self, CallSite};
use super::{Line, Point, Site, WeaveError, Weaving, build};
use crate::access::MemoryAccess;
use crate::names::DeclaredNames;
use crate::tree::*;
use rustc_hash::FxHashSet;
use std::iter::Peekable;

/// Weaves a body.
pub(super) fn weave(
    weaving: &mut Weaving,
    function: &Function,
    is_kernel: bool,
    statements: &[Statement],
) -> Result<Vec<Statement>, WeaveError> {
    let targets = flow::branch_targets(statements);
    let names = DeclaredNames::of_parameters(function);
    let name = function.name.as_str();
    let block = BasicBlock { is_due: true, is_open: false };
    let mut body = Body { weaving, name, is_kernel, targets, names, labels: 0, block, line: None, line_is_due: false };
    body.whole(statements)
}

struct Body<'a, 'w, 'i, 'k> {
    weaving: &'w mut Weaving<'k, 'i>,
    name: &'a str,
    is_kernel: bool,
    targets: FxHashSet<&'a str>,
    names: DeclaredNames<'a>,
    /// Labels made so far.
    labels: usize,
    block: BasicBlock,
    /// The line of the instructions that follow.
    line: Option<Line>,
    /// No instruction of the line has come yet.
    line_is_due: bool,
}

/// The basic block at a place of the text.
struct BasicBlock {
    /// It begins with the next instruction.
    is_due: bool,
    /// An instruction of it has come.
    is_open: bool,
}

type Woven = Vec<Statement>;

impl<'a> Body<'a, '_, '_, '_> {
    fn whole(&mut self, statements: &'a [Statement]) -> Result<Woven, WeaveError> {
        let start = flow::first_code(statements, &self.targets);
        self.names.enter(statements);
        let mut woven = Vec::with_capacity(statements.len());
        for statement in &statements[..start] {
            self.statement(statement, &mut woven)?;
        }
        if self.is_kernel {
            self.put(Point::Entry, None, &mut woven)?;
        }
        self.statements(&statements[start..], &mut woven)?;
        if flow::falls_through(statements, &self.targets) {
            self.begin(&mut woven)?;
            self.end_block(&mut woven)?;
            if self.is_kernel {
                self.put(Point::Exit, None, &mut woven)?;
            }
        }
        Ok(woven)
    }

    fn statements(&mut self, statements: &'a [Statement], woven: &mut Woven) -> Result<(), WeaveError> {
        let mut calls = flow::calls(statements).peekable();
        for (at, statement) in statements.iter().enumerate() {
            self.before_calls(at, &mut calls, woven)?;
            self.statement(statement, woven)?;
        }
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement, woven: &mut Woven) -> Result<(), WeaveError> {
        match statement {
            Statement::Scope(inner) if flow::is_call_sequence(inner) => {
                self.begin(woven)?;
                woven.push(Statement::Scope(self.call_sequence(inner)?));
            }
            Statement::Scope(inner) => woven.push(Statement::Scope(self.scope(inner)?)),
            Statement::Label(label) => self.label(label, woven)?,
            Statement::Location(location) => {
                self.location(location);
                woven.push(statement.clone());
            }
            Statement::Instruction(instruction) => self.instruction(instruction, woven)?,
            _ => woven.push(statement.clone()),
        }
        Ok(())
    }

    fn scope(&mut self, statements: &'a [Statement]) -> Result<Woven, WeaveError> {
        self.names.enter(statements);
        let mut woven = Vec::with_capacity(statements.len());
        self.statements(statements, &mut woven)?;
        self.names.leave();
        Ok(woven)
    }

    /// Puts in what belongs before its calls, and nothing else.
    fn call_sequence(&mut self, statements: &'a [Statement]) -> Result<Woven, WeaveError> {
        let mut calls = flow::calls(statements).peekable();
        let mut woven = Vec::with_capacity(statements.len());
        for (at, statement) in statements.iter().enumerate() {
            self.before_calls(at, &mut calls, &mut woven)?;
            woven.push(statement.clone());
        }
        Ok(woven)
    }

    /// Puts in what belongs before the calls of a list that begin with its statement `at`.
    fn before_calls(
        &mut self,
        at: usize,
        calls: &mut Peekable<impl Iterator<Item = CallSite<'a>>>,
        woven: &mut Woven,
    ) -> Result<(), WeaveError> {
        while let Some(CallSite { instruction, .. }) = calls.next_if(|it| it.begins_at == at) {
            self.begin(woven)?;
            if let Some(before) = self.at(Point::BeforeCall, Some(instruction))? {
                self.push_guarded(instruction.guard.as_ref(), vec![before], woven);
            }
        }
        Ok(())
    }

    fn label(&mut self, label: &'a str, woven: &mut Woven) -> Result<(), WeaveError> {
        if self.targets.contains(label) {
            self.end_block(woven)?;
            self.block.is_due = true;
            self.line_is_due = self.line.is_some();
        }
        woven.push(Statement::Label(label.to_owned()));
        Ok(())
    }

    fn location(&mut self, location: &Location) {
        // Line 0 is code that no line stands for.
        let line = (location.line > 0).then_some(Line { file: location.file, line: location.line });
        self.line_is_due = line.is_some() && (self.line_is_due || line != self.line);
        self.line = line;
    }

    fn instruction(&mut self, instruction: &'a Instruction, woven: &mut Woven) -> Result<(), WeaveError> {
        self.begin(woven)?;
        if instruction.ends_block() {
            self.end_block(woven)?;
            self.block.is_due = true;
            self.line_is_due = self.line.is_some();
        }
        let is_exit = instruction.ends_thread() && (self.is_kernel || instruction.name() == "exit");
        if is_exit {
            self.exit(instruction, woven)
        } else if instruction.is_barrier() {
            self.around(instruction, Point::BeforeBarrier, Point::AfterBarrier, woven)
        } else {
            self.accesses(instruction, woven)
        }
    }

    fn exit(&mut self, instruction: &Instruction, woven: &mut Woven) -> Result<(), WeaveError> {
        let before = self.at(Point::Exit, Some(instruction))?;
        self.push(instruction, before, None, woven);
        Ok(())
    }

    fn around(&mut self, it: &Instruction, before: Point, after: Point, woven: &mut Woven) -> Result<(), WeaveError> {
        let before = self.at(before, Some(it))?;
        let after = self.at(after, Some(it))?;
        self.push(it, before, after, woven);
        Ok(())
    }

    /// Pushes an instruction with what stands around it, all under its guard.
    fn push(&mut self, it: &Instruction, before: Option<Statement>, after: Option<Statement>, woven: &mut Woven) {
        if before.is_none() && after.is_none() {
            woven.push(Statement::Instruction(it.clone()));
            return;
        }
        let bare = Statement::Instruction(Instruction { guard: None, ..it.clone() });
        let all = before.into_iter().chain([bare]).chain(after).collect();
        self.push_guarded(it.guard.as_ref(), all, woven);
    }

    fn push_guarded(&mut self, guard: Option<&Guard>, statements: Woven, woven: &mut Woven) {
        let Some(guard) = guard else { return woven.extend(statements) };
        self.labels += 1;
        woven.push(build::guarded(guard, &format!("$xpt_past_{}", self.labels), statements));
    }

    fn accesses(&mut self, instruction: &Instruction, woven: &mut Woven) -> Result<(), WeaveError> {
        let mut all = vec![Statement::Instruction(Instruction { guard: None, ..instruction.clone() })];
        let mut is_changed = false;
        // Each access encloses the ones behind it, so that each has an address register of its own.
        for access in instruction.accesses().into_iter().rev() {
            is_changed |= self.access(instruction, access, &mut all)?;
        }
        if is_changed {
            self.push_guarded(instruction.guard.as_ref(), all, woven);
        } else {
            woven.push(Statement::Instruction(instruction.clone()));
        }
        Ok(())
    }

    /// Puts what belongs to an access around `inner`.
    fn access(
        &mut self,
        instruction: &Instruction,
        access: MemoryAccess,
        inner: &mut Woven,
    ) -> Result<bool, WeaveError> {
        let Some(mut scope) = build::address(&instruction.operands[access.operand], &self.names) else {
            return Ok(false);
        };
        let before = self.at(Point::BeforeAccess(access), Some(instruction))?;
        let after = self.at(Point::AfterAccess(access), Some(instruction))?;
        if before.is_none() && after.is_none() {
            return Ok(false);
        }
        scope.extend(before);
        scope.append(inner);
        scope.extend(after);
        *inner = vec![Statement::Scope(scope)];
        Ok(true)
    }

    /// Puts in what belongs before the first instruction of a block or a line.
    fn begin(&mut self, woven: &mut Woven) -> Result<(), WeaveError> {
        if std::mem::take(&mut self.block.is_due) {
            self.put(Point::BlockBegin, None, woven)?;
        }
        self.block.is_open = true;
        if std::mem::take(&mut self.line_is_due) {
            self.put(Point::Line, None, woven)?;
        }
        Ok(())
    }

    fn end_block(&mut self, woven: &mut Woven) -> Result<(), WeaveError> {
        if std::mem::take(&mut self.block.is_open) {
            self.put(Point::BlockEnd, None, woven)?;
        }
        Ok(())
    }

    fn put(&mut self, point: Point, instruction: Option<&Instruction>, woven: &mut Woven) -> Result<(), WeaveError> {
        woven.extend(self.at(point, instruction)?);
        Ok(())
    }

    fn at(&mut self, point: Point, instruction: Option<&Instruction>) -> Result<Option<Statement>, WeaveError> {
        self.weaving.at(&Site { point, function: self.name, line: self.line, instruction })
    }
}
