// Launches a kernel and waits for it, N times, each time too late, for a reason:
//   lock N      waits for a lock that another thread has, in the function `wait_for_lock`
//   compute N   computes for 5 ms of CPU time
//   calls N     makes 20,000 system calls
//   crowded N   shares its CPU with a thread that computes, until that has had the CPU for 5 ms
// Prints for how many nanoseconds, at least, it was blocked, ran, and had no CPU; and how many calls failed.
// flags: -O1 -g -fno-omit-frame-pointer -rdynamic -L $SOFTGPU -lcudart -ldl -pthread
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
typedef void *Handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, Handle);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static char kernel;
static int bad, launcher, has_lock;
static volatile int is_over;
static long blocked, ran, crowded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
enum { WANTED = 5000000 };
static void run(const SoftLaunch *launch, void **args) {}
static long now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static void launch(void) {
  dim3 size = {1, 1, 1};
  bad += cudaLaunchKernel(&kernel, size, size, 0, 0, 0) | cudaDeviceSynchronize();
}
// Whether the thread that launches sleeps.
static int is_asleep(void) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", launcher);
  FILE *file = fopen(path, "r");
  char *end = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : 0;
  if (file) fclose(file);
  return end && end[2] == 'S';
}
// Has the lock until the other thread has waited for it.
static void *holder(void *unused) {
  pthread_mutex_lock(&lock);
  __atomic_store_n(&has_lock, 1, __ATOMIC_SEQ_CST);
  while (!is_asleep()) sched_yield();
  long since = now(CLOCK_MONOTONIC);
  while (now(CLOCK_MONOTONIC) - since < WANTED) {}
  blocked += now(CLOCK_MONOTONIC) - since;
  pthread_mutex_unlock(&lock);
  return 0;
}
// Linux may miss the caller of a function of the C library.
__attribute__((noinline)) void take_lock(void) { pthread_mutex_lock(&lock); asm volatile(""); }
__attribute__((noinline)) void wait_for_lock(void) {
  pthread_t thread;
  has_lock = 0;
  bad += pthread_create(&thread, 0, holder, 0);
  while (!__atomic_load_n(&has_lock, __ATOMIC_SEQ_CST)) {}
  take_lock();
  pthread_mutex_unlock(&lock);
  pthread_join(thread, 0);
}
static void compute(void) {
  long since = now(CLOCK_THREAD_CPUTIME_ID);
  while (now(CLOCK_THREAD_CPUTIME_ID) - since < WANTED) for (volatile int i = 0; i < 100000; i++) {}
  ran += now(CLOCK_THREAD_CPUTIME_ID) - since;
}
static void call(void) { for (int i = 0; i < 20000; i++) bad += syscall(SYS_getppid) < 0; }
static void *spin(void *unused) { while (!is_over) {} return 0; }
static void share(void) {
  long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID), without;
  do {
    for (volatile int i = 0; i < 100000; i++) {}
    without = now(CLOCK_MONOTONIC) - wall - (now(CLOCK_THREAD_CPUTIME_ID) - cpu);
  } while (without < WANTED);
  crowded += without;
}
int main(int argc, char **argv) {
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, &kernel, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run, 0, 0);
  launcher = getpid();
  launch();
  pthread_t thread;
  if (!strcmp(argv[1], "crowded")) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    bad += pthread_setaffinity_np(pthread_self(), sizeof one, &one) | pthread_create(&thread, 0, spin, 0);
  }
  for (int n = atoi(argv[2]); n; n--) {
    if (!strcmp(argv[1], "lock")) wait_for_lock();
    if (!strcmp(argv[1], "compute")) compute();
    if (!strcmp(argv[1], "calls")) call();
    if (!strcmp(argv[1], "crowded")) share();
    launch();
  }
  is_over = 1;
  if (!strcmp(argv[1], "crowded")) pthread_join(thread, 0);
  printf("blocked %ld ran %ld crowded %ld bad %d\n", blocked, ran, crowded, bad);
  return bad != 0;
}
