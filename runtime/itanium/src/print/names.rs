//! Symbols and names.

use super::{Binds, Printer};
use crate::tree::{Declared, List, NodeId, Qualifiers, SymbolNode};

/// A function, taken apart.
struct Declaration {
    name: NodeId,
    signature: List,
    returns: bool,
    explicit_object: bool,
    qualifiers: Qualifiers,
}

impl<'a> Printer<'_, 'a> {
    /// Prints a symbol, with or without the parameters of the function that it is about.
    pub(super) fn symbol(&mut self, id: NodeId, parameters: bool) -> Option<()> {
        match self.tree.get(id) {
            SymbolNode::Function { name, signature, returns, explicit_object, qualifiers } => {
                let function = Declaration { name, signature, returns, explicit_object, qualifiers };
                self.nested(|it| it.function(&function, parameters))
            }
            SymbolNode::Affixed(affix, of) => self.nested(|it| {
                it.write(affix.before)?;
                it.symbol(of, parameters)?;
                it.write(affix.after)
            }),
            SymbolNode::Thunk { this, result, function } => {
                self.nested(|it| it.thunk(this, result, function, parameters))
            }
            SymbolNode::Clone { of, suffix } => self.nested(|it| {
                it.symbol(of, parameters)?;
                if !parameters {
                    return Some(());
                }
                it.write(" [clone ")?;
                it.write(suffix)?;
                it.write("]")
            }),
            _ => self.node(id),
        }
    }

    fn function(&mut self, function: &Declaration, parameters: bool) -> Option<()> {
        match self.arguments_of(function.name)? {
            Some(arguments) => self.scoped(Binds::Function(arguments), |it| it.declaration(function, parameters)),
            None => self.declaration(function, parameters),
        }
    }

    fn declaration(&mut self, function: &Declaration, parameters: bool) -> Option<()> {
        self.node(function.name)?;
        if !parameters {
            return Some(());
        }
        let signature = self.tree.list(function.signature);
        self.write(if function.explicit_object { "(this " } else { "(" })?;
        self.items(signature.get(usize::from(function.returns)..).unwrap_or_default())?;
        self.write(")")?;
        self.qualifiers(function.qualifiers)
    }

    /// Returns the arguments that template parameters in a function's signature stand for.
    fn arguments_of(&mut self, mut name: NodeId) -> Option<Option<List>> {
        loop {
            self.step()?;
            name = match self.tree.get(name) {
                SymbolNode::Template { arguments, .. } => return Some(Some(arguments)),
                SymbolNode::Nested { name, .. } => name,
                SymbolNode::Tagged { of, .. } | SymbolNode::InModule { of, .. } => of,
                SymbolNode::Local { entity, .. } | SymbolNode::LocalDefault { entity, .. } => entity,
                _ => return Some(None),
            };
        }
    }

    fn thunk(&mut self, this: &str, result: Option<NodeId>, function: NodeId, parameters: bool) -> Option<()> {
        self.write("{virtual override thunk(")?;
        self.call_offset(this)?;
        if let Some(SymbolNode::Text(result)) = result.map(|it| self.tree.get(it)) {
            self.write(", ")?;
            self.call_offset(result)?;
        }
        self.write(", ")?;
        self.symbol(function, parameters)?;
        self.write(")}")
    }

    /// `hn16`, `v0_n24`.
    fn call_offset(&mut self, offset: &str) -> Option<()> {
        match offset.strip_prefix('v').and_then(|it| it.split_once('_')) {
            Some((this, table)) => {
                self.write("{virtual offset(")?;
                self.signed(this)?;
                self.write(", ")?;
                self.signed(table)?;
            }
            None => {
                self.write("{offset(")?;
                self.signed(offset.strip_prefix('h').unwrap_or(offset))?;
            }
        }
        self.write(")}")
    }

    /// A number whose minus sign is `n`.
    pub(super) fn signed(&mut self, number: &str) -> Option<()> {
        match number.strip_prefix('n') {
            Some(digits) => {
                self.write("-")?;
                self.write(digits)
            }
            None => self.write(number),
        }
    }

    /// Prints any node.
    pub(super) fn node(&mut self, id: NodeId) -> Option<()> {
        self.nested(|it| it.node_unchecked(id))
    }

    fn node_unchecked(&mut self, id: NodeId) -> Option<()> {
        match self.tree.get(id) {
            SymbolNode::Nothing => Some(()),
            SymbolNode::Text(text) => self.write(text),
            SymbolNode::Abbreviated(of) => {
                self.has_arguments |= of.full != of.without_arguments;
                self.write(if self.shows_arguments { of.full } else { of.without_arguments })
            }
            SymbolNode::Tagged { of, tag } => {
                self.node(of)?;
                self.write("[abi:")?;
                self.write(tag)?;
                self.write("]")
            }
            SymbolNode::Nested { scope, name } => match self.tree.get(name) {
                SymbolNode::Constructor { class } => self.member_of(scope, "::", class),
                SymbolNode::Destructor { class } => self.member_of(scope, "::~", class),
                _ => self.with_between(scope, "::", name),
            },
            SymbolNode::Template { name, arguments } => self.template(name, arguments),
            SymbolNode::Local { function, entity } => self.with_between(function, "::", entity),
            SymbolNode::Constructor { class } => self.last_name(class),
            SymbolNode::Destructor { class } => {
                self.write("~")?;
                self.last_name(class)
            }
            SymbolNode::Operator(op) => {
                self.write("operator")?;
                self.write(op.text())
            }
            SymbolNode::Conversion(to) => {
                self.write("operator ")?;
                self.node(to)
            }
            SymbolNode::Lambda { declared, parameters, number } => self.lambda(declared, parameters, number),
            SymbolNode::Function { .. } | SymbolNode::Thunk { .. } | SymbolNode::Clone { .. } => self.symbol(id, true),
            SymbolNode::Affixed(affix, of) => {
                self.write(affix.before)?;
                self.node(of)?;
                self.write(affix.after)
            }
            node => self.rare(id, node),
        }
    }

    /// Names that few symbols have.
    fn rare(&mut self, id: NodeId, node: SymbolNode<'a>) -> Option<()> {
        match node {
            SymbolNode::InModule { of, module } => self.with_between(of, "@", module),
            SymbolNode::Module { parent, partition, name } => {
                if let Some(parent) = parent {
                    self.node(parent)?;
                }
                self.write(match (partition, parent) {
                    (true, _) => ":",
                    (false, Some(_)) => ".",
                    (false, None) => "",
                })?;
                self.write(name)
            }
            SymbolNode::LocalDefault { function, number, entity } => {
                self.node(function)?;
                self.write("::{default arg#")?;
                self.write_number(number)?;
                self.write("}::")?;
                self.node(entity)
            }
            SymbolNode::LiteralOperator(suffix) => {
                self.write("operator\"\" ")?;
                self.write(suffix)
            }
            SymbolNode::VendorOperator(name) => {
                self.write("operator ")?;
                self.write(name)
            }
            SymbolNode::Unnamed(number) => {
                self.write("{unnamed type#")?;
                self.write_number(number)?;
                self.write("}")
            }
            SymbolNode::Binding(names) => {
                self.write("[")?;
                self.list(names)?;
                self.write("]")
            }
            SymbolNode::ConstructionTable { base, whole } => {
                self.write("construction vtable for ")?;
                self.with_between(base, "-in-", whole)
            }
            SymbolNode::Temporary { of, number } => {
                self.write("reference temporary #")?;
                self.write_number(number)?;
                self.write(" for ")?;
                self.node(of)
            }
            node => self.type_or_expression(id, node),
        }
    }

    pub(super) fn with_between(&mut self, first: NodeId, between: &str, second: NodeId) -> Option<()> {
        self.node(first)?;
        self.write(between)?;
        self.node(second)
    }

    fn member_of(&mut self, scope: NodeId, between: &str, class: NodeId) -> Option<()> {
        self.node(scope)?;
        self.write(between)?;
        self.last_name(class)
    }

    /// What constructors of a class are called.
    fn last_name(&mut self, class: NodeId) -> Option<()> {
        self.nested(|it| match it.tree.get(class) {
            // A class without a name has that of the class around it.
            SymbolNode::Nested { scope, name } if matches!(it.tree.get(name), SymbolNode::Unnamed(_)) => {
                it.last_name(scope)
            }
            SymbolNode::Nested { name, .. } | SymbolNode::Template { name, .. } => it.last_name(name),
            SymbolNode::Local { entity, .. } | SymbolNode::LocalDefault { entity, .. } => it.last_name(entity),
            SymbolNode::Tagged { of, .. } | SymbolNode::InModule { of, .. } => it.last_name(of),
            SymbolNode::Abbreviated(of) => it.write(of.last),
            _ => it.node(class),
        })
    }

    fn template(&mut self, name: NodeId, arguments: List) -> Option<()> {
        self.node(name)?;
        self.has_arguments = true;
        if !self.shows_arguments {
            return Some(());
        }
        // `operator<` and its arguments.
        self.write(if self.text.ends_with('<') { " <" } else { "<" })?;
        let mut meaning = self.meaning;
        if let Some(scope) = self.scope()
            && matches!(scope.kind, Binds::Function(it) if it == arguments)
        {
            meaning.scope = scope.parent;
        }
        self.within(meaning, |it| it.list(arguments))?;
        self.write(if self.text.ends_with('>') { " >" } else { ">" })
    }

    fn lambda(&mut self, declared: List, parameters: List, number: u32) -> Option<()> {
        self.write("{lambda")?;
        self.scoped(Binds::Lambda(declared), |it| {
            if !it.tree.list(declared).is_empty() {
                it.write("<")?;
                it.declared_parameters(declared)?;
                it.write(">")?;
            }
            it.write("(")?;
            it.list(parameters)?;
            it.write(")#")
        })?;
        self.write_number(number)?;
        self.write("}")
    }

    fn declared_parameters(&mut self, declared: List) -> Option<()> {
        for (at, id) in self.tree.list(declared).iter().enumerate() {
            self.write(if at == 0 { "" } else { ", " })?;
            self.declared_kind(*id, "")?;
            self.write(" ")?;
            self.declared_name(declared, at)?;
        }
        Some(())
    }

    fn declared_kind(&mut self, id: NodeId, dots: &str) -> Option<()> {
        self.nested(|it| {
            match it.tree.get(id) {
                SymbolNode::Declared { kind: Declared::Pack, of: Some(of) } => return it.declared_kind(of, "..."),
                SymbolNode::Declared { kind: Declared::Template, of: Some(of) } => {
                    let SymbolNode::Pack(inner) = it.tree.get(of) else { return None };
                    it.write("template<")?;
                    for (at, id) in it.tree.list(inner).iter().enumerate() {
                        it.write(if at == 0 { "" } else { ", " })?;
                        it.declared_kind(*id, "")?;
                    }
                    it.write("> class")?;
                }
                SymbolNode::Declared { kind: Declared::Value | Declared::Constrained, of: Some(of) } => it.node(of)?,
                _ => it.write("typename")?,
            }
            it.write(dots)
        })
    }

    /// Names the parameter at a place by its kind: `$T0`, `$N1`.
    pub(super) fn declared_name(&mut self, declared: List, at: usize) -> Option<()> {
        let mark = self.mark_of(*self.tree.list(declared).get(at)?)?;
        self.write(mark)?;
        self.write_number(at)
    }

    fn mark_of(&self, declared: NodeId) -> Option<&'static str> {
        let mut node = self.tree.get(declared);
        if let SymbolNode::Declared { kind: Declared::Pack, of: Some(of) } = node {
            node = self.tree.get(of);
        }
        let SymbolNode::Declared { kind, .. } = node else { return None };
        Some(match kind {
            Declared::Value => "$N",
            Declared::Template => "$TT",
            _ => "$T",
        })
    }
}
