//! The traced program comes to no harm, and what goes wrong is named.

use serde_json::json;
use std::process::Command;
use xputrace_tests::{Done, Trace, c_program, need_root, workload};

const COUNT: &str = "kernel(|k| { @n[k.name].count(); @latency.hist(k.start - k.launch.time); });";

#[test]
fn a_killed_tracer_leaves_the_program_running_to_its_end() {
    need_root!();
    let server = workload("server").display().to_string();
    let script = format!(
        "uprobe(\"{server}:handle_request\", |e| @request[e.tid] = e.arg0);\nlaunch(|l| l.tag = @request[l.tid]);\n\
         kernel(|k| @n[k.launch.tag].count());\nkernel(|k| print(k.name));"
    );
    let mut run = Trace::script(&script)
        .with_input()
        .on_workload("server", &["--hold", "--requests=300", "--pause-us=5000"])
        .start();
    run.ready_pid();
    run.type_in("\n");
    run.until("in the middle", |it| it.results().contains("\"print\""));
    assert!(!run.stdout().contains("\"workload\""), "in the middle");
    run.kill_tracer();
    let account = run.account_without_tracer();
    assert_eq!((&account["launches"], &account["requests"]), (&json!(1200), &json!(300)));
    assert_eq!((&account["failures"], &account["verified"]), (&json!(0), &json!(true)));
}

#[test]
fn a_killed_tracer_leaves_a_fast_launching_program_running() {
    let mut run =
        Trace::script("kernel(|k| @n.count());\nlaunch(|l| @l[l.ustack].count());\ninterval(5.ms, || print(@n));")
            .with_input()
            .on_workload("threads", &["--hold", "--threads=4", "--launches=100000"])
            .start();
    run.ready_pid();
    run.type_in("\n");
    run.until("in the middle", |it| it.results().contains("\"@n\""));
    run.kill_tracer();
    assert_eq!(run.account_without_tracer()["launches"], 400_000);
}

#[test]
fn two_programs_at_once_each_with_its_own_account() {
    let server = workload("server").display().to_string();
    let both = format!("{server} --requests=20 & {server} --requests=30 & wait");
    let script = "kernel(|k| @n[k.pid].count());\nkernel(|k| @same[k.pid == k.launch.pid].count());";
    let done = Trace::script(script).on_softgpu().on(["sh", "-c", &both]).run().well();
    let mut counts: Vec<i64> = done.rows("@n").values().filter_map(serde_json::Value::as_i64).collect();
    counts.sort_unstable();
    assert_eq!((counts, done.map("@same")), (vec![80, 120], &json!({"true": 200})));
    done.nothing_lost();
}

#[test]
fn one_program_after_another() {
    let server = workload("server").display().to_string();
    let line = format!("for i in 1 2 3 4 5; do {server} --requests=3; done");
    let done = Trace::script(COUNT).on_softgpu().on(["sh", "-c", &line]).run().well();
    assert_eq!((done.sum("@n"), done.account("launches")), (60, 60));
    done.nothing_lost();
}

#[test]
fn two_tracers_at_once_do_not_meet() {
    let start = |requests: &str| Trace::script(COUNT).on_workload("server", &[requests]).start();
    let (one, other) = (start("--requests=50"), start("--requests=70"));
    let (one, other) = (one.finish().well(), other.finish().well());
    assert_eq!((one.account("joined"), other.account("joined")), (200, 280));
}

#[test]
fn a_program_without_root_is_traced_without_root() {
    need_root!();
    let Some(uid) = nobody() else { xputrace_tests::skip!("no user nobody") };
    let stage = public_stage();
    let line = "exec setpriv --reuid=$0 --regid=$0 --clear-groups env HOME=/tmp/xputrace-home-$0 ./xputrace -f json -o - -e 'kernel(|k| @n[k.name].count()); launch(|l| @by[l.api].count())' -- ./server --requests=6";
    let line = line.replace("-o - ", "");
    let done = Command::new("sh")
        .args(["-c", &line, &uid.to_string()])
        .current_dir(stage.path())
        .env("LD_LIBRARY_PATH", stage.path().join("softgpu"))
        .env_remove("SUDO_UID")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && text.contains("{\"cuLaunchKernel\":24}") && text.contains("\"joined\":24"),
        "{text}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// The uid of a user without rights.
pub fn nobody() -> Option<u32> {
    // SAFETY: the name is NUL-terminated; the entry is read at once.
    unsafe { libc::getpwnam(c"nobody".as_ptr()).as_ref() }.map(|it| it.pw_uid)
}

/// A directory that every user can read, with the binary, the server and the software GPU.
pub fn public_stage() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let stage =
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir_in("/tmp").unwrap();
    let at = |name: &str| stage.path().join(name);
    std::fs::copy(xputrace_tests::xputrace(), at("xputrace")).unwrap();
    std::fs::copy(workload("server"), at("server")).unwrap();
    std::fs::create_dir(at("softgpu")).unwrap();
    std::fs::set_permissions(at("softgpu"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::copy(xputrace_tests::softgpu().join("libcuda.so"), at("softgpu/libxputrace_softgpu.so")).unwrap();
    // One file under several names: links, or each would be a GPU of its own.
    for name in ["libcuda.so.1", "libcuda.so", "libcupti.so.13", "libcupti.so"] {
        std::os::unix::fs::symlink("libxputrace_softgpu.so", at("softgpu").join(name)).unwrap();
    }
    stage
}

#[test]
fn a_cupti_that_another_tool_holds_is_named() {
    let done = |trace: Trace| {
        trace.env("SOFTGPU_FAIL", "cuptiSubscribe:39").on_workload("server", &["--requests=9"]).run().well()
    };
    let text = done(Trace::script(COUNT).text());
    assert!(
        text.stdout.contains("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED") && text.stdout.contains("another tool"),
        "{}",
        text.stdout
    );
    let json = done(Trace::script(COUNT));
    assert!(json.stderr.contains("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"), "{}", json.stderr);
    assert_eq!(json.workload()["verified"], true, "the program does not notice");
}

#[test]
fn other_failing_calls_of_cupti_are_named() {
    for (call, code) in
        [("cuptiActivityEnable", 2), ("cuptiActivityRegisterCallbacks", 999), ("cuptiEnableCallback", 1)]
    {
        let done = Trace::script(COUNT)
            .text()
            .env("SOFTGPU_FAIL", format!("{call}:{code}"))
            .on_workload("server", &["--requests=9"])
            .run()
            .well();
        assert!(
            done.stdout.contains(call) || done.stderr.contains(call),
            "{call} is not named:\n{}{}",
            done.stdout,
            done.stderr
        );
        assert_eq!(done.workload()["verified"], true);
    }
}

fn silence(trace: Trace) -> Done {
    trace.run().well()
}

#[test]
fn when_nothing_was_seen_the_output_says_why() {
    let none = silence(Trace::script(COUNT).text().on(["true"]));
    assert!(none.stdout.contains("no process loaded the collector"), "{}", none.stdout);
    let unused = silence(Trace::script(COUNT).text().on_workload("server", &["--requests=0"]));
    assert!(unused.stdout.contains("no kernel was launched"), "{}", unused.stdout);
    let failed =
        silence(Trace::script(COUNT).text().env("SOFTGPU_FAIL_LAUNCH", "1").on_workload("failing", &["--launches=2"]));
    assert!(failed.stdout.contains("all 2 launches failed"), "{}", failed.stdout);
    let lost = silence(Trace::script(COUNT).text().env("SOFTGPU_DROP", "1/1").on_workload("server", &["--requests=2"]));
    assert!(lost.stdout.contains("lost 8") && lost.stdout.contains("cupti_dropped 8"), "{}", lost.stdout);
    for done in [&none, &unused, &failed, &lost] {
        assert!(!done.stdout.contains("@n"), "never an empty table: {}", done.stdout);
    }
}

#[test]
fn an_earlier_injection_is_loaded_too_and_reported() {
    let tool = c_program(
        "earlier.so",
        "#include <stdio.h>\nint InitializeInjection(void) { fprintf(stderr, \"earlier tool loaded\\n\"); return 1; }",
        &["-shared", "-fPIC"],
    );
    let done =
        Trace::script(COUNT).env("CUDA_INJECTION64_PATH", &tool).on_workload("server", &["--requests=4"]).run().well();
    assert_eq!(done.account("joined"), 16);
    assert!(done.stderr.contains("earlier tool loaded") && done.stderr.contains("already named"), "{}", done.stderr);
    let missing = Trace::script(COUNT)
        .env("CUDA_INJECTION64_PATH", "/no/such/tool.so")
        .on_workload("server", &["--requests=4"])
        .run()
        .well();
    assert_eq!(missing.account("joined"), 16);
    assert!(missing.stderr.contains("/no/such/tool.so"), "{}", missing.stderr);
}

#[test]
fn an_odd_version_of_cupti_is_worked_with_or_named() {
    let done = Trace::script(COUNT)
        .text()
        .env("SOFTGPU_CUPTI_VERSION", "28")
        .on_workload("server", &["--requests=4"])
        .run()
        .well();
    assert!(done.stdout.contains("joined 16") || done.stdout.contains("CUPTI"), "{}{}", done.stdout, done.stderr);
    assert_eq!(done.workload()["verified"], true);
}

#[test]
fn numbers_of_the_software_gpu_say_what_they_are() {
    let done = Trace::script(COUNT).text().on_workload("server", &["--requests=4"]).run().well();
    assert!(done.stdout.contains("software GPU: its times mean nothing"), "{}{}", done.stdout, done.stderr);
    let done = Trace::script(COUNT).on_workload("server", &["--requests=4"]).run().well();
    let notes: Vec<_> = done.results.iter().filter(|it| it["type"] == "note").collect();
    assert!(notes.len() == 1 && notes[0]["data"].as_str().unwrap().contains("software GPU"), "{:?}", done.results);
    assert!(done.prints().is_empty(), "a note is no print: {:?}", done.prints());
}

#[test]
fn what_was_not_asked_for_is_not_missing() {
    let flags = |script: &str| {
        let done = Trace::script(script).on_workload("server", &["--requests=4"]).run().well();
        let account = &done.losses()["account"];
        (account["kernels_only"].clone(), account["launches_only"].clone())
    };
    assert_eq!(flags("kernel(|k| @n.count());"), (json!(true), json!(false)));
    assert_eq!(flags("launch(|l| @n.count());"), (json!(false), json!(true)));
    assert_eq!(flags(COUNT), (json!(false), json!(false)));
}

#[test]
fn a_program_that_ends_without_waiting_for_its_kernels() {
    let done = Trace::script(COUNT)
        .env("SOFTGPU_BUSY_NS", "3000000")
        .on_workload("threads", &["--threads=2", "--launches=100", "--every=1000000"])
        .run()
        .well();
    done.adds_up();
    assert_eq!(done.account("launches"), 200);
}

#[test]
fn a_killed_program_still_has_results() {
    let server = workload("server").display().to_string();
    let line = format!("{server} --requests=2000 --pause-us=1000 & pid=$!; sleep 1; kill -KILL $pid; wait $pid");
    let done = Trace::script(COUNT).on_softgpu().on(["sh", "-c", &line]).run();
    assert_eq!(done.code(), 128 + 9);
    assert!(done.sum("@n") > 0, "{:?}", done.results);
    done.adds_up();
}
