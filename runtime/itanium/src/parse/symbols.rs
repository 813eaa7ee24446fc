//! Whole symbols: functions and variables, tables and thunks, and the clones of functions.

use super::Parser;
use crate::tree::{Affix, List, NodeId, SymbolNode};

macro_rules! affixes {
    ($($name:ident: $before:literal, $after:literal;)*) => {
        $(static $name: Affix = Affix { before: $before, after: $after };)*
    };
}

affixes! {
    VTABLE: "{vtable(", ")}";
    VTT: "{vtt(", ")}";
    TYPEINFO: "typeinfo for ", "";
    TYPEINFO_NAME: "typeinfo name for ", "";
    PARAMETER_OBJECT: "template parameter object for ", "";
    TLS_WRAPPER: "TLS wrapper function for ", "";
    TLS_INIT: "TLS init function for ", "";
    GUARD: "guard variable for ", "";
    TRANSACTION: "transaction clone for ", "";
    NON_TRANSACTION: "non-transaction clone for ", "";
    HIDDEN_ALIAS: "hidden alias for ", "";
    MODULE_INITIALIZER: "initializer for module ", "";
}

impl<'a> Parser<'a> {
    /// Reads everything.
    pub(super) fn symbol(&mut self) -> Option<NodeId> {
        let mut symbol = self.encoding()?;
        while self.input.peek() == b'.' {
            let suffix = self.clone_suffix()?;
            symbol = self.add(SymbolNode::Clone { of: symbol, suffix });
        }
        self.input.is_at_end().then_some(symbol)
    }

    /// `.isra.0`, `.cold`: a word, and numbers.
    fn clone_suffix(&mut self) -> Option<&'a str> {
        let mut ahead = 1;
        let is_word = |it: u8| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'$');
        while is_word(self.input.peek_at(ahead)) {
            ahead += 1;
        }
        while ahead > 1 && self.input.peek_at(ahead) == b'.' && self.input.peek_at(ahead + 1).is_ascii_digit() {
            ahead += 2;
            while self.input.peek_at(ahead).is_ascii_digit() {
                ahead += 1;
            }
        }
        self.input.slice(ahead).filter(|it| it.len() > 1)
    }

    pub(super) fn encoding(&mut self) -> Option<NodeId> {
        self.nested(|it| match it.input.peek_two() {
            [b'T', _] => it.table_or_thunk(),
            [b'G', _] => it.guard_or_clone(),
            _ => it.function_or_variable(),
        })
    }

    fn function_or_variable(&mut self) -> Option<NodeId> {
        let name = self.name()?;
        if self.input.take_text("Ua9enable_if") {
            self.template_arguments()?;
        }
        if self.is_at_end_of_encoding() {
            return Some(name.node);
        }
        let signature = self.signature(name.returns, Self::is_at_end_of_encoding)?;
        // What a function requires isn't part of what it takes.
        if self.input.take(b'Q') {
            self.expression()?;
        }
        Some(self.add(SymbolNode::Function {
            name: name.node,
            signature,
            returns: name.returns,
            explicit_object: name.explicit_object,
            qualifiers: name.qualifiers,
        }))
    }

    /// A signature can't begin with any of these, so a name that they follow is that of a variable.
    fn is_at_end_of_encoding(&self) -> bool {
        matches!(self.input.peek(), b'E' | b'.' | b'_' | b'Q') || self.input.is_at_end()
    }

    /// Reads the types of parameters, after that of what is returned, if any.
    pub(super) fn signature(&mut self, returns: bool, ends: impl Fn(&Self) -> bool) -> Option<List> {
        let start = self.pending.len();
        if returns {
            let returned = self.a_type()?;
            self.pending.push(returned);
        }
        if !self.input.take(b'v') {
            while !ends(self) {
                let parameter = self.a_type()?;
                self.pending.push(parameter);
            }
        }
        let signature = self.tree.add_list(self.pending.drain(start..));
        ends(self).then_some(signature)
    }

    fn table_or_thunk(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let kind = self.input.peek();
        if matches!(kind, b'h' | b'v') {
            return self.thunk();
        }
        self.input.skip(1);
        let (affix, of) = match kind {
            b'V' => (&VTABLE, self.a_type()?),
            b'T' => (&VTT, self.a_type()?),
            b'I' => (&TYPEINFO, self.a_type()?),
            b'S' => (&TYPEINFO_NAME, self.a_type()?),
            b'A' => (&PARAMETER_OBJECT, self.template_argument()?),
            b'W' => (&TLS_WRAPPER, self.name()?.node),
            b'H' => (&TLS_INIT, self.name()?.node),
            b'C' => return self.construction_table(),
            b'c' => return self.covariant_thunk(),
            _ => return None,
        };
        Some(self.add(SymbolNode::Affixed(affix, of)))
    }

    /// The table of a base while the whole is constructed. The whole comes first, and the base's offset between them.
    fn construction_table(&mut self) -> Option<NodeId> {
        let whole = self.a_type()?;
        self.input.signed()?;
        self.input.expect(b'_')?;
        let base = self.a_type()?;
        Some(self.add(SymbolNode::ConstructionTable { base, whole }))
    }

    fn thunk(&mut self) -> Option<NodeId> {
        let this = self.call_offset()?;
        let function = self.encoding()?;
        Some(self.add(SymbolNode::Thunk { this, result: None, function }))
    }

    fn covariant_thunk(&mut self) -> Option<NodeId> {
        let this = self.call_offset()?;
        let result = self.call_offset()?;
        let result = Some(self.add(SymbolNode::Text(result)));
        let function = self.encoding()?;
        Some(self.add(SymbolNode::Thunk { this, result, function }))
    }

    /// `h16_` or `v0_n24_`, without the last `_`.
    fn call_offset(&mut self) -> Option<&'a str> {
        let mut ahead = 1;
        let mut left = match self.input.peek() {
            b'h' => 1,
            b'v' => 2,
            _ => return None,
        };
        loop {
            match self.input.peek_at(ahead) {
                b'_' if left == 1 => break,
                b'_' => left -= 1,
                b'n' | b'0'..=b'9' => {}
                _ => return None,
            }
            ahead += 1;
        }
        let offset = self.input.slice(ahead)?;
        self.input.skip(1);
        Some(offset)
    }

    fn guard_or_clone(&mut self) -> Option<NodeId> {
        self.input.skip(1);
        let kind = self.input.peek();
        self.input.skip(1);
        let (affix, of) = match kind {
            b'V' => (&GUARD, self.name()?.node),
            b'R' => return self.temporary(),
            b'A' => (&HIDDEN_ALIAS, self.encoding()?),
            b'I' => (&MODULE_INITIALIZER, self.module(None)?),
            b'T' if self.input.take(b't') => (&TRANSACTION, self.encoding()?),
            b'T' if self.input.take(b'n') => (&NON_TRANSACTION, self.encoding()?),
            _ => return None,
        };
        Some(self.add(SymbolNode::Affixed(affix, of)))
    }

    /// A reference's temporary. Old compilers don't number it.
    fn temporary(&mut self) -> Option<NodeId> {
        let of = self.name()?.node;
        let number =
            if self.is_at_end_of_encoding() && self.input.peek() != b'_' { 0 } else { self.input.sequence()? };
        Some(self.add(SymbolNode::Temporary { of, number }))
    }
}
