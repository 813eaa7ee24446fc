//! NVIDIA's assembler of PTX.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use xputrace_boundary::child::{Limit, RunError, run};
use xputrace_boundary::memory::MemoryFile;
use xputrace_boundary::user::Account;

/// A `ptxas` that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ptxas {
    pub path: PathBuf,
    /// Such as `13.0.88`.
    pub version: String,
    /// Everything that it says of its version.
    pub(crate) identity: String,
}

/// What it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) code: Vec<u8>,
    /// What it says, with `-v`.
    pub(crate) said: String,
}

/// Why there is no code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// This one can't be run, or not for such text; another may do.
    #[error("{0}")]
    Unfit(String),
    /// Another would do no better.
    #[error("{0}")]
    Failed(String),
}

/// What a cubin is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// To be loaded as a module.
    #[default]
    Module,
    /// Its functions are called by code that NVIDIA's Sanitizer API patches into other kernels.
    Patch,
}

impl Purpose {
    /// Returns the options besides the architecture; each changes what is made.
    const fn options(self) -> &'static [&'static str] {
        match self {
            Purpose::Module => &["-v"],
            // In the documentation of that API ("Building and loading patches"): nvcc passes it on with -Xptxas.
            Purpose::Patch => &["-v", "--compile-as-tools-patch"],
        }
    }
}

/// A program that takes longer to say its version is none that we want.
const SAYS_ITS_VERSION_WITHIN: Duration = Duration::from_secs(2);
/// As collectors take it.
const MOST_CODE_BYTES: u64 = 64 << 20;

impl Ptxas {
    /// Describes a program that has this version.
    pub fn new(path: PathBuf, version: &str) -> Ptxas {
        Ptxas { path, version: version.to_owned(), identity: version.to_owned() }
    }

    /// Asks a program for its version.
    ///
    /// # Errors
    /// It can't be run as this user, or is no `ptxas`.
    pub fn at(path: &Path, account: Account, limit: Limit<'_>) -> Result<Ptxas, Failure> {
        let limit = Limit { within: limit.within.min(SAYS_ITS_VERSION_WITHIN), ..limit };
        let unfit = |why: String| Failure::Unfit(format!("{}: {why}", path.display()));
        let (status, said) = run(path, ["--version"], &[], account, limit).map_err(|it| unfit(it.to_string()))?;
        match version(&said) {
            Some(version) if status.success() => {
                Ok(Ptxas { path: path.to_owned(), version: version.to_owned(), identity: said })
            }
            _ => Err(unfit(format!("it is no ptxas ({status})"))),
        }
    }

    /// Compiles PTX for an architecture, such as `sm_90a`.
    pub(crate) fn compile(
        &self,
        text: &str,
        (architecture, purpose): (&str, Purpose),
        account: Account,
        limit: Limit<'_>,
    ) -> Result<Output, Failure> {
        let of_system = |it: RunError| Failure::Failed(it.to_string());
        let input = MemoryFile::with(text.as_bytes()).map_err(|it| of_system(it.into()))?;
        let mut output = MemoryFile::new().map_err(|it| of_system(it.into()))?;
        let options = purpose.options().iter().map(OsString::from);
        let files = [format!("-arch={architecture}").into(), "-o".into(), output.path().into(), input.path().into()];
        let (status, said) = match run(&self.path, options.chain(files), &[&input, &output], account, limit) {
            Ok(it) => it,
            Err(error @ (RunError::System(_) | RunError::CanBeChanged { .. })) => {
                return Err(Failure::Unfit(format!("{}: {error}", self.path.display())));
            }
            Err(error) => return Err(of_system(error)),
        };
        if !status.success() {
            return Err(self.failure(&said, &status.to_string()));
        }
        let code = output.read(MOST_CODE_BYTES + 1).map_err(|it| of_system(it.into()))?;
        if !code.starts_with(b"\x7fELF") || code.len() as u64 > MOST_CODE_BYTES {
            return Err(Failure::Unfit(format!("{} made no cubin", self.path.display())));
        }
        Ok(Output { code, said })
    }

    fn failure(&self, said: &str, status: &str) -> Failure {
        let first = said.lines().map(message).find(|it| !it.is_empty()).unwrap_or_else(|| status.to_owned());
        // What an assembler that is older than the text, or than the GPU, says (CUDA 11 to 13).
        let is_older = first.contains("Unsupported .version") || first.contains("is not defined for option 'gpu-name'");
        if is_older {
            Failure::Unfit(format!("{} ({}): {first}", self.path.display(), self.version))
        } else {
            Failure::Failed(first)
        }
    }

    /// Returns all that decides what it makes of a text.
    pub(crate) fn recipe(&self, architecture: &str, purpose: Purpose) -> String {
        format!("{}\0{}\0{architecture}", self.identity, purpose.options().join(" "))
    }
}

/// Returns `13.0.88` of `Cuda compilation tools, release 13.0, V13.0.88`.
fn version(said: &str) -> Option<&str> {
    let line = said.lines().find(|it| it.starts_with("Cuda compilation tools"))?;
    line.rsplit_once('V').map(|it| it.1.trim()).filter(|it| !it.is_empty())
}

/// Returns an error without the names of program and file; empty for what is no error.
fn message(line: &str) -> String {
    let Some((place, what)) = ["error   : ", "fatal   : "].iter().find_map(|it| line.split_once(it)) else {
        return String::new();
    };
    match place.split_once(", line ") {
        Some((_, number)) => format!("line {}: {what}", number.trim_end_matches([' ', ';'])),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_without_names_of_files() {
        assert_eq!(
            message("ptxas /proc/self/fd/7, line 127; error   : Not a name of any known instruction: 'rat'"),
            "line 127: Not a name of any known instruction: 'rat'"
        );
        assert_eq!(message("ptxas fatal   : Ptx assembly aborted due to errors"), "Ptx assembly aborted due to errors");
        assert_eq!(message("ptxas info    : 15 bytes gmem"), "");
    }

    #[test]
    fn an_assembler_that_is_too_old_is_unfit() {
        let ptxas = Ptxas { path: "/a/ptxas".into(), version: "12.0.1".into(), identity: String::new() };
        for said in [
            "ptxas /proc/self/fd/7, line 1; fatal   : Unsupported .version 9.9; current version is '9.0'",
            "ptxas fatal   : Value 'sm_103' is not defined for option 'gpu-name'",
        ] {
            assert!(matches!(ptxas.failure(said, ""), Failure::Unfit(it) if it.starts_with("/a/ptxas (12.0.1): ")));
        }
        assert_eq!(ptxas.failure("", "signal: 9 (SIGKILL)"), Failure::Failed("signal: 9 (SIGKILL)".into()));
    }

    #[test]
    fn a_version_is_found() {
        let said =
            "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 13.0, V13.0.88\nBuild x\n";
        assert_eq!(version(said), Some("13.0.88"));
        assert_eq!(version("GNU assembler V2"), None);
    }
}
