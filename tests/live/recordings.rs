//! Recordings: what was seen is seen again, and what is damaged is said.

use crate::programs::cpu;
use serde_json::json;
use std::path::Path;
use xputrace_tests::{Done, Trace, need_root, workload};

const SUMS: &str = "kernel(|k| { @n[k.name].count(); @t[k.name].sum(k.duration); @latency.hist(k.start - k.launch.time); @by[k.launch.ustack, k.name].count(); });\nlaunch(|l| @api[l.api].count());";

fn record(script: Option<&str>, workload_name: &str, arguments: &[&str]) -> Done {
    let words = ["record", "-o", "t.xpt"].into_iter().chain(script.iter().flat_map(|it| ["-e", *it]));
    Trace::new(words).text().on_workload(workload_name, arguments).run().well()
}

fn replay(script: &str, recording: &Path) -> Done {
    Trace::one_liner(script).args([Path::new("--replay"), recording]).run()
}

#[test]
fn a_replay_gives_what_the_program_and_a_live_run_give() {
    let words = ["--requests=30"];
    let recorded = record(None, "server", &words);
    assert!(recorded.stderr.contains("wrote t.xpt"), "{}", recorded.stderr);
    let replayed = replay(SUMS, &recorded.path("t.xpt")).well();
    let live = Trace::one_liner(SUMS).on_workload("server", &words).run().well();
    for map in ["@n", "@api"] {
        assert_eq!(replayed.map(map), live.map(map), "{map}");
    }
    assert_eq!(replayed.hist_count("@latency"), 120);
    assert_eq!(
        replayed.sum("@t"),
        replayed.account("collector_kernel_nanos"),
        "to the nanosecond what the recorded collector counted"
    );
    let stacks = |done: &Done| {
        let mut rows: Vec<(String, String)> =
            done.rows("@by").iter().map(|(key, n)| (key.clone(), n.to_string())).collect();
        rows.sort();
        rows
    };
    assert_eq!(stacks(&replayed), stacks(&live), "stacks by name");
    assert!(stacks(&replayed).iter().any(|(it, _)| it.contains("handle_request") && it.contains("run_layer")));
    replayed.nothing_lost();
    let again = replay(SUMS, &recorded.path("t.xpt")).well();
    assert_eq!(again.results, replayed.results, "every time");
}

#[test]
fn tags_through_a_recorded_probe() {
    need_root!();
    let server = workload("server").display().to_string();
    let script = format!(
        "uprobe(\"{server}:handle_request\", |e| @request[e.tid] = e.arg0);\nlaunch(|l| l.tag = @request[l.tid]);\n\
         kernel(|k| {{ @n[k.launch.tag, k.name].count(); @t[k.launch.tag].sum(k.duration); }});"
    );
    let recorded = record(Some(&script), "server", &["--requests=7"]);
    let replayed = replay(&script, &recorded.path("t.xpt")).well();
    let live = Trace::one_liner(&script).on_workload("server", &["--requests=7"]).run().well();
    assert_eq!(replayed.map("@n"), live.map("@n"));
    assert_eq!((replayed.rows("@n").len(), replayed.rows("@n")["6,scale"].as_i64()), (21, Some(2)));
    assert_eq!(replayed.sum("@t"), replayed.account("collector_kernel_nanos"));
    replayed.nothing_lost();
    let other =
        replay(&format!("uprobe(\"{server}:handle_request\", |e| @args.sum(e.arg0));"), &recorded.path("t.xpt")).well();
    assert_eq!(other.map("@args"), 21, "another handler of a recorded probe");
}

#[test]
fn cpu_probes_alone() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!(
        "uprobe(\"{program}:work\", |e| {{ @n[e.comm, e.func].count(); @sum.sum(e.arg0); @by[e.tid].count(); @stack[e.ustack].count(); }});\nuretprobe(\"{program}:other\", |e| {{ @r.sum(e.retval); @in.sum(e.entry.arg0); @took.hist(e.duration); }});"
    );
    let recorded = Trace::new(["record", "-o", "t.xpt", "-e", &script])
        .text()
        .on([program.as_str(), "work", "2", "200"])
        .run()
        .well();
    let replayed = replay(&script, &recorded.path("t.xpt")).well();
    assert_eq!((replayed.map("@n"), replayed.map("@sum")), (&json!({"cpu,work": 400}), &json!(2 * 200 * 201 / 2)));
    let others: i64 = (1..=20).map(|it| it * 10).sum();
    assert_eq!((replayed.map("@r"), replayed.map("@in")), (&json!(2 * 3 * others), &json!(2 * others)));
    assert_eq!((replayed.hist_count("@took"), replayed.rows("@by").len()), (40, 2));
    let (stack, n) = replayed.rows("@stack").iter().next().unwrap();
    assert!(stack.contains("work") && stack.contains("worker") && n == 400, "{stack}");
    assert_eq!(replayed.losses()["account"], json!(null));
}

#[test]
fn a_probe_that_was_not_recorded_is_an_error_that_lists_those_that_were() {
    need_root!();
    let server = workload("server").display().to_string();
    let recorded =
        record(Some(&format!("uprobe(\"{server}:handle_request\", |e| @n.count());")), "server", &["--requests=2"]);
    for wanted in [
        format!("uprobe(\"{server}:run_layers\", |e| @n.count());"),
        "tracepoint(\"sched:sched_switch\", |e| @n[e.prev_comm].count());".into(),
    ] {
        let refused = replay(&wanted, &recorded.path("t.xpt"));
        assert_eq!(refused.code(), 125, "{}{:?}", refused.stderr, refused.results);
        assert!(refused.stderr.contains("handle_request"), "{}", refused.stderr);
    }
}

#[test]
fn a_cut_or_damaged_recording_gives_what_is_readable_and_says_so() {
    let recorded = record(None, "threads", &["--threads=4", "--launches=6000", "--every=20"]);
    assert!(
        recorded.stdout.contains("launches 24000 = joined 24000"),
        "a recording says what it lost: {}",
        recorded.stdout
    );
    let bytes = std::fs::read(recorded.path("t.xpt")).unwrap();
    let whole = replay("kernel(|k| @n.count());", &recorded.path("t.xpt")).well();
    assert_eq!((whole.map("@n"), whole.stderr.as_str()), (&json!(24_000), ""));
    let file = |name: &str, bytes: &[u8]| {
        let path = recorded.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let cut = replay("kernel(|k| @n.count());", &file("cut.xpt", &bytes[..bytes.len() * 2 / 3]));
    assert!(
        cut.code() == 125 && cut.stderr.contains("damaged") && cut.stderr.contains("the end is missing"),
        "{}",
        cut.stderr
    );
    let n = cut.maps("@n").first().and_then(|it| it.as_i64()).unwrap_or(0);
    assert!(n < 24_000, "{n}");
    let mut damaged = bytes.clone();
    let middle = bytes.len() / 2;
    damaged[middle..middle + 64].iter_mut().for_each(|it| *it ^= 0x5a);
    let damaged = replay("kernel(|k| @n.count());", &file("damaged.xpt", &damaged));
    assert!(damaged.code() == 125 && damaged.stderr.contains("damaged from byte"), "{}", damaged.stderr);
    for (name, bytes) in [("empty.xpt", &b""[..]), ("other.xpt", b"#!/bin/sh\nexit 1\n"), ("head.xpt", &bytes[..20])] {
        let refused = replay("kernel(|k| @n.count());", &file(name, bytes));
        assert!(
            refused.code() == 125 && refused.stderr.contains(name),
            "{name}: {} {}",
            refused.code(),
            refused.stderr
        );
        assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
    }
    let missing = replay("kernel(|k| @n.count());", Path::new("/no/such.xpt"));
    assert!(missing.code() == 125 && missing.stderr.contains("/no/such.xpt"), "{}", missing.stderr);
}

#[test]
fn graphs_and_several_processes_are_recorded() {
    let graphs = record(None, "graphs", &["--launches=40"]);
    let replayed =
        replay("kernel(|k| @n[k.name, k.launch.api].count());\nlaunch(|l| @l[l.kind].count());", &graphs.path("t.xpt"))
            .well();
    assert_eq!(
        (replayed.map("@n"), replayed.map("@l")),
        (&json!({"fill,cuGraphLaunch": 40, "scale,cuGraphLaunch": 80}), &json!({"graph": 40}))
    );
    replayed.nothing_lost();
    let forker = record(None, "forker", &["--launches=30"]);
    let own = forker.workload();
    let replayed =
        replay("kernel(|k| @n[k.pid].count());\nkernel(|k| @l[k.launch.pid].count());", &forker.path("t.xpt")).well();
    let (parent, child) = (own["pid"].to_string(), own["child"]["pid"].to_string());
    assert_eq!((&replayed.rows("@n")[&parent], &replayed.rows("@n")[&child]), (&json!(60), &json!(30)));
    assert_eq!(replayed.map("@l"), replayed.map("@n"));
}

#[test]
fn failures_and_losses_are_recorded_too() {
    let failing = record(None, "failing", &["--launches=60"]);
    let replayed = replay("launch(|l| @by[l.result].count());\nkernel(|k| @n.count());", &failing.path("t.xpt")).well();
    assert_eq!((replayed.map("@by"), replayed.map("@n")), (&json!({"1": 20, "0": 40}), &json!(40)));
    assert_eq!((replayed.account("launches"), replayed.account("failed")), (60, 20));
    let dropped = Trace::new(["record", "-o", "t.xpt"])
        .text()
        .env("SOFTGPU_DROP", "1/4")
        .on_workload("server", &["--requests=10"])
        .run()
        .well();
    let replayed = replay("kernel(|k| @n[k.launch.api].count());", &dropped.path("t.xpt")).well();
    assert_eq!((replayed.account("joined"), replayed.account("lost"), replayed.loss("cupti_dropped")), (30, 10, 10));
    replayed.adds_up();
}

#[test]
fn a_replay_in_text_says_where_it_comes_from() {
    let recorded = record(None, "server", &["--requests=3"]);
    let done = Trace::new(["summary", "--replay"]).args([recorded.path("t.xpt")]).text().run().well();
    assert!(done.stdout.contains("software GPU") && done.stdout.contains("launches 12 = joined 12"), "{}", done.stdout);
    let both = Trace::new(["summary", "--replay"]).args([recorded.path("t.xpt")]).text().on(["true"]).run();
    assert_eq!(both.code(), 125, "a recording and a command do not go together");
}

#[test]
fn a_recording_in_use_does_not_need_root_or_a_gpu() {
    let recorded = record(None, "server", &["--requests=3"]);
    let Some(uid) = crate::harm::nobody().filter(|_| xputrace_tests::is_root()) else {
        xputrace_tests::skip!("not root")
    };
    let stage = crate::harm::public_stage();
    std::fs::copy(recorded.path("t.xpt"), stage.path().join("t.xpt")).unwrap();
    let line =
        format!("exec setpriv --reuid={uid} --regid={uid} --clear-groups ./xputrace -q launchlat --replay t.xpt");
    let done = std::process::Command::new("sh").args(["-c", &line]).current_dir(stage.path()).output().unwrap();
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).contains("@launch_latency"),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn hits_of_tracepoints_are_recorded() {
    need_root!();
    let script = "tracepoint(\"syscalls:sys_enter_re*\", |e| @[e.probe].count());\n\
                  tracepoint(\"syscalls:sys_enter_close\", |e| if e.fd >= 0 { @closed.count(); });";
    let recorded = Trace::new(["record", "-o", "t.xpt", "-e", script]).text().on(["ls", "/"]).run().well();
    let live = Trace::script(script).on(["ls", "/"]).run().well();
    let replayed = replay(script, &recorded.path("t.xpt")).well();
    let probe = "tracepoint:syscalls:sys_enter_read";
    assert!(replayed.rows("@")[probe].as_i64() > Some(0), "{:?}", replayed.rows("@"));
    assert_eq!(replayed.rows("@")[probe], live.rows("@")[probe]);
    assert_eq!(replayed.map("@closed"), live.map("@closed"));
}

#[test]
fn hits_that_did_not_fit_are_counted_in_the_recording() {
    need_root!();
    let program = cpu().display().to_string();
    // The recording stands still while the program makes more hits than the ring has room for.
    let line = format!("kill -STOP $PPID; {program} work 2 50000 > calls; kill -CONT $PPID");
    let script = format!("uprobe(\"{program}:work\", |e| @n.count());");
    let recorded = Trace::new(["record", "-o", "t.xpt", "-e", &script]).text().on(["sh", "-c", &line]).run().well();
    let replayed = replay(&script, &recorded.path("t.xpt")).well();
    let (seen, lost) = (replayed.map("@n").as_i64().unwrap(), replayed.loss("kernel_ring_full"));
    assert!(lost > 0, "{seen} hits fit");
    assert_eq!(seen + lost, 100_000);
    assert!(recorded.stdout.contains("did not fit"), "{}", recorded.stdout);
}

#[test]
fn hits_without_a_kernel_stack_have_not_lost_one() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!("uprobe(\"{program}:work\", |e| @k[e.kstack].count());");
    let recorded = Trace::new(["record", "-o", "t.xpt", "-e", &script])
        .text()
        .on([program.as_str(), "work", "1", "50"])
        .run()
        .well();
    let replayed = replay(&script, &recorded.path("t.xpt")).well();
    let live = Trace::script(&script).on([program.as_str(), "work", "1", "50"]).run().well();
    assert_eq!(replayed.map("@k"), live.map("@k"));
    assert_eq!((live.loss("kernel_stack"), replayed.loss("kernel_stack")), (0, 0));
}

#[test]
fn many_hits_before_the_first_gpu_process_leave_it_a_software_gpu() {
    need_root!();
    let (program, server) = (cpu().display().to_string(), workload("server").display().to_string());
    let line = format!("{program} work 2 35000 > calls; {server} --requests=2");
    let script = format!("uprobe(\"{program}:work\", |e| @n.count());");
    let recorded =
        Trace::new(["record", "-o", "t.xpt", "-e", &script]).text().on_softgpu().on(["sh", "-c", &line]).run().well();
    let done = Trace::new(["summary", "--replay"]).args([recorded.path("t.xpt")]).text().run().well();
    assert!(done.stdout.contains("software GPU") && done.stdout.contains("launches 8 = joined 8"), "{}", done.stdout);
}

#[test]
fn what_a_process_had_open_is_closed_when_it_is_over() {
    let server = workload("server").display().to_string();
    let run = format!("{server} --requests=1 > account");
    // A moment for the farewell of the last one to be heard.
    let count = "sleep 0.5; ls /proc/$PPID/fd | wc -l";
    let line = format!("{run}; {count}; for i in 1 2 3 4 5 6; do {run}; done; {count}");
    let done = Trace::one_liner("kernel(|k| @n[k.pid].count());").on_softgpu().on(["sh", "-c", &line]).run().well();
    assert_eq!(done.rows("@n").len(), 7);
    let open: Vec<u32> = done.stdout.lines().filter_map(|it| it.parse().ok()).collect();
    assert!(matches!(open[..], [before, after] if after <= before), "{open:?} files open: {}", done.stdout);
}

#[test]
fn a_process_for_which_no_file_can_be_opened_is_named() {
    let server = workload("server").display().to_string();
    let limit = |n: &str| format!("prlimit --pid $PPID --nofile={n}:1024");
    // A moment for what was open while it began to be closed.
    let first_free = "sleep 0.5; n=0; while [ -L /proc/$PPID/fd/$n ]; do n=$((n + 1)); done";
    let line = format!(
        "{first_free}; {}; {server} --requests=3 > account; {}; {server} --requests=5 > account",
        limit("$n"),
        limit("1024")
    );
    let done = Trace::one_liner("kernel(|k| @n[k.pid].count());").on_softgpu().on(["sh", "-c", &line]).run();
    assert!(done.stderr.contains("not traced") && done.stderr.contains("Too many open files"), "{}", done.stderr);
    let counts: Vec<i64> = done.rows("@n").values().filter_map(serde_json::Value::as_i64).collect();
    assert_eq!(counts, [20], "the next one is traced");
}
