// Launches inside and outside of the program's own ranges, cudaProfilerStart to Stop and NVTX, with kernels
// that still run as a range ends.
//
// Then it marks a loss of 0.1 twice, as a double and as a float.
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
  nvtxEventAttributes_t loss = {};
  loss.version = NVTX_VERSION, loss.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE, loss.messageType = NVTX_MESSAGE_TYPE_ASCII;
  loss.message.ascii = "loss", loss.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE, loss.payload.dValue = 0.1;
  nvtxMarkEx(&loss);
  loss.payloadType = NVTX_PAYLOAD_TYPE_FLOAT, loss.payload.fValue = 0.1f;
  nvtxMarkEx(&loss);
  printf("{\"launches\": %d, \"ranges\": %d}\n", ranges * n, ranges); return cudaGetLastError();
}
