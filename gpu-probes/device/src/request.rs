//! What is asked for: a program, what its context and maps are, and how it is translated.

use std::collections::BTreeMap;

use xputrace_bytecode::Program;

use crate::block::Site;
use crate::layout::{self, DeviceMap};
use crate::sums::Sums;

/// The oldest PTX that has every instruction of a block: `.version` of the module is at least this.
pub const LEAST_PTX_VERSION: (u32, u32) = (7, 0);
/// The oldest architecture that a block can be compiled for, as in `sm_70`.
pub const LEAST_ARCHITECTURE: u32 = 70;

/// What is to be translated.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The entry function comes first; functions that it calls follow it in the same list.
    pub program: &'a Program,
    /// The maps by their [`xputrace_bytecode::BpfMapId`].
    pub maps: &'a [DeviceMap],
    /// The 64-bit words of the context in R1, as far as the program may read them.
    pub context: &'a [Word],
    pub options: &'a Options,
}

/// Where a word of the context comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The event doesn't have it; reading it is refused.
    Absent,
    /// A number known now.
    Constant(u64),
    /// A 32-bit register or special register of PTX, zero-extended: `%tid.x`.
    Narrow(String),
    /// A 64-bit register or special register of PTX: `%globaltimer`.
    Wide(String),
    /// Statements that set `{d}`, a 64-bit register. What they declare goes into a scope of their own.
    Statements(String),
    /// Likewise, and it is the same wherever a thread reads it.
    Fixed(String),
}

/// Special registers that don't change while a thread runs (PTX ISA, chapter 10), before their axis.
const FIXED_REGISTERS: [&str; 6] = ["%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%gridid"];

/// A word, and when it is read.
impl Word {
    /// Whether two reads may differ, so that the word is read once, before the program runs.
    pub(crate) fn changes(&self) -> bool {
        match self {
            Word::Narrow(register) | Word::Wide(register) => register.contains("clock") || register.contains("timer"),
            Word::Statements(_) | Word::Fixed(_) => true,
            Word::Absent | Word::Constant(_) => false,
        }
    }

    /// Whether it is the same wherever a thread reads it, though it may not be known now.
    pub(crate) fn is_fixed(&self) -> bool {
        match self {
            Word::Narrow(register) | Word::Wide(register) => {
                FIXED_REGISTERS.contains(&register.split('.').next().unwrap_or_default())
            }
            Word::Fixed(_) | Word::Constant(_) => true,
            Word::Statements(_) | Word::Absent => false,
        }
    }
}

/// How a program is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Backward jumps that one run may make before it is ended and counted.
    pub fuel: u32,
    /// Whether helper 507, which ends the kernel's thread, is allowed.
    pub allow_exit: bool,
    /// A 64-bit register of the surrounding code that gets R0.
    pub result: Option<String>,
    /// Number of the program's first site; its other sites follow.
    pub first_site: u32,
    /// Architecture that the module is compiled for, as in `sm_90`.
    pub architecture: u32,
    /// Whether to head each instruction's statements with its number.
    pub annotate: bool,
    /// Texts of string ids, for helpers that ask for texts of strings known now.
    pub names: BTreeMap<u64, Vec<u8>>,
    /// Where the block finds the table.
    pub table: TableAt,
    /// What the thread sums up in registers.
    pub sums: Sums,
    /// Sites that have numbers already, in their order: those of the same program in another context.
    pub sites: Vec<Site>,
}

/// Where a block finds its table's address; at 0 it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableAt {
    /// In this element of the module's [`layout::VARIABLE`], which switches it.
    Variable { switch: usize },
    /// In a 64-bit register of the surrounding code. There is no variable, so the table's [`layout::header::ENABLED`] is
    /// tested too: one more load from device memory in every run.
    Register(String),
}

impl Default for TableAt {
    fn default() -> Self {
        TableAt::Variable { switch: 0 }
    }
}

impl TableAt {
    /// Returns the instruction that sets a 64-bit register to the address.
    pub(crate) fn load(&self, register: &str) -> String {
        match self {
            TableAt::Variable { switch: 0 } => format!("ld.global.nc.u64 {register}, [{}]", layout::VARIABLE),
            TableAt::Variable { switch } => {
                format!("ld.global.nc.u64 {register}, [{}+{}]", layout::VARIABLE, switch * size_of::<u64>())
            }
            TableAt::Register(from) => format!("mov.b64 {register}, {from}"),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            fuel: 1 << 16,
            allow_exit: false,
            result: None,
            first_site: 0,
            architecture: LEAST_ARCHITECTURE,
            annotate: false,
            names: BTreeMap::new(),
            table: TableAt::default(),
            sums: Sums::default(),
            sites: Vec::new(),
        }
    }
}
