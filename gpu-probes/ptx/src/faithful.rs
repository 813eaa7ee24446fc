//! Whether a kernel's woven copy, loaded beside the original, can do what the original does.

use crate::names::DeclaredNames;
use crate::reach;
use crate::tree::*;
use crate::visit::{visit_operand, visit_text};
use rustc_hash::FxHashSet;

/// Why a copy of a kernel would not do what the kernel does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Obstacle {
    #[error("the module has no kernel `{kernel}` with a body")]
    NoKernel { kernel: String },
    /// Bound by the host to the original's (PTX ISA, §5.3 "Texture Sampler and Surface Types").
    #[error("`{variable}` is a texture, surface or sampler reference, which the program binds to the original only")]
    TextureReference { variable: String },
    #[error("`{variable}` holds addresses of functions, which are the original's")]
    FunctionTable { variable: String },
    #[error("`{function}` takes the address of `{target}`, which is another one in the original")]
    FunctionAddress { function: String, target: String },
    #[error("`{function}` calls a function by its address, which may be one of the original's")]
    IndirectCall { function: String },
    #[error("`{function}` launches kernels from the GPU, by `{callee}`")]
    DeviceLaunch { function: String, callee: String },
    #[error("`{function}` is in another module, to which the copy is not linked")]
    ExternalFunction { function: String },
    #[error("`{function}` asks whether an address is constant memory; a copy reads constants as global memory")]
    ConstantTest { function: String },
    #[error("`{variable}` is in a bank of constants, which PTX no longer has")]
    ConstantBank { variable: String },
    #[error("addresses have 32 bits in this module")]
    NarrowAddresses,
}

/// External functions that the driver provides to every module (CUDA C++ Programming Guide, "Formatted Output",
/// "Dynamic Global Memory Allocation", "Assertion").
const DRIVERS_OWN: [&str; 4] = ["vprintf", "malloc", "free", "__assertfail"];

/// The device runtime's functions that launch kernels (CUDA Dynamic Parallelism, "PTX API").
const LAUNCHES: [&str; 4] =
    ["cudaLaunchDevice", "cudaGetParameterBuffer", "__cudaCDP2Launch", "__cudaCDP2GetParameter"];

/// Types of references (PTX ISA, §5.3).
const REFERENCES: [&str; 3] = [".texref", ".surfref", ".samplerref"];

impl Module {
    /// Everything that keeps a copy of a kernel from doing what the kernel does; empty if nothing does.
    ///
    /// It assumes that the copy's variables are redirected ([`Module::redirect`]).
    pub fn faithful(&self, kernel: &str) -> Vec<Obstacle> {
        if self.kernel(kernel).is_none() {
            return vec![Obstacle::NoKernel { kernel: kernel.to_owned() }];
        }
        let reached = self.reached(std::iter::once(kernel));
        let functions = self.functions().map(|function| function.name.as_str()).chain(self.aliases()).collect();
        let mut found = ObstacleSearch { module: self, functions, obstacles: Vec::new() };
        found.module();
        self.items.iter().for_each(|item| found.item(item, &reached));
        found.obstacles.sort();
        found.obstacles.dedup();
        found.obstacles
    }

    fn aliases(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|item| match item {
            Item::Directive(directive) => reach::alias(directive).map(|(name, _)| name),
            _ => None,
        })
    }

    /// The bits of an address; 32 if the module doesn't say (PTX ISA, §11.1.3 ".address_size").
    fn has_wide_addresses(&self) -> bool {
        self.directives(".address_size").any(|it| it.arguments == "64")
    }

    fn is_defined(&self, function: &str) -> bool {
        self.functions().any(|it| it.name == function && it.body.is_some())
    }
}

struct ObstacleSearch<'a> {
    module: &'a Module,
    /// The names of all functions.
    functions: FxHashSet<&'a str>,
    obstacles: Vec<Obstacle>,
}

impl<'a> ObstacleSearch<'a> {
    fn module(&mut self) {
        if !self.module.has_wide_addresses() {
            self.obstacles.push(Obstacle::NarrowAddresses);
        }
    }

    fn item(&mut self, item: &'a Item, reached: &FxHashSet<String>) {
        match item {
            Item::Variable(declaration) => {
                let names = declaration.names.iter().filter(|it| reached.contains(&it.name));
                names.for_each(|declarator| self.variable(declaration, declarator));
            }
            Item::Function(function) if reached.contains(&function.name) => self.function(function),
            _ => {}
        }
    }

    fn variable(&mut self, declaration: &Declaration, declarator: &Declarator) {
        let variable = || declarator.name.clone();
        if declaration.words.iter().any(|word| REFERENCES.contains(&word.as_str()) || word == ".tex") {
            self.obstacles.push(Obstacle::TextureReference { variable: variable() });
        }
        if declaration.words.iter().any(|word| word.starts_with(".const[")) {
            self.obstacles.push(Obstacle::ConstantBank { variable: variable() });
        }
        let mut holds_function = false;
        let text = declarator.initialiser.as_deref().unwrap_or_default();
        visit_text(text, &mut |name| holds_function |= self.functions.contains(name));
        if holds_function {
            self.obstacles.push(Obstacle::FunctionTable { variable: variable() });
        }
    }

    fn function(&mut self, function: &'a Function) {
        let Some(body) = &function.body else { return self.prototype(function) };
        let parameters = function.parameters.iter().flatten();
        let references = parameters.filter(|it| it.words.iter().any(|word| REFERENCES.contains(&word.as_str())));
        let names = references.flat_map(|declaration| &declaration.names);
        let as_obstacle = |it: &Declarator| Obstacle::TextureReference { variable: it.name.clone() };
        self.obstacles.extend(names.map(as_obstacle));
        self.statements(function, body, &mut DeclaredNames::of_parameters(function));
    }

    /// A function without a body is in another module, or the driver's, or the assembler's own if it isn't external.
    fn prototype(&mut self, function: &Function) {
        let name = function.name.as_str();
        let is_external = function.words.iter().any(|word| word == ".extern");
        let is_launch = LAUNCHES.iter().any(|prefix| name.starts_with(prefix));
        if is_external && !is_launch && !DRIVERS_OWN.contains(&name) && !self.module.is_defined(name) {
            self.obstacles.push(Obstacle::ExternalFunction { function: name.to_owned() });
        }
    }

    fn statements(&mut self, function: &Function, statements: &'a [Statement], names: &mut DeclaredNames<'a>) {
        names.enter(statements);
        for statement in statements {
            match statement {
                Statement::Scope(inner) => self.statements(function, inner, names),
                Statement::Instruction(instruction) => self.instruction(function, instruction, names),
                _ => {}
            }
        }
        names.leave();
    }

    fn instruction(&mut self, function: &Function, instruction: &Instruction, names: &DeclaredNames) {
        let target = call_target(instruction);
        if let Some(target) = target {
            self.call(function, target, names);
        }
        if instruction.name() == "isspacep" && instruction.has("const") {
            self.obstacles.push(Obstacle::ConstantTest { function: function.name.clone() });
        }
        for operand in instruction.operands.iter().enumerate().filter(|(at, _)| Some(*at) != target.map(|it| it.at)) {
            visit_operand(operand.1, &mut |name| self.mention(function, name, names));
        }
    }

    fn call(&mut self, function: &Function, target: CallTarget, names: &DeclaredNames) {
        let name = target.name;
        if names.find(name).is_some() || !self.functions.contains(name) {
            self.obstacles.push(Obstacle::IndirectCall { function: function.name.clone() });
        } else if LAUNCHES.iter().any(|prefix| name.starts_with(prefix)) {
            let (function, callee) = (function.name.clone(), name.to_owned());
            self.obstacles.push(Obstacle::DeviceLaunch { function, callee });
        }
    }

    /// A name where no call has its target.
    fn mention(&mut self, function: &Function, name: &str, names: &DeclaredNames) {
        if self.functions.contains(name) && names.find(name).is_none() {
            let (function, target) = (function.name.clone(), name.to_owned());
            self.obstacles.push(Obstacle::FunctionAddress { function, target });
        }
    }
}

impl Instruction {
    /// The name of the function that it calls, or of what has the function's address; `None` for what is no call.
    pub fn callee(&self) -> Option<&str> {
        call_target(self).map(|it| it.name)
    }
}

/// What a call calls.
#[derive(Clone, Copy)]
pub(crate) struct CallTarget<'a> {
    pub(crate) name: &'a str,
    /// Which operand it is.
    pub(crate) at: usize,
}

/// `call (result), target, (parameters), prototype;`: the first operand that is no list. `None` for other instructions.
pub(crate) fn call_target(instruction: &Instruction) -> Option<CallTarget<'_>> {
    let mut operands = instruction.operands.iter().enumerate().filter(|_| instruction.name() == "call");
    operands.find_map(|(at, operand)| match operand {
        Operand::Name(name) => Some(CallTarget { name, at }),
        _ => None,
    })
}
