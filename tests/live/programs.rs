//! C programs to trace that make exactly the calls they are told to.

use std::path::PathBuf;
use xputrace_tests::c_program;
use xputrace_tests::softgpu;

/// Calls of its own and of libc, by name of the mode:
///
/// | words | what it does |
/// |---|---|
/// | `work THREADS N` | each thread calls `work(i)` for i = 1…N, and prints `tid T` |
/// | `texts` | calls `say` with "hello", with 300 times x, and with address 8 |
/// | `malloc N SIZE` | that many allocations |
/// | `io N` | that many reads of `/dev/zero` and writes to `/dev/null` |
/// | `nap N` | sleeps so often, then prints `switches N`, the kernel's own count |
/// | `burn MS` | is busy in `burn` for so long |
/// | `fork CHILDREN N` | each child calls `work` N times |
/// | `brief CHILDREN N` | one child after the other calls `work` N times and is over, in less than 2 ms |
/// | `deep DEPTH N` | so often calls `down`, which calls itself to that depth |
/// | `flood` | calls `work` until it is killed |
///
/// `hold` in front waits for a line of input first.
pub fn cpu() -> PathBuf {
    c_program("cpu", CPU, &[])
}

/// Uses the CUDA runtime: `MALLOCS FREES COPIES SLOW QUICK`, kernels being `slow` (30 ms each) and `quick`.
pub fn cudart() -> PathBuf {
    let directory = softgpu().display().to_string();
    c_program("cudart", CUDART, &["-L", &directory, "-lcudart", "-ldl"])
}

const CPU: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
static long switches(void) {
  char line[256]; long sum = 0; FILE *f = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, f)) { char *p = strstr(line, "ctxt_switches:"); if (p) sum += atol(p + 14); }
  fclose(f); return sum;
}
int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "hold")) { char c; printf("ready %d\n", getpid()); fflush(stdout); read(0, &c, 1); argv++; argc--; }
  const char *mode = argc > 1 ? argv[1] : ""; long a = argc > 2 ? atol(argv[2]) : 0, b = argc > 3 ? atol(argv[3]) : 0;
  if (!strcmp(mode, "work")) { calls = b; work_all(a); }
  if (!strcmp(mode, "texts")) { static char x[301]; memset(x, 'x', 300); say("hello"); say(x); say((char *)8); }
  if (!strcmp(mode, "malloc")) for (long i = 0; i < a; i++) { void *p = malloc(b); __asm__ volatile("" : "+r"(p)); free(p); }
  if (!strcmp(mode, "io")) { char c[16]; int z = open("/dev/zero", O_RDONLY), n = open("/dev/null", O_WRONLY);
    for (long i = 0; i < a; i++) { read(z, c, sizeof c); write(n, c, sizeof c); } }
  if (!strcmp(mode, "nap")) { struct timespec t = {0, 1000000}; for (long i = 0; i < a; i++) nanosleep(&t, 0); printf("switches %ld\n", switches()); }
  if (!strcmp(mode, "burn")) { struct timespec t; do { burn(1000000); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_sec * 1000 + t.tv_nsec / 1000000 < a); }
  if (!strcmp(mode, "fork")) { for (long i = 0; i < a; i++) if (!fork()) { usleep(300000); for (long j = 1; j <= b; j++) work(j); _exit(0); } while (wait(0) > 0); }
  if (!strcmp(mode, "brief")) for (long i = 0; i < a; i++) { if (!fork()) { for (long j = 1; j <= b; j++) work(j); _exit(0); } wait(0); }
  if (!strcmp(mode, "deep")) for (long i = 0; i < b; i++) down(a);
  if (!strcmp(mode, "flood")) for (long i = 1;; i++) work(i);
  return 0;
}
"#;

const CUDART: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaDeviceSynchronize(void);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_slow(const SoftLaunch *c, void **args) { struct timespec t = {0, 30000000}; nanosleep(&t, 0); }
static void run_quick(const SoftLaunch *c, void **args) {}
static void slow(void) {}
static void quick(void) { __asm__ volatile(""); }
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static dim3 grid = {2, 1, 1}, block = {32, 1, 1};
__attribute__((noinline)) int launch_slow(void) { int r = cudaLaunchKernel((void *)slow, grid, block, 0, 0, 0); __asm__ volatile(""); return r; }
__attribute__((noinline)) int launch_quick(void) { int r = cudaLaunchKernel((void *)quick, grid, block, 0, 0, 0); __asm__ volatile(""); return r; }
static int many(int n, char **v) { return n > 0 ? atoi(v[n]) : 0; }
int main(int argc, char **argv) {
  int mallocs = atoi(argv[1]), frees = atoi(argv[2]), copies = atoi(argv[3]), slows = atoi(argv[4]), quicks = atoi(argv[5]), bad = 0;
  void **binary = __cudaRegisterFatBinary(&fatbin), *pointers[1000]; char host[64] = {0};
  __cudaRegisterFunction(binary, (char *)slow, "_Z4slowv", "_Z4slowv", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(binary, (char *)quick, "_Z5quickIiEvT_", "_Z5quickIiEvT_", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4slowv", run_slow, 0, 0);
  softgpu_register_kernel_params("_Z5quickIiEvT_", run_quick, 0, 0);
  for (int i = 0; i < mallocs; i++) bad |= cudaMalloc(&pointers[i], 64);
  for (int i = 0; i < copies; i++) bad |= cudaMemcpy(pointers[0], host, 64, 1);
  for (int i = 0; i < slows; i++) bad |= launch_slow();
  for (int i = 0; i < quicks; i++) bad |= launch_quick();
  bad |= cudaDeviceSynchronize();
  for (int i = 0; i < frees; i++) bad |= cudaFree(pointers[i]);
  printf("bad %d\n", bad);
  return bad != 0;
}
"#;
