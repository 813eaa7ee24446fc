//! What each map of the script holds, inferred from all handlers together.
//!
//! Every use of a map tells something about its keys, kind and values. Uses are merged in turn; one
//! that contradicts an earlier use is reported with both places.

use super::typed::{Base, Expr, ExprKind, MapId, Type, ValueSource};
use rustc_hash::FxHashMap;
use xputrace_model::context::device;
use xputrace_model::diagnostic::{Diagnostic, Label};
use xputrace_model::plan::Place;
use xputrace_model::schema::Unit;
use xputrace_model::table::{DEFAULT_CAPACITY, KeyPart, Storage, TableDef, TableKind};
use xputrace_script::units::join_unit;

/// Maximum number of parts in a key.
pub(super) const MAX_KEY_PARTS: usize = 4;
/// Size of a name stored as text, unless a longer text shares its place.
pub(super) const NAME_TEXT_BYTES: u32 = 128;

/// All maps of the script.
#[derive(Clone, Debug, Default)]
pub(super) struct Shapes {
    pub(super) list: Vec<MapShape>,
    by_name: FxHashMap<String, MapId>,
}

/// What is known about one map.
#[derive(Clone, Debug)]
pub(super) struct MapShape {
    pub(super) name: String,
    keys: Option<(Vec<Stored>, Label)>,
    kind: Option<(Purpose, Label)>,
    value: Stored,
    value_at: Option<Label>,
    pub(super) capacity: u32,
    pub(super) evict: bool,
    /// Used by a compiled handler in Linux, in the tracer, and in device code.
    pub(super) in_linux: bool,
    pub(super) in_tracer: bool,
    pub(super) in_gpu: bool,
    /// Used by an interpreted handler.
    pub(super) in_interpreter: bool,
    /// Read or cleared by an interpreted handler during the run.
    pub(super) read_live: bool,
    /// Cleared as a whole or in part by an interpreted handler during the run.
    pub(super) cleared_live: bool,
    /// Whether compiled handlers do more with it than add and subtract.
    pub(super) more_than_added: bool,
    /// The place where it first appears.
    pub(super) seen_at: Label,
    /// Whether any handler may store into it.
    pub(super) written: bool,
    /// The parts of its key that device code fills with the number of its launch, and where it first does so.
    launch: Option<(Vec<Option<LaunchWords>>, Label)>,
}

/// The words of a device event that are a field of its launch: whether it is there, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaunchWords {
    pub(super) flag: usize,
    pub(super) value: usize,
}

impl LaunchWords {
    /// Returns those that an expression of device code consists of.
    pub(super) fn of(expr: &Expr) -> Option<LaunchWords> {
        match expr.kind {
            ExprKind::Source(ValueSource::Flagged(flag, value)) if device::launch_word(value).is_some() => {
                Some(LaunchWords { flag, value })
            }
            _ => None,
        }
    }
}

/// What a map is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Plain,
    Aggregate(TableKind),
}

/// A key part or value, merged over its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) ty: Type,
    /// Bytes that its names need if the others are text.
    name_bytes: u32,
}

impl Stored {
    pub(super) fn new(ty: Type, literal: Option<&str>) -> Self {
        let name_bytes = match (ty.base, literal) {
            (_, Some(text)) => text.len() as u32,
            (Base::Name, None) => NAME_TEXT_BYTES,
            _ => 0,
        };
        Stored { ty, name_bytes }
    }

    fn unknown() -> Self {
        Stored { ty: Type::of(Base::Unknown), name_bytes: 0 }
    }

    fn join(self, other: Stored) -> Option<Stored> {
        Some(Stored {
            ty: Type {
                base: join_base(self.ty.base, other.ty.base)?,
                optional: self.ty.optional || other.ty.optional,
                unit: join_unit(self.ty.unit, other.ty.unit),
            },
            name_bytes: self.name_bytes.max(other.name_bytes),
        })
    }

    fn resolved(self) -> Type {
        match self.ty.base {
            Base::Text(n) => Type { base: Base::Text(n.max(self.name_bytes)), ..self.ty },
            _ => self.ty,
        }
    }
}

/// Returns the type that holds values of both, if there is one.
pub(super) fn join_base(a: Base, b: Base) -> Option<Base> {
    match (a, b) {
        (Base::Unknown, other) | (other, Base::Unknown) => Some(other),
        (Base::Text(n), Base::Text(m)) => Some(Base::Text(n.max(m))),
        (Base::Text(n), Base::Name) | (Base::Name, Base::Text(n)) => Some(Base::Text(n)),
        (a, b) if a == b => Some(a),
        _ => None,
    }
}

impl Shapes {
    pub(super) fn id(&mut self, name: &str, seen_at: &Label) -> MapId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = self.list.len();
        self.by_name.insert(name.into(), id);
        self.list.push(MapShape {
            name: name.into(),
            keys: None,
            kind: None,
            value: Stored::unknown(),
            value_at: None,
            capacity: DEFAULT_CAPACITY,
            evict: false,
            in_linux: false,
            in_tracer: false,
            in_gpu: false,
            read_live: false,
            cleared_live: false,
            more_than_added: false,
            seen_at: seen_at.clone(),
            in_interpreter: false,
            written: false,
            launch: None,
        });
        id
    }

    pub(super) fn get(&self, name: &str) -> Option<MapId> {
        self.by_name.get(name).copied()
    }

    /// Returns everything that inference can still change, to decide whether another round is
    /// needed.
    pub(super) fn fingerprint(&self) -> Vec<(Vec<Type>, Type, Option<Purpose>)> {
        (0..self.list.len())
            .map(|id| {
                (
                    self.keys(id).iter().map(|it| it.resolved()).collect(),
                    self.list[id].value.resolved(),
                    self.purpose(id),
                )
            })
            .collect()
    }

    pub(super) fn purpose(&self, id: MapId) -> Option<Purpose> {
        self.list[id].kind.as_ref().map(|it| it.0)
    }

    fn keys(&self, id: MapId) -> &[Stored] {
        self.list[id].keys.as_ref().map_or(&[], |it| &it.0)
    }

    /// Returns the parts of a map's key as stored.
    pub(super) fn key_parts(&self, id: MapId) -> Vec<KeyPart> {
        self.keys(id)
            .iter()
            .map(|it| it.resolved())
            .map(|ty| KeyPart { kind: ty.base.scalar(), optional: ty.optional, unit: ty.unit })
            .collect()
    }

    /// Returns the type of an element that is read; it may always be missing.
    pub(super) fn value(&self, id: MapId) -> Type {
        self.list[id].value.resolved().maybe(true)
    }

    /// Whether the map is known to have keys.
    pub(super) fn has_keys(&self, id: MapId) -> bool {
        self.list[id].keys.as_ref().is_some_and(|(key, _)| !key.is_empty())
    }

    /// Merges a use's key into the map's.
    pub(super) fn use_key(&mut self, id: MapId, key: Vec<Stored>, at: &Label, diagnostics: &mut Vec<Diagnostic>) {
        let shape = &mut self.list[id];
        let name = shape.name.clone();
        let Some((known, first)) = &mut shape.keys else {
            shape.keys = Some((key, at.clone()));
            return;
        };
        if known.len() != key.len() {
            diagnostics.push(
                Diagnostic::error(
                    "mixed-keys",
                    format!("`{name}` has {} here but {} elsewhere", parts(key.len()), parts(known.len())),
                    at.clone(),
                )
                .also(first.clone(), "first used here")
                .help("all keys of a map have the same number of parts; use two maps"),
            );
            return;
        }
        for (index, (known, new)) in known.iter_mut().zip(key).enumerate() {
            match known.join(new) {
                Some(joined) => *known = joined,
                None => diagnostics.push(
                    Diagnostic::error(
                        "mixed-keys",
                        format!(
                            "part {} of the key of `{name}` is {} here but {} elsewhere",
                            index + 1,
                            new.ty.base.noun(),
                            known.ty.base.noun()
                        ),
                        at.clone(),
                    )
                    .also(first.clone(), "first used here"),
                ),
            }
        }
    }

    /// Notes which parts of a key device code fills with its launch: they are the same ones wherever it uses the map.
    pub(super) fn use_launch(
        &mut self,
        id: MapId,
        parts: Vec<Option<LaunchWords>>,
        at: &Label,
        diagnostics: &mut Vec<Diagnostic>,
    ) {
        let shape = &mut self.list[id];
        let Some((known, first)) = &shape.launch else {
            shape.launch = Some((parts, at.clone()));
            return;
        };
        // Keys of different lengths are a mistake of their own.
        let differs = known.iter().zip(&parts).position(|(known, new)| known != new);
        if let Some(part) = differs {
            let message = format!(
                "part {} of the key of `{}` is another field of the launch, or none, elsewhere in device code",
                part + 1,
                shape.name
            );
            let mistake = Diagnostic::error("mixed-keys", message, at.clone()).also(first.clone(), "first used here");
            diagnostics.push(mistake.help("use two maps"));
        }
    }

    /// Returns which parts of a map's key device code fills with its launch.
    pub(super) fn launch_parts(&self, id: MapId) -> &[Option<LaunchWords>] {
        self.list[id].launch.as_ref().map_or(&[], |it| &it.0)
    }

    /// Notes how a map is used; reports a contradiction and keeps the first use.
    pub(super) fn use_as(&mut self, id: MapId, purpose: Purpose, at: &Label, diagnostics: &mut Vec<Diagnostic>) {
        let shape = &mut self.list[id];
        shape.written = true;
        let Some((known, first)) = &shape.kind else {
            shape.kind = Some((purpose, at.clone()));
            return;
        };
        if *known == purpose {
            return;
        }
        let (name, known, first) = (shape.name.clone(), *known, first.clone());
        let message = match (known, purpose) {
            (Purpose::Aggregate(a), Purpose::Aggregate(b)) if a.verb() == b.verb() => {
                format!("`{name}.{}` has different parameters elsewhere", a.verb().trim_end_matches("()"))
            }
            _ => format!("`{name}` is updated by `{}` here but by `{}` elsewhere", purpose.verb(), known.verb()),
        };
        diagnostics.push(
            Diagnostic::error("mixed-kinds", message, at.clone())
                .also(first, "first used here")
                .help("a map holds one kind of value; use two maps"),
        );
    }

    /// Merges an assigned value into the map's type.
    pub(super) fn use_value(&mut self, id: MapId, value: Stored, at: &Label, diagnostics: &mut Vec<Diagnostic>) {
        let shape = &mut self.list[id];
        match shape.value.join(value) {
            Some(joined) => {
                shape.value = joined;
                if value.ty.base != Base::Unknown {
                    shape.value_at.get_or_insert_with(|| at.clone());
                }
            }
            None => {
                let mut diagnostic = Diagnostic::error(
                    "mixed-values",
                    format!(
                        "`{}` is assigned {} here but {} elsewhere",
                        shape.name,
                        value.ty.base.noun(),
                        shape.value.ty.base.noun()
                    ),
                    at.clone(),
                );
                if let Some(first) = &shape.value_at {
                    diagnostic = diagnostic.also(first.clone(), "first assigned here");
                }
                diagnostics.push(diagnostic);
            }
        }
    }

    /// Whether a plain map is stored as a sum, so that an interpreted handler clears only what it
    /// has read, not what probes add meanwhile, or because device code adds to it: each engine then has a part.
    /// Compiled handlers must not read such a map.
    pub(super) fn is_summed(&self, id: MapId) -> bool {
        let shape = &self.list[id];
        let is_plain = self.purpose(id) == Some(Purpose::Plain) && shape.value.resolved().base == Base::Int;
        let has_parts = shape.in_gpu || shape.in_linux && shape.cleared_live;
        is_plain && has_parts && !shape.more_than_added
    }

    /// Returns the map's description for the plan, without its BPF maps.
    pub(super) fn def(&self, id: MapId) -> TableDef {
        let shape = &self.list[id];
        let value = shape.value.resolved();
        let kind = match self.purpose(id) {
            Some(Purpose::Aggregate(kind)) => kind,
            _ if self.is_summed(id) => TableKind::Sum,
            Some(Purpose::Plain) | None => TableKind::Plain(value.base.scalar()),
        };
        TableDef {
            name: shape.name.clone(),
            keys: self.key_parts(id),
            kind,
            unit: if kind == TableKind::Count { Unit::None } else { value.unit },
            capacity: shape.capacity,
            evict: shape.evict,
            storage: Storage::Interpreter,
        }
    }
}

impl MapShape {
    /// Notes that a compiled handler there uses it.
    pub(super) fn used_in(&mut self, place: Place) {
        match place {
            Place::Linux => self.in_linux = true,
            Place::Gpu => self.in_gpu = true,
            Place::Tracer | Place::Interpreter => self.in_tracer = true,
        }
    }

    /// Whether it is a histogram or quantiles.
    pub(super) fn is_bucketed(&self) -> bool {
        matches!(self.kind, Some((Purpose::Aggregate(kind), _)) if kind.is_bucketed())
    }
}

impl Purpose {
    fn verb(self) -> &'static str {
        match self {
            Purpose::Plain => "=",
            Purpose::Aggregate(kind) => kind.verb(),
        }
    }
}

fn parts(n: usize) -> String {
    match n {
        0 => "no key".into(),
        1 => "1 key part".into(),
        n => format!("{n} key parts"),
    }
}
