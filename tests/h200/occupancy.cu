// Kernels that need different amounts of registers and shared memory, launched with blocks of different sizes.
//
//   ./occupancy      prints how many blocks of each fit on a multiprocessor, as CUDA computes it, as JSON
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
// Keeps N values in registers: each depends on all loads, so none can be dropped.
template <int N, int SHARED> __global__ void keeps(float *p) {
  __shared__ float tile[SHARED / 4 + 1];
  float values[N];
#pragma unroll
  for (int i = 0; i < N; i++) values[i] = p[i * blockDim.x + threadIdx.x];
  tile[threadIdx.x % (SHARED / 4 + 1)] = values[0];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++) values[i] += values[(i * 7 + 3) % N] * tile[(threadIdx.x + i) % (SHARED / 4 + 1)];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; i++) p[i * blockDim.x + threadIdx.x] = values[i];
}
static float *p;
static int printed;
template <int N, int SHARED> static void launch(int threads, int dynamic) {
  auto kernel = keeps<N, SHARED>;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 16));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, dynamic));
  if (blocks == 0) return;
  kernel<<<1, threads, dynamic>>>(p);
  CHECK(cudaGetLastError());
  printf("%s\"keeps<%d, %d>,%d,%d\": %d", printed++ ? ", " : "{", N, SHARED, threads, dynamic, blocks);
}
template <int N> static void launch_all() {
  for (int threads : {1, 32, 33, 96, 128, 256, 288, 512, 768, 1024}) for (int dynamic : {0, 100, 4096, 20000, 65536}) {
    launch<N, 0>(threads, dynamic); launch<N, 16384>(threads, dynamic);
  }
}
int main() {
  CHECK(cudaMalloc(&p, 256 * 1024 * sizeof(float)));
  launch_all<2>(); launch_all<24>(); launch_all<40>(); launch_all<56>(); launch_all<100>(); launch_all<180>();
  CHECK(cudaDeviceSynchronize());
  printf("}\n");
}
