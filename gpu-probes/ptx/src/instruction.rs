//! What can be asked of an instruction, of a declaration and of a function.

use crate::tree::*;

/// A state space that memory is accessed in (PTX ISA, §5.1 "State Spaces").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// None is named: the address says which.
    Generic,
    Global,
    /// Of the block, or of any block of the cluster.
    Shared,
    Local,
    Const,
    Param,
}

impl Space {
    /// The space that a modifier names: `shared::cluster` is [`Space::Shared`].
    pub fn from_modifier(modifier: &str) -> Option<Space> {
        match modifier.split("::").next()? {
            "global" => Some(Space::Global),
            "shared" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "const" => Some(Space::Const),
            "param" => Some(Space::Param),
            _ => None,
        }
    }

    /// Its name in PTX; a generic address has no space, and `generic` stands for that.
    pub fn name(self) -> &'static str {
        match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Const => "const",
            Space::Param => "param",
        }
    }
}

impl Declaration {
    /// The state space; `None` for registers and textures.
    pub fn space(&self) -> Option<Space> {
        self.words.iter().find_map(|word| Space::from_modifier(word.strip_prefix('.')?.split('[').next()?))
    }

    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|it| it == word)
    }

    /// The bits of its type, `.v2` and `.v4` counted in. `None` for textures and other opaque types.
    pub fn bits(&self) -> Option<u32> {
        let modifiers = || self.words.iter().filter_map(|word| word.strip_prefix('.'));
        Some(modifiers().find_map(type_bits)? * modifiers().find_map(vector_width).unwrap_or(1))
    }
}

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

    /// The state spaces that it names, in their order, and whether they are of the cluster.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = (Space, bool)> {
        self.modifiers().filter_map(|it| Some((Space::from_modifier(it)?, it.ends_with("::cluster"))))
    }

    /// The bits of its last type, without its vector width: 32 for `ld.global.v4.f32`.
    pub fn type_bits(&self) -> Option<u32> {
        self.modifiers().filter_map(type_bits).last()
    }

    /// The elements that it moves at once: 4 for `ld.global.v4.f32`, otherwise 1.
    pub fn vector_width(&self) -> u32 {
        self.modifiers().find_map(vector_width).unwrap_or(1)
    }

    /// Whether it ends a thread where a kernel runs it (PTX ISA, §9.7.12 "Control Flow Instructions": ret, exit).
    pub(crate) fn ends_thread(&self) -> bool {
        matches!(self.name(), "ret" | "exit")
    }

    /// Whether what follows it may not be run next, so that it ends a basic block (PTX ISA, §9.7.12; `trap` ends the
    /// grid).
    pub(crate) fn ends_block(&self) -> bool {
        matches!(self.name(), "ret" | "exit" | "bra" | "brx" | "trap")
    }

    /// Whether what follows it is never run next.
    pub(crate) fn never_goes_on(&self) -> bool {
        self.guard.is_none() && self.ends_block()
    }

    /// Whether threads wait for each other there, or announce that they came (PTX ISA, §9.7.13: bar, barrier,
    /// bar.warp.sync, barrier.cluster).
    pub(crate) fn is_barrier(&self) -> bool {
        matches!(self.name(), "bar" | "barrier")
    }
}

/// The bits of a type (PTX ISA, §5.2 "Types"): 32 for `f32`, `u8x4` and `f16x2`. `None` for what is no type.
pub fn type_bits(modifier: &str) -> Option<u32> {
    let (element, count) = match modifier.split_once('x') {
        Some((element, count)) => (element, count.parse::<u32>().ok().filter(|count| matches!(count, 2 | 4))?),
        None => (modifier, 1),
    };
    let bits = match element {
        "pred" => 1,
        "e4m3" | "e5m2" | "e3m2" | "e2m3" | "ue8m0" => 8,
        "e2m1" => 4,
        _ => number_bits(element)?,
    };
    Some(bits * count)
}

/// `b64`, `u32`, `s16`, `f16`, `bf16`, `tf32`.
fn number_bits(element: &str) -> Option<u32> {
    let digits = element.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let kind = &element[..element.len() - digits.len()];
    let bits = digits.parse().ok()?;
    let is_type = match kind {
        "b" => matches!(bits, 8 | 16 | 32 | 64 | 128),
        "u" | "s" => matches!(bits, 8 | 16 | 32 | 64),
        "f" => matches!(bits, 16 | 32 | 64),
        "bf" => bits == 16,
        "tf" => bits == 32,
        _ => false,
    };
    is_type.then_some(bits)
}

fn vector_width(modifier: &str) -> Option<u32> {
    match modifier {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_their_bits() {
        for (modifier, bits) in [
            ("pred", Some(1)),
            ("u8", Some(8)),
            ("bf16x2", Some(32)),
            ("tf32", Some(32)),
            ("e4m3x4", Some(32)),
            ("e2m1x2", Some(8)),
            ("b128", Some(128)),
            ("f32x2", Some(64)),
            ("m64n8k16", None),
            ("x4", None),
            ("v4", None),
            ("b", None),
            ("", None),
            ("L2::128B", None),
            ("u128", None),
        ] {
            assert_eq!(type_bits(modifier), bits, "{modifier}");
        }
    }
}
