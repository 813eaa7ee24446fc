// Forks N children, twenty at a time, while two threads launch kernels. Of five children one ends at once, one runs this
// program anew and launches four kernels, one is killed, one asks CUDA for a launch, which must fail, and one calls exit.
// Prints how many kernels it launched and how many its children, and how many of these ended otherwise.
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
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
static int bad;
static pthread_barrier_t begun;
static volatile int done;
static long launched;
static int launch(void *stream) {
  dim3 one = {1, 1, 1};
  return cudaLaunchKernel((void *)step, one, one, 0, 0, stream);
}
static void *work(void *unused) {
  void *stream;
  long n = 0;
  int failed = cudaStreamCreate(&stream);
  failed |= launch(stream), n++;
  pthread_barrier_wait(&begun);
  while (!done) { failed |= launch(stream), n++; if (n % 16 == 0) failed |= cudaStreamSynchronize(stream), usleep(1000); }
  failed |= cudaStreamSynchronize(stream);
  __sync_fetch_and_add(&launched, n);
  __sync_fetch_and_or(&bad, failed);
  return 0;
}
static void child(int i, char *self) {
  switch (i % 5) {
    case 0: _exit(0);
    case 1: execl(self, self, "leaf", (char *)0); _exit(9);
    case 2: kill(getpid(), SIGKILL);
    case 3: _exit(launch(0) ? 0 : 9);
    case 4: exit(0);
  }
}
int main(int argc, char **argv) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  if (!strcmp(argv[1], "leaf")) {
    for (int i = 0; i < 4; i++) bad |= launch(0);
    bad |= cudaDeviceSynchronize();
    if (bad) _exit(9);
    return 0;
  }
  int n = atoi(argv[1]), status, wrong = 0, leaves = 0, started = 0;
  pthread_t two[2];
  pthread_barrier_init(&begun, 0, 3);
  for (int i = 0; i < 2; i++) pthread_create(&two[i], 0, work, 0);
  pthread_barrier_wait(&begun);
  for (int i = 0; i < n; i++) {
    pid_t pid = fork();
    if (!pid) child(i, argv[0]);
    if (pid < 0) return 7;
    leaves += i % 5 == 1;
    if (++started % 20 == 0) while (started) {
      if (wait(&status) < 0) return 8;
      started--;
      wrong += !(WIFEXITED(status) && WEXITSTATUS(status) == 0 || WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
  }
  while (started--) wait(&status);
  done = 1;
  for (int i = 0; i < 2; i++) pthread_join(two[i], 0);
  printf("launched %ld, of children %d, wrong %d, bad %d\n", launched, leaves * 4, wrong, bad);
  return bad || wrong;
}
