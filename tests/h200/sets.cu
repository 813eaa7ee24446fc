// Sets memory in all ways of the runtime and the driver, with kernels in between, and in a graph.
// Prints how often, how many bytes, and which values.
//
//   sets [ROUNDS]
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void nop() {}

static void check(cudaError_t it) {
  if (it != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(it)); exit(1); }
}
static void check(CUresult it) {
  if (it != CUDA_SUCCESS) { fprintf(stderr, "driver error %d\n", it); exit(1); }
}

int main(int argc, char **argv) {
  long rounds = argc > 1 ? atol(argv[1]) : 100;
  char *p;
  check(cudaMalloc(&p, 1 << 20));
  cudaStream_t s;
  check(cudaStreamCreate(&s));
  cudaGraph_t g;
  cudaGraphExec_t graph;
  check(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  check(cudaMemsetAsync(p, 4, 2048, s));
  nop<<<1, 1, 0, s>>>();
  check(cudaMemsetAsync(p, 6, 1024, s));
  check(cudaStreamEndCapture(s, &g));
  check(cudaGraphInstantiate(&graph, g, 0));

  for (long n = 0; n < rounds; n++) {
    check(cudaMemset(p, 7, 4096));
    check(cudaMemsetAsync(p, 1, 8192, s));
    check(cudaMemset2D(p, 512, 3, 128, 4));
    check(cudaMemset2DAsync(p, 512, 3, 128, 4, s));
    check(cudaMemset3D(make_cudaPitchedPtr(p, 256, 256, 4), 5, make_cudaExtent(64, 4, 2)));
    check(cuMemsetD8((CUdeviceptr)p, 9, 1000));
    check(cuMemsetD16Async((CUdeviceptr)p, 0x1234, 500, s));
    check(cuMemsetD32Async((CUdeviceptr)p, 0x12345678, 250, s));
    nop<<<1, 1>>>();
    check(cudaGraphLaunch(graph, s));
    if (n % 16 == 15) check(cudaDeviceSynchronize());
  }
  check(cudaDeviceSynchronize());
  printf("{\"sets\": %ld, \"set_calls\": %ld, \"set_bytes\": %ld, \"launches\": %ld, \"kernels\": %ld}\n",
         rounds * 10, rounds * 8, rounds * (4096 + 8192 + 512 + 512 + 512 + 1000 + 1000 + 1000 + 2048 + 1024), rounds * 2, rounds * 2);
  return 0;
}
