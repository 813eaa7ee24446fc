//! Operators: arithmetic, comparisons, and the units of what they compute.

use super::checker::Checker;
use crate::chain::{Chain, Link, unwrapped};
use crate::tables::join_base;
use crate::typed::{Base, Expr, ExprKind, Type, TypedBlock, ValueSource, int};
use rhai::{Expr as Syntax, FnCallExpr, Position};
use xputrace_bytecode::insn::{Alu, Cond};
use xputrace_model::context::word;
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_model::schema::{Field, FieldType};
use xputrace_script::units::{self, join_unit};

impl Checker<'_> {
    pub(super) fn operator(&mut self, call: &FnCallExpr, at: Position) -> Expr {
        match &call.args[..] {
            [value] => match &*call.name {
                "!" => {
                    let value = self.condition(value);
                    negated(value, at)
                }
                "-" => {
                    let value = self.integer(value);
                    match value.kind {
                        ExprKind::Const(n) => Expr { ty: value.ty, ..int(n.wrapping_neg(), at) },
                        _ => Expr { ty: value.ty.maybe(false), kind: ExprKind::Neg(Box::new(value)), at },
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

    /// Checks `k.launch == ()`: whether the kernel was joined.
    pub(super) fn launch_test(&mut self, a: &Syntax, b: &Syntax, at: Position) -> Option<Expr> {
        let launch = match (unwrapped(a), unwrapped(b)) {
            (launch, Syntax::Unit(_)) | (Syntax::Unit(_), launch) => launch,
            _ => return None,
        };
        let chain = Chain::of(launch);
        let Syntax::Variable(variable, _, _) = chain.head else { return None };
        let [Link::Property("launch", _)] = chain.links[..] else { return None };
        let has_launch = self.handler.event.fields().iter().any(|it| it.kind == FieldType::Launch);
        if !has_launch || !self.is_event(&variable.1) {
            return None;
        }
        let joined = Expr { kind: ExprKind::Source(ValueSource::Word(word::JOINED)), ty: Type::of(Base::Int), at };
        Some(Expr {
            kind: ExprKind::Compare(Cond::Eq, Box::new(joined), Box::new(int(0, at))),
            ty: Type::of(Base::Bool),
            at,
        })
    }

    pub(super) fn binary(&mut self, op: &str, a: Expr, b: Expr, at: Position) -> Expr {
        if op == "+" && (a.ty.base.is_string() || b.ty.base.is_string()) {
            // Unlike in `${…}`, both must be present.
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
            "==" | "!=" => {
                self.warn_of_raw_sign(Cond::Eq, &a, &b);
                if op == "!=" {
                    self.warn_of_unequal_to_missing(&a, &b);
                }
                return self.equality(op == "!=", a, b, at);
            }
            "<" => return self.comparison(Cond::Slt, a, b, at),
            "<=" => return self.comparison(Cond::Sle, a, b, at),
            ">" => return self.comparison(Cond::Sgt, a, b, at),
            ">=" => return self.comparison(Cond::Sge, a, b, at),
            ".." | "..=" => return self.no_value("a range", at, "ranges are for `for i in 0..n`"),
            other => return self.no_value(&format!("the operator `{other}`"), at, "use + - * / % & | ^ << >>"),
        };
        if matches!(op, "&" | "|") && a.ty.base == Base::Bool && b.ty.base == Base::Bool {
            let parts = vec![a, b];
            let kind = if op == "&" { ExprKind::And(parts) } else { ExprKind::Or(parts) };
            return Expr { kind, ty: Type::of(Base::Bool), at };
        }
        self.arithmetic(alu, a, b, at)
    }

    pub(super) fn arithmetic(&mut self, op: Alu, a: Expr, b: Expr, at: Position) -> Expr {
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        let constant = if let ExprKind::Const(n) = &b.kind { Some(*n) } else { None };
        let unit = units::of_result(op, a.ty.unit, b.ty.unit, constant);
        let ty = Type::with(Base::Int, unit);
        if matches!((op, &b.kind), (Alu::Div | Alu::Mod, ExprKind::Const(0))) && b.ty.base == Base::Int {
            let diagnostic = Diagnostic::error("division-by-zero", "this divides by zero", self.label(at));
            return self.poison(diagnostic, at);
        }
        match (&a.kind, &b.kind) {
            (ExprKind::Const(x), ExprKind::Const(y)) => Expr { ty, ..int(fold(op, *x, *y), at) },
            _ => Expr { kind: ExprKind::Binary(op, Box::new(a), Box::new(b)), ty, at },
        }
    }

    pub(super) fn comparison(&mut self, cond: Cond, a: Expr, b: Expr, at: Position) -> Expr {
        if a.ty.base.is_string() && b.ty.base.is_string() {
            let help = "strings have `==`, `.contains(\"x\")` and `.starts_with(\"x\")`";
            return self.no_value("ordering strings", at, help);
        }
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        self.warn_of_raw_sign(cond, &a, &b);
        Expr { kind: ExprKind::Compare(cond, Box::new(a), Box::new(b)), ty: Type::of(Base::Bool), at }
    }

    pub(super) fn equality(&mut self, not: bool, a: Expr, b: Expr, at: Position) -> Expr {
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        let equal = match (&a.kind, &b.kind) {
            (_, ExprKind::Missing) => of(ExprKind::IsMissing(Box::new(a))),
            (ExprKind::Missing, _) => of(ExprKind::IsMissing(Box::new(b))),
            // A missing left side answers at once, but the right side may end the handler.
            _ if (a.ty.optional || compared_twice(&a, &b)) && !(a.is_simple() && b.is_simple()) => {
                let mut stmts = Vec::new();
                let (a, b) = (self.settled(a, &mut stmts), self.settled(b, &mut stmts));
                let value = Some(self.equality(false, a, b, at));
                of(ExprKind::Block(Box::new(TypedBlock { stmts, value })))
            }
            _ if a.ty.base.is_string() || b.ty.base.is_string() => self.same_text(a, b, at),
            _ => {
                let _ = self.unified(a.ty, &b);
                of(ExprKind::Compare(Cond::Eq, Box::new(a), Box::new(b)))
            }
        };
        if not { negated(equal, at) } else { equal }
    }

    /// Checks equality of strings; a kernel's name also equals its mangled form.
    pub(super) fn same_text(&mut self, a: Expr, b: Expr, at: Position) -> Expr {
        let of = |kind| Expr { kind, ty: Type::of(Base::Bool), at };
        if join_base(a.ty.base, b.ty.base).is_none() {
            let _ = self.unified(a.ty, &b);
        }
        let symbol =
            symbol_beside(&a).map(|it| (it, b.clone())).or_else(|| symbol_beside(&b).map(|it| (it, a.clone())));
        self.refuse_impossible(&a, &b, at);
        let same = of(ExprKind::Same(Box::new(a), Box::new(b)));
        match symbol {
            Some((symbol, other)) => {
                of(ExprKind::Or(vec![same, of(ExprKind::Same(Box::new(symbol), Box::new(other)))]))
            }
            None => same,
        }
    }

    /// Reports a comparison of a field, whose texts are a fixed list, with a text that is none of them.
    fn refuse_impossible(&mut self, a: &Expr, b: &Expr, at: Position) {
        let (field, literal) = match (&a.kind, &b.kind) {
            (ExprKind::Literal(literal), _) => (self.field_of(b), literal),
            (_, ExprKind::Literal(literal)) => (self.field_of(a), literal),
            _ => return,
        };
        let Some(Field { name, texts, .. }) = field.filter(|it| !it.texts.is_empty()) else { return };
        let known = || texts.iter().copied().filter(|it| !it.is_empty());
        if literal.is_empty() || known().any(|it| it == literal) {
            return;
        }
        let message = format!("`{name}` is never \"{literal}\"");
        let all = known().map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
        let help = match nearest(literal, known()) {
            Some(near) => format!("did you mean \"{near}\"? It is one of {all}"),
            None => format!("it is one of {all}"),
        };
        let label = self.label(at);
        self.error(Diagnostic::error("impossible-value", message, label).help(help));
    }

    /// Returns the field that a value is read from, if it is one of the event or of its launch.
    fn field_of(&self, value: &Expr) -> Option<&'static Field> {
        let word = match &value.kind {
            ExprKind::Source(ValueSource::Word(word)) => *word,
            ExprKind::Joined(inner) => return self.field_of(inner),
            _ => return None,
        };
        let own = self.handler.event.fields();
        let of_launch = own.iter().filter_map(Field::below).flatten();
        own.iter().chain(of_launch).find(|it| it.kind == FieldType::Name && it.from.word() == Some(word))
    }

    pub(super) fn pick(&mut self, larger: bool, a: Expr, b: Expr, at: Position) -> Expr {
        let (a, b) = (self.expect(a, Base::Int), self.expect(b, Base::Int));
        let ty = Type::with(Base::Int, join_unit(a.ty.unit, b.ty.unit));
        Expr { kind: ExprKind::Pick(larger, Box::new(a), Box::new(b)), ty, at }
    }

    pub(super) fn absolute(&mut self, value: Expr, at: Position) -> Expr {
        let value = self.expect(value, Base::Int);
        Expr { ty: value.ty.maybe(false), kind: ExprKind::Abs(Box::new(value)), at }
    }
}

/// Whether an equality evaluates its sides twice: to test that both are present, or to compare with
/// both a name and its symbol.
pub(super) fn compared_twice(a: &Expr, b: &Expr) -> bool {
    (a.ty.optional && b.ty.optional) || symbol_beside(a).is_some() || symbol_beside(b).is_some()
}

pub(super) fn negated(value: Expr, at: Position) -> Expr {
    Expr { kind: ExprKind::Not(Box::new(value)), ty: Type::of(Base::Bool), at }
}

/// Returns the symbol field next to a name field, of the kernel or of its launch.
pub(super) fn symbol_beside(expr: &Expr) -> Option<Expr> {
    let source = |at_word| Expr { kind: ExprKind::Source(ValueSource::Word(at_word)), ..expr.clone() };
    match &expr.kind {
        // Device code has another word there.
        _ if expr.ty.base != Base::Name => None,
        ExprKind::Source(ValueSource::Word(word::NAME)) => Some(source(word::SYMBOL)),
        ExprKind::Source(ValueSource::Word(word::LAUNCH_NAME)) => Some(source(word::LAUNCH_SYMBOL)),
        ExprKind::Joined(inner) => {
            symbol_beside(inner).map(|it| Expr { kind: ExprKind::Joined(Box::new(it)), ..expr.clone() })
        }
        _ => None,
    }
}

pub(super) fn fold(op: Alu, a: i64, b: i64) -> i64 {
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
        Alu::Lsh if b < 0 => shifted_right(a, b.unsigned_abs()),
        Alu::Lsh => shifted_left(a, b.unsigned_abs()),
        _ if b < 0 => shifted_left(a, b.unsigned_abs()),
        _ => shifted_right(a, b.unsigned_abs()),
    }
}

fn shifted_left(a: i64, bits: u64) -> i64 {
    u32::try_from(bits).ok().and_then(|it| a.checked_shl(it)).unwrap_or(0)
}

fn shifted_right(a: i64, bits: u64) -> i64 {
    a >> bits.min(63)
}
