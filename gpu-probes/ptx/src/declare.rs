//! What a module says besides code.

use crate::ParseError;
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
