// Launches kernels in every way that can run a twin, checks their results, and prints how many threads a twin would count:
// `threads PROBED`, and of those that must run the original `original THREADS`. Usage: twins PTX [ROUNDS [PAUSE_MS]]
// PTX is this file's, for modules that are loaded as text.
#include <cuda.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include <chrono>

__device__ int bias;
__constant__ int factor;

extern "C" __global__ void scale(int *p, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) p[i] = p[i] * factor + bias;
}

extern "C" __global__ void reverse(int *p) {
  extern __shared__ int turned[];
  turned[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = turned[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void together(int *p) {
  cooperative_groups::this_grid().sync();
  atomicAdd(p, 1);
}

static long probed, failures;
#define CHECK(it) do { int r_ = (int)(it); if (r_) { printf("FAILED line %d: %s = %d\n", __LINE__, #it, r_); failures++; } } while (0)
#define SAME(a, b) do { long a_ = (a), b_ = (b); if (a_ != b_) { printf("WRONG line %d: %s is %ld, not %ld\n", __LINE__, #a, a_, b_); failures++; } } while (0)

const int BLOCKS = 8, THREADS = 128, N = BLOCKS * THREADS;

static int first(const int *p) { int v = -1; CHECK(cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost)); return v; }
static void set(int *p, int v) { std::vector<int> all(N, v); CHECK(cudaMemcpy(p, all.data(), N * 4, cudaMemcpyHostToDevice)); }
static void use(int f, int b) { CHECK(cudaMemcpyToSymbol(factor, &f, 4)); CHECK(cudaMemcpyToSymbol(bias, &b, 4)); }

static void by_runtime(int *p) {
  for (int i = 0; i < 10; i++) {
    use(2 + i, 5 - i);
    set(p, 3);
    scale<<<BLOCKS, THREADS>>>(p, N);
    CHECK(cudaGetLastError());
    probed += N;
    SAME(first(p), 3 * (2 + i) + 5 - i);
  }
}

static void with_shared(int *p) {
  for (int bytes : {2048, 60 << 10, 90 << 10}) {
    std::vector<int> all(512);
    for (int i = 0; i < 512; i++) all[i] = i;
    CHECK(cudaMemcpy(p, all.data(), 2048, cudaMemcpyHostToDevice));
    CHECK(cudaFuncSetAttribute(reverse, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse<<<1, 512, bytes>>>(p);
    CHECK(cudaGetLastError());
    probed += 512;
    SAME(first(p), 511);
  }
}

static void cooperative(int *p) {
  set(p, 0);
  void *args[] = {&p};
  CHECK(cudaLaunchCooperativeKernel((void *)together, 4, 32, args, 0, 0));
  probed += 4 * 32;
  SAME(first(p), 4 * 32);
  SAME(cudaLaunchCooperativeKernel((void *)together, 1 << 20, 32, args, 0, 0), cudaErrorCooperativeLaunchTooLarge);
  cudaGetLastError();
}

static void captured(int *p) {
  cudaStream_t s;
  cudaGraph_t g;
  cudaGraphExec_t x;
  use(2, 1);
  set(p, 0);
  CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  scale<<<BLOCKS, THREADS, 0, s>>>(p, N);
  scale<<<BLOCKS, THREADS, 0, s>>>(p, N);
  CHECK(cudaStreamEndCapture(s, &g));
  cudaGraphNode_t nodes[2];
  size_t n = 2;
  CHECK(cudaGraphGetNodes(g, nodes, &n));
  cudaKernelNodeParams now = {};
  CHECK(cudaGraphKernelNodeGetParams(nodes[0], &now));
  SAME(now.func == (void *)scale, 1);
  CHECK(cudaGraphInstantiate(&x, g, 0));
  for (int i = 0; i < 5; i++) CHECK(cudaGraphLaunch(x, s));
  CHECK(cudaStreamSynchronize(s));
  probed += 10L * N;
  SAME(first(p), (1 << 10) - 1);
  CHECK(cudaGraphExecDestroy(x));
  CHECK(cudaGraphDestroy(g));
  CHECK(cudaStreamDestroy(s));
}

static void by_nodes(int *p) {
  cudaGraph_t g;
  cudaGraphExec_t x;
  cudaGraphNode_t node;
  int n = N;
  void *args[] = {&p, &n};
  cudaKernelNodeParams params = {};
  params.func = (void *)scale;
  params.gridDim = BLOCKS;
  params.blockDim = THREADS;
  params.kernelParams = args;
  use(1, 7);
  set(p, 0);
  CHECK(cudaGraphCreate(&g, 0));
  CHECK(cudaGraphAddKernelNode(&node, g, 0, 0, &params));
  cudaKernelNodeParams now = {};
  CHECK(cudaGraphKernelNodeGetParams(node, &now));
  SAME(now.func == (void *)scale, 1);
  CHECK(cudaGraphInstantiate(&x, g, 0));
  CHECK(cudaGraphLaunch(x, 0));
  CHECK(cudaDeviceSynchronize());
  SAME(first(p), 7);
  n = 1;
  CHECK(cudaGraphExecKernelNodeSetParams(x, node, &params));
  CHECK(cudaGraphLaunch(x, 0));
  CHECK(cudaDeviceSynchronize());
  SAME(first(p), 14);
  int last;
  CHECK(cudaMemcpy(&last, p + N - 1, 4, cudaMemcpyDeviceToHost));
  SAME(last, 7);
  probed += 2L * N;
  CHECK(cudaGraphExecDestroy(x));
  CHECK(cudaGraphDestroy(g));
}

// As a module and as a library, in the current context; by the driver's own calls.
static void by_driver(const std::string &ptx, bool as_library) {
  CUmodule m = 0;
  CUlibrary l = 0;
  CUfunction f;
  CUkernel k = 0;
  CUdeviceptr p, variable;
  size_t size;
  int b = 9, c = 3, n = N, v = -1;
  if (as_library) {
    CHECK(cuLibraryLoadData(&l, ptx.c_str(), 0, 0, 0, 0, 0, 0));
    CHECK(cuLibraryGetKernel(&k, l, "scale"));
    CHECK(cuKernelGetFunction(&f, k));
    CHECK(cuLibraryGetModule(&m, l));
  } else {
    CHECK(cuModuleLoadData(&m, ptx.c_str()));
    CHECK(cuModuleGetFunction(&f, m, "scale"));
  }
  CHECK(cuModuleGetGlobal(&variable, &size, m, "bias"));
  CHECK(cuMemcpyHtoD(variable, &b, 4));
  CHECK(cuModuleGetGlobal(&variable, &size, m, "factor"));
  CHECK(cuMemcpyHtoD(variable, &c, 4));
  CHECK(cuMemAlloc(&p, N * 4));
  CHECK(cuMemsetD32(p, 2, N));
  void *args[] = {&p, &n};
  CHECK(cuLaunchKernel(f, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, args, 0));
  CUlaunchConfig config = {};
  config.gridDimX = BLOCKS, config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = THREADS, config.blockDimY = config.blockDimZ = 1;
  CHECK(cuLaunchKernelEx(&config, as_library ? (CUfunction)k : f, args, 0));
  CHECK(cuMemcpyDtoH(&v, p, 4));
  SAME(v, (2 * 3 + 9) * 3 + 9);
  probed += 2L * N;
  CHECK(cuMemFree(p));
  CHECK(as_library ? cuLibraryUnload(l) : cuModuleUnload(m));
}

static void in_another_context(const std::string &ptx) {
  CUcontext before, another;
  CUdevice device;
  CHECK(cuCtxGetCurrent(&before));
  CHECK(cuDeviceGet(&device, 0));
#if CUDA_VERSION >= 13000
  CHECK(cuCtxCreate(&another, 0, 0, device));
#else
  CHECK(cuCtxCreate(&another, 0, device));
#endif
  by_driver(ptx, false);
  by_driver(ptx, true);
  CHECK(cuCtxDestroy(another));
  CHECK(cuCtxSetCurrent(before));
}

static void by_threads() {
  std::vector<std::thread> all;
  for (int t = 0; t < 4; t++) all.emplace_back([] {
    int *p;
    cudaStream_t s;
    CHECK(cudaMalloc(&p, N * 4));
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 1000; i++) scale<<<BLOCKS, THREADS, 0, s>>>(p, N);
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaFree(p));
    CHECK(cudaStreamDestroy(s));
  });
  for (auto &it : all) it.join();
  probed += 4L * 1000 * N;
}

static void time_launches(int *p) {
  double best = 1e9;
  for (int round = 0; round < 5; round++) {
    CHECK(cudaDeviceSynchronize());
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 2000; i++) scale<<<1, 32>>>(p, 0);
    double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - began).count() / 2000;
    if (ns < best) best = ns;
  }
  CHECK(cudaDeviceSynchronize());
  probed += 5L * 2000 * 32;
  printf("launch %.0f ns\n", best);
}

int main(int argc, char **argv) {
  std::ifstream file(argc > 1 ? argv[1] : "twins.ptx");
  std::stringstream text;
  text << file.rdbuf();
  std::string ptx = text.str();
  int rounds = argc > 2 ? atoi(argv[2]) : 1, pause_ms = argc > 3 ? atoi(argv[3]) : 0;
  int *p;
  CHECK(cudaMalloc(&p, N * 4));
  for (int round = 0; round < rounds; round++) {
    by_runtime(p);
    with_shared(p);
    cooperative(p);
    captured(p);
    by_nodes(p);
    by_driver(ptx, false);
    by_driver(ptx, true);
    in_another_context(ptx);
    by_threads();
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  time_launches(p);
  CHECK(cudaFree(p));
  printf("threads %ld\nfailures %ld\n", probed, failures);
  return failures ? 1 : 0;
}
