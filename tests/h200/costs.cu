// What single calls of CUDA cost, in stretches, at each line `measure` of standard input; see costs.py. At `launches`, what a launch
// costs; see launches.py. Other lines are functions of LIBFLOOR that are called.
//
//   costs LIBFLOOR
//
// Prints, after `ready`, for each measurement the nanoseconds of each operation of OPERATIONS, of the best of 15 stretches; of a
// launch, of the best of 150.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <time.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
__global__ void empty() {}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
static cudaStream_t stream;
static char *device, *host;
template <int N> __attribute__((noinline)) void deeper() { if constexpr (N > 0) { deeper<N - 1>(); asm volatile(""); } else { empty<<<1, 1, 0, stream>>>(); asm volatile(""); } }
static void launch() { deeper<10>(); }
static void copy() { CHECK(cudaMemcpyAsync(device, host, 256, cudaMemcpyHostToDevice, stream)); }
static void set() { CHECK(cudaMemsetAsync(device, 0, 256, stream)); }
static void wait() { CHECK(cudaStreamSynchronize(stream)); }
static void allocate() { void *p; CHECK(cudaMallocAsync(&p, 4096, stream)); CHECK(cudaFreeAsync(p, stream)); }
static void range() { nvtxRangePushA("range"); nvtxRangePop(); }
static void query() { int device; CHECK(cudaGetDevice(&device)); }
// OPERATIONS of costs.py has the same order.
static void (*const operations[])() = {launch, copy, set, wait, allocate, range, query};
static double stretch(void (*operation)()) {
  // As many as the GPU takes without making the CPU wait.
  const int calls = 500;
  double begin = now();
  for (int i = 0; i < calls; i++) operation();
  double took = now() - begin;
  CHECK(cudaStreamSynchronize(stream));
  return took / calls;
}
static void measure(void (*operation)(), int stretches) {
  double best = 1e18;
  for (int i = 0; i < 3; i++) stretch(operation);
  for (int i = 0; i < stretches; i++) best = std::min(best, stretch(operation));
  printf("%.1f ", best);
}
static void measure() {
  for (auto operation : operations) measure(operation, 15);
  puts("");
}
int main(int, char **argv) {
  void *floor = dlopen(argv[1], RTLD_NOW);
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMalloc(&device, 4096));
  CHECK(cudaMallocHost(&host, 4096));
  setvbuf(stdout, nullptr, _IOLBF, 0);
  puts("ready");
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    line[strcspn(line, "\n")] = 0;
    if (!strcmp(line, "measure")) measure();
    else if (!strcmp(line, "launches")) { measure(launch, 150); puts(""); }
    else printf("%d\n", ((int (*)(void))dlsym(floor, line))());
  }
}
