//! Puts a caller's statements into a kernel, at points of its code.
//!
//! What is put in stands in a `{ }` scope of its own, so its registers and labels are nobody else's. A caller's text
//! is parsed first: it can't reach beyond its scope, whatever it says.

use crate::ParseError;
use crate::parse::parse_statements;
use crate::tree::*;
use rustc_hash::FxHashSet;

/// A place in a kernel where statements can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Where every thread begins.
    Entry,
    /// Where a thread ends: before a `ret` or `exit`, if its guard holds, and at the end of the body.
    Exit,
}

/// What a caller is told of a point.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub point: Point,
    /// The function whose body it is in.
    pub function: &'a str,
}

/// Why nothing was woven.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeaveError {
    #[error("the module has no kernel `{0}` with a body")]
    NoKernel(String),
    #[error("what should be put in at {point:?} of `{function}` isn't PTX: {error}")]
    Text { point: Point, function: String, error: ParseError },
}

impl Module {
    /// Asks `insert` at every point of a kernel for statements, and puts them in.
    /// Returns how many times anything was put in.
    ///
    /// # Errors
    /// The module has no such kernel, or a text is not a sequence of statements. The module is as it was then.
    pub fn weave(
        &mut self,
        kernel: &str,
        insert: &mut dyn FnMut(&Site) -> Option<String>,
    ) -> Result<usize, WeaveError> {
        let function = self.kernel_mut(kernel).ok_or_else(|| WeaveError::NoKernel(kernel.to_owned()))?;
        let mut weaver = Weaver { insert, function: kernel, labels: 0, woven: 0 };
        let body = weaver.body(function.body.as_deref().unwrap_or_default())?;
        function.body = Some(body);
        Ok(weaver.woven)
    }

    fn kernel_mut(&mut self, name: &str) -> Option<&mut Function> {
        self.items.iter_mut().find_map(|item| match item {
            Item::Function(function) if function.name == name && function.is_kernel() && function.body.is_some() => {
                Some(function)
            }
            _ => None,
        })
    }
}

struct Weaver<'a> {
    insert: &'a mut dyn FnMut(&Site) -> Option<String>,
    function: &'a str,
    /// Labels made so far.
    labels: usize,
    woven: usize,
}

impl Weaver<'_> {
    fn body(&mut self, statements: &[Statement]) -> Result<Vec<Statement>, WeaveError> {
        let targets = branch_targets(statements);
        let start = first_code(statements, &targets);
        let mut woven = statements[..start].to_vec();
        woven.extend(self.at(Point::Entry)?);
        woven.extend(self.scope(&statements[start..])?);
        if falls_through(statements, &targets) {
            woven.extend(self.at(Point::Exit)?);
        }
        Ok(woven)
    }

    fn scope(&mut self, statements: &[Statement]) -> Result<Vec<Statement>, WeaveError> {
        let mut woven = Vec::with_capacity(statements.len());
        for statement in statements {
            match statement {
                Statement::Scope(inner) => woven.push(Statement::Scope(self.scope(inner)?)),
                Statement::Instruction(instruction) if instruction.ends_thread() => {
                    self.exit(instruction, &mut woven)?
                }
                other => woven.push(other.clone()),
            }
        }
        Ok(woven)
    }

    fn exit(&mut self, instruction: &Instruction, woven: &mut Vec<Statement>) -> Result<(), WeaveError> {
        let text = self.at(Point::Exit)?;
        match (&instruction.guard, text) {
            (Some(guard), Some(text)) => {
                let bare = Instruction { guard: None, ..instruction.clone() };
                let guarded = vec![text, Statement::Instruction(bare)];
                woven.push(self.guarded(guard, guarded));
            }
            (_, text) => {
                woven.extend(text);
                woven.push(Statement::Instruction(instruction.clone()));
            }
        }
        Ok(())
    }

    /// Statements that run only where a guard holds.
    fn guarded(&mut self, guard: &Guard, statements: Vec<Statement>) -> Statement {
        self.labels += 1;
        let label = format!("$xpt_past_{}", self.labels);
        let skip = Instruction {
            guard: Some(Guard { is_negated: !guard.is_negated, ..guard.clone() }),
            opcode: "bra".to_owned(),
            operands: vec![Operand::Name(label.clone())],
        };
        let mut scope = vec![Statement::Instruction(skip)];
        scope.extend(statements);
        scope.push(Statement::Label(label));
        Statement::Scope(scope)
    }

    fn at(&mut self, point: Point) -> Result<Option<Statement>, WeaveError> {
        let Some(text) = (self.insert)(&Site { point, function: self.function }) else { return Ok(None) };
        let statements = parse_statements(&text).map_err(|error| WeaveError::Text {
            point,
            function: self.function.to_owned(),
            error,
        })?;
        self.woven += 1;
        Ok(Some(Statement::Scope(statements)))
    }
}

/// Where the code of a body begins: behind the declarations at its start, and the labels among them that nothing
/// branches to.
fn first_code(statements: &[Statement], targets: &FxHashSet<&str>) -> usize {
    let is_head = |statement: &&Statement| match statement {
        Statement::Declaration(_) | Statement::Location(_) => true,
        Statement::Label(label) => !targets.contains(label.as_str()),
        _ => false,
    };
    let head = statements.iter().take_while(is_head).count();
    let last = statements[..head].iter().rposition(|statement| !matches!(statement, Statement::Location(_)));
    last.map_or(0, |last| last + 1)
}

/// The labels that a branch may go to.
fn branch_targets(statements: &[Statement]) -> FxHashSet<&str> {
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

/// Whether control can reach the end of a body: its last instruction goes on, or something branches behind it.
fn falls_through(statements: &[Statement], targets: &FxHashSet<&str>) -> bool {
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
        Statement::Scope(inner) => has_code(inner),
        _ => false,
    })
}
