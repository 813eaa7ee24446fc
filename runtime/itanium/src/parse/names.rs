//! Names: plain, nested and local ones, and what stands for an earlier one.

use super::{Earlier, Parser};
use crate::operators::Op;
use crate::tree::{Abbreviation, Affix, List, NodeId, Qualifiers, SymbolNode};

static ABBREVIATIONS: [Abbreviation; 6] = [
    abbreviation(b'a', "std::allocator", "std::allocator", "allocator"),
    abbreviation(b'b', "std::basic_string", "std::basic_string", "basic_string"),
    abbreviation(b's', "std::string", "std::string", "string"),
    abbreviation(b'i', "std::basic_istream<char, std::char_traits<char> >", "std::basic_istream", "basic_istream"),
    abbreviation(b'o', "std::ostream", "std::ostream", "ostream"),
    abbreviation(b'd', "std::basic_iostream<char, std::char_traits<char> >", "std::basic_iostream", "basic_iostream"),
];

const fn abbreviation(
    code: u8,
    full: &'static str,
    without_arguments: &'static str,
    last: &'static str,
) -> Abbreviation {
    Abbreviation { code, full, without_arguments, last }
}

static FRIEND: Affix = Affix { before: "friend ", after: "" };

/// A name, and what follows from how it ends.
pub(super) struct Name {
    pub(super) node: NodeId,
    /// The function's signature begins with the type that it returns.
    pub(super) returns: bool,
    pub(super) explicit_object: bool,
    pub(super) qualifiers: Qualifiers,
}

impl Name {
    fn plain(node: NodeId, returns: bool) -> Self {
        Self { node, returns, explicit_object: false, qualifiers: Qualifiers::default() }
    }
}

/// The last part of a name.
struct LastPart {
    node: NodeId,
    /// A constructor, destructor or conversion operator: it returns what its name says.
    has_no_return_type: bool,
}

impl<'a> Parser<'a> {
    pub(super) fn name(&mut self) -> Option<Name> {
        match self.input.peek_two() {
            [b'N', _] => self.nested_name(),
            [b'Z', _] => self.nested(Self::local_name),
            [b'S', it] if it != b't' => self.substituted_name(),
            _ => self.unscoped_name(),
        }
    }

    /// A name of the global namespace or of `std`.
    fn unscoped_name(&mut self) -> Option<Name> {
        let scope = self.input.take_text("St").then(|| self.add(SymbolNode::Text("std")));
        let part = self.part(scope)?;
        if self.input.peek() != b'I' {
            return Some(Name::plain(part.node, false));
        }
        self.remember(part.node);
        let arguments = self.template_arguments()?;
        let node = self.add(SymbolNode::Template { name: part.node, arguments });
        Some(Name::plain(node, !part.has_no_return_type))
    }

    /// An earlier template with other arguments, or a name of an earlier module.
    fn substituted_name(&mut self) -> Option<Name> {
        let earlier = self.substitution()?.node;
        if self.input.peek() != b'I' {
            let SymbolNode::Module { .. } = self.tree.get(earlier) else { return None };
            let part = self.part_of_module(None, Some(earlier))?;
            return Some(Name::plain(part.node, false));
        }
        let arguments = self.template_arguments()?;
        let node = self.add(SymbolNode::Template { name: earlier, arguments });
        Some(Name::plain(node, true))
    }

    fn nested_name(&mut self) -> Option<Name> {
        self.input.expect(b'N')?;
        let explicit_object = self.input.take(b'H');
        let qualifiers = self.function_qualifiers();
        let (node, returns) = self.prefix_until_end()?;
        Some(Name { node, returns, explicit_object, qualifiers })
    }

    /// The `const` and `&` of a member function.
    fn function_qualifiers(&mut self) -> Qualifiers {
        let qualifiers = self.qualifiers();
        match self.input.peek() {
            b'R' => self.input.skip(1),
            b'O' => {
                self.input.skip(1);
                return qualifiers.with(Qualifiers::RVALUE);
            }
            _ => return qualifiers,
        }
        qualifiers.with(Qualifiers::LVALUE)
    }

    /// Reads the parts of a nested name up to its `E`. Each prefix but the whole can be referred to later.
    /// Returns also whether it is a function template's that says what it returns.
    fn prefix_until_end(&mut self) -> Option<(NodeId, bool)> {
        let mut scope: Option<NodeId> = None;
        let mut returns = false;
        let mut has_no_return_type = false;
        while !self.input.take(b'E') {
            let is_new;
            let node;
            (node, is_new, returns) = match (self.input.peek_two(), scope) {
                ([b'S', _], None) => (self.first_of_prefix()?, false, false),
                ([b'T', _], None) => (self.template_parameter()?, true, false),
                ([b'D', b't' | b'T'], None) => (self.decltype()?, true, false),
                ([b'I', _], Some(name)) => {
                    let arguments = self.template_arguments()?;
                    (self.add(SymbolNode::Template { name, arguments }), true, !has_no_return_type)
                }
                // A member whose initializer contains what follows.
                ([b'M', _], Some(member)) => {
                    self.input.skip(1);
                    (member, false, false)
                }
                _ => {
                    let part = self.part_in(scope)?;
                    has_no_return_type = part.has_no_return_type;
                    (part.node, true, false)
                }
            };
            if is_new && self.input.peek() != b'E' {
                self.remember(node);
            }
            scope = Some(node);
        }
        Some((scope?, returns))
    }

    fn first_of_prefix(&mut self) -> Option<NodeId> {
        if self.input.take_text("St") {
            return Some(self.add(SymbolNode::Text("std")));
        }
        Some(self.substitution()?.node)
    }

    /// Reads a part of a nested name. What came before may be its module.
    fn part_in(&mut self, scope: Option<NodeId>) -> Option<LastPart> {
        match scope.map(|it| self.tree.get(it)) {
            Some(SymbolNode::Module { .. }) => self.part_of_module(None, scope),
            _ => self.part(scope),
        }
    }

    fn part(&mut self, scope: Option<NodeId>) -> Option<LastPart> {
        let is_internal = self.input.take(b'L');
        let module = if self.input.peek() == b'W' { Some(self.module(None)?) } else { None };
        let part = self.part_of_module(scope, module)?;
        // GCC numbers static functions of one name.
        if is_internal {
            self.discriminator();
        }
        Some(part)
    }

    /// Reads an unqualified name, its tags, and puts it into its scope.
    fn part_of_module(&mut self, scope: Option<NodeId>, module: Option<NodeId>) -> Option<LastPart> {
        let is_friend = self.input.take(b'F');
        let mut part = self.unqualified(scope)?;
        if let Some(module) = module {
            part.node = self.add(SymbolNode::InModule { of: part.node, module });
        }
        part.node = self.tagged(part.node)?;
        if is_friend {
            part.node = self.add(SymbolNode::Affixed(&FRIEND, part.node));
        }
        if let Some(scope) = scope {
            part.node = self.add(SymbolNode::Nested { scope, name: part.node });
        }
        Some(part)
    }

    /// `W` and a module's name: each longer one can be referred to later.
    pub(super) fn module(&mut self, parent: Option<NodeId>) -> Option<NodeId> {
        self.input.expect(b'W')?;
        let partition = self.input.take(b'P');
        let name = self.identifier()?;
        let module = self.add_candidate(SymbolNode::Module { parent, partition, name });
        if self.input.peek() == b'W' { self.module(Some(module)) } else { Some(module) }
    }

    fn unqualified(&mut self, scope: Option<NodeId>) -> Option<LastPart> {
        let mut has_no_return_type = false;
        let node = match self.input.peek_two() {
            [b'0'..=b'9', _] => self.source_name()?,
            [b'U', _] => self.closure_or_unnamed()?,
            [b'C', _] => {
                has_no_return_type = true;
                self.constructor(scope?)?
            }
            [b'D', b'C'] => self.binding()?,
            [b'D', b'0'..=b'5'] => {
                self.input.skip(2);
                has_no_return_type = true;
                self.add(SymbolNode::Destructor { class: scope? })
            }
            [b'c', b'v'] => {
                self.input.skip(2);
                has_no_return_type = true;
                self.conversion()?
            }
            _ => self.operator()?,
        };
        Some(LastPart { node, has_no_return_type })
    }

    fn constructor(&mut self, scope: NodeId) -> Option<NodeId> {
        self.input.expect(b'C')?;
        let inherited = self.input.take(b'I');
        if !matches!(self.input.peek(), b'1'..=b'5') {
            return None;
        }
        self.input.skip(1);
        let class = if inherited { self.a_type()? } else { scope };
        Some(self.add(SymbolNode::Constructor { class }))
    }

    fn binding(&mut self) -> Option<NodeId> {
        self.input.skip(2);
        let names = self.list_until(b'E', Self::source_name)?;
        Some(self.add(SymbolNode::Binding(names)))
    }

    fn conversion(&mut self) -> Option<NodeId> {
        let outer = std::mem::replace(&mut self.in_conversion, true);
        let to = self.a_type()?;
        self.in_conversion = outer;
        Some(self.add(SymbolNode::Conversion(to)))
    }

    /// An operator but for conversions.
    pub(super) fn operator(&mut self) -> Option<NodeId> {
        if self.input.take_text("li") {
            let suffix = self.identifier()?;
            return Some(self.add(SymbolNode::LiteralOperator(suffix)));
        }
        if self.input.peek() == b'v' && self.input.peek_at(1).is_ascii_digit() {
            self.input.skip(2);
            let name = self.identifier()?;
            return Some(self.add(SymbolNode::VendorOperator(name)));
        }
        let op = Op::of(self.input.peek_two())?;
        self.input.skip(2);
        Some(self.add(SymbolNode::Operator(op)))
    }

    pub(super) fn source_name(&mut self) -> Option<NodeId> {
        let name = self.identifier()?;
        Some(self.add(SymbolNode::Text(if is_anonymous(name) { "(anonymous namespace)" } else { name })))
    }

    pub(super) fn identifier(&mut self) -> Option<&'a str> {
        let length = self.input.number()?;
        self.input.slice(length as usize).filter(|it| !it.is_empty())
    }

    fn tagged(&mut self, mut of: NodeId) -> Option<NodeId> {
        while self.input.take(b'B') {
            let tag = self.identifier()?;
            of = self.add(SymbolNode::Tagged { of, tag });
        }
        Some(of)
    }

    /// `Ul…E_`, `Ut_`.
    pub(super) fn closure_or_unnamed(&mut self) -> Option<NodeId> {
        if self.input.take_text("Ut") {
            let number = self.input.ordinal()?.checked_add(1)?;
            return Some(self.add(SymbolNode::Unnamed(number)));
        }
        if !self.input.take_text("Ul") {
            return None;
        }
        let declares =
            |it: &Self| it.input.peek() == b'T' && matches!(it.input.peek_at(1), b'y' | b'n' | b't' | b'p' | b'k');
        let outer = std::mem::replace(&mut self.in_conversion, false);
        let declared = self.list_while(declares, Self::declared_parameter)?;
        self.skip_requirement()?;
        let parameters = self.signature(false, |it| matches!(it.input.peek(), b'E' | b'Q'))?;
        self.skip_requirement()?;
        self.in_conversion = outer;
        self.input.expect(b'E')?;
        let number = self.input.ordinal()?.checked_add(1)?;
        Some(self.add(SymbolNode::Lambda { declared, parameters, number }))
    }

    /// What a lambda or a template requires, which isn't shown.
    pub(super) fn skip_requirement(&mut self) -> Option<()> {
        if self.input.take(b'Q') {
            self.expression()?;
        }
        Some(())
    }

    fn local_name(&mut self) -> Option<Name> {
        self.input.expect(b'Z')?;
        let function = self.encoding()?;
        self.input.expect(b'E')?;
        if self.input.take(b's') {
            self.discriminator();
            let entity = self.add(SymbolNode::Text("string literal"));
            return Some(Name::plain(self.add(SymbolNode::Local { function, entity }), false));
        }
        if self.input.take(b'd') {
            let number = self.input.ordinal()?.checked_add(1)?;
            let entity = self.name()?;
            let node = self.add(SymbolNode::LocalDefault { function, number, entity: entity.node });
            return Some(Name { node, ..entity });
        }
        let entity = self.name()?;
        self.discriminator();
        let node = self.add(SymbolNode::Local { function, entity: entity.node });
        Some(Name { node, ..entity })
    }

    /// `_0`, `__10_`: which of the function's names this is, which isn't shown.
    fn discriminator(&mut self) {
        match self.input.peek_two() {
            [b'_', b'0'..=b'9'] => self.input.skip(2),
            [b'_', b'_'] if self.input.peek_at(2).is_ascii_digit() => {
                self.input.skip(2);
                self.input.digits();
                self.input.take(b'_');
            }
            _ => {}
        }
    }

    /// `S_`, `S0_`, `Ss`: an earlier node, or one of the standard library.
    pub(super) fn substitution(&mut self) -> Option<Earlier> {
        self.input.expect(b'S')?;
        let code = self.input.peek();
        if code.is_ascii_lowercase() {
            self.input.skip(1);
            let of = ABBREVIATIONS.iter().find(|it| it.code == code)?;
            let node = self.add(SymbolNode::Abbreviated(of));
            let is_template = matches!(code, b'a' | b'b');
            if self.input.peek() != b'B' {
                return Some(Earlier { node, is_template });
            }
            let node = self.tagged(node)?;
            self.remember(node);
            return Some(Earlier { node, is_template });
        }
        let at = self.input.sequence()?;
        self.candidates.get(at as usize).copied()
    }

    /// Reads the arguments that may follow a name in an expression.
    pub(super) fn maybe_template(&mut self, name: NodeId) -> Option<NodeId> {
        if self.input.peek() != b'I' {
            return Some(name);
        }
        let arguments: List = self.template_arguments()?;
        Some(self.add(SymbolNode::Template { name, arguments }))
    }
}

/// What GCC calls a namespace without a name.
fn is_anonymous(name: &str) -> bool {
    let mut rest = name.strip_prefix("_GLOBAL_").unwrap_or("").bytes();
    matches!((rest.next(), rest.next()), (Some(b'_' | b'.' | b'$'), Some(b'N')))
}
