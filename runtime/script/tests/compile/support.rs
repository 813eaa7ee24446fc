//! A staging of our own, as small as can be: the compiler is tested without the lexer and the
//! interpreter of the crate.

use rhai::{AST, ASTNode, Dynamic, Engine, EvalAltResult, FnPtr, Module, NativeCallContext, Scope};
use std::cell::RefCell;
use std::rc::Rc;
use xputrace_model::catalog::{Catalog, MiniCatalog};
use xputrace_model::diagnostic::{Diagnostic, FileId, Label, Severity, Site, SourceFile, Sources};
use xputrace_model::plan::{Plan, Target};
use xputrace_model::schema::Event;
use xputrace_script::compile::compile;
use xputrace_script::handler::{Captured, Handler, MapDeclaration, Options, Positions, Staged};

/// Compiles a script on the miniature machine.
pub(crate) fn compiled(script: &str) -> (Plan, Vec<Diagnostic>) {
    compile(&staged(script), &MiniCatalog)
}

/// The plan of a script without mistakes.
pub(crate) fn plan(script: &str) -> Plan {
    plan_on(script, &MiniCatalog)
}

/// The same on another machine.
pub(crate) fn plan_on(script: &str, catalog: &dyn Catalog) -> Plan {
    let (plan, diagnostics) = compile(&staged(script), catalog);
    let errors: Vec<_> = diagnostics.iter().filter(|it| it.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{script}\n{}", described(script, &diagnostics));
    plan
}

/// Diagnostics as text: place, message, other places, help.
pub(crate) fn described(script: &str, diagnostics: &[Diagnostic]) -> String {
    let mut out = String::new();
    let place = |label: &Label| {
        let before = &script[..label.span.start.min(script.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |it| it + 1) + 1;
        format!("{line}:{column} `{}`", script.get(label.span.clone()).unwrap_or(""))
    };
    for it in diagnostics {
        let severity = if it.severity == Severity::Error { "error" } else { "warning" };
        out += &format!("{severity}[{}] {} {}\n", it.code, place(&it.primary), it.message);
        for label in &it.secondary {
            out += &format!("  also {} {}\n", place(label), label.note.as_deref().unwrap_or(""));
        }
        for help in &it.help {
            out += &format!("  help: {help}\n");
        }
    }
    out
}

/// Runs a script's top level and collects what it declares.
pub(crate) fn staged(script: &str) -> Staged {
    let (text, positions) = rewritten(script);
    let found: Rc<RefCell<Vec<(Declared, FnPtr)>>> = Rc::default();
    let maps: Rc<RefCell<Vec<MapDeclaration>>> = Rc::default();
    let mut engine = Engine::new();
    engine.set_optimization_level(rhai::OptimizationLevel::None);
    engine.set_max_expr_depths(0, 0);
    declare(&mut engine, &found, &maps);
    let mut scope = Scope::new();
    for name in map_variables(&text) {
        scope.push(name, ());
    }
    let ast = engine.compile_with_scope(&scope, &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    engine.run_ast_with_scope(&mut scope, &ast).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let handlers = found.borrow().iter().enumerate().map(|(n, it)| handler(&ast, n, &it.0, &it.1)).collect();
    let file = SourceFile { name: "script.rhai".into(), text: script.into() };
    let maps = maps.borrow().clone();
    Staged {
        sources: Sources { files: vec![file] },
        handlers,
        maps,
        positions: vec![positions],
    }
}

#[derive(Clone)]
struct Declared {
    event: Event,
    target: Target,
    name: String,
    options: Options,
    interpreted: bool,
    captured: Vec<Captured>,
}

fn declare(
    engine: &mut Engine,
    found: &Rc<RefCell<Vec<(Declared, FnPtr)>>>,
    maps: &Rc<RefCell<Vec<MapDeclaration>>>,
) {
    for event in [Event::Kernel, Event::Launch, Event::Begin, Event::End] {
        let (one, two) = (found.clone(), found.clone());
        engine.register_fn(event.name(), move |_: NativeCallContext, f: FnPtr| {
            add(&one, event, Target::None, event.name().into(), rhai::Map::new(), f);
        });
        engine.register_fn(event.name(), move |options: rhai::Map, f: FnPtr| {
            add(&two, event, Target::None, event.name().into(), options, f);
        });
    }
    for event in [Event::Uprobe, Event::Uretprobe, Event::Tracepoint] {
        let (one, two) = (found.clone(), found.clone());
        engine.register_fn(event.name(), move |at: &str, f: FnPtr| {
            add(&one, event, target(event, at), format!("{}:{at}", event.name()), rhai::Map::new(), f);
        });
        engine.register_fn(event.name(), move |at: &str, options: rhai::Map, f: FnPtr| {
            add(&two, event, target(event, at), format!("{}:{at}", event.name()), options, f);
        });
    }
    let (profiles, intervals, wrapped) = (found.clone(), found.clone(), found.clone());
    engine.register_fn("profile", move |hz: i64, f: FnPtr| {
        add(&profiles, Event::Profile, Target::Profile { hz: hz as u64 }, format!("profile:hz:{hz}"), rhai::Map::new(), f);
    });
    engine.register_fn("interval", move |nanos: i64, f: FnPtr| {
        let target = Target::Interval { nanos: nanos as u64 };
        add(&intervals, Event::Interval, target, "interval".into(), rhai::Map::new(), f);
    });
    engine.register_fn("kernel_interpreted", move |f: FnPtr| {
        add(&wrapped, Event::Kernel, Target::None, "kernel".into(), rhai::Map::new(), f);
        wrapped.borrow_mut().last_mut().expect("just added").0.interpreted = true;
    });
    let maps = maps.clone();
    engine.register_fn("map", move |options: rhai::Map| {
        maps.borrow_mut().push(MapDeclaration {
            // The rewriting here knows no strings.
            name: options["name"].to_string().replacen('_', "@", 1),
            size: options.get("size").and_then(|it| it.as_int().ok()).map(|it| it as u32),
            evict: options.get("evict").is_some_and(|it| it.as_bool() == Ok(true)),
            declared_at: Label { file: FileId(0), span: 0..0, note: None },
        });
    });
    for (unit, scale) in [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("hz", 1)] {
        engine.register_get(unit, move |n: &mut i64| -> Result<i64, Box<EvalAltResult>> { Ok(*n * scale) });
    }
}

fn add(
    found: &Rc<RefCell<Vec<(Declared, FnPtr)>>>,
    event: Event,
    target: Target,
    name: String,
    options: rhai::Map,
    f: FnPtr,
) {
    let options = Options {
        system_wide: options.get("scope").is_some_and(|it| it.to_string() == "system"),
        every: options.get("every").and_then(|it| it.as_int().ok()).map(|it| it as u64),
    };
    let interpreted = matches!(event, Event::Interval | Event::Begin | Event::End);
    let captured = f.curry().iter().map(|it| value(it.clone().flatten())).collect();
    found.borrow_mut().push((Declared { event, target, name, options, interpreted, captured }, f));
}

fn target(event: Event, at: &str) -> Target {
    let (a, b) = at.split_once(':').unwrap_or(("", at));
    let (a, b) = (a.to_string(), b.to_string());
    match event {
        Event::Tracepoint => Target::Tracepoint { category: a, name: b },
        _ => Target::Function { object: a, function: b },
    }
}

fn value(value: Dynamic) -> Captured {
    if value.is_unit() {
        Captured::Unit
    } else if let Ok(n) = value.as_int() {
        Captured::Int(n)
    } else if let Ok(b) = value.as_bool() {
        Captured::Bool(b)
    } else if value.is_string() {
        Captured::Str(value.to_string())
    } else {
        Captured::Other(value.type_name().into())
    }
}

fn handler(ast: &AST, n: usize, declared: &Declared, f: &FnPtr) -> Handler {
    let curried = f.curry().len();
    let lib = ast.shared_lib();
    let def = (0..=1)
        .find_map(|parameters| lib.get_script_fn(f.fn_name(), curried + parameters))
        .expect("the closure is in the script");
    let mut module = Module::new();
    module.set_script_fn(def.clone());
    let mut body = Vec::new();
    AST::new_from_module(module).walk(&mut |path: &[ASTNode]| {
        if let [ASTNode::Stmt(stmt)] = path {
            body.push((*stmt).clone());
        }
        true
    });
    let names: Vec<String> = def.params.iter().map(|it| it.to_string()).collect();
    let captured = names
        .iter()
        .cloned()
        .zip(declared.captured.iter().cloned())
        .filter(|it| !it.0.starts_with('_'))
        .collect();
    Handler {
        event: declared.event,
        target: declared.target.clone(),
        name: declared.name.clone(),
        options: declared.options.clone(),
        parameter: names.get(curried).cloned().unwrap_or_default(),
        body,
        captured,
        file: FileId(0),
        site: Site { file: FileId(0), offset: 0, line: 1 },
        declared_at: Label { file: FileId(0), span: 0..0, note: None },
        interpreted: declared.interpreted.then_some(n),
    }
}

/// `@x[a, b]` as `_x[[a, b]]`, with the positions to go back.
fn rewritten(script: &str) -> (String, Positions) {
    let bytes = script.as_bytes();
    let (mut out, mut anchors, mut closing, mut depth) = (String::new(), vec![(0, 0)], Vec::new(), 0);
    for (at, c) in script.char_indices() {
        let rest = &bytes[at + 1..];
        match c {
            '@' => {
                out.push('_');
                if !rest.first().is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_') {
                    out.push_str("_map");
                    anchors.push((out.len(), at + 1));
                }
                continue;
            }
            '[' => {
                depth += 1;
                let name = out.trim_end_matches(|it: char| it.is_alphanumeric() || it == '_');
                if out[name.len()..].starts_with('_') {
                    out.push('[');
                    closing.push(depth);
                    anchors.push((out.len(), at));
                }
                out.push('[');
            }
            ']' => {
                out.push(']');
                if closing.last() == Some(&depth) {
                    closing.pop();
                    out.push(']');
                    anchors.push((out.len(), at + 1));
                }
                depth -= 1;
            }
            other => out.push(other),
        }
    }
    let lines = std::iter::once(0).chain(out.match_indices('\n').map(|it| it.0 + 1)).collect();
    (out, Positions { lines, anchors, ..Positions::default() })
}

fn map_variables(text: &str) -> Vec<String> {
    let mut names: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|it| it.starts_with('_'))
        .map(str::to_string)
        .collect();
    names.sort();
    names.dedup();
    names
}
