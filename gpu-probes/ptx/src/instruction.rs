//! What can be asked of an instruction and of a function.

use crate::tree::*;

impl Function {
    /// Whether the host can launch it.
    pub fn is_kernel(&self) -> bool {
        self.words.iter().any(|word| word == ".entry")
    }
}

impl Instruction {
    /// The operation without its modifiers: `ld`.
    pub fn name(&self) -> &str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    /// What follows the name, without the dots: `global`, `v4`, `f32`.
    pub fn modifiers(&self) -> impl Iterator<Item = &str> {
        self.opcode.split('.').skip(1)
    }

    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers().any(|word| word == modifier)
    }

    /// Whether it ends a thread where a kernel runs it (PTX ISA, §9.7.12.6 "ret", and §9.7.12.7 "exit").
    pub(crate) fn ends_thread(&self) -> bool {
        matches!(self.name(), "ret" | "exit")
    }

    /// Whether what follows it is not run next (PTX ISA, §9.7.12 "Control Flow Instructions"; `trap` ends the grid).
    pub(crate) fn never_goes_on(&self) -> bool {
        self.guard.is_none() && matches!(self.name(), "ret" | "exit" | "bra" | "brx" | "trap")
    }
}
