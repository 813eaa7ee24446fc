//! Maps: their elements, keys, plain values and aggregations.

use super::checker::Checker;
use crate::chain::{Chain, Link, key_parts, map_name, unwrapped};
use crate::tables::{LaunchWords, MAX_KEY_PARTS, Purpose, Stored};
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, MapId, Stmt, StmtKind, Type, TypedBlock, Where};
use rhai::{Expr as Syntax, FnCallExpr, Position};
use xputrace_bytecode::insn::Alu;
use xputrace_model::diagnostic::{Diagnostic, Label, nearest};
use xputrace_model::plan::{MapAction, Place};
use xputrace_model::table::TableKind;
use xputrace_script::words::aggregation_form;
use xputrace_script::{mistakes, words};

/// Maximum number of buckets in a linear histogram.
const MAX_LINEAR_BUCKETS: i128 = 10_000;

/// A map's element as the handler writes it.
pub(super) struct Element<'a> {
    pub(super) map: MapId,
    pub(super) keys: Vec<Expr>,
    pub(super) rest: Vec<Link<'a>>,
    pub(super) label: Label,
}

impl Checker<'_> {
    pub(super) fn map_assignment(
        &mut self,
        name: &str,
        chain: &Chain,
        op: Option<&str>,
        rhs: &Syntax,
        at: Position,
    ) -> Option<Stmt> {
        let element = self.element(name, chain)?;
        let (map, keys, label) = (element.map, element.keys, element.label);
        if !element.rest.is_empty() {
            self.unsupported("assigning to part of an element", at, "use one map for each value");
            return None;
        }
        if let Some(diagnostic) = self.aggregation_assigned(name, chain, rhs) {
            self.shapes.list[map].written = true;
            self.error(diagnostic);
            return None;
        }
        let value = self.expr(rhs);
        self.shapes.use_as(map, Purpose::Plain, &label, self.diagnostics);
        let atomic = op.and_then(|op| match op {
            "+" => Some(Alu::Add),
            "-" => Some(Alu::Sub),
            "&" => Some(Alu::And),
            "|" => Some(Alu::Or),
            "^" => Some(Alu::Xor),
            _ => None,
        });
        if value.ty.base.is_string() && op.is_some() {
            let whole = format!("store a whole string: `{name}[key] = `…${{x}}…``");
            self.unsupported("growing a string in a map", at, &whole);
            return None;
        }
        if atomic == Some(Alu::Add) {
            self.warn_of_raw_sum(&value);
        }
        let literal = literal_of(&value);
        let stored = Stored::new(value.ty.maybe(false), literal);
        self.shapes.use_value(map, stored, &label, self.diagnostics);
        self.shapes.list[map].more_than_added |= !matches!(atomic, Some(Alu::Add | Alu::Sub));
        let kind = match (op, atomic) {
            (None, _) => StmtKind::Store(map, keys, value),
            (Some(_), Some(alu)) => StmtKind::Change(map, keys, alu, value),
            (Some(op), None) => {
                let ty = self.shapes.value(map);
                let current = Expr { kind: ExprKind::Read(map, keys.clone()), ty, at };
                let value = self.binary(op, current, value, at);
                StmtKind::Store(map, keys, value)
            }
        };
        Some(Stmt { kind, at: chain.head.position() })
    }

    /// Reports bpftrace's `@calls = count()`.
    pub(super) fn aggregation_assigned(&self, name: &str, chain: &Chain, rhs: &Syntax) -> Option<Diagnostic> {
        let Syntax::FnCall(call, at) = unwrapped(rhs) else { return None };
        let kind = TableKind::of_method(&call.name)?;
        let method = kind.method();
        if matches!(kind, TableKind::Min | TableKind::Max) && call.args.len() == 2 {
            return None;
        }
        let element = if chain.links.is_empty() { name.to_owned() } else { format!("{name}[…]") };
        let given = if call.args.is_empty() { "" } else { "…" };
        let message = format!("`{method}` is a method of the map");
        Some(
            Diagnostic::error("aggregation", message, self.label(*at))
                .help(format!("write `{element}.{method}({given})`")),
        )
    }

    pub(super) fn map_method(&mut self, name: &str, chain: &Chain, call: &FnCallExpr, at: Position) -> Option<Stmt> {
        let method = &*call.name;
        let without_call =
            Chain { head: chain.head, links: chain.links[..chain.links.len() - 1].to_vec(), safe: chain.safe };
        match method {
            "take" if call.args.is_empty() => {
                let value = self.map_value(name, chain);
                return Some(Stmt { kind: StmtKind::Eval(value), at });
            }
            "clear" if chain.links.len() == 1 && call.args.is_empty() => {
                if self.place == Place::Gpu {
                    self.not_yet_on_gpu("clearing a map", at, "clear it in an `interval` handler");
                    return None;
                }
                let map = self.whole_map(name, chain.head.position());
                self.shapes.list[map].cleared_live = true;
                return Some(Stmt { kind: StmtKind::Map(map, MapAction::Clear), at });
            }
            "clear" | "top" | "len" | "keys" | "values" => {
                let label = self.label(at);
                self.error(
                    Diagnostic::error(
                        "interpreter-only",
                        format!("`{name}.{method}` is not available in compiled handlers"),
                        label,
                    )
                    .help("use it in an `interval`, `begin` or `end` handler")
                    .help("a compiled handler can remove one element: `@m[key].remove()`"),
                );
                return None;
            }
            "remove" => {
                let element = self.element(name, &without_call)?;
                self.shapes.use_as(element.map, Purpose::Plain, &element.label, self.diagnostics);
                self.shapes.list[element.map].more_than_added = true;
                return Some(Stmt { kind: StmtKind::Remove(element.map, element.keys), at });
            }
            _ => {}
        }
        if words::SWITCHING.contains(&method) {
            let label = self.label(at);
            self.error(mistakes::no_probe(method, "a map", label));
            return None;
        }
        if TableKind::of_method(method).is_none() {
            let label = self.label(at);
            let mut diagnostic = Diagnostic::error("unknown-method", format!("a map has no method `{method}`"), label);
            if let Some(near) = nearest(method, TableKind::methods().chain(["remove", "take"])) {
                diagnostic = diagnostic.help(format!("did you mean `{near}`?"));
            }
            self.error(
                diagnostic.help(format!("it has: {} remove take", TableKind::methods().collect::<Vec<_>>().join(" "))),
            );
            return None;
        }
        let element = self.element(name, &without_call)?;
        self.shapes.list[element.map].written = true;
        let (kind, value) = self.aggregation(call, at)?;
        self.shapes.use_as(element.map, Purpose::Aggregate(kind), &element.label, self.diagnostics);
        if let Some(value) = &value {
            let stored = Stored::new(value.ty.maybe(false), None);
            self.shapes.use_value(element.map, stored, &element.label, self.diagnostics);
        }
        // Updates that the map refuses are counted where it is named.
        Some(Stmt { kind: StmtKind::Aggregate(element.map, element.keys, value), at: chain.head.position() })
    }

    /// Returns an aggregation's kind and its value.
    pub(super) fn aggregation(&mut self, call: &FnCallExpr, at: Position) -> Option<(TableKind, Option<Expr>)> {
        let kind = match (&*call.name, call.args.len()) {
            ("count", 0) => return Some((TableKind::Count, None)),
            (name, 1) if TableKind::of_one_value(name).is_some() => TableKind::of_one_value(name)?,
            ("hist", 2) => TableKind::Hist { bits: self.sub_bits(&call.args[1])? },
            ("lhist", 4) => self.linear(call, at)?,
            (name, _) => {
                let known = TableKind::of_method(name)?;
                let takes = match known {
                    TableKind::Count => "no value",
                    TableKind::Lhist { .. } => "four values",
                    _ => "one value",
                };
                let form = aggregation_form(known);
                let diagnostic = Diagnostic::error("arguments", format!("`{name}` takes {takes}"), self.label(at));
                self.error(diagnostic.help(format!("write `{form}`")));
                return None;
            }
        };
        let value = self.integer(&call.args[0]);
        self.warn_of_raw_sum(&value);
        Some((kind, Some(value)))
    }

    pub(super) fn sub_bits(&mut self, bits: &Syntax) -> Option<u32> {
        let n = self.constant(bits)?;
        if (0..=5).contains(&n) {
            return Some(n as u32);
        }
        let label = self.label(bits.position());
        self.error(Diagnostic::error("arguments", "sub-bucket bits are 0 to 5", label));
        None
    }

    pub(super) fn linear(&mut self, call: &FnCallExpr, at: Position) -> Option<TableKind> {
        let (min, max, step) =
            (self.constant(&call.args[1])?, self.constant(&call.args[2])?, self.constant(&call.args[3])?);
        let buckets = (i128::from(max) - i128::from(min)) / i128::from(step.max(1));
        if step < 1 || max <= min || buckets > MAX_LINEAR_BUCKETS {
            let label = self.label(at);
            self.error(Diagnostic::error("arguments", "these bounds do not define a linear histogram", label).help(
                format!(
                    "lhist(x, min, max, step) needs min < max, step >= 1, and at most {MAX_LINEAR_BUCKETS} buckets"
                ),
            ));
            return None;
        }
        Some(TableKind::Lhist { min, max, step })
    }

    /// Returns the map and key of `@m[…]`, and what follows the key.
    pub(super) fn element<'c>(&mut self, name: &str, chain: &Chain<'c>) -> Option<Element<'c>> {
        let label = self.label(chain.head.position());
        let map = self.shapes.id(name, &label);
        self.shapes.list[map].used_in(self.place);
        let (keys, rest) = match chain.links.split_first() {
            Some((Link::Index(index, _), rest)) => match self.key(index, &label) {
                Some(keys) => (keys, rest),
                None => {
                    // One error is enough: don't also report the map as unassigned.
                    self.shapes.list[map].written = true;
                    return None;
                }
            },
            _ => (Vec::new(), &chain.links[..]),
        };
        if let Some(Link::Index(_, at)) = rest.first() {
            self.unsupported("indexing an element again", *at, &format!("write `{name}[a, b]` for a key of two parts"));
            return None;
        }
        let rest = match rest.split_first() {
            Some((Link::Property("value", _), rest)) => rest.to_vec(),
            _ => rest.to_vec(),
        };
        self.use_key(map, &keys, &label);
        Some(Element { map, keys, rest, label })
    }

    pub(super) fn use_key(&mut self, map: MapId, keys: &[Expr], label: &Label) {
        let stored = keys.iter().map(|it| Stored::new(it.ty, literal_of(it))).collect();
        self.shapes.use_key(map, stored, label, self.diagnostics);
        if self.place == Place::Gpu {
            self.shapes.use_launch(map, keys.iter().map(LaunchWords::of).collect(), label, self.diagnostics);
        }
    }

    pub(super) fn key(&mut self, index: &Syntax, label: &Label) -> Option<Vec<Expr>> {
        let parts = key_parts(index);
        if parts.len() > MAX_KEY_PARTS {
            self.error(Diagnostic::error(
                "too-many-keys",
                format!("a key has at most {MAX_KEY_PARTS} parts, but this one has {}", parts.len()),
                label.clone(),
            ));
            return None;
        }
        Some(parts.into_iter().map(|it| self.key_part(it)).collect())
    }

    fn key_part(&mut self, part: &Syntax) -> Expr {
        let expr = self.expr(part);
        if self.place == Place::Gpu && LaunchWords::of(&expr).is_some() {
            self.loose_launch.pop();
        }
        expr
    }

    pub(super) fn map_value(&mut self, name: &str, chain: &Chain) -> Expr {
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
        self.shapes.list[element.map].more_than_added = true;
        let ty = self.shapes.value(element.map);
        match element.rest.split_first() {
            Some((Link::Method(call, _), rest)) if call.name == "take" && call.args.is_empty() => {
                let taken = self.taken(element.map, element.keys, at);
                self.links(taken, rest)
            }
            _ => self.links(Expr { kind: ExprKind::Read(element.map, element.keys), ty, at }, &element.rest),
        }
    }

    /// Reads an element and removes it. The key is computed once, first.
    fn taken(&mut self, map: MapId, keys: Vec<Expr>, at: Position) -> Expr {
        let mut stmts = Vec::new();
        let keys: Vec<Expr> = keys.into_iter().map(|it| self.settled(it, &mut stmts)).collect();
        let ty = self.shapes.value(map).maybe(true);
        let value = self.new_local(ty);
        // Of two handlers that take a number, one gets it. Other values have none that stands for none.
        let kind = if ty.base == Base::Int { ExprKind::Exchange } else { ExprKind::Read };
        stmts.push(Stmt { kind: StmtKind::Set(value, Expr { kind: kind(map, keys.clone()), ty, at }), at });
        stmts.push(Stmt { kind: StmtKind::Remove(map, keys), at });
        let block = TypedBlock { stmts, value: Some(Expr { kind: ExprKind::Local(value), ty, at }) };
        Expr { kind: ExprKind::Block(Box::new(block)), ty, at }
    }

    pub(super) fn contains(&mut self, map: &Syntax, key: &Syntax, at: Position) -> Expr {
        let Some(name) = map_name(map) else {
            if let Some(values) = self.listed_values(map) {
                return self.is_among(key, values, at);
            }
            let whole = self.expr(map);
            return match whole.ty.base {
                Base::Name | Base::Text(_) => self.matching(Where::Anywhere, whole, key, at),
                _ => self.no_value("`in` something that is not a map", at, "write `key in @map`, `\"part\" in k.name`"),
            };
        };
        let label = self.label(map.position());
        let id = self.shapes.id(&name, &label);
        self.shapes.list[id].used_in(self.place);
        let Some(keys) = self.key(key, &label) else { return missing(at) };
        self.use_key(id, &keys, &label);
        self.shapes.list[id].more_than_added = true;
        if let Some(Purpose::Aggregate(_)) = self.shapes.purpose(id) {
            let diagnostic = Diagnostic::error(
                "aggregation-read",
                format!("`{name}` is an aggregation, whose keys cannot be tested in a compiled handler"),
                label,
            )
            .help("keep a plain value as well: `@seen[key] = true`");
            return self.poison(diagnostic, at);
        }
        Expr { kind: ExprKind::Contains(id, keys), ty: Type::of(Base::Bool), at }
    }
}

pub(super) fn literal_of(expr: &Expr) -> Option<&str> {
    match &expr.kind {
        ExprKind::Literal(text) => Some(text),
        _ => None,
    }
}
