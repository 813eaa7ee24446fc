//! What a handler reads and does: found in its syntax, before types are known, for compiled and interpreted handlers alike.
//! Placement, the demand, `explain` and the checker take it from here. The functions that a handler calls are included.

use super::chain::{Chain, Link, key_parts, map_name, unwrapped};
use super::reads::Reads;
use rhai::{Expr, FnCallExpr, Position, Stmt};
use xputrace_model::context::word;
use xputrace_model::diagnostic::FileId;
use xputrace_model::schema::{self, Event, Field, FieldType, Unit};
use xputrace_script::handler::{Captured, Handler, ScriptFunction, Staged};
use xputrace_script::mistakes::an_event;
use xputrace_script::{units, words};

/// One use of a map.
pub(super) struct Use<'a> {
    pub(super) map: String,
    pub(super) keys: Option<Vec<&'a Expr>>,
    pub(super) how: How<'a>,
    /// Units of the keys and of the value, as far as the syntax tells.
    pub(super) key_units: Vec<Unit>,
    pub(super) value_unit: Unit,
    /// The file of `at`.
    pub(super) file: FileId,
    pub(super) at: Position,
}

/// What is done with the element or the map.
pub(super) enum How<'a> {
    Read,
    /// `=` or another assignment operator.
    Assign(&'a Expr),
    /// A method, including aggregations.
    Method(&'a FnCallExpr),
    Contains,
    /// The whole map is passed to a function.
    Passed,
}

impl How<'_> {
    /// Whether it may read a plain value.
    pub(super) fn reads(&self) -> bool {
        matches!(self, How::Read | How::Contains)
    }

    /// Whether it stores or removes a plain value.
    pub(super) fn changes(&self) -> bool {
        match self {
            How::Assign(_) => true,
            How::Method(call) => matches!(&*call.name, "remove" | "clear"),
            How::Read | How::Contains | How::Passed => false,
        }
    }
}

/// Everything that a handler's syntax tells.
pub(super) struct Scan<'a> {
    staged: &'a Staged,
    /// The file being scanned.
    file: FileId,
    event: Event,
    /// The fields of the handler's event.
    fields: &'static [Field],
    /// Functions already followed, with the meanings of their parameters.
    followed: Vec<(&'a ScriptFunction, Vec<Meaning<'a>>)>,
    /// Variables of the function being scanned, innermost last.
    names: Vec<(&'a str, Meaning<'a>)>,
    pub(super) uses: Vec<Use<'a>>,
    /// Where it sets the event's `.tag`.
    pub(super) sets_tag: Option<Position>,
    /// Whether it tests `.launch` itself, by `== ()`, `!= ()` or `??`, or reads through it by `?.`.
    pub(super) tests_launch: bool,
    /// Whether it reads something's `.lines`, which may be a stack's.
    pub(super) reads_lines: bool,
    /// What it may read of its event.
    pub(super) reads: Reads,
    /// The parameters of a CUDA call that it may read, each once, in the order of their words, and where.
    pub(super) arguments: Vec<(&'a str, FileId, Position)>,
    /// Where it applies a unit to a field that is a time: `k.duration.ms`.
    pub(super) units_of_times: Vec<(&'a str, FileId, Position)>,
    /// Fields that rows, elements of maps and events do not have. The checker reports those of compiled handlers.
    pub(super) unknown_fields: Vec<UnknownField<'a>>,
    /// Maps that have another name too, by which they may be changed.
    pub(super) aliased: Vec<String>,
    /// What it does with probes and, by a probe's method, with other values.
    pub(super) switches: Vec<Switched<'a>>,
    /// Names of all functions called, except methods and functions of scripts.
    pub(super) calls: Vec<&'a str>,
}

/// A field that what it is read from does not have.
pub(super) struct UnknownField<'a> {
    /// What it is read from: `a row of a map`.
    pub(super) of: String,
    pub(super) name: &'a str,
    /// The fields that there are.
    pub(super) known: Vec<&'static str>,
    pub(super) file: FileId,
    pub(super) at: Position,
}

/// A use of a probe, or of a probe's method.
pub(super) struct Switched<'a> {
    pub(super) how: Switching<'a>,
    pub(super) file: FileId,
    pub(super) at: Position,
}

/// What is done there.
#[derive(Clone, Copy)]
pub(super) enum Switching<'a> {
    /// A method of a probe, by its declaration; perhaps one that it lacks.
    Method(u32, &'a str),
    /// A property, key or operator, which probes lack.
    Value,
    /// A probe's method of something else, named for messages.
    NoProbe(&'a str, &'static str),
}

/// What a variable stands for, if it matters here.
#[derive(Clone, Copy, PartialEq)]
enum Meaning<'a> {
    Event,
    /// The launch of the event.
    Launch,
    /// A row of a map.
    Row,
    Closure(&'a ScriptFunction),
    /// A number that has a unit.
    Number(Unit),
    /// A probe, by its declaration.
    Probe(u32),
    /// A captured value of another type, named for messages.
    Captured(&'static str),
    Other,
}

impl<'a> Meaning<'a> {
    fn of(value: &'a Captured) -> Self {
        match value {
            Captured::Closure(function) => Meaning::Closure(function),
            Captured::Probe(probe) => Meaning::Probe(*probe),
            Captured::Int(_) => Meaning::Captured("an integer"),
            Captured::Bool(_) => Meaning::Captured("a boolean"),
            Captured::Str(_) => Meaning::Captured("text"),
            Captured::Unit => Meaning::Captured("`()`"),
            Captured::List(_) => Meaning::Captured("a list"),
            Captured::Object(_) => Meaning::Captured("a `#{…}`"),
            Captured::Other(_) => Meaning::Other,
        }
    }
}

impl Meaning<'_> {
    /// Names what it is, if that is known and no probe.
    fn noun(self) -> Option<&'static str> {
        match self {
            Meaning::Event => Some("an event"),
            Meaning::Launch => Some("a launch"),
            Meaning::Row => Some("a row of a map"),
            Meaning::Closure(_) => Some("a function"),
            Meaning::Number(_) => Some("an integer"),
            Meaning::Captured(noun) => Some(noun),
            Meaning::Probe(_) | Meaning::Other => None,
        }
    }
}

pub(super) fn scan<'a>(staged: &'a Staged, handler: &'a Handler) -> Scan<'a> {
    let mut scan = Scan {
        staged,
        file: handler.file,
        event: handler.event,
        fields: handler.event.fields(),
        followed: Vec::new(),
        names: Vec::new(),
        uses: Vec::new(),
        sets_tag: None,
        reads_lines: false,
        tests_launch: false,
        reads: Reads::default(),
        arguments: Vec::new(),
        units_of_times: Vec::new(),
        unknown_fields: Vec::new(),
        aliased: Vec::new(),
        switches: Vec::new(),
        calls: Vec::new(),
    };
    scan.names = captured(&handler.captured);
    scan.names.push((&handler.parameter, Meaning::Event));
    scan.stmts(&handler.body);
    scan.uncalled(&handler.captured);
    scan
}

/// Returns the captured values as variables of a body.
fn captured(captured: &[(String, Captured)]) -> Vec<(&str, Meaning<'_>)> {
    captured.iter().map(|(name, value)| (name.as_str(), Meaning::of(value))).collect()
}

impl<'a> Scan<'a> {
    /// Follows the closures that a handler holds: Rhai may call them even if the handler does not.
    fn uncalled(&mut self, captured: &'a [(String, Captured)]) {
        for (_, value) in captured {
            if let Captured::Closure(function) = value
                && !self.followed.iter().any(|it| it.0 == &**function)
            {
                self.follow(function, Vec::new());
            }
        }
    }

    /// Follows a function whose parameters stand for `arguments`.
    fn follow(&mut self, function: &'a ScriptFunction, arguments: Vec<Meaning<'a>>) {
        if self.followed.iter().any(|it| it.0 == function && it.1 == arguments) {
            return;
        }
        let mut names = captured(&function.captured);
        names.extend(function.parameters.iter().map(String::as_str).zip(arguments.iter().copied()));
        self.followed.push((function, arguments));
        let caller_names = std::mem::replace(&mut self.names, names);
        let caller = std::mem::replace(&mut self.file, function.file);
        self.stmts(&function.body);
        self.file = caller;
        self.names = caller_names;
        self.uncalled(&function.captured);
    }

    /// Returns what a variable, or the event's `.launch`, stands for.
    fn meaning(&self, expr: &'a Expr) -> Meaning<'a> {
        let chain = Chain::of(unwrapped(expr));
        let Expr::Variable(variable, ..) = chain.head else { return Meaning::Other };
        match (self.lookup(&variable.1), &chain.links[..]) {
            (known, []) => known,
            (Meaning::Event, [Link::Property(name, _)]) if self.field(name).is_some_and(is_launch) => Meaning::Launch,
            _ => Meaning::Other,
        }
    }

    /// Returns the unit of a number that is computed from fields of the event and constants; none if that is not known.
    fn unit(&self, expr: &'a Expr) -> Unit {
        let expr = unwrapped(expr);
        if let Expr::FnCall(call, _) = expr
            && let (Some(op), [a, b]) = (units::operation(&call.name), &call.args[..])
        {
            return units::of_result(op, self.unit(a), self.unit(b), constant(b));
        }
        let chain = Chain::of(expr);
        let of = |fields, links| match leaf(fields, links) {
            Some((field, [])) => field.unit,
            _ => Unit::None,
        };
        match (self.head(chain.head), &chain.links[..]) {
            (Meaning::Number(unit), []) => unit,
            (Meaning::Event, links) => of(self.fields, links),
            (Meaning::Launch, links) => of(schema::LAUNCH, links),
            (Meaning::Other, [Link::Property(unit, _)]) if constant(expr).is_some() && units::is_unit(unit) => {
                Unit::Nanos
            }
            _ => Unit::None,
        }
    }

    fn lookup(&self, name: &str) -> Meaning<'a> {
        self.names.iter().rev().find(|it| it.0 == name).map_or(Meaning::Other, |it| it.1)
    }

    fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|it| it.name == name)
    }

    /// Notes what a chain on the event or its launch reads. If it does not name a field, it may
    /// read all of them.
    fn event_chain(&mut self, of: Meaning, chain: &Chain<'a>) {
        self.unit_of_time(of, chain);
        if of == Meaning::Launch {
            self.tests_launch |= chain.safe;
            return self.path("a launch".into(), schema::LAUNCH, &chain.links, chain.safe);
        }
        self.path(an_event(self.event.name()), self.fields, &chain.links, chain.safe);
    }

    /// Notes what links on something with these fields read.
    fn path(&mut self, of: String, fields: &'static [Field], links: &[Link<'a>], safe: bool) {
        let [link @ Link::Property(name, _), rest @ ..] = links else { return self.reads.add_all(fields) };
        let Some(field) = fields.iter().find(|it| it.name == *name) else {
            return self.unknown(of, *link, known(fields));
        };
        self.reads.add_field(field);
        self.tests_launch |= is_launch(field) && safe;
        if field.kind == FieldType::Arguments {
            return self.argument(rest.first());
        }
        if let Some(below) = field.below() {
            let of = if is_launch(field) { "a launch".into() } else { format!("`{name}`") };
            self.path(of, below, rest, safe);
        }
    }

    /// Notes a parameter of a CUDA call.
    fn argument(&mut self, link: Option<&Link<'a>>) {
        if let Some(Link::Property(name, at)) = link
            && !self.arguments.iter().any(|it| it.0 == *name)
        {
            self.arguments.push((*name, self.file, *at));
        }
    }

    /// Notes a field that does not exist.
    fn unknown(&mut self, of: String, link: Link<'a>, known: Vec<&'static str>) {
        if let Link::Property(name, at) = link {
            self.unknown_fields.push(UnknownField { of, name, known, file: self.file, at });
        }
    }

    /// Notes a link that is no field of a row or an element.
    fn map_field(&mut self, of: &str, link: Option<&Link<'a>>, known: Vec<&'static str>) {
        if let Some(link @ Link::Property(name, _)) = link
            && !known.contains(name)
        {
            self.unknown(of.to_owned(), *link, known);
        }
    }

    fn unit_of_time(&mut self, of: Meaning, chain: &Chain<'a>) {
        let fields = if of == Meaning::Launch { schema::LAUNCH } else { self.fields };
        let Some((field, [Link::Property(unit, at), ..])) = leaf(fields, &chain.links) else { return };
        if units::is_unit(unit) && matches!(field.unit, Unit::Nanos | Unit::Clock) {
            self.units_of_times.push((*unit, self.file, *at));
        }
    }

    /// Scans one side of a test for `()`: testing `.launch` itself only asks whether it is there.
    fn tested_or_read(&mut self, expr: &'a Expr) {
        if self.meaning(expr) != Meaning::Launch {
            return self.expr(expr);
        }
        self.tests_launch = true;
        self.reads.add(word::JOINED);
    }

    fn found(&mut self, map: String, keys: Option<Vec<&'a Expr>>, how: How<'a>, at: Position) {
        let key_units = keys.iter().flatten().map(|it| self.unit(it)).collect();
        let value_unit = match &how {
            How::Assign(value) => self.unit(value),
            How::Method(call) => call.args.first().map_or(Unit::None, |it| self.unit(it)),
            _ => Unit::None,
        };
        self.uses.push(Use { map, keys, how, key_units, value_unit, file: self.file, at });
    }

    fn stmts(&mut self, stmts: &'a [Stmt]) {
        let outer = self.names.len();
        for stmt in stmts {
            self.stmt(stmt);
        }
        self.names.truncate(outer);
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::Assignment(it) => self.assignment(&it.1.lhs, &it.1.rhs),
            Stmt::If(flow, _) | Stmt::While(flow, _) | Stmt::Do(flow, ..) | Stmt::TryCatch(flow, _) => {
                self.expr(&flow.expr);
                self.stmts(flow.body.statements());
                self.stmts(flow.branch.statements());
            }
            Stmt::For(it, _) => {
                self.expr(&it.2.expr);
                self.names.push((&it.0.name, item_of(&it.2.expr)));
                self.stmts(it.2.body.statements());
                self.names.pop();
            }
            Stmt::Var(it, ..) => self.variable(&it.0.name, &it.1),
            Stmt::FnCall(call, at) => self.call(call, *at),
            Stmt::Block(block) => self.stmts(block.statements()),
            Stmt::Expr(expr) => self.expr(expr),
            Stmt::Return(Some(expr), ..) | Stmt::BreakLoop(Some(expr), ..) => self.expr(expr),
            Stmt::Switch(it, _) => {
                self.expr(&it.0);
                for case in &it.1.expressions {
                    self.expr(&case.lhs);
                    self.expr(&case.rhs);
                }
            }
            _ => {}
        }
    }

    /// Notes a variable that is another name for the event or its launch.
    fn variable(&mut self, name: &'a str, value: &'a Expr) {
        let mut meaning = self.meaning(value);
        if matches!(meaning, Meaning::Other | Meaning::Number(_) | Meaning::Captured(_)) {
            self.expr(value);
            self.alias(value);
            meaning = match self.unit(value) {
                Unit::None => Meaning::Other,
                unit => Meaning::Number(unit),
            };
        }
        self.names.push((name, meaning));
    }

    fn assignment(&mut self, lhs: &'a Expr, rhs: &'a Expr) {
        let chain = Chain::of(lhs);
        match map_name(chain.head) {
            Some(map) => {
                let keys = self.keys(&chain.links);
                self.found(map, keys, How::Assign(rhs), chain.head.position());
            }
            None => {
                if let Some(Link::Property("tag", at)) = chain.links.last() {
                    self.sets_tag = Some(*at);
                }
                // A number that changes may have another unit afterwards.
                if let Expr::Variable(variable, ..) = chain.head {
                    let changed = self.names.iter_mut().rev().find(|it| it.0 == variable.1.as_str());
                    changed
                        .into_iter()
                        .filter(|it| matches!(it.1, Meaning::Number(_)))
                        .for_each(|it| it.1 = Meaning::Other);
                }
            }
        }
        self.expr(rhs);
    }

    fn keys(&mut self, links: &[Link<'a>]) -> Option<Vec<&'a Expr>> {
        let index = links.iter().find_map(|it| match it {
            Link::Index(index, _) => Some(*index),
            _ => None,
        })?;
        let parts = key_parts(index);
        for part in &parts {
            self.expr(part);
        }
        Some(parts)
    }

    fn expr(&mut self, expr: &'a Expr) {
        let expr = unwrapped(expr);
        let chain = Chain::of(expr);
        self.reads_lines |= self.asks_for_lines(&chain);
        if let Some(map) = map_name(chain.head) {
            return self.map(map, &chain);
        }
        let mut links = &chain.links[..];
        self.probe_chain(&chain);
        match (self.head(chain.head), links) {
            (Meaning::Closure(function), [Link::Method(call, _), rest @ ..]) if call.name == "call" => {
                self.follow(function, self.meanings(&call.args));
                call.args.iter().for_each(|it| self.passed(it));
                links = rest;
            }
            (of @ (Meaning::Event | Meaning::Launch), _) => self.event_chain(of, &chain),
            (Meaning::Row, _) => {
                self.map_field("a row of a map", links.first(), words::row_fields().collect());
            }
            (_, []) => self.children(expr),
            _ => self.expr(chain.head),
        }
        for link in links {
            match link {
                Link::Property(..) => {}
                Link::Index(index, _) => self.expr(index),
                Link::Method(call, _) => call.args.iter().for_each(|it| self.expr(it)),
            }
        }
    }

    /// Whether a chain reads the lines of what may be a stack that has none yet.
    fn asks_for_lines(&self, chain: &Chain<'a>) -> bool {
        let (fields, not_of_field) = match self.head(chain.head) {
            // A tracepoint may have a field of this name.
            Meaning::Event => (self.fields, chain.links.get(1..).unwrap_or_default()),
            Meaning::Launch => (schema::LAUNCH, &chain.links[..]),
            _ => (&[][..], &chain.links[..]),
        };
        let links = match leaf(fields, &chain.links) {
            Some((field, _)) if field.from.word() == Some(word::LAUNCH_PYSTACK) => &[],
            Some((_, behind)) => behind,
            None => not_of_field,
        };
        links.iter().any(|it| matches!(it, Link::Property("lines", _)))
    }

    /// Notes what is done with a probe, and where a probe's method is called on something else.
    fn probe_chain(&mut self, chain: &Chain<'a>) {
        let (how, at) = match (self.head(chain.head), &chain.links[..]) {
            (Meaning::Probe(probe), [Link::Method(call, at), ..]) => (Switching::Method(probe, &call.name), *at),
            (Meaning::Probe(_), [Link::Property("name", _), ..]) => return,
            (Meaning::Probe(_), [Link::Property(_, at) | Link::Index(_, at), ..]) => (Switching::Value, *at),
            (of, [.., Link::Method(call, at)]) if words::SWITCHING.contains(&&*call.name) => match of.noun() {
                Some(noun) => (Switching::NoProbe(&call.name, noun), *at),
                None => return,
            },
            _ => return,
        };
        self.switches.push(Switched { how, file: self.file, at });
    }

    fn head(&self, head: &'a Expr) -> Meaning<'a> {
        match head {
            Expr::Variable(variable, ..) => self.lookup(&variable.1),
            _ => Meaning::Other,
        }
    }

    fn map(&mut self, map: String, chain: &Chain<'a>) {
        let keys = self.keys(&chain.links);
        if let [Link::Index(..), rest @ ..] = &chain.links[..] {
            let known = words::element_fields().collect();
            self.map_field("an element of a map", rest.first(), known);
        }
        let method = chain.links.iter().find_map(|it| match it {
            Link::Method(call, _) => Some(*call),
            _ => None,
        });
        if let Some(call) = method {
            for argument in &call.args {
                self.expr(argument);
            }
        }
        if let Some(Link::Method(call, at)) = chain.links.last()
            && words::SWITCHING.contains(&&*call.name)
        {
            let how = Switching::NoProbe(&call.name, "a map");
            self.switches.push(Switched { how, file: self.file, at: *at });
        }
        let how = method.map_or(How::Read, How::Method);
        self.found(map, keys, how, chain.head.position());
    }

    fn children(&mut self, expr: &'a Expr) {
        match expr {
            Expr::InterpolatedString(parts, _) | Expr::Array(parts, _) => {
                for part in parts {
                    self.expr(part);
                }
            }
            Expr::Map(parts, _) => {
                for (_, part) in &parts.0 {
                    self.expr(part);
                }
            }
            Expr::And(parts, _) | Expr::Or(parts, _) => {
                for part in parts.iter() {
                    self.expr(part);
                }
            }
            Expr::Coalesce(parts, _) => {
                for part in parts.iter() {
                    self.tested_or_read(part);
                }
            }
            Expr::Stmt(block) => self.stmts(block.statements()),
            Expr::FnCall(call, at) => self.call(call, *at),
            _ => {}
        }
    }

    fn call(&mut self, call: &'a FnCallExpr, at: Position) {
        let module = call.namespace.path.first().map(|it| it.as_str());
        let function = self.staged.function(self.file, module, &call.name, call.args.len());
        match function {
            Some(function) => self.follow(function, self.meanings(&call.args)),
            None => self.calls.push(&call.name),
        }
        let args: Vec<&'a Expr> = call.args.iter().map(unwrapped).collect();
        if call.op_token.is_some() && args.iter().any(|it| matches!(self.meaning(it), Meaning::Probe(_))) {
            self.switches.push(Switched { how: Switching::Value, file: self.file, at });
        }
        if call.name == "contains"
            && let [map, key] = args[..]
            && let Some(map) = map_name(map)
        {
            let parts = key_parts(key);
            for part in &parts {
                self.expr(part);
            }
            self.found(map, Some(parts), How::Contains, at);
            return;
        }
        if matches!(&*call.name, "==" | "!=") && args.iter().any(|it| matches!(it, Expr::Unit(_))) {
            return args.into_iter().for_each(|it| self.tested_or_read(it));
        }
        for argument in args {
            if call.op_token.is_none() && !words::takes_maps(&call.name) {
                self.alias(argument);
            }
            match map_name(argument) {
                Some(map) if call.op_token.is_none() => {
                    self.found(map, None, How::Passed, argument.position());
                }
                _ if function.is_some() => self.passed(argument),
                _ => self.expr(argument),
            }
        }
    }

    /// Notes a map that a variable or parameter stands for.
    fn alias(&mut self, value: &'a Expr) {
        self.aliased.extend(map_name(unwrapped(value)));
    }

    /// Scans an argument of a function that is followed, which sees what the function does with an
    /// event.
    fn passed(&mut self, argument: &'a Expr) {
        if matches!(self.meaning(argument), Meaning::Other | Meaning::Captured(_)) {
            self.expr(argument);
        }
    }

    fn meanings(&self, arguments: &'a [Expr]) -> Vec<Meaning<'a>> {
        arguments.iter().map(|it| self.meaning(it)).collect()
    }
}

/// Returns what the items of a loop are: rows, if it is over a map.
fn item_of<'a>(list: &'a Expr) -> Meaning<'a> {
    let chain = Chain::of(unwrapped(list));
    let gives_rows = |it: &Link| match it {
        Link::Method(call, _) => matches!(&*call.name, "rows" | "top" | "take"),
        Link::Property(..) | Link::Index(..) => false,
    };
    match map_name(chain.head).is_some() && chain.links.iter().all(gives_rows) {
        true => Meaning::Row,
        false => Meaning::Other,
    }
}

/// Returns the field that links name, as far as they lead to one, and the links behind it.
fn leaf<'l, 'a>(fields: &'static [Field], links: &'l [Link<'a>]) -> Option<(&'static Field, &'l [Link<'a>])> {
    let [Link::Property(name, _), rest @ ..] = links else { return None };
    let field = fields.iter().find(|it| it.name == *name)?;
    match (field.below(), rest) {
        (Some(below), [Link::Property(..), ..]) => leaf(below, rest),
        _ => Some((field, rest)),
    }
}

fn known(fields: &'static [Field]) -> Vec<&'static str> {
    fields.iter().map(|it| it.name).collect()
}

fn is_launch(field: &Field) -> bool {
    field.kind == FieldType::Launch
}

/// Returns the value of a constant, with its unit if it has one.
pub(super) fn constant(expr: &Expr) -> Option<i64> {
    let chain = Chain::of(unwrapped(expr));
    match (chain.head, &chain.links[..]) {
        (Expr::IntegerConstant(n, _), []) => Some(*n),
        (Expr::IntegerConstant(n, _), [Link::Property(unit, _)]) => units::whole(*n, unit),
        _ => None,
    }
}
