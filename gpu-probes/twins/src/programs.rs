//! Makes kernels of their own of programs: entries without parameters, whose body is the program.

use crate::handler::switches_of;
use crate::maker::Maker;
use crate::target::heading;
use xputrace_device::layout::declaration;
use xputrace_device::{LEAST_ARCHITECTURE, Refusal, Sums, TableAt};

/// A program that is to be a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramKernel {
    /// The handler's index.
    pub handler: usize,
    pub symbol: String,
    /// Threads of the blocks that it will be launched with, as `x y z`.
    pub block: [u32; 3],
}

/// Programs as text: the same in every run with the same options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramsText {
    /// PTX.
    pub text: String,
    /// What it is for: `sm_90`.
    pub target: String,
}

impl ProgramsText {
    /// Returns the text as code: the driver takes one that ends with a 0, and compiles it.
    pub fn as_code(&self) -> Vec<u8> {
        [self.text.as_bytes(), &[0]].concat()
    }
}

/// Threads that a block can have (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MOST_BLOCK_THREADS: u64 = 1024;

impl Maker {
    /// Makes these kernels, for GPUs of this compute capability; 0 if it is not known.
    ///
    /// # Errors
    /// A program can't be run there.
    pub fn programs(&self, kernels: &[ProgramKernel], capability: u32) -> Result<ProgramsText, Refusal> {
        let capability = capability.max(LEAST_ARCHITECTURE);
        let (mut text, target) = heading(capability);
        text += &declaration(switches_of(&self.handlers));
        text.push('\n');
        for kernel in kernels {
            text += &self.program(kernel, capability)?;
        }
        Ok(ProgramsText { text, target })
    }

    fn program(&self, kernel: &ProgramKernel, capability: u32) -> Result<String, Refusal> {
        let ProgramKernel { handler, symbol, .. } = kernel;
        let body = self.block(*handler, &[], capability, TableAt::default(), Sums::default())?;
        let most_threads = most_threads(kernel.block);
        Ok(format!(".visible .entry {symbol}(){most_threads}\n{{\n{body}    ret;\n}}\n"))
    }
}

/// Returns the directive by which a kernel takes no more registers than such blocks can have. A block that no GPU has gets none:
/// CUDA says so at the launch.
fn most_threads(block: [u32; 3]) -> String {
    let [x, y, z] = block;
    let n = block.iter().fold(1, |all: u64, it| all.saturating_mul(u64::from(*it)));
    if n <= MOST_BLOCK_THREADS { format!(" .maxntid {x}, {y}, {z}") } else { String::new() }
}
