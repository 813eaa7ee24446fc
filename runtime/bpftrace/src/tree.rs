//! The syntax tree of a bpftrace program. Every node knows its place in the text.

use std::ops::Range;

/// Byte offsets in the text.
pub(crate) type Span = Range<usize>;

/// A whole program.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) items: Vec<Item>,
    /// Named constants of the program, by `#define` and `enum`, in their order.
    pub(crate) constants: Vec<Constant>,
}

/// `#define NAME VALUE`, or a name of an `enum`.
#[derive(Debug)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) value: Expr,
}

/// What can stand outside all braces.
#[derive(Debug)]
pub(crate) enum Item {
    Probe(Probe),
    Macro(Macro),
    /// What has no effect on what a script does, or no equivalent: `config = { … }`, a function, an import.
    Other {
        what: Other,
        span: Span,
    },
}

/// A kind of item that isn't translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// `config = { … }`.
    Config,
    /// `let @m = lruhash(100);`.
    MapDeclaration,
    /// `struct`, `union`, `enum` and `typedef`: only casts need them.
    Type,
    /// `fn f($a : int64) : int64 { … }`.
    Function,
    /// `import "file";`.
    Import,
}

/// `uprobe:libc:malloc, … /condition/ { … }`.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) points: Vec<Point>,
    pub(crate) condition: Option<Expr>,
    pub(crate) body: Block,
    pub(crate) span: Span,
}

/// An attach point as written: `uprobe:libc:malloc`.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) text: String,
    pub(crate) span: Span,
}

/// `macro name($a, b, @c) { … }`.
#[derive(Clone, Debug)]
pub(crate) struct Macro {
    pub(crate) name: String,
    /// As written, with `$` and `@`.
    pub(crate) parameters: Vec<String>,
    pub(crate) body: Block,
    pub(crate) span: Span,
}

/// Statements in braces; the span includes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) statements: Vec<Stmt>,
    /// The value of a block expression or a macro: an expression without a semicolon.
    pub(crate) value: Option<Box<Expr>>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Stmt {
    pub(crate) kind: StmtKind,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum StmtKind {
    Expr(Expr),
    /// `target = value`, or with an operator `target += value`.
    Assign {
        target: Expr,
        operator: Option<Binary>,
        value: Expr,
    },
    /// `let $x;` without a value.
    Let,
    If {
        condition: Expr,
        then: Block,
        otherwise: Option<Block>,
    },
    Unroll {
        times: Expr,
        body: Block,
    },
    While {
        condition: Expr,
        body: Block,
    },
    /// `for ($kv : @m) { … }`.
    ForMap {
        row: String,
        map: Expr,
        body: Block,
    },
    /// `for $i : a..b { … }`.
    ForRange {
        index: String,
        start: Expr,
        end: Expr,
        body: Block,
    },
    Break,
    Continue,
    Return,
    Block(Block),
}

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Int(i64),
    Text(String),
    /// `$x`, without the `$`.
    Variable(String),
    /// `$1`.
    Positional(u32),
    /// `$#`.
    PositionalCount,
    /// `@m[a, b]`, without the `@`.
    Map {
        name: String,
        keys: Vec<Expr>,
    },
    /// A builtin or a constant: `pid`, `AF_INET`.
    Name(String),
    Call {
        name: String,
        arguments: Vec<Expr>,
    },
    /// `a.b`, `a->b`, and `t.0`.
    Field {
        of: Box<Expr>,
        name: String,
    },
    Index {
        of: Box<Expr>,
        at: Box<Expr>,
    },
    Unary(Unary, Box<Expr>),
    /// `x++`, `--x`.
    Increment {
        target: Box<Expr>,
        up: bool,
    },
    Binary(Binary, Box<Expr>, Box<Expr>),
    /// `a ? b : c`; `a ?: c` has no middle.
    Choice {
        condition: Box<Expr>,
        then: Option<Box<Expr>>,
        otherwise: Box<Expr>,
    },
    /// `(type)value`; the type is as written.
    Cast {
        to: String,
        value: Box<Expr>,
    },
    Tuple(Vec<Expr>),
    /// `{ …; value }`.
    Block,
    /// What is not kept, and why it has no translation: `sizeof(struct x)`.
    Opaque(&'static str),
}

/// Writes the walkers over a node's direct parts, for shared and for exclusive borrows.
macro_rules! walkers {
    ($expressions:ident, $blocks:ident, $parts:ident, $option:ident, $($borrow:tt)+) => {
        impl Stmt {
            /// Returns the expressions of a statement itself.
            pub(crate) fn $expressions(self: $($borrow)+ Self) -> Vec<$($borrow)+ Expr> {
                match $($borrow)+ self.kind {
                    StmtKind::Expr(it) => vec![it],
                    StmtKind::Assign { target, value, .. } => vec![target, value],
                    StmtKind::If { condition, .. } | StmtKind::While { condition, .. } => vec![condition],
                    StmtKind::Unroll { times, .. } => vec![times],
                    StmtKind::ForMap { map, .. } => vec![map],
                    StmtKind::ForRange { start, end, .. } => vec![start, end],
                    StmtKind::Let | StmtKind::Break | StmtKind::Continue | StmtKind::Return | StmtKind::Block(_) => {
                        Vec::new()
                    }
                }
            }

            /// Returns the blocks of a statement.
            pub(crate) fn $blocks(self: $($borrow)+ Self) -> Vec<$($borrow)+ Block> {
                match $($borrow)+ self.kind {
                    StmtKind::If { then, otherwise, .. } => std::iter::once(then).chain(otherwise).collect(),
                    StmtKind::Unroll { body, .. }
                    | StmtKind::While { body, .. }
                    | StmtKind::ForMap { body, .. }
                    | StmtKind::ForRange { body, .. }
                    | StmtKind::Block(body) => vec![body],
                    _ => Vec::new(),
                }
            }
        }

        impl Expr {
            /// Returns the expressions directly below one.
            pub(crate) fn $parts(self: $($borrow)+ Self) -> Vec<$($borrow)+ Expr> {
                match $($borrow)+ self.kind {
                    ExprKind::Map { keys: parts, .. }
                    | ExprKind::Call { arguments: parts, .. }
                    | ExprKind::Tuple(parts) => parts.into_iter().collect(),
                    ExprKind::Field { of, .. }
                    | ExprKind::Unary(_, of)
                    | ExprKind::Increment { target: of, .. }
                    | ExprKind::Cast { value: of, .. } => vec![of],
                    ExprKind::Index { of: a, at: b } | ExprKind::Binary(_, a, b) => vec![a, b],
                    ExprKind::Choice { condition, then, otherwise } => {
                        let then = then.$option();
                        std::iter::once($($borrow)+ **condition).chain(then).chain([$($borrow)+ **otherwise]).collect()
                    }
                    _ => Vec::new(),
                }
            }
        }
    };
}

walkers!(expressions, blocks, parts, as_deref, &);
walkers!(expressions_mut, blocks_mut, parts_mut, as_deref_mut, &mut);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Not,
    Invert,
    Minus,
    /// `*p`.
    Read,
    /// `&x`.
    Address,
}

/// Lists the operators once: their text, which is the same here and in bpftrace, and how tightly they bind in C, and so in
/// bpftrace; higher is tighter.
macro_rules! binary {
    ($($Name:ident $text:literal $binding:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Binary { $($Name,)* }

        impl Binary {
            pub(crate) const ALL: &[Binary] = &[$(Binary::$Name),*];

            pub(crate) fn text(self) -> &'static str {
                match self { $(Binary::$Name => $text,)* }
            }

            pub(crate) fn binding(self) -> u8 {
                match self { $(Binary::$Name => $binding,)* }
            }
        }
    };
}

binary! {
    Or "||" 1;
    And "&&" 2;
    BitOr "|" 3;
    BitXor "^" 4;
    BitAnd "&" 5;
    Equal "==" 6;
    Unequal "!=" 6;
    Less "<" 7;
    LessOrEqual "<=" 7;
    Greater ">" 7;
    GreaterOrEqual ">=" 7;
    ShiftLeft "<<" 8;
    ShiftRight ">>" 8;
    Add "+" 9;
    Subtract "-" 9;
    Multiply "*" 10;
    Divide "/" 10;
    Remainder "%" 10;
}

impl Binary {
    /// Whether the result is a truth.
    pub(crate) fn is_comparison(self) -> bool {
        use Binary::{And, Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Or, Unequal};
        matches!(self, Equal | Unequal | Less | LessOrEqual | Greater | GreaterOrEqual | And | Or)
    }
}
