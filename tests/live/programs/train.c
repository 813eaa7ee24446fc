// Launches kernels, and profiles itself with libprofiler.so. Does what its arguments say, one after the other:
//   load            loads ./libprofiler.so; before the first launch that is as if it were linked
//   launch N        launches N kernels and waits for them
//   submit N        launches N kernels and does not wait
//   start WAY, stop profiles (libprofiler.so says how)
//   second, start2 WAY, stop2 the same by another copy of it, ./libprofiler2.so
//   back            under xputrace, or with ATTACHED in the environment: waits until kernels are recorded for it again
//   input           says that it waits for a line of standard input, and does
//   spin T, join    T threads launch all the time, until `join`
//   tell TEXT       prints a line
//   until FILE      launches kernels, one at a time, until the file exists
//   threads T N     T threads launch N kernels each, and wait for them
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
_Bool softgpu_records_kind(unsigned);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad, per_thread;
static void (*start)(const char *), (*stop)(void), (*start2)(const char *), (*stop2)(void);

static void submit(int n) {
  dim3 one = {1, 1, 1};
  while (n--) bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, 0);
}
static void *profiler(const char *name) {
  void *library = dlopen(name, RTLD_NOW);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(2);
  return library;
}
static void load(void) {
  void *library = profiler("./libprofiler.so");
  start = dlsym(library, "profile_start"), stop = dlsym(library, "profile_stop");
}
static void load_second(void) {
  void *library = profiler("./libprofiler2.so");
  start2 = dlsym(library, "profile_start"), stop2 = dlsym(library, "profile_stop");
}
static void *work(void *unused) { submit(per_thread); return 0; }
static void threads(int n) {
  pthread_t all[64];
  for (int i = 0; i < n; i++) pthread_create(&all[i], 0, work, 0);
  for (int i = 0; i < n; i++) pthread_join(all[i], 0);
  bad |= cudaDeviceSynchronize();
}
static void wait_for_records(void) {
  struct timespec pause = {0, 1000000};
  int is_traced = getenv("XPUTRACE_SOCKET") || getenv("ATTACHED");
  while (is_traced && !softgpu_records_kind(10)) nanosleep(&pause, 0);
}
static volatile int spinning;
static pthread_t spinners[64];
static void *spin_on(void *unused) {
  while (spinning) { submit(10); __sync_fetch_and_or(&bad, cudaDeviceSynchronize()); }
  return 0;
}
static void spin(int n) {
  spinning = n;
  for (int i = 0; i < n; i++) pthread_create(&spinners[i], 0, spin_on, 0);
}
static void join(void) {
  int n = spinning;
  spinning = 0;
  for (int i = 0; i < n; i++) pthread_join(spinners[i], 0);
}
static void until(const char *file) {
  struct timespec pause = {0, 1000000};
  while (access(file, 0)) submit(1), bad |= cudaDeviceSynchronize(), nanosleep(&pause, 0);
}
int main(int argc, char **argv) {
  for (char **at = argv + 1; *at; at++) {
    static int registered;
    if (!registered++ && !strcmp(*at, "load")) { load(); registered = 0; continue; }
    if (registered == 1) {
      __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
      softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
    }
    if (!strcmp(*at, "load")) load();
    else if (!strcmp(*at, "launch")) submit(atoi(*++at)), bad |= cudaDeviceSynchronize();
    else if (!strcmp(*at, "submit")) submit(atoi(*++at));
    else if (!strcmp(*at, "start")) start(*++at);
    else if (!strcmp(*at, "stop")) stop();
    else if (!strcmp(*at, "second")) load_second();
    else if (!strcmp(*at, "start2")) start2(*++at);
    else if (!strcmp(*at, "stop2")) stop2();
    else if (!strcmp(*at, "back")) wait_for_records();
    else if (!strcmp(*at, "input")) puts("waits"), fflush(stdout), getchar();
    else if (!strcmp(*at, "spin")) spin(atoi(*++at));
    else if (!strcmp(*at, "join")) join();
    else if (!strcmp(*at, "tell")) puts(*++at), fflush(stdout);
    else if (!strcmp(*at, "until")) until(*++at);
    else if (!strcmp(*at, "threads")) per_thread = atoi(at[2]), threads(atoi(at[1])), at += 2;
    else return fprintf(stderr, "unknown: %s\n", *at), 2;
  }
  if (bad) printf("bad %d\n", bad);
  return bad != 0;
}
