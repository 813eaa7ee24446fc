// Launches kernels on two GPUs in turn: `both LAUNCHES` on each.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void empty() {}
int main(int argc, char **argv) {
  for (int i = 0, n = atoi(argv[1]); i < 2 * n; i++) {
    if (cudaSetDevice(i % 2) != cudaSuccess) return 1;
    empty<<<1, 1>>>();
  }
  for (int device = 0; device < 2; device++) {
    cudaSetDevice(device);
    if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  }
  puts("done");
}
