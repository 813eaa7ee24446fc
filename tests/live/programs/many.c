// Launches from many threads, streams and processes. Does what its arguments say, one after the other, and prints how
// many launches were made in this process:
//   at-once T N     T threads launch N kernels each, all of them there at the same time
//   in-turn T N     T threads one after the other, each of which launches N kernels and ends
//   streams S N     S streams with N kernels each
//   fork CMD        a child runs this program anew with the one argument CMD, split at commas
//   fiber N         a coroutine with a stack of its own launches N kernels
//   received        waits for a datagram, with a time limit, after saying so; it comes once a line is typed
//   orphan          a child is forked, asks CUDA for a launch, which must fail, and ends
// flags: -L $SOFTGPU -lcudart -ldl -pthread
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaStreamCreate(void **), cudaStreamDestroy(void *), cudaStreamSynchronize(void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad;
static long launches;
static pthread_barrier_t together;

static void launch(int n, void *stream) {
  dim3 one = {1, 1, 1};
  while (n--) bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, stream), __sync_fetch_and_add(&launches, 1);
}
static void *in_turn(void *n) { launch((long)n, 0); return 0; }
static void *at_once(void *n) {
  launch(1, 0);
  pthread_barrier_wait(&together);
  launch((long)n - 1, 0);
  return 0;
}
static void all_at_once(int threads, long n) {
  pthread_t *all = calloc(threads, sizeof *all);
  pthread_barrier_init(&together, 0, threads);
  for (int i = 0; i < threads; i++) if (pthread_create(&all[i], 0, at_once, (void *)n)) exit(3);
  for (int i = 0; i < threads; i++) pthread_join(all[i], 0);
  free(all);
}
static void one_by_one(int threads, long n) {
  for (pthread_t one; threads--; pthread_join(one, 0)) if (pthread_create(&one, 0, in_turn, (void *)n)) exit(3);
}
static void streams(int count, int n) {
  void **all = calloc(count, sizeof *all);
  for (int i = 0; i < count; i++) bad |= cudaStreamCreate(&all[i]), launch(n, all[i]);
  for (int i = 0; i < count; i++) bad |= cudaStreamSynchronize(all[i]), bad |= cudaStreamDestroy(all[i]);
  free(all);
}
static void child(char *self, char *command) {
  char *arguments[64] = {self}, **to = arguments + 1;
  fflush(stdout);
  if (fork() == 0) {
    for (char *it = strtok(command, ","); it; it = strtok(0, ",")) *to++ = it;
    execv(self, arguments);
    _exit(4);
  }
  int status;
  wait(&status);
  bad |= status;
}
static ucontext_t thread, coroutine;
static int fiber_launches;
__attribute__((noinline)) static void in_fiber(void) {
  launch(fiber_launches, 0);
  swapcontext(&coroutine, &thread);
}
static void fiber(int n) {
  static char stack[256 << 10];
  fiber_launches = n;
  getcontext(&coroutine);
  coroutine.uc_stack.ss_sp = stack, coroutine.uc_stack.ss_size = sizeof stack;
  makecontext(&coroutine, in_fiber, 0);
  swapcontext(&thread, &coroutine);
}
static void receive(void) {
  int ends[2];
  char byte;
  struct timeval long_enough = {1000, 0};
  bad |= socketpair(AF_UNIX, SOCK_DGRAM, 0, ends);
  bad |= setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &long_enough, sizeof long_enough);
  fflush(stdout);
  if (fork() == 0) _exit(read(0, &byte, 1) != 1 || send(ends[1], &byte, 1, 0) != 1);
  puts("waits"), fflush(stdout);
  ssize_t n = recv(ends[0], &byte, 1, 0);
  printf("received %zd, %s\n", n, n < 0 ? strerror(errno) : "in time");
  wait(0);
}
static void orphan(void) {
  dim3 one = {1, 1, 1};
  fflush(stdout);
  if (fork() == 0) _exit(cudaLaunchKernel((void *)step, one, one, 0, 0, 0) == 0);
  int status;
  wait(&status);
  bad |= status;
}
int main(int argc, char **argv) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  for (char **at = argv + 1; *at; at++) {
    if (!strcmp(*at, "at-once")) all_at_once(atoi(at[1]), atol(at[2])), at += 2;
    else if (!strcmp(*at, "in-turn")) one_by_one(atoi(at[1]), atol(at[2])), at += 2;
    else if (!strcmp(*at, "streams")) streams(atoi(at[1]), atoi(at[2])), at += 2;
    else if (!strcmp(*at, "fork")) child(argv[0], *++at);
    else if (!strcmp(*at, "fiber")) fiber(atoi(*++at));
    else if (!strcmp(*at, "received")) receive();
    else if (!strcmp(*at, "orphan")) orphan();
    else return fprintf(stderr, "unknown: %s\n", *at), 2;
  }
  bad |= cudaDeviceSynchronize();
  printf("launches %ld, bad %d\n", launches, bad);
  return bad != 0;
}
