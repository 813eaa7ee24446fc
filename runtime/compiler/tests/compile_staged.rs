//! Stages and compiles the examples of the language.

use std::rc::Rc;
use xputrace_model::catalog::MiniCatalog;
use xputrace_model::diagnostic::{Severity, SourceFile};
use xputrace_model::plan::Place;
use xputrace_script::{BundledLoader, load};

#[test]
fn the_examples_compile() {
    let text = r#"
kernel(|k| @time[k.name].sum(k.duration));
kernel(|k| if k.duration > 100.ms { print(`${k.name} took ${k.duration} ns\n${k.launch.ustack}`) });
kernel(|k| @latency.hist(k.start - k.launch.time));
kernel(|k| @gpu[k.launch.ustack, k.name].sum(k.duration));
end(|| flamegraph("gpu.svg", @gpu));
uprobe("./server:handle_request", |e| @request[e.tid] = e.arg0);
launch(|l| l.tag = @request[l.tid]);
kernel(|k| @gpu_ns[k.launch.tag].sum(k.duration));
uprobe("libc:malloc", |e| @bytes[e.comm].hist(e.arg0));
uretprobe("libc:read", |e| @us.hist(e.duration / 1.us));
uprobe("libc:write",    |e| @start[e.tid] = e.time);
uretprobe("libc:write", |e| { if e.tid in @start { @us2.hist((e.time - @start[e.tid]) / 1.us); @start[e.tid].remove(); } });
tracepoint("sched:sched_switch", |e| @switches[e.prev_comm].count());
profile(99.hz, |e| @cpu[e.ustack].count());
for f in ["cudaMalloc", "cudaFree", "cudaMemcpy"] { uprobe(`libcudart:${f}`, |e| @calls[f].count()); }
interval(1.s, || { print(@time.top(5)); @time.clear(); });
begin(|| print("tracing"));
"#;
    let loader = Rc::new(BundledLoader);
    let loaded = load(SourceFile { name: "examples.rhai".into(), text: text.into() }, &[], loader);
    let (plan, diagnostics) =
        xputrace_compiler::compile(&loaded.staged, &MiniCatalog, xputrace_compiler::Wishes::default());
    let errors: Vec<_> =
        loaded.diagnostics.iter().chain(&diagnostics).filter(|it| it.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    assert_eq!(plan.probes.len(), 19);
    for probe in &plan.probes {
        assert_eq!(probe.program.is_some(), probe.place != Place::Interpreter, "{}", probe.name);
    }
    let calls: Vec<&str> = plan.strings.iter().map(String::as_str).filter(|it| it.starts_with("cuda")).collect();
    assert_eq!(calls, ["cudaMalloc", "cudaFree", "cudaMemcpy"]);
}
