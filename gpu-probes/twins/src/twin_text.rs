//! What comes of kernels: a twin as text.

use xputrace_wire::device::{Choice, Twin};

/// A twin as text: the same in every run of a script, in every process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinText {
    /// PTX.
    pub text: String,
    /// What it is for, as it says: `sm_90a`.
    pub target: String,
    /// The symbols of the originals.
    pub kernels: Vec<String>,
    /// The original's variables that it uses.
    pub variables: Vec<String>,
    /// The symbols whose names it reads, if it reads any: of its kernels, and behind them of functions that they call.
    pub names: Vec<String>,
    /// At which launches they run, a kernel each.
    pub choices: Vec<Choice>,
    /// Of a kernel that may run itself again, which is alone then: its PTX without handlers. How deep it can go depends on the
    /// stack that each of its functions takes, so the twin's may take no more.
    pub recursive_original: Option<String>,
}

impl TwinText {
    /// Returns the twin, whose code was made of the text; `name_of` gives the string id of a function's name.
    pub fn with_code(&self, code: Vec<u8>, name_of: impl FnMut(&str) -> u64) -> Twin {
        let names = self.names.iter().map(String::as_str).map(name_of).collect();
        let (kernels, variables, choices) = (self.kernels.clone(), self.variables.clone(), self.choices.clone());
        Twin { code, kernels, variables, names, choices }
    }

    /// Returns the text as code: the driver takes one that ends with a 0, and compiles it.
    pub fn as_code(&self) -> Vec<u8> {
        [self.text.as_bytes(), &[0]].concat()
    }
}
