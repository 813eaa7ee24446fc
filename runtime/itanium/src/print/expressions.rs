//! Expressions. Operands are in parentheses, unless they are simple.

use super::Printer;
use crate::tree::{NodeId, SymbolNode};

impl<'a> Printer<'_, 'a> {
    pub(super) fn expression(&mut self, node: SymbolNode<'a>) -> Option<()> {
        match node {
            SymbolNode::Literal { of, value } => self.literal(of, value),
            SymbolNode::External(symbol) => self.symbol(symbol, true),
            SymbolNode::FunctionParameter { number } => {
                self.write("{parm#")?;
                self.write_number(number)?;
                self.write("}")
            }
            SymbolNode::Prefix(op, of) => {
                self.write(op.text())?;
                self.operand(of)
            }
            SymbolNode::Postfix(op, of) => {
                self.operand(of)?;
                self.write(op.text())
            }
            // A `>` must not be taken for the end of template arguments.
            SymbolNode::Binary(op, left, right) if op.text() == ">" => {
                self.write("((")?;
                self.with_between(left, ")>(", right)?;
                self.write("))")
            }
            SymbolNode::Binary(op, left, right) => {
                self.operand(left)?;
                self.write(op.text())?;
                self.operand(right)
            }
            SymbolNode::Conditional(condition, then, other) => {
                self.operand(condition)?;
                self.write("?")?;
                self.operand(then)?;
                self.write(" : ")?;
                self.operand(other)
            }
            SymbolNode::Call { callee, arguments } => {
                self.operand(callee)?;
                self.parenthesized(self.tree.list(arguments))
            }
            SymbolNode::Index(of, at) => {
                self.operand(of)?;
                self.write("[")?;
                self.node(at)?;
                self.write("]")
            }
            SymbolNode::Member { object, by, name } => {
                self.operand(object)?;
                self.write(by)?;
                self.node(name)
            }
            SymbolNode::Cast { to, of } => {
                self.write("(")?;
                self.with_between(to, ")(", of)?;
                self.write(")")
            }
            SymbolNode::NamedCast { name, to, of } => {
                self.write(name)?;
                self.write("<")?;
                self.with_between(to, ">(", of)?;
                self.write(")")
            }
            node => self.list_expression(node),
        }
    }

    /// Expressions with lists in them.
    fn list_expression(&mut self, node: SymbolNode<'a>) -> Option<()> {
        match node {
            SymbolNode::Construct { of, arguments } => {
                self.node(of)?;
                self.parenthesized(self.tree.list(arguments))
            }
            SymbolNode::Parenthesized(values) => self.parenthesized(self.tree.list(values)),
            SymbolNode::Braced { of, values } => {
                if let Some(of) = of {
                    self.node(of)?;
                }
                self.write("{")?;
                self.list(values)?;
                self.write("}")
            }
            SymbolNode::New { placement, of, initial } => {
                self.write("new ")?;
                let placement = self.tree.list(placement);
                if !placement.is_empty() {
                    self.parenthesized(placement)?;
                    self.write(" ")?;
                }
                self.node(of)?;
                initial.map_or(Some(()), |initial| self.node(initial))
            }
            SymbolNode::Fold { by, left, right } => {
                self.write("(")?;
                if let Some(left) = left {
                    self.operand(left)?;
                    self.write(by.text())?;
                }
                self.write("...")?;
                if let Some(right) = right {
                    self.write(by.text())?;
                    self.operand(right)?;
                }
                self.write(")")
            }
            SymbolNode::SizeOfPack(packs) => {
                self.write("sizeof...")?;
                self.parenthesized(self.tree.list(packs))
            }
            SymbolNode::Designated { affix, by, value } => {
                self.write(affix.before)?;
                self.with_between(by, affix.after, value)
            }
            SymbolNode::DesignatedRange { from, to, value } => {
                self.write("[")?;
                self.with_between(from, " ... ", to)?;
                self.write("] = ")?;
                self.node(value)
            }
            SymbolNode::Subobject { of, part, offset } => {
                self.node(of)?;
                self.write(".<")?;
                self.node(part)?;
                self.write(" at offset ")?;
                self.signed(offset)?;
                self.write(">")
            }
            SymbolNode::Requires(requirements) => {
                self.write("requires {")?;
                for requirement in self.tree.list(requirements) {
                    self.write(" ")?;
                    self.node(*requirement)?;
                    self.write(";")?;
                }
                self.write(" }")
            }
            _ => None,
        }
    }

    fn operand(&mut self, id: NodeId) -> Option<()> {
        if matches!(self.tree.get(id), SymbolNode::FunctionParameter { .. } | SymbolNode::External(_)) {
            return self.node(id);
        }
        self.write("(")?;
        self.node(id)?;
        self.write(")")
    }

    /// A value: of a type other than `int`, the type is shown.
    fn literal(&mut self, of: NodeId, value: &str) -> Option<()> {
        let type_name = match self.tree.get(of) {
            SymbolNode::Text(name) => name,
            _ => "",
        };
        match (type_name, value) {
            ("bool", "0") => return self.write("false"),
            ("bool", "1") => return self.write("true"),
            ("std::nullptr_t", _) => return self.write("nullptr"),
            ("int", _) => return self.signed(value),
            _ => {}
        }
        self.write("(")?;
        self.node(of)?;
        self.write(")")?;
        if !matches!(type_name, "float" | "double" | "long double" | "__float128") {
            return self.signed(value);
        }
        // The bits of a floating-point number.
        let (sign, bits) = value.strip_prefix('n').map_or(("[", value), |it| ("-[", it));
        self.write(sign)?;
        self.write(bits)?;
        self.write("]")
    }
}
