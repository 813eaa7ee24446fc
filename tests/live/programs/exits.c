// Launches N kernels from each of two threads, and ends without destroying anything. N HOW [wait] [CMD …], where HOW is
//   return, exit, _exit, quick_exit, abort, kill (SIGKILL), segv, exec (becomes CMD)
//   thread   main returns while another thread launches on
// With `wait`, it waits for the kernels before. Prints how many were launched.
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int n, bad;
static volatile long launched;
static int endless;
static void launch(void *stream) {
  dim3 one = {1, 1, 1};
  bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, stream);
  __sync_fetch_and_add(&launched, 1);
}
static void *work(void *unused) {
  void *stream;
  bad |= cudaStreamCreate(&stream);
  for (int i = 0; i < n; i++) launch(stream);
  bad |= cudaStreamSynchronize(stream);
  while (endless) launch(stream);
  return 0;
}
int main(int argc, char **argv) {
  n = atoi(argv[1]);
  char *how = argv[2], line[100];
  endless = !strcmp(how, "thread");
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  pthread_t other;
  pthread_create(&other, 0, work, 0);
  for (int i = 0; i < n; i++) launch(0);
  while (launched < 2 * n) {}
  if (argc > 3 && !strcmp(argv[3], "wait")) bad |= cudaDeviceSynchronize(), argv++;
  (void)!write(1, line, sprintf(line, "launched %ld, bad %d\n", 2L * n, bad));
  if (!strcmp(how, "exit")) exit(3);
  if (!strcmp(how, "_exit")) _exit(3);
  if (!strcmp(how, "quick_exit")) quick_exit(3);
  if (!strcmp(how, "abort")) abort();
  if (!strcmp(how, "kill")) kill(getpid(), SIGKILL);
  if (!strcmp(how, "segv")) *(volatile int *)8 = 1;
  if (!strcmp(how, "exec")) execvp(argv[3], argv + 3);
  return 3;
}
