//! Template arguments, template parameters, and how lambdas declare theirs.

use super::Parser;
use crate::tree::{Declared, List, NodeId, SymbolNode};

impl Parser<'_> {
    /// `I…E`.
    pub(super) fn template_arguments(&mut self) -> Option<List> {
        self.input.expect(b'I')?;
        let outer = std::mem::replace(&mut self.in_conversion, false);
        let arguments = self.list_while(|it| !matches!(it.input.peek(), b'E' | b'Q'), Self::template_argument)?;
        self.skip_requirement()?;
        self.input.expect(b'E')?;
        self.in_conversion = outer;
        Some(arguments)
    }

    pub(super) fn template_argument(&mut self) -> Option<NodeId> {
        match self.input.peek_two() {
            [b'X', _] => {
                self.input.skip(1);
                let value = self.expression()?;
                self.input.expect(b'E')?;
                Some(value)
            }
            [b'L', _] => self.nested(Self::literal),
            // `I` is how compilers wrote `J` at first.
            [b'J' | b'I', _] => self.nested(|it| {
                it.input.skip(1);
                let items = it.list_until(b'E', Self::template_argument)?;
                Some(it.add(SymbolNode::Pack(items)))
            }),
            // Compilers declare the parameter where the argument doesn't tell its kind.
            [b'T', b'y' | b'n' | b't' | b'p' | b'k'] => self.nested(|it| {
                it.declared_parameter()?;
                it.template_argument()
            }),
            _ => self.a_type(),
        }
    }

    /// `T_`, `T0_`. Of which template one of several levels (`TL0__`) is follows from where it is printed.
    pub(super) fn template_parameter(&mut self) -> Option<NodeId> {
        self.input.expect(b'T')?;
        if self.input.take(b'L') {
            self.input.number()?;
            self.input.expect(b'_')?;
        }
        let index = self.input.ordinal()?;
        Some(self.add(SymbolNode::Parameter { index }))
    }

    /// `Ty`, `Tn` and a type, `Tt…E`, `Tk` and a concept, `Tp` and one of them.
    pub(super) fn declared_parameter(&mut self) -> Option<NodeId> {
        self.nested(|it| {
            let kind = it.input.peek_at(1);
            it.input.skip(2);
            let (kind, of) = match kind {
                b'y' => (Declared::Type, None),
                b'n' => (Declared::Value, Some(it.a_type()?)),
                b'k' => (Declared::Constrained, Some(it.name()?.node)),
                b'p' => (Declared::Pack, Some(it.declared_parameter()?)),
                b't' => {
                    let inner =
                        it.list_while(|it| !matches!(it.input.peek(), b'E' | b'Q'), Self::declared_parameter)?;
                    it.skip_requirement()?;
                    it.input.expect(b'E')?;
                    (Declared::Template, Some(it.add(SymbolNode::Pack(inner))))
                }
                _ => return None,
            };
            Some(it.add(SymbolNode::Declared { kind, of }))
        })
    }
}
