//! A C program as a compiler would start it, and a tool that the driver loads into it. Needs `cc`;
//! without it the test says so and passes.

use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaMemset(void *, int, size_t);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaDeviceSynchronize(void), cudaGetLastError(void);
int cudaEventCreate(void **), cudaEventRecord(void *, void *), cudaEventSynchronize(void *), cudaEventElapsedTime(float *, void *, void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *), cudaGetDeviceProperties(void *, int), cudaGetDeviceCount(int *);
const char *cudaGetErrorString(int);
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *);
int __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void **);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);

static void run_add(const SoftLaunch *c, void **args) {
  int *p = *(int **)args[0], by = *(int *)args[1];
  for (unsigned t = 0; t < c->block[0]; t++) p[c->block_idx[0] * c->block[0] + t] += by + c->shared_bytes;
}
/* What a compiler makes of __global__ void add(int *, int). */
static void add(int *p, int by) {
  void *args[] = {&p, &by}; dim3 grid, block; size_t shared; void *stream;
  if (__cudaPopCallConfiguration(&grid, &block, &shared, &stream)) return;
  cudaLaunchKernel((void *)add, grid, block, args, shared, stream);
}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
#define CHECK(call) do { int r = (call); if (r) { printf("%s: %d %s\n", #call, r, cudaGetErrorString(r)); return 1; } } while (0)
int main(void) {
  static char properties[4096]; int count = 0, host[64] = {0}; void *p, *stream, *a, *b; float ms = -1;
  size_t sizes[] = {sizeof(int *), sizeof(int)};
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, (char *)add, "_Z3addPii", "_Z3addPii", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z3addPii", run_add, sizes, 2);
  CHECK(cudaGetDeviceCount(&count)); CHECK(cudaGetDeviceProperties(properties, 0));
  CHECK(cudaMalloc(&p, sizeof host)); CHECK(cudaMemset(p, 0, sizeof host));
  CHECK(cudaStreamCreate(&stream)); CHECK(cudaEventCreate(&a)); CHECK(cudaEventCreate(&b));
  CHECK(cudaEventRecord(a, stream));
  dim3 grid = {4, 1, 1}, block = {16, 1, 1};
  for (int i = 0; i < 3; i++) if (!__cudaPushCallConfiguration(grid, block, 100, stream)) add(p, 5);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(b, stream)); CHECK(cudaEventSynchronize(b)); CHECK(cudaEventElapsedTime(&ms, a, b));
  CHECK(cudaMemcpy(host, p, sizeof host, 2)); CHECK(cudaFree(p)); CHECK(cudaDeviceSynchronize());
  printf("device %s count %d first %d last %d ordered %d bad pointer: %s\n", properties, count, host[0], host[63], ms >= 0, cudaGetErrorString(cudaFree((void *)8)));
  printf("one library: %d\n", dlopen("libcupti.so.13", RTLD_NOW | RTLD_NOLOAD) == dlopen("libcuda.so.1", RTLD_NOW));
  return 0;
}
"#;

const TOOL: &str = r#"
#include <stdio.h>
#include <stdint.h>
static int launches; static void *subscriber;
int cuptiSubscribe(void **, void (*)(void *, int, int, const int *), void *), cuptiEnableCallback(unsigned, void *, int, int);
static void seen(void *user, int domain, int id, const int *data) { if (data[0] == 0 && ++launches == 3) printf("tool: third launch\n"); }
int InitializeInjection(void) { printf("tool: loaded %d", cuptiSubscribe(&subscriber, seen, 0)); printf(" %d\n", cuptiEnableCallback(1, subscriber, 1, 307)); return 1; }
"#;

#[allow(clippy::print_stderr, reason = "a test says why it did not run")]
fn compile(directory: &Path, source: &str, name: &str, flags: &[&str]) -> Option<std::path::PathBuf> {
    let (input, output) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&input, source).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-w").arg("-o").arg(&output).arg(&input).arg("-L").arg(directory).args(flags);
    match cc.output() {
        Err(error) => {
            eprintln!("not tested: cc: {error}");
            None
        }
        Ok(done) => {
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            Some(output)
        }
    }
}

fn output(program: &Path, directory: &Path, environment: &[(&str, &Path)]) -> String {
    let Output { stdout, stderr, status } =
        Command::new(program).env("LD_LIBRARY_PATH", directory).envs(environment.iter().copied()).output().unwrap();
    assert!(status.success(), "{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

const EXPECTED: &str =
    "device xputrace software GPU count 1 first 315 last 315 ordered 1 bad pointer: invalid argument\none library: 1\n";

#[test]
fn runs_and_is_seen_by_a_tool() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    xputrace_softgpu::install(directory).unwrap();
    let Some(program) = compile(directory, PROGRAM, "program", &["-lcudart", "-ldl"]) else {
        return;
    };
    assert_eq!(output(&program, directory, &[]), EXPECTED);
    let tool = compile(directory, TOOL, "tool.so", &["-shared", "-fPIC", "-lcupti"]).unwrap();
    let traced = output(&program, directory, &[("CUDA_INJECTION64_PATH", &tool)]);
    assert_eq!(traced, format!("tool: loaded 0 0\ntool: third launch\n{EXPECTED}"));
}

const COUNTER: &str = r#"
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int records, timeless, failed; static size_t dropped; static volatile int delivered; static void *subscriber;
int cuptiSubscribe(void **, void (*)(void *, int, int, const void *), void *), cuptiGetVersion(uint32_t *);
int cuptiActivityRegisterCallbacks(void (*)(uint8_t **, size_t *, size_t *), void (*)(void *, uint32_t, uint8_t *, size_t, size_t));
int cuptiActivityEnable(int), cuptiActivityFlushAll(uint32_t), cuptiActivityGetNumDroppedRecords(void *, uint32_t, size_t *);
int cuptiActivityGetNextRecord(uint8_t *, size_t, uint8_t **);
static void seen(void *user, int domain, int id, const void *data) {}
static void request(uint8_t **buffer, size_t *size, size_t *records) { *size = 4096; *buffer = calloc(1, *size); *records = 0; }
static void complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  uint8_t *record = 0; uint64_t start;
  while (!cuptiActivityGetNextRecord(buffer, valid, &record)) { memcpy(&start, record + 16, 8); records++; timeless += !start; }
  free(buffer); delivered = 1;
}
static void finish(void) {
  size_t lost = 0; int early;
  cuptiActivityFlushAll(0); early = records;
  for (int i = 0; i < 120000 && !delivered; i++) usleep(1000);
  cuptiActivityGetNumDroppedRecords(0, 0, &lost);
  printf("records %d at once %d timeless %d dropped %zu\n", records, early, timeless, lost);
}
int InitializeInjection(void) {
  uint32_t version = 0; cuptiGetVersion(&version);
  printf("version %u subscribed %d\n", version, cuptiSubscribe(&subscriber, seen, 0));
  cuptiActivityRegisterCallbacks(request, complete); cuptiActivityEnable(10); atexit(finish); return 1;
}
"#;

#[test]
fn knobs_make_the_faults_they_name() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    xputrace_softgpu::install(directory).unwrap();
    let Some(program) = compile(directory, PROGRAM, "program", &["-lcudart", "-ldl"]) else {
        return;
    };
    let tool = compile(directory, COUNTER, "counter.so", &["-shared", "-fPIC", "-lcupti"]).unwrap();
    let counted = |name: &str, value: &str| {
        let text = output(&program, directory, &[("CUDA_INJECTION64_PATH", &tool), (name, Path::new(value))]);
        let lines: Vec<&str> = text.lines().collect();
        format!("{}; {}", lines.first().unwrap(), lines.last().unwrap())
    };
    let all = "version 130001 subscribed 0; records 3 at once 3 timeless 0 dropped 0";
    assert_eq!(counted("SOFTGPU_VERBOSE_NOT", "1"), all);
    assert_eq!(counted("SOFTGPU_DROP", "1/3"), "version 130001 subscribed 0; records 2 at once 2 timeless 0 dropped 1");
    assert_eq!(
        counted("SOFTGPU_NO_TIMES", "1/2"),
        "version 130001 subscribed 0; records 3 at once 3 timeless 1 dropped 0"
    );
    assert_eq!(
        counted("SOFTGPU_LATE_MS", "700"),
        "version 130001 subscribed 0; records 3 at once 0 timeless 0 dropped 0"
    );
    assert_eq!(counted("SOFTGPU_CUPTI_VERSION", "28"), all.replace("130001", "28"));
    assert_eq!(counted("SOFTGPU_FAIL", "cuptiSubscribe:39"), all.replace("subscribed 0", "subscribed 39"));
    assert_eq!(counted("SOFTGPU_BUSY_NS", "1000000"), all);
}

const FORKER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int cuInit(unsigned), cuDriverGetVersion(int *);
static int inside[2], leave[2], parent, caller;
/* The parent's first call stays in the tool until it is told to leave. */
void loaded(void) { char c; if (getpid() == parent) { write(inside[1], "i", 1); read(leave[0], &c, 1); } }
static void *first_call(void *unused) { int version; caller = gettid(); cuDriverGetVersion(&version); return (void *)(long)cuInit(0); }
static void fork_child(const char *when) {
  int status; pid_t child = fork();
  if (child == 0) { dup2(open("/dev/null", O_WRONLY), 2); alarm(60); _exit(cuInit(0)); }
  waitpid(child, &status, 0);
  printf("%s: %s %d\n", when, WIFSIGNALED(status) ? "killed by" : "answer", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}
static void wait_for_complaint(void) {
  char path[64], text[64] = "";
  while (strncmp(text, "1 0x2 ", 6)) {
    usleep(1000);
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", *(volatile int *)&caller);
    FILE *file = fopen(path, "r");
    if (file) { fgets(text, sizeof text, file); fclose(file); }
  }
}
int main(void) {
  pthread_t thread; int complaints[2]; char c, text[4096] = ""; void *result;
  signal(SIGPIPE, SIG_IGN);
  pipe(inside); pipe(leave); pipe(complaints); parent = getpid();
  /* Standard error is a pipe that is full, so that complaints about variables block. */
  dup2(complaints[1], 2); fcntl(2, F_SETFL, O_NONBLOCK);
  while (write(2, text, sizeof text) > 0);
  fcntl(2, F_SETFL, 0);
  pthread_create(&thread, 0, first_call, 0);
  wait_for_complaint();
  fork_child("while variables are read");
  close(complaints[0]);
  read(inside[0], &c, 1);
  fork_child("while a tool is loaded");
  write(leave[1], "l", 1);
  pthread_join(thread, &result);
  printf("parent: answer %ld\n", (long)result);
  fork_child("later");
  return 0;
}
"#;

const FORKERS_TOOL: &str = "void loaded(void); int InitializeInjection(void) { loaded(); return 1; }";

/// NVIDIA's driver answers 3 (not initialized) in a child of a process that uses CUDA.
#[test]
fn a_child_forked_amid_the_first_call_of_another_thread_gets_an_answer() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    xputrace_softgpu::install(directory).unwrap();
    let Some(program) = compile(directory, FORKER, "forker", &["-rdynamic", "-pthread", "-lcuda"]) else {
        return;
    };
    let tool = compile(directory, FORKERS_TOOL, "tool.so", &["-shared", "-fPIC"]).unwrap();
    let text =
        output(&program, directory, &[("CUDA_INJECTION64_PATH", &tool), ("SOFTGPU_LATE_MS", Path::new("no number"))]);
    assert_eq!(
        text,
        "while variables are read: answer 0\nwhile a tool is loaded: answer 3\nparent: answer 0\nlater: answer 3\n"
    );
}
