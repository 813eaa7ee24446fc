//! Output that nobody reads, or that cannot be written.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use xputrace_tests::{Trace, xputrace};

/// Prints continuously, with lines that soon fill a pipe.
const CHATTER: &str =
    "interval(1.ms, || { for i in 0..50 { print(`line ${i} of many, and there is no end to them`); } });";
/// The smallest size of a pipe.
const PAGE: libc::c_int = 4096;

/// Starts a run with pipes for its standard output and standard error.
fn start(directory: &Path, words: &[&str]) -> Child {
    let mut command = Command::new(xputrace());
    command.current_dir(directory).args(words).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: &mut Child) -> ExitStatus {
    let give_up = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > give_up {
            child.kill().unwrap();
            panic!("it never ended");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    text
}

fn interrupt(child: &Child) {
    // SAFETY: a child of this test that has not been reaped.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

/// Reads exactly one line, as `head -1` does.
fn read_one_line(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty());
}

#[test]
fn a_reader_that_has_had_enough_leaves_the_command_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    for status in [0, 7] {
        let command = format!("until [ -e go{status} ]; do sleep 0.01; done; touch done{status}; exit {status}");
        let mut run = start(directory.path(), &["-e", CHATTER, "--", "sh", "-c", &command]);
        read_one_line(&mut run);
        std::fs::write(directory.path().join(format!("go{status}")), "").unwrap();
        assert_eq!(ended(&mut run).code(), Some(status));
        assert!(directory.path().join(format!("done{status}")).exists(), "the command came to its end first");
        assert_eq!(errors(&mut run), "");
    }
}

#[test]
fn without_a_command_a_missing_reader_ends_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = start(directory.path(), &["-e", CHATTER]);
    read_one_line(&mut run);
    assert_eq!((ended(&mut run).code(), errors(&mut run).as_str()), (Some(0), ""));
    let mut list = start(directory.path(), &["scripts"]);
    drop(list.stdout.take());
    assert_eq!((ended(&mut list).code(), errors(&mut list).as_str()), (Some(0), ""));
}

/// Waits until the pipe accepts nothing more: a pipe of one page is full once it contains anything.
fn until_full(child: &Child) {
    let pipe = child.stdout.as_ref().unwrap().as_raw_fd();
    // SAFETY: shrinks a pipe of this test.
    assert_eq!(unsafe { libc::fcntl(pipe, libc::F_SETPIPE_SZ, PAGE) }, PAGE);
    let mut waiting = 0;
    while waiting == 0 {
        // SAFETY: the call stores a number of bytes in `waiting`.
        assert_eq!(unsafe { libc::ioctl(pipe, libc::FIONREAD, &mut waiting) }, 0);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn an_interrupt_gets_through_to_a_run_whose_reader_sleeps() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = start(directory.path(), &["-e", CHATTER]);
    until_full(&run);
    interrupt(&run);
    assert_eq!(ended(&mut run).code(), Some(125));
    let errors = errors(&mut run);
    assert!(errors.contains("cannot write the output") && errors.contains("nobody reads it"), "{errors}");
}

#[test]
fn a_second_interrupt_quits_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut run = start(directory.path(), &["-e", CHATTER]);
    until_full(&run);
    while run.try_wait().unwrap().is_none() {
        interrupt(&run);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ended(&mut run).code(), Some(130));
}

#[test]
fn a_full_disk_is_named_and_leaves_the_command_to_its_end() {
    for (status, expected) in [(0, 125), (7, 7)] {
        let command = format!("touch done; exit {status}");
        let script = format!("begin(|| print(\"on\"));\n{CHATTER}");
        let done = Trace::one_liner(&script).args(["-o", "/dev/full"]).text().on(["sh", "-c", &command]).run();
        assert_eq!(done.code(), expected, "{}", done.stderr);
        assert_eq!(done.stderr.matches("No space left").count(), 1, "{}", done.stderr);
        assert!(done.path("done").exists());
    }
    let folder = Trace::one_liner(CHATTER).args(["-o", "."]).text().on(["touch", "done"]).run();
    assert!(folder.code() == 125 && folder.stderr.contains("Is a directory"), "{}", folder.stderr);
    assert!(!folder.path("done").exists());
}

#[test]
fn what_was_in_the_output_file_goes_with_the_first_line() {
    let trace = |words: [&str; 1]| {
        let trace = Trace::one_liner("begin(|| print(\"new\"));").args(["-o", "results"]).text();
        std::fs::write(trace.path("results"), "old\n".repeat(100)).unwrap();
        trace.on(words).run()
    };
    let refused = trace(["/no/such/program"]);
    assert!(refused.code() == 125 && refused.file("results").starts_with("old\n"));
    let done = trace(["true"]);
    assert!(done.code() == 0 && !done.file("results").contains("old"), "{}", done.file("results"));
}

#[test]
fn a_file_that_is_appended_to_keeps_what_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let line = format!("echo old >file; {} -q -e 'begin(|| print(\"new\"))' -- true >>file", xputrace().display());
    assert!(Command::new("sh").args(["-c", &line]).current_dir(directory.path()).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(directory.path().join("file")).unwrap(), "old\nnew\n0 lost\n");
}

#[test]
fn what_begin_prints_stands_above_what_the_command_prints() {
    let done = Trace::one_liner("begin(|| print(\"on\"));").args(["-q"]).text().on(["echo", "command"]).run();
    assert!(done.stdout.starts_with("on\ncommand\n"), "{}", done.stdout);
}

#[test]
fn closed_descriptors_are_no_harm() {
    let directory = tempfile::tempdir().unwrap();
    let status = |options: &str, closed: &str| {
        let run = format!("{options} -e 'begin(|| print(\"on\"));' -- sh -c 'exit 7' {closed}");
        let line = format!("{} {run}", xputrace().display());
        let done = Command::new("sh").args(["-c", &line]).current_dir(directory.path()).output();
        done.unwrap().status.code()
    };
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        assert_eq!(status("-o results", closed), Some(7), "{closed}");
    }
    // If results could not be written at all, the command doesn't run.
    assert_eq!([status("", "<&-"), status("", "2>&-"), status("", ">&-")], [Some(7), Some(7), Some(125)]);
}
