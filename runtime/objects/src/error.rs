//! Why an object can't run, in words.

use xputrace_bytecode::object::ReadError;

/// Why an object can't run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("map `{map}`: {what}")]
    Map { map: String, what: String },
    #[error("section `{section}`, program `{program}`: {what}")]
    Program { section: String, program: String, what: String },
    #[error("section `{section}`, program `{program}`, instruction {insn}{line}: {what}")]
    Insn {
        section: String,
        program: String,
        insn: usize,
        /// Where it is in the source: ` (x.bpf.c:3)`, or empty.
        line: String,
        what: String,
    },
    #[error("it has no programs: give a function a section, such as SEC(\"kprobe/KERNEL\")")]
    NoPrograms,
    #[error("it counts losses of an unknown kind, `{0}`: build it again, by this version of xputrace")]
    Loss(String),
    /// A line each.
    #[error("several programs are wrong:{0}")]
    Several(String),
    #[error("{option}: {what}")]
    Option { option: String, what: String },
}

impl ObjectError {
    /// Says everything that is wrong.
    pub(crate) fn all(mut errors: Vec<ObjectError>) -> Result<(), ObjectError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(ObjectError::Several(errors.iter().map(|it| format!("\n  {it}")).collect())),
        }
    }
}

/// Returns the names as the end of a sentence: `a, b`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
