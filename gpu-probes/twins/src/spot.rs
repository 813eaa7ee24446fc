//! Where in a twin a handler runs, and the context that it has there.

use crate::conflicts;
use crate::handler::{Origin, Texts};
use crate::words::{ACTIVE, LEADER, clock, name_at, process_id, sectors};
use xputrace_device::Word;
use xputrace_events::device::{self, SOURCES, Source};
use xputrace_ptx::{ADDRESS, AccessKind, Declaration, Function, MemoryAccess, Point, Site, type_bits};

/// A parameter of a kernel that fits into a word.
pub(crate) struct Parameter {
    name: String,
    /// 1 to 8.
    bytes: u32,
    /// What its address is a multiple of.
    alignment: u32,
}

/// Returns a kernel's parameters; without a name, those that are larger.
pub(crate) fn parameters(kernel: &Function) -> Vec<Parameter> {
    kernel.parameters.iter().flatten().map(|it| parameter(it).unwrap_or(Parameter::NONE)).collect()
}

/// Returns a parameter, if it fits into a word: a structure is an array of bytes.
fn parameter(it: &Declaration) -> Option<Parameter> {
    let words = || it.words.iter().filter_map(|word| word.strip_prefix('.'));
    let size = words().rev().find_map(type_bits)? / 8;
    let one = it.names.first()?;
    let n = one.dimensions.iter().try_fold(1u32, |all, n| all.checked_mul(n.parse().ok()?))?;
    let bytes = size.checked_mul(n).filter(|it| (1..=8).contains(it))?;
    // Of a pointer, what is said is how aligned that is to which it points.
    let said = words().find_map(|it| it.strip_prefix("align")?.trim().parse().ok()).filter(|_| bytes > size);
    Some(Parameter { name: one.name.clone(), bytes, alignment: said.unwrap_or(size) })
}

/// Where a handler runs, as far as its context depends on that.
pub(crate) struct Spot<'a> {
    /// The kernel's index in its twin.
    pub(crate) kernel: usize,
    /// Where the twin's variable for names has that of the function which is called there.
    pub(crate) callee: Option<usize>,
    pub(crate) site: Option<&'a Site<'a>>,
    /// Those that can be read there.
    pub(crate) parameters: &'a [Parameter],
}

impl Origin {
    /// Returns where the words of the context come from.
    pub(crate) fn context(self, spot: &Spot<'_>, texts: &Texts) -> Vec<Word> {
        match self {
            Origin::Script => spot.context(texts),
            Origin::Object { .. } => Vec::new(),
        }
    }
}

impl Spot<'_> {
    /// To see whether a handler can run anywhere.
    pub(crate) const ANY: Spot<'static> = Spot { kernel: 0, callee: None, site: None, parameters: &[] };

    /// Returns where the words of the context come from.
    ///
    /// What changes from run to run comes from memory: the text is the same in all of them.
    fn context(&self, texts: &Texts) -> Vec<Word> {
        SOURCES.into_iter().enumerate().map(|(at, source)| self.word(at, source, texts)).collect()
    }

    fn word(&self, at: usize, source: Source, texts: &Texts) -> Word {
        match source {
            Source::Register32(register) => Word::Narrow(register.into()),
            Source::Register64(register) => Word::Wide(register.into()),
            Source::GlobalTimer => Word::Statements(clock()),
            Source::OfProcess => Word::Fixed(process_id()),
            Source::OfKernel => Word::Fixed(name_at(self.kernel)),
            Source::Leader => Word::Statements(LEADER.into()),
            Source::Active => Word::Statements(ACTIVE.into()),
            Source::OfPlace => self.of_place(at, texts),
            Source::HasArgument(n) => Word::Constant(self.parameter(n).is_some().into()),
            Source::Argument(n) => self.parameter(n).map_or(Word::Constant(0), |it| Word::Fixed(it.statements())),
        }
    }

    fn parameter(&self, n: usize) -> Option<&Parameter> {
        self.parameters.get(n).filter(|it| !it.name.is_empty())
    }

    fn of_place(&self, at: usize, texts: &Texts) -> Word {
        let access = match self.site.map(|it| it.point) {
            Some(Point::BeforeAccess(access)) => Some(access),
            _ => None,
        };
        let line = self.site.and_then(|it| it.line).map_or(0, |it| it.line);
        match (at, access) {
            (device::LINE, _) => Word::Constant(line.into()),
            (device::HAS_CALLEE, _) => Word::Constant(self.callee.is_some().into()),
            // Another one at another call.
            (device::CALLEE, _) => self.callee.map_or(Word::Constant(0), |it| Word::Statements(name_at(it))),
            (device::ADDRESS, Some(_)) => Word::Wide(ADDRESS.into()),
            (device::BYTES, Some(access)) => Word::Constant(access.bytes.unwrap_or(0).into()),
            (device::ACCESS, Some(access)) => Word::Constant(texts.id(kind(&access).text())),
            (device::SECTORS, Some(access)) => sectors(&access).map_or(Word::Constant(0), Word::Statements),
            (device::HAS_CONFLICTS, Some(access)) => {
                conflicts::are_known(&access).map_or(Word::Constant(0), Word::Statements)
            }
            (device::CONFLICTS, Some(access)) => {
                conflicts::of_access(&access).map_or(Word::Constant(0), Word::Statements)
            }
            (device::SPACE, Some(access)) => Word::Constant(texts.id(access.space.name())),
            _ => Word::Constant(0),
        }
    }
}

fn kind(access: &MemoryAccess) -> device::Access {
    match access.kind {
        AccessKind::Load => device::Access::Load,
        AccessKind::Store => device::Access::Store,
        AccessKind::Atomic | AccessKind::Reduction => device::Access::Atomic,
    }
}

impl Parameter {
    /// One that handlers can't have.
    const NONE: Parameter = Parameter { name: String::new(), bytes: 0, alignment: 0 };

    /// Returns PTX that sets `{d}` to it.
    fn statements(&self) -> String {
        let Parameter { name, bytes, alignment } = self;
        match bytes {
            _ if alignment < bytes || !bytes.is_power_of_two() => self.pieces(),
            8 => format!("ld.param.b64 {{d}}, [{name}];"),
            4 => format!("{{ .reg .b32 %narrow; ld.param.b32 %narrow, [{name}]; cvt.u64.u32 {{d}}, %narrow; }}"),
            _ => {
                let bits = 8 * bytes;
                format!("{{ .reg .b16 %narrow; ld.param.u{bits} %narrow, [{name}]; cvt.u64.u16 {{d}}, %narrow; }}")
            }
        }
    }

    /// Likewise, of a structure whose address is a multiple of less than its size: by what can be read at once.
    fn pieces(&self) -> String {
        let mut text = "{ .reg .b64 %piece; mov.b64 {d}, 0;".to_owned();
        let mut at = 0;
        while at < self.bytes {
            let left = self.bytes - at;
            let bytes =
                [4, 2, 1].into_iter().find(|it| *it <= left && *it <= self.alignment && at % it == 0).unwrap_or(1);
            text += &format!(
                " ld.param.u{} %piece, [{}+{at}]; shl.b64 %piece, %piece, {}; or.b64 {{d}}, {{d}}, %piece;",
                8 * bytes,
                self.name,
                8 * at
            );
            at += bytes;
        }
        text + " }"
    }
}
