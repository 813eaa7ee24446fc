//! Expressions: chains, operators and functions, typed.

use super::chain::{Chain, Link, map_name, unwrapped};
use super::check::{Checker, missing, text_bytes};
use super::tables::{Purpose, join_base, join_unit};
use super::typed::{Base, Block, Expr, Kind, Source, Type, Where};
use crate::units;
use rhai::{Expr as Syntax, FlowControl, FnCallExpr, Position, Stmt as SyntaxStmt};
use xputrace_bytecode::insn::{Alu, Cond};
use xputrace_model::context::word;
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_model::plan::Place;
use xputrace_model::schema::Unit;

/// Bytes of `str()` unless a length is given, and at most.
const TEXT_BYTES: u32 = 128;
const MAX_TEXT_BYTES: i64 = 240;
/// Bytes of a string that is put together: more would not fit beside what else is on the stack.
const MAX_CONCAT_BYTES: u32 = 256;

/// The functions of compiled handlers.
const FUNCTIONS: &[&str] = &["print", "exit", "str", "min", "max", "abs"];

impl Checker<'_> {
    pub(super) fn expr(&mut self, expr: &Syntax) -> Expr {
        let expr = unwrapped(expr);
        let at = match expr {
            Syntax::Dot(..) | Syntax::Index(..) => expr.start_position(),
            _ => expr.position(),
        };
        match expr {
            Syntax::IntegerConstant(n, _) => int(*n, at),
            Syntax::BoolConstant(b, _) => Expr { kind: Kind::Const(i64::from(*b)), ty: Type::of(Base::Bool), at },
            Syntax::StringConstant(text, _) => self.text_constant(text, at),
            Syntax::CharConstant(c, _) => self.literal(&c.to_string(), at),
            Syntax::Unit(_) => missing(at),
            Syntax::Stmt(block) => self.block_value(block.statements(), at),
            Syntax::FnCall(call, at) => self.call(call, *at),
            Syntax::And(parts, _) => self.all(parts.iter(), at, Kind::And),
            Syntax::Or(parts, _) => self.all(parts.iter(), at, Kind::Or),
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
            _ => self.no_value("this expression", at, "wrap the handler in `interpret(…)` if it needs all of Rhai"),
        }
    }

    /// Texts end at a NUL wherever they are bytes, and one behind it would be lost.
    pub(super) fn text_constant(&mut self, text: &str, at: Position) -> Expr {
        if !text.contains('\0') {
            return self.literal(text, at);
        }
        let diagnostic = Diagnostic::error("nul", "a string of a handler has no NUL in it", self.label(at))
            .help("leave it out: what the target's strings hold ends at a NUL");
        self.poison(diagnostic, at)
    }

    pub(super) fn no_value(&mut self, what: &str, at: Position, instead: &str) -> Expr {
        self.unsupported(what, at, instead);
        Expr { kind: Kind::Const(0), ty: Type::of(Base::Unknown), at }
    }

    /// A head and what is applied to it.
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

    fn event_value(&mut self, links: &[Link]) -> Expr {
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

    fn links(&mut self, mut value: Expr, links: &[Link]) -> Expr {
        for link in links {
            value = match link {
                // What it is has been said to be a mistake already.
                _ if is_poison(&value) => return value,
                Link::Property(name, at) if units::is_unit(name) => self.in_unit(value, name, *at),
                Link::Property("human", at) => {
                    self.no_value("`.human` outside a print", *at, "write it inside the string: `${x.human}`")
                }
                Link::Property(name, at) => {
                    let noun = value.ty.base.noun();
                    let diagnostic =
                        Diagnostic::error("unknown-field", format!("{noun} has no field `{name}`"), self.label(*at))
                            .help(format!("a number has the units {}", units::names()));
                    self.poison(diagnostic, *at)
                }
                Link::Method(call, at) => self.value_method(value, call, *at),
                Link::Index(_, at) => self.no_value("indexing this value", *at, "only maps have elements"),
            };
        }
        value
    }

    /// `n.ms`: nanoseconds, of a constant by what the top level says too.
    fn in_unit(&mut self, value: Expr, unit: &str, at: Position) -> Expr {
        let ty = Type::with(Base::Int, Unit::Nanos);
        match (&value.kind, units::whole(1, unit)) {
            (Kind::Const(n), _) if value.ty.base == Base::Int => match units::whole(*n, unit) {
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
            _ => self.no_value("`.hz` of a value that is not constant", at, "write the time between two: `1.s / x`"),
        }
    }

    fn value_method(&mut self, value: Expr, call: &FnCallExpr, at: Position) -> Expr {
        if value.ty.base == Base::Unknown {
            // Of a map that is not assigned to yet: the next round knows.
            return value;
        }
        match (&*call.name, call.args.len()) {
            (method, 1) if value.ty.base.is_string() && Where::of(method).is_some() => {
                let place = Where::of(method).unwrap_or(Where::Anywhere);
                self.matching(place, value, &call.args[0], at)
            }
            ("min" | "max", 1) => {
                let other = self.integer(&call.args[0]);
                self.pick(call.name == "max", value, other, at)
            }
            ("abs", 0) => self.absolute(value, at),
            (name, _) => {
                let diagnostic = Diagnostic::error(
                    "unknown-method",
                    format!("{} has no method `{name}`", value.ty.base.noun()),
                    self.label(at),
                );
                let help = match value.ty.base {
                    Base::Name | Base::Text(_) => {
                        "a string has `contains(\"x\")`, `starts_with(\"x\")` and `ends_with(\"x\")`; `interpret(|k| …)` has all methods"
                    }
                    Base::Stack => "a stack is a part of a key, or printed",
                    _ => "a number has `min(x)`, `max(x)` and `abs()`",
                };
                self.poison(diagnostic.help(help), at)
            }
        }
    }

    /// Whether a string has a text at a place.
    fn matching(&mut self, place: Where, value: Expr, wanted: &Syntax, at: Position) -> Expr {
        let wanted = self.expr(wanted);
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        match (&value.kind, wanted.kind) {
            _ if is_poison(&value) => value,
            (Kind::Literal(text), Kind::Literal(wanted)) => of(Kind::Const(place.holds(text, &wanted).into())),
            (_, Kind::Literal(_)) if value.ty.base == Base::Name && self.place == Place::Linux => {
                let message = "the text of this name is not known in the kernel";
                let diagnostic = Diagnostic::error("name-as-text", message, self.label(value.at))
                    .help("compare it whole, `==`, or narrow what is probed: `uprobe(\"libc:mem*\", …)`");
                self.poison(diagnostic, at)
            }
            (_, Kind::Literal(wanted)) => of(Kind::Match(place, Box::new(value), wanted)),
            _ => {
                let diagnostic = Diagnostic::error(
                    "not-constant",
                    "what is looked for must be text that is known when the script is compiled",
                    self.label(wanted.at),
                )
                .help("write it in quotes, or keep it in a variable of the script's top level");
                self.poison(diagnostic, at)
            }
        }
    }

    fn map_value(&mut self, name: &str, chain: &Chain) -> Expr {
        let at = chain.head.position();
        let Some(element) = self.element(name, chain) else { return missing(at) };
        if let Some(Purpose::Aggregate(kind)) = self.shapes.purpose(element.map) {
            let diagnostic = Diagnostic::error(
                "aggregation-read",
                format!("`{name}` is an aggregation ({}) and cannot be read in a compiled handler", kind.verb()),
                element.label,
            )
            .help("aggregations are kept in parts and merged when an `interval` or `end` handler reads them")
            .help(format!("to read it here, keep a plain value: `{name} += …`"));
            return self.poison(diagnostic, at);
        }
        let ty = self.shapes.value(element.map);
        let read = Expr { kind: Kind::Read(element.map, element.keys), ty, at };
        self.links(read, &element.rest)
    }

    /// An integer; other types are answered.
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
            format!("this is {}, and {} is needed here", value.ty.base.noun(), base.noun()),
            self.label(value.at),
        );
        if base == Base::Bool && value.ty.base == Base::Int {
            diagnostic = diagnostic.help("compare it: `x != 0`");
        }
        let at = value.at;
        self.poison(diagnostic, at)
    }

    fn all<'s>(&mut self, parts: impl Iterator<Item = &'s Syntax>, at: Position, kind: fn(Vec<Expr>) -> Kind) -> Expr {
        let parts: Vec<Expr> = parts.map(|it| self.condition(it)).collect();
        Expr { kind: kind(parts), ty: Type::of(Base::Bool), at }
    }

    fn coalesce(&mut self, parts: &[Syntax], at: Position) -> Expr {
        let parts: Vec<Expr> = parts.iter().map(|it| self.expr(it)).collect();
        let mut ty = Type::of(Base::Unknown).maybe(true);
        for part in &parts {
            ty = Type { optional: part.ty.optional, ..self.unified(ty, part) };
        }
        Expr { kind: Kind::Coalesce(parts), ty, at }
    }

    /// The type of either of two values.
    fn unified(&mut self, ty: Type, value: &Expr) -> Type {
        let width = |base: Base| match (base, &value.kind) {
            (Base::Text(n), Kind::Literal(text)) => Base::Text(n.max(text.len() as u32)),
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
                    format!("this is {}, and the other value {}", value.ty.base.noun(), ty.base.noun()),
                    label,
                ));
                ty
            }
        }
    }

    pub(super) fn if_value(&mut self, flow: &FlowControl, at: Position) -> Expr {
        let condition = self.condition(&flow.expr);
        let then = self.block(flow.body.statements(), true);
        let otherwise = self.block(flow.branch.statements(), true);
        self.choice(condition, then, otherwise, at)
    }

    pub(super) fn choice(&mut self, condition: Expr, then: Block, otherwise: Block, at: Position) -> Expr {
        let mut ty = match &then.value {
            Some(value) => value.ty,
            None => Type::of(Base::Unknown).maybe(true),
        };
        ty = match &otherwise.value {
            Some(value) => self.unified(ty, value),
            None => ty.maybe(true),
        };
        Expr { kind: Kind::If(Box::new(condition), Box::new(then), Box::new(otherwise)), ty, at }
    }

    pub(super) fn block_value(&mut self, stmts: &[SyntaxStmt], at: Position) -> Expr {
        let block: Block = self.block(stmts, true);
        let ty = block.value.as_ref().map_or(Type::of(Base::Unknown).maybe(true), |it| it.ty);
        Expr { kind: Kind::Block(Box::new(block)), ty, at }
    }

    pub(super) fn call(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        if call.op_token.is_some() {
            return self.operator(call, at);
        }
        if let Some(value) = self.script_call(call, at) {
            return value;
        }
        match (&*call.name, &call.args[..]) {
            _ if !call.namespace.is_empty() => self.unknown_module_function(call, at),
            ("contains", [map, key]) => self.contains(map, key, at),
            ("!", [value]) => {
                let value = self.condition(value);
                negated(value, at)
            }
            ("min" | "max", [a, b]) => {
                let (a, b) = (self.integer(a), self.integer(b));
                self.pick(call.name == "max", a, b, at)
            }
            ("abs", [value]) => {
                let value = self.integer(value);
                self.absolute(value, at)
            }
            ("str", [address]) => self.user_text(address, None, at),
            ("str", [address, bytes]) => self.user_text(address, Some(bytes), at),
            ("print" | "exit", arguments) if arguments.len() < 2 => {
                self.no_value("the value of this call", at, "call it as a statement of its own")
            }
            (name, _) if FUNCTIONS.contains(&name) => {
                let diagnostic = Diagnostic::error(
                    "arguments",
                    format!("`{name}` is not called with {} values", call.args.len()),
                    self.label(at),
                );
                self.poison(diagnostic, at)
            }
            (name, _) => {
                let mut diagnostic = Diagnostic::error(
                    "unknown-function",
                    format!("`{name}` is no function of compiled handlers"),
                    self.label(at),
                );
                if let Some(help) = crate::static_check::elsewhere(name) {
                    return self.poison(diagnostic.help(help), at);
                }
                if crate::declare::names().any(|it| it == name) {
                    return self.poison(diagnostic.help("call it at the top level, outside of handlers"), at);
                }
                if let Some(near) = nearest(name, FUNCTIONS.iter().copied()) {
                    diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
                }
                let diagnostic =
                    diagnostic.help(format!("there are: {}, and functions of the script", FUNCTIONS.join(" ")));
                self.poison(diagnostic, at)
            }
        }
    }

    fn unknown_module_function(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        let name = format!("{}::{}", call.namespace, call.name);
        let diagnostic = Diagnostic::error(
            "unknown-function",
            format!("there is no function `{name}` with {} parameters", call.args.len()),
            self.label(at),
        );
        self.poison(diagnostic, at)
    }

    /// Strings and numbers, one behind the other; what is known is joined now.
    pub(super) fn concat(&mut self, pieces: Vec<Expr>, at: Position) -> Expr {
        let mut parts: Vec<Expr> = Vec::new();
        for piece in flattened(pieces) {
            if piece.ty.base == Base::Stack {
                let diagnostic = Diagnostic::error("type", "a stack cannot be put into a string", self.label(piece.at))
                    .help("print it, or make it a part of the key of its own: `@m[k.launch.ustack, …]`");
                return self.poison(diagnostic, at);
            }
            match (parts.last_mut().map(|it| &mut it.kind), known_text(&piece)) {
                (Some(Kind::Literal(before)), Some(text)) => before.push_str(&text),
                (_, Some(text)) => parts.push(self.literal(&text, piece.at)),
                (_, None) => parts.push(piece),
            }
        }
        match &parts[..] {
            [] => return self.literal("", at),
            [Expr { kind: Kind::Literal(text), .. }] => return self.literal(&text.clone(), at),
            _ => {}
        }
        let bytes: u32 = parts.iter().map(piece_bytes).sum();
        if bytes > MAX_CONCAT_BYTES {
            let message =
                format!("this string can take {bytes} bytes, and a handler makes strings of {MAX_CONCAT_BYTES}");
            let diagnostic = Diagnostic::error("string-too-long", message, self.label(at))
                .help("use the parts as parts of a key, `@m[a, b]`, or read less: `str(ptr, 32)`")
                .help("`print` takes longer ones");
            return self.poison(diagnostic, at);
        }
        Expr { kind: Kind::Concat(parts), ty: Type::of(Base::Text(bytes)), at }
    }

    fn contains(&mut self, map: &Syntax, key: &Syntax, at: Position) -> Expr {
        let Some(name) = map_name(map) else {
            let whole = self.expr(map);
            return match whole.ty.base {
                Base::Name | Base::Text(_) => self.matching(Where::Anywhere, whole, key, at),
                _ => self.no_value("`in` something that is no map", at, "write `key in @map`, `\"part\" in k.name`"),
            };
        };
        let label = self.label(map.position());
        let id = self.shapes.id(&name, &label);
        match self.place {
            Place::Linux => self.shapes.list[id].in_linux = true,
            _ => self.shapes.list[id].in_tracer = true,
        }
        let Some(keys) = self.key(key, &label) else { return missing(at) };
        self.use_key(id, &keys, &label);
        if let Some(Purpose::Aggregate(_)) = self.shapes.purpose(id) {
            let diagnostic = Diagnostic::error(
                "aggregation-read",
                format!("`{name}` is an aggregation and cannot be looked into in a compiled handler"),
                label,
            )
            .help("keep a plain value beside it: `@seen[key] = true`");
            return self.poison(diagnostic, at);
        }
        Expr { kind: Kind::Contains(id, keys), ty: Type::of(Base::Bool), at }
    }

    fn user_text(&mut self, address: &Syntax, bytes: Option<&Syntax>, at: Position) -> Expr {
        let address = self.integer(address);
        if self.place != Place::Linux {
            let diagnostic = Diagnostic::error(
                "no-memory",
                "`str()` reads the target's memory, which only a CPU probe can",
                self.label(at),
            )
            .help("read it in a `uprobe` and pass it on in a map");
            return self.poison(diagnostic, at);
        }
        let bytes = match bytes.map(|it| self.expr(it)) {
            None => TEXT_BYTES,
            Some(Expr { kind: Kind::Const(n), .. }) if (1..=MAX_TEXT_BYTES).contains(&n) => n as u32,
            Some(other) => {
                let message = format!("the length of a string is a constant from 1 to {MAX_TEXT_BYTES}");
                let diagnostic =
                    Diagnostic::error("arguments", message, self.label(other.at)).help("write `str(e.arg0, 64)`");
                return self.poison(diagnostic, at);
            }
        };
        Expr { kind: Kind::UserText(Box::new(address), bytes), ty: Type::of(Base::Text(bytes)), at }
    }

    fn operator(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        match &call.args[..] {
            [value] => match &*call.name {
                "!" => {
                    let value = self.condition(value);
                    negated(value, at)
                }
                "-" => {
                    let value = self.integer(value);
                    match value.kind {
                        Kind::Const(n) => Expr { ty: value.ty, ..int(n.wrapping_neg(), at) },
                        _ => Expr { ty: value.ty.maybe(false), kind: Kind::Neg(Box::new(value)), at },
                    }
                }
                "+" => self.integer(value),
                name => self.no_value(&format!("the operator `{name}`"), at, "use + - * / % & | ^ << >>"),
            },
            [a, b] => {
                if matches!(&*call.name, "==" | "!=")
                    && let Some(tested) = self.launch_test(a, b, at)
                {
                    return if call.name == "==" { tested } else { negated(tested, at) };
                }
                let (a, b) = (self.expr(a), self.expr(b));
                self.binary(&call.name, a, b, at)
            }
            _ => self.no_value("this operator", at, "use + - * / % & | ^ << >>"),
        }
    }

    /// `k.launch == ()`: whether the kernel was joined.
    fn launch_test(&mut self, a: &Syntax, b: &Syntax, at: Position) -> Option<Expr> {
        let launch = match (unwrapped(a), unwrapped(b)) {
            (launch, Syntax::Unit(_)) | (Syntax::Unit(_), launch) => launch,
            _ => return None,
        };
        let chain = Chain::of(launch);
        let Syntax::Variable(variable, _, _) = chain.head else { return None };
        let [Link::Property("launch", _)] = chain.links[..] else { return None };
        if !self.is_event(&variable.1) {
            return None;
        }
        self.checked.reads.add(word::JOINED);
        let joined = Expr { kind: Kind::Source(Source::Word(word::JOINED)), ty: Type::of(Base::Int), at };
        Some(Expr {
            kind: Kind::Compare(Cond::Eq, Box::new(joined), Box::new(int(0, at))),
            ty: Type::of(Base::Bool),
            at,
        })
    }

    pub(super) fn binary(&mut self, op: &str, a: Expr, b: Expr, at: Position) -> Expr {
        if op == "+" && (a.ty.base.is_string() || b.ty.base.is_string()) {
            // Unlike in `${…}`, both have to be there.
            let there = |it: Expr| Expr { ty: it.ty.maybe(false), ..it };
            return self.concat(vec![there(a), there(b)], at);
        }
        let alu = match op {
            "+" => Alu::Add,
            "-" => Alu::Sub,
            "*" => Alu::Mul,
            "/" => Alu::Div,
            "%" => Alu::Mod,
            "&" => Alu::And,
            "|" => Alu::Or,
            "^" => Alu::Xor,
            "<<" => Alu::Lsh,
            ">>" => Alu::Arsh,
            "==" | "!=" => return self.equality(op == "!=", a, b, at),
            "<" => return self.comparison(Cond::Slt, a, b, at),
            "<=" => return self.comparison(Cond::Sle, a, b, at),
            ">" => return self.comparison(Cond::Sgt, a, b, at),
            ">=" => return self.comparison(Cond::Sge, a, b, at),
            ".." | "..=" => return self.no_value("a range", at, "ranges are for `for i in 0..n`"),
            other => return self.no_value(&format!("the operator `{other}`"), at, "use + - * / % & | ^ << >>"),
        };
        if matches!(op, "&" | "|") && a.ty.base == Base::Bool && b.ty.base == Base::Bool {
            let parts = vec![a, b];
            let kind = if op == "&" { Kind::And(parts) } else { Kind::Or(parts) };
            return Expr { kind, ty: Type::of(Base::Bool), at };
        }
        self.arithmetic(alu, a, b, at)
    }

    fn arithmetic(&mut self, op: Alu, a: Expr, b: Expr, at: Position) -> Expr {
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        let unit = unit_of(op, a.ty.unit, b.ty.unit);
        let ty = Type::with(Base::Int, unit);
        if matches!((op, &b.kind), (Alu::Div | Alu::Mod, Kind::Const(0))) && b.ty.base == Base::Int {
            let diagnostic = Diagnostic::error("division-by-zero", "this divides by zero", self.label(at));
            return self.poison(diagnostic, at);
        }
        match (&a.kind, &b.kind) {
            (Kind::Const(x), Kind::Const(y)) => Expr { ty, ..int(fold(op, *x, *y), at) },
            _ => Expr { kind: Kind::Binary(op, Box::new(a), Box::new(b)), ty, at },
        }
    }

    pub(super) fn comparison(&mut self, cond: Cond, a: Expr, b: Expr, at: Position) -> Expr {
        if a.ty.base.is_string() && b.ty.base.is_string() {
            let help = "they are equal or not, or have a part: `==`, `.contains(\"x\")`, `.starts_with(\"x\")`";
            return self.no_value("an order of strings", at, help);
        }
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        Expr { kind: Kind::Compare(cond, Box::new(a), Box::new(b)), ty: Type::of(Base::Bool), at }
    }

    fn equality(&mut self, not: bool, a: Expr, b: Expr, at: Position) -> Expr {
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        let equal = match (&a.kind, &b.kind) {
            (_, Kind::Missing) => of(Kind::IsMissing(Box::new(a))),
            (Kind::Missing, _) => of(Kind::IsMissing(Box::new(b))),
            _ if compared_twice(&a, &b) && !(a.is_simple() && b.is_simple()) => {
                let mut stmts = Vec::new();
                let (a, b) = (self.settled(a, &mut stmts), self.settled(b, &mut stmts));
                let value = Some(self.equality(false, a, b, at));
                of(Kind::Block(Box::new(Block { stmts, value })))
            }
            _ if a.ty.base.is_string() || b.ty.base.is_string() => self.same_text(a, b, at),
            _ => {
                let _ = self.unified(a.ty, &b);
                of(Kind::Compare(Cond::Eq, Box::new(a), Box::new(b)))
            }
        };
        if not { negated(equal, at) } else { equal }
    }

    /// Equality of strings; a kernel's name is equal to its mangled form as well.
    fn same_text(&mut self, a: Expr, b: Expr, at: Position) -> Expr {
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        if join_base(a.ty.base, b.ty.base).is_none() {
            let _ = self.unified(a.ty, &b);
        }
        let symbol =
            symbol_beside(&a).map(|it| (it, b.clone())).or_else(|| symbol_beside(&b).map(|it| (it, a.clone())));
        let same = of(Kind::Same(Box::new(a), Box::new(b)));
        match symbol {
            Some((symbol, other)) => of(Kind::Or(vec![same, of(Kind::Same(Box::new(symbol), Box::new(other)))])),
            None => same,
        }
    }

    fn pick(&mut self, larger: bool, a: Expr, b: Expr, at: Position) -> Expr {
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        let ty = Type::with(Base::Int, join_unit(a.ty.unit, b.ty.unit));
        Expr { kind: Kind::Pick(larger, Box::new(a), Box::new(b)), ty, at }
    }

    fn absolute(&mut self, value: Expr, at: Position) -> Expr {
        let value = self.expect(value, Base::Int);
        Expr { ty: value.ty.maybe(false), kind: Kind::Abs(Box::new(value)), at }
    }
}

/// What stands for a value that was said to be a mistake.
fn is_poison(value: &Expr) -> bool {
    value.ty.base == Base::Unknown && matches!(value.kind, Kind::Const(_))
}

/// Whether an equality computes its sides twice: to see whether both are there, or to compare
/// with a name and with its symbol.
fn compared_twice(a: &Expr, b: &Expr) -> bool {
    (a.ty.optional && b.ty.optional) || symbol_beside(a).is_some() || symbol_beside(b).is_some()
}

/// Pieces of strings that are put together themselves count each.
fn flattened(pieces: Vec<Expr>) -> Vec<Expr> {
    let inner = |piece: Expr| match piece.kind {
        Kind::Concat(parts) => parts,
        _ => vec![piece],
    };
    pieces.into_iter().flat_map(inner).collect()
}

/// The text of a value that is known while compiling.
fn known_text(piece: &Expr) -> Option<String> {
    match (&piece.kind, piece.ty.base) {
        (Kind::Literal(text), _) => Some(text.clone()),
        (Kind::Const(n), Base::Bool) => Some((*n != 0).to_string()),
        (Kind::Const(n), _) => Some(n.to_string()),
        (Kind::Missing, _) => Some("-".into()),
        _ => None,
    }
}

/// Bytes that a value's text takes at most.
fn piece_bytes(piece: &Expr) -> u32 {
    match piece.ty.base {
        Base::Int | Base::Unknown | Base::Stack => "-9223372036854775808".len() as u32,
        Base::Bool => "false".len() as u32,
        Base::Name | Base::Text(_) => text_bytes(piece).max(1),
    }
}

pub(super) fn int(n: i64, at: Position) -> Expr {
    Expr { kind: Kind::Const(n), ty: Type::of(Base::Int), at }
}

fn negated(value: Expr, at: Position) -> Expr {
    Expr { kind: Kind::Not(Box::new(value)), ty: Type::of(Base::Bool), at }
}

/// The symbol field that belongs to a name field, of the kernel or of its launch.
fn symbol_beside(expr: &Expr) -> Option<Expr> {
    let source = |at_word| Expr { kind: Kind::Source(Source::Word(at_word)), ..expr.clone() };
    match &expr.kind {
        Kind::Source(Source::Word(word::NAME)) => Some(source(word::SYMBOL)),
        Kind::Source(Source::Word(word::LAUNCH_NAME)) => Some(source(word::LAUNCH_SYMBOL)),
        Kind::Joined(inner) => symbol_beside(inner).map(|it| Expr { kind: Kind::Joined(Box::new(it)), ..expr.clone() }),
        _ => None,
    }
}

/// What a result measures: sums keep the unit, a time divided by a time has none.
fn unit_of(op: Alu, a: Unit, b: Unit) -> Unit {
    match (op, a, b) {
        (Alu::Sub, Unit::Clock, Unit::Clock) | (Alu::Mod, Unit::Clock, Unit::Nanos) => Unit::Nanos,
        (Alu::Add | Alu::Sub, Unit::Clock, Unit::Nanos) | (Alu::Add, Unit::Nanos, Unit::Clock) => Unit::Clock,
        (Alu::Add | Alu::Sub | Alu::And | Alu::Or | Alu::Xor, a, b) => join_unit(a, b),
        (Alu::Mul, Unit::None, unit) | (Alu::Mul, unit, Unit::None) => unit,
        (Alu::Mul, ..) => Unit::None,
        (Alu::Div, unit, Unit::None) => unit,
        (Alu::Div, ..) => Unit::None,
        (_, unit, _) => unit,
    }
}

fn fold(op: Alu, a: i64, b: i64) -> i64 {
    match op {
        Alu::Add => a.wrapping_add(b),
        Alu::Sub => a.wrapping_sub(b),
        Alu::Mul => a.wrapping_mul(b),
        Alu::Div => {
            if b == 0 {
                0
            } else {
                a.wrapping_div(b)
            }
        }
        Alu::Mod => {
            if b == 0 {
                0
            } else {
                a.wrapping_rem(b)
            }
        }
        Alu::And => a & b,
        Alu::Or => a | b,
        Alu::Xor => a ^ b,
        Alu::Lsh => a.wrapping_shl(b as u32),
        _ => a.wrapping_shr(b as u32),
    }
}
