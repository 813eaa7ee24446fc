//! Odd command lines: each gets an answer, none panics or repeats itself.

use std::process::{Command, Stdio};
use xputrace_tests::xputrace;

/// (words, status, expected on standard error)
const REFUSED: &[(&[&str], i32, &str)] = &[
    (&["--bogus"], 125, "bogus"),
    (&["-z"], 125, "unexpected argument '-z'"),
    (&["-e"], 125, "a value is required"),
    (&["-e", ""], 125, "the script declares no handler"),
    (&["-e", "begin(|| print(1))", "summary", "--", "true"], 125, "a script was given twice"),
    (&["summary", "launchlat", "--", "true"], 125, "launchlat"),
    (&["summary"], 125, "nothing to trace"),
    (&["summary", "true"], 125, "true"),
    (&["--", ""], 125, "cannot run : No such file"),
    (&["--", "/"], 125, "cannot run /: Permission denied"),
    (&["--", "/no/such/program"], 125, "cannot run /no/such/program: No such file"),
    (&["/", "--", "true"], 125, "cannot read the script /: Is a directory"),
    (&["no.rhai", "--", "true"], 125, "cannot read the script no.rhai: No such file"),
    (&["x.bpf.o", "--", "true"], 125, "cannot read x.bpf.o"),
    (&["binary.rhai", "--", "true"], 125, "binary.rhai is not UTF-8 text"),
    (&["--replay", "no.xpt", "summary"], 125, "cannot read the recording: No such file"),
    (&["--replay", "binary.rhai", "summary"], 125, "not a recording"),
    (&["--replay", "/", "summary"], 125, "cannot read the recording: Is a directory"),
    (&["--replay", "no.xpt", "--", "true"], 125, "a command would not be run"),
    (&["--replay", "no.xpt", "-a"], 125, "cannot be combined"),
    (&["-p", "0", "-e", "profile(99.hz, |e| @n.count())"], 125, "-p 0"),
    (&["-p", "4194304", "-e", "profile(99.hz, |e| @n.count())"], 125, "-p 4194304: there is no such process"),
    (&["-p", "-1", "summary"], 125, "-1"),
    (&["-p", "x", "summary"], 125, "invalid value 'x'"),
    (&["-p", "1", "-e", "profile(99.hz, |e| @n.count())", "--", "true"], 125, "cannot be combined with a command"),
    (&["-f", "xml", "--", "true"], 125, "xml"),
    (&["-f", "csv", "--", "true"], 125, "not implemented yet"),
    (&["--for", "soon", "--", "true"], 125, "`soon` is not a time"),
    (&["--for", "10", "--", "true"], 125, "has no unit"),
    (&["--for", "-1s", "--", "true"], 125, "-1"),
    (&["--for", "1e9s", "--", "true"], 125, "has no unit"),
    (&["-o", "/no/such/directory/x", "--", "true"], 125, "cannot write to /no/such/directory/x: No such file"),
    (&["-o", "/", "--", "true"], 125, "cannot write to /: Is a directory"),
    (&["--folded", "x", "-e", "kernel(|k| @n.count())", "--", "true"], 125, "no map of the script has a stack"),
    (
        &["record", "-o", "/no/such/directory/x", "--", "true"],
        125,
        "cannot record into /no/such/directory/x: No such file",
    ),
    (&["record"], 125, "nothing to record"),
    (&["record", "--replay", "t.xpt", "--", "true"], 125, "`record` has no option `--replay`"),
    (&["record", "-o", "/", "--", "true"], 125, "cannot record into /: Is a directory"),
    (&["record", "-o", "/dev/null", "--", "true"], 125, "cannot record into /dev/null: it is not a regular file"),
    (&["threadhist", "--top=-1", "--", "true"], 125, "`--top` takes 1 or more, not `-1`"),
    (&["threadhist", "--kernel=", "--", "true"], 125, "`--kernel` takes a text, and it is empty"),
    (&["check"], 2, "no script was given"),
    (&["check", "/"], 2, "Is a directory"),
    (&["check", "-e", "import \"no/such/module\" as m;"], 2, "no/such/module"),
    (&["build", "-e", "kernel(|k| @n.count())", "-o", "/"], 2, "cannot write /: Is a directory"),
    (&["build", "-e", "kernel(|k| @n.count())", "-o", "/dev/full"], 2, "cannot write /dev/full: No space left"),
    (&["list", "uprobe:/no/such/file:*"], 2, "/no/such/file"),
    (&["list", ""], 2, "``"),
    (&["list", "a", "b"], 2, "'b'"),
    (&["doctor", "--bogus"], 2, "bogus"),
    (&["doctor", "-f", "csv"], 2, "not implemented yet"),
    (&["check", "-e", "begin(|| {})", "-p", "99999999"], 2, "unexpected argument '-p'"),
    (&["check", "--folded", "q", "-e", "begin(|| {})"], 2, "`check` has no option `--folded`"),
    (&["explain", "-e", "device_entry(\"k\", |t| @n.count())", "-p", "1", "--", "true"], 2, "leave out the command"),
    (&["explain", "-e", "begin(|| {})", "--", "nosuchprogram"], 2, "leave it out"),
    (&["explain", "-e", "device_entry(\"k\", |t| @n.count())", "--", "nosuchprogram"], 2, "no program `nosuchprogram`"),
    (&["scripts", "--", "true"], 2, "`scripts` takes no command"),
    (&["list", "--bogus"], 2, "bogus"),
    (&["demo", "--bogus"], 125, "bogus"),
    (&["-e", "// nothing", "--", "true"], 125, "the script declares no handler"),
    (&["--replay", "no.xpt", "--for", "1s", "summary"], 125, "cannot be combined"),
    (&["over100ms", "--ms=many", "--", "true"], 125, "ms"),
    (&["over100ms", "--ms", "--", "true"], 125, "ms"),
];

#[test]
fn odd_command_lines_have_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("binary.rhai"), [0xff, 0xfe, 0, 1]).unwrap();
    let mut wrong = Vec::new();
    for (words, status, said) in REFUSED {
        let mut command = Command::new(xputrace());
        command.args(*words).current_dir(directory.path()).stdin(Stdio::null()).env_remove("TERM");
        let done = command.env("COLUMNS", "1").output().unwrap();
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        let is_right = done.status.code() == Some(*status) && errors.contains(said);
        if !is_right || !done.stdout.is_empty() || errors.contains("bug in xputrace") || is_said_twice(&errors) {
            wrong.push(format!("{words:?}: {:?}\n{errors}{}", done.status, String::from_utf8_lossy(&done.stdout)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn arguments_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let run = |words: &[&std::ffi::OsStr]| Command::new(xputrace()).args(words).output().unwrap();
    for words in [&[odd] as &[_], &["--bogus".as_ref(), odd]] {
        let done = run(words);
        let errors = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(125) && !errors.contains("bug"), "{errors}");
    }
    let script = ["-q", "-e", "begin(|| print(1))", "--", "echo"].map(std::ffi::OsStr::new);
    assert_eq!(run(&[&script[..], &[odd]].concat()).stdout, b"1\n\xff\n0 lost\n");
}

/// Whether a line contains the system's answer more than once.
fn is_said_twice(errors: &str) -> bool {
    errors.lines().any(|it| it.matches("(os error").count() > 1)
}

#[test]
fn doctor_looks_where_the_collector_does() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, place) in [
        ("CUDA_HOME", "extras/CUPTI/lib64"),
        ("CUDA_PATH", "targets/x86_64-linux/lib"),
        ("CONDA_PREFIX", "lib"),
        ("VIRTUAL_ENV", "lib/python3.12/site-packages/nvidia/cuda_cupti/lib"),
        ("VIRTUAL_ENV", "lib/python3.13/site-packages/nvidia/cu13/lib"),
    ] {
        let prefix = directory.path().join(place.replace('/', "-"));
        std::fs::create_dir_all(prefix.join(place)).unwrap();
        let library = prefix.join(place).join("libcupti.so.13");
        std::fs::write(&library, b"").unwrap();
        let mut command = Command::new(xputrace());
        for name in ["CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX", "VIRTUAL_ENV", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        let done = command.arg("doctor").env(variable, &prefix).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(text.contains(&library.display().to_string()), "{variable}: {text}");
    }
}
