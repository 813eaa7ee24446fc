//! The exit status, as defined in `runtime/xputrace/src/status.rs`.

use xputrace_tests::{Done, Trace};

fn run(script: &str, command: &str) -> Done {
    Trace::one_liner(script).text().on(["sh", "-c", command]).run()
}

#[test]
fn a_handler_that_fails_fails_the_run() {
    // The command reads the tracer's standard error, where a failing handler is reported at once.
    let until_told = "until grep -q ivision stderr; do sleep 0.01; done";
    for (script, command) in [
        ("end(|| { let zero = 0; print(1 / zero); });", "true"),
        ("interval(10.ms, || { let zero = 0; print(1 / zero); });", until_told),
    ] {
        let (well, ill) = (run(script, command), run(script, &format!("{command}; exit 7")));
        assert_eq!(
            (well.code(), ill.code()),
            (125, 7),
            "the command's own status wins unless it is 0: {}",
            well.stderr
        );
        assert_eq!(well.stderr.matches("ivision by zero").count(), 1, "said once: {}", well.stderr);
        assert!(well.stdout.contains("0 lost"), "the results are there: {}", well.stdout);
    }
    assert_eq!(run("end(|| { exit(3); });", "exit 7").code(), 3);
}

#[test]
fn a_file_that_cannot_be_written_is_told_before_the_run() {
    let script = "uprobe(\"libc:malloc\", |e| @[e.ustack].count());";
    let done = Trace::one_liner(script).args(["--folded", "/no/such/directory/x"]).text().on(["touch", "ran"]).run();
    if !xputrace_tests::is_root() {
        return;
    }
    assert_eq!(done.code(), 125);
    assert!(done.stderr.contains("cannot write /no/such/directory/x: No such file"), "{}", done.stderr);
    assert!(!done.path("ran").exists() && done.stdout.is_empty(), "{}", done.stdout);
}

#[test]
fn a_damaged_recording_fails_the_run_after_what_could_be_read() {
    let whole = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/replay/llm.xpt")).unwrap();
    let replay = |bytes: &[u8]| {
        let trace = Trace::one_liner("kernel(|k| @n.count());").args(["--replay", "t.xpt"]).text();
        std::fs::write(trace.path("t.xpt"), bytes).unwrap();
        trace.run()
    };
    assert_eq!(replay(&whole).code(), 0);
    let cut = replay(&whole[..whole.len() / 2]);
    assert_eq!(cut.code(), 125);
    assert!(cut.stderr.contains("damaged") && cut.stdout.contains("@n: "), "{}{}", cut.stdout, cut.stderr);
}

#[test]
fn an_exit_in_begin_runs_nothing() {
    let done =
        run("begin(|| { print(\"no\"); exit(4); });\nbegin(|| print(\"more\"));\nend(|| print(\"end\"));", "touch ran");
    assert_eq!(done.code(), 4, "{}", done.stderr);
    assert!(!done.path("ran").exists());
    assert!(done.stdout.starts_with("no\nend\n") && !done.stderr.contains("goes on"), "{}{}", done.stdout, done.stderr);
}

#[test]
fn a_command_that_cannot_be_run_is_found_out_first() {
    for (command, reason) in [
        ("/no/such/program", "No such file"),
        ("no-such-program", "No such file"),
        ("/", "Permission denied"),
        ("/etc/passwd", "Permission denied"),
        ("", "No such file"),
    ] {
        let done = Trace::one_liner("begin(|| print(\"on\"));").text().on([command]).run();
        assert_eq!((done.code(), done.stdout.as_str()), (125, ""), "{command}: {}", done.stderr);
        assert!(done.stderr.contains(&format!("cannot run {command}: {reason}")), "{}", done.stderr);
    }
}

#[test]
fn an_interrupted_command_has_time_to_end() {
    // A terminal sends it to the whole process group.
    let line = "trap 'sleep 0.1; exit 9' INT; echo ready $$; while :; do sleep 0.01; done";
    let mut run = Trace::one_liner("begin(|| print(\"on\"));").on(["sh", "-c", line]).start();
    let pid = run.ready_pid();
    // SAFETY: a process of this test that its parent has not reaped.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGINT) };
    run.signal(libc::SIGINT);
    let done = run.finish();
    assert_eq!(done.code(), 9, "{}", done.stderr);
}
