// A captured graph launched in a loop: one launch, many kernels.
//
//   ./graphs [LAUNCHES] [KERNELS in the graph]      prints its own account as JSON
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
__global__ void step(float *p, int i) { p[threadIdx.x] += i; }
__global__ void reduce(float *p) { for (int o = 32; o; o >>= 1) { if (threadIdx.x < o) p[threadIdx.x] += p[threadIdx.x + o]; __syncthreads(); } }
__attribute__((noinline)) void replay(cudaGraphExec_t g, cudaStream_t s, int launches) { for (int i = 0; i < launches; i++) { CHECK(cudaGraphLaunch(g, s)); if (i % 64 == 63) CHECK(cudaStreamSynchronize(s)); } CHECK(cudaStreamSynchronize(s)); }
int main(int argc, char **argv) {
  int launches = argc > 1 ? atoi(argv[1]) : 2000, kernels = argc > 2 ? atoi(argv[2]) : 8; float *p; cudaStream_t s; cudaGraph_t g; cudaGraphExec_t e;
  CHECK(cudaMalloc(&p, 4096)); CHECK(cudaStreamCreate(&s)); step<<<1, 64, 0, s>>>(p, 0);
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); for (int i = 0; i < kernels - 1; i++) step<<<1, 64, 0, s>>>(p, i); reduce<<<1, 64, 0, s>>>(p);
  CHECK(cudaStreamEndCapture(s, &g)); CHECK(cudaGraphInstantiate(&e, g, 0)); replay(e, s, launches); CHECK(cudaDeviceSynchronize());
  printf("{\"launches\": %d, \"graph_launches\": %d, \"kernels\": %d, \"captured\": %d}\n", launches + 1, launches, launches * kernels + 1, kernels); return 0;
}
