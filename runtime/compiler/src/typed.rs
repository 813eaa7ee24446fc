//! Handlers with every name resolved and every value typed: the checker's output and the emitter's
//! input. Nothing is optimized in between.

use rhai::Position;
use xputrace_bytecode::insn::{Alu, Cond};
use xputrace_model::diagnostic::FileId;
use xputrace_model::plan::{MapAction, TextRead};
use xputrace_model::schema::Unit;
use xputrace_model::style::Style;
use xputrace_model::table::Scalar;

/// The type of a value. Any value may also be missing, `()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    pub(super) base: Base,
    pub(super) optional: bool,
    pub(super) unit: Unit,
}

/// What a value is if it is present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// From a map without assignments, or `()`.
    Unknown,
    Int,
    Bool,
    /// A string known by its id; literals are of this type.
    Name,
    /// Bytes in place, with a maximum length.
    Text(u32),
    Stack,
}

impl Base {
    /// Returns the word that messages use.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Base::Unknown => "an unknown value",
            Base::Int => "an integer",
            Base::Bool => "a boolean",
            Base::Name | Base::Text(_) => "a string",
            Base::Stack => "a stack",
        }
    }

    pub(super) fn is_string(self) -> bool {
        matches!(self, Base::Name | Base::Text(_))
    }

    /// Returns how it is stored; an unknown type is stored as an integer.
    pub(super) fn scalar(self) -> Scalar {
        match self {
            Base::Unknown | Base::Int => Scalar::Int,
            Base::Bool => Scalar::Bool,
            Base::Name => Scalar::Name,
            Base::Text(n) => Scalar::Text(n),
            Base::Stack => Scalar::Stack,
        }
    }
}

impl Type {
    pub(super) const fn of(base: Base) -> Self {
        Type { base, optional: false, unit: Unit::None }
    }

    pub(super) const fn with(base: Base, unit: Unit) -> Self {
        Type { base, optional: false, unit }
    }

    /// Returns the same type, possibly missing.
    pub(super) const fn maybe(self, optional: bool) -> Self {
        Type { optional, ..self }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) kind: ExprKind,
    pub(super) ty: Type,
    pub(super) at: Position,
}

impl Expr {
    /// Whether it can be computed twice cheaply and without side effects.
    pub(super) fn is_simple(&self) -> bool {
        match &self.kind {
            ExprKind::Joined(inner) => inner.is_simple(),
            ExprKind::Source(ValueSource::UsdtArgument(_)) => false,
            kind => {
                matches!(
                    kind,
                    ExprKind::Const(_)
                        | ExprKind::Literal(_)
                        | ExprKind::Missing
                        | ExprKind::Local(_)
                        | ExprKind::Source(_)
                )
            }
        }
    }
}

/// Returns a missing value.
pub(super) fn missing(at: Position) -> Expr {
    Expr { kind: ExprKind::Missing, ty: Type::of(Base::Unknown).maybe(true), at }
}

/// Returns a constant integer.
pub(super) fn int(n: i64, at: Position) -> Expr {
    Expr { kind: ExprKind::Const(n), ty: Type::of(Base::Int), at }
}

/// A local variable of the handler, numbered in declaration order.
pub(super) type LocalId = usize;
/// A map of the script, in order of first use.
pub(super) type MapId = usize;

#[derive(Clone, Debug)]
pub(super) enum ExprKind {
    /// Integers and booleans.
    Const(i64),
    /// A string known at compile time.
    Literal(String),
    Missing,
    Local(LocalId),
    Source(ValueSource),
    /// A field of a kernel's launch, in a handler that tests `.launch`: missing if not joined.
    Joined(Box<Expr>),
    Read(MapId, Vec<Expr>),
    /// Reads an element's integer and leaves 0 there, in one step where the element is not a copy.
    Exchange(MapId, Vec<Expr>),
    Contains(MapId, Vec<Expr>),
    Neg(Box<Expr>),
    Not(Box<Expr>),
    Binary(Alu, Box<Expr>, Box<Expr>),
    Compare(Cond, Box<Expr>, Box<Expr>),
    /// Equality of two strings.
    Same(Box<Expr>, Box<Expr>),
    IsMissing(Box<Expr>),
    /// Whether a string contains a text, known at compile time, at a place.
    Match(Where, Box<Expr>, String),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Coalesce(Vec<Expr>),
    If(Box<Expr>, Box<TypedBlock>, Box<TypedBlock>),
    Block(Box<TypedBlock>),
    /// The smaller of two values, or the larger if `true`.
    Pick(bool, Box<Expr>, Box<Expr>),
    Abs(Box<Expr>),
    /// The string at an address in the target, with a maximum length.
    UserText(Box<Expr>, u32),
    /// An integer's bits as text: `0x1f`.
    Hex(Box<Expr>),
    /// The concatenated texts of these values.
    Concat(Vec<Expr>),
    /// An inlined call of a function of the script.
    Inlined(Box<Inlined>),
}

/// Where in a string to look for a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    Anywhere,
    Start,
    End,
}

impl Where {
    /// Returns the place that a method of this name tests.
    pub(super) fn of(method: &str) -> Option<Self> {
        Some(match method {
            "contains" => Where::Anywhere,
            "starts_with" => Where::Start,
            "ends_with" => Where::End,
            _ => return None,
        })
    }

    /// Tests it for two constant texts.
    pub(super) fn holds(self, text: &str, wanted: &str) -> bool {
        match self {
            Where::Anywhere => text.contains(wanted),
            Where::Start => text.starts_with(wanted),
            Where::End => text.ends_with(wanted),
        }
    }
}

/// An inlined function.
#[derive(Clone, Debug)]
pub(super) struct Inlined {
    /// The file of the body.
    pub(super) file: FileId,
    /// The parameters' values, in the caller's terms.
    pub(super) arguments: Vec<(LocalId, Expr)>,
    pub(super) body: TypedBlock,
    /// Where an early `return` leaves the value; the body's end then does the same.
    pub(super) result: Option<LocalId>,
}

/// Where a field's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    /// A word of the GPU context.
    Word(usize),
    /// The second word if the first is not 0.
    Flagged(usize, usize),
    /// 16 bytes of text at a word of the GPU context.
    WordText(usize),
    /// A register in `pt_regs`, by offset.
    Register(i16),
    Time,
    Pid,
    Tid,
    Comm,
    Cpu,
    Uid,
    Gid,
    Cgroup,
    /// The function's name, passed by the loader: the attach cookie is its string id.
    Cookie,
    UserStack,
    LinuxStack,
    EntryTime,
    EntryArg(usize),
    /// An integer in a tracepoint's record.
    Record {
        offset: u32,
        size: u32,
        signed: bool,
    },
    /// `char[n]` in a tracepoint's record.
    RecordChars {
        offset: u32,
        len: u32,
    },
    /// `__data_loc` in a tracepoint's record.
    RecordLoc {
        offset: u32,
    },
    /// An argument of a USDT probe, where the attach cookie says.
    UsdtArgument(usize),
    /// The C string that a word of the marker's context points to.
    MarkerText(usize),
}

/// Statements, then the block's value if it has one.
#[derive(Clone, Debug, Default)]
pub(super) struct TypedBlock {
    pub(super) stmts: Vec<Stmt>,
    pub(super) value: Option<Expr>,
}

#[derive(Clone, Debug)]
pub(super) struct Stmt {
    pub(super) kind: StmtKind,
    pub(super) at: Position,
}

#[derive(Clone, Debug)]
pub(super) enum StmtKind {
    Set(LocalId, Expr),
    Store(MapId, Vec<Expr>, Expr),
    /// `+=`, `-=`, `|=`, `^=`, `&=`: atomic, from 0.
    Change(MapId, Vec<Expr>, Alu, Expr),
    Remove(MapId, Vec<Expr>),
    /// An aggregation with its value, if it takes one.
    Aggregate(MapId, Vec<Expr>, Option<Expr>),
    Print(Printed),
    /// `print(@m)` or `@m.clear()`.
    Map(MapId, MapAction),
    Exit(Option<Expr>),
    /// Switches a probe, by the number of its declaration, on or off.
    Switch(u32, bool),
    Tag(Expr),
    If(Expr, TypedBlock, TypedBlock),
    Block(TypedBlock),
    /// The unrolled iterations of a `for`.
    Loop(Vec<TypedBlock>),
    Break,
    Continue,
    /// Ends the handler.
    Return,
    /// Ends the innermost inlined function.
    Leave,
    /// Evaluated for the losses it may count.
    Eval(Expr),
}

/// What a `print` prints.
#[derive(Clone, Debug)]
pub(super) enum Printed {
    Line(Vec<PrintPart>),
    /// A `#{…}`: names, in order, with their values.
    Object(Vec<(String, PrintPart)>),
}

/// A piece of a printed line.
#[derive(Clone, Debug)]
pub(super) enum PrintPart {
    Text(String),
    Value { expr: Expr, style: Style },
}

/// A checked handler.
#[derive(Clone, Debug, Default)]
pub(super) struct Checked {
    pub(super) body: TypedBlock,
    pub(super) locals: Vec<Type>,
    /// The numbers of the arguments of a USDT probe that it reads.
    pub(super) usdt_arguments: Vec<usize>,
    /// The texts that it reads from the target.
    pub(super) texts: Vec<TextRead>,
    /// Whether it reads a kernel's launch without testing for it.
    pub(super) needs_launch: bool,
    /// Highest argument number read at the entry, plus one; `None` if no entry is needed.
    pub(super) entry_args: Option<usize>,
    /// How often it reads the event's time at a CPU probe.
    pub(super) time_reads: usize,
}
