//! The rules that hold in every engine, where the kernel runs the handlers.

use crate::programs::cpu;
use serde_json::{Value as Json, json};
use xputrace_tests::{Done, Trace, c_program, hist_count, need_root};

/// A script over `work N` of one thread; `PROGRAM` in it is the program.
fn over(script: &str, words: &[&str]) -> Done {
    over_with(script, words, &[]).well()
}

fn over_with(script: &str, words: &[&str], options: &[&str]) -> Done {
    let program = cpu().display().to_string();
    let traced: Vec<&str> = std::iter::once(program.as_str()).chain(words.iter().copied()).collect();
    Trace::script(&script.replace("PROGRAM", &program)).args(options).on(traced).run()
}

fn tids(done: &Done) -> Vec<String> {
    let mut tids: Vec<String> =
        done.stdout.lines().filter_map(|it| it.strip_prefix("tid ")).map(str::to_string).collect();
    tids.sort();
    tids
}

fn keys(done: &Done, map: &str) -> Vec<String> {
    let mut keys: Vec<String> = done.rows(map).keys().cloned().collect();
    keys.sort();
    keys
}

#[test]
fn a_missing_value_is_a_key_of_its_own() {
    need_root!();
    let script = "uprobe(\"PROGRAM:other\", |e| @seen[e.tid] = e.arg0);\nuprobe(\"PROGRAM:work\", |e| @n[@seen[e.tid]].count());";
    let done = over(script, &["work", "1", "25"]);
    // other(10) is called after work(10), other(20) after work(20).
    assert_eq!(done.map("@n"), &json!({"20": 5, "-": 10, "10": 10}));
    done.nothing_lost();
}

#[test]
fn computing_with_a_missing_value_ends_the_handler_and_is_counted_at_its_line() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| {\n    @before.count();\n    let x = @unset[e.tid] + 1;\n    @after.sum(x);\n});\nuprobe(\"PROGRAM:other\", |e| @unset[0] = 1);";
    let done = over(script, &["work", "1", "40"]);
    assert_eq!((done.map("@before"), done.maps("@after").len()), (&json!(40), 0));
    assert_eq!(done.loss("missing_value"), 40);
    let lines = done.line_losses();
    assert!(
        lines.len() == 1 && lines[0].0 == "missing_value" && lines[0].1.ends_with("script.rhai:3") && lines[0].2 == 40,
        "{lines:?}"
    );
    let tested = over(&script.replace("@unset[e.tid] + 1", "(@unset[e.tid] ?? 0) + 1"), &["work", "1", "40"]);
    assert_eq!(tested.map("@after"), &json!(40));
    tested.nothing_lost();
}

#[test]
fn adding_to_a_missing_element_starts_from_zero() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| { @sum += e.arg0; @each[e.arg0 % 2] += 1; @down[0] -= 2; });";
    let done = over(script, &["work", "1", "40"]);
    assert_eq!(
        (done.map("@sum"), done.map("@each"), done.map("@down")),
        (&json!(820), &json!({"0": 20, "1": 20}), &json!({"0": -80}))
    );
    done.nothing_lost();
}

#[test]
fn division_by_zero_ends_the_handler_and_is_counted_at_its_line() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| {\n    @q.sum(100 / (e.arg0 % 10));\n    @after.count();\n});\n\
        uprobe(\"PROGRAM:work\", |e| @r.sum(100 % (e.arg0 % 4)));";
    let done = over(script, &["work", "1", "100"]);
    let quotients: i64 = (1..=9).map(|it| 100 / it).sum();
    let remainders: i64 = (1..=3).map(|it| 100 % it).sum();
    assert_eq!((done.map("@q"), done.map("@after")), (&json!(quotients * 10), &json!(90)));
    assert_eq!(done.map("@r"), &json!(remainders * 25));
    assert_eq!(done.loss("division_by_zero"), 35);
    let lines: Vec<_> =
        done.line_losses().into_iter().map(|(_, at, n)| (at.rsplit(':').next().unwrap().to_string(), n)).collect();
    assert_eq!(lines, [("2".to_string(), 10), ("5".to_string(), 25)]);
}

#[test]
fn integers_wrap_and_keep_their_sign() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| {\n    @wrapped = 9223372036854775807 + e.arg0;\n    @negative = (0 - 7) / (e.arg0 + 1);\n    @rest = (0 - 7) % (e.arg0 + 1);\n    @shifted = (0 - 8) >> e.arg0;\n    @worst = (0 - 9223372036854775807 - e.arg0) / (0 - e.arg0);\n});";
    let done = over(script, &["work", "1", "1"]);
    assert_eq!(done.map("@wrapped"), &json!(i64::MIN));
    assert_eq!((done.map("@negative"), done.map("@rest"), done.map("@shifted")), (&json!(-3), &json!(-1), &json!(-4)));
    assert_eq!(done.map("@worst"), &json!(i64::MIN), "the one quotient that does not fit wraps");
    done.nothing_lost();
}

#[test]
fn aggregations_are_exact_whichever_thread_updates_them() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| {\n    @count.count(); @sum.sum(e.arg0); @min.min(e.arg0); @max.max(e.arg0); @avg.avg(e.arg0); @stats.stats(e.arg0);\n    \
        @hist.hist(e.arg0); @lhist.lhist(e.arg0, 0, 10000, 1000); @q.quantiles(e.arg0); @total += e.arg0; @by[e.tid].count();\n});";
    let (threads, each) = (4i64, 10_000i64);
    let done = over(script, &["work", "4", "10000"]);
    let (count, sum) = (threads * each, threads * each * (each + 1) / 2);
    assert_eq!((done.map("@count"), done.map("@sum"), done.map("@total")), (&json!(count), &json!(sum), &json!(sum)));
    assert_eq!((done.map("@min"), done.map("@max"), done.map("@avg")), (&json!(1), &json!(each), &json!(sum / count)));
    assert_eq!(
        done.map("@stats"),
        &json!({"count": count, "average": sum / count, "total": sum, "min": 1, "max": each})
    );
    let hist = done.map("@hist").as_array().unwrap();
    assert_eq!(hist_count(done.map("@hist")), count);
    let bucket = hist.iter().find(|it| it["min"] == 4096).unwrap();
    assert_eq!(bucket, &json!({"min": 4096, "max": 8191, "count": 4096 * threads}));
    let linear = done.map("@lhist").as_array().unwrap();
    assert_eq!(linear[0], json!({"min": 0, "max": 999, "count": 999 * threads}));
    assert_eq!(linear.last().unwrap()["count"], json!(threads), "10000 lies beyond the last bucket");
    assert_eq!(hist_count(done.map("@lhist")), count);
    let median = done.map("@q")["p50"].as_i64().unwrap();
    assert!((5000..=5000 * 33 / 32).contains(&median), "{median}");
    assert!(done.rows("@by").values().all(|it| *it == each) && done.rows("@by").len() == 4, "{:?}", done.rows("@by"));
    done.nothing_lost();
}

#[test]
fn intervals_that_clear_lose_nothing_under_load() {
    need_root!();
    let script = |clear: &str| {
        format!(
            "uprobe(\"PROGRAM:work\", |e| {{ @n.count(); @by[e.arg0 % 7].sum(1); }});\ninterval(20.ms, || {{ print(@n); print(@by); {clear} }});\nend(|| {{ print(@n); print(@by); }});"
        )
    };
    let sum = |it: &Json| it.as_object().unwrap().values().map(|it| it.as_i64().unwrap()).sum::<i64>();
    let done = over(&script("@n.clear(); @by.clear();"), &["work", "4", "60000"]);
    let parts: Vec<i64> = done.maps("@n").iter().map(|it| it.as_i64().unwrap()).collect();
    assert!(parts.len() > 3, "several intervals: {parts:?}");
    assert_eq!(parts.iter().sum::<i64>(), 240_000);
    assert_eq!(done.maps("@by").iter().map(|it| sum(it)).sum::<i64>(), 240_000);
    done.nothing_lost();
    let kept = over(&script(""), &["work", "4", "60000"]);
    assert_eq!(
        (kept.map("@n"), sum(kept.map("@by"))),
        (&json!(240_000), 240_000),
        "without clear the last one has everything"
    );
    let parts: Vec<i64> = kept.maps("@n").iter().map(|it| it.as_i64().unwrap()).collect();
    assert!(parts.is_sorted(), "{parts:?}");
}

#[test]
fn what_a_full_map_refuses_is_counted() {
    need_root!();
    let script = "map(#{name: \"small\", size: 8});\nmap(#{name: \"few\", size: 8});\nuprobe(\"PROGRAM:work\", |e| @small[e.arg0].count());\nuprobe(\"PROGRAM:work\", |e| @few[e.arg0] = 1);";
    let done = over(script, &["work", "1", "100"]);
    assert_eq!((done.rows("@small").len(), done.rows("@few").len()), (8, 8));
    assert_eq!(done.loss("map_full"), 2 * 92);
    let roomy = over(&script.replace("size: 8", "size: 100"), &["work", "1", "100"]);
    assert_eq!(roomy.rows("@small").len(), 100);
    roomy.nothing_lost();
}

#[test]
fn texts_are_keys_and_are_cut_and_counted() {
    need_root!();
    let script = "uprobe(\"PROGRAM:say\", |e| @said[str(e.arg0)].count());\nuprobe(\"PROGRAM:say\", |e| @said[\"hello\"].count());";
    let done = over(script, &["texts"]);
    let cut = done.rows("@said").keys().find(|it| it.starts_with("xxx")).unwrap();
    assert!((127..=128).contains(&cut.len()), "{}", cut.len());
    assert_eq!(done.rows("@said")["hello"], 4, "equal text is an equal key: {:?}", done.rows("@said"));
    assert_eq!((done.loss("text_cut"), done.loss("unreadable_memory")), (1, 1));
    let long = over(&script.replace("str(e.arg0)", "str(e.arg0, 240)"), &["texts"]);
    assert_eq!((long.loss("text_cut"), long.rows("@said").keys().any(|it| it.len() >= 239)), (1, true));
}

#[test]
fn returns_know_their_entries() {
    need_root!();
    let script = "uretprobe(\"PROGRAM:work\", |e| {\n    if e.retval == 2 * e.entry.arg0 { @right.count(); } else { @wrong.count(); }\n    @in.sum(e.entry.arg0);\n    @func[e.func].count();\n});";
    let done = over(script, &["work", "3", "500"]);
    assert_eq!((done.map("@right"), done.map("@in")), (&json!(1500), &json!(3 * 500 * 501 / 2)));
    assert!(done.maps("@wrong").is_empty());
    assert_eq!(done.map("@func"), &json!({"work": 1500}));
    done.nothing_lost();
}

#[test]
fn the_time_of_an_event_is_one_value() {
    need_root!();
    let script = "uretprobe(\"PROGRAM:work\", |e| { if e.duration == e.time - e.entry.time { @same.count(); } });\nuprobe(\"PROGRAM:work\", |e| { let t = e.time; if t == e.time { @still.count(); } });";
    let done = over(script, &["work", "1", "100"]);
    assert_eq!((done.maps("@same"), done.maps("@still")), (vec![&json!(100)], vec![&json!(100)]));
}

#[test]
fn pid_and_tid_are_the_programs_own() {
    need_root!();
    let program = cpu().display().to_string();
    let script =
        format!("uprobe(\"{program}:work\", |e| {{ @n[e.pid, e.tid].count(); @comm[e.comm, e.uid].count(); }});");
    let mut run = Trace::script(&script).with_input().on([program.as_str(), "hold", "work", "3", "10"]).start();
    let pid = run.ready_pid();
    run.type_in("\n");
    let done = run.finish().well();
    let expected: Vec<String> = tids(&done).iter().map(|it| format!("{pid},{it}")).collect();
    assert_eq!((keys(&done, "@n"), expected.len()), (expected, 3));
    assert_eq!(done.map("@comm"), &json!({"cpu,0": 30}));
}

#[test]
fn children_are_followed_and_strangers_are_not() {
    need_root!();
    let program = cpu().display().to_string();
    let run = |options: &str| {
        let script = format!(
            "uprobe(\"{program}:work\"{options}, |e| @n.count());\nuprobe(\"{program}:work\"{options}, |e| @by[e.pid].count());"
        );
        let mut run = Trace::script(&script).with_input().on([program.as_str(), "hold", "fork", "3", "100"]).start();
        run.ready_pid();
        let stranger = std::process::Command::new(&program).args(["work", "1", "1000"]).output().unwrap();
        assert!(stranger.status.success());
        run.type_in("\n");
        run.finish().well()
    };
    let own = run("");
    assert_eq!((own.map("@n"), own.rows("@by").len()), (&json!(300), 3), "three children, no stranger");
    own.nothing_lost();
    let system = run(", #{scope: \"system\"}");
    let with = |n: i64| system.rows("@by").values().filter(|it| **it == n).count();
    assert!(with(1000) >= 1 && with(100) >= 3, "others of this program may run too: {:?}", system.rows("@by"));
    assert!(system.map("@n").as_i64().unwrap() >= 1300);
}

#[test]
fn tracepoints_and_samples_stay_in_scope() {
    need_root!();
    let program = cpu().display().to_string();
    let script = "tracepoint(\"syscalls:sys_enter_nanosleep\", |e| @naps[e.pid].count());\ntracepoint(\"syscalls:sys_enter_clock_nanosleep\", |e| @naps[e.pid].count());";
    let stranger = std::process::Command::new(&program).args(["nap", "400"]).spawn().unwrap();
    let pid = i64::from(stranger.id());
    let done = Trace::script(script).on([program.as_str(), "nap", "50"]).run().well();
    let mut stranger = stranger;
    stranger.wait().unwrap();
    assert_eq!((done.sum("@naps"), done.rows("@naps").len()), (50, 1), "{:?}", done.rows("@naps"));
    assert!(!done.rows("@naps").contains_key(&pid.to_string()));
    done.nothing_lost();
}

#[test]
fn a_program_that_another_becomes_is_probed_from_its_first_call() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!("uprobe(\"{program}:work\", |e| @n[e.comm].count());");
    let done = Trace::script(&script).on(["sh", "-c", &format!("exec {program} work 2 300")]).run().well();
    assert_eq!(done.map("@n"), &json!({"cpu": 600}), "{}", done.stderr);
    done.nothing_lost();
}

/// Calls `marked`, then becomes what its arguments say.
const BECOMES: &str = "#include <unistd.h>
__attribute__((noinline)) void marked(void) { __asm__ volatile(\"\"); }
__attribute__((noinline)) void CALLER(void) { marked(); __asm__ volatile(\"\"); }
int main(int n, char **words) { CALLER(); execv(words[1], words + 1); return 1; }";

#[test]
fn stacks_of_the_programs_that_a_process_became_are_named_by_their_own() {
    need_root!();
    let build =
        |name: &str| c_program(name, BECOMES, &[&format!("-DCALLER=called_in_{name}"), "-fno-omit-frame-pointer"]);
    let (first, second) = (build("first").display().to_string(), build("second").display().to_string());
    let script =
        format!("for p in [\"{first}\", \"{second}\"] {{ uprobe(`${{p}}:marked`, |e| @n[e.ustack].count()); }}");
    // Two programs without a stack between the two with one, and one after them.
    let done = Trace::script(&script)
        .on([&first, "/usr/bin/env", "sh", "-c", &format!("exec {second} /bin/true")])
        .run()
        .well();
    let stacks = keys(&done, "@n").join("\n\n");
    assert!(stacks.contains("called_in_first") && stacks.contains("called_in_second"), "{stacks}\n{}", done.stderr);
    done.nothing_lost();
}

#[test]
fn children_too_short_to_be_probed_are_counted() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!("uprobe(\"{program}:work\", #{{scope: \"process\"}}, |e| @n.count());");
    let done =
        Trace::script(&script).on(["sh", "-c", &format!("{program} work 1 3; {program} work 1 3; true")]).run().well();
    assert!(done.stderr.contains("2 child processes were followed"), "{}", done.stderr);
    assert_eq!(done.loss("unprobed_process"), 2, "whether or not they hit anything meanwhile");
}

/// Nobody can know of the library before a child brings it along; named by its path, it is known.
#[test]
fn a_library_that_a_child_brings_along_is_probed_late_and_counted_or_named_by_its_path() {
    need_root!();
    let library = c_program("liblate.so", "void hit(void) {}", &["-shared", "-fPIC"]);
    let user = c_program(
        "latecomer",
        "void hit(void); int main(void) { for (int i = 0; i < 100; i++) hit(); return 0; }",
        &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"],
    );
    let (library, user) = (library.display(), user.display());
    let run = |object: &str| {
        let script = format!("uprobe(\"{object}:hit\", |e| @n.count());");
        Trace::script(&script).on(["sh", "-c", &format!("{user}; {user}; true")]).run()
    };
    let late = run("liblate");
    let seen = late.maps("@n").first().and_then(|it| it.as_i64()).unwrap_or(0);
    assert!(late.loss("unprobed_process") > 0, "{seen} of 200 seen: {}", late.stderr);
    assert_eq!(late.stderr.matches("before its uprobes were in place").count(), 1, "{}", late.stderr);
    let named = run(&library.to_string()).well();
    assert_eq!(named.map("@n"), &json!(200));
    named.nothing_lost();
}

#[test]
fn a_process_is_still_of_the_tree_when_it_exits() {
    need_root!();
    let script = "tracepoint(\"sched:sched_process_exit\", |e| @[e.comm].count());";
    let done = Trace::script(script).on(["sh", "-c", "/bin/true; /bin/true"]).run().well();
    assert_eq!(
        (done.rows("@").get("true"), done.rows("@").get("sh")),
        (Some(&json!(2)), Some(&json!(1))),
        "{:?}",
        done.rows("@")
    );
}

#[test]
fn a_tree_is_seen_from_every_childs_first_instruction() {
    need_root!();
    let program = cpu().display().to_string();
    let script = |rest: &str| format!("uprobe(\"{program}:work\", |e| {{ @n.count(); {rest} }});");
    let brief = Trace::script(&script("@by[e.pid].count();")).on([program.as_str(), "brief", "200", "10"]).run().well();
    assert_eq!((brief.map("@n"), brief.rows("@by").len()), (&json!(2000), 200), "{}", brief.stderr);
    brief.nothing_lost();
    let shell = format!("for i in 1 2 3 4 5 6 7 8; do {program} work 1 3; done");
    let shell = Trace::script(&script("")).on(["sh", "-c", &shell]).run().well();
    assert_eq!(shell.map("@n"), &json!(24), "{}", shell.stderr);
    shell.nothing_lost();
}

/// A pid namespace of its own, as containers have.
const IN_NAMESPACE: [&str; 4] = ["unshare", "-pf", "--kill-child", "--mount-proc"];

#[test]
fn a_tree_is_seen_as_well_in_a_pid_namespace() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!("uprobe(\"{program}:work\", |e| {{ @n.count(); @by[e.pid].count(); }});");
    let brief = Trace::script(&script).within(IN_NAMESPACE).on([program.as_str(), "brief", "200", "10"]).run().well();
    assert_eq!((brief.map("@n"), brief.rows("@by").len()), (&json!(2000), 200), "{}", brief.stderr);
    assert_eq!(brief.stderr, "");
    brief.nothing_lost();
    let script = "tracepoint(\"sched:sched_process_exit\", |e| @[e.comm].count());";
    let ends = Trace::script(script).within(IN_NAMESPACE).on(["sh", "-c", "/bin/true; /bin/true"]).run().well();
    assert_eq!(ends.map("@"), &json!({"sh": 1, "true": 2}));
}

#[test]
fn what_runs_in_a_pid_namespace_within_is_seen_from_outside_and_else_counted() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!("uprobe(\"{program}:work\", |e| @n.count());");
    let words = ["unshare", "-pf", program.as_str(), "work", "1", "100"];
    let outside = Trace::script(&script).on(words).run().well();
    assert_eq!(outside.map("@n"), &json!(100), "{}", outside.stderr);
    outside.nothing_lost();
    let inside = Trace::script(&script).within(IN_NAMESPACE).on(words).run().well();
    assert_eq!((inside.maps("@n").len(), inside.loss("unprobed_process")), (0, 1), "{}", inside.stderr);
    assert!(inside.stderr.contains("a pid namespace of their own"), "{}", inside.stderr);
}

/// `start N` prints `ready PID`, waits for a byte, and lets a second thread become `again N`, which
/// calls `marked` so often, after a second.
const BECOMES_BY_THREAD: &str = "#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) void marked(void) { __asm__ volatile(\"\"); }
static char **words;
static void *become(void *unused) { words[1] = \"again\"; execv(words[0], words); return unused; }
int main(int n, char **v) {
  char c; pthread_t thread; words = v;
  if (!strcmp(v[1], \"again\")) { usleep(1000000); for (int i = atoi(v[2]); i > 0; i--) marked(); return 0; }
  printf(\"ready %d\\n\", getpid()); fflush(stdout); read(0, &c, 1);
  pthread_create(&thread, 0, become, 0); pause();
}";

#[test]
fn a_process_goes_on_when_another_thread_than_the_main_one_calls_exec() {
    need_root!();
    let program = c_program("becomes-by-thread", BECOMES_BY_THREAD, &[]).display().to_string();
    for options in ["", ", #{scope: \"process\"}"] {
        let script = format!("uprobe(\"{program}:marked\"{options}, |e| @n.count());");
        let mut run = Trace::script(&script).with_input().on([program.as_str(), "start", "300"]).start();
        run.ready_pid();
        run.type_in("\n");
        let done = run.finish().well();
        assert_eq!(done.map("@n"), &json!(300), "as a command{options}: {}", done.stderr);
        assert_eq!(done.loss("unprobed_process"), i64::from(!options.is_empty()), "{}", done.stderr);
    }
    let mut target = std::process::Command::new(&program)
        .args(["start", "300"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(target.stdout.take().unwrap()), &mut ready).unwrap();
    let script = format!("uprobe(\"{program}:marked\", |e| @n.count());");
    let mut run = Trace::script(&script).args(["-p", &target.id().to_string()]).start();
    run.until("attached", |it| it.results().contains("attached_probes"));
    drop(target.stdin.take());
    let done = run.finish().well();
    target.wait().unwrap();
    assert_eq!((done.map("@n"), done.loss("unprobed_process")), (&json!(300), 1), "with -p: {}", done.stderr);
}

const MANY_THREADS: &str = "#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *sleeps(void *unused) { pause(); return unused; }
int main(void) {
  pthread_t thread;
  for (int i = 0; i < 100; i++) pthread_create(&thread, 0, sleeps, 0);
  puts(\"ready\"); fflush(stdout); pause();
}";

#[test]
fn process_events_that_are_refused_are_said_with_what_follows() {
    need_root!();
    let program = c_program("many-threads", MANY_THREADS, &[]);
    let mut target = std::process::Command::new(program).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(target.stdout.take().unwrap()), &mut ready).unwrap();
    let run = |within: &[&str]| {
        Trace::one_liner("tracepoint(\"syscalls:sys_enter_write\", |e| @n.count());")
            .within(within)
            .args(["-p", &target.id().to_string(), "--for", "100ms"])
            .run()
    };
    let (refused, watched) = (run(&["prlimit", "--nofile=90"]), run(&["env"]));
    target.kill().unwrap();
    target.wait().unwrap();
    assert!(
        refused.stderr.contains("cannot watch processes") && refused.stderr.contains("ulimit -n"),
        "a descriptor for each thread and CPU: {}",
        refused.stderr
    );
    assert_eq!(watched.stderr, "");
}

#[test]
fn strangers_are_not_of_the_tree() {
    need_root!();
    let program = cpu().display().to_string();
    let script = format!(
        "uprobe(\"{program}:work\", |e| @n.count());\nuretprobe(\"{program}:work\", |e| @time.max(e.duration));\nuretprobe(\"{program}:work\", |e| @returns.count());"
    );
    let mut run = Trace::script(&script).with_input().on([program.as_str(), "hold", "work", "1", "100"]).start();
    run.ready_pid();
    let stranger = std::process::Command::new(&program).args(["work", "1", "1000"]).output().unwrap();
    assert!(stranger.status.success());
    run.type_in("\n");
    let done = run.finish().well();
    assert_eq!((done.map("@n"), done.map("@returns")), (&json!(100), &json!(100)));
    done.nothing_lost();
}

#[test]
fn returns_deeper_than_the_kernel_keeps_are_counted() {
    need_root!();
    let script = "uretprobe(\"PROGRAM:down\", |e| { @n.count(); @longest.max(e.duration); });";
    let deep = over(script, &["deep", "100", "10"]);
    assert_eq!((deep.map("@n"), deep.loss("return_too_deep")), (&json!(640), 360));
    let fits = over(script, &["deep", "64", "10"]);
    assert_eq!(fits.map("@n"), &json!(640));
    fits.nothing_lost();
}

#[test]
fn every_nth_and_several_functions_at_once() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", #{every: 10}, |e| @tenth.count());\nuprobe(\"PROGRAM:*o*r*\", |e| @f[e.func].count());";
    let done = over(script, &["work", "1", "1000"]);
    assert_eq!(done.map("@tenth"), &json!(100));
    assert_eq!(
        (&done.rows("@f")["work"], &done.rows("@f")["other"]),
        (&json!(1000), &json!(100)),
        "{:?}",
        done.rows("@f")
    );
}

#[test]
fn switching_probes_is_named_as_not_there_yet() {
    need_root!();
    for place in ["detail.disable();", "begin(|| detail.disable());", "interval(1.s, || detail.enable());"] {
        let script = format!("let detail = uprobe(\"PROGRAM:work\", |e| @n.count());\n{place}");
        let done = over_with(&script, &["work", "1", "100"], &[]);
        assert!(
            done.code() == 125 && done.stderr.contains("not supported yet") && done.stderr.contains("script.rhai:2"),
            "{place} {}{:?}",
            done.stderr,
            done.results
        );
    }
}

#[test]
fn a_handler_ends_the_run() {
    need_root!();
    let script = "uprobe(\"PROGRAM:work\", |e| { if e.arg0 == 50 { print(`at ${e.arg0}`); exit(3) } @n.count(); });";
    let done = over_with(script, &["work", "1", "100000"], &[]);
    assert_eq!((done.code(), done.prints()), (3, vec!["at 50"]));
}

#[test]
fn nothing_later_than_an_exit_is_shown() {
    need_root!();
    // All of it comes in one batch, and an interpreted handler prints besides.
    let script = "uprobe(\"PROGRAM:work\", |e| { print(`work ${e.arg0}`); if e.arg0 == 50 { exit(3) } });\ninterval(1.ms, || print(\"tick\"));";
    let done = over_with(script, &["work", "1", "100000"], &[]);
    let works: Vec<&str> = done.prints().into_iter().skip_while(|it| *it == "tick").collect();
    assert_eq!(
        (done.code(), works.last(), works.iter().filter(|it| **it != "tick").count()),
        (3, Some(&"work 50"), 50)
    );
}

#[test]
fn loops_choices_and_captured_values() {
    need_root!();
    let script = "let limit = 30;\nlet high = \"high\";\nuprobe(\"PROGRAM:work\", |e| {\n    let size = if e.arg0 < limit { \"low\" } else { high };\n    @by[size].count();\n    let bits = 0;\n    for i in 0..8 { if ((e.arg0 >> i) & 1) == 1 { bits += 1; } }\n    @bits.sum(bits);\n    if !(e.arg0 % 2 == 0 || e.arg0 > 90) && [e.tid, 1] in @pairs { return; }\n    @pairs[e.tid, 1] = true;\n    @rest.count();\n});";
    let done = over(script, &["work", "1", "100"]);
    assert_eq!(done.map("@by"), &json!({"low": 29, "high": 71}));
    assert_eq!(done.map("@bits"), &json!((1..=100u32).map(u32::count_ones).sum::<u32>()));
    // Work 1 is the first, so it is counted; then all even ones and those above 90.
    assert_eq!(done.map("@rest"), &json!(1 + (2..=100).filter(|it| it % 2 == 0 || *it > 90).count()));
    assert_eq!(done.map("@pairs").as_object().unwrap().len(), 1);
}

#[test]
fn a_tracepoint_pattern_is_at_all_that_match() {
    need_root!();
    let script = "tracepoint(\"s*:sys_enter_?xit_group\", |e| @[e.probe, e.func].count());\n\
                  tracepoint(\"syscalls:sys_enter_re*\", |e| @calls[e.probe].count());";
    let done = over(script, &["fork", "3", "1"]);
    assert_eq!(done.map("@"), &json!({"tracepoint:syscalls:sys_enter_exit_group,sys_enter_exit_group": 4}));
    assert!(done.rows("@calls").contains_key("tracepoint:syscalls:sys_enter_read"), "{:?}", done.rows("@calls"));
    done.nothing_lost();
}

#[test]
fn the_command_has_the_limit_of_open_files_that_it_would_have_without_us() {
    need_root!();
    let script = "uprobe(\"libc:malloc\", |e| @n.count());";
    let ask = ["sh", "-c", "ulimit -Sn"];
    let own = std::process::Command::new(ask[0]).args(&ask[1..]).output().expect("sh runs");
    let own = String::from_utf8_lossy(&own.stdout).trim().to_owned();
    let done = Trace::script(script).on(ask).run().well();
    assert!(done.stdout.lines().any(|it| it == own), "{own}\n{}", done.stdout);
}

#[test]
fn parts_of_strings_are_found_in_the_kernel() {
    need_root!();
    let script = "uprobe(\"PROGRAM:say\", |e| {\n\
                      let s = str(e.arg0);\n\
                      if s.contains(\"ell\") && s.starts_with(\"he\") && s.ends_with(\"lo\") { @hello.count(); }\n\
                      if s.contains(\"xxxxxxxxxxxx\") { @long.count(); }\n\
                      if s.ends_with(\"hell\") || s.contains(\"hello!\") || s.starts_with(\"ello\") { @wrong.count(); }\n\
                  });";
    let done = over_with(script, &["texts"], &[]);
    assert_eq!((done.map("@hello"), done.map("@long")), (&json!(1), &json!(1)));
    assert!(done.maps("@wrong").is_empty());
}
