//! CUDA's calls: their names, CUPTI's callback ids, and their parameters.
//!
//! The facts are those of CUDA 13.0 for x86-64, printed by programs that were compiled against its headers
//! (`gpu-probes/layouts`); ids and layouts of a call stay the same from version to version. The build makes tables of
//! them. Who only asks for sizes, as the collector does, doesn't link the names.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::LazyLock;

include!(concat!(env!("OUT_DIR"), "/tables.rs"));

/// Which library a call is a function of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    Driver,
    Runtime,
}

/// A function, by the number that CUPTI has for it: the callback's domain (1 driver, 2 runtime) and id. 0 stands for
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FunctionId(u32);

impl FunctionId {
    pub const fn of(layer: Layer, id: u32) -> Self {
        FunctionId((layer as u32 + 1) << 16 | id)
    }

    /// Returns the function of a callback; `None` in other domains than the two of calls.
    #[inline]
    pub const fn of_callback(domain: u32, id: u32) -> Option<Self> {
        if (domain == 1 || domain == 2) && id < MOST_IDS as u32 { Some(FunctionId(domain << 16 | id)) } else { None }
    }

    /// The inverse of [`FunctionId::number`]; `None` if there cannot be such a function.
    #[inline]
    pub const fn of_number(number: u32) -> Option<Self> {
        Self::of_callback(number >> 16, number & 0xffff)
    }

    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// CUPTI's number for the domain.
    #[inline]
    pub const fn domain(self) -> u32 {
        self.0 >> 16
    }

    /// CUPTI's number in the domain.
    #[inline]
    pub const fn callback(self) -> u32 {
        self.0 & 0xffff
    }

    #[inline]
    pub const fn layer(self) -> Layer {
        if self.domain() == 1 { Layer::Driver } else { Layer::Runtime }
    }

    /// Returns what stands for its name where names are not known; [`with_names`] puts the name there.
    pub fn to_mark(self) -> String {
        format!("{MARK}{}", self.0)
    }

    /// Whether CUDA 13.0 has a function, or had one, with this number.
    pub fn exists(self) -> bool {
        let bits = EXISTS.get((self.domain() as usize).wrapping_sub(1));
        bits.is_some_and(|it| it[self.callback() as usize / 64] & 1 << (self.callback() % 64) != 0)
    }

    /// Returns the size of its parameters in bytes, 0 if it has none or they are unknown.
    #[inline]
    pub fn parameter_bytes(self) -> usize {
        let of_layer = SIZES.get((self.domain() as usize).wrapping_sub(1));
        of_layer.and_then(|it| it.get(self.callback() as usize)).map_or(0, |it| usize::from(*it))
    }

    /// Returns what is known of it.
    pub fn function(self) -> Option<&'static ApiFunction> {
        static BY_ID: LazyLock<HashMap<FunctionId, &'static ApiFunction>> =
            LazyLock::new(|| FUNCTIONS.iter().map(|it| (it.id, it)).collect());
        BY_ID.get(&self).copied()
    }
}

/// A set of functions.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Functions([u64; WORDS]);

const WORDS: usize = 2 * MOST_IDS / 64;

impl Functions {
    pub const NONE: Functions = Functions([0; WORDS]);

    fn place(function: FunctionId) -> (usize, u32) {
        let n = (function.domain() as usize - 1) * MOST_IDS + function.callback() as usize;
        (n / 64, n as u32 % 64)
    }

    /// Adds a function.
    pub fn add(&mut self, function: FunctionId) {
        let (word, bit) = Functions::place(function);
        self.0[word] |= 1 << bit;
    }

    #[inline]
    pub fn contains(&self, function: FunctionId) -> bool {
        let (word, bit) = Functions::place(function);
        self.0[word] & 1 << bit != 0
    }

    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Returns those in either set.
    #[must_use]
    pub fn with(&self, others: &Functions) -> Functions {
        Functions(std::array::from_fn(|at| self.0[at] | others.0[at]))
    }

    /// Returns these, except `others`.
    pub fn without(&self, others: &Functions) -> Functions {
        Functions(std::array::from_fn(|at| self.0[at] & !others.0[at]))
    }

    /// Iterates over them, the driver's first.
    pub fn iter(&self) -> impl Iterator<Item = FunctionId> + '_ {
        let id = |n: usize| FunctionId((((n / MOST_IDS + 1) << 16) | (n % MOST_IDS)) as u32);
        (0..2 * MOST_IDS).filter(|n| self.0[n / 64] & 1 << (n % 64) != 0).map(id)
    }

    /// Returns a text of at most some 700 characters: `WORD:BITS` for each word that is not 0, in hexadecimal.
    pub fn to_text(&self) -> String {
        let words = self.0.iter().enumerate().filter(|it| *it.1 != 0);
        words.map(|(at, bits)| format!("{at:x}:{bits:x}")).collect::<Vec<_>>().join(" ")
    }

    /// The inverse of [`Functions::to_text`].
    pub fn of_text(text: &str) -> Option<Functions> {
        let mut set = Functions::NONE;
        for part in text.split_ascii_whitespace() {
            let (at, bits) = part.split_once(':')?;
            *set.0.get_mut(usize::from_str_radix(at, 16).ok()?)? = u64::from_str_radix(bits, 16).ok()?;
        }
        Some(set)
    }
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Functions({})", self.to_text())
    }
}

impl FromIterator<FunctionId> for Functions {
    fn from_iter<I: IntoIterator<Item = FunctionId>>(functions: I) -> Self {
        let mut set = Functions::NONE;
        functions.into_iter().for_each(|it| set.add(it));
        set
    }
}

/// A function of CUDA.
#[derive(Clone, Copy, Debug)]
pub struct ApiFunction {
    pub id: FunctionId,
    /// As CUPTI spells it: `cudaMalloc_v3020`.
    full_name: &'static str,
    /// Empty if it has none, or they are unknown.
    pub parameters: &'static [Parameter],
}

impl ApiFunction {
    /// Returns its name without the version that CUPTI adds to the runtime's: `cudaMalloc`, `cuMemAlloc_v2`.
    pub fn name(&self) -> &'static str {
        match self.full_name.rsplit_once("_v") {
            Some((name, version)) if version.len() >= 4 && version.bytes().all(|it| it.is_ascii_digit()) => name,
            _ => self.full_name,
        }
    }

    /// Returns the name that programs write: without the suffixes by which CUDA's headers choose among versions
    /// (`_v2`) and default streams (`_ptsz`, `_ptds`).
    pub fn plain_name(&self) -> &'static str {
        let name = self.name();
        let name = name.strip_suffix("_ptsz").or_else(|| name.strip_suffix("_ptds")).unwrap_or(name);
        match name.rsplit_once("_v") {
            Some((plain, version)) if version.len() == 1 && version.bytes().all(|it| it.is_ascii_digit()) => plain,
            _ => name,
        }
    }

    /// Returns the parameter with this name.
    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters.iter().find(|it| it.name == name)
    }
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: ParameterKind,
    /// Bytes from the start of the parameters.
    pub offset: usize,
}

/// The type of a parameter; numbers are sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    Unsigned(usize),
    /// Also most enumerations.
    Signed(usize),
    Float(usize),
    Pointer,
    /// Passed by value: not a single number.
    Structure,
}

impl Parameter {
    /// Whether it is an integer or an address.
    pub fn is_integer(&self) -> bool {
        !matches!(self.kind, ParameterKind::Float(_) | ParameterKind::Structure)
    }

    /// Whether it is an address or an integer without a sign.
    pub fn is_unsigned(&self) -> bool {
        matches!(self.kind, ParameterKind::Unsigned(_) | ParameterKind::Pointer)
    }

    /// Describes the type for readers.
    pub fn type_text(&self) -> &'static str {
        match self.kind {
            ParameterKind::Unsigned(_) | ParameterKind::Signed(_) => "integer",
            ParameterKind::Pointer => "address",
            ParameterKind::Float(_) => "floating-point number: cannot be read",
            ParameterKind::Structure => "structure by value: cannot be read",
        }
    }

    /// Returns an integer or an address, sign-extended to 64 bits, given the parameters of a call.
    pub fn value(&self, parameters: &[u8]) -> Option<u64> {
        let (width, is_signed) = match self.kind {
            ParameterKind::Unsigned(width) => (width, false),
            ParameterKind::Signed(width) => (width, true),
            ParameterKind::Pointer => (8, false),
            ParameterKind::Float(_) | ParameterKind::Structure => return None,
        };
        let bytes = parameters.get(self.offset..self.offset + width)?;
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        let unused = 64 - 8 * width as u32;
        let shifted = u64::from_le_bytes(word) << unused;
        Some(if is_signed { (shifted as i64 >> unused) as u64 } else { shifted >> unused })
    }
}

/// How a [`FunctionId::to_mark`] begins.
const MARK: &str = "function#";

/// Replaces each [`FunctionId::to_mark`] in a text by the function's name.
pub fn with_names(text: &str) -> String {
    let mut parts = text.split(MARK);
    let mut named = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.len() - part.trim_start_matches(|it: char| it.is_ascii_digit()).len();
        let (number, rest) = part.split_at(digits);
        let function = number.parse().ok().and_then(FunctionId::of_number).and_then(FunctionId::function);
        match function {
            Some(it) => named.push_str(it.name()),
            None => named.extend([MARK, number]),
        }
        named.push_str(rest);
    }
    named
}

/// Returns every function, the driver's first.
pub fn functions() -> &'static [ApiFunction] {
    FUNCTIONS
}

/// Returns the name of an error: `CUDA_ERROR_OUT_OF_MEMORY` of the driver, `cudaErrorMemoryAllocation` of the runtime.
pub fn error_name(layer: Layer, code: i32) -> Option<&'static str> {
    ERRORS.iter().find(|it| (it.0, it.1) == (layer, code)).map(|it| it.2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static ApiFunction {
        functions().iter().find(|it| it.name() == name).unwrap()
    }

    #[test]
    fn a_function_has_its_id_names_and_parameters() {
        let malloc = named("cudaMalloc");
        assert_eq!((malloc.id.domain(), malloc.id.callback()), (2, 20));
        assert_eq!(malloc.id.function().map(ApiFunction::name), Some("cudaMalloc"));
        assert_eq!(malloc.id.parameter_bytes(), 16);
        assert_eq!(malloc.parameter("size").map(|it| (it.kind, it.offset)), Some((ParameterKind::Unsigned(8), 8)));
        let alloc = named("cuMemAlloc_v2");
        assert_eq!((alloc.id.layer(), alloc.plain_name()), (Layer::Driver, "cuMemAlloc"));
        assert_eq!(named("cudaMallocAsync_ptsz").plain_name(), "cudaMallocAsync");
        assert_eq!(named("cuMemcpyHtoD_v2_ptds").plain_name(), "cuMemcpyHtoD");
        assert_eq!(FunctionId::of_number(malloc.id.number()), Some(malloc.id));
        assert_eq!(FunctionId::of_number(0), None);
        assert_eq!(FunctionId::of_number(3 << 16 | 1), None);
    }

    #[test]
    fn parameters_are_within_their_structure() {
        for function in functions() {
            for it in function.parameters {
                let width = match it.kind {
                    ParameterKind::Unsigned(n) | ParameterKind::Signed(n) | ParameterKind::Float(n) => n,
                    ParameterKind::Pointer => 8,
                    ParameterKind::Structure => 1,
                };
                let end = it.offset + width;
                assert!(end <= function.id.parameter_bytes(), "{} {}", function.name(), it.name);
                assert!(it.offset.is_multiple_of(width), "{} {}", function.name(), it.name);
            }
        }
    }

    #[test]
    fn a_value_keeps_its_sign_and_no_neighbours() {
        let bytes = [0xfe, 0xff, 0xff, 0xff, 1, 2, 3, 4];
        let read = |kind, offset| Parameter { name: "n", kind, offset }.value(&bytes);
        assert_eq!(read(ParameterKind::Signed(4), 0), Some(-2i64 as u64));
        assert_eq!(read(ParameterKind::Unsigned(4), 0), Some(0xffff_fffe));
        assert_eq!(read(ParameterKind::Unsigned(1), 5), Some(2));
        assert_eq!(read(ParameterKind::Pointer, 0), Some(0x0403_0201_ffff_fffe));
        assert_eq!(read(ParameterKind::Pointer, 4), None);
        assert_eq!(read(ParameterKind::Structure, 0), None);
    }

    #[test]
    fn a_set_survives_its_text() {
        let all: Functions = functions().iter().map(|it| it.id).collect();
        assert_eq!(all.iter().count(), functions().len());
        assert!(all.iter().all(|it| all.contains(it)));
        let text = all.to_text();
        assert!(text.len() < 800, "{}", text.len());
        assert_eq!(Functions::of_text(&text), Some(all));
        assert_eq!(Functions::of_text(""), Some(Functions::NONE));
        assert_eq!(Functions::of_text("20:1"), None, "there is no such word");
        assert_eq!(Functions::of_text("1:x"), None);
    }

    #[test]
    fn marks_in_a_text_are_named() {
        let (malloc, free) = (named("cudaMalloc").id.to_mark(), named("cuMemFree_v2").id.to_mark());
        let text = with_names(&format!("no calls of {malloc}, {free}; function#7 function#"));
        assert_eq!(text, "no calls of cudaMalloc, cuMemFree_v2; function#7 function#");
    }

    #[test]
    fn errors_have_a_name_in_each_layer() {
        assert_eq!(error_name(Layer::Runtime, 2), Some("cudaErrorMemoryAllocation"));
        assert_eq!(error_name(Layer::Driver, 2), Some("CUDA_ERROR_OUT_OF_MEMORY"));
        assert_eq!(error_name(Layer::Driver, 77_777), None);
    }
}
