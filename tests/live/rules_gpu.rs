//! The rules that hold in every engine, where the tracer runs the handlers over GPU events.

use crate::programs::cudart;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use xputrace_tests::{Done, Trace, hist_count, need_root, workload};

fn server(script: &str, requests: u32) -> Done {
    Trace::script(script).on_workload("server", &[&format!("--requests={requests}")]).run().well()
}

/// Kernels of several threads on streams of their own.
fn threads(script: &str, threads: u32, launches: u32, environment: &[(&str, &str)]) -> Done {
    let words = [format!("--threads={threads}"), format!("--launches={launches}")];
    let trace = Trace::script(script).on_workload("threads", &[&words[0], &words[1]]);
    environment.iter().fold(trace, |trace, (name, value)| trace.env(name, value)).run().well()
}

#[test]
fn computing_with_a_missing_tag_is_counted_and_testing_it_is_not() {
    let done = server("kernel(|k| {\n    @all.count();\n    @next.sum(k.launch.tag + 1);\n});", 10);
    assert_eq!((done.map("@all"), done.maps("@next").len(), done.loss("missing_value")), (&json!(40), 0, 40));
    assert!(done.line_losses()[0].1.ends_with("script.rhai:3"), "{:?}", done.line_losses());
    let tested = server("kernel(|k| @next.sum((k.launch.tag ?? 6) + 1));", 10);
    assert_eq!(tested.map("@next"), &json!(280));
    tested.nothing_lost();
}

#[test]
fn division_by_zero_is_counted_at_its_line() {
    let done = server("kernel(|k| {\n    @n += 1;\n    @q.sum(100 / (@n % 4));\n});", 10);
    // @n is 1 … 40: every fourth divides by zero.
    assert_eq!(
        (done.map("@n"), done.map("@q"), done.loss("division_by_zero")),
        (&json!(40), &json!(10 * (100 + 50 + 33)), 10)
    );
    assert!(done.line_losses()[0].1.ends_with("script.rhai:3"), "{:?}", done.line_losses());
}

#[test]
fn plain_values_are_tested_changed_and_removed() {
    let script = "kernel(|k| {\n    @time[k.name] += k.duration;\n    if k.name in @first { @again.count(); } else { @first[k.name] = k.start; }\n    \
        @gone[k.name] = 1; @gone[k.name].remove();\n    @last = k.name;\n});\nkernel(|k| @sum[k.name].sum(k.duration));";
    let done = server(script, 10);
    assert_eq!(done.map("@time"), done.map("@sum"));
    assert_eq!((done.rows("@first").len(), done.map("@again"), done.maps("@gone").len()), (3, &json!(37), 0));
    assert_eq!(done.map("@last"), "nop");
    done.nothing_lost();
}

#[test]
fn aggregations_agree_with_each_other() {
    let script = "kernel(|k| { @n[k.name].count(); @s[k.name].stats(k.duration); @min.min(k.duration); @max.max(k.duration); @avg.avg(k.duration); @sum.sum(k.duration);\n    \
        @h[k.name].hist(k.duration); @l.lhist(k.duration, 0, 1000000, 1000); @q.quantiles(k.duration); });";
    let done = server(script, 25);
    let stats: Vec<&Json> = done.rows("@s").values().collect();
    let int = |it: &Json| it.as_i64().unwrap();
    assert_eq!(stats.iter().map(|it| int(&it["total"])).sum::<i64>(), done.account("collector_kernel_nanos"));
    assert_eq!(int(done.map("@sum")), done.account("collector_kernel_nanos"));
    assert_eq!(int(done.map("@min")), stats.iter().map(|it| int(&it["min"])).min().unwrap());
    assert_eq!(int(done.map("@max")), stats.iter().map(|it| int(&it["max"])).max().unwrap());
    assert_eq!(int(done.map("@avg")), int(done.map("@sum")) / 100);
    for (name, n) in done.rows("@n") {
        assert_eq!((int(n), hist_count(&done.rows("@h")[name])), (int(&done.rows("@s")[name]["count"]), int(n)));
    }
    assert_eq!((done.hist_count("@l"), int(&done.map("@q")["count"])), (100, 100));
    done.nothing_lost();
}

#[test]
fn dropped_records_are_lost_launches() {
    let script = "kernel(|k| { @n.count(); @latency.hist(k.start - k.launch.time); });";
    let done = threads(script, 2, 500, &[("SOFTGPU_DROP", "1/5")]);
    assert_eq!((done.account("launches"), done.account("joined"), done.account("lost")), (1000, 800, 200));
    assert_eq!((done.map("@n"), done.loss("cupti_dropped"), done.loss("lost_at_exit")), (&json!(800), 200, 200));
    done.adds_up();
    threads(script, 2, 500, &[]).nothing_lost();
}

#[test]
fn late_buffers_are_waited_for_and_the_last_ones_counted() {
    let script = "kernel(|k| { @n.count(); @latency.hist(k.start - k.launch.time); });";
    let done = Trace::script(script)
        .env("SOFTGPU_LATE_MS", "150")
        .on_workload("server", &["--requests=100", "--pause-us=10000"])
        .run()
        .well();
    assert_eq!((done.account("launches"), done.map("@n").as_i64().unwrap()), (400, done.account("joined")));
    assert!(done.account("joined") > 100, "{:?}", done.results);
    assert_eq!(done.account("lost"), done.loss("lost_at_exit"), "what came after the program's end");
    done.adds_up();
}

#[test]
fn failed_launches_are_in_the_account() {
    let script = "kernel(|k| @n.count());\nlaunch(|l| @by[l.result].count());";
    let done = threads(script, 2, 500, &[("SOFTGPU_FAIL_LAUNCH", "1000000")]);
    assert_eq!(done.map("@by"), &json!({"0": 1000}));
    let done = Trace::script(script).on_workload("failing", &["--launches=90"]).run().well();
    assert_eq!((done.map("@n"), done.map("@by")), (&json!(60), &json!({"1": 30, "0": 60})));
    assert_eq!((done.account("launches"), done.account("joined"), done.account("failed")), (90, 60, 30));
    assert_eq!(done.workload()["failed"], 30);
    done.adds_up();
}

#[test]
fn kernels_without_times_are_joined_and_counted() {
    let done = threads(
        "kernel(|k| { @n.count(); @t.sum(k.duration); @l[k.launch.api].count(); });",
        1,
        500,
        &[("SOFTGPU_NO_TIMES", "1/10")],
    );
    assert_eq!((done.map("@n"), done.loss("no_timestamps"), done.account("joined")), (&json!(450), 50, 500));
    done.adds_up();
}

#[test]
fn launches_of_more_threads_than_there_are_rings_are_counted_not_guessed() {
    let script = "kernel(|k| @all[k.launch == ()].count());\nkernel(|k| @by[k.launch.api].count());\nkernel(|k| { if k.launch == () { @or[\"none\"].count(); } else { @or[k.launch.api].count(); } });";
    let done =
        Trace::script(script).on_workload("threads", &["--threads=80", "--launches=300", "--every=50"]).run().well();
    let count = |map: &str, key: &str| done.rows(map).get(key).and_then(Json::as_i64).unwrap_or(0);
    let (joined, unjoined) = (count("@all", "false"), count("@all", "true"));
    assert_eq!(joined + unjoined, 24_000, "every kernel is seen by a handler that tests .launch");
    assert_eq!(done.loss("unjoined"), unjoined);
    assert_eq!(
        (count("@by", "cuLaunchKernel"), done.loss("skipped_unjoined")),
        (joined, unjoined),
        "any other skips them, counted"
    );
    assert_eq!((count("@or", "cuLaunchKernel"), count("@or", "none")), (joined, unjoined));
    done.adds_up();
}

#[test]
fn handlers_run_in_order_of_end() {
    let script = "kernel(|k| { if (@last ?? 0) > k.end { @back.count(); } @last = k.end; @n.count(); @streams[k.stream].count(); });";
    let done = threads(script, 4, 5000, &[]);
    assert_eq!((done.map("@n"), done.maps("@back").len(), done.loss("out_of_order")), (&json!(20_000), 0, 0));
    assert_eq!(done.rows("@streams").len(), 4);
    done.nothing_lost();
}

#[test]
fn kernels_alone_are_handled_in_order_however_late_they_come() {
    let done = threads("kernel(|k| @n.count());", 4, 50_000, &[("SOFTGPU_LATE_MS", "20")]);
    // Where a ring was too small, a buffer looks as if it had not been full (docs/JOIN.md).
    let full = done.loss("activity_ring_full");
    assert!(done.loss("out_of_order") == 0 || full > 0, "{} out of order", done.loss("out_of_order"));
}

#[test]
fn intervals_that_clear_lose_nothing_under_load() {
    let script = "kernel(|k| { @n.count(); @t.sum(k.duration); });\ninterval(20.ms, || { print(@n); @n.clear(); print(@t); @t.clear(); });";
    let done = threads(script, 4, 50_000, &[]);
    let sum = |name: &str| done.maps(name).iter().map(|it| it.as_i64().unwrap_or(0)).sum::<i64>();
    assert!(done.maps("@n").len() > 1, "an interval and the end");
    assert_eq!((sum("@n"), sum("@t")), (200_000, done.account("collector_kernel_nanos")));
    assert_eq!(done.loss("unreconciled"), 0);
}

#[test]
fn what_a_full_map_refuses_is_counted() {
    let script = "map(#{name: \"small\", size: 2});\nmap(#{name: \"few\", size: 2});\nkernel(|k| @small[k.name].count());\nkernel(|k| @few[k.name] = 1);";
    let done = server(script, 10);
    let kept: i64 = done.sum("@small");
    assert_eq!((done.rows("@small").len(), done.rows("@few").len()), (2, 2));
    let refused = 40 - kept;
    assert!(refused > 0);
    assert_eq!(done.loss("map_full"), 2 * refused, "the first two names stay in both");
}

#[test]
fn a_launch_fires_for_every_call_that_submits() {
    let script = "launch(|l| { @by[l.kind, l.api, l.name].count(); @blocks.sum(l.grid.size); @threads.sum(l.block.x); @took.stats(l.duration); @tids[l.pid, l.tid].count(); });\nkernel(|k| @api[k.launch.api].count());";
    let done = server(script, 10);
    assert_eq!(done.rows("@by").len(), 3, "{:?}", done.rows("@by"));
    assert_eq!(done.rows("@by")["kernel,cuLaunchKernel,scale"], 20);
    assert_eq!((done.map("@blocks"), done.map("@threads")), (&json!(10 * (1 + 3 * 8)), &json!(10 * (1 + 3 * 128))));
    let pid = done.workload()["pid"].to_string();
    assert_eq!(done.rows("@tids").keys().collect::<Vec<_>>(), [&format!("{pid},{pid}")]);
    done.nothing_lost();
}

#[test]
fn launch_handlers_alone_have_an_account_too() {
    let done = server("launch(|l| @n.count());", 10);
    assert_eq!((done.map("@n"), done.account("launches")), (&json!(40), 40));
    assert_eq!(done.losses()["lost_at_exit"], 0);
    let text = Trace::script("launch(|l| @n.count());").text().on_workload("server", &["--requests=10"]).run().well();
    assert!(!text.stdout.contains('≠') && text.stdout.contains("launches 40"), "{}", text.stdout);
}

#[test]
fn launches_of_the_runtime_are_the_outermost_calls() {
    let script = "launch(|l| @api[l.api].count());\nkernel(|k| @names[k.name, k.short_name, k.symbol].count());\nkernel(|k| { if k.name == \"_Z5quickIiEvT_\" { @mangled.count(); } if k.name == \"quick<int>\" { @plain.count(); } });\nkernel(|k| @shape[k.grid.x, k.block.x, k.grid.size, k.block.size].count());";
    let done = Trace::script(script)
        .on_softgpu()
        .on([cudart().as_os_str(), "1".as_ref(), "0".as_ref(), "0".as_ref(), "1".as_ref(), "40".as_ref()])
        .run()
        .well();
    assert_eq!(done.map("@api"), &json!({"cudaLaunchKernel": 41}));
    assert_eq!(done.rows("@names")["quick<int>,quick,_Z5quickIiEvT_"], 40, "{:?}", done.rows("@names"));
    assert_eq!((done.map("@mangled"), done.map("@plain")), (&json!(40), &json!(40)), "either name is equal");
    assert_eq!(done.map("@shape"), &json!({"2,32,2,32": 41}));
    done.nothing_lost();
}

#[test]
fn one_graph_launch_has_many_kernels() {
    let script = "kernel(|k| { @n[k.name, k.launch.api, k.launch.kind].count(); @graph[k.graph == ()].count(); @nodes[k.graph_node].count(); });\nlaunch(|l| @launches[l.kind].count());\nkernel(|k| @stacks[k.launch.ustack].count());";
    let done = Trace::script(script)
        .args(["--folded", "@stacks=stacks"])
        .on_workload("graphs", &["--launches=60"])
        .run()
        .well();
    assert_eq!(done.map("@n"), &json!({"fill,cuGraphLaunch,graph": 60, "scale,cuGraphLaunch,graph": 120}));
    assert_eq!((done.map("@launches"), done.map("@graph")), (&json!({"graph": 60}), &json!({"false": 180})));
    assert_eq!(done.rows("@nodes").values().collect::<Vec<_>>(), [60, 60, 60]);
    assert_eq!((done.account("launches"), done.account("joined"), done.account("captured")), (60, 60, 3));
    assert!(
        done.file("stacks").contains(";replay;") && done.file("stacks").trim_end().ends_with(" 180"),
        "{}",
        done.file("stacks")
    );
    done.nothing_lost();
}

#[test]
fn every_thread_is_known_by_its_own_number() {
    let done = threads(
        "kernel(|k| { @by[k.launch.tid].count(); @comm[k.launch.comm].count(); @pid[k.pid, k.launch.pid, k.comm].count(); });",
        4,
        250,
        &[],
    );
    let tids: BTreeSet<&String> = done.rows("@by").keys().collect();
    assert_eq!((tids.len(), done.rows("@by").values().all(|it| *it == 250)), (4, true), "{:?}", done.rows("@by"));
    let names: BTreeSet<&str> = done.rows("@comm").keys().map(String::as_str).collect();
    assert_eq!(names, BTreeSet::from(["launcher-0", "launcher-1", "launcher-2", "launcher-3"]));
    let pid = done.workload()["pid"].to_string();
    assert_eq!(done.map("@pid"), &json!({format!("{pid},{pid},threads"): 1000}));
}

#[test]
fn a_tag_says_what_the_launching_thread_was_doing() {
    need_root!();
    let program = workload("threads").display().to_string();
    let script = |launch: &str| {
        format!(
            "uprobe(\"{program}:worker\", |e| @me[e.tid] = e.tid);\n{launch}\nkernel(|k| {{ @tag[k.launch.tag, k.launch.tid].count(); }});"
        )
    };
    let words = ["--threads=3", "--launches=400"];
    let done = Trace::script(&script("launch(|l| l.tag = @me[l.tid]);")).on_workload("threads", &words).run().well();
    assert_eq!(done.rows("@tag").len(), 3, "{:?}", done.rows("@tag"));
    for (key, n) in done.rows("@tag") {
        let (tag, tid) = key.split_once(',').unwrap();
        assert_eq!((tag, n), (tid, &json!(400)), "the tag is of the thread that launched");
    }
    done.nothing_lost();
    let untagged = Trace::script(&script("")).on_workload("threads", &words).run().well();
    assert!(untagged.rows("@tag").keys().all(|it| it.starts_with("-,")));
}

#[test]
fn a_launch_handler_that_needs_the_kernel_sees_what_is_known_at_the_call() {
    need_root!();
    let server_path = workload("server").display().to_string();
    let script = format!(
        "uprobe(\"{server_path}:handle_request\", |e| @now[e.tid] = e.arg0);\n\
         launch(|l| {{ if l.symbol == \"_Z3nopv\" {{ l.tag = 1000 + (@now[l.tid] ?? 0); }} @pids[l.pid].count(); @grid.sum(l.grid.x); }});\n\
         kernel(|k| @n[k.launch.tag, k.name].count());"
    );
    let done = server(&script, 3);
    let rows = done.rows("@n");
    for request in 0..3 {
        assert_eq!(rows[&format!("{},nop", 1000 + request)], 1, "{rows:?}");
    }
    assert_eq!((&rows["-,fill"], &rows["-,scale"]), (&json!(3), &json!(6)));
    let pid = done.workload()["pid"].to_string();
    assert_eq!((done.map("@pids"), done.map("@grid")), (&json!({pid: 12}), &json!(3 * (1 + 3 * 8))));
    done.nothing_lost();
}

#[test]
fn an_interpreted_handler_gives_what_a_compiled_one_gives() {
    let body = "|k| { @MAP[k.name].sum(k.duration); if k.duration > 0 { @n_MAP += 1; } @g_MAP[k.grid.x, k.launch.api].count(); }";
    let script = format!("kernel({});\nkernel(interpret({}));", body.replace("MAP", "a"), body.replace("MAP", "b"));
    let done = server(&script, 10);
    for map in ["@", "@n_", "@g_"] {
        assert_eq!(done.map(&format!("{map}a")), done.map(&format!("{map}b")));
    }
    done.nothing_lost();
}

#[test]
fn every_nth_kernel() {
    let done = server("kernel(#{every: 8}, |k| @n[k.name].count());\nkernel(|k| @all.count());", 100);
    assert_eq!((done.sum("@n"), done.map("@all")), (50, &json!(400)));
    // A request launches fill, scale, scale, nop: each n-th would be the same one always.
    assert_eq!(done.rows("@n").len(), 3, "{:?}", done.rows("@n"));
}

#[test]
fn prints_come_in_order_with_text_and_units() {
    let script = "kernel(|k| { @n += 1; print(`${@n}: ${k.name} ${k.duration.human} on ${k.device}`); });";
    let done = server(script, 3);
    let prints = done.prints();
    assert_eq!(prints.len(), 12);
    for (at, text) in prints.iter().enumerate() {
        let name = ["fill", "scale", "scale", "nop"][at % 4];
        assert!(
            text.starts_with(&format!("{}: {name} ", at + 1))
                && text.ends_with(" on 0")
                && (text.contains(" ns ") || text.contains(" us ")),
            "{text}"
        );
    }
}

#[test]
fn an_end_handler_reads_what_was_counted() {
    let script = "kernel(|k| { @n[k.name].count(); @plain[k.name] = k.grid.x; });\nend(|| { print(`scale ran ${@n[\"scale\"]} times, ${@plain[\"scale\"]} blocks`); for name in [\"fill\", \"gone\"] { print(`${name}: ${name in @n}`); } @n.clear(); });";
    let done = server(script, 10);
    assert_eq!(done.prints(), ["scale ran 20 times, 8 blocks", "fill: true", "gone: false"]);
    assert!(done.maps("@n").is_empty(), "an end handler cleared it");
    assert_eq!(done.rows("@plain").len(), 3);
}

#[test]
fn each_process_is_its_own() {
    let forker = Trace::script("kernel(|k| @n[k.pid].count());\nkernel(|k| @launch[k.launch.pid].count());")
        .on_workload("forker", &["--launches=40"])
        .run()
        .well();
    let own = forker.workload();
    let (parent, child) = (own["pid"].to_string(), own["child"]["pid"].to_string());
    assert_eq!(serde_json::Value::from(forker.rows("@n").clone()), json!({child.clone(): 40, parent.clone(): 80}));
    assert_eq!(forker.map("@launch"), forker.map("@n"));
    assert_eq!(forker.account("launches"), 120);
    forker.nothing_lost();
}
