//! A module of PTX as a tree. It keeps every word of the text but comments and white space.
//!
//! What the tree doesn't need to understand stays text: initialisers, constant expressions, the arguments of
//! directives, debug sections.

/// A module (PTX ISA, §4 "Syntax", and §11 "Directives").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    pub items: Vec<Item>,
}

/// What stands at the top level of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// `.version 9.0`, `.target sm_90a`, `.file …`, `.alias a, b;`.
    Directive(Directive),
    /// One or more variables of one type.
    Variable(Declaration),
    Function(Function),
    Section(Section),
}

/// A directive that declares nothing with a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// With its dot: `.version`.
    pub name: String,
    /// What follows it, words separated as PTX needs it.
    pub arguments: String,
    /// Whether `;` ends it.
    pub has_end: bool,
}

/// A section of debug information (PTX ISA, §11.5 "Debugging Directives").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// `.debug_info`.
    pub name: String,
    /// What stands between its braces, as it was.
    pub text: String,
}

/// A declaration of variables, registers or parameters (PTX ISA, §5.4 "Variables").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declaration {
    /// Linkage, state space, attributes, alignment and type, in the order of the text. A word with an argument
    /// includes it: `.align 8`, `.attribute(.managed)`.
    pub words: Vec<String>,
    pub names: Vec<Declarator>,
}

/// A name of a [`Declaration`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declarator {
    pub name: String,
    /// `%r<20>` is 20 registers, `%r0` to `%r19` (PTX ISA, §5.4.6 "Parameterized Variable Names").
    pub count: Option<String>,
    /// The sizes of an array, as text; empty for `[]`.
    pub dimensions: Vec<String>,
    /// What follows `=`.
    pub initialiser: Option<String>,
}

/// A kernel or a device function (PTX ISA, §11.3 "Kernel Function and Function Directives").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// Linkage, `.entry` or `.func`, and attributes, in the order of the text.
    pub words: Vec<String>,
    pub returns: Option<Vec<Declaration>>,
    pub name: String,
    pub parameters: Option<Vec<Declaration>>,
    /// `.maxntid 256, 1, 1` and other directives for its performance.
    pub directives: Vec<Directive>,
    /// `None` for a prototype.
    pub body: Option<Vec<Statement>>,
}

/// A statement of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// `{ … }`: a scope of names.
    Scope(Vec<Statement>),
    Declaration(Declaration),
    Label(String),
    Instruction(Instruction),
    /// `.loc 1 10 5`.
    Location(Location),
    /// `.pragma "nounroll";`.
    Directive(Directive),
    /// A label with targets or a prototype.
    Table(LabelledDirective),
    /// A `;` alone.
    Empty,
}

/// A source line, for the instructions that follow (PTX ISA, §11.5.3 ".loc").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The number that a `.file` directive gave a file.
    pub file: u32,
    pub line: u32,
    pub column: u32,
    /// Where the code was inlined: `function_name $L__info_string0, inlined_at 1 20 3`.
    pub inlined: Option<String>,
}

/// `L: .branchtargets …;`, `.calltargets` or `.callprototype` (PTX ISA, §11.2 "Control Flow Directives").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledDirective {
    pub label: String,
    /// With its dot.
    pub directive: String,
    pub arguments: String,
}

/// An instruction (PTX ISA, §4.3.2 "Instruction Statements").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    pub guard: Option<Guard>,
    /// With its modifiers: `ld.global.v4.f32`.
    pub opcode: String,
    pub operands: Vec<Operand>,
}

/// `@%p` or `@!%p`: the instruction runs only where the predicate has that value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    pub predicate: String,
    /// Runs where the predicate is false.
    pub is_negated: bool,
}

/// An operand (PTX ISA, §6 "Instruction Operands").
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register, variable, label or function; also `_` and `%tid.x`.
    Name(String),
    /// A variable or register and a constant: `array+8`. The offset begins with its sign.
    Sum { name: String, offset: String },
    /// A constant or an expression of constants: `-5`, `0f3F800000`; and every other form.
    Expression(String),
    /// `%p|%q`: two destinations.
    Pair(String, String),
    /// `!%p`.
    Not(String),
    /// `[…]`: the address first; a texture's or a tensor's coordinates may follow it.
    Address(Vec<Operand>),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `(a, b)`: the parameters of a call.
    List(Vec<Operand>),
}

impl Operand {
    /// Returns the constant of an [`Operand::Sum`], which may have a name.
    pub(crate) fn of_offset(offset: &str) -> Self {
        let text = offset.strip_prefix('+').unwrap_or(offset).to_owned();
        let may_be_in_name = |it: u8| it.is_ascii_alphanumeric() || b"_$%.".contains(&it);
        let is_name = text.bytes().all(may_be_in_name) && !text.starts_with(|it: char| it.is_ascii_digit());
        if is_name { Operand::Name(text) } else { Operand::Expression(text) }
    }
}
