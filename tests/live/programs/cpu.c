// Calls its own functions or libc's, depending on the first argument:
//   work THREADS N     each thread prints `tid T` and calls work(i) for i = 1…N, and other(i) at every tenth
//   texts              calls say() with "hello", with 300 times x, and with address 8
//   malloc N SIZE      makes that many allocations
//   io N               makes that many reads of /dev/zero and writes to /dev/null
//   busy THREADS       each thread calls work() until a line of input comes; prints `calls N`
//   nap N              sleeps N times
//   switches N         a child sleeps N times; prints `switches AT_LEAST AT_MOST`, by Linux's own count, and `child PID`
//   burn MS            is busy in burn() for that much CPU time
//   fork CHILDREN N    each child calls work() N times
//   brief CHILDREN N   one child after the other calls work() N times and exits, in less than 2 ms
//   pairs CHILDREN     one child after the other calls work() and then other(), and exits
//   deep DEPTH N       calls down(), which calls itself to that depth, N times
//   flood              calls work() until it is killed
// With `hold` as an additional first argument, prints `ready PID` and waits for a line of input first.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) long work(long i) { __asm__ volatile("" : "+r"(i)); return 2 * i; }
__attribute__((noinline)) long other(long i) { __asm__ volatile("" : "+r"(i)); return 3 * i; }
__attribute__((noinline)) void say(const char *text) { __asm__ volatile("" : : "r"(text)); }
__attribute__((noinline)) long burn(long n) { volatile long x = 0; for (long i = 0; i < n; i++) x += i; return x; }

__attribute__((noinline)) long down(long n) { __asm__ volatile("" : "+r"(n)); return n <= 1 ? n : down(n - 1) + n; }

static long calls;
static void *worker(void *unused) {
  printf("tid %ld\n", syscall(SYS_gettid)); fflush(stdout);
  for (long i = 1; i <= calls; i++) { work(i); if (i % 10 == 0) other(i); }
  return 0;
}
static void work_all(int threads) {
  pthread_t ids[64];
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, worker, 0);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
}
static volatile int is_over;
static long all_calls;
static void *busy_worker(void *unused) {
  long n = 0;
  while (!is_over) work(++n);
  __sync_fetch_and_add(&all_calls, n);
  return 0;
}
static void busy(int threads) {
  pthread_t ids[64]; char c;
  for (int i = 0; i < threads; i++) pthread_create(&ids[i], 0, busy_worker, 0);
  read(0, &c, 1); is_over = 1;
  for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
  printf("calls %ld\n", all_calls);
}
static void nap(long times) { struct timespec t = {0, 1000000}; while (times-- > 0) nanosleep(&t, 0); }
static long switches(struct rusage *use) { return use->ru_nvcsw + use->ru_nivcsw; }
// The child reads its counts at two moments, the parent those of its whole life except the last switch.
static void count_switches(long naps) {
  struct rusage use; long at_least, at_most; int pipes[2]; pipe(pipes);
  pid_t child = fork();
  if (!child) {
    getrusage(RUSAGE_SELF, &use); at_least = -switches(&use); nap(naps);
    getrusage(RUSAGE_SELF, &use); at_least += switches(&use);
    write(pipes[1], &at_least, sizeof at_least); _exit(0);
  }
  read(pipes[0], &at_least, sizeof at_least); wait4(child, 0, 0, &use); at_most = switches(&use) + 1;
  printf("switches %ld %ld\nchild %d\n", at_least, at_most, child);
}
int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "hold")) { char c; printf("ready %d\n", getpid()); fflush(stdout); read(0, &c, 1); argv++; argc--; }
  const char *mode = argc > 1 ? argv[1] : ""; long a = argc > 2 ? atol(argv[2]) : 0, b = argc > 3 ? atol(argv[3]) : 0;
  if (!strcmp(mode, "work")) { calls = b; work_all(a); }
  if (!strcmp(mode, "texts")) { static char x[301]; memset(x, 'x', 300); say("hello"); say(x); say((char *)8); }
  if (!strcmp(mode, "malloc")) for (long i = 0; i < a; i++) { void *p = malloc(b); __asm__ volatile("" : "+r"(p)); free(p); }
  if (!strcmp(mode, "io")) { char c[16]; int z = open("/dev/zero", O_RDONLY), n = open("/dev/null", O_WRONLY);
    for (long i = 0; i < a; i++) { read(z, c, sizeof c); write(n, c, sizeof c); } }
  if (!strcmp(mode, "busy")) busy(a);
  if (!strcmp(mode, "nap")) nap(a);
  if (!strcmp(mode, "switches")) count_switches(a);
  if (!strcmp(mode, "burn")) { struct timespec t; do { burn(1000000); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < a); }
  if (!strcmp(mode, "fork")) { for (long i = 0; i < a; i++) if (!fork()) { for (long j = 1; j <= b; j++) work(j); _exit(0); } while (wait(0) > 0); }
  if (!strcmp(mode, "brief")) for (long i = 0; i < a; i++) { if (!fork()) { for (long j = 1; j <= b; j++) work(j); _exit(0); } wait(0); }
  if (!strcmp(mode, "pairs")) for (long i = 0; i < a; i++) { if (!fork()) { work(i); other(i); _exit(0); } wait(0); }
  if (!strcmp(mode, "deep")) for (long i = 0; i < b; i++) down(a);
  if (!strcmp(mode, "flood")) for (long i = 1;; i++) work(i);
  return 0;
}
