//! What a symbol means, as a tree.
//!
//! Nodes are in one vector and refer to each other by number. A substitution is the number of an earlier node, so the
//! tree is a graph without copies: its size is linear in the symbol's, however long the name is that it stands for.
//! Template parameters stay parameters; what they stand for depends on where they are printed.

use crate::operators::Op;

/// A node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(u32);

/// Some nodes in a row, such as template arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    start: u32,
    length: u32,
}

/// `const`, `volatile`, `restrict`, the `&` or `&&` of a member function, and `transaction_safe`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Qualifiers(u8);

impl Qualifiers {
    pub(crate) const CONST: Self = Self(1);
    pub(crate) const VOLATILE: Self = Self(2);
    pub(crate) const RESTRICT: Self = Self(4);
    pub(crate) const LVALUE: Self = Self(8);
    pub(crate) const RVALUE: Self = Self(16);
    pub(crate) const TRANSACTION_SAFE: Self = Self(32);

    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns what is written after the type or the function.
    pub(crate) fn texts(self) -> impl Iterator<Item = &'static str> {
        let all = [" const", " volatile", " restrict", " &", " &&", " transaction_safe"];
        all.into_iter().enumerate().filter(move |(bit, _)| self.0 >> bit & 1 == 1).map(|(_, text)| text)
    }
}

/// A text around a node.
#[derive(Debug)]
pub(crate) struct Affix {
    pub(crate) before: &'static str,
    pub(crate) after: &'static str,
}

/// One of the abbreviations of the standard library, `Sa` to `Sd`.
#[derive(Debug)]
pub(crate) struct Abbreviation {
    pub(crate) code: u8,
    /// As a name with template arguments.
    pub(crate) full: &'static str,
    pub(crate) without_arguments: &'static str,
    /// What constructors are called.
    pub(crate) last: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SymbolNode<'a> {
    /// Nothing: what a tree answers for a node that it doesn't have.
    Nothing,
    // Names.
    Text(&'a str),
    Abbreviated(&'static Abbreviation),
    Tagged {
        of: NodeId,
        tag: &'a str,
    },
    /// A name in a module.
    InModule {
        of: NodeId,
        module: NodeId,
    },
    /// Of a module: `parent` and `.` or `:`, then `name`.
    Module {
        parent: Option<NodeId>,
        partition: bool,
        name: &'a str,
    },
    Nested {
        scope: NodeId,
        name: NodeId,
    },
    Template {
        name: NodeId,
        arguments: List,
    },
    Local {
        function: NodeId,
        entity: NodeId,
    },
    /// In the default argument of a parameter, counted from the last.
    LocalDefault {
        function: NodeId,
        number: u32,
        entity: NodeId,
    },
    Constructor {
        class: NodeId,
    },
    Destructor {
        class: NodeId,
    },
    Operator(Op),
    LiteralOperator(&'a str),
    VendorOperator(&'a str),
    Conversion(NodeId),
    Lambda {
        declared: List,
        parameters: List,
        number: u32,
    },
    Unnamed(u32),
    Binding(List),
    // Symbols.
    /// A function: its name, and `signature`, which begins with the type returned if `returns`.
    Function {
        name: NodeId,
        signature: List,
        returns: bool,
        explicit_object: bool,
        qualifiers: Qualifiers,
    },
    Affixed(&'static Affix, NodeId),
    ConstructionTable {
        base: NodeId,
        whole: NodeId,
    },
    Thunk {
        this: &'a str,
        result: Option<NodeId>,
        function: NodeId,
    },
    Temporary {
        of: NodeId,
        number: u32,
    },
    Clone {
        of: NodeId,
        suffix: &'a str,
    },
    // Types.
    Qualified {
        of: NodeId,
        qualifiers: Qualifiers,
    },
    VendorQualified {
        of: NodeId,
        by: NodeId,
    },
    Pointer(NodeId),
    LvalueReference(NodeId),
    RvalueReference(NodeId),
    /// `float complex`.
    Suffixed {
        of: NodeId,
        suffix: &'static str,
    },
    MemberPointer {
        class: NodeId,
        of: NodeId,
    },
    Array {
        length: Option<NodeId>,
        of: NodeId,
    },
    Vector {
        length: Option<NodeId>,
        of: NodeId,
    },
    FunctionType {
        signature: List,
        qualifiers: Qualifiers,
        exceptions: Option<NodeId>,
    },
    FloatOfBits {
        bits: &'a str,
        suffix: &'static str,
    },
    IntegerOfBits {
        bits: NodeId,
        signed: bool,
    },
    Parameter {
        index: u32,
    },
    Pack(List),
    Expansion(NodeId),
    /// A type that a concept constrains: `C auto`.
    Constrained {
        by: NodeId,
        of: &'static str,
    },
    /// How a lambda declares a template parameter.
    Declared {
        kind: Declared,
        of: Option<NodeId>,
    },
    Throws(List),
    // Expressions.
    Literal {
        of: NodeId,
        value: &'a str,
    },
    /// The name of another symbol, in an expression.
    External(NodeId),
    FunctionParameter {
        number: u32,
    },
    Prefix(Op, NodeId),
    Postfix(Op, NodeId),
    Binary(Op, NodeId, NodeId),
    Conditional(NodeId, NodeId, NodeId),
    Call {
        callee: NodeId,
        arguments: List,
    },
    Index(NodeId, NodeId),
    Member {
        object: NodeId,
        by: &'static str,
        name: NodeId,
    },
    Cast {
        to: NodeId,
        of: NodeId,
    },
    NamedCast {
        name: &'static str,
        to: NodeId,
        of: NodeId,
    },
    Construct {
        of: NodeId,
        arguments: List,
    },
    Braced {
        of: Option<NodeId>,
        values: List,
    },
    New {
        placement: List,
        of: NodeId,
        initial: Option<NodeId>,
    },
    Parenthesized(List),
    Fold {
        by: Op,
        left: Option<NodeId>,
        right: Option<NodeId>,
    },
    SizeOfPack(List),
    Designated {
        affix: &'static Affix,
        by: NodeId,
        value: NodeId,
    },
    DesignatedRange {
        from: NodeId,
        to: NodeId,
        value: NodeId,
    },
    Subobject {
        of: NodeId,
        part: NodeId,
        offset: &'a str,
    },
    Requires(List),
}

impl SymbolNode<'_> {
    /// Whether it is an expression that is in parentheses before `...`.
    pub(crate) fn is_operation(&self) -> bool {
        matches!(
            self,
            Self::Prefix(..)
                | Self::Postfix(..)
                | Self::Binary(..)
                | Self::Conditional(..)
                | Self::Call { .. }
                | Self::Index(..)
                | Self::Member { .. }
                | Self::Cast { .. }
                | Self::NamedCast { .. }
                | Self::Construct { .. }
                | Self::New { .. }
                | Self::Literal { .. }
        )
    }
}

/// What kind of template parameter a lambda declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Declared {
    Type,
    Value,
    Template,
    Constrained,
    Pack,
}

/// The nodes of one symbol.
#[derive(Debug, Default)]
pub(crate) struct Tree<'a> {
    nodes: Vec<SymbolNode<'a>>,
    items: Vec<NodeId>,
}

impl<'a> Tree<'a> {
    /// Makes room for the nodes of a symbol of this length.
    pub(crate) fn for_length(bytes: usize) -> Self {
        Self { nodes: Vec::with_capacity(bytes / 2), items: Vec::with_capacity(bytes / 4) }
    }

    pub(crate) fn add(&mut self, node: SymbolNode<'a>) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        id
    }

    pub(crate) fn add_list(&mut self, items: impl IntoIterator<Item = NodeId>) -> List {
        let start = self.items.len();
        self.items.extend(items);
        let length = self.items.len() - start;
        List { start: u32::try_from(start).unwrap_or(u32::MAX), length: u32::try_from(length).unwrap_or(0) }
    }

    /// Returns a node that isn't there.
    pub(crate) fn nothing(&self) -> NodeId {
        NodeId(u32::MAX)
    }

    pub(crate) fn get(&self, id: NodeId) -> SymbolNode<'a> {
        self.nodes.get(id.0 as usize).copied().unwrap_or(SymbolNode::Nothing)
    }

    pub(crate) fn list(&self, list: List) -> &[NodeId] {
        let start = list.start as usize;
        self.items.get(start..start.saturating_add(list.length as usize)).unwrap_or_default()
    }

    /// Returns how many nodes and references there are.
    #[cfg(test)]
    pub(crate) fn size(&self) -> usize {
        self.nodes.len() + self.items.len()
    }
}
