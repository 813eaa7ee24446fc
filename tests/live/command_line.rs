//! The command line: statuses, options, and the commands around a run.

use crate::programs::cpu;
use serde_json::{Value as Json, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use xputrace_tests::{Done, Trace, need_root, skip};

const COUNT: &str = "kernel(|k| @n[k.name].count());";

/// A command that is no run.
fn answer(words: &[&str]) -> Done {
    Trace::new(words).text().run()
}

#[test]
fn the_commands_own_status_is_the_runs() {
    let status = |command: &str| Trace::one_liner("begin(|| print(\"hello\"));").on(["sh", "-c", command]).run().code();
    assert_eq!(
        (status("exit 0"), status("exit 7"), status("kill -TERM $$"), status("kill -KILL $$")),
        (0, 7, 128 + 15, 128 + 9)
    );
}

#[test]
fn what_is_refused_runs_nothing_and_ends_with_125() {
    let refused = |trace: Trace, reason: &str| {
        let done = trace.text().on(["touch", "ran"]).run();
        assert_eq!(done.code(), 125, "{}{}", done.stdout, done.stderr);
        assert!(done.stderr.contains(reason), "no {reason:?} in {}", done.stderr);
        assert!(!done.path("ran").exists(), "{reason}");
    };
    refused(Trace::one_liner("kernel(|k| @x[k.nme].count())"), "did you mean `name`");
    refused(Trace::new(["nosuch.rhai"]), "nosuch.rhai");
    refused(Trace::new(["sumary"]), "`summary`");
    refused(Trace::new(["x.bpf.o"]), "x.bpf.o");
    refused(Trace::one_liner(COUNT).args(["-p", "1"]), "-p");
    refused(Trace::one_liner(COUNT).args(["--bogus"]), "bogus");
    for (option, value) in
        [("--perfetto", "p"), ("--after", "1s"), ("--device", "0"), ("--comm", "x"), ("--fail-if", "x"), ("-f", "csv")]
    {
        refused(
            Trace::one_liner(COUNT).args([option, value]),
            &format!("{} is not there yet", if option == "-f" { "-f csv" } else { option }),
        );
    }
    for event in [
        "memcpy",
        "memset",
        "wait",
        "alloc",
        "free",
        "graph_launch",
        "nvtx",
        "api",
        "usdt",
        "device_entry",
        "device_mem",
    ] {
        refused(
            Trace::one_liner(&format!("{event}(|e| @n.count())")),
            &format!("`{event}` events are not supported yet"),
        );
    }
    refused(Trace::new(["over100ms", "--milliseconds=3"]), "milliseconds");
    refused(Trace::new(["over100ms", "--ms=many"]), "ms");
    let missing = Trace::one_liner(COUNT).on(["/no/such/program"]).run();
    assert_eq!(missing.code(), 125);
    assert!(missing.stderr.contains("/no/such/program"), "{}", missing.stderr);
    let nothing = Trace::one_liner(COUNT).run();
    assert!(nothing.code() == 125 && nothing.stderr.contains("nothing to trace"), "{}", nothing.stderr);
}

#[test]
fn a_probe_that_cannot_be_attached_refuses_the_run() {
    need_root!();
    for probe in ["libc:no_such_function", "/no/such/file:main", "./nothere:main"] {
        let done = Trace::one_liner(&format!("uprobe(\"{probe}\", |e| @n.count())")).on(["touch", "ran"]).run();
        assert_eq!(done.code(), 125, "{}", done.stderr);
        let named = probe.rsplit(':').next().unwrap();
        assert!(done.stderr.contains(named) && done.stderr.contains("-e:1"), "{}", done.stderr);
        assert!(!done.path("ran").exists());
    }
}

#[test]
fn commands_that_run_nothing_end_with_2_for_a_mistake() {
    let mistake = "kernel(|k| if k.duraton > 100.ms { print(k.name) })";
    let check = answer(&["check", "-e", mistake]);
    assert_eq!(check.code(), 2);
    assert!(check.stderr.contains("`duration`") && check.stderr.contains("-e:1:17"), "{}", check.stderr);
    for command in ["explain", "build"] {
        assert_eq!(answer(&[command, "-e", mistake]).code(), 2);
    }
    assert_eq!(
        (answer(&["check"]).code(), answer(&["check", "--bogus"]).code(), answer(&["list", "nonsense"]).code()),
        (2, 2, 2)
    );
    let fine = answer(&["check", "-e", COUNT]);
    assert_eq!((fine.code(), fine.stdout.as_str(), fine.stderr.as_str()), (0, "", ""));
    for script in ["summary", "kerneltop", "flame", "launchlat", "over100ms", "request"] {
        assert_eq!(answer(&["check", script]).code(), 0, "{script}");
    }
}

#[test]
fn every_mistake_is_shown_at_once() {
    let done = answer(&[
        "check",
        "-e",
        "kernel(|k| @a[k.nme].count());\nkernel(|k| @a = k.duraton);\nkernal(|k| @b.count());",
    ]);
    assert_eq!(done.code(), 2);
    for place in ["-e:1:", "-e:2:"] {
        assert!(done.stderr.contains(place), "{place} in {}", done.stderr);
    }
    assert!(done.stderr.contains("kernal"), "{}", done.stderr);
}

#[test]
fn explain_says_where_each_handler_runs() {
    let script = "uprobe(\"libc:malloc\", |e| @now[e.tid] = e.arg0);\nlaunch(|l| l.tag = @now[l.tid]);\nkernel(|k| @n[k.launch.tag].count());\ninterval(1.s, || print(@n));";
    let done = answer(&["explain", "-e", script]).well();
    for part in ["linux", "tracer", "interpreter", "uprobe", "launch", "kernel", "interval"] {
        assert!(done.stdout.contains(part), "no {part} in\n{}", done.stdout);
    }
    let with_code = answer(&["explain", "-v", "-e", COUNT]).well();
    assert!(
        with_code.stdout.contains("exit") && with_code.stdout.len() > answer(&["explain", "-e", COUNT]).stdout.len(),
        "{}",
        with_code.stdout
    );
}

#[test]
fn scripts_say_what_they_are_for_and_what_they_take() {
    let all = answer(&["scripts"]).well();
    let names: Vec<&str> = all.stdout.lines().filter_map(|it| it.split_whitespace().next()).collect();
    for name in ["summary", "kerneltop", "flame", "launchlat", "over100ms", "request"] {
        assert!(names.contains(&name), "{}", all.stdout);
        let help = answer(&[name, "--help"]).well();
        assert!(help.stdout.contains(&format!("Usage: xputrace {name} ")), "{}", help.stdout);
    }
    let help = answer(&["over100ms", "--help"]).well();
    assert!(help.stdout.contains("--ms") && help.stdout.contains("100"), "{}", help.stdout);
}

#[test]
fn list_names_what_can_be_probed() {
    need_root!();
    let functions = answer(&["list", "uprobe:libc:mem*"]).well();
    assert!(
        functions.stdout.lines().any(|it| it.ends_with(":memcpy")) && functions.stdout.lines().count() > 3,
        "{}",
        functions.stdout
    );
    let program = cpu().display().to_string();
    let own = answer(&["list", &format!("uprobe:{program}:w*")]).well();
    assert!(own.stdout.contains(":work\n"), "{}", own.stdout);
    let tracepoints = answer(&["list", "tracepoint:sched:sched_sw*"]).well();
    assert!(tracepoints.stdout.contains("tracepoint:sched:sched_switch"), "{}", tracepoints.stdout);
}

#[test]
fn doctor_has_a_line_for_every_fact() {
    let text = answer(&["doctor"]);
    assert!([0, 1].contains(&text.code()));
    for line in text.stdout.lines().filter(|it| {
        !it.is_empty() && !it.starts_with(' ') && !it.starts_with("CPU probes") && !it.starts_with("GPU hooks")
    }) {
        assert!(["works ", "limited ", "missing "].iter().any(|it| line.starts_with(it)), "{line}");
    }
    let facts = answer(&["doctor", "-f", "json"]);
    let facts: Vec<Json> = facts.stdout.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert!(facts.len() > 5);
    for fact in &facts {
        let data = &fact["data"];
        assert!(fact["type"] == "fact" && data["name"].is_string() && data["found"].is_string(), "{fact}");
        assert!(data["standing"] != "missing" || data["fix"].is_string(), "what is missing has a fix: {fact}");
    }
}

/// Starts the program outside of the tracer, and waits until it is ready.
fn held(words: &[&str]) -> (std::process::Child, u32) {
    let mut command = Command::new(cpu());
    let mut child = command.arg("hold").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let pid = line.trim().strip_prefix("ready ").unwrap().parse().unwrap();
    (child, pid)
}

/// Lets a held program go on to its end.
fn release(mut child: std::process::Child) {
    // Its output must be read, or it would wait.
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn running_processes_are_attached_to() {
    need_root!();
    let (one, other) = (held(&["work", "1", "70"]), held(&["work", "1", "80"]));
    let stranger = held(&["work", "1", "1000"]);
    let script = format!("uprobe(\"{}:work\", |e| @n[e.pid].count());", cpu().display());
    let mut run = Trace::one_liner(&script).args(["-p", &one.1.to_string(), "-p", &other.1.to_string()]).start();
    run.until("attached", |it| it.results().contains("attached_probes"));
    let expected = json!({one.1.to_string(): 70, other.1.to_string(): 80});
    [one.0, stranger.0, other.0].into_iter().for_each(release);
    run.signal(libc::SIGINT);
    let done = run.finish().well();
    assert_eq!(&Json::from(done.rows("@n").clone()), &expected);
    done.nothing_lost();
}

#[test]
fn a_run_ends_with_the_processes_it_names() {
    need_root!();
    let (mut child, pid) = held(&["work", "1", "70"]);
    let script = format!("uprobe(\"{}:work\", |e| @n[e.pid].count());", cpu().display());
    let mut run = Trace::one_liner(&script).args(["-p", &pid.to_string()]).start();
    run.until("attached", |it| it.results().contains("attached_probes"));
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    // The process is not waited for yet: its number stays in /proc.
    let done = run.finish().well();
    assert_eq!(&Json::from(done.rows("@n").clone()), &json!({pid.to_string(): 70}));
    child.wait().unwrap();
    let gone = Trace::one_liner(&script).args(["-p", &pid.to_string()]).run();
    assert!(gone.code() == 125 && gone.stderr.contains("there is no such process"), "{}", gone.stderr);
}

#[test]
fn all_processes_are_attached_to() {
    need_root!();
    let before = held(&["work", "1", "70"]);
    let script = format!("uprobe(\"{}:work\", |e| @n[e.pid].count());", cpu().display());
    let mut run = Trace::one_liner(&script).args(["-a"]).start();
    run.until("attached", |it| it.results().contains("attached_probes"));
    let after = held(&["work", "1", "80"]);
    let pids = [before.1, after.1].map(|it| it.to_string());
    [before.0, after.0].into_iter().for_each(release);
    run.signal(libc::SIGINT);
    let done = run.finish().well();
    assert_eq!((&done.rows("@n")[&pids[0]], &done.rows("@n")[&pids[1]]), (&json!(70), &json!(80)));
}

#[test]
fn gpu_hooks_on_running_processes_are_named_as_not_there_yet() {
    for words in [["-p", "1"].as_slice(), &["-a"]] {
        let done = Trace::one_liner(COUNT).args(words).run();
        assert!(done.code() == 125 && done.stderr.contains("not there yet"), "{}", done.stderr);
    }
}

#[test]
fn time_ends_a_run() {
    let script = "interval(20.ms, || @n.count());";
    let done = Trace::one_liner(script).args(["--for", "200ms"]).on(["sleep", "3"]).run().well();
    assert!(done.map("@n").as_i64().unwrap() >= 2);
    assert!(done.stderr.contains("no longer traced"), "{}", done.stderr);
    let short = Trace::one_liner(script).args(["--for", "30s"]).on(["true"]).run();
    assert_eq!(short.code(), 0, "the command's end ends it too");
    assert_eq!(answer(&["--for", "10", "-e", COUNT]).code(), 125);
}

#[test]
fn one_interrupt_under_a_flood_ends_with_tables() {
    need_root!();
    let program = cpu().display().to_string();
    let script =
        format!("uprobe(\"{program}:work\", |e| {{ print(`work ${{e.arg0}} in ${{e.comm}}`); @n.count(); }});");
    let mut run = Trace::script(&script).with_input().on([program.as_str(), "hold", "flood"]).start();
    let pid = run.ready_pid();
    run.type_in("\n");
    run.until("flooded", |it| it.results().len() > 100_000);
    run.signal(libc::SIGINT);
    let done = run.finish();
    // SAFETY: the program of this test, which goes on without its tracer.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGKILL) };
    assert_eq!(done.code(), 0, "{}", done.stderr);
    let (prints, hits) = (done.prints().len() as i64, done.map("@n").as_i64().unwrap());
    assert!(prints > 1000 && prints <= hits, "{prints} of {hits}");
    assert_eq!(prints + done.loss("kernel_ring_full"), hits, "a line is printed or counted");
    assert!(done.stderr.contains(&format!("process {pid}")), "{}", done.stderr);
}

#[test]
fn an_interrupted_command_gives_its_own_status() {
    let mut run = Trace::one_liner("begin(|| print(\"on\"));")
        .on(["sh", "-c", "trap 'exit 9' INT; echo ready $$; while :; do sleep 0.02; done"])
        .start();
    let pid = run.ready_pid();
    // A terminal sends it to both; here to the command alone.
    // SAFETY: a process of this test, which its parent has not waited for.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGINT) };
    assert_eq!(run.finish().status.into_raw(), 9 << 8);
}

#[test]
fn json_has_the_shapes_that_bpftrace_users_parse() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!(
        "uprobe(\"{program}:work\", |e| {{ @n.count(); @k[e.comm, e.arg0 % 2].count(); @h.hist(e.arg0); @hk[\"KEY\"].hist(e.arg0); @s[\"KEY\"].stats(e.arg0); @a.avg(e.arg0); @plain = e.arg0; @text = e.func; @yes = true; @q.quantiles(e.arg0); @stack[e.ustack].count(); }});\nend(|| print(\"done\"));"
    );
    let done = Trace::one_liner(&script).on([program.as_str(), "work", "1", "5"]).run().well();
    assert_eq!(done.results[0], json!({"type": "attached_probes", "data": {"probes": 2}}));
    let line =
        |name: &str| done.results.iter().find(|it| it["data"].get(name).is_some()).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(line("@n"), &json!({"type": "map", "data": {"@n": 5}}));
    assert_eq!(line("@k"), &json!({"type": "map", "data": {"@k": {"cpu,0": 2, "cpu,1": 3}}}));
    let buckets =
        json!([{"min": 1, "max": 1, "count": 1}, {"min": 2, "max": 3, "count": 2}, {"min": 4, "max": 7, "count": 2}]);
    assert_eq!(line("@h"), &json!({"type": "hist", "data": {"@h": buckets}}));
    assert_eq!(line("@hk"), &json!({"type": "hist", "data": {"@hk": {"KEY": buckets}}}));
    assert_eq!(
        line("@s"),
        &json!({"type": "stats", "data": {"@s": {"KEY": {"count": 5, "average": 3, "total": 15, "min": 1, "max": 5}}}})
    );
    assert_eq!(line("@a"), &json!({"type": "stats", "data": {"@a": 3}}));
    assert_eq!(
        (line("@plain"), line("@text")),
        (&json!({"type": "map", "data": {"@plain": 5}}), &json!({"type": "map", "data": {"@text": "work"}}))
    );
    assert_eq!(line("@yes"), &json!({"type": "map", "data": {"@yes": true}}));
    assert_eq!(line("@q")["type"], "quantiles");
    let (stack, n) = done.rows("@stack").iter().next().unwrap();
    assert!(stack.contains("work") && stack.contains("worker") && n == 5, "{stack}");
    assert!(done.results.contains(&json!({"type": "print", "data": "done"})));
    assert!(done.losses()["account"].is_null(), "no launches were asked for");
}

#[test]
fn quiet_leaves_results_alone() {
    need_root!();
    let script = format!("uprobe(\"{}:work\", |e| @n.count());", cpu().display());
    let program = cpu();
    let loud = Trace::one_liner(&script)
        .text()
        .on([program.as_os_str(), "work".as_ref(), "0".as_ref(), "5".as_ref()])
        .run()
        .well();
    let quiet = Trace::one_liner(&script)
        .args(["-q"])
        .text()
        .on([program.as_os_str(), "work".as_ref(), "1".as_ref(), "5".as_ref()])
        .run()
        .well();
    assert!(loud.stdout.contains("Attached 1 probe"), "{}", loud.stdout);
    assert!(
        !quiet.stdout.contains("Attached") && quiet.stdout.contains("@n: 5") && quiet.stderr.is_empty(),
        "{}{}",
        quiet.stdout,
        quiet.stderr
    );
}

#[test]
fn files_of_stacks() {
    let script = "kernel(|k| { @a[k.launch.ustack, k.name].sum(k.duration); @b[k.launch.ustack].count(); });";
    let run = |options: &[&str]| Trace::one_liner(script).args(options).on_workload("server", &["--requests=10"]).run();
    let both = run(&["--folded", "@a=a.folded", "--folded=@b=b.folded", "--flamegraph", "@b=b.svg"]).well();
    let total = |name: &str| {
        both.file(name).lines().map(|it| it.rsplit_once(' ').unwrap().1.parse::<i64>().unwrap()).sum::<i64>()
    };
    assert_eq!((total("a.folded"), total("b.folded")), (both.account("kernel_nanos"), 40));
    assert!(both.file("b.svg").contains("finish_request"));
    let unclear = run(&["--folded", "x"]);
    assert!(
        unclear.code() == 125 && unclear.stderr.contains("@a") && unclear.stderr.contains("@b"),
        "{} {}",
        unclear.code(),
        unclear.stderr
    );
    let unknown = run(&["--folded", "@c=x"]);
    assert!(unknown.code() == 125 && unknown.stderr.contains("@c"), "{}", unknown.stderr);
    let none = Trace::one_liner(COUNT).args(["--flamegraph", "x.svg"]).on_workload("server", &["--requests=1"]).run();
    assert!(none.code() == 125 && none.stderr.contains("--flamegraph"), "{}", none.stderr);
    for refused in [&unclear, &unknown, &none] {
        assert!(!refused.stdout.contains("workload"), "refused before anything was run: {}", refused.stdout);
    }
}

#[test]
fn built_objects_are_loaded_by_bpftool() {
    need_root!();
    let Some(bpftool) =
        ["/usr/sbin/bpftool", "/usr/bin/bpftool", "/sbin/bpftool"].into_iter().find(|it| Path::new(it).exists())
    else {
        skip!("no bpftool");
    };
    let scripts = [
        "tracepoint(\"sched:sched_switch\", |e| @n[e.prev_comm].count());",
        "profile(99.hz, |e| @n[e.ustack].count());",
        "kernel(|k| { @n[k.name].sum(k.duration); @h.hist(k.start - k.launch.time); });",
        "kernel(|k| @n[k.name].count());\ninterval(1.s, || { print(@n); @n.clear(); });",
        "launch(|l| @by[l.api].count());\ntracepoint(\"sched:sched_switch\", |e| @seen[e.tid] += 1);\nprofile(99.hz, |e| @cpu[e.kstack].count());",
    ];
    for (number, script) in scripts.iter().enumerate() {
        let built = Trace::new(["build", "-o", "x.bpf.o", "-e", script]).text().run().well();
        assert!(built.stdout.contains("x.bpf.o") && built.stdout.contains("program"), "{}", built.stdout);
        let pins = format!("/sys/fs/bpf/xputrace-test-{}-{number}", std::process::id());
        let load =
            Command::new(bpftool).args(["prog", "loadall"]).arg(built.path("x.bpf.o")).arg(&pins).output().unwrap();
        let pinned = std::fs::read_dir(&pins).map(|it| it.count()).unwrap_or(0);
        let _ = std::fs::remove_dir_all(&pins);
        assert!(load.status.success() && pinned > 0, "{script}\n{}", String::from_utf8_lossy(&load.stderr));
    }
}
