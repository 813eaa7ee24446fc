//! The example scripts of the manual, as written there (only paths are adapted), each beside the
//! traced program's own account.

use crate::programs::{cpu, cudart};
use xputrace_tests::{Done, Trace, hist_count, need_root, workload};

#[test]
fn gpu_time_by_kernel() {
    let done = Trace::script("kernel(|k| @time[k.name].sum(k.duration));")
        .on_workload("server", &["--requests=30"])
        .run()
        .well();
    let names: Vec<&str> = done.rows("@time").keys().map(String::as_str).collect();
    assert_eq!(names, ["nop", "fill", "scale"], "smallest first");
    assert_eq!(done.sum("@time"), done.account("collector_kernel_nanos"));
    assert_eq!(done.account("kernels"), done.workload()["launches"].as_i64().unwrap());
    done.nothing_lost();
}

#[test]
fn only_kernels_over_a_limit_with_the_code_that_launched_them() {
    let script = "kernel(|k| if k.duration > 20.ms { print(`${k.name} took ${k.duration} ns\\n${k.launch.ustack}`) });";
    let done = Trace::script(script)
        .on_softgpu()
        .on([cudart().as_os_str(), "1".as_ref(), "0".as_ref(), "0".as_ref(), "3".as_ref(), "50".as_ref()])
        .run()
        .well();
    assert_eq!(done.prints().len(), 3, "{:?}", done.prints());
    for text in done.prints() {
        let took: i64 =
            text.strip_prefix("slow took ").and_then(|it| it.split_whitespace().next()).unwrap().parse().unwrap();
        assert!(took > 20_000_000, "{text}");
        let stack: Vec<&str> = text.lines().skip(1).map(str::trim).collect();
        let position = |name: &str| {
            stack.iter().position(|it| it.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"))
        };
        assert!(
            position("cudaLaunchKernel") < position("launch_slow") && position("launch_slow") < position("main"),
            "{text}"
        );
    }
    assert_eq!((done.account("launches"), done.account("joined")), (53, 53));
    done.nothing_lost();
}

#[test]
fn launch_latency() {
    let done = Trace::script("kernel(|k| @latency.hist(k.start - k.launch.time));")
        .on_workload("server", &["--requests=30"])
        .run()
        .well();
    assert_eq!(done.hist_count("@latency"), 120);
    assert_eq!(done.account("joined"), 120);
    done.nothing_lost();
}

#[test]
fn flame_graph_of_cpu_and_gpu() {
    let script = "kernel(|k| @gpu[k.launch.ustack, k.name].sum(k.duration));\nend(|| flamegraph(\"gpu.svg\", @gpu));";
    let done =
        Trace::script(script).args(["--folded", "gpu.folded"]).on_workload("server", &["--requests=30"]).run().well();
    let folded = done.file("gpu.folded");
    let nanos: i64 = folded.lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum();
    assert_eq!(nanos, done.account("collector_kernel_nanos"));
    for (function, kernel) in [("prepare_batch", "fill"), ("run_layer", "scale"), ("finish_request", "nop")] {
        let path = folded.lines().find(|it| it.rsplit_once(' ').unwrap().0.ends_with(&format!(";{kernel}"))).unwrap();
        for frame in [";handle_request;", &format!(";{function};"), ";cuLaunchKernel;"] {
            assert!(path.contains(frame), "{frame} in {path}");
        }
    }
    let svg = done.file("gpu.svg");
    assert!(svg.contains("<svg") && svg.contains("handle_request") && svg.contains("scale"));
    assert!(done.maps("@gpu").is_empty(), "an end handler drew it");
    done.nothing_lost();
}

/// The uprobe, the tag and the kernel handler; `more` behind them.
fn by_request(launch: &str, more: &str) -> Done {
    let server = workload("server").display().to_string();
    let script = format!(
        "uprobe(\"{server}:handle_request\", |e| @request[e.tid] = e.arg0);\n{launch}\n\
         kernel(|k| @gpu_ns[k.launch.tag].sum(k.duration));\n{more}"
    );
    Trace::script(&script).on_workload("server", &["--requests=9"]).run().well()
}

#[test]
fn gpu_time_by_request() {
    need_root!();
    let done = by_request("launch(|l| l.tag = @request[l.tid]);", "kernel(|k| @n[k.launch.tag].count());");
    let mut requests: Vec<&str> = done.rows("@gpu_ns").keys().map(String::as_str).collect();
    requests.sort_unstable();
    assert_eq!(requests, ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
    assert!(done.rows("@n").values().all(|it| *it == 4), "{:?}", done.rows("@n"));
    assert_eq!(done.sum("@gpu_ns"), done.account("collector_kernel_nanos"));
    done.nothing_lost();
    let last = done.rows("@request");
    assert_eq!(last.values().next().unwrap(), 8, "the one thread's last request");
    let untagged = by_request("", "");
    assert_eq!(
        untagged.rows("@gpu_ns").keys().collect::<Vec<_>>(),
        ["-"],
        "without the launch handler no launch has a tag"
    );
}

#[test]
fn sizes_of_malloc_by_program() {
    need_root!();
    let done = Trace::script("uprobe(\"libc:malloc\", |e| @bytes[e.comm].hist(e.arg0));")
        .on([cpu().as_os_str(), "malloc".as_ref(), "321".as_ref(), "100000".as_ref()])
        .run()
        .well();
    let buckets = done.rows("@bytes")["cpu"].as_array().unwrap().clone();
    let large: Vec<_> = buckets.iter().filter(|it| it["min"] == 65536).collect();
    assert_eq!((&large[0]["max"], &large[0]["count"]), (&131071.into(), &321.into()), "{buckets:?}");
    done.nothing_lost();
}

#[test]
fn how_long_reads_take() {
    need_root!();
    let done = Trace::script("uretprobe(\"libc:read\", |e| @us.hist(e.duration / 1.us));")
        .on([cpu().as_os_str(), "io".as_ref(), "777".as_ref()])
        .run()
        .well();
    assert_eq!(done.hist_count("@us"), 777);
    done.nothing_lost();
}

#[test]
fn how_long_writes_take_by_hand() {
    need_root!();
    let script = "uprobe(\"libc:write\",    |e| @start[e.tid] = e.time);\n\
        uretprobe(\"libc:write\", |e| { if e.tid in @start { @us2.hist((e.time - @start[e.tid]) / 1.us); @start[e.tid].remove(); } });";
    let done = Trace::script(script).on([cpu().as_os_str(), "io".as_ref(), "777".as_ref()]).run().well();
    assert_eq!(done.hist_count("@us2"), 777);
    assert!(done.maps("@start").is_empty(), "every element was removed");
    done.nothing_lost();
}

#[test]
fn context_switches_by_program() {
    need_root!();
    let done = Trace::script("tracepoint(\"sched:sched_switch\", |e| @switches[e.prev_comm].count());")
        .on([cpu().as_os_str(), "nap".as_ref(), "50".as_ref()])
        .run()
        .well();
    let own: i64 = done.stdout.lines().find_map(|it| it.strip_prefix("switches ")).unwrap().parse().unwrap();
    let seen = done.rows("@switches")["cpu"].as_i64().unwrap();
    // The kernel's count also has those before the program's own exec, ours those after it asked.
    assert!(own >= 50 && (own - 20..=own + 5).contains(&seen), "{seen} seen, {own} by the kernel's count");
    assert_eq!(
        done.rows("@switches").keys().filter(|it| *it != "cpu" && *it != "xputrace").count(),
        0,
        "{:?}",
        done.rows("@switches")
    );
    done.nothing_lost();
}

#[test]
fn where_processors_spend_their_time() {
    need_root!();
    let done = Trace::script("profile(99.hz, |e| @cpu[e.ustack].count());")
        .on([cpu().as_os_str(), "burn".as_ref(), "600".as_ref()])
        .run()
        .well();
    let in_burn: i64 = done
        .rows("@cpu")
        .iter()
        .filter(|(stack, _)| stack.contains("burn") && stack.contains("main"))
        .map(|(_, n)| n.as_i64().unwrap())
        .sum();
    assert!(in_burn >= 20 && in_burn * 10 >= done.sum("@cpu") * 8, "{:?}", done.rows("@cpu"));
}

#[test]
fn samples_in_user_mode_have_no_kernel_stack_and_that_is_no_loss() {
    need_root!();
    let done = Trace::script("profile(99.hz, |e| @[e.kstack].count());")
        .on([cpu().as_os_str(), "burn".as_ref(), "400".as_ref()])
        .run()
        .well();
    let none = done.rows("@").get("\n    [no stack]\n").and_then(|it| it.as_i64()).unwrap_or(0);
    assert!(none * 10 >= done.sum("@") * 8 && none > 10, "{:?}", done.rows("@"));
    done.nothing_lost();
}

#[test]
fn one_line_many_probes() {
    need_root!();
    let script =
        "for f in [\"cudaMalloc\", \"cudaFree\", \"cudaMemcpy\"] { uprobe(`libcudart:${f}`, |e| @calls[f].count()); }";
    let done = Trace::script(script)
        .on_softgpu()
        .on([cudart().as_os_str(), "9".as_ref(), "7".as_ref(), "13".as_ref(), "0".as_ref(), "0".as_ref()])
        .run()
        .well();
    assert_eq!(
        serde_json::Value::from(done.rows("@calls").clone()),
        serde_json::json!({"cudaFree": 7, "cudaMalloc": 9, "cudaMemcpy": 13})
    );
    done.nothing_lost();
}

#[test]
fn tables_every_second() {
    let script = "kernel(|k| @time[k.name].sum(k.duration));\ninterval(1.s, || { print(@time.top(5)); @time.clear(); });\nbegin(|| print(\"tracing\"));";
    let done = Trace::script(script).on_workload("server", &["--requests=300", "--pause-us=6000"]).run().well();
    assert_eq!(done.prints(), ["tracing"]);
    assert_eq!(done.results[0]["type"], "print", "begin comes first: {:?}", done.results[0]);
    let tables = done.maps("@time");
    assert!(tables.len() >= 2, "a program of two seconds: {tables:?}");
    let sum: i64 = tables.iter().flat_map(|it| it.as_object().unwrap().values()).map(|it| it.as_i64().unwrap()).sum();
    assert_eq!(sum, done.account("collector_kernel_nanos"), "each table has what came since the one before it");
    done.nothing_lost();
}

#[test]
fn device_code_is_named_as_not_there_yet() {
    let script = "device_exit(\"vectorAdd\", |t| @last[t.threadIdx.x].max(t.time));";
    let done = Trace::script(script).on(["touch", "ran"]).run();
    assert_eq!(done.code(), 125);
    assert!(done.stderr.contains("device_exit") && done.stderr.contains("not supported yet"), "{}", done.stderr);
    assert!(!done.path("ran").exists(), "nothing was run");
}

#[test]
fn bundled_scripts_by_name() {
    let server = |trace: Trace| trace.on_workload("server", &["--requests=30"]).run().well();
    let top = server(Trace::new(["kerneltop", "--every=100ms"]));
    let nanos: i64 = top
        .maps("@gpu_time")
        .iter()
        .flat_map(|it| it.as_object().unwrap().values())
        .map(|it| it.as_i64().unwrap())
        .sum();
    assert_eq!(nanos, top.account("collector_kernel_nanos"));
    assert_eq!(server(Trace::new(["launchlat"])).hist_count("@launch_latency"), 120);
    let by_kernel = server(Trace::new(["launchlat", "--by-kernel"]));
    assert_eq!(by_kernel.rows("@launch_latency").values().map(hist_count).sum::<i64>(), 120);
    let flame = server(Trace::new(["flame", "--svg=mine.svg"]));
    assert!(flame.file("mine.svg").contains("run_layers"));
    let slow = Trace::new(["over100ms", "--ms=20"])
        .on_softgpu()
        .on([cudart().as_os_str(), "0".as_ref(), "0".as_ref(), "0".as_ref(), "2".as_ref(), "9".as_ref()])
        .run()
        .well();
    assert_eq!((slow.rows("@slow")["slow"].as_i64(), slow.prints().len()), (Some(2), 2));
}

#[test]
fn the_bundled_request_script() {
    need_root!();
    let function = format!("--function={}:handle_request", workload("server").display());
    let done = Trace::new(["request", &function]).on_workload("server", &["--requests=6"]).run().well();
    assert_eq!(done.rows("@request_gpu").len(), 6, "{:?}", done.rows("@request_gpu"));
    assert!(done.maps("@request").is_empty(), "every request ended");
    assert_eq!(done.sum("@request_gpu"), done.account("collector_kernel_nanos"));
}

#[test]
fn without_a_script_a_summary_is_shown() {
    let done = Trace::new::<&str>([]).text().on_workload("server", &["--requests=30"]).run().well();
    let text = &done.stdout;
    for part in ["scale", "launch latency", "cuLaunchKernel", "launches 120 = joined 120", "software GPU"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    assert!(text.lines().count() <= 40 + 1, "{text}");
    assert!(text.lines().filter(|it| !it.starts_with('{')).all(|it| it.chars().count() <= 80), "{text}");
}
