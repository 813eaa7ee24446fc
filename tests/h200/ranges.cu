// Launches inside and outside of the program's own ranges, cudaProfilerStart to Stop and NVTX, with kernels
// that still run as a range ends.
//
//   ./ranges [RANGES] [LAUNCHES in each]     prints the launches inside as JSON
#include <cstdio>
#include <cstdlib>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>
__global__ void outside() { unsigned long long a, b; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a)); do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b)); while (b - a < 20000); }
__global__ void inside() { unsigned long long a, b; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(a)); do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(b)); while (b - a < 20000); }
int main(int argc, char **argv) {
  int ranges = argc > 1 ? atoi(argv[1]) : 50, n = argc > 2 ? atoi(argv[2]) : 20;
  for (int r = 0; r < ranges; r++) {
    for (int i = 0; i < n; i++) outside<<<1, 1>>>();
    cudaProfilerStart(); nvtxRangePushA("step");
    for (int i = 0; i < n; i++) inside<<<1, 1>>>();
    // Half of the ranges end while their kernels run.
    if (r % 2) cudaDeviceSynchronize();
    nvtxRangePop(); cudaProfilerStop();
  }
  cudaDeviceSynchronize();
  printf("{\"launches\": %d, \"ranges\": %d}\n", ranges * n, ranges); return cudaGetLastError();
}
