// The launch microbenchmark: nanoseconds per launch of an empty kernel, synchronized every 512.
//
//   ./loop [ROUNDS] [LAUNCHES per round] [THREADS]     prints one figure per round
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include <time.h>
#include <cuda_runtime.h>
__global__ void empty() {}
static double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
// Sixteen frames deep, so that there is a stack to walk.
template <int N> __attribute__((noinline)) void deeper(cudaStream_t s) { if constexpr (N > 0) { deeper<N - 1>(s); asm volatile(""); } else { empty<<<1, 1, 0, s>>>(); asm volatile(""); } }
__attribute__((noinline)) void loop(int n) { cudaStream_t s; cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking); for (int i = 0; i < n; i++) { deeper<10>(s); if (i % 512 == 511) cudaStreamSynchronize(s); } cudaStreamSynchronize(s); cudaStreamDestroy(s); }
int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 7, n = argc > 2 ? atoi(argv[2]) : 100000, threads = argc > 3 ? atoi(argv[3]) : 1; cudaFree(0); loop(5000);
  for (int r = 0; r < rounds; r++) { double t = now(); std::vector<std::thread> all; for (int i = 1; i < threads; i++) all.emplace_back(loop, n); loop(n); for (auto &t : all) t.join(); printf("%.1f\n", (now() - t) / n); }
  return cudaGetLastError();
}
