//! Loads a library into programs that are doing all kinds of things.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use xputrace_inject::{Request, inject};

/// Counts its calls; the program can ask how many there were.
const LIBRARY: &str = r#"
int n_calls;
int count(const char *text) { n_calls++; return text[0] - '0'; }
"#;

/// Each program prints "ready", ends when its input does, and prints what it saw.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include <poll.h>
static volatile int over;
static volatile long n_odd;
static void *allocate(void *unused) {
    while (!over) { for (int i = 0; i < 100; i++) free(malloc(i * 40)); dlsym(RTLD_DEFAULT, "malloc"); }
    return unused;
}
static void *compute(void *unused) {
    // Every register counts: the sum is known.
    while (!over) {
        unsigned long a = 1, b = 2, c = 3, d = 4; double x = 1, y = 2;
        for (int i = 0; i < 100000; i++) { a = a * 3 + b; b ^= c + a; c += d; d = d * 5 + 1; x += 0.5; y = y * 1.0000001 + x; }
        static unsigned long was; static double was_y;
        if (!was) { was = a ^ b ^ c ^ d; was_y = y; }
        if (was != (a ^ b ^ c ^ d) || was_y != y) n_odd++;
    }
    return unused;
}
static void *start_threads(void *unused) {
    while (!over) { pthread_t it; pthread_create(&it, 0, (void *(*)(void *))strlen, "x"); pthread_join(it, 0); }
    return unused;
}
static void *wait_in_epoll(void *unused) {
    int epoll = epoll_create1(0); struct epoll_event event;
    while (!over) if (epoll_wait(epoll, &event, 1, 50) != 0) n_odd++;
    return unused;
}
static void *nap(void *unused) {
    struct timespec time = { 0, 30000000 };
    while (!over) if (nanosleep(&time, NULL) != 0) n_odd++;
    return unused;
}
static int wait_inside(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)info; (void)size; (void)unused;
    puts("ready"); fflush(stdout);
    char byte; while (read(0, &byte, 1) > 0) ;
    return 1;
}
static void wait_in_handler(int signal) { (void)signal; wait_inside(0, 0, 0); }
static int raise_inside(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)info; (void)size; (void)unused;
    return raise(SIGUSR1) + 1;
}
static ssize_t wait_in_write(void *unused, const char *text, size_t len) {
    (void)unused; (void)text;
    static int n; if (!n++) wait_inside(0, 0, 0);
    return len;
}
static void filter(int number, unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog all = { sizeof code / sizeof *code, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all);
}
static void *wait_for_input(void *unused) {
    (void)unused;
    for (char state = 0; state != 'Z';) {
        char path[64]; snprintf(path, sizeof path, "/proc/%d/stat", getpid());
        FILE *file = fopen(path, "r"); if (fscanf(file, "%*d %*s %c", &state) != 1) abort();
        fclose(file);
    }
    wait_inside(0, 0, 0); exit(7);
}
static void on_tick(int signal) { (void)signal; free(malloc(100)); }
int main(int argc, char **argv) {
    void *(*all[])(void *) = { allocate, compute, start_threads, wait_in_epoll, nap };
    const char *names[] = { "allocate", "compute", "threads", "epoll", "nap" };
    pthread_t threads[64]; int n = 0;
    for (int at = 1; at < argc; at++) {
        for (int i = 0; i < 5; i++) if (!strcmp(argv[at], names[i])) pthread_create(&threads[n++], 0, all[i], 0);
        if (!strcmp(argv[at], "ticks")) {
            struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART }; sigaction(SIGALRM, &action, 0);
            timer_t timer; timer_create(CLOCK_MONOTONIC, 0, &timer);
            struct itimerspec often = { { 0, 200000 }, { 0, 200000 } }; timer_settime(timer, 0, &often, 0);
        }
    }
    if (argc > 1 && !strcmp(argv[1], "killing-filter")) filter(SYS_connect, SECCOMP_RET_KILL_PROCESS);
    if (argc > 1 && !strcmp(argv[1], "mild-filter")) filter(SYS_connect, SECCOMP_RET_ERRNO | EPERM);
    if (argc > 1 && !strcmp(argv[1], "linker")) dl_iterate_phdr(wait_inside, 0);
    if (argc > 1 && !strcmp(argv[1], "handler")) { signal(SIGUSR1, wait_in_handler); dl_iterate_phdr(raise_inside, 0); }
    if (argc > 1 && !strcmp(argv[1], "allocator")) {
        FILE *file = fopencookie(0, "w", (cookie_io_functions_t){ .write = wait_in_write });
        setvbuf(file, 0, _IONBF, 0); malloc_info(0, file);
    }
    if (argc > 1 && !strcmp(argv[1], "first-ends")) {
        pthread_create(&threads[n++], 0, wait_for_input, 0);
        pthread_exit(0);
    }
    puts("ready"); fflush(stdout);
    char byte;
    if (argc > 1 && !strcmp(argv[1], "poll")) {
        struct pollfd input = { 0, POLLIN, 0 };
        if (poll(&input, 1, 100000) != 1) n_odd++;
    }
    if (argc > 1 && !strcmp(argv[1], "spin")) {
        struct pollfd input = { 0, POLLIN, 0 };
        while (poll(&input, 1, 0) == 0) for (volatile int i = 0; i < 1000; i++) ;
    }
    while (read(0, &byte, 1) != 0) n_odd += errno == EINTR;
    over = 1;
    while (n) pthread_join(threads[--n], 0);
    printf("odd %ld\n", n_odd);
    return 7;
}
"#;

struct Built {
    directory: TempDir,
}

impl Built {
    fn new() -> Self {
        let built = Built { directory: tempfile::tempdir().unwrap() };
        built.compile("libcounted.so", LIBRARY, &["-shared", "-fPIC"]);
        built.compile("program", PROGRAM, &["-O2", "-pthread", "-fno-omit-frame-pointer"]);
        built
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn compile(&self, name: &str, source: &str, options: &[&str]) {
        let file = self.path(&format!("{name}.c"));
        std::fs::write(&file, source).unwrap();
        let status = Command::new("cc").args(options).arg("-o").arg(self.path(name)).arg(file).arg("-ldl").status();
        assert!(status.unwrap().success(), "cc cannot compile {name}");
    }

    fn request(&self) -> Request {
        Request { library: self.path("libcounted.so"), symbol: "count", argument: "5 apples".into() }
    }
}

/// A running program.
struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn new(program: &Path, words: &[&str]) -> Self {
        let mut child = Command::new(program).args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Running { child, output }
    }

    fn end(mut self) -> (String, Option<i32>) {
        drop(self.child.stdin.take());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap().code())
    }

    fn maps(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap()
    }

    fn n_threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }
}

#[test]
fn a_library_is_loaded_whatever_the_program_does() {
    let built = Built::new();
    for words in [
        &["read"][..],
        &["poll"],
        &["spin"],
        &["read", "nap", "epoll"],
        &["read", "compute", "compute"],
        &["spin", "allocate", "allocate", "allocate", "allocate"],
        &["spin", "threads", "allocate"],
        &["spin", "ticks", "compute", "allocate"],
    ] {
        let program = Running::new(&built.path("program"), words);
        for _ in 0..20 {
            assert_eq!(inject(program.child.id(), &built.request()), Ok(5), "{words:?}");
        }
        assert!(program.maps().contains("libcounted.so"));
        assert_eq!(program.end(), ("odd 0\n".into(), Some(7)), "{words:?}");
    }
}

#[test]
fn nothing_but_the_library_stays() {
    let built = Built::new();
    let program = Running::new(&built.path("program"), &["read"]);
    let count = || program.maps().lines().filter(|it| !it.contains("[heap]")).count();
    assert_eq!(inject(program.child.id(), &built.request()), Ok(5));
    let (mappings, threads) = (count(), program.n_threads());
    for _ in 0..10 {
        assert_eq!(inject(program.child.id(), &built.request()), Ok(5));
    }
    assert_eq!((count(), program.n_threads()), (mappings, threads));
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
}

/// Thread ids there are not ours.
#[test]
fn a_process_in_a_pid_namespace_is_like_any_other() {
    let built = Built::new();
    let program = built.path("program");
    let words = ["--pid", "--fork", "--mount-proc", program.to_str().unwrap(), "read", "nap"];
    let unshare = Running::new(Path::new("unshare"), &words);
    let children = format!("/proc/{0}/task/{0}/children", unshare.child.id());
    let pid = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    for _ in 0..20 {
        assert_eq!(inject(pid, &built.request()), Ok(5));
    }
    assert_eq!(unshare.end(), ("odd 0\n".into(), Some(7)));
}

#[test]
fn what_cannot_be_loaded_is_named() {
    let built = Built::new();
    let refused = |pid: u32, request: &Request| inject(pid, request).unwrap_err().to_string();
    let program = Running::new(&built.path("program"), &["read"]);
    let pid = program.child.id();
    let missing = Request { library: "/nowhere/libx.so".into(), ..built.request() };
    assert!(refused(pid, &missing).contains("/nowhere/libx.so: cannot open shared object file"));
    let missing = Request { symbol: "nothing", ..built.request() };
    assert!(refused(pid, &missing).contains("undefined symbol: nothing"));
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
    assert_eq!(refused(pid, &built.request()), "it ended meanwhile");
}

#[test]
fn a_program_that_cannot_load_anything_is_refused() {
    let built = Built::new();
    built.compile("static", PROGRAM, &["-static", "-pthread"]);
    let program = Running::new(&built.path("static"), &["read"]);
    let refusal = inject(program.child.id(), &built.request()).unwrap_err().to_string();
    assert!(refusal.contains("statically linked"), "{refusal}");
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
}

/// A dynamic linker that waits for the end of its input, before it has loaded anything.
const LINKER: &str = r#"
static long call(long number, long a, const void *b, long c) {
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return answer;
}
void _start(void) {
    char byte;
    call(1, 1, "ready\n", 6);
    while (call(0, 0, &byte, 1) > 0) {}
    call(60, 7, 0, 0);
}
"#;

#[test]
fn a_program_that_is_starting_is_not_called_statically_linked() {
    let built = Built::new();
    built.compile("linker", LINKER, &["-O1", "-fPIE", "-static-pie", "-nostdlib", "-fno-stack-protector"]);
    let linker = format!("-Wl,--dynamic-linker={}", built.path("linker").display());
    built.compile("starting", PROGRAM, &[&linker, "-pthread"]);
    let program = Running::new(&built.path("starting"), &["read"]);
    let refusal = inject(program.child.id(), &built.request()).unwrap_err().to_string();
    assert!(refusal.contains("has not loaded a C library"), "{refusal}");
    assert_eq!(program.end(), (String::new(), Some(7)));
}

#[test]
fn a_program_without_its_first_thread_is_not_called_ended() {
    let built = Built::new();
    let program = Running::new(&built.path("program"), &["first-ends"]);
    let refusal = inject(program.child.id(), &built.request()).unwrap_err().to_string();
    assert!(refusal.contains("its first thread has ended"), "{refusal}");
    assert_eq!(program.end(), (String::new(), Some(7)));
}

/// A thread that holds a lock of libc would wait for itself in `pthread_create`.
#[test]
fn a_thread_that_may_hold_a_lock_is_left_alone() {
    let built = Built::new();
    for (word, expected) in [
        ("linker", "is in a function of libc that takes locks"),
        ("handler", "is in a function of libc that takes locks"),
        ("allocator", "is in the allocator"),
    ] {
        let program = Running::new(&built.path("program"), &[word]);
        let refusal = inject(program.child.id(), &built.request()).unwrap_err().to_string();
        assert!(refusal.starts_with("none of its threads could be used within"), "{word}: {refusal}");
        assert!(refusal.ends_with(expected), "{word}: {refusal}");
        assert!(!program.maps().contains("libcounted.so"));
        assert_eq!(program.end(), ("ready\nodd 0\n".into(), Some(7)), "{word}");
    }
}

#[test]
fn a_filter_that_would_kill_the_program_is_found_first() {
    let built = Built::new();
    let program = Running::new(&built.path("program"), &["mild-filter"]);
    match inject(program.child.id(), &built.request()) {
        Err(error) if error.to_string().contains("cannot be examined") => println!("skipped: {error}"),
        answer => assert_eq!(answer, Ok(5)),
    }
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
    let program = Running::new(&built.path("program"), &["killing-filter"]);
    let refusal = inject(program.child.id(), &built.request()).unwrap_err().to_string();
    assert!(
        refusal.contains("would kill it for calling connect") || refusal.contains("cannot be examined"),
        "{refusal}"
    );
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
}

#[test]
fn a_stopped_program_stays_stopped() {
    let built = Built::new();
    let program = Running::new(&built.path("program"), &["read"]);
    let pid = program.child.id();
    let signal =
        |signal: &str| assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    signal("-STOP");
    while !state().contains(") T ") {}
    assert!(inject(pid, &built.request()).unwrap_err().to_string().contains("is stopped"));
    assert!(state().contains(") T "));
    signal("-CONT");
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
}

/// Linux lets go of what we hold when we are killed.
#[test]
fn a_killed_tracer_changes_nothing() {
    const PID: &str = "XPUTRACE_TEST_PID";
    const LIBRARY_VARIABLE: &str = "XPUTRACE_TEST_LIBRARY";
    if let Ok(pid) = std::env::var(PID) {
        let library = PathBuf::from(std::env::var(LIBRARY_VARIABLE).unwrap());
        let request = Request { library, symbol: "count", argument: "5".into() };
        loop {
            let _ = inject(pid.parse().unwrap(), &request);
        }
    }
    let built = Built::new();
    // Not "epoll": Linux ends such calls if we are killed while the thread is stopped.
    let program = Running::new(&built.path("program"), &["spin", "compute", "allocate", "nap", "threads"]);
    for round in 0..60u64 {
        let mut tracer = Command::new(std::env::current_exe().unwrap());
        tracer.args(["a_killed_tracer_changes_nothing", "--exact"]).stdout(Stdio::null());
        tracer.env(PID, program.child.id().to_string()).env(LIBRARY_VARIABLE, built.path("libcounted.so"));
        let mut tracer = tracer.spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_micros(2000 + 397 * round));
        tracer.kill().unwrap();
        tracer.wait().unwrap();
    }
    // Code that was left there is used for a few seconds more.
    let mut answer = inject(program.child.id(), &built.request());
    while answer.as_ref().is_err_and(|it| it.to_string().contains("try again")) {
        answer = inject(program.child.id(), &built.request());
    }
    assert_eq!(answer, Ok(5), "it is as before");
    assert_eq!(program.end(), ("odd 0\n".into(), Some(7)));
    std::io::stdout().flush().unwrap();
}
