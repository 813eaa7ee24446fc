//! What staging collects and the interpreter uses later: texts, syntax, handlers, errors.
//!
//! All native functions share this value; none calls back into Rhai while it is borrowed.

use crate::arguments::{ArgumentSpec, ScriptArguments};
use crate::handler::{DeclaredProbe, Handler, MapDeclaration, ModuleAlias, Positions, ScriptFunction, token_at};
use crate::host::Host;
use crate::lexer::Tokenized;
use crate::source::Clocks;
use rhai::{AST, ASTNode, Expr, FnPtr, Module, NativeCallContext, Position, Stmt};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Site, Sources};
use xputrace_model::output::Output;

/// The session as shared by native functions.
pub(crate) type SharedSession = Rc<RefCell<Session>>;

#[derive(Default)]
pub(crate) struct Session {
    pub(crate) sources: Sources,
    pub(crate) files: Vec<File>,
    pub(crate) handlers: Vec<Handler>,
    pub(crate) probes: Vec<DeclaredProbe>,
    pub(crate) maps: Vec<MapDeclaration>,
    pub(crate) stacks: Option<u32>,
    pub(crate) modules: Vec<ModuleAlias>,
    pub(crate) closures: Vec<Closure>,
    pub(crate) arguments: ScriptArguments,
    pub(crate) declared_arguments: Vec<ArgumentSpec>,
    /// Those of the machine whose events the script sees, if that is this one.
    pub(crate) clocks: Option<Clocks>,
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// What the top level printed before there was a host.
    pub(crate) early: Vec<Output>,
    pub(crate) host: Option<Rc<RefCell<dyn Host>>>,
}

/// A source file: its tokens, and its syntax in both dialects.
#[derive(Default)]
pub(crate) struct File {
    pub(crate) tokenized: Tokenized,
    pub(crate) compiled: Syntax,
    pub(crate) interpreted: Syntax,
}

/// A parsed text and its functions.
#[derive(Default)]
pub(crate) struct Syntax {
    pub(crate) ast: Rc<AST>,
    pub(crate) positions: Positions,
    /// Parameters of every function and closure, captured ones first.
    parameters: FxHashMap<String, Vec<String>>,
    /// Byte offset in the user's text of every closure, by its generated name.
    offsets: FxHashMap<String, usize>,
    /// The inverse of `offsets`.
    closures: FxHashMap<usize, String>,
}

/// An interpreted handler.
#[derive(Clone)]
pub(crate) struct Closure {
    pub(crate) function: FnPtr,
    pub(crate) file: FileId,
    pub(crate) declared_at: Label,
    /// Whether it takes the event as a parameter.
    pub(crate) takes_event: bool,
}

/// A handler's function, for the compiler.
pub(crate) struct Body {
    pub(crate) file: FileId,
    /// The parameters that receive captured values.
    pub(crate) captures: Vec<String>,
    /// The remaining parameters, for the event.
    pub(crate) parameters: Vec<String>,
    pub(crate) statements: Vec<Stmt>,
}

impl Session {
    /// Returns the file that made this call; the main script if unknown.
    pub(crate) fn caller(&self, ctx: &NativeCallContext) -> FileId {
        file_id(ctx.call_source())
    }

    /// Returns a label for the call of a native function.
    pub(crate) fn call_label(&self, ctx: &NativeCallContext) -> Label {
        self.label(self.caller(ctx), ctx.call_position())
    }

    /// Returns a label for the token at a position in the interpreter's text (a field rather than
    /// its dot); empty without a position.
    pub(crate) fn label(&self, file: FileId, position: Position) -> Label {
        let (Some(parsed), Some(source)) = (self.files.get(file.0 as usize), self.sources.files.get(file.0 as usize))
        else {
            return Label { file, span: 0..0, note: None };
        };
        if position.is_none() {
            return Label { file, span: 0..0, note: None };
        }
        let offset = parsed.interpreted.positions.offset(position);
        let mut span = token_at(&source.text, offset);
        while matches!(&source.text[span.clone()], "." | "?") {
            span = token_at(&source.text, span.end);
        }
        Label { file, span, note: None }
    }

    /// Returns the line of a label.
    pub(crate) fn site(&self, label: &Label) -> Site {
        let offset = label.span.start;
        let parsed = self.files.get(label.file.0 as usize);
        let line = parsed.map_or(1, |it| it.interpreted.positions.line_and_column(offset).0);
        Site { file: label.file, offset: offset as u32, line }
    }

    /// Returns the compiler's version of a function that the interpreter passed as a value.
    pub(crate) fn body(&self, function: &FnPtr, caller: FileId) -> Option<Body> {
        let name = function.fn_name();
        let others = (0..self.files.len() as u32).map(FileId).filter(|it| *it != caller);
        let file = std::iter::once(caller).chain(others).find(|it| {
            self.files.get(it.0 as usize).is_some_and(|file| file.interpreted.parameters.contains_key(name))
        })?;
        let parsed = &self.files[file.0 as usize];
        let all = &parsed.interpreted.parameters[name];
        let captured = function.curry().len().min(all.len());
        Some(Body {
            file,
            captures: all[..captured].to_vec(),
            parameters: all[captured..].to_vec(),
            statements: parsed.compiled_twin(name)?,
        })
    }
}

impl File {
    /// Returns, in the compiler's dialect, the statements of a function in the interpreter's
    /// dialect.
    fn compiled_twin(&self, name: &str) -> Option<Vec<Stmt>> {
        let twin = match self.interpreted.offsets.get(name) {
            Some(offset) => self.compiled.closures.get(offset)?,
            None => name,
        };
        self.compiled.statements(twin)
    }
}

impl Syntax {
    pub(crate) fn new(ast: AST, positions: Positions) -> Self {
        let parameters = ast
            .iter_functions()
            .map(|it| (it.name.to_owned(), it.params.iter().map(|it| (*it).to_owned()).collect()))
            .collect();
        let mut syntax = Syntax { ast: ast.into(), positions, parameters, ..Syntax::default() };
        syntax.find_closures();
        syntax
    }

    fn find_closures(&mut self) {
        let mut offsets = FxHashMap::default();
        self.ast.walk(&mut |path: &[ASTNode]| {
            if let Some(ASTNode::Expr(Expr::DynamicConstant(value, position))) = path.last()
                && let Some(function) = value.read_lock::<FnPtr>()
            {
                offsets.insert(function.fn_name().to_owned(), self.positions.offset(*position));
            }
            true
        });
        self.closures = offsets.iter().map(|(name, at)| (*at, name.clone())).collect();
        self.offsets = offsets;
    }

    /// Returns the named functions; scripts cannot write the names of closures.
    pub(crate) fn functions(&self, file: FileId) -> Vec<ScriptFunction> {
        let named = self.ast.iter_functions().filter(|it| it.name.chars().all(|c| c == '_' || c.is_alphanumeric()));
        named
            .filter_map(|it| {
                Some(ScriptFunction {
                    file,
                    name: it.name.to_owned(),
                    parameters: it.params.iter().map(|it| (*it).to_owned()).collect(),
                    captured: Vec::new(),
                    body: self.body(it.name, it.params.len())?,
                })
            })
            .collect()
    }

    /// Returns a function's statements.
    pub(crate) fn statements(&self, name: &str) -> Option<Vec<Stmt>> {
        self.body(name, self.parameters.get(name)?.len())
    }

    /// Rhai does not expose function bodies, so put the function alone in a module and walk that.
    fn body(&self, name: &str, n_parameters: usize) -> Option<Vec<Stmt>> {
        let function = self.ast.shared_lib().get_script_fn(name, n_parameters)?.clone();
        let mut module = Module::new();
        module.set_script_fn(function);
        let mut statements = Vec::new();
        AST::new_from_module(module).walk(&mut |path: &[ASTNode]| {
            if let [ASTNode::Stmt(statement)] = path {
                statements.push((*statement).clone());
            }
            true
        });
        Some(statements)
    }

    /// Whether the text defines a function of this name.
    pub(crate) fn defines(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// Returns the names of its functions, without closures.
    pub(crate) fn named_functions(&self) -> impl Iterator<Item = &str> {
        self.parameters.keys().map(String::as_str).filter(|it| !self.offsets.contains_key(*it))
    }
}

/// Returns the name under which Rhai knows a file.
pub(crate) fn source_name(file: FileId) -> String {
    file.0.to_string()
}

/// Inverse of [`source_name`].
pub(crate) fn file_id(source: Option<&str>) -> FileId {
    FileId(source.and_then(|it| it.parse().ok()).unwrap_or(0))
}
