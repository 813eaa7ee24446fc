// Threads that serve requests, each on its own stream: the workload for tags and exactness.
//
//   nvcc -O2 -arch=native -cudart shared|static -Xcompiler -fno-omit-frame-pointer,-pthread -o requests requests.cu
//   ./requests [THREADS] [REQUESTS per thread] [LAUNCHES per request]
//
// A uprobe on `handle_request(id)` provides the tag. Each request launches its kernels, the last of which
// times itself. Prints its own account as JSON at exit.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include <cuda_runtime.h>
#define NOINLINE __attribute__((noinline))
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
static std::atomic<long> n_launches{0};
__device__ unsigned long long self_timed_ns;
__global__ void work(float *p, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = p[i] * 1.0001f + 1.0f; }
// Times itself with the GPU's global timer; the sum is compared with the tracer's.
__global__ void self_timed(float *p, int rounds) {
  unsigned long long a, b; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a));
  for (int i = 0; i < rounds; i++) p[threadIdx.x] = sqrtf(p[threadIdx.x] + i);
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b)); if (threadIdx.x == 0) atomicAdd(&self_timed_ns, b - a);
}
NOINLINE void compute(float *p, cudaStream_t s, int launches) { for (int i = 0; i < launches; i++) { work<<<1, 64, 0, s>>>(p, 64); n_launches++; } }
extern "C" NOINLINE void handle_request(long id, float *p, cudaStream_t s, int launches, int timed) {
  compute(p, s, launches); if (timed) { self_timed<<<1, 32, 0, s>>>(p, 20000); n_launches++; } asm volatile("" ::"r"(id));
}
NOINLINE void serve(int thread, int requests, int launches, int timed) {
  float *p; cudaStream_t s; CHECK(cudaMalloc(&p, 4096)); CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); CHECK(cudaMemset(p, 0, 4096));
  for (int r = 0; r < requests; r++) { handle_request(1 + (thread * requests + r) % 8, p, s, launches, timed); if (r % 32 == 31) CHECK(cudaStreamSynchronize(s)); }
  CHECK(cudaStreamSynchronize(s));
}
int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4, requests = argc > 2 ? atoi(argv[2]) : 250, launches = argc > 3 ? atoi(argv[3]) : 4, timed = argc > 4 ? atoi(argv[4]) : 1;
  CHECK(cudaFree(0)); std::vector<std::thread> all; timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
  for (int t = 0; t < threads; t++) all.emplace_back(serve, t, requests, launches, timed);
  for (auto &t : all) t.join();
  CHECK(cudaDeviceSynchronize()); CHECK(cudaGetLastError()); clock_gettime(CLOCK_MONOTONIC, &b);
  unsigned long long ns = 0; CHECK(cudaMemcpyFromSymbol(&ns, self_timed_ns, 8)); double s = (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) / 1e9;
  printf("{\"launches\": %ld, \"requests\": %d, \"self_timed_ns\": %llu, \"launches_per_second\": %.0f}\n", n_launches.load(), threads * requests, ns, n_launches / s); return 0;
}
