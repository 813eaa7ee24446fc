//! Makes a copy of a kernel use the original's variables: their addresses are read from a table that the host fills.
//!
//! A module that is loaded a second time has variables of its own. Here a variable's declaration goes, and every
//! place that has its address reads it from the table. Constants are read as global memory: from the address that
//! the host gets for a constant, `ld.global` reads it.
//!
//! ```text
//! ld.global.u32 %r1, [counter+4];      { .reg .b64 %xpt_variable0;
//!                                        ld.const.u64 %xpt_variable0, [xpt_globals+8];
//!                                        ld.global.u32 %r1, [%xpt_variable0+4]; }
//! ```

use crate::instruction::Space;
use crate::names::DeclaredNames;
use crate::tree::*;
use crate::visit::visit_text;
use rustc_hash::FxHashMap;

/// The table of addresses: `.visible .const .align 8 .u64 xpt_globals[N];`.
///
/// It is constant memory, whose words are operands of instructions: an address costs no access to memory.
pub const GLOBALS: &str = "xpt_globals";

/// Who knows a variable (PTX ISA, §11.6 "Linking Directives").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// The module alone, as far as PTX says. So CUDA's compiler declares those that the host reads and writes, too.
    Local,
    Visible,
    Weak,
    Common,
    /// Another module has it.
    Extern,
}

/// A variable of a module, in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: String,
    pub space: Space,
    /// `None` where PTX doesn't say it.
    pub bytes: Option<u64>,
    pub linkage: Linkage,
    pub is_initialised: bool,
    /// Both CPU and GPU access it (PTX ISA, §5.4.8 ".attribute").
    pub is_managed: bool,
}

impl Variable {
    /// Whether it is a `static` one of a function: the C++ ABI's names of those begin so.
    pub fn is_function_static(&self) -> bool {
        self.name.starts_with("_ZZ")
    }

    /// Whether it is a text or table that a compiler put there, such as a format: nothing writes it, so a copy may have
    /// its own. By the names that NVIDIA's compiler, its mathematical functions and Triton give them.
    pub fn is_literal(&self) -> bool {
        const PREFIXES: [&str; 8] = [
            "$str",
            "__unnamed_",
            "__cudart_",
            "printfFormat_",
            "printfPrefix_",
            "assertFile_",
            "assertFunc_",
            "assertMessage_",
        ];
        let is_own = self.linkage == Linkage::Local && self.is_initialised && self.space == Space::Global;
        is_own && PREFIXES.iter().any(|prefix| self.name.starts_with(prefix))
    }
}

/// Why variables can't be redirected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectError {
    #[error("`{function}` uses `{variable}` in a way that isn't known: {text}")]
    Use { function: String, variable: String, text: String },
    #[error("`{variable}` is initialised with the address of `{target}`, which is the original's")]
    Initialiser { variable: String, target: String },
}

impl Module {
    /// The variables of the module that a copy would have of its own: those in global and constant memory.
    pub fn variables(&self) -> Vec<Variable> {
        self.items
            .iter()
            .filter_map(|item| match item {
                Item::Variable(declaration) => Some(declaration),
                _ => None,
            })
            .flat_map(variables)
            .collect()
    }

    /// Makes the code use variables of the original: those that `chooses` says, and all constants if it says one.
    /// Returns them in the order of their addresses in [`GLOBALS`].
    ///
    /// Prune the module before ([`Module::only`]), so that the table has no variable that nobody uses, and weave
    /// after it: woven text that reads constants by a register would be changed, too.
    ///
    /// # Errors
    /// A variable is used in a way that can't be redirected. The module is as it was then.
    pub fn redirect(&mut self, chooses: &mut dyn FnMut(&Variable) -> bool) -> Result<Vec<Variable>, RedirectError> {
        let chosen = choose(self.variables(), chooses);
        if chosen.is_empty() {
            return Ok(chosen);
        }
        let indices: FxHashMap<String, usize> =
            chosen.iter().enumerate().map(|(index, variable)| (variable.name.clone(), index)).collect();
        self.check_initialisers(&indices)?;
        let has_constants = chosen.iter().any(|variable| variable.space == Space::Const);
        let mut bodies = Vec::new();
        for function in self.functions() {
            let redirecting = Redirecting { indices: &indices, has_constants, function: &function.name };
            let mut names = DeclaredNames::of_parameters(function);
            let body = function.body.as_deref().map(|body| redirecting.scope(body, &mut names)).transpose()?;
            bodies.push(body);
        }
        self.functions_mut().zip(bodies).for_each(|(function, body)| function.body = body);
        self.remove_variables(&indices);
        self.declare_table(chosen.len());
        Ok(chosen)
    }

    /// What stays may not hold the address of what goes.
    fn check_initialisers(&self, chosen: &FxHashMap<String, usize>) -> Result<(), RedirectError> {
        for item in &self.items {
            let Item::Variable(declaration) = item else { continue };
            for declarator in declaration.names.iter().filter(|it| !chosen.contains_key(&it.name)) {
                let mut target = None;
                let text = declarator.initialiser.as_deref().unwrap_or_default();
                visit_text(text, &mut |name| target = target.or(chosen.contains_key(name).then_some(name)));
                if let Some(target) = target {
                    let (variable, target) = (declarator.name.clone(), target.to_owned());
                    return Err(RedirectError::Initialiser { variable, target });
                }
            }
        }
        Ok(())
    }

    fn remove_variables(&mut self, chosen: &FxHashMap<String, usize>) {
        self.items.retain_mut(|item| {
            let Item::Variable(declaration) = item else { return true };
            declaration.names.retain(|declarator| !chosen.contains_key(&declarator.name));
            !declaration.names.is_empty()
        });
    }

    /// Declares the table behind the directives that a module begins with.
    fn declare_table(&mut self, length: usize) {
        let words = [".visible", ".const", ".align 8", ".u64"].map(str::to_owned).to_vec();
        let table =
            Declarator { name: GLOBALS.to_owned(), dimensions: vec![length.to_string()], ..Declarator::default() };
        let at = self.after_head();
        self.items.insert(at, Item::Variable(Declaration { words, names: vec![table] }));
    }
}

fn variables(declaration: &Declaration) -> Vec<Variable> {
    let Some(space @ (Space::Global | Space::Const)) = declaration.space() else { return Vec::new() };
    let Some(bits) = declaration.bits() else { return Vec::new() };
    let each = declaration.names.iter().map(|declarator| Variable {
        name: declarator.name.clone(),
        space,
        bytes: bytes(bits, &declarator.dimensions),
        linkage: linkage(declaration),
        is_initialised: declarator.initialiser.is_some(),
        is_managed: declaration.words.iter().any(|word| word.starts_with(".attribute") && word.contains(".managed")),
    });
    each.collect()
}

fn bytes(bits: u32, dimensions: &[String]) -> Option<u64> {
    let element = u64::from(bits.div_ceil(8));
    dimensions.iter().try_fold(element, |bytes, size| bytes.checked_mul(size.parse().ok()?))
}

fn linkage(declaration: &Declaration) -> Linkage {
    match () {
        () if declaration.has(".extern") => Linkage::Extern,
        () if declaration.has(".visible") => Linkage::Visible,
        () if declaration.has(".weak") => Linkage::Weak,
        () if declaration.has(".common") => Linkage::Common,
        () => Linkage::Local,
    }
}

/// Constants all or none: where a register holds the address of one, the code doesn't say of which.
fn choose(variables: Vec<Variable>, chooses: &mut dyn FnMut(&Variable) -> bool) -> Vec<Variable> {
    let mut chosen: Vec<bool> = variables.iter().map(chooses).collect();
    let is_constant = |variable: &Variable| variable.space == Space::Const;
    let any_constant = variables.iter().zip(&chosen).any(|(variable, chosen)| *chosen && is_constant(variable));
    for (variable, chosen) in variables.iter().zip(&mut chosen) {
        *chosen |= any_constant && is_constant(variable);
    }
    variables.into_iter().zip(chosen).filter_map(|(variable, chosen)| chosen.then_some(variable)).collect()
}

struct Redirecting<'a> {
    /// Where in the table each variable's address is.
    indices: &'a FxHashMap<String, usize>,
    has_constants: bool,
    function: &'a str,
}

impl Redirecting<'_> {
    fn scope<'n>(
        &self,
        statements: &'n [Statement],
        names: &mut DeclaredNames<'n>,
    ) -> Result<Vec<Statement>, RedirectError> {
        names.enter(statements);
        let redirected: Result<Vec<_>, _> =
            statements.iter().map(|statement| self.statement(statement, names)).collect();
        names.leave();
        redirected
    }

    fn statement<'n>(
        &self,
        statement: &'n Statement,
        names: &mut DeclaredNames<'n>,
    ) -> Result<Statement, RedirectError> {
        match statement {
            Statement::Scope(inner) => Ok(Statement::Scope(self.scope(inner, names)?)),
            Statement::Instruction(instruction) => self.instruction(instruction, names),
            other => Ok(other.clone()),
        }
    }

    fn instruction(&self, instruction: &Instruction, names: &DeclaredNames) -> Result<Statement, RedirectError> {
        let mut redirected = instruction.clone();
        if self.has_constants {
            self.leave_constant_space(&mut redirected, names);
        }
        if let Some(index) = self.whole_address(&redirected, names) {
            return Ok(Statement::Instruction(load_whole_address(redirected, index)));
        }
        let mut used = Used { redirecting: self, names, instruction, indices: Vec::new(), statements: Vec::new() };
        redirected.operands.iter_mut().try_for_each(|operand| used.operand(operand))?;
        if used.indices.is_empty() {
            return Ok(Statement::Instruction(redirected));
        }
        let mut scope = used.loads();
        scope.push(Statement::Instruction(redirected));
        Ok(Statement::Scope(scope))
    }

    /// Makes an access to constants one to global memory, as the addresses are global (generic) ones then.
    fn leave_constant_space(&self, instruction: &mut Instruction, names: &DeclaredNames) {
        if !instruction.has("const") || self.names_a_variable_that_stays(instruction, names) {
            return;
        }
        match instruction.name() {
            "ld" => instruction.opcode = replaced(&instruction.opcode, "const", Some("global")),
            // From generic to constant and back: both are generic now.
            "cvta" => instruction.opcode = "mov.b64".to_owned(),
            // `prefetch.const.tensormap` takes a generic address without `.const`.
            "prefetch" => instruction.opcode = replaced(&instruction.opcode, "const", None),
            _ => {}
        }
    }

    /// Whether an address is that of a constant that isn't redirected.
    fn names_a_variable_that_stays(&self, instruction: &Instruction, names: &DeclaredNames) -> bool {
        instruction.operands.iter().any(|operand| {
            let Operand::Address(parts) = operand else { return false };
            match parts.first() {
                Some(Operand::Name(name) | Operand::Sum { name, .. }) => {
                    names.find(name).is_none() && !self.indices.contains_key(name)
                }
                _ => false,
            }
        })
    }

    /// Where the address is that `mov` or `cvta` copies to a register.
    fn whole_address(&self, instruction: &Instruction, names: &DeclaredNames) -> Option<usize> {
        let is_copy = matches!(instruction.opcode.as_str(), "mov.u64" | "mov.b64" | "mov.s64" | "cvta.global.u64");
        match instruction.operands.as_slice() {
            [Operand::Name(_), Operand::Name(name)] if is_copy => self.index(name, names),
            _ => None,
        }
    }

    fn index(&self, name: &str, names: &DeclaredNames) -> Option<usize> {
        let index = self.indices.get(name)?;
        names.find(name).is_none().then_some(*index)
    }
}

/// An instruction whose operands are being replaced.
struct Used<'a> {
    redirecting: &'a Redirecting<'a>,
    names: &'a DeclaredNames<'a>,
    instruction: &'a Instruction,
    /// The variables whose addresses it needs; their registers are numbered so.
    indices: Vec<usize>,
    /// What computes sums of an address and a constant.
    statements: Vec<Statement>,
}

impl Used<'_> {
    /// Replaces variables in an operand by registers with their addresses.
    fn operand(&mut self, operand: &mut Operand) -> Result<(), RedirectError> {
        match operand {
            Operand::Address(parts) => {
                // `[V+8]` may stay a sum; sums elsewhere are no operands.
                if let Some(Operand::Sum { name, .. }) = parts.first_mut()
                    && let Some(index) = self.redirecting.index(name, self.names)
                {
                    *name = self.register(index);
                }
                parts.iter_mut().try_for_each(|part| self.operand(part))
            }
            Operand::Vector(parts) | Operand::List(parts) => parts.iter_mut().try_for_each(|part| self.operand(part)),
            Operand::Name(name) => {
                if let Some(index) = self.redirecting.index(name, self.names) {
                    *name = self.register(index);
                }
                Ok(())
            }
            Operand::Sum { name, offset } => {
                if let Some(index) = self.redirecting.index(name, self.names) {
                    *operand = Operand::Name(self.sum(index, offset));
                }
                Ok(())
            }
            Operand::Expression(text) => self.refuse(text),
            Operand::Pair(..) | Operand::Not(_) => Ok(()),
        }
    }

    /// An expression may not mention a variable.
    fn refuse(&self, text: &str) -> Result<(), RedirectError> {
        let mut mentioned = None;
        visit_text(text, &mut |name| mentioned = mentioned.or(self.redirecting.index(name, self.names).map(|_| name)));
        match mentioned {
            Some(name) => Err(RedirectError::Use {
                function: self.redirecting.function.to_owned(),
                variable: name.to_owned(),
                text: self.instruction.to_string(),
            }),
            None => Ok(()),
        }
    }

    /// The register for the address of a variable.
    fn register(&mut self, index: usize) -> String {
        let at = self.indices.iter().position(|it| *it == index).unwrap_or_else(|| {
            self.indices.push(index);
            self.indices.len() - 1
        });
        format!("{VARIABLE}{at}")
    }

    /// A register for the address of a variable and a constant.
    fn sum(&mut self, index: usize, offset: &str) -> String {
        let base = self.register(index);
        let sum = format!("{VARIABLE}_sum{}", self.statements.len() / 2);
        self.statements.push(register(&sum));
        let constant = Operand::of_offset(offset);
        let operands = vec![Operand::Name(sum.clone()), Operand::Name(base), constant];
        let add = Instruction { guard: None, opcode: "add.s64".to_owned(), operands };
        self.statements.push(Statement::Instruction(add));
        sum
    }

    /// The statements before the instruction.
    fn loads(self) -> Vec<Statement> {
        let loads = self.indices.iter().enumerate().flat_map(|(at, index)| {
            let name = format!("{VARIABLE}{at}");
            [register(&name), Statement::Instruction(load(None, Operand::Name(name), *index))]
        });
        loads.chain(self.statements).collect()
    }
}

/// Registers for addresses of variables begin so.
const VARIABLE: &str = "%xpt_variable";

fn register(name: &str) -> Statement {
    let names = vec![Declarator { name: name.to_owned(), ..Declarator::default() }];
    Statement::Declaration(Declaration { words: vec![".reg".to_owned(), ".b64".to_owned()], names })
}

/// Reads an address from the table.
fn load(guard: Option<Guard>, to: Operand, index: usize) -> Instruction {
    let address = Operand::Sum { name: GLOBALS.to_owned(), offset: format!("+{}", index * BYTES_OF_ADDRESS) };
    Instruction { guard, opcode: "ld.const.u64".to_owned(), operands: vec![to, Operand::Address(vec![address])] }
}

/// The same instead of an instruction that copies the address.
fn load_whole_address(mut copy: Instruction, index: usize) -> Instruction {
    load(copy.guard, copy.operands.swap_remove(0), index)
}

const BYTES_OF_ADDRESS: usize = 8;

/// An opcode with a modifier replaced or removed.
fn replaced(opcode: &str, modifier: &str, by: Option<&str>) -> String {
    let words = opcode.split('.').filter_map(|word| if word == modifier { by } else { Some(word) });
    words.collect::<Vec<_>>().join(".")
}
