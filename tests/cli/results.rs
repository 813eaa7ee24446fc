//! Messages about results: why there are none, where they are, and whether they are complete.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use xputrace_tests::{Done, Trace, need_root, xputrace};

/// Replays a recording of the repository, with text output.
fn replay(words: &[&str], recording: &str) -> Done {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("replay").join(recording);
    Trace::new(words).args(["--replay"]).args([path]).text().run()
}

fn is_silence(done: &Done) -> bool {
    done.stdout.contains("no GPU events")
}

#[test]
fn silence_is_explained_where_there_is_silence() {
    let launches = replay(&["-e", "launch(|l| @[l.api].count())"], "llm.xpt").well();
    assert!(!is_silence(&launches) && launches.stdout.starts_with("@[cudaLaunchKernel]: 92316"), "{}", launches.stdout);
    let silence = Trace::one_liner("kernel(|k| @.count());").text().on(["true"]).run().well();
    assert!(silence.stdout.contains("no process loaded the collector"), "{}", silence.stdout);
}

#[test]
fn a_recording_without_launches_says_so() {
    let trace = Trace::new(["record"]).text().on_workload("server", &["--requests=0"]);
    let recorded = trace.args(["-o", "t.xpt"]).run().well();
    let path = recorded.path("t.xpt");
    let done = Trace::one_liner("kernel(|k| @.count());").args(["--replay"]).args([path]).text().run().well();
    assert!(done.stdout.contains("CUDA was used, but no kernel was launched"), "{}", done.stdout);
}

#[test]
fn names_are_whole_where_no_terminal_is() {
    let done = replay(&["-q", "kerneltop", "--names", "full", "-o", "out"], "pytorch.xpt").well();
    let keys = different_keys(&done.file("out"));
    assert!(keys.iter().any(|it| it.len() > 200) && !done.file("out").contains('…'));
    let summary = replay(&["summary", "--top=100", "--names=full"], "pytorch.xpt").well();
    assert!(!summary.stdout.contains('…') && summary.stdout.contains("at::native::FillFunctor<float>"));
}

#[test]
fn short_names_fit_a_line_and_stay_different() {
    let script = "kernel(|k| { @by[k.name].count(); @gpu[k.launch.ustack, k.name].sum(k.duration) });";
    let words = ["-q", "-e", script, "-o", "out", "--folded", "f.folded"];
    let done = replay(&words, "pytorch.xpt").well();
    let table: String =
        done.file("out").lines().filter(|it| it.starts_with("@by[")).map(|it| format!("{it}\n")).collect();
    let keys = different_keys(&table);
    let whole = replay(&[&words[..], &["--names=full"]].concat(), "pytorch.xpt").well();
    let n_whole = whole.file("out").lines().filter(|it| it.starts_with("@by[")).count();
    assert_eq!((keys.len(), n_whole), (31, 31));
    for name in [
        "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>, array<char*, 3>>",
        "vectorized_elementwise_kernel<4, FillFunctor<unsigned char>, array<char*, 1>>",
        "reduce_kernel<512, 1, ReduceOp<float, func_wrapper_t<float, sum_functor<float, …>::λ1>, …>>",
        "elementwise_kernel<128, 2, gpu_kernel_impl_nocast<direct_copy_kernel_cuda::λ3.7.1>::λ1>",
        "multi_tensor_apply_kernel<TensorListMetadata<2>, BinaryOpListAlphaFunctor<float, 2, 2, 0>, …>",
    ] {
        assert!(keys.contains(&format!("@by[{name}")), "{name} is not in {keys:#?}");
        assert!(done.file("f.folded").contains(&format!(";{name} ")), "{name}");
    }
    let templates = keys.iter().filter(|it| it.contains('<'));
    templates.for_each(|it| assert!(it.chars().count() <= 110, "{it}"));
}

/// Returns what stands before the values of a table's rows, which must differ.
fn different_keys(table: &str) -> Vec<String> {
    let mut keys: Vec<String> = table.lines().filter_map(|it| it.split("]: ").next().map(Into::into)).collect();
    let rows = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), rows, "no two rows read the same");
    keys
}

#[test]
fn files_of_stacks_are_told() {
    let script = "kernel(|k| @gpu[k.launch.ustack].sum(k.duration)); end(|| flamegraph(\"f.svg\", @gpu));";
    let words = ["-e", script, "--folded", "f.folded"];
    let done = replay(&words, "llm.xpt").well();
    assert!(done.path("f.svg").exists() && !done.file("f.folded").is_empty());
    for note in ["wrote f.svg: a flame graph of @gpu", "wrote f.folded: folded stacks of @gpu"] {
        assert!(done.stderr.contains(note), "{}", done.stderr);
    }
    assert_eq!(replay(&[&words[..], &["-q"]].concat(), "llm.xpt").well().stderr, "");
}

#[test]
fn an_empty_map_leaves_no_file() {
    let script = "kernel(|k| if k.duration < 0 { @gpu[k.launch.ustack].count(); });";
    let done = replay(&["-e", script, "--folded", "f.folded", "--flamegraph", "f.svg"], "llm.xpt");
    assert_eq!(done.code(), 125, "{}", done.stderr);
    for file in ["f.folded", "f.svg"] {
        assert!(!done.path(file).exists() && done.stderr.contains(&format!("@gpu is empty: {file} is not written")));
    }
}

#[test]
fn maps_of_an_end_handler_that_fails_are_printed() {
    let script = "kernel(|k| { @n.count(); @by[k.name].count(); }); end(|| { let zero = 0; print(@by); print(1 / zero); print(@n); });";
    let done = replay(&["-e", script], "llm.xpt");
    assert_eq!((done.code(), done.stdout.matches("@n: 92316").count()), (125, 1), "{}", done.stdout);
    assert_eq!(done.stdout.matches("@by[matmul_kernel<64>]").count(), 1, "what was shown is not shown again");
}

#[test]
fn requests_of_a_recording_of_their_entries_alone() {
    let function = "--function=./requests:handle_request";
    let done = replay(&["request", function, "--until-next"], "requests.xpt").well();
    assert!(done.stdout.contains("@request_gpu[7]: "), "{}", done.stdout);
    let returns = replay(&["request", function], "requests.xpt");
    assert!(returns.code() == 125 && returns.stderr.contains("no hits of uretprobe"), "{}", returns.stderr);
}

#[test]
fn a_summary_of_a_recording_without_waits_says_so_and_shows_the_rest() {
    let done = replay(&["summary"], "llm.xpt").well();
    let note = "the recording has no wait, alloc, free events: what the script shows of them is missing";
    assert!(done.stderr.contains(note) && done.stdout.contains("launch latency"), "{}{}", done.stderr, done.stdout);
    assert!(!done.stdout.contains("waited") && !done.stdout.contains("GPU memory"), "{}", done.stdout);
    assert!(done.stdout.ends_with("\nlaunches 92316 = joined 92316; 0 lost\n"), "{}", done.stdout);
    let required = replay(&["-e", "wait(#{optional: true}, |w| @w.count()); wait(|w| @n.count())"], "llm.xpt");
    assert!(required.code() == 125 && required.stderr.contains("the recording lacks wait"), "{}", required.stderr);
}

#[test]
fn the_summary_has_40_lines_at_most_rates_of_copies_waits_and_memory() {
    let done = replay(&["-q", "summary"], "pytorch.xpt").well();
    for part in [
        "the CPU waited 74 times, 1.35 ms in all; 93.6 % in cudaStreamSynchronize\n",
        "GPU memory: at most 466.25 MiB allocated at a time\n",
    ] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
    assert!(done.stdout.lines().count() <= 40, "{}", done.stdout);
    assert!(
        done.stdout
            .contains("187 copies of 300.15 MiB took 8.75 ms, 24.1 % of what kernels and copies took on GPUs\n  HtoD "),
        "{}",
        done.stdout
    );
}

/// This recording has waits, allocations and frees as an earlier version laid them out.
#[test]
fn host_events_of_earlier_recordings_are_read_as_they_were_laid_out() {
    let script = "wait(|w| @waits[w.api, w.result].count()); alloc(|a| @allocated.sum(a.bytes)); free(|f| @freed[f.kind].count());";
    let done = replay(&["-q", "-e", script], "pytorch.xpt").well();
    for part in ["@allocated: 466 MiB", "@freed[device]: 2", "@waits[cudaStreamSynchronize, 0]: 73", "0 lost"] {
        assert!(done.stdout.contains(part), "{part}: {}", done.stdout);
    }
}

/// What bundled scripts show of recordings of the programs in `live/programs`, made on the software GPU: of
/// `copies 1 30 2`, of `launches` (twice) and `requests` as the live cases run them, and of `late lock 2` with `launchwhy`.
#[test]
fn bundled_scripts_show_what_was_recorded() {
    let scripts = [
        ("copies", ["memcpystat", "--top=1"]),
        ("launches", ["launchshape", "--top=9"]),
        ("stages", ["stages", "--top=9"]),
        ("late", ["launchwhy", "--over-us=10"]),
        ("nccl", ["ncclstat", "--top=9"]),
    ];
    for (name, [script, argument]) in scripts {
        let done = replay(&["-q", script, argument, "-o", "out"], &format!("{name}.xpt")).well();
        let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("replay").join(format!("{name}.txt"));
        xputrace_golden::assert(&golden, &done.file("out"));
    }
}

#[test]
fn times_overlap_and_are_rounded_and_their_cost_is_not_guessed() {
    let done = replay(&["summary"], "llm.xpt").well();
    assert!(done.stdout.contains("1.43 s") && done.stdout.contains("7.06 ms"), "{}", done.stdout);
    let few = Trace::one_liner("launch(|l| @.count()); end(|| print(`cost ${collector_cost_ns()}`));");
    let few = few.text().on_workload("server", &["--requests=3"]).run().well();
    assert!(few.stdout.contains("cost -\n"), "{}", few.stdout);
}

#[test]
fn a_run_in_which_no_probe_attached_has_failed() {
    need_root!();
    let never = "uprobe(\"libno-such-library:f\", |e| @.count());";
    let run = |script: &str, command: &str| Trace::one_liner(script).text().on(["sh", "-c", command]).run();
    let done = run(never, "true");
    assert!(done.code() == 125 && done.stderr.contains("libno-such-library:f never attached"), "{}", done.stderr);
    assert_eq!(run(never, "exit 3").code(), 3, "the command's own status wins");
    assert_eq!(run(&format!("{never} tracepoint(\"sched:sched_switch\", |e| @s.count());"), "true").code(), 0);
}

#[test]
fn functions_that_a_file_does_not_have_are_mistakes_before_the_run() {
    let script = "uprobe([\"libc:malloc\", \"libc:mallo\"], |e| @.count());\nkernel(|k| @n[k.nmae].count());";
    let checked = Trace::new(["check", "-e", script]).text().run();
    assert_eq!(checked.code(), 2);
    for part in [
        "error[no-such-function]: there is no function `mallo` in ",
        "--> -e:1:24",
        "similar: malloc",
        "error[unknown-field]",
    ] {
        assert!(checked.stderr.contains(part), "{part}: {}", checked.stderr);
    }
    let looped = "for f in [\"mallo\", \"malloc\", \"fre\"] { uprobe(`libc:${f}`, |e| @.count()); }";
    let looped = Trace::new(["check", "-e", looped]).text().run();
    assert_eq!(looped.stderr.matches("there is no function").count(), 2, "{}", looped.stderr);
    let run = Trace::one_liner(script).text().on(["touch", "ran"]).run();
    assert!(run.code() == 125 && !run.path("ran").exists(), "{}", run.stderr);
    let later = Trace::new(["check", "-e", "uprobe(\"./no-such-file:f\", |e| @.count())"]).text().run().well();
    assert!(later.stderr.starts_with("warning[no-such-file]"), "a file may come later: {}", later.stderr);
}

/// Returns what the binary prints on a terminal of this width.
fn on_a_terminal(columns: u16, words: &[&str], environment: &[(&str, &str)]) -> String {
    let size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: room for two descriptors, and a size; the other pointers may be null.
    let opened = unsafe { libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(opened, 0);
    // SAFETY: both were just opened; nothing else owns them.
    let (ours, theirs) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut command = Command::new(xputrace());
    command.args(words).env_remove("COLUMNS").envs(environment.iter().copied()).stdin(Stdio::null());
    let mut child = command.stdout(theirs).stderr(Stdio::null()).spawn().unwrap();
    // Closes our copy of their end; otherwise reading would never end.
    drop(command);
    // Reading fails once the other side is closed.
    let text: Vec<u8> = BufReader::new(ours).bytes().map_while(Result::ok).collect();
    child.wait().unwrap();
    String::from_utf8_lossy(&text).replace("\r\n", "\n")
}

#[test]
fn names_fit_a_terminal_and_stay_different() {
    let recording = concat!(env!("CARGO_MANIFEST_DIR"), "/replay/pytorch.xpt");
    let script = "kernel(|k| @gpu_time[k.name].sum(k.duration));";
    for (words, widths) in
        [(&["-q", "-e", script, "--replay", recording][..], [90, 120]), (&["--replay", recording], [90, 120])]
    {
        for width in widths {
            for text in
                [on_a_terminal(width, words, &[]), on_a_terminal(200, words, &[("COLUMNS", &width.to_string())])]
            {
                let is_row = |it: &&str| it.contains('…');
                let names: Vec<&str> = text.lines().filter(is_row).map(|it| it.split("]: ").next().unwrap()).collect();
                assert!(names.len() > 3, "{text}");
                assert!(names.iter().all(|it| it.chars().count() <= width.into()), "{width} columns: {text}");
                let names: Vec<&str> = names.iter().map(|it| it.rsplit("  ").next().unwrap()).collect();
                assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len(), "{text}");
            }
        }
    }
}
