//! What a module says besides code.

use crate::ParseError;
use crate::parse::parse_statements;
use crate::tree::*;

impl Module {
    /// Adds declarations, such as variables and functions that woven statements use, in front of everything else that
    /// is declared.
    ///
    /// # Errors
    /// The text is not a sequence of declarations.
    pub fn declare(&mut self, text: &str) -> Result<(), ParseError> {
        let declared = Module::parse(text)?.items;
        let at = self.after_head();
        self.items.splice(at..at, declared);
        Ok(())
    }

    /// Puts statements at the beginning of a kernel's body, in its own scope: what they declare is known in all of it.
    ///
    /// # Errors
    /// The text is not a sequence of statements.
    pub fn begin(&mut self, kernel: &str, text: &str) -> Result<(), ParseError> {
        let statements = parse_statements(text)?;
        let mut functions = self.functions_mut().filter(|it| it.is_kernel() && it.name == kernel);
        if let Some(body) = functions.find_map(|it| it.body.as_mut()) {
            body.splice(0..0, statements);
        }
        Ok(())
    }

    /// The name of the file that `.loc` gives a number; as compilers have it, without quotes.
    pub fn file(&self, number: u32) -> Option<&str> {
        self.directives(".file").find_map(|directive| {
            let (file, rest) = directive.arguments.split_once(' ')?;
            let name = rest.strip_prefix('"')?.split('"').next()?;
            (file.parse() == Ok(number)).then_some(name)
        })
    }

    /// Whether it says of any code which source line it was compiled from.
    pub fn has_lines(&self) -> bool {
        fn any(statements: &[Statement]) -> bool {
            statements.iter().any(|it| match it {
                Statement::Location(it) => it.line > 0,
                Statement::Scope(inner) => any(inner),
                _ => false,
            })
        }
        self.functions().filter_map(|it| it.body.as_deref()).any(any)
    }

    /// The directives of that name at the top level: `.version`.
    pub fn directives<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Directive> {
        self.items.iter().filter_map(move |item| match item {
            Item::Directive(directive) if directive.name == name => Some(directive),
            _ => None,
        })
    }

    /// Where declarations may begin: behind `.version`, `.target` and `.address_size`.
    pub(crate) fn after_head(&self) -> usize {
        let is_head = |item: &Item| matches!(item, Item::Directive(it) if matches!(it.name.as_str(), ".version" | ".target" | ".address_size"));
        self.items.iter().rposition(is_head).map_or(0, |index| index + 1)
    }
}
