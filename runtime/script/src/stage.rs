//! Runs the top level of a script once and collects the handlers it declares.

use crate::arguments::{ArgumentSpec, ScriptArguments};
use crate::errors;
use crate::handler::{ModuleAlias, ScriptFunction, Staged, token_at};
use crate::interpreter::{self, Interpreter};
use crate::lexer::{self, Dialect, Import, MOST_POSITIONS, Tokenized};
use crate::session::{File, Session, SharedSession, Syntax, source_name};
use crate::source::Loader;
use crate::{bundle, static_check};
use rhai::{AST, Engine, Module, Scope};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Severity, SourceFile};

/// A script whose top level has run.
pub struct LoadedScript {
    pub staged: Staged,
    pub interpreter: Interpreter,
    /// All diagnostics; if any is an error, nothing may be attached.
    pub diagnostics: Vec<Diagnostic>,
    /// The arguments that `arg(…)` calls declare, in order, for `--help`.
    pub arguments: Vec<ArgumentSpec>,
}

/// Runs the top level of `main` with the script's own arguments (`--name=value`, `--name value`).
///
/// Attaches and prints nothing; all mistakes found are in the result. The caller handles `--help`
/// among the arguments.
pub fn load(main: SourceFile, args: &[String], loader: Rc<dyn Loader>) -> LoadedScript {
    let session: SharedSession = Rc::new(RefCell::new(Session {
        arguments: ScriptArguments::new(args),
        clocks: loader.clocks(),
        ..Session::default()
    }));
    let engine = interpreter::engine(&session);
    let mut stage = Stage { engine, session: session.clone(), loader, modules: FxHashMap::default() };
    stage.run_main(main);
    stage.unknown_arguments();
    stage.no_probes();
    stage.finish()
}

struct Stage {
    engine: Engine,
    session: SharedSession,
    loader: Rc<dyn Loader>,
    /// By the name in `import`; `None` while a module is loading.
    modules: FxHashMap<String, Option<Loadable>>,
}

/// An imported file and its definitions.
type Loadable = (FileId, rhai::Shared<Module>);

impl Stage {
    fn run_main(&mut self, main: SourceFile) {
        let Some((file, mut scope, ast)) = self.parse(main) else { return };
        if let Err(error) = self.engine.run_ast_with_scope(&mut scope, &ast) {
            let diagnostic = errors::diagnostic(&self.session.borrow(), file, *error);
            self.report(diagnostic);
        }
        let found = static_check::interpreted(&self.session.borrow());
        found.into_iter().for_each(|it| self.report(it));
    }

    /// Adds a text to the sources, loads its imports, and parses it for both readers.
    fn parse(&mut self, source: SourceFile) -> Option<(FileId, Scope<'static>, Rc<AST>)> {
        let text = source.text.clone();
        let file = self.add(source);
        let tokenized = Tokenized::of(&text);
        let mut found = tokenized.check(file);
        let imported = self.import_all(file, tokenized.imports());
        let mut parsed = Vec::new();
        for dialect in [Dialect::Compiled, Dialect::Interpreted] {
            let lexed = tokenized.rewrite(dialect);
            if let Some(offset) = lexed.too_far() {
                let label = Label { file, span: token_at(&text, offset), note: None };
                let message = format!(
                    "this script is too long: the limit is {MOST_POSITIONS} lines of {MOST_POSITIONS} characters"
                );
                found.push(
                    Diagnostic::error("too-long", message, label).help("split it into several files and import them"),
                );
                break;
            }
            let scope = interpreter::scope(&self.session, &lexed.map_variables);
            match self.engine.compile_with_scope(&scope, &lexed.text) {
                Ok(mut ast) => {
                    ast.set_source(source_name(file));
                    parsed.push((Syntax::new(ast, lexed.positions), scope));
                }
                Err(error) => {
                    // The token check has explained it better.
                    if imported && !found.iter().any(|it| it.severity == Severity::Error) {
                        found.push(errors::parse(file, &text, &lexed.positions, &error));
                    }
                    break;
                }
            }
        }
        if found.iter().any(|it| it.severity == Severity::Error)
            && let Some(answer) = tokenized.foreign_program(file)
        {
            found = vec![answer];
        }
        // Continue checking after a recoverable error.
        let failed = found.iter().any(|it| it.severity == Severity::Error && !lexer::REPAIRED.contains(&it.code));
        found.into_iter().for_each(|it| self.report(it));
        let (interpreted, scope) = parsed.pop()?;
        let (compiled, _) = parsed.pop()?;
        let ast = interpreted.ast.clone();
        self.session.borrow_mut().files[file.0 as usize] = File { tokenized, compiled, interpreted };
        (!failed).then_some((file, scope, ast))
    }

    fn add(&mut self, source: SourceFile) -> FileId {
        let mut session = self.session.borrow_mut();
        session.sources.files.push(source);
        session.files.push(File::default());
        FileId(session.sources.files.len() as u32 - 1)
    }

    /// Makes the modules of all `import "name" as alias;` available; returns false and reports if
    /// one cannot be loaded.
    fn import_all(&mut self, file: FileId, imports: Vec<Import>) -> bool {
        let mut complete = true;
        for import in imports {
            let label = Label { file, span: import.name_span.clone(), note: None };
            match self.module(&import.name) {
                Ok(Some((found, module))) => {
                    if let Some(alias) = import.alias {
                        let known = ModuleAlias { importer: file, alias: alias.clone(), module: found };
                        self.session.borrow_mut().modules.push(known);
                        self.engine.register_static_module(alias, module);
                    }
                }
                // Its own mistakes have been reported.
                Ok(None) => complete = false,
                Err((code, message)) => {
                    complete = false;
                    self.report(Diagnostic::error(code, message, label));
                }
            }
        }
        complete
    }

    /// The error is a diagnostic's code and message; `None` if the module itself has mistakes.
    fn module(&mut self, name: &str) -> Result<Option<Loadable>, (&'static str, String)> {
        match self.modules.get(name) {
            Some(Some(known)) => return Ok(Some(known.clone())),
            Some(None) => return Err(("import-cycle", format!("`{name}` imports itself, directly or through others"))),
            None => {}
        }
        let source = match bundle::stdlib().iter().find(|it| it.name == name) {
            Some(bundled) => bundled.source(),
            None => self.loader.load(name).map_err(|it| ("import", it))?,
        };
        self.modules.insert(name.to_owned(), None);
        let loaded = self.evaluate(source);
        match &loaded {
            Some(module) => self.modules.insert(name.to_owned(), Some(module.clone())),
            None => self.modules.remove(name),
        };
        Ok(loaded)
    }

    /// Runs the top level of an imported text.
    fn evaluate(&mut self, source: SourceFile) -> Option<Loadable> {
        let (file, scope, ast) = self.parse(source)?;
        match Module::eval_ast_as_new(scope, &ast, &self.engine) {
            Ok(module) => Some((file, module.into())),
            Err(error) => {
                let diagnostic = errors::diagnostic(&self.session.borrow(), file, *error);
                self.report(diagnostic);
                None
            }
        }
    }

    fn unknown_arguments(&self) {
        // A script that stopped early has not declared all of its arguments.
        if self.has_errors() {
            return;
        }
        let unknown = {
            let session = self.session.borrow();
            session.arguments.unknown(&session.declared_arguments)
        };
        for (word, advice) in unknown {
            let label = Label { file: FileId(0), span: 0..0, note: None };
            let message = format!("the script has no argument `{word}`");
            let mut diagnostic = Diagnostic::error("unknown-argument", message, label).help(advice);
            if word == "--json" {
                diagnostic = diagnostic.help("`-f json` prints results as JSON");
            }
            self.report(diagnostic);
        }
    }

    /// Reports a script that traces nothing and prints nothing.
    fn no_probes(&self) {
        let idle = {
            let session = self.session.borrow();
            session.handlers.is_empty() && session.early.is_empty()
        };
        if idle && !self.has_errors() {
            let label = Label { file: FileId(0), span: 0..0, note: None };
            let warning = Diagnostic::warning("no-probe", "this script declares no probe: nothing is traced", label);
            self.report(warning.help("for example, write `kernel(|k| @time[k.name].sum(k.duration));`"));
        }
    }

    fn has_errors(&self) -> bool {
        self.session.borrow().diagnostics.iter().any(|it| it.severity == Severity::Error)
    }

    /// Reports a mistake once per place.
    fn report(&self, diagnostic: Diagnostic) {
        let known = &mut self.session.borrow_mut().diagnostics;
        if !known.iter().any(|it| it.primary == diagnostic.primary && it.code == diagnostic.code) {
            known.push(diagnostic);
        }
    }

    fn finish(self) -> LoadedScript {
        let mut session = self.session.borrow_mut();
        let staged = Staged {
            sources: session.sources.clone(),
            handlers: std::mem::take(&mut session.handlers),
            probes: session.probes.clone(),
            maps: std::mem::take(&mut session.maps),
            stacks: session.stacks,
            positions: session.files.iter().map(|it| it.compiled.positions.clone()).collect(),
            functions: functions(&session),
            modules: std::mem::take(&mut session.modules),
        };
        let mut diagnostics = std::mem::take(&mut session.diagnostics);
        diagnostics.sort_by_key(|it| (it.primary.file, it.primary.span.start));
        let arguments = session.declared_arguments.clone();
        drop(session);
        let interpreter = Interpreter::new(self.engine, self.session);
        LoadedScript { staged, interpreter, diagnostics, arguments }
    }
}

fn functions(session: &Session) -> Vec<ScriptFunction> {
    let files = (0u32..).map(FileId).zip(&session.files);
    files.flat_map(|(id, file)| file.compiled.functions(id)).collect()
}
