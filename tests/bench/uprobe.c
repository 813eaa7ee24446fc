// Measures what a uprobe costs the probed program, and how long its tool takes to attach.
//
//   uprobe bare CALLS        prints the ns of a call without a probe
//   uprobe CALLS TOOL ARGS…  runs TOOL on a child that calls `probed_function`; `PID` among ARGS is the
//                            child's id. Prints one line:
//     ns of CPU time per call │ ms from the tool's exec to the first breakpoint │ ms from SIGINT to the
//     tool's exit │ the tool's peak memory in KiB
//
// The function starts with `push %rbp`, which Linux emulates, and is called five frames deep.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION __attribute__((noinline, noclone))
// Prevents the compiler from turning the last call into a jump.
#define STAY __asm__ volatile("")

// Sets up a frame although it needs none.
#define FRAME __asm__ volatile("" ::"r"(__builtin_frame_address(0)))

FUNCTION long probed(long value) __asm__("probed_function");
FUNCTION long probed(long value) { FRAME; return value ^ 7; }

FUNCTION static long third(long value) { long it = probed(value); STAY; return it + 1; }
FUNCTION static long second(long value) { long it = third(value); STAY; return it + 1; }
FUNCTION static long first(long value) { long it = second(value); STAY; return it + 1; }

static long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static long now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static void sleep_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

// Counts only this thread's CPU time, so that other programs hardly matter.
static double ns_per_call(long calls) {
    volatile long sink = 0;
    for (long i = 0; i < 1000; i++) sink = sink + first(i);
    long start = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < calls; i++) sink = sink + first(i & 1023);
    return (double)(clock_ns(CLOCK_THREAD_CPUTIME_ID) - start) / calls;
}

// Covers enough of a function to see a breakpoint at its entry or at its `ret`.
struct code { unsigned char bytes[48]; };

static struct code code_now(void) {
    struct code code;
    const volatile unsigned char *at = (void *)probed;
    for (size_t i = 0; i < sizeof code; i++) code.bytes[i] = at[i];
    return code;
}

static int has_breakpoint(const struct code *before) {
    struct code now = code_now();
    return memcmp(&now, before, sizeof now) != 0;
}

// Waits for the breakpoint, lets the tool finish attaching, and measures. Runs on the last CPU.
static void target(long calls, int ready, int out) {
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
    sched_setaffinity(0, sizeof last, &last);
    struct code before = code_now();
    char byte = 1;
    if (write(ready, &byte, 1) != 1) _exit(1);
    long give_up = now_ns() + 30000000000L;
    while (!has_breakpoint(&before)) {
        if (now_ns() > give_up) _exit(2);
        struct timespec pause = {0, 100000};
        nanosleep(&pause, NULL);
    }
    long attached = now_ns();
    sleep_ms(500);
    double ns = ns_per_call(calls);
    char line[64];
    int length = snprintf(line, sizeof line, "%ld %.2f\n", attached, ns);
    if (write(out, line, length) != length) _exit(1);
    pause();
}

static pid_t start_target(long calls, int *out) {
    int ready[2], result[2];
    char byte;
    if (pipe2(ready, O_CLOEXEC) || pipe2(result, O_CLOEXEC)) exit(1);
    pid_t pid = fork();
    if (pid == 0) target(calls, ready[1], result[1]);
    close(result[1]);
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) exit(1);
    *out = result[0];
    return pid;
}

static pid_t start_tool(char **arguments, pid_t target) {
    static char id[16];
    snprintf(id, sizeof id, "%d", target);
    for (char **it = arguments; *it; it++)
        if (!strcmp(*it, "PID")) *it = id;
    pid_t pid = fork();
    if (pid == 0) {
        const char *log = getenv("TOOL_LOG");
        int to = open(log ? log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0644);
        dup2(to, 1);
        dup2(to, 2);
        execvp(arguments[0], arguments);
        _exit(127);
    }
    return pid;
}

// Interrupts the tool until it ends: bpftrace 0.17 may miss the first SIGINT. Writes what the tool used, and returns the
// time of the SIGINT that it took.
static long end(pid_t tool, struct rusage *used) {
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ended, NULL);
    for (;;) {
        long interrupted = now_ns();
        kill(tool, SIGINT);
        for (struct timespec patience = {5, 0}; ; ) {
            pid_t done = wait4(tool, NULL, WNOHANG, used);
            if (done == tool) return interrupted;
            if (done < 0) exit(1);
            if (sigtimedwait(&ended, NULL, &patience) < 0) break;
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    if (!strcmp(argv[1], "bare")) {
        printf("%.2f\n", ns_per_call(atol(argv[2])));
        return 0;
    }
    int out;
    pid_t child = start_target(atol(argv[1]), &out);
    long started = now_ns();
    pid_t tool = start_tool(argv + 2, child);
    char line[64] = "";
    long attached;
    double ns;
    if (read(out, line, sizeof line - 1) <= 0 || sscanf(line, "%ld %lf", &attached, &ns) != 2) {
        fprintf(stderr, "the tool attached nothing: %s\n", argv[2]);
        kill(child, SIGKILL);
        kill(tool, SIGKILL);
        return 1;
    }
    struct rusage used;
    long interrupted = end(tool, &used);
    long ended = now_ns();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("%.2f %.1f %.1f %ld\n", ns, (attached - started) / 1e6, (ended - interrupted) / 1e6, used.ru_maxrss);
    return 0;
}
