//! Stages scripts as users would write them.

use std::rc::Rc;
use xputrace_model::diagnostic::{Diagnostic, SourceFile};
use xputrace_model::plan::{ClosureId, ProbePlace, ProbeScope};
use xputrace_model::schema::Event;
use xputrace_script::handler::Captured;
use xputrace_script::{ArgumentValue, BundledLoader, LoadedScript, load};

fn stage(text: &str) -> LoadedScript {
    stage_with(text, &[])
}

fn stage_with(text: &str, args: &[&str]) -> LoadedScript {
    let main = SourceFile { name: "test.rhai".into(), text: text.into() };
    let args: Vec<String> = args.iter().map(|it| (*it).to_owned()).collect();
    load(main, &args, Rc::new(BundledLoader))
}

fn clean(text: &str) -> LoadedScript {
    let loaded = stage(text);
    assert!(loaded.diagnostics.is_empty(), "{text}\n{}", list(&loaded.diagnostics));
    loaded
}

fn list(diagnostics: &[Diagnostic]) -> String {
    diagnostics.iter().map(|it| format!("{}: {} {:?}\n", it.code, it.message, it.primary.span)).collect()
}

/// Examples of the language, each with its number of probes; device code is not implemented yet.
const EXAMPLES: &[(&str, usize)] = &[
    ("kernel(|k| @time[k.name].sum(k.duration));", 1),
    ("kernel(|k| if k.duration > 100.ms { print(`${k.name} took ${k.duration} ns\\n${k.launch.ustack}`) });", 1),
    ("kernel(|k| @latency.hist(k.start - k.launch.time));", 1),
    ("kernel(|k| @gpu[k.launch.ustack, k.name].sum(k.duration));\nend(|| flamegraph(\"gpu.svg\", @gpu));", 2),
    (
        "uprobe(\"./server:handle_request\", |e| @request[e.tid] = e.arg0);\n\
         launch(|l| l.tag = @request[l.tid]);\n\
         kernel(|k| @gpu_ns[k.launch.tag].sum(k.duration));",
        3,
    ),
    ("uprobe(\"libc:malloc\", |e| @bytes[e.comm].hist(e.arg0));", 1),
    ("uretprobe(\"libc:read\", |e| @us.hist(e.duration / 1.us));", 1),
    (
        "uprobe(\"libc:write\",    |e| @start[e.tid] = e.time);\n\
         uretprobe(\"libc:write\", |e| { if e.tid in @start { @us2.hist((e.time - @start[e.tid]) / 1.us); \
         @start[e.tid].remove(); } });",
        2,
    ),
    ("tracepoint(\"sched:sched_switch\", |e| @switches[e.prev_comm].count());", 1),
    ("profile(99.hz, |e| @cpu[e.ustack].count());", 1),
    ("for f in [\"cudaMalloc\", \"cudaFree\", \"cudaMemcpy\"] { uprobe(`libcudart:${f}`, |e| @calls[f].count()); }", 3),
    ("interval(1.s, || { print(@time.top(5)); @time.clear(); });", 1),
    ("begin(|| print(\"tracing\"));", 1),
    ("device_exit(\"vectorAdd\", |t| @last[t.threadIdx.x].max(t.time));", 1),
];

#[test]
fn the_examples_stage() {
    for (text, handlers) in EXAMPLES {
        assert_eq!(clean(text).staged.handlers.len(), *handlers, "{text}");
    }
    let all: Vec<&str> = EXAMPLES.iter().map(|it| it.0).collect();
    clean(&all.join("\n"));
}

#[test]
fn every_round_of_a_loop_captures_its_own_values() {
    let loaded = clean("for f in [\"a\", \"b\"] { let n = f.len() + 1; uprobe(`libx:${f}`, |e| @calls[f] += n); }");
    let captured: Vec<_> = loaded.staged.handlers.iter().map(|it| it.captured.clone()).collect();
    let expected = |f: &str| vec![("f".to_owned(), Captured::Str(f.into())), ("n".to_owned(), Captured::Int(2))];
    assert_eq!(captured, [expected("a"), expected("b")]);
    let targets: Vec<_> = loaded.staged.handlers.iter().map(|it| it.target.clone()).collect();
    let function = |f: &str| ProbePlace::Function { object: "libx".into(), function: f.into() };
    assert_eq!(targets, [function("a"), function("b")]);
}

#[test]
fn handlers_keep_the_compilers_dialect() {
    let loaded = clean("uprobe(\"libc:write\", |e| @start[e.tid, 1] += e.time);");
    let handler = &loaded.staged.handlers[0];
    let body = format!("{:?}", handler.body);
    assert_eq!((handler.event, &*handler.parameter, &*handler.name), (Event::Uprobe, "e", "uprobe:libc:write"));
    assert!(!body.contains("value") && !body.contains("added") && body.contains("_start"), "{body}");
    assert_eq!(handler.captured, []);
    assert_eq!(handler.site.line, 1);
}

#[test]
fn functions_and_options_and_lists() {
    let loaded = clean(
        "fn seen(e) { @n[e.tid].count(); }\n\
         uprobe([\"libc:malloc\", \"libc:fr*\"], #{scope: \"system\", every: 10}, seen);\n\
         fn both(name) { uprobe(`libc:${name}`, |e| @calls[name].count()); }\n\
         both(\"read\"); both(\"write\");",
    );
    let names: Vec<_> = loaded.staged.handlers.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["uprobe:libc:malloc", "uprobe:libc:fr*", "uprobe:libc:read", "uprobe:libc:write"]);
    let first = &loaded.staged.handlers[0];
    assert_eq!(
        (first.options.scope, first.options.every, &*first.parameter),
        (Some(ProbeScope::System), Some(10), "e")
    );
    assert_eq!(first.body.len(), 1);
}

#[test]
fn rates_and_durations() {
    let loaded =
        clean("profile(99.hz, |e| @n.count()); interval(1.5.s, || print(@n)); profile(10.ms, |e| @n.count());");
    let targets: Vec<_> = loaded.staged.handlers.iter().map(|it| it.target.clone()).collect();
    assert_eq!(
        targets,
        [
            ProbePlace::Profile { hz: 99 },
            ProbePlace::Interval { nanos: 1_500_000_000 },
            ProbePlace::Profile { hz: 100 }
        ]
    );
    assert_eq!(loaded.staged.handlers[1].name, "interval:ms:1500");
    assert_eq!(loaded.staged.handlers[1].interpreted, Some(ClosureId(0)));
}

#[test]
fn arguments_are_typed_by_their_default() {
    let script = "let ms = arg(\"ms\", 100, \"kernels longer than this\");\n\
                  let who = arg(\"who\", \"all\", \"a name\"); let deep = arg(\"deep\", false, \"stacks too\");\n\
                  let every = arg(\"every\", 1.5.s, \"time between two\"); let rate = arg(\"rate\", 99.hz);\n\
                  let long = arg(\"long\", 2 * 1.ms, \"computed, (with)\");\n\
                  kernel(|k| if k.duration > ms && deep && every > long { @n[who].sum(rate) });";
    let loaded =
        stage_with(script, &["--ms=1_500", "--who", "me", "--deep", "--every", "500ms", "--rate=50hz", "--long=3us"]);
    assert!(loaded.diagnostics.is_empty(), "{}", list(&loaded.diagnostics));
    let captured = &loaded.staged.handlers[0].captured;
    for expected in [
        ("ms".to_owned(), Captured::Int(1_500)),
        ("every".to_owned(), Captured::Int(500_000_000)),
        ("rate".to_owned(), Captured::Int(20_000_000)),
        ("long".to_owned(), Captured::Int(3_000)),
        ("who".to_owned(), Captured::Str("me".into())),
        ("deep".to_owned(), Captured::Bool(true)),
    ] {
        assert!(captured.contains(&expected), "{captured:?}");
    }
    assert_eq!(loaded.arguments[0].default, ArgumentValue::Int(100));
    let help = xputrace_script::argument_help(&loaded.arguments);
    let expected = "  --ms=N        kernels longer than this (default 100)\n  \
                    --who=TEXT    a name (default \"all\")\n  \
                    --deep        stacks too (default off)\n  \
                    --every=TIME  time between two (default 1.5s)\n  \
                    --rate=TIME   (default 99hz)\n  \
                    --long=TIME   computed, (with) (default 2ms)\n";
    assert_eq!(help, expected);
}

#[test]
fn wrong_arguments_of_the_command_line() {
    let script = "let ms = arg(\"ms\", 100, \"kernels longer than this\"); let every = arg(\"every\", 1.s);\n\
                  begin(|| print(ms + every));";
    for (args, message) in [
        (&["--mss=3"][..], "the script has no argument `--mss=3`"),
        (&["--ms=abc"], "`--ms` takes an integer without a unit, not `abc`"),
        (&["--ms=100ms"], "`--ms` takes an integer without a unit, not `100ms`"),
        (&["--every=200"], "`--every` takes a time with its unit, not `200`"),
        (&["--ms"], "`--ms` needs a value"),
        (&["extra"], "the script has no argument `extra`"),
    ] {
        let loaded = stage_with(script, args);
        assert!(loaded.diagnostics.iter().any(|it| it.message == message), "{args:?}\n{}", list(&loaded.diagnostics));
    }
    for (args, help) in [
        (&["--ms=2s"][..], "it counts ms: write `--ms=2000`"),
        (&["--ms=1.5us"], "write `--ms=100`; its help text should say the unit"),
        (&["--every=200"], "write `--every=200ms`, or another of the units ns, us, ms, s, minutes, hours, hz"),
    ] {
        let loaded = stage_with(script, args);
        assert!(loaded.diagnostics.iter().any(|it| it.help == [help]), "{args:?}\n{}", list(&loaded.diagnostics));
    }
    assert!(stage_with(script, &["--help"]).diagnostics.is_empty());
}

#[test]
fn declared_maps_are_passed_on() {
    let loaded =
        clean("map(#{name: \"calls\", size: 1000, evict: true});\nuprobe(\"libc:malloc\", |e| @calls[e.tid].count());");
    let map = &loaded.staged.maps[0];
    assert_eq!((&*map.name, map.size, map.evict), ("@calls", Some(1000), true));
}

#[test]
fn bundled_texts_stage() {
    for script in xputrace_script::scripts() {
        let loaded = load(script.source(), &[], Rc::new(BundledLoader));
        assert!(loaded.diagnostics.is_empty(), "{}\n{}", script.name, list(&loaded.diagnostics));
        assert!(!loaded.staged.handlers.is_empty(), "{}", script.name);
        assert!(!script.summary().is_empty(), "{}", script.name);
    }
    for library in xputrace_script::stdlib() {
        clean(&format!("import \"{}\" as l; begin(|| print(1));", library.name));
    }
}
