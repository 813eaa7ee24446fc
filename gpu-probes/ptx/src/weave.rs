//! Puts a caller's statements into kernels, at points of their code.
//!
//! What is put in stands in a `{ }` scope of its own, so its registers and labels are nobody else's. A caller's text
//! is parsed first: it can't reach beyond its scope, whatever it says.
//!
//! ```text
//! weave ── which functions, what a point is
//!   ├ body ── walks a body and finds its points
//!   ├ build ── the statements around what is put in
//!   └ flow ── where control goes
//! ```

mod body;
mod build;
mod flow;

use crate::ParseError;
use crate::access::MemoryAccess;
use crate::parse::parse_statements;
use crate::tree::*;
use rustc_hash::FxHashSet;

/// The register in which statements at an access find its address, as 64 bits: base and offset, in the state space
/// of the access. A 32-bit address is extended with zeros.
pub const ADDRESS: &str = "%xpt_address";

/// A place in a function where statements can be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Where every thread begins.
    Entry,
    /// Where a thread ends: before a `ret` of the kernel or any `exit`, if its guard holds, and at the end of the
    /// kernel's body. Not at a `trap`, which ends the grid. In a function that the kernel calls, statements can't read
    /// the kernel's parameters.
    Exit,
    /// Before an access to memory, if its guard holds; [`ADDRESS`] is its address.
    BeforeAccess(MemoryAccess),
    /// The same, behind it.
    AfterAccess(MemoryAccess),
    /// Before a barrier, if its guard holds.
    BeforeBarrier,
    AfterBarrier,
    /// Before a call, if its guard holds: before its parameters are passed.
    BeforeCall,
    /// Where a basic block begins. A block ends at a branch, guarded or not, and where one goes to.
    BlockBegin,
    BlockEnd,
    /// Where code of another source line begins, once in a row of instructions of that line in a basic block.
    Line,
}

/// A source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The number that the module gives a file: see [`Module::file`].
    pub file: u32,
    /// From 1 on.
    pub line: u32,
}

/// What a caller is told of a point.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub point: Point,
    /// The function whose body it is in: a kernel, or one that a kernel calls.
    pub function: &'a str,
    /// What the instructions there were compiled from, if the module says.
    pub line: Option<Line>,
    /// The exit, access, barrier or call.
    pub instruction: Option<&'a Instruction>,
}

/// Why nothing was woven.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeaveError {
    #[error("the module has no kernel `{0}` with a body")]
    NoKernel(String),
    #[error("what should be put in at {point:?} of `{function}` isn't PTX: {error}")]
    Text { point: Point, function: String, error: ParseError },
}

/// Where a caller's statements come from.
type Insert<'a> = dyn FnMut(&Site) -> Option<String> + 'a;

impl Module {
    /// Asks `insert` at every point of these kernels, and of the functions that they call, for statements, and puts
    /// them in. Returns how many times anything was put in.
    ///
    /// Entry is a point of kernels only. Functions are woven once, whichever kernel calls them: prune the module
    /// ([`Module::only`]) and redirect its variables ([`Module::redirect`]) before.
    ///
    /// # Errors
    /// The module lacks a kernel, or a text is not a sequence of statements. The module is as it was then.
    pub fn weave(&mut self, kernels: &[&str], insert: &mut Insert) -> Result<usize, WeaveError> {
        if let Some(missing) = kernels.iter().find(|name| self.kernel(name).is_none()) {
            return Err(WeaveError::NoKernel((*missing).to_owned()));
        }
        let reached = self.reached(kernels.iter().copied());
        let mut weaving = Weaving { insert, kernels, woven: 0 };
        let bodies =
            self.functions().map(|function| weaving.function(function, &reached)).collect::<Result<Vec<_>, _>>()?;
        let woven = weaving.woven;
        for (function, body) in self.functions_mut().zip(bodies) {
            if body.is_some() {
                function.body = body;
            }
        }
        Ok(woven)
    }

    /// The kernel of that name that has a body.
    pub fn kernel(&self, name: &str) -> Option<&Function> {
        self.functions().find(|function| function.name == name && function.is_kernel() && function.body.is_some())
    }

    /// All functions, prototypes included.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    pub(crate) fn functions_mut(&mut self) -> impl Iterator<Item = &mut Function> {
        self.items.iter_mut().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }
}

/// One call of [`Module::weave`].
struct Weaving<'a, 'i> {
    insert: &'a mut Insert<'i>,
    kernels: &'a [&'a str],
    woven: usize,
}

impl Weaving<'_, '_> {
    /// The new body of a function; `None` if it stays as it is.
    fn function(
        &mut self,
        function: &Function,
        reached: &FxHashSet<String>,
    ) -> Result<Option<Vec<Statement>>, WeaveError> {
        let Some(statements) = function.body.as_deref().filter(|_| reached.contains(&function.name)) else {
            return Ok(None);
        };
        let is_kernel = self.kernels.contains(&function.name.as_str());
        if function.is_kernel() && !is_kernel {
            return Ok(None);
        }
        body::weave(self, function, is_kernel, statements).map(Some)
    }

    /// What a caller puts in at a point, as a scope.
    fn at(&mut self, site: &Site) -> Result<Option<Statement>, WeaveError> {
        let Some(text) = (self.insert)(site) else { return Ok(None) };
        let function = || site.function.to_owned();
        let statements = parse_statements(&text).map_err(|error| WeaveError::Text {
            point: site.point,
            function: function(),
            error,
        })?;
        self.woven += 1;
        Ok(Some(Statement::Scope(statements)))
    }
}
