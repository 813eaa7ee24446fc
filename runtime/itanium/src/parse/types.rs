//! Types.

use super::Parser;
use crate::tree::{Affix, NodeId, Qualifiers, SymbolNode};

static NOEXCEPT: Affix = Affix { before: " noexcept(", after: ")" };
static CLASS: Affix = Affix { before: "class ", after: "" };
static UNION: Affix = Affix { before: "union ", after: "" };
static ENUM: Affix = Affix { before: "enum ", after: "" };

impl<'a> Parser<'a> {
    pub(super) fn a_type(&mut self) -> Option<NodeId> {
        self.nested(Self::type_unchecked)
    }

    fn type_unchecked(&mut self) -> Option<NodeId> {
        let first = self.input.peek();
        if let Some(text) = builtin(first) {
            self.input.skip(1);
            return Some(self.add(SymbolNode::Text(text)));
        }
        match first {
            b'r' | b'V' | b'K' => self.qualified_type(),
            b'P' => self.wrapped(SymbolNode::Pointer),
            b'R' => self.wrapped(SymbolNode::LvalueReference),
            b'O' => self.wrapped(SymbolNode::RvalueReference),
            b'C' => self.wrapped(|of| SymbolNode::Suffixed { of, suffix: " complex" }),
            b'G' => self.wrapped(|of| SymbolNode::Suffixed { of, suffix: " imaginary" }),
            b'U' => self.vendor_qualified(),
            b'u' => self.vendor_type(),
            b'F' => self.function_type(Qualifiers::default()),
            b'A' => self.array_type(),
            b'M' => self.member_pointer(),
            b'D' => self.d_type(),
            b'T' => self.t_type(),
            b'S' if self.input.peek_at(1) != b't' => self.substituted_type(),
            b'N' | b'Z' | b'S' | b'W' | b'L' | b'0'..=b'9' => self.class_type(),
            _ => None,
        }
    }

    fn wrapped(&mut self, node: impl FnOnce(NodeId) -> SymbolNode<'a>) -> Option<NodeId> {
        self.input.skip(1);
        let of = self.a_type()?;
        Some(self.add_candidate(node(of)))
    }

    pub(super) fn qualifiers(&mut self) -> Qualifiers {
        let mut qualifiers = Qualifiers::default();
        let all = [(b'r', Qualifiers::RESTRICT), (b'V', Qualifiers::VOLATILE), (b'K', Qualifiers::CONST)];
        for (code, it) in all {
            if self.input.take(code) {
                qualifiers = qualifiers.with(it);
            }
        }
        qualifiers
    }

    /// Qualifiers and their type are one candidate, and so are those of a function.
    fn qualified_type(&mut self) -> Option<NodeId> {
        let qualifiers = self.qualifiers();
        if matches!(self.input.peek_two(), [b'F', _] | [b'D', b'o' | b'O' | b'w' | b'x']) {
            return self.function_type(qualifiers);
        }
        let of = self.a_type()?;
        Some(self.add_candidate(SymbolNode::Qualified { of, qualifiers }))
    }

    /// `U`: a lambda, an unnamed type, or a vendor's qualifier.
    fn vendor_qualified(&mut self) -> Option<NodeId> {
        if matches!(self.input.peek_at(1), b'l' | b't') {
            return self.class_type();
        }
        self.input.skip(1);
        let by = self.source_name()?;
        let by = self.maybe_template(by)?;
        let of = self.a_type()?;
        Some(self.add_candidate(SymbolNode::VendorQualified { of, by }))
    }

    fn vendor_type(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let name = self.source_name()?;
        let node = self.maybe_template(name)?;
        self.remember(node);
        Some(node)
    }

    fn class_type(&mut self) -> Option<NodeId> {
        let node = self.name()?.node;
        self.remember(node);
        Some(node)
    }

    fn substituted_type(&mut self) -> Option<NodeId> {
        let earlier = self.substitution()?;
        if let (SymbolNode::Module { .. }, true) = (self.tree.get(earlier.node), self.input.peek().is_ascii_digit()) {
            let name = self.source_name()?;
            let node = self.add_candidate(SymbolNode::InModule { of: name, module: earlier.node });
            return self.with_arguments(node);
        }
        // After the class that a conversion operator returns, the arguments are the operator's.
        if self.in_conversion && !earlier.is_template {
            return Some(earlier.node);
        }
        self.with_arguments(earlier.node)
    }

    /// Reads the arguments that may follow a template.
    fn with_arguments(&mut self, name: NodeId) -> Option<NodeId> {
        let node = self.maybe_template(name)?;
        if node != name {
            self.remember(node);
        }
        Some(node)
    }

    /// `T`: a template parameter, or a class that a keyword precedes.
    fn t_type(&mut self) -> Option<NodeId> {
        let affix = match self.input.peek_at(1) {
            b's' => &CLASS,
            b'u' => &UNION,
            b'e' => &ENUM,
            _ => {
                let parameter = self.template_parameter()?;
                self.remember(parameter);
                return if self.in_conversion { Some(parameter) } else { self.with_arguments(parameter) };
            }
        };
        self.input.skip(2);
        let of = self.name()?.node;
        Some(self.add_candidate(SymbolNode::Affixed(affix, of)))
    }

    pub(super) fn function_type(&mut self, qualifiers: Qualifiers) -> Option<NodeId> {
        let exceptions = self.exceptions()?;
        let is_safe = self.input.take_text("Dx");
        self.input.expect(b'F')?;
        // `extern "C"` isn't shown.
        self.input.take(b'Y');
        let outer = std::mem::replace(&mut self.in_conversion, false);
        let ends = |it: &Self| matches!(it.input.peek_two(), [b'E', _] | [b'R' | b'O', b'E']);
        let signature = self.signature(true, ends)?;
        self.in_conversion = outer;
        let reference = match self.input.peek() {
            b'R' => Qualifiers::LVALUE,
            b'O' => Qualifiers::RVALUE,
            _ => Qualifiers::default(),
        };
        self.input.skip(usize::from(!reference.is_empty()));
        self.input.expect(b'E')?;
        let safe = if is_safe { Qualifiers::TRANSACTION_SAFE } else { Qualifiers::default() };
        let qualifiers = qualifiers.with(reference).with(safe);
        Some(self.add_candidate(SymbolNode::FunctionType { signature, qualifiers, exceptions }))
    }

    fn exceptions(&mut self) -> Option<Option<NodeId>> {
        let node = if self.input.take_text("Do") {
            SymbolNode::Text(" noexcept")
        } else if self.input.take_text("DO") {
            let of = self.expression()?;
            self.input.expect(b'E')?;
            SymbolNode::Affixed(&NOEXCEPT, of)
        } else if self.input.take_text("Dw") {
            SymbolNode::Throws(self.list_until(b'E', Self::a_type)?)
        } else {
            return Some(None);
        };
        Some(Some(self.add(node)))
    }

    fn array_type(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let length = self.length()?;
        self.input.expect(b'_')?;
        let of = self.a_type()?;
        Some(self.add_candidate(SymbolNode::Array { length, of }))
    }

    /// A number, an expression, or nothing before `_`.
    fn length(&mut self) -> Option<Option<NodeId>> {
        if self.input.peek() == b'_' {
            return Some(None);
        }
        let length = match self.input.digits() {
            "" => self.expression()?,
            digits => self.add(SymbolNode::Text(digits)),
        };
        Some(Some(length))
    }

    fn member_pointer(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let class = self.a_type()?;
        let of = self.a_type()?;
        Some(self.add_candidate(SymbolNode::MemberPointer { class, of }))
    }

    /// Types whose code begins with `D`.
    fn d_type(&mut self) -> Option<NodeId> {
        if let Some(text) = d_builtin(self.input.peek_at(1)) {
            self.input.skip(2);
            return Some(self.add(SymbolNode::Text(text)));
        }
        match self.input.peek_at(1) {
            b'o' | b'O' | b'w' | b'x' => self.function_type(Qualifiers::default()),
            b't' | b'T' => {
                let node = self.decltype()?;
                self.remember(node);
                Some(node)
            }
            b'p' => {
                self.input.skip(1);
                self.wrapped(SymbolNode::Expansion)
            }
            b'v' => self.vector_type(),
            b'F' => self.float_of_bits(),
            b'B' | b'U' => self.integer_of_bits(),
            b'k' => self.constrained("auto"),
            b'K' => self.constrained("decltype(auto)"),
            _ => None,
        }
    }

    pub(super) fn decltype(&mut self) -> Option<NodeId> {
        static DECLTYPE: Affix = Affix { before: "decltype (", after: ")" };
        self.input.skip(2);
        let of = self.expression()?;
        self.input.expect(b'E')?;
        Some(self.add(SymbolNode::Affixed(&DECLTYPE, of)))
    }

    fn vector_type(&mut self) -> Option<NodeId> {
        self.input.skip(2);
        let length = match self.input.digits() {
            "" => {
                self.input.expect(b'_')?;
                self.length()?
            }
            digits => Some(self.add(SymbolNode::Text(digits))),
        };
        self.input.expect(b'_')?;
        let of = if self.input.take(b'p') { self.add(SymbolNode::Text("pixel")) } else { self.a_type()? };
        Some(self.add_candidate(SymbolNode::Vector { length, of }))
    }

    /// `DF16_`, `DF32x`, `DF16b`.
    fn float_of_bits(&mut self) -> Option<NodeId> {
        self.input.skip(2);
        let bits = self.input.digits();
        let suffix = match self.input.peek() {
            b'_' => "",
            b'x' => "x",
            b'b' if bits == "16" => "b",
            _ => return None,
        };
        self.input.skip(1);
        (!bits.is_empty()).then(|| self.add(SymbolNode::FloatOfBits { bits, suffix }))
    }

    fn integer_of_bits(&mut self) -> Option<NodeId> {
        let signed = self.input.peek_at(1) == b'B';
        self.input.skip(2);
        let bits = self.length()??;
        self.input.expect(b'_')?;
        Some(self.add_candidate(SymbolNode::IntegerOfBits { bits, signed }))
    }

    fn constrained(&mut self, of: &'static str) -> Option<NodeId> {
        self.input.skip(2);
        let by = self.name()?.node;
        Some(self.add(SymbolNode::Constrained { by, of }))
    }
}

fn builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'v' => "void",
        b'w' => "wchar_t",
        b'b' => "bool",
        b'c' => "char",
        b'a' => "signed char",
        b'h' => "unsigned char",
        b's' => "short",
        b't' => "unsigned short",
        b'i' => "int",
        b'j' => "unsigned int",
        b'l' => "long",
        b'm' => "unsigned long",
        b'x' => "long long",
        b'y' => "unsigned long long",
        b'n' => "__int128",
        b'o' => "unsigned __int128",
        b'f' => "float",
        b'd' => "double",
        b'e' => "long double",
        b'g' => "__float128",
        b'z' => "...",
        _ => return None,
    })
}

fn d_builtin(code: u8) -> Option<&'static str> {
    Some(match code {
        b'd' => "decimal64",
        b'e' => "decimal128",
        b'f' => "decimal32",
        b'h' => "half",
        b'i' => "char32_t",
        b's' => "char16_t",
        b'u' => "char8_t",
        b'a' => "auto",
        b'c' => "decltype(auto)",
        b'n' => "std::nullptr_t",
        _ => return None,
    })
}
