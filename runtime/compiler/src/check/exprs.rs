//! Expressions and chains, typed.

use super::checker::Checker;
use super::warn::found_there;
use crate::chain::{Chain, Link, map_name, unwrapped};
use crate::tables::{NAME_TEXT_BYTES, join_base};
use crate::typed::int;
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, Type, TypedBlock, ValueSource};
use rhai::{Expr as Syntax, FlowControl, Position, Stmt as SyntaxStmt};
use xputrace_bytecode::insn::Alu;
use xputrace_model::context::word;
use xputrace_model::diagnostic::Diagnostic;
use xputrace_model::plan::Place;
use xputrace_model::schema::Unit;
use xputrace_model::stack::LINES;
use xputrace_model::style::{self, HEX_BYTES};
use xputrace_script::handler::Captured;
use xputrace_script::units::{self, join_unit};
use xputrace_script::width::{WIDTHS, Width};
use xputrace_script::{mistakes, words};

/// Maximum length of a concatenated string; longer ones do not fit on the stack with the rest.
const MAX_CONCAT_BYTES: u32 = 256;

impl Checker<'_> {
    pub(super) fn expr(&mut self, expr: &Syntax) -> Expr {
        let expr = unwrapped(expr);
        let at = match expr {
            Syntax::Dot(..) | Syntax::Index(..) => expr.start_position(),
            _ => expr.position(),
        };
        match expr {
            Syntax::IntegerConstant(n, _) => int(*n, at),
            Syntax::BoolConstant(b, _) => Expr { kind: ExprKind::Const(i64::from(*b)), ty: Type::of(Base::Bool), at },
            Syntax::StringConstant(text, _) => self.text_constant(text, at),
            Syntax::CharConstant(c, _) => self.literal(&c.to_string(), at),
            Syntax::Unit(_) => missing(at),
            Syntax::Stmt(block) => self.block_value(block.statements(), at),
            Syntax::FnCall(call, at) => self.call(call, *at),
            Syntax::And(parts, _) => self.all(parts.iter(), at, ExprKind::And),
            Syntax::Or(parts, _) => self.all(parts.iter(), at, ExprKind::Or),
            Syntax::Coalesce(parts, _) => self.coalesce(parts, at),
            Syntax::Variable(..) | Syntax::Dot(..) | Syntax::Index(..) => self.chain(&Chain::of(expr)),
            Syntax::FloatConstant(..) => {
                let diagnostic = Diagnostic::error("float", "handlers compute with integers", self.label(at))
                    .help("use a smaller unit: `1.5.ms` is 1500000 nanoseconds, 3 / 2 is 1");
                self.poison(diagnostic, at)
            }
            Syntax::InterpolatedString(pieces, _) => {
                let pieces = pieces.iter().map(|it| self.expr(it)).collect();
                self.concat(pieces, at)
            }
            Syntax::DynamicConstant(..) => {
                self.no_value("a closure", at, "make it a function of the script: `fn name(x) { … }`")
            }
            Syntax::Array(..) => self.no_value("a list", at, "lists are keys only: `@m[a, b]`, `[a, b] in @m`"),
            Syntax::Map(..) => self.no_value("an object map", at, "use several maps, or several parts of a key"),
            _ => self.no_value(
                "this expression",
                at,
                &self.or_interpret("write it with integers, text, maps and the event's fields"),
            ),
        }
    }

    /// Checks a text constant: texts stored as bytes end at a NUL, so anything after one would be
    /// lost.
    pub(super) fn text_constant(&mut self, text: &str, at: Position) -> Expr {
        if !text.contains('\0') {
            return self.literal(text, at);
        }
        let diagnostic = Diagnostic::error("nul", "strings in handlers cannot contain a NUL", self.label(at))
            .help("remove it: the target's strings end at a NUL");
        self.poison(diagnostic, at)
    }

    /// Checks a head and the links applied to it.
    pub(super) fn chain(&mut self, chain: &Chain) -> Expr {
        if let Some(name) = map_name(chain.head) {
            return self.map_value(&name, chain);
        }
        if let Syntax::Variable(variable, _, _) = chain.head
            && self.is_event(&variable.1)
            && !chain.links.is_empty()
        {
            return self.event_value(&chain.links);
        }
        if let Syntax::Variable(variable, _, at) = chain.head
            && let Some(listed @ (Captured::List(_) | Captured::Object(_))) = self.listed(&variable.1)
        {
            return self.constant_part(&variable.1, listed, &chain.links, *at);
        }
        if let Syntax::Variable(variable, _, _) = chain.head
            && let Some((Link::Method(call, at), rest)) = chain.links.split_first()
            && call.name == "call"
            && let Some(function) = self.closure(&variable.1)
        {
            let value = self.inline(&function, &call.args, *at);
            return self.links(value, rest);
        }
        let head = match chain.head {
            Syntax::Variable(variable, _, at) => self.lookup_value(&variable.1, *at),
            other => self.expr(other),
        };
        self.links(head, &chain.links)
    }

    pub(super) fn event_value(&mut self, links: &[Link]) -> Expr {
        let mut path = Vec::new();
        for link in links {
            match link {
                Link::Property(name, at) => path.push((*name, *at)),
                Link::Index(index, at) => match unwrapped(index) {
                    Syntax::StringConstant(name, _) => path.push((name.as_str(), *at)),
                    _ => break,
                },
                Link::Method(..) => break,
            }
        }
        if path.is_empty() {
            let at = match links[0] {
                Link::Method(call, at) if words::SWITCHING.contains(&&*call.name) => {
                    let diagnostic = mistakes::no_probe(&call.name, "an event", self.label(at));
                    return self.poison(diagnostic, at);
                }
                Link::Method(call, at) => {
                    let instead = format!("fields are read without parentheses: `e.{}`", call.name);
                    return self.no_value("a call on the event", at, &instead);
                }
                Link::Property(_, at) | Link::Index(_, at) => at,
            };
            return self.no_value("this use of the event", at, "read one of its fields");
        }
        let resolved = self.field(&path);
        if matches!(resolved.expr.ty.base, Base::Unknown) {
            return resolved.expr;
        }
        self.links(resolved.expr, &links[resolved.used..])
    }

    pub(super) fn links(&mut self, mut value: Expr, links: &[Link]) -> Expr {
        for link in links {
            value = match link {
                // The mistake has been reported already.
                _ if is_poison(&value) => return value,
                Link::Property(name, at) if let Some(width) = Width::of(name) => self.in_width(value, width, *at),
                Link::Property(name, at) if units::is_unit(name) => self.in_unit(value, name, *at),
                Link::Property("lines", at) if value.ty.base == Base::Stack => self.with_lines(value, *at),
                Link::Property("hex", at) => self.hex(value, *at),
                Link::Property("human", at) => {
                    self.no_value("`.human` outside a print", *at, "write it inside the string: `${x.human}`")
                }
                Link::Property(name, at) => self.no_property(&value, name, *at),
                Link::Method(call, at) => self.value_method(value, call, *at),
                Link::Index(_, at) => self.no_value("indexing this value", *at, "only maps have elements"),
            };
        }
        value
    }

    /// Checks `stack.lines`: the same stack, as another key.
    fn with_lines(&mut self, value: Expr, at: Position) -> Expr {
        match value.kind {
            ExprKind::Source(ValueSource::LinuxStack) => {
                let diagnostic = Diagnostic::error("no-lines", "Linux's functions have no lines", self.label(at))
                    .help("write `kstack` without `.lines`");
                self.poison(diagnostic, at)
            }
            // It has Python's lines already.
            ExprKind::Source(ValueSource::Word(word::LAUNCH_PYSTACK)) => value,
            ExprKind::Joined(inner) => Expr { kind: ExprKind::Joined(Box::new(self.with_lines(*inner, at))), ..value },
            _ => {
                let ty = value.ty;
                Expr { kind: ExprKind::Binary(Alu::Or, Box::new(value), Box::new(int(LINES as i64, at))), ty, at }
            }
        }
    }

    /// Reports a property that a value does not have.
    fn no_property(&mut self, value: &Expr, name: &str, at: Position) -> Expr {
        let message = format!("{} has no field `{name}`", value.ty.base.noun());
        let diagnostic = Diagnostic::error("unknown-field", message, self.label(at));
        let diagnostic = match name {
            "str" => diagnostic.help("to read the string at an address, write `str(e.arg0)` or `e.arg0.str()`"),
            _ => {
                let widths: Vec<&str> = WIDTHS.iter().map(|it| it.name).collect();
                diagnostic
                    .help(format!("a number has the units {}", units::names()))
                    .help(format!("and the widths {}", widths.join(", ")))
                    .help("`.hex` is its text in hexadecimal digits")
            }
        };
        self.poison(diagnostic, at)
    }

    /// Checks `n.i32`: the low bits.
    pub(super) fn in_width(&mut self, value: Expr, width: Width, at: Position) -> Expr {
        let value = self.expect(value, Base::Int);
        let ty = value.ty;
        let of = |n: u32| int(i64::from(n), at);
        match width.above() {
            // Says that all bits are meant: a value of its own, like the others, so there is none of what is missing.
            0 => Expr { ty: ty.maybe(false), ..self.arithmetic(Alu::Or, value, of(0), at) },
            above if width.signed => {
                let high = self.arithmetic(Alu::Lsh, value, of(above), at);
                self.arithmetic(Alu::Arsh, high, of(above), at)
            }
            _ => self.arithmetic(Alu::And, value, int(width.of_integer(-1), at), at),
        }
    }

    /// Checks `n.hex`: the text `0x1f`.
    fn hex(&mut self, value: Expr, at: Position) -> Expr {
        let value = self.expect(value, Base::Int);
        let ty = Type::of(Base::Text(HEX_BYTES as u32));
        let hex = match value.kind {
            _ if is_poison(&value) => return value,
            ExprKind::Const(n) => return self.literal(&style::hex(n), at),
            _ => Expr { kind: ExprKind::Hex(Box::new(value)), ty, at },
        };
        self.concat(vec![hex], at)
    }

    /// Checks `n.ms` in nanoseconds; constants accept the top level's units too.
    pub(super) fn in_unit(&mut self, value: Expr, unit: &str, at: Position) -> Expr {
        let ty = Type::with(Base::Int, Unit::Nanos);
        if matches!(value.ty.unit, Unit::Nanos | Unit::Clock) {
            return self.poison(units::of_a_time(unit, self.label(at)), at);
        }
        match (&value.kind, units::whole(1, unit)) {
            (ExprKind::Const(n), _) if value.ty.base == Base::Int => match units::whole(*n, unit) {
                Some(nanos) => Expr { ty, ..int(nanos, at) },
                None => {
                    let (message, help) = units::refusal(*n, unit);
                    let diagnostic = Diagnostic::error("unit", message, self.label(at)).help(help);
                    self.poison(diagnostic, at)
                }
            },
            (_, Some(one)) if unit != "hz" => {
                let product = self.arithmetic(Alu::Mul, value, int(one, at), at);
                Expr { ty, ..product }
            }
            _ => self.no_value("`.hz` of a value that is not constant", at, "write the period instead: `1.s / x`"),
        }
    }

    /// Checks an integer; reports any other type.
    pub(super) fn integer(&mut self, expr: &Syntax) -> Expr {
        let value = self.expr(expr);
        self.expect(value, Base::Int)
    }

    pub(super) fn condition(&mut self, expr: &Syntax) -> Expr {
        let value = self.expr(expr);
        self.expect(value, Base::Bool)
    }

    pub(super) fn expect(&mut self, value: Expr, base: Base) -> Expr {
        if value.ty.base == base || value.ty.base == Base::Unknown {
            return value;
        }
        let mut diagnostic = Diagnostic::error(
            "type",
            format!("this is {}, but {} is needed here", value.ty.base.noun(), base.noun()),
            self.label(value.at),
        );
        if base == Base::Bool && value.ty.base == Base::Int {
            diagnostic = diagnostic.help("compare it: `x != 0`");
        }
        let at = value.at;
        self.poison(diagnostic, at)
    }

    pub(super) fn all<'s>(
        &mut self,
        parts: impl Iterator<Item = &'s Syntax>,
        at: Position,
        kind: fn(Vec<Expr>) -> ExprKind,
    ) -> Expr {
        let known = self.there.len();
        let mut checked = Vec::new();
        for part in parts {
            let part = self.condition(part);
            self.there.extend(found_there(&part));
            checked.push(part);
        }
        self.there.truncate(known);
        Expr { kind: kind(checked), ty: Type::of(Base::Bool), at }
    }

    pub(super) fn coalesce(&mut self, parts: &[Syntax], at: Position) -> Expr {
        let parts: Vec<Expr> = parts.iter().map(|it| self.expr(it)).collect();
        let mut ty = Type::of(Base::Unknown).maybe(true);
        for part in &parts {
            ty = Type { optional: part.ty.optional, ..self.unified(ty, part) };
        }
        Expr { kind: ExprKind::Coalesce(parts), ty, at }
    }

    /// Returns the type that holds either value.
    pub(super) fn unified(&mut self, ty: Type, value: &Expr) -> Type {
        let width = |base: Base| match (base, &value.kind) {
            (Base::Text(n), ExprKind::Literal(text)) => Base::Text(n.max(text.len() as u32)),
            (base, _) => base,
        };
        match join_base(ty.base, value.ty.base) {
            Some(base) => Type {
                base: width(base),
                optional: ty.optional || value.ty.optional,
                unit: join_unit(ty.unit, value.ty.unit),
            },
            None => {
                let label = self.label(value.at);
                self.error(Diagnostic::error(
                    "type",
                    format!("this is {}, but the other value is {}", value.ty.base.noun(), ty.base.noun()),
                    label,
                ));
                ty
            }
        }
    }

    pub(super) fn if_value(&mut self, flow: &FlowControl, at: Position) -> Expr {
        let condition = self.condition(&flow.expr);
        let then = self.block_where(&condition, flow.body.statements(), true);
        let otherwise = self.block(flow.branch.statements(), true);
        self.choice(condition, then, otherwise, at)
    }

    pub(super) fn choice(&mut self, condition: Expr, then: TypedBlock, otherwise: TypedBlock, at: Position) -> Expr {
        let mut ty = match &then.value {
            Some(value) => value.ty,
            None => Type::of(Base::Unknown).maybe(true),
        };
        ty = match &otherwise.value {
            Some(value) => self.unified(ty, value),
            None => ty.maybe(true),
        };
        Expr { kind: ExprKind::If(Box::new(condition), Box::new(then), Box::new(otherwise)), ty, at }
    }

    /// Checks a block that runs if a condition holds.
    pub(super) fn block_where(&mut self, condition: &Expr, stmts: &[SyntaxStmt], with_value: bool) -> TypedBlock {
        let known = self.there.len();
        self.there.extend(found_there(condition));
        let block = self.block(stmts, with_value);
        self.there.truncate(known);
        block
    }

    pub(super) fn block_value(&mut self, stmts: &[SyntaxStmt], at: Position) -> Expr {
        let block: TypedBlock = self.block(stmts, true);
        let ty = block.value.as_ref().map_or(Type::of(Base::Unknown).maybe(true), |it| it.ty);
        Expr { kind: ExprKind::Block(Box::new(block)), ty, at }
    }

    /// Concatenates strings and numbers; joins the constants at compile time.
    pub(super) fn concat(&mut self, pieces: Vec<Expr>, at: Position) -> Expr {
        let mut parts: Vec<Expr> = Vec::new();
        for piece in flattened(pieces) {
            if piece.ty.base == Base::Stack {
                let diagnostic = Diagnostic::error("type", "a stack cannot be part of a string", self.label(piece.at))
                    .help("print it, or make it a part of the key: `@m[k.launch.ustack, …]`");
                return self.poison(diagnostic, at);
            }
            match (parts.last_mut().map(|it| &mut it.kind), known_text(&piece)) {
                (Some(ExprKind::Literal(before)), Some(text)) => before.push_str(&text),
                (_, Some(text)) => parts.push(self.literal(&text, piece.at)),
                (_, None) => parts.push(piece),
            }
        }
        match &parts[..] {
            [] => return self.literal("", at),
            [Expr { kind: ExprKind::Literal(text), .. }] => return self.literal(&text.clone(), at),
            _ => {}
        }
        if self.place == Place::Gpu {
            let message = "device code cannot build strings: there, a name is a number";
            let diagnostic = Diagnostic::error("not-in-device-code", message, self.label(at))
                .help("make the values parts of a key, `@m[a, b]`");
            return self.poison(diagnostic, at);
        }
        let bytes: u32 = parts.iter().map(piece_bytes).sum();
        if bytes > MAX_CONCAT_BYTES {
            let message =
                format!("this string can have {bytes} bytes, but handlers build strings of at most {MAX_CONCAT_BYTES}");
            let diagnostic = Diagnostic::error("string-too-long", message, self.label(at))
                .help("make them parts of a key, `@m[a, b]`, or read less: `str(ptr, 32)`")
                .help("`print` takes longer ones");
            return self.poison(diagnostic, at);
        }
        Expr { kind: ExprKind::Concat(parts), ty: Type::of(Base::Text(bytes)), at }
    }
}

/// Whether a value stands for a reported mistake.
pub(super) fn is_poison(value: &Expr) -> bool {
    value.ty.base == Base::Unknown && matches!(value.kind, ExprKind::Const(_))
}

/// Flattens nested concatenations.
pub(super) fn flattened(pieces: Vec<Expr>) -> Vec<Expr> {
    let inner = |piece: Expr| match piece.kind {
        ExprKind::Concat(parts) => parts,
        _ => vec![piece],
    };
    pieces.into_iter().flat_map(inner).collect()
}

/// Returns the text of a value known at compile time.
pub(super) fn known_text(piece: &Expr) -> Option<String> {
    match (&piece.kind, piece.ty.base) {
        (ExprKind::Literal(text), _) => Some(text.clone()),
        (ExprKind::Const(n), Base::Bool) => Some((*n != 0).to_string()),
        (ExprKind::Const(n), _) => Some(n.to_string()),
        (ExprKind::Missing, _) => Some("-".into()),
        _ => None,
    }
}

/// Returns the maximum length of a value's text.
pub(super) fn piece_bytes(piece: &Expr) -> u32 {
    match piece.ty.base {
        Base::Int | Base::Unknown | Base::Stack => "-9223372036854775808".len() as u32,
        Base::Bool => "false".len() as u32,
        Base::Name | Base::Text(_) => text_bytes(piece).max(1),
    }
}

/// Returns the maximum length of a string as text.
pub(crate) fn text_bytes(value: &Expr) -> u32 {
    match (&value.kind, value.ty.base) {
        (ExprKind::Literal(text), _) => text.len() as u32,
        (_, Base::Text(n)) => n,
        _ => NAME_TEXT_BYTES,
    }
}
