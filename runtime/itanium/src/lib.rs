//! Names of C++ symbols, by the Itanium C++ ABI, which GCC, Clang and NVIDIA's compilers follow.
//!
//! Symbols come from programs of other users, so what a symbol can cost is bounded by its length, whatever is in it. That
//! is why this crate exists. The one other crate that reads whole symbols, `cpp_demangle`, reads again what it has read
//! wrongly: a symbol of 117 bytes takes it 92 MB, and twice as much with each further level. It also refuses valid
//! symbols, of functions whose signature tests a trait of `std` (its issue 308).
//!
//! ```text
//! _ZN1SltIiEEbT_ ──parse──▶ tree ──print──▶ S::operator< <int>        a name
//!                                           S::operator<              without template arguments
//!                                           S::operator< <int>(int)   with parameters
//! ```
//!
//! The next bytes decide what is read, so reading takes time and nodes linear in the symbol's length ([`LONGEST_SYMBOL`],
//! [`DEEPEST`]). Printing has a budget, because a substitution is printed each time that it is used ([`LONGEST_NAME`],
//! [`MOST_STEPS`]). Beyond a limit there is no name.
//!
//! What a function returns or requires isn't part of its name here.

#![forbid(unsafe_code)]

mod cursor;
#[cfg(test)]
mod growth;
mod limits;
mod operators;
mod parse;
mod print;
mod tree;

pub use limits::{DEEPEST, DEEPEST_PRINTED, LONGEST_NAME, LONGEST_SYMBOL, MOST_STEPS};
use print::Shown;
use tree::{NodeId, Tree};

/// A C++ symbol that has been read.
pub struct CppSymbol<'a> {
    tree: Tree<'a>,
    root: NodeId,
}

/// A symbol's names, without parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CppNames {
    /// With template arguments: `Gemm<float>::operator()`.
    pub name: String,
    /// Without template arguments of anything in it: `Gemm::operator()`.
    pub short_name: String,
}

impl<'a> CppSymbol<'a> {
    /// Reads a symbol, which begins with `_Z`. A suffix such as `.cold` may follow; a version (`@GLIBC_2.2.5`) may not.
    /// `None` if it isn't a C++ symbol, or is beyond a limit.
    pub fn parse(symbol: &'a str) -> Option<Self> {
        let (tree, root) = parse::parse(symbol)?;
        Some(Self { tree, root })
    }

    /// Returns the names of what the symbol is of; `None` beyond a limit.
    pub fn names(&self) -> Option<CppNames> {
        let printed = print::print(&self.tree, self.root, Shown::Name)?;
        let name = printed.text;
        let short_name = if printed.has_arguments {
            print::print(&self.tree, self.root, Shown::ShortName)?.text
        } else {
            name.clone()
        };
        (!name.is_empty() && !short_name.is_empty()).then_some(CppNames { name, short_name })
    }

    /// Returns the name with the types of parameters, and with the suffix of a clone: `f(int) [clone .cold]`; `None`
    /// beyond a limit.
    pub fn with_parameters(&self) -> Option<String> {
        print::print(&self.tree, self.root, Shown::Parameters).map(|it| it.text)
    }
}
