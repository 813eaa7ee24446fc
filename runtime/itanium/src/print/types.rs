//! Types. In C++ a name is inside its type: `int (*name)(float)`.
//!
//! A type is some modifiers (`*`, `&`, `const`) and a core. The core of a function or an array has what follows the name,
//! and so has the type of what a function returns; modifiers stand between the two in parentheses. So printing a type
//! takes a function that prints what is inside it ([`Inside`]).

use super::{Binds, Meaning, Modifier, Printer};
use crate::tree::{List, NodeId, Qualifiers, SymbolNode};

/// Prints what is inside a type. It is told whether it is within the parentheses around modifiers.
type Inside<'f, 't, 'a> = &'f mut dyn FnMut(&mut Printer<'t, 'a>, bool) -> Option<()>;

impl<'t, 'a> Printer<'t, 'a> {
    pub(super) fn type_or_expression(&mut self, id: NodeId, node: SymbolNode<'a>) -> Option<()> {
        match node {
            SymbolNode::Qualified { .. }
            | SymbolNode::VendorQualified { .. }
            | SymbolNode::Pointer(_)
            | SymbolNode::LvalueReference(_)
            | SymbolNode::RvalueReference(_)
            | SymbolNode::Suffixed { .. }
            | SymbolNode::MemberPointer { .. }
            | SymbolNode::Array { .. }
            | SymbolNode::FunctionType { .. }
            | SymbolNode::Parameter { .. } => self.declare(id, &mut |_, _| Some(())),
            SymbolNode::Vector { length, of } => {
                self.node(of)?;
                self.write(" __vector(")?;
                if let Some(length) = length {
                    self.node(length)?;
                }
                self.write(")")
            }
            SymbolNode::FloatOfBits { bits, suffix } => self.float_of_bits(bits, suffix),
            SymbolNode::IntegerOfBits { bits, signed } => {
                self.write(if signed { "_BitInt(" } else { "unsigned _BitInt(" })?;
                self.node(bits)?;
                self.write(")")
            }
            SymbolNode::Pack(items) => self.list(items),
            SymbolNode::Expansion(pattern) => self.expansion(pattern),
            SymbolNode::Constrained { by, of } => {
                self.node(by)?;
                self.write(" ")?;
                self.write(of)
            }
            SymbolNode::Throws(types) => {
                self.write(" throw")?;
                self.parenthesized(self.tree.list(types))
            }
            node => self.expression(node),
        }
    }

    fn float_of_bits(&mut self, bits: &str, suffix: &str) -> Option<()> {
        if suffix == "b" {
            return self.write("std::bfloat16_t");
        }
        self.write("_Float")?;
        self.write(bits)?;
        self.write(suffix)
    }

    /// Prints a type, and what is inside it.
    fn declare(&mut self, id: NodeId, inside: Inside<'_, 't, 'a>) -> Option<()> {
        self.declare_qualified(Qualifiers::default(), id, inside)
    }

    /// Prints a type that has more qualifiers than it says.
    fn declare_qualified(&mut self, more: Qualifiers, id: NodeId, inside: Inside<'_, 't, 'a>) -> Option<()> {
        self.nested(|it| {
            let outer = it.meaning;
            let base = it.modifiers.len();
            if !more.is_empty() {
                it.modifiers.push((Modifier::Qualified(more), outer));
            }
            let core = it.core(id, base)?;
            match it.tree.get(core) {
                SymbolNode::FunctionType { signature, qualifiers, exceptions } => {
                    let qualifiers = qualifiers.with(it.take_qualifiers(base));
                    it.function_type(signature, qualifiers, exceptions, (base, outer), inside)?;
                }
                SymbolNode::Array { length, of } => it.array_type(length, of, (base, outer), inside)?,
                SymbolNode::Parameter { index } => {
                    it.automatic(index)?;
                    it.modifiers_from(base)?;
                    inside(it, false)?;
                }
                _ => {
                    it.node(core)?;
                    it.modifiers_from(base)?;
                    it.within(outer, |it| inside(it, false))?;
                }
            }
            it.modifiers.truncate(base);
            it.meaning = outer;
            Some(())
        })
    }

    /// Puts a type's modifiers aside, and returns what they modify. Afterwards the meaning is the core's.
    fn core(&mut self, mut id: NodeId, base: usize) -> Option<NodeId> {
        loop {
            self.step()?;
            let (modifier, of) = match self.tree.get(id) {
                SymbolNode::Pointer(of) => (Modifier::Pointer, of),
                SymbolNode::LvalueReference(of) => (Modifier::Lvalue, of),
                SymbolNode::RvalueReference(of) => (Modifier::Rvalue, of),
                SymbolNode::Qualified { of, qualifiers } => (Modifier::Qualified(qualifiers), of),
                SymbolNode::VendorQualified { of, by } => (Modifier::VendorQualified(by), of),
                SymbolNode::Suffixed { of, suffix } => (Modifier::Suffixed(suffix), of),
                SymbolNode::MemberPointer { class, of } => (Modifier::Member(class), of),
                SymbolNode::Parameter { index } => match self.argument(index)? {
                    Some(argument) => {
                        id = argument;
                        continue;
                    }
                    None => return Some(id),
                },
                _ => return Some(id),
            };
            self.add_modifier(modifier, base);
            id = of;
        }
    }

    /// Adds a modifier inside of the others. A reference to a reference is one, and `const` is once.
    fn add_modifier(&mut self, modifier: Modifier, base: usize) {
        let meaning = self.meaning;
        let outer = self.modifiers.get_mut(base..).and_then(|it| it.last_mut());
        match (outer, modifier) {
            (Some((outer @ (Modifier::Lvalue | Modifier::Rvalue), _)), Modifier::Lvalue) => *outer = Modifier::Lvalue,
            (Some((Modifier::Lvalue | Modifier::Rvalue, _)), Modifier::Rvalue) => {}
            (Some((Modifier::Qualified(outer), _)), Modifier::Qualified(it)) => *outer = outer.with(it),
            _ => self.modifiers.push((modifier, meaning)),
        }
    }

    /// Returns what a template parameter stands for, and changes the meaning to that in which to print it. `None` within: it is
    /// a lambda's.
    fn argument(&mut self, index: u32) -> Option<Option<NodeId>> {
        let scope = self.scope()?;
        let Binds::Function(arguments) = scope.kind else { return Some(None) };
        let mut argument = *self.tree.list(arguments).get(index as usize)?;
        if let (SymbolNode::Pack(elements), Some(at)) = (self.tree.get(argument), self.meaning.element) {
            let elements = self.tree.list(elements);
            self.pack_length = Some(elements.len());
            match elements.get(at) {
                Some(element) => argument = *element,
                // What is printed of an empty pack is taken back.
                None if elements.is_empty() => argument = self.tree.nothing(),
                None => return None,
            }
        }
        self.meaning = Meaning { scope: scope.parent, element: None };
        Some(Some(argument))
    }

    /// A lambda's template parameter: one that it declares, or a parameter that is `auto`.
    fn automatic(&mut self, index: u32) -> Option<()> {
        if let Some(Binds::Lambda(declared)) = self.scope().map(|it| it.kind)
            && (index as usize) < self.tree.list(declared).len()
        {
            return self.declared_name(declared, index as usize);
        }
        self.write("auto:")?;
        self.write_number(u64::from(index) + 1)
    }

    fn function_type(
        &mut self,
        signature: List,
        qualifiers: Qualifiers,
        exceptions: Option<NodeId>,
        (base, outer): (usize, Meaning),
        inside: Inside<'_, 't, 'a>,
    ) -> Option<()> {
        let (returned, parameters) = self.tree.list(signature).split_first()?;
        let end = self.modifiers.len();
        self.declare(*returned, &mut |it, is_parenthesized| {
            let is_attached = is_parenthesized && it.text.ends_with(['(', '*']);
            it.write(if is_attached { "" } else { " " })?;
            it.group(base, end, outer, inside)?;
            it.parenthesized(parameters)?;
            it.qualifiers(qualifiers)?;
            exceptions.map_or(Some(()), |exceptions| it.node(exceptions))
        })
    }

    fn array_type(
        &mut self,
        length: Option<NodeId>,
        of: NodeId,
        (base, outer): (usize, Meaning),
        inside: Inside<'_, 't, 'a>,
    ) -> Option<()> {
        let qualifiers = self.take_qualifiers(base);
        let end = self.modifiers.len();
        self.declare_qualified(qualifiers, of, &mut |it, is_parenthesized| {
            if end > base {
                it.write(" ")?;
                it.group(base, end, outer, inside)?;
            } else {
                it.within(outer, |it| inside(it, is_parenthesized))?;
            }
            it.write(if it.text.ends_with(']') { "[" } else { " [" })?;
            if let Some(length) = length {
                it.node(length)?;
            }
            it.write("]")
        })
    }

    /// Prints the modifiers at some places in parentheses, and what is inside the type.
    fn group(&mut self, base: usize, end: usize, outer: Meaning, inside: Inside<'_, 't, 'a>) -> Option<()> {
        if base == end {
            return self.within(outer, |it| inside(it, true));
        }
        self.write("(")?;
        self.modifiers_between(base, end)?;
        self.within(outer, |it| inside(it, true))?;
        self.write(")")
    }

    fn modifiers_from(&mut self, base: usize) -> Option<()> {
        self.modifiers_between(base, self.modifiers.len())
    }

    /// Prints modifiers from the innermost out.
    fn modifiers_between(&mut self, base: usize, end: usize) -> Option<()> {
        for at in (base..end).rev() {
            let (modifier, meaning) = *self.modifiers.get(at)?;
            self.within(meaning, |it| it.modifier(modifier))?;
        }
        Some(())
    }

    fn modifier(&mut self, modifier: Modifier) -> Option<()> {
        match modifier {
            Modifier::Pointer => self.write("*"),
            Modifier::Lvalue => self.write("&"),
            Modifier::Rvalue => self.write("&&"),
            Modifier::Qualified(qualifiers) => self.qualifiers(qualifiers),
            Modifier::Suffixed(suffix) => self.write(suffix),
            Modifier::VendorQualified(by) => {
                self.write(" ")?;
                self.node(by)
            }
            Modifier::Member(class) => {
                self.write(if self.text.ends_with('(') { "" } else { " " })?;
                self.node(class)?;
                self.write("::*")
            }
        }
    }

    pub(super) fn qualifiers(&mut self, qualifiers: Qualifiers) -> Option<()> {
        qualifiers.texts().try_for_each(|it| self.write(it))
    }

    /// Takes away the innermost modifier if it is `const` and such: a function has it behind, an array's elements have it.
    fn take_qualifiers(&mut self, base: usize) -> Qualifiers {
        let Some((Modifier::Qualified(qualifiers), _)) = self.modifiers.get(base..).and_then(|it| it.last()).copied()
        else {
            return Qualifiers::default();
        };
        self.modifiers.pop();
        qualifiers
    }
}
