//! The fields of an event: which exist at a probe, and where their values come from.

use super::checker::Checker;
use crate::at_launch::{AtLaunch, at_launch};
use crate::typed::missing;
use crate::typed::{Base, Expr, ExprKind, Type, ValueSource};
use rhai::Position;
use xputrace_bytecode::insn::Alu;
use xputrace_bytecode::probe::pt_regs;
use xputrace_model::catalog::{ReturnType, TracepointFieldType};
use xputrace_model::context::device;
use xputrace_model::diagnostic::{Diagnostic, nearest};
use xputrace_model::plan::{Place, ProbePlace};
use xputrace_model::schema::{self, Event, Field, FieldType, From, Unit};
use xputrace_script::mistakes::{an_event, no_field};
use xputrace_script::width::Width;

/// Bytes read from a `__data_loc` text.
const DATA_LOC_BYTES: u32 = 128;

/// Returns the type of what the marker function knows.
fn base_of(source: ValueSource) -> Base {
    match source {
        ValueSource::Comm => Base::Text(16),
        ValueSource::MarkerText(_) => Base::Text(128),
        _ => Base::Int,
    }
}

/// A property path on the event, and how many names its field consumed.
pub(super) struct Resolved {
    pub(super) expr: Expr,
    pub(super) used: usize,
}

impl Checker<'_> {
    /// Checks `e.a.b.c`, using as many names as belong to the field.
    pub(super) fn field(&mut self, path: &[(&str, Position)]) -> Resolved {
        match path {
            [] => unreachable!("callers pass at least one name"),
            [first, rest @ ..] if self.handler.event.is_gpu() => self.gpu_field(*first, rest),
            [("entry", at), rest @ ..] if self.handler.event == Event::Uretprobe => self.entry_field(*at, rest),
            [("args", _), name, ..] if self.handler.event == Event::Tracepoint => {
                Resolved { expr: self.record_field(name.0, name.1), used: 2 }
            }
            [first, ..] => Resolved { expr: self.cpu_field(first.0, first.1), used: 1 },
        }
    }

    fn gpu_field(&mut self, (name, at): (&str, Position), rest: &[(&str, Position)]) -> Resolved {
        let fields = self.handler.event.fields();
        let Some(field) = fields.iter().find(|it| it.name == name) else {
            return Resolved { expr: self.unknown_field(name, at, fields), used: 1 };
        };
        if field.kind == FieldType::Launch {
            return self.launch_field(at, rest);
        }
        if field.kind == FieldType::Arguments {
            return Resolved { expr: self.argument(at, rest.first().copied()), used: 2.min(1 + rest.len()) };
        }
        if self.handler.event == Event::Launch && self.place == Place::Linux {
            return self.marker_field(field, at, rest);
        }
        let (expr, used) = self.word_field(field, at, rest);
        Resolved { expr, used: 1 + used }
    }

    /// Checks `k.launch.FIELD`.
    fn launch_field(&mut self, at: Position, rest: &[(&str, Position)]) -> Resolved {
        let Some((name, name_at)) = rest.first().copied() else {
            let diagnostic = Diagnostic::error("launch-value", "`.launch` cannot be used as a value", self.label(at))
                .help("read one of its fields, such as `.launch.time`, or test it with `.launch == ()`");
            return Resolved { expr: self.poison(diagnostic, at), used: 1 };
        };
        let Some(field) = schema::LAUNCH.iter().find(|it| it.name == name) else {
            return Resolved { expr: self.unknown_launch_field(name, name_at), used: 2 };
        };
        let (expr, used) = self.word_field(field, name_at, &rest[1..]);
        let expr = if self.scan.tests_launch {
            let ty = expr.ty.maybe(true);
            Expr { kind: ExprKind::Joined(Box::new(expr)), ty, at }
        } else {
            self.checked.needs_launch = true;
            expr
        };
        Resolved { expr, used: 2 + used }
    }

    /// Checks a field of the GPU context; the number says how many names of `rest` it consumed.
    fn word_field(&mut self, field: &Field, at: Position, rest: &[(&str, Position)]) -> (Expr, usize) {
        self.note_launch(field, at);
        let of = |base, source| Expr { kind: ExprKind::Source(source), ty: Type::with(base, field.unit), at };
        match (field.kind, field.from) {
            (FieldType::Dim3, From::Word(at_word)) => self.dim3(field, at_word, at, rest),
            (FieldType::Parts(parts), _) => self.part(field, parts, at, rest),
            (FieldType::Comm, From::Word(at_word)) => (of(Base::Text(16), ValueSource::WordText(at_word)), 0),
            (FieldType::Name, From::Optional { flag, value }) => {
                let expr = of(Base::Name, ValueSource::Flagged(flag, value));
                (Expr { ty: expr.ty.maybe(true), ..expr }, 0)
            }
            (FieldType::Bool, From::Word(at_word)) => (of(Base::Bool, ValueSource::Word(at_word)), 0),
            (FieldType::Name, From::Word(at_word)) => (of(Base::Name, ValueSource::Word(at_word)), 0),
            (FieldType::Stack, From::Word(at_word)) => (of(Base::Stack, ValueSource::Word(at_word)), 0),
            (FieldType::Stack, From::Optional { flag, value }) => {
                let expr = of(Base::Stack, ValueSource::Flagged(flag, value));
                (Expr { ty: expr.ty.maybe(true), ..expr }, 0)
            }
            (_, From::Optional { flag, value }) => {
                let expr = of(Base::Int, ValueSource::Flagged(flag, value));
                (Expr { ty: expr.ty.maybe(true), ..expr }, 0)
            }
            (_, From::Word(at_word)) => (of(Base::Int, ValueSource::Word(at_word)), 0),
            (_, From::Probe) => (self.unknown_field(field.name, at, self.handler.event.fields()), 0),
        }
    }

    /// Notes that device code reads a field of its launch: [`Checker::key`] takes back those that are parts of keys.
    fn note_launch(&mut self, field: &Field, at: Position) {
        let is_launch = matches!(field.from, From::Optional { value, .. } if device::launch_word(value).is_some());
        if is_launch && matches!(self.handler.event, Event::Device(_)) {
            self.loose_launch.push(self.label(at));
        }
    }

    /// Reports where device code does more with its launch than use it in keys: it only knows the launch's number.
    pub(super) fn check_launch(&mut self) {
        for label in std::mem::take(&mut self.loose_launch) {
            let message = "what is known of the launch can only be a part of a map's key in device code";
            let mistake = Diagnostic::error("not-in-device-code", message, label)
                .help("the kernel knows its launch by a number, which is looked up when the map is read")
                .help("write `@n[t.launch.ustack].count()`, or use a `kernel` handler");
            self.error(mistake);
        }
    }

    /// Checks `k.FIELD.PART`.
    fn part(
        &mut self,
        field: &Field,
        parts: &'static [Field],
        at: Position,
        rest: &[(&str, Position)],
    ) -> (Expr, usize) {
        let Some((name, name_at)) = rest.first().copied() else {
            let names = parts.iter().map(|it| format!("`.{}.{}`", field.name, it.name)).collect::<Vec<_>>();
            let diagnostic =
                Diagnostic::error("parts-value", format!("`{}` has parts and is no value", field.name), self.label(at))
                    .help(format!("read one of its parts: {}", names.join(", ")));
            return (self.poison(diagnostic, at), 0);
        };
        match parts.iter().find(|it| it.name == name) {
            Some(part) => {
                let (expr, used) = self.word_field(part, name_at, &rest[1..]);
                (expr, 1 + used)
            }
            None => {
                let known: Vec<&str> = parts.iter().map(|it| it.name).collect();
                (self.unknown_of(&format!("`{}`", field.name), name, name_at, &known), 1)
            }
        }
    }

    fn dim3(&mut self, field: &Field, word: usize, at: Position, rest: &[(&str, Position)]) -> (Expr, usize) {
        let int = |kind| Expr { kind, ty: Type::of(Base::Int), at };
        let part = |n| int(ExprKind::Source(ValueSource::Word(word + n)));
        let times = |a, b| int(ExprKind::Binary(Alu::Mul, Box::new(a), Box::new(b)));
        let expr = match rest.first() {
            Some(("x", _)) => part(0),
            Some(("y", _)) => part(1),
            Some(("z", _)) => part(2),
            Some(("size", _)) => times(times(part(0), part(1)), part(2)),
            _ => {
                let diagnostic =
                    Diagnostic::error("dim3-value", format!("`{}` has three parts", field.name), self.label(at)).help(
                        format!("write `.{0}.x`, `.{0}.y`, `.{0}.z`, or `.{0}.size` for their product", field.name),
                    );
                return (self.poison(diagnostic, at), 0);
            }
        };
        (expr, 1)
    }

    /// Checks a field at the collector's marker function, where the call has only begun.
    fn marker_field(&mut self, field: &Field, at: Position, rest: &[(&str, Position)]) -> Resolved {
        let reason = match at_launch(field.name) {
            Some(AtLaunch::Source(source)) => {
                let ty = Type::with(base_of(source), field.unit);
                return Resolved { expr: Expr { kind: ExprKind::Source(source), ty, at }, used: 1 };
            }
            Some(AtLaunch::Word) => {
                let (expr, used) = self.word_field(field, at, rest);
                return Resolved { expr, used: 1 + used };
            }
            Some(AtLaunch::Later(reason)) => reason,
            None => "it is not known there",
        };
        let name = field.name;
        let help = match name {
            "name" => "use `symbol`".to_string(),
            _ => format!("read it in a `kernel` handler: `k.launch.{name}`"),
        };
        let diagnostic = Diagnostic::error(
            "not-at-launch",
            format!("`{name}` cannot be read in a launch handler that runs in Linux: {reason}"),
            self.label(at),
        )
        .help(help)
        .help("a `launch` handler runs in Linux if it sets `.tag`, or reads a map that a CPU probe writes");
        Resolved { expr: self.poison(diagnostic, at), used: 1 }
    }

    fn entry_field(&mut self, at: Position, rest: &[(&str, Position)]) -> Resolved {
        let Some((name, name_at)) = rest.first().copied() else {
            let diagnostic = Diagnostic::error("entry-value", "`.entry` cannot be used as a value", self.label(at))
                .help("read one of its fields: `e.entry.arg0` … `e.entry.arg5`, `e.entry.time`");
            return Resolved { expr: self.poison(diagnostic, at), used: 1 };
        };
        let argument = schema::UPROBE.iter().filter(|it| it.name.starts_with("arg")).position(|it| it.name == name);
        let expr = match (name, argument) {
            ("time", _) => self.entry_time(name_at),
            (_, Some(n)) => {
                let args = self.checked.entry_args.get_or_insert(0);
                *args = (*args).max(n + 1);
                Expr { kind: ExprKind::Source(ValueSource::EntryArg(n)), ty: Type::of(Base::Int), at: name_at }
            }
            _ => {
                let diagnostic = Diagnostic::error(
                    "unknown-field",
                    format!("the entry's `{name}` is not kept until the return"),
                    self.label(name_at),
                )
                .help("only `arg0` … `arg5` and `time` are kept; read anything else from the event itself");
                self.poison(diagnostic, name_at)
            }
        };
        Resolved { expr, used: 2 }
    }

    fn entry_time(&mut self, at: Position) -> Expr {
        self.checked.entry_args.get_or_insert(0);
        Expr { kind: ExprKind::Source(ValueSource::EntryTime), ty: Type::with(Base::Int, Unit::Clock), at }
    }

    fn cpu_field(&mut self, name: &str, at: Position) -> Expr {
        if self.handler.event == Event::Tracepoint && !schema::CPU.iter().any(|it| it.name == name) {
            return self.record_field(name, at);
        }
        self.warn_of_the_running_thread(name, at);
        let fields = self.handler.event.fields();
        let Some(field) = fields.iter().find(|it| it.name == name) else {
            return self.unknown_field(name, at, fields);
        };
        let of = |base, source| Expr { kind: ExprKind::Source(source), ty: Type::with(base, field.unit), at };
        self.checked.time_reads += usize::from(matches!(name, "time" | "duration"));
        match name {
            "time" => of(Base::Int, ValueSource::Time),
            "pid" => of(Base::Int, ValueSource::Pid),
            "tid" => of(Base::Int, ValueSource::Tid),
            "comm" => of(Base::Text(16), ValueSource::Comm),
            "cpu" => of(Base::Int, ValueSource::Cpu),
            "uid" => of(Base::Int, ValueSource::Uid),
            "gid" => of(Base::Int, ValueSource::Gid),
            "cgroup" => of(Base::Int, ValueSource::Cgroup),
            "ustack" => of(Base::Stack, ValueSource::UserStack),
            "kstack" => of(Base::Stack, ValueSource::LinuxStack),
            "probe" => self.literal(&self.handler.name.clone(), at),
            "func" => self.function_name(at),
            "retval" => self.return_value(of(Base::Int, ValueSource::Register(pt_regs::RETURN_VALUE)), at),
            "duration" => {
                let (now, then) = (of(Base::Int, ValueSource::Time), self.entry_time(at));
                let ty = now.ty;
                Expr { kind: ExprKind::Binary(Alu::Sub, Box::new(now), Box::new(then)), ty, at }
            }
            _ => {
                let n = name.strip_prefix("arg").and_then(|it| it.parse::<usize>().ok()).unwrap_or(0);
                match self.handler.event {
                    Event::Usdt => self.usdt_argument(n, at),
                    _ => of(Base::Int, ValueSource::Register(pt_regs::ARGUMENTS[n.min(5)])),
                }
            }
        }
    }

    /// Returns a return value in its width, if that is known: the rest of the register is undefined.
    fn return_value(&mut self, register: Expr, at: Position) -> Expr {
        let width = match self.return_type() {
            Some(ReturnType::Integer { bytes, signed }) => Width::of_bytes(bytes, signed),
            Some(ReturnType::Other) => {
                self.warn_of_no_integer(at);
                None
            }
            None => None,
        };
        match width {
            Some(width) => self.in_width(register, width, at),
            None => register,
        }
    }

    /// Returns what the probed function returns, if the machine knows.
    pub(super) fn return_type(&self) -> Option<ReturnType> {
        match &self.handler.target {
            ProbePlace::Function { object, function } => self.catalog.return_type(object, function),
            _ => None,
        }
    }

    /// Checks `e.func`: a constant if the probe names one function, else passed in the attach
    /// cookie.
    fn function_name(&mut self, at: Position) -> Expr {
        match &self.handler.target {
            ProbePlace::Function { function, .. } if function.contains(['*', '?', '[', '{']) => {
                Expr { kind: ExprKind::Source(ValueSource::Cookie), ty: Type::of(Base::Name), at }
            }
            ProbePlace::Function { function, .. } => self.literal(&function.clone(), at),
            ProbePlace::Usdt { pattern, .. } => match pattern.only() {
                Some(name) => self.literal(&name, at),
                None => Expr { kind: ExprKind::Source(ValueSource::Cookie), ty: Type::of(Base::Name), at },
            },
            ProbePlace::Tracepoint { name, .. } => self.literal(&name.clone(), at),
            _ => {
                let diagnostic = Diagnostic::error("no-function", "this probe is not at a function", self.label(at))
                    .help("`.ustack` and `.kstack` show where the sample was taken");
                self.poison(diagnostic, at)
            }
        }
    }

    /// Checks `e.argN` of a USDT probe: a place may lack it.
    fn usdt_argument(&mut self, n: usize, at: Position) -> Expr {
        if let ProbePlace::Usdt { object, pattern } = &self.handler.target
            && let Err(why) = self.catalog.usdt_argument(object, pattern, n)
        {
            let help = format!("`xputrace list -v 'usdt:{object}:{}'` shows the arguments", pattern.text());
            let diagnostic = Diagnostic::error("usdt-argument", why, self.label(at)).help(help);
            return self.poison(diagnostic, at);
        }
        let read = &mut self.checked.usdt_arguments;
        if !read.contains(&n) {
            read.push(n);
        }
        Expr { kind: ExprKind::Source(ValueSource::UsdtArgument(n)), ty: Type::of(Base::Int).maybe(true), at }
    }

    fn record_field(&mut self, name: &str, at: Position) -> Expr {
        let ProbePlace::Tracepoint { category, name: tracepoint } = &self.handler.target else {
            return self.unknown_field(name, at, schema::CPU);
        };
        let (category, tracepoint) = (category.clone(), tracepoint.clone());
        // The declaration already reports that it does not exist.
        let Ok(format) = self.catalog.tracepoint(&category, &tracepoint) else { return missing(at) };
        let Some(field) = format.fields.iter().find(|it| it.name == name) else {
            let known: Vec<&str> =
                format.fields.iter().map(|it| it.name.as_str()).chain(schema::CPU.iter().map(|it| it.name)).collect();
            return self.unknown_name(name, at, &known);
        };
        let offset = field.offset;
        let of = |base, source| Expr { kind: ExprKind::Source(source), ty: Type::of(base), at };
        match field.kind {
            TracepointFieldType::Int { size: size @ (1 | 2 | 4 | 8), signed } => {
                of(Base::Int, ValueSource::Record { offset, size, signed })
            }
            TracepointFieldType::Chars(len) => {
                of(Base::Text(len.min(128)), ValueSource::RecordChars { offset, len: len.min(128) })
            }
            TracepointFieldType::DataLoc => of(Base::Text(DATA_LOC_BYTES), ValueSource::RecordLoc { offset }),
            TracepointFieldType::Int { .. } | TracepointFieldType::Other => {
                let diagnostic = Diagnostic::error(
                    "unreadable-field",
                    format!("`{name}` of `{category}:{tracepoint}` has a type that cannot be read"),
                    self.label(at),
                )
                .help("readable are integers of 1, 2, 4 and 8 bytes, `char[n]` and `__data_loc char[]`");
                self.poison(diagnostic, at)
            }
        }
    }

    /// Says where to find a field that this event lacks.
    fn field_elsewhere(&self, name: &str) -> Option<String> {
        let has = |fields: &[Field]| fields.iter().any(|it| it.name == name);
        match self.handler.event {
            Event::Activity(_) if has(schema::LAUNCH) => Some(format!("the launch has it: `k.launch.{name}`")),
            Event::Device(_) => self.elsewhere_than_on_gpu(name),
            Event::Uprobe if has(schema::URETPROBE) => {
                Some(format!("it is known at the return: `uretprobe(…, |e| … e.{name})`"))
            }
            Event::Uretprobe if has(schema::UPROBE) => Some(format!("the entry has it: `e.entry.{name}`")),
            event if !event.is_gpu() && name == "pystack" => {
                Some("CUDA's calls have it: `k.launch.pystack`; here, `python3.12 -X perf` names Python's frames in `ustack`".into())
            }
            event if !event.is_gpu() && has(Event::KERNEL.fields()) => Some("`kernel` events have it".into()),
            _ => None,
        }
    }

    /// Says where to find a field that device events lack, unless one of theirs may be meant.
    fn elsewhere_than_on_gpu(&self, name: &str) -> Option<String> {
        let own = self.handler.event.fields().iter().map(|it| it.name);
        let is_argument = name.strip_prefix("arg").is_some_and(|it| it.parse::<u32>().is_ok());
        if is_argument {
            return Some(format!("a kernel's first {} parameters can be read", device::MOST_ARGUMENTS));
        }
        let kernels_have_it = || Event::KERNEL.fields().iter().any(|it| it.name == name);
        (nearest(name, own).is_none() && kernels_have_it()).then(|| "`kernel` events have it".into())
    }

    fn unknown_field(&mut self, name: &str, at: Position, fields: &[Field]) -> Expr {
        let known: Vec<&str> = fields.iter().map(|it| it.name).collect();
        self.unknown_name(name, at, &known)
    }

    /// Reports an unknown `k.launch.NAME`, whatever the handler's own event has.
    fn unknown_launch_field(&mut self, name: &str, at: Position) -> Expr {
        let known: Vec<&str> = schema::LAUNCH.iter().map(|it| it.name).collect();
        self.unknown_of("a launch", name, at, &known)
    }

    fn unknown_name(&mut self, name: &str, at: Position, known: &[&str]) -> Expr {
        if let Some(elsewhere) = self.field_elsewhere(name) {
            let message = format!("{} has no field `{name}`", self.event_noun());
            let diagnostic = Diagnostic::error("unknown-field", message, self.label(at));
            return self.poison(diagnostic.help(elsewhere), at);
        }
        let event = self.event_noun();
        self.unknown_of(&event, name, at, known)
    }

    fn event_noun(&self) -> String {
        match &self.handler.target {
            ProbePlace::Tracepoint { category, name } => format!("the tracepoint `{category}:{name}`"),
            _ => an_event(self.handler.event.name()),
        }
    }

    /// Reports that `noun` has no such field, and suggests one of `known`.
    fn unknown_of(&mut self, noun: &str, name: &str, at: Position, known: &[&str]) -> Expr {
        let diagnostic = no_field(noun, name, known, self.label(at));
        self.poison(diagnostic, at)
    }
}
