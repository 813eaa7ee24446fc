//! eBPF inside CUDA kernels: translates a program to a block of PTX, and says how the memory is laid out that
//! the block and the host share.
//!
//! ```text
//! Program ──flat──▶ nodes ──analyse──▶ types of registers ──emit──▶ { PTX } ──(woven into a kernel by others)
//!           calls inlined                                              │
//!                                        table, maps, ring ◀───────────┘──▶ readers for the host
//! ```
//!
//! The bytecode means what it means in the other engines (RFC 9669). The block takes no parameters: it finds its
//! maps through one variable of the module, [`layout::VARIABLE`], or through a register. Its registers and labels are in its own scope,
//! so a kernel may hold any number of blocks. It never faults, hangs, or writes outside of its maps, whatever the
//! program: what the types don't prove is tested at run time.
//!
//! This crate knows nothing of scripts, of CUDA's API, or of the kernels that its text becomes part of.
#![forbid(unsafe_code)]

mod analyse;
pub mod arena;
mod emit;
mod flat;
pub mod layout;
pub mod sums;
mod value;

use std::collections::BTreeMap;

use xputrace_bytecode::{BpfMapId, Program, insn};

pub use layout::{DeviceMap, Kind, Scope};
pub use sums::{Sum, Sums};

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
    fn changes(&self) -> bool {
        match self {
            Word::Narrow(register) | Word::Wide(register) => register.contains("clock") || register.contains("timer"),
            Word::Statements(_) | Word::Fixed(_) => true,
            Word::Absent | Word::Constant(_) => false,
        }
    }

    /// Whether it is the same wherever a thread reads it, though it may not be known now.
    fn is_fixed(&self) -> bool {
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
    fn load(&self, register: &str) -> String {
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

/// A translated program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// `{ … }`: PTX to be placed at the start of a statement, in a function's body.
    pub text: String,
    /// What is counted or recorded, in order of number, from [`Options::first_site`] on.
    pub sites: Vec<Site>,
}

/// A place in a program that counts losses, or writes records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Index of the instruction in the program.
    pub insn: usize,
    pub what: SiteKind,
}

/// What happens at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SiteKind {
    /// Counts runs that [`Options::fuel`] ended.
    OutOfFuel,
    /// Counts runs that an access outside of a map, the stack or a record ended.
    BadAccess,
    /// Writes records; counts those that the ring had no room for.
    Record(RecordKind),
}

/// What the data of a site's records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Bytes that the program has written to this ring.
    Data(BpfMapId),
    /// Three arguments, 64 bits each, and the format that shows them (helper 6).
    Format,
    /// Text up to a NUL (helper 501).
    Text,
}

/// Why a program can't run on the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("instruction {insn}: {what}")]
pub struct Refusal {
    /// Index of the instruction; [`Program::line_of`] has its line of the script.
    pub insn: usize,
    /// What is wrong there.
    pub what: String,
}

/// Translates a program.
///
/// # Errors
/// An instruction or a helper that the device lacks, a pointer whose kind isn't known, or an access that is
/// outside of its map or the stack.
pub fn translate(request: Request<'_>) -> Result<Block, Refusal> {
    let flat = flat::flatten(request.program, request.maps.len())?;
    let types = analyse::analyse(&flat, &request);
    emit::emit(&flat, &types, &request)
}

/// Bytes of a function's stack.
const STACK_BYTES: i64 = insn::STACK_BYTES as i64;

/// Reads the size in the code of a memory access.
fn access_size(code: u8) -> insn::Size {
    match code & 0x18 {
        0x00 => insn::Size::W,
        0x08 => insn::Size::H,
        0x10 => insn::Size::B,
        _ => insn::Size::Dw,
    }
}
