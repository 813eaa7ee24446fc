//! Expressions: in template arguments, lengths of arrays, and types of signatures.

use super::{Dialect, Parser};
use crate::operators::{Form, Op};
use crate::tree::{Affix, List, NodeId, SymbolNode};

macro_rules! affixes {
    ($($name:ident: $before:literal, $after:literal;)*) => {
        $(static $name: Affix = Affix { before: $before, after: $after };)*
    };
}

affixes! {
    ALIGNOF: "alignof (", ")";
    CO_AWAIT: "co_await ", "";
    DELETE: "delete ", "";
    DELETE_ARRAY: "delete[] ", "";
    DESTROY: "~", "";
    EXPANDED_TYPE: "typename ", "";
    GLOBAL: "::", "";
    INDEX_DESIGNATOR: "[", "] = ";
    MEMBER_DESIGNATOR: ".", " = ";
    NOEXCEPT: "noexcept (", ")";
    REQUIRES: "requires ", "";
    SIZEOF: "sizeof (", ")";
    THROW: "throw ", "";
    TYPEID: "typeid (", ")";
}

impl<'a> Parser<'a> {
    pub(super) fn expression(&mut self) -> Option<NodeId> {
        self.nested(|it| match it.input.peek_two() {
            [b'L', _] => it.literal(),
            [b'T', _] => it.template_parameter(),
            [b'0'..=b'9', _] => it.base_name(),
            [b'f', b'p'] => it.function_parameter(),
            [b'f', b'L'] if it.input.peek_at(2).is_ascii_digit() => it.function_parameter(),
            [b'f', _] => it.fold(),
            [b'g', b's'] => {
                it.input.skip(2);
                let of = it.expression()?;
                Some(it.add(SymbolNode::Affixed(&GLOBAL, of)))
            }
            [b's', b'r'] => it.qualified_name(),
            [b'o', b'n'] | [b'd', b'n'] => it.base_name(),
            [b'u', _] => it.vendor_expression(),
            code => it.operation(code),
        })
    }

    /// What two letters begin that need no look ahead.
    fn operation(&mut self, code: [u8; 2]) -> Option<NodeId> {
        self.input.skip(2);
        match Op::of(code) {
            Some(op) if op.form() == Form::Prefix => {
                let of = self.expression()?;
                Some(self.add(SymbolNode::Prefix(op, of)))
            }
            Some(op) if op.form() == Form::Step => {
                let prefix = self.input.take(b'_');
                let of = self.expression()?;
                Some(self.add(if prefix { SymbolNode::Prefix(op, of) } else { SymbolNode::Postfix(op, of) }))
            }
            Some(op) if op.form() == Form::Binary => {
                let left = self.expression()?;
                let right = self.expression()?;
                Some(self.add(SymbolNode::Binary(op, left, right)))
            }
            _ => self.special_operation(code),
        }
    }

    fn special_operation(&mut self, code: [u8; 2]) -> Option<NodeId> {
        match &code {
            b"aw" => self.affixed(&CO_AWAIT, Self::expression),
            b"at" => self.affixed(&ALIGNOF, Self::a_type),
            b"az" => self.affixed(&ALIGNOF, Self::expression),
            b"da" => self.affixed(&DELETE_ARRAY, Self::expression),
            b"dl" => self.affixed(&DELETE, Self::expression),
            b"nx" => self.affixed(&NOEXCEPT, Self::expression),
            b"st" => self.affixed(&SIZEOF, Self::a_type),
            b"sz" => self.affixed(&SIZEOF, Self::expression),
            b"te" => self.affixed(&TYPEID, Self::expression),
            b"ti" => self.affixed(&TYPEID, Self::a_type),
            b"tw" => self.affixed(&THROW, Self::expression),
            b"tr" => Some(self.add(SymbolNode::Text("throw"))),
            b"cc" => self.named_cast("const_cast"),
            b"dc" => self.named_cast("dynamic_cast"),
            b"rc" => self.named_cast("reinterpret_cast"),
            b"sc" => self.named_cast("static_cast"),
            b"cl" | b"cp" => self.call(),
            b"cv" => self.cast(),
            b"ix" => {
                let of = self.expression()?;
                let at = self.expression()?;
                Some(self.add(SymbolNode::Index(of, at)))
            }
            b"qu" => {
                let (condition, then, other) = (self.expression()?, self.expression()?, self.expression()?);
                Some(self.add(SymbolNode::Conditional(condition, then, other)))
            }
            b"dt" => self.member("."),
            b"pt" => self.member("->"),
            b"ds" => self.member(".*"),
            b"nw" | b"na" => self.new_expression(),
            b"il" => self.braced(None),
            b"tl" => {
                let of = self.a_type()?;
                self.braced(Some(of))
            }
            b"sp" => {
                let of = self.expression()?;
                Some(self.add(SymbolNode::Expansion(of)))
            }
            b"sP" => {
                let arguments = self.list_until(b'E', Self::template_argument)?;
                Some(self.add(SymbolNode::SizeOfPack(arguments)))
            }
            b"sZ" => {
                let pack = self.expression()?;
                let pack = self.tree.add_list([pack]);
                Some(self.add(SymbolNode::SizeOfPack(pack)))
            }
            b"so" => self.subobject(),
            b"mc" => self.member_pointer_value(),
            b"rq" => self.requires(),
            b"rQ" => {
                self.signature(false, |it| it.input.peek() == b'_')?;
                self.input.expect(b'_')?;
                self.requires()
            }
            _ => None,
        }
    }

    fn affixed(&mut self, affix: &'static Affix, read: impl FnOnce(&mut Self) -> Option<NodeId>) -> Option<NodeId> {
        let of = read(self)?;
        Some(self.add(SymbolNode::Affixed(affix, of)))
    }

    fn named_cast(&mut self, name: &'static str) -> Option<NodeId> {
        let to = self.a_type()?;
        let of = self.expression()?;
        Some(self.add(SymbolNode::NamedCast { name, to, of }))
    }

    fn call(&mut self) -> Option<NodeId> {
        let callee = self.expression()?;
        let arguments = self.list_until(b'E', Self::expression)?;
        Some(self.add(SymbolNode::Call { callee, arguments }))
    }

    fn cast(&mut self) -> Option<NodeId> {
        let to = self.a_type()?;
        if self.input.take(b'_') {
            let arguments = self.list_until(b'E', Self::expression)?;
            return Some(self.add(SymbolNode::Construct { of: to, arguments }));
        }
        let of = self.expression()?;
        Some(self.add(SymbolNode::Cast { to, of }))
    }

    fn member(&mut self, by: &'static str) -> Option<NodeId> {
        let object = self.expression()?;
        // GCC has written operators without their `on`.
        let is_operator = by != ".*" && Op::of(self.input.peek_two()).is_some();
        let name = if is_operator { self.operator()? } else { self.expression()? };
        Some(self.add(SymbolNode::Member { object, by, name }))
    }

    fn new_expression(&mut self) -> Option<NodeId> {
        let placement = self.list_until(b'_', Self::expression)?;
        let of = self.a_type()?;
        let initial = match self.input.peek_two() {
            [b'E', _] => {
                self.input.skip(1);
                None
            }
            [b'p', b'i'] => {
                self.input.skip(2);
                let values = self.list_until(b'E', Self::expression)?;
                Some(self.add(SymbolNode::Parenthesized(values)))
            }
            [b'i', b'l'] => Some(self.expression()?),
            _ => return None,
        };
        Some(self.add(SymbolNode::New { placement, of, initial }))
    }

    fn braced(&mut self, of: Option<NodeId>) -> Option<NodeId> {
        let values = self.list_until(b'E', Self::braced_value)?;
        Some(self.add(SymbolNode::Braced { of, values }))
    }

    /// A value of a braced list, which may say where it belongs.
    fn braced_value(&mut self) -> Option<NodeId> {
        self.nested(|it| {
            let (affix, by) = match &it.input.peek_two() {
                b"di" => {
                    it.input.skip(2);
                    (&MEMBER_DESIGNATOR, it.source_name()?)
                }
                b"dx" => {
                    it.input.skip(2);
                    (&INDEX_DESIGNATOR, it.expression()?)
                }
                b"dX" => {
                    it.input.skip(2);
                    let (from, to, value) = (it.expression()?, it.expression()?, it.braced_value()?);
                    return Some(it.add(SymbolNode::DesignatedRange { from, to, value }));
                }
                _ => return it.expression(),
            };
            let value = it.braced_value()?;
            Some(it.add(SymbolNode::Designated { affix, by, value }))
        })
    }

    /// `fl`, `fr`: over a pack. `fL`, `fR`: over a pack and a value.
    fn fold(&mut self) -> Option<NodeId> {
        let kind = self.input.peek_at(1);
        self.input.skip(2);
        let by = Op::of(self.input.peek_two())?;
        self.input.skip(2);
        let first = self.expression()?;
        let (left, right) = match kind {
            b'l' => (None, Some(first)),
            b'r' => (Some(first), None),
            b'L' | b'R' => (Some(first), Some(self.expression()?)),
            _ => return None,
        };
        Some(self.add(SymbolNode::Fold { by, left, right }))
    }

    /// `fp_`, `fp0_`, `fL0p_`, `fpT`.
    fn function_parameter(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        if self.input.take(b'L') {
            self.input.number()?;
        }
        self.input.expect(b'p')?;
        if self.input.take(b'T') {
            return Some(self.add(SymbolNode::Text("this")));
        }
        self.qualifiers();
        let number = self.input.ordinal()?.checked_add(1)?;
        Some(self.add(SymbolNode::FunctionParameter { number }))
    }

    fn vendor_expression(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let callee = self.source_name()?;
        let arguments = self.list_until(b'E', Self::template_argument)?;
        Some(self.add(SymbolNode::Call { callee, arguments }))
    }

    /// `L…E`: a value by its type, or another symbol.
    pub(super) fn literal(&mut self) -> Option<NodeId> {
        self.input.expect(b'L')?;
        if self.input.take_text("_Z") {
            let symbol = self.encoding()?;
            self.input.expect(b'E')?;
            return Some(self.add(SymbolNode::External(symbol)));
        }
        let of = self.a_type()?;
        let value = self.input.slice_while(|it| it != b'E' && (it.is_ascii_alphanumeric() || it == b'_'));
        self.input.expect(b'E')?;
        Some(self.add(SymbolNode::Literal { of, value }))
    }

    /// The last part of a dependent name: a name, an operator, or `~` and what is destroyed.
    fn base_name(&mut self) -> Option<NodeId> {
        match &self.input.peek_two() {
            b"on" => {
                self.input.skip(2);
                let name = if self.input.take_text("cv") {
                    let to = self.a_type()?;
                    self.add(SymbolNode::Conversion(to))
                } else {
                    self.operator()?
                };
                self.maybe_template(name)
            }
            b"dn" => {
                self.input.skip(2);
                let of = if self.input.peek().is_ascii_digit() { self.plain_name()? } else { self.a_type()? };
                Some(self.add(SymbolNode::Affixed(&DESTROY, of)))
            }
            _ => self.plain_name(),
        }
    }

    /// An identifier and its arguments, which can't be referred to later.
    fn plain_name(&mut self) -> Option<NodeId> {
        let name = self.source_name()?;
        self.maybe_template(name)
    }

    /// `sr`: a dependent name, and what it is in.
    fn qualified_name(&mut self) -> Option<NodeId> {
        self.input.expect(b's')?;
        self.input.expect(b'r')?;
        let scope = match self.input.peek() {
            b'0'..=b'9' => {
                self.has_met_plain_qualifier = true;
                match self.dialect {
                    Dialect::Type => self.plain_qualifier()?,
                    Dialect::Levels => self.qualifier_levels(None)?,
                }
            }
            b'N' => {
                self.has_met_plain_qualifier = true;
                match self.dialect {
                    Dialect::Type => self.a_type()?,
                    Dialect::Levels => {
                        self.input.skip(1);
                        let first = if self.input.peek().is_ascii_digit() { None } else { Some(self.a_type()?) };
                        self.qualifier_levels(first)?
                    }
                }
            }
            _ => self.a_type()?,
        };
        let name = self.base_name()?;
        Some(self.add(SymbolNode::Nested { scope, name }))
    }

    /// A class template's instance as GCC writes it. One that isn't a template can't be dependent, so it is the first of
    /// Clang's levels; and so is one that an `E` follows.
    fn plain_qualifier(&mut self) -> Option<NodeId> {
        let name = self.source_name()?;
        if self.input.peek() != b'I' {
            return None;
        }
        self.remember(name);
        let arguments: List = self.template_arguments()?;
        let node = self.add_candidate(SymbolNode::Template { name, arguments });
        (self.input.peek() != b'E').then_some(node)
    }

    fn qualifier_levels(&mut self, mut scope: Option<NodeId>) -> Option<NodeId> {
        while !self.input.take(b'E') {
            let name = self.plain_name()?;
            scope = Some(match scope {
                Some(scope) => self.add(SymbolNode::Nested { scope, name }),
                None => name,
            });
        }
        scope
    }

    /// A part of an object, at an offset.
    fn subobject(&mut self) -> Option<NodeId> {
        let part = self.a_type()?;
        let of = self.expression()?;
        let offset = self.input.signed().unwrap_or("0");
        while self.input.take(b'_') {
            self.input.digits();
        }
        self.input.take(b'p');
        self.input.expect(b'E')?;
        Some(self.add(SymbolNode::Subobject { of, part, offset }))
    }

    fn member_pointer_value(&mut self) -> Option<NodeId> {
        let to = self.a_type()?;
        let of = self.expression()?;
        self.input.signed();
        self.input.expect(b'E')?;
        Some(self.add(SymbolNode::Cast { to, of }))
    }

    fn requires(&mut self) -> Option<NodeId> {
        let requirements = self.list_until(b'E', Self::requirement)?;
        Some(self.add(SymbolNode::Requires(requirements)))
    }

    fn requirement(&mut self) -> Option<NodeId> {
        if self.input.take(b'T') {
            return self.affixed(&EXPANDED_TYPE, Self::a_type);
        }
        if self.input.take(b'Q') {
            return self.affixed(&REQUIRES, Self::expression);
        }
        self.input.expect(b'X')?;
        let of = self.expression()?;
        self.input.take(b'N');
        // The concept that its type has to satisfy isn't shown.
        if self.input.take(b'R') {
            self.name()?;
        }
        Some(of)
    }
}
