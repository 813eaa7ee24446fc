//! Symbols → trees, by the grammar of the Itanium C++ ABI, "External Names".
//!
//! The next one or two bytes decide what follows, so a symbol is read once, from left to right. One place needs more: how
//! the qualifier of a dependent name (`sr`) ends, which compilers write in two ways ([`Dialect`]). A symbol that can't be
//! read in the one is read a second time in the other, as a whole, so time stays linear.

mod expressions;
mod names;
mod symbols;
mod templates;
mod types;

use crate::cursor::Cursor;
use crate::limits::{DEEPEST, LONGEST_SYMBOL};
use crate::tree::{List, NodeId, SymbolNode, Tree};

/// How a qualifier that begins with a plain name is written: `A<T>::value`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// As GCC writes it: a type, `sr 1AIT_E 5value`. It can be a substitution later on.
    Type,
    /// As the ABI says, and Clang writes it: names and an `E`, `sr 1AIT_E E 5value`.
    Levels,
}

/// Reads a symbol; `None` if it isn't one of C++, or is beyond a limit.
pub(crate) fn parse(symbol: &str) -> Option<(Tree<'_>, NodeId)> {
    let mangled = symbol.strip_prefix("_Z").filter(|_| symbol.len() <= LONGEST_SYMBOL)?;
    let mut parser = Parser::new(mangled, Dialect::Type);
    if let Some(root) = parser.symbol() {
        return Some((parser.tree, root));
    }
    if !parser.has_met_plain_qualifier {
        return None;
    }
    let mut parser = Parser::new(mangled, Dialect::Levels);
    let root = parser.symbol()?;
    Some((parser.tree, root))
}

/// What a later `S0_` may stand for.
#[derive(Clone, Copy)]
struct Earlier {
    node: NodeId,
    /// Its template arguments followed where it was.
    is_template: bool,
}

struct Parser<'a> {
    input: Cursor<'a>,
    tree: Tree<'a>,
    candidates: Vec<Earlier>,
    /// Items of the lists that are being read.
    pending: Vec<NodeId>,
    depth: usize,
    dialect: Dialect,
    has_met_plain_qualifier: bool,
    /// Reads the type of a conversion operator, where `I` begins the operator's own arguments.
    in_conversion: bool,
}

impl<'a> Parser<'a> {
    fn new(mangled: &'a str, dialect: Dialect) -> Self {
        Self {
            input: Cursor::new(mangled),
            tree: Tree::for_length(mangled.len()),
            candidates: Vec::with_capacity(16),
            pending: Vec::with_capacity(16),
            depth: 0,
            dialect,
            has_met_plain_qualifier: false,
            in_conversion: false,
        }
    }

    fn add(&mut self, node: SymbolNode<'a>) -> NodeId {
        self.tree.add(node)
    }

    /// Adds a node that later ones may refer to.
    fn add_candidate(&mut self, node: SymbolNode<'a>) -> NodeId {
        let id = self.add(node);
        self.remember(id);
        id
    }

    fn remember(&mut self, node: NodeId) {
        let is_template = self.input.peek() == b'I';
        self.candidates.push(Earlier { node, is_template });
    }

    /// Reads what may contain itself.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEEPEST {
            return None;
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Reads items up to the byte that ends them, and the byte.
    fn list_until(&mut self, end: u8, read: impl FnMut(&mut Self) -> Option<NodeId>) -> Option<List> {
        let list = self.list_while(|it| it.input.peek() != end, read)?;
        self.input.expect(end)?;
        Some(list)
    }

    /// Reads items as long as the condition holds before one.
    fn list_while(
        &mut self,
        goes_on: impl Fn(&Self) -> bool,
        mut read: impl FnMut(&mut Self) -> Option<NodeId>,
    ) -> Option<List> {
        let start = self.pending.len();
        while goes_on(self) {
            let item = read(self)?;
            self.pending.push(item);
        }
        Some(self.tree.add_list(self.pending.drain(start..)))
    }
}
