//! What `ptxas -v` says of the kernels that it compiles.

use std::collections::BTreeMap;

/// What a kernel uses of a multiprocessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The kernel's symbol.
    pub kernel: String,
    /// Registers of each thread.
    pub registers: u32,
    /// Bytes of each thread's stack.
    pub stack_bytes: u32,
    /// Bytes that a thread stores because it has too few registers.
    pub spill_store_bytes: u32,
    /// Bytes that it loads again.
    pub spill_load_bytes: u32,
}

/// Reads the output of `ptxas -v` (CUDA 11 to 13):
///
/// ```text
/// ptxas info    : Compiling entry function 'scale' for 'sm_90a'
/// ptxas info    : Function properties for scale
///     8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
/// ptxas info    : Used 28 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
/// ```
/// Functions that are not kernels are left out, and so is what is not understood.
pub(crate) fn parse(said: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    let mut described = "";
    for line in said.lines() {
        let line = line.trim_start_matches("ptxas info").trim_start_matches([' ', ':']);
        if let Some(rest) = line.strip_prefix("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Usage { kernel, ..Usage::default() });
        } else if let Some(function) = line.strip_prefix("Function properties for ") {
            described = function.trim();
        } else if let Some(usage) = all.last_mut() {
            let said = |what: &str| number_before(line, what);
            if let Some(registers) = said(" registers") {
                usage.registers = registers;
            }
            if let (true, Some(stack_bytes)) = (usage.kernel == described, said(" bytes stack frame")) {
                usage.stack_bytes = stack_bytes;
                usage.spill_store_bytes = said(" bytes spill stores").unwrap_or(0);
                usage.spill_load_bytes = said(" bytes spill loads").unwrap_or(0);
            }
        }
    }
    all
}

/// Bytes of stack that calls of kernels and functions take, by their symbols. Functions that are part of others have none.
pub type StackUsage = BTreeMap<String, u32>;

/// Reads what the same output says of stack. Of a function that it says several times, the most.
pub(crate) fn frames(said: &str) -> StackUsage {
    let (mut frames, mut described) = (StackUsage::new(), "");
    for line in said.lines() {
        if let Some((_, function)) = line.split_once("Function properties for ") {
            described = function.trim();
        } else if let Some(bytes) = number_before(line, " bytes stack frame").filter(|_| !described.is_empty()) {
            let most = frames.entry(described.to_owned()).or_default();
            *most = bytes.max(*most);
        }
    }
    frames
}

/// Returns the number before these words.
fn number_before(line: &str, words: &str) -> Option<u32> {
    let (before, _) = line.split_once(words)?;
    before.rsplit(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Of CUDA 13.0.
    const SAID: &str = "\
ptxas info    : 15 bytes gmem
ptxas info    : Compiling entry function 'first$xpt' for 'sm_90a'
ptxas info    : Function properties for first$xpt
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 28 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 23.504 ms
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    96 bytes stack frame, 112 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers
ptxas info    : Function properties for _Z5weighf
    16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";

    #[test]
    fn each_kernel_has_its_numbers() {
        let usage = |kernel: &str, [registers, stack_bytes, spill_store_bytes, spill_load_bytes]: [u32; 4]| Usage {
            kernel: kernel.to_owned(),
            registers,
            stack_bytes,
            spill_store_bytes,
            spill_load_bytes,
        };
        assert_eq!(parse(SAID), [usage("first$xpt", [28, 8, 0, 0]), usage("second", [255, 96, 112, 120])]);
        assert_eq!(parse("ptxas warning : something\n"), []);
    }

    #[test]
    fn frames_are_those_of_functions_too() {
        let expected = [("first$xpt", 8), ("second", 96), ("_Z5weighf", 16)].map(|it| (it.0.to_owned(), it.1));
        assert_eq!(frames(SAID), StackUsage::from(expected));
        assert_eq!(frames("    8 bytes stack frame\n"), StackUsage::new());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(lines in proptest::collection::vec("(ptxas info    : )?(Compiling entry function '|Used |é)?[0-9a-z' ]{0,30}( registers| bytes stack frame)?", 0..8)) {
            parse(&lines.join("\n"));
            frames(&lines.join("\n"));
        }
    }
}
