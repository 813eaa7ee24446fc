//! Measures the structure of the shipped code: the house, as one sees it who walks through.
//!
//! ```text
//! files ─▶ sources ─▶ shipped ─▶ modules ─▶ resolve ─▶ edges ─▶ circles ─┐
//!                        ├─▶ lines, functions, types, words ─────────────┴─▶ House ─▶ ratchet ◀─ limits.txt
//!                                                                              └────▶ report
//! ```
//!
//! Shipped is what a build without tests compiles of the workspace's crates: neither build scripts nor the crates below
//! `tests`, nor what `cfg(test)` is for.
//!
//! - Net lines have a token that is neither comment nor documentation ([`lines`]).
//! - Functions are as long as the lines from `fn` to the closing brace ([`functions`]).
//! - Circles are files of a crate that use each other ([`edges`] says what counts as use).
//! - Shared names are those of types that several types of the workspace have ([`types`]).
//! - Vendor files name one vendor's things outside of its folders ([`words`]).
//!
//! The test holds the result against `limits.txt` ([`ratchet`]): nothing gets worse by accident, and what gets better stays so.
//! Code that macros define is measured as it is written, not as it expands.

pub mod circles;
pub mod edges;
pub mod functions;
pub mod limits;
pub mod lines;
pub mod modules;
pub mod ratchet;
pub mod report;
pub mod resolve;
pub mod shipped;
pub mod sources;
pub mod types;
pub mod words;

use anyhow::Result;
use circles::Circle;
use functions::LongFunction;
use modules::Crate;
use sources::Sources;
use std::collections::BTreeMap;
use types::Types;
use words::VendorFile;

/// Where all of it should end.
pub mod goals {
    /// The most files of a circle.
    pub const CIRCLE_FILES: usize = 4;
    /// The most net lines of a crate.
    pub const CRATE_LINES: usize = 12_000;
    /// The most lines of a function.
    pub const FUNCTION_LINES: usize = 80;
    /// The functions that may be longer: the engine's `match` has an arm for each opcode.
    pub const LONG_FUNCTIONS: [(&str, &str); 1] = [("bpf/bytecode/src/vm/run.rs", "run")];
    /// The most types of a name.
    pub const NAME_TYPES: usize = 3;
    /// The most files that name a vendor's things outside of its folders.
    pub const VENDOR_FILES: usize = 15;
}

/// All measures of the shipped code.
#[derive(Debug, Default)]
pub struct House {
    /// Net lines by the folder of the crate.
    pub lines: BTreeMap<String, usize>,
    /// How many files there are.
    pub files: usize,
    pub functions: Vec<LongFunction>,
    /// By the crate's folder.
    pub circles: Vec<(String, Circle)>,
    /// The names of more types than the goal.
    pub names: Types,
    pub vendor_files: Vec<VendorFile>,
}

/// Measures the code.
///
/// # Errors
/// A file isn't Rust.
pub fn measure(sources: &Sources) -> Result<House> {
    let mut house = House::default();
    for source in &sources.crates {
        house.add(&Crate::parse(source)?);
    }
    house.names.retain(|_, places| places.len() > goals::NAME_TYPES);
    house.circles.sort_by_key(|(_, circle)| std::cmp::Reverse(circle.files.len()));
    house.functions.sort();
    house.vendor_files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(house)
}

impl House {
    /// Returns the net lines of all crates.
    pub fn all_lines(&self) -> usize {
        self.lines.values().sum()
    }

    fn add(&mut self, of: &Crate) {
        self.lines.insert(of.folder.clone(), of.files.iter().map(lines::net_lines).sum());
        self.files += of.files.len();
        let circles = circles::circles(of, goals::CIRCLE_FILES).into_iter();
        self.circles.extend(circles.map(|circle| (of.folder.clone(), circle)));
        for file in &of.files {
            self.functions.extend(functions::long_functions(file, goals::FUNCTION_LINES));
            types::add_types(file, &mut self.names);
            self.vendor_files.extend(words::vendor_file(file));
        }
    }
}
