//! Demangled names → names short enough for a line.
//!
//! ```text
//! at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, (unsigned long)3> >
//! vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3>>
//! ```
//! Namespaces of template arguments, anonymous namespaces, parameters and casts are left out, and
//! `…` stands for arguments that don't fit. What differs stays different: names that would become
//! equal are given more room.

use std::collections::{BTreeMap, BTreeSet};

/// Columns of a short name where the output sets no limit.
pub(crate) const COLUMNS: usize = 96;
/// Deeper nesting is not parsed; the name stays as it is.
const DEEPEST: usize = 128;

/// Whose names are shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// Frames of a stack, which keep their namespaces and classes.
    Functions,
    /// Kernels, of which the last part says enough.
    Kernels,
}

/// Short names by the whole ones.
pub(crate) struct ShortNames(BTreeMap<String, String>);

impl ShortNames {
    /// Shortens names to about `columns`; different ones stay different.
    pub(crate) fn new<'a>(names: impl Iterator<Item = &'a str>, of: Of, columns: usize) -> Self {
        let names: BTreeSet<&str> = names.collect();
        let mut left: Vec<(&str, Nodes)> = names.into_iter().map(|it| (it, parse(it, of))).collect();
        let longest = left.iter().map(|(it, _)| it.len()).max().unwrap_or(0);
        let (mut short, mut taken) = (BTreeMap::new(), BTreeSet::new());
        let enough = longest.max(columns).saturating_mul(2);
        let mut columns = columns;
        while !left.is_empty() && columns <= enough {
            let attempt: Vec<String> = left.iter().map(|(_, nodes)| render(nodes, columns)).collect();
            let mut n_alike: BTreeMap<&str, usize> = BTreeMap::new();
            attempt.iter().for_each(|it| *n_alike.entry(it).or_default() += 1);
            let is_unique = |it: &String| n_alike[it.as_str()] == 1 && !taken.contains(it);
            let unique: Vec<bool> = attempt.iter().map(is_unique).collect();
            let mut settled = unique.iter().zip(&attempt);
            left.retain(|(name, _)| {
                let Some((true, it)) = settled.next() else { return true };
                taken.insert(it.clone());
                short.insert((*name).to_owned(), it.clone());
                false
            });
            columns = columns.saturating_mul(3) / 2 + 1;
        }
        // Names that differ in nothing but namespaces or parameters stay whole.
        ShortNames(short)
    }

    /// Returns the short form; a name that has none is returned as it is.
    pub(crate) fn of<'a>(&'a self, name: &'a str) -> &'a str {
        self.0.get(name).map_or(name, String::as_str)
    }
}

/// Shortens kernels' names for a list of `columns`; different names stay different.
pub fn short_names(names: &[String], columns: usize) -> Vec<String> {
    let short = ShortNames::new(names.iter().map(String::as_str), Of::Kernels, columns.min(COLUMNS));
    names.iter().map(|it| short.of(it).to_owned()).collect()
}

type Nodes = Vec<NamePart>;

/// A part of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NamePart {
    Text(String),
    /// `<…>`.
    Arguments(Vec<Nodes>),
}

/// Parses a name; what is not understood stays one text.
fn parse(name: &str, of: Of) -> Nodes {
    let has_arguments = name.contains('<') || name.contains(ANONYMOUS);
    let keeps_path = of == Of::Functions || !has_arguments;
    let mut parser = Parser { rest: name, depth: 0, keeps_path };
    parser.nodes().filter(|_| parser.rest.is_empty()).unwrap_or_else(|| vec![NamePart::Text(name.into())])
}

const ANONYMOUS: &str = "(anonymous namespace)::";
/// The operators, longer ones before those that they begin with.
const OPERATORS: &[&str] = &[
    "()", "[]", "<=>", "->*", "<<=", ">>=", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--", "+=",
    "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "=", ",",
];

struct Parser<'a> {
    rest: &'a str,
    /// How many `<` are open.
    depth: usize,
    /// Whether the name's own namespaces are kept; those of its arguments are not.
    keeps_path: bool,
}

impl Parser<'_> {
    /// Parses up to the end, or to the `,` or `>` that ends an argument. `None` if the brackets don't
    /// match.
    fn nodes(&mut self) -> Option<Nodes> {
        let mut nodes = Nodes::new();
        while let Some(c) = self.rest.chars().next() {
            match c {
                ',' | '>' if self.depth > 0 && !(c == '>' && text(&mut nodes).ends_with('-')) => break,
                '<' => nodes.push(self.arguments()?),
                '(' => self.parenthesis(&mut nodes)?,
                '{' => self.braces(&mut nodes)?,
                ':' if self.rest.starts_with("::") => self.scope(&mut nodes),
                ' ' if self.rest[1..].starts_with(['>', ',']) || (nodes.is_empty() && self.depth > 0) => self.skip(1),
                _ if self.operator(&mut nodes) => {}
                _ => {
                    text(&mut nodes).push(c);
                    self.skip(c.len_utf8());
                }
            }
        }
        nodes.retain(|it| *it != NamePart::Text(String::new()));
        // The call operator of a lambda is the lambda.
        if let Some(NamePart::Text(it)) = nodes.last_mut()
            && it.strip_suffix("::operator()").is_some_and(ends_with_lambda)
        {
            it.truncate(it.len() - "::operator()".len());
        }
        Some(nodes)
    }

    fn skip(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Parses `<…>`. Of `basic_string<char, …>` it leaves `string`.
    fn arguments(&mut self) -> Option<NamePart> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let mut all = Vec::new();
        loop {
            self.skip(1);
            all.push(self.nodes()?);
            match self.rest.chars().next()? {
                ',' => {}
                _ => break,
            }
        }
        self.skip(1);
        self.depth -= 1;
        Some(NamePart::Arguments(all))
    }

    /// Skips parameters of an enclosing function, casts and anonymous namespaces; keeps other
    /// parentheses as they are.
    fn parenthesis(&mut self, nodes: &mut Nodes) -> Option<()> {
        if self.rest.starts_with(ANONYMOUS) {
            self.skip(ANONYMOUS.len());
            return Some(());
        }
        let length = balanced(self.rest, '(', ')')?;
        let after = &self.rest[length..];
        let is_cast = nodes.is_empty() && after.starts_with(|it: char| it.is_ascii_digit() || it == '-');
        let scope = after_qualifiers(after).strip_prefix("::");
        if is_cast {
            self.skip(length);
        } else if let Some(rest) = scope {
            self.rest = rest;
            text(nodes).push_str("::");
        } else {
            text(nodes).push_str(&self.rest[..length]);
            self.skip(length);
        }
        Some(())
    }

    /// Parses `{lambda(int)#1}` as `λ1`, and one inside it as `λ1.2`; keeps other braces.
    fn braces(&mut self, nodes: &mut Nodes) -> Option<()> {
        let length = balanced(self.rest, '{', '}')?;
        let inside = &self.rest[1..length - 1];
        let number = inside.strip_prefix("lambda(").and_then(|it| it.rsplit_once('#'));
        let out = text(nodes);
        match number {
            Some((_, number)) => {
                let enclosing = out.strip_suffix("operator()::").unwrap_or(out).len();
                out.truncate(enclosing);
                match out.strip_suffix("::").filter(|it| ends_with_lambda(it)).map(str::len) {
                    Some(length) => {
                        out.truncate(length);
                        out.push_str(&format!(".{number}"));
                    }
                    None => out.push_str(&format!("λ{number}")),
                }
            }
            None => out.push_str(&self.rest[..length]),
        }
        self.skip(length);
        Some(())
    }

    /// Parses `::`, and drops the namespace before it unless it belongs to the name.
    fn scope(&mut self, nodes: &mut Nodes) {
        self.skip(2);
        let begins_own_part = self.rest.starts_with(['<', '{', '~']) || self.rest.starts_with("operator");
        let keeps = begins_own_part || (self.depth == 0 && self.keeps_path);
        let follows_arguments = matches!(nodes.last(), Some(NamePart::Arguments(_)));
        let out = text(nodes);
        let namespace = out.len() - out.trim_end_matches(is_of_identifier).len();
        let is_inline = is_inline_namespace(&out[out.len() - namespace..]);
        if namespace > 0 && (is_inline || !keeps) {
            out.truncate(out.len() - namespace);
        } else if namespace > 0 || follows_arguments || ends_with_lambda(out) || keeps {
            out.push_str("::");
        }
    }

    /// Parses `operator` with its symbol, whose brackets are no brackets. Returns whether there was one.
    fn operator(&mut self, nodes: &mut Nodes) -> bool {
        let begins_word = !text(nodes).ends_with(is_of_identifier);
        let Some(symbol) = self.rest.strip_prefix("operator").filter(|_| begins_word) else { return false };
        let Some(symbol) = OPERATORS.iter().find(|it| symbol.starts_with(**it)) else { return false };
        text(nodes).push_str("operator");
        text(nodes).push_str(symbol);
        self.skip("operator".len() + symbol.len());
        true
    }
}

/// Returns the text at the end, which a new one is added for if needed.
fn text(nodes: &mut Nodes) -> &mut String {
    if !matches!(nodes.last(), Some(NamePart::Text(_))) {
        nodes.push(NamePart::Text(String::new()));
    }
    match nodes.last_mut() {
        Some(NamePart::Text(it)) => it,
        _ => unreachable!("a text was just added"),
    }
}

fn is_of_identifier(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Whether it is a namespace that libraries put their versions in.
fn is_inline_namespace(name: &str) -> bool {
    ["__cxx11", "__1", "__2"].contains(&name) || (name.starts_with("CUB_") && name.ends_with("_NS"))
}

fn ends_with_lambda(text: &str) -> bool {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_digit() || it == '.');
    digits.len() < text.len() && digits.ends_with('λ')
}

/// Returns what follows a member function's qualifiers.
fn after_qualifiers(mut text: &str) -> &str {
    while let Some(rest) = [" const", " volatile", " &&", " &"].iter().find_map(|it| text.strip_prefix(it)) {
        text = rest;
    }
    text
}

/// Returns the length of the brackets at the start, and of what they enclose.
fn balanced(text: &str, open: char, close: char) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth -= 1;
        }
        if depth == 0 {
            return Some(at + c.len_utf8());
        }
    }
    None
}

/// Formats a name in about `columns`: as deep as fits, or of what doesn't fit the most.
fn render(nodes: &Nodes, columns: usize) -> String {
    let all = deepest(nodes, columns, true);
    if !all.is_cut_by_width {
        return all.out;
    }
    let classes = deepest(nodes, columns, false);
    if classes.n_classes > all.n_classes { classes.out } else { all.out }
}

/// Formats a name to the depth at which it shows the most arguments.
fn deepest(nodes: &Nodes, columns: usize, scalars: bool) -> Rendering {
    let mut best = Rendering::of(nodes, columns, 1, scalars);
    for depth in 2..=DEEPEST {
        let it = Rendering::of(nodes, columns, depth, scalars);
        let is_deepest = !it.is_cut_by_depth;
        if (it.n_opened, it.n_arguments) >= (best.n_opened, best.n_arguments) {
            best = it;
        }
        if is_deepest {
            break;
        }
    }
    best
}

/// A name being written.
struct Rendering {
    out: String,
    width: usize,
    columns: usize,
    /// Whether to write numbers and plain types among the arguments of an argument.
    scalars: bool,
    is_cut_by_depth: bool,
    is_cut_by_width: bool,
    /// How many lists of arguments were written, at least in part.
    n_opened: usize,
    n_arguments: usize,
    /// How many of them are more than a number or a plain type.
    n_classes: usize,
}

impl Rendering {
    fn of(nodes: &Nodes, columns: usize, depth: usize, scalars: bool) -> Self {
        let mut it = Rendering {
            out: String::new(),
            width: 0,
            columns,
            scalars,
            is_cut_by_depth: false,
            is_cut_by_width: false,
            n_opened: 0,
            n_arguments: 0,
            n_classes: 0,
        };
        it.nodes(nodes, depth, 0, true);
        it
    }

    fn push(&mut self, text: &str) {
        self.out.push_str(text);
        self.width += text.chars().count();
    }

    /// Writes arguments down to `depth`; `reserved` columns are needed behind them.
    fn nodes(&mut self, nodes: &Nodes, depth: usize, reserved: usize, is_whole: bool) {
        for (at, node) in nodes.iter().enumerate() {
            match node {
                NamePart::Text(it) => self.push(it),
                NamePart::Arguments(_) if is_character_string(nodes, at) => {
                    let short = self.out.len() - "basic_string".len();
                    self.out.replace_range(short.., "string");
                }
                NamePart::Arguments(all) if depth == 0 && *all != [Nodes::new()] => {
                    self.is_cut_by_depth = true;
                    self.push("<…>");
                }
                NamePart::Arguments(all) => {
                    let reserved = reserved + skeleton(&nodes[at + 1..]) + 1;
                    self.arguments(all, depth, reserved, is_whole || self.scalars);
                }
            }
        }
    }

    fn arguments(&mut self, all: &[Nodes], depth: usize, reserved: usize, scalars: bool) {
        /// Columns of `, …`.
        const CUT: usize = 3;
        let scalars = scalars || !all.iter().any(is_class);
        self.push("<");
        let n_before = self.n_arguments;
        let mut separator = "";
        for (at, argument) in all.iter().enumerate() {
            if !scalars && !is_class(argument) {
                if !self.out.ends_with('…') {
                    self.push(&format!("{separator}…"));
                }
                separator = ", ";
                continue;
            }
            let behind = if at + 1 < all.len() { CUT } else { 0 };
            if self.width + separator.len() + skeleton(argument) + behind + reserved > self.columns {
                self.is_cut_by_width = true;
                if !self.out.ends_with('…') {
                    self.push(&format!("{separator}…"));
                }
                break;
            }
            self.push(separator);
            self.n_arguments += 1;
            self.n_classes += usize::from(is_class(argument));
            self.nodes(argument, depth.saturating_sub(1), reserved + behind, false);
            separator = ", ";
        }
        self.n_opened += usize::from(self.n_arguments > n_before);
        self.push(">");
    }
}

/// Whether an argument is more than a number or a plain type.
fn is_class(argument: &Nodes) -> bool {
    argument.iter().any(|it| match it {
        NamePart::Arguments(_) => true,
        NamePart::Text(it) => it.contains('λ'),
    })
}

/// Whether the arguments at a place are those of `std::string`.
fn is_character_string(nodes: &Nodes, at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|it| nodes.get(it));
    let is_string = matches!(before, Some(NamePart::Text(it)) if it.ends_with("basic_string"));
    let Some(NamePart::Arguments(all)) = nodes.get(at).filter(|_| is_string) else { return false };
    all.first().is_some_and(|it| *it == [NamePart::Text("char".into())])
}

/// Returns the columns of nodes with all arguments left out.
fn skeleton(nodes: &[NamePart]) -> usize {
    let columns = |it: &NamePart| match it {
        NamePart::Text(it) => it.chars().count(),
        NamePart::Arguments(_) => 3,
    };
    nodes.iter().map(columns).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(name: &str, of: Of, columns: usize) -> String {
        ShortNames::new([name].into_iter(), of, columns).of(name).to_owned()
    }

    /// Whole name, kernel's short name.
    const KERNELS: &[(&str, &str)] = &[
        (
            "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, (unsigned long)3> >",
            "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3>>",
        ),
        (
            "cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>",
            "Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>",
        ),
        ("at::native::(anonymous namespace)::scale<float, (unsigned int)32, (at::Mode)-1>", "scale<float, 32, -1>"),
        (
            "cub::CUB_200200_700_750_800_NS::DeviceReduceKernel<int, float*, std::plus<float> >",
            "DeviceReduceKernel<int, float*, plus<float>>",
        ),
        ("cutlass::gemm::kernel::Gemm<foo::bar, true>::operator()", "Gemm<bar, true>::operator()"),
        ("enumk<(A > B), &target(int)>", "enumk<(A > B), &target(int)>"),
        ("matmul<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >", "matmul<string>"),
        ("foo::operator<< <int>", "foo::operator<< <int>"),
        ("cub::EmptyKernel", "cub::EmptyKernel"),
        ("none<>", "none<>"),
        ("sgemm_32x32x32_NN", "sgemm_32x32x32_NN"),
        ("a < b", "a < b"),
        ("", ""),
    ];

    #[test]
    fn kernels_have_their_last_part_and_the_arguments_without_namespaces() {
        for (whole, short) in KERNELS {
            assert_eq!(one(whole, Of::Kernels, COLUMNS), *short);
        }
    }

    #[test]
    fn functions_keep_their_namespaces_and_classes() {
        let functions = [
            ("std::vector<int, std::allocator<int> >::push_back", "std::vector<int, allocator<int>>::push_back"),
            ("(anonymous namespace)::launch<g()::{lambda(int)#1}>", "launch<g::λ1>"),
            ("g()::{lambda(int)#1}::operator()() const::{lambda()#7}::operator()", "g::λ1.7"),
            ("S::operator< <int>", "S::operator< <int>"),
            ("S::operator>><S>", "S::operator>><S>"),
            ("A::operator->", "A::operator->"),
            ("mycrate::foo::<mycrate::Bar>", "mycrate::foo::<Bar>"),
            ("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", "<Vec<T> as Extend<T>>::extend"),
            (
                "core::ops::function::FnOnce::call_once{{vtable.shim}}",
                "core::ops::function::FnOnce::call_once{{vtable.shim}}",
            ),
            ("run::{closure#0}", "run::{closure#0}"),
            ("f<fn(a::B) -> c::D>", "f<fn(a::B) -> D>"),
            ("std::__1::sort<int*>", "std::sort<int*>"),
            ("forward (/home/me/train.py:7)", "forward (/home/me/train.py:7)"),
            ("0x7f12", "0x7f12"),
        ];
        for (whole, short) in functions {
            assert_eq!(one(whole, Of::Functions, COLUMNS), short);
        }
    }

    #[test]
    fn less_room_leaves_the_arguments_that_tell_most() {
        let add = KERNELS[0].0;
        assert_eq!(one(add, Of::Kernels, 64), "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, …>");
        let sum = "at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, \
                   at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, \
                   unsigned int, float, 4, 4> >";
        let classes = "reduce_kernel<512, 1, ReduceOp<…, func_wrapper_t<…, sum_functor<…>::λ1>, …>>";
        assert_eq!(one(sum, Of::Kernels, 80), classes);
        assert_eq!(one(sum, Of::Kernels, 5), "reduce_kernel<…>");
    }

    #[test]
    fn what_differs_stays_different() {
        let names =
            ["a::f<x::B, int>", "a::f<y::B, int>", "a::g<A<int, 1>, B>", "a::g<A<int, 2>, B>", "a::g<A<int, 2>, C>"];
        let short = |columns| short_names(&names.map(String::from), columns);
        assert_eq!(short(COLUMNS)[..2], names[..2], "what was left out is all that differs");
        for columns in 0..40 {
            let it: BTreeSet<String> = short(columns).into_iter().collect();
            assert_eq!(it.len(), names.len(), "{columns}: {it:?}");
        }
    }

    proptest! {
        #[test]
        fn any_texts_stay_different(names in proptest::collection::btree_set("[a-c:<>(), {}#1λ]{0,24}", 1..6), columns in 0usize..30) {
            let names: Vec<String> = names.into_iter().collect();
            let short: BTreeSet<String> = short_names(&names, columns).into_iter().collect();
            prop_assert_eq!(short.len(), names.len());
        }

        #[test]
        fn any_name_is_accepted(name in any::<String>()) {
            one(&name, Of::Functions, COLUMNS);
        }
    }
}
