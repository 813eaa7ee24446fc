// Graphs without a kernel, with one in a child graph, with a disabled one, and with one in a conditional body.
//
//   ./contents [LAUNCHES of each]      prints its own account as JSON
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
__global__ void step(float *p) { p[threadIdx.x] += 1; }
static float *p, *q;
static cudaStream_t s;
static void begin() { CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal)); }
static cudaGraph_t end() { cudaGraph_t g; CHECK(cudaStreamEndCapture(s, &g)); return g; }
static cudaGraph_t of_kernel() { begin(); step<<<1, 64, 0, s>>>(p); return end(); }
static cudaGraph_t of_copies() { begin(); CHECK(cudaMemsetAsync(p, 0, 256, s)); CHECK(cudaMemcpyAsync(q, p, 256, cudaMemcpyDeviceToDevice, s)); return end(); }
static cudaGraph_t of_child(cudaGraph_t child) { cudaGraph_t g; cudaGraphNode_t n; CHECK(cudaGraphCreate(&g, 0)); CHECK(cudaGraphAddChildGraphNode(&n, g, nullptr, 0, child)); return g; }
static cudaGraph_t of_condition(unsigned value) {
  cudaGraph_t g, body; cudaGraphNode_t n; cudaGraphConditionalHandle h; CHECK(cudaGraphCreate(&g, 0));
  CHECK(cudaGraphConditionalHandleCreate(&h, g, value, cudaGraphCondAssignDefault));
  cudaGraphNodeParams c = {}; c.type = cudaGraphNodeTypeConditional; c.conditional.handle = h; c.conditional.type = cudaGraphCondTypeIf; c.conditional.size = 1;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddNode(&n, g, nullptr, nullptr, 0, &c));
#else
  CHECK(cudaGraphAddNode(&n, g, nullptr, 0, &c));
#endif
  body = c.conditional.phGraph_out[0];
  void *arguments[] = {&p}; cudaKernelNodeParams k = {}; k.func = (void *)step; k.gridDim = dim3(1); k.blockDim = dim3(64); k.kernelParams = arguments;
  CHECK(cudaGraphAddKernelNode(&n, body, nullptr, 0, &k)); return g;
}
static void launch(cudaGraph_t g, int launches, bool off = false) {
  cudaGraphExec_t e; CHECK(cudaGraphInstantiate(&e, g, 0));
  if (off) { cudaGraphNode_t n; size_t one = 1; CHECK(cudaGraphGetNodes(g, &n, &one)); CHECK(cudaGraphNodeSetEnabled(e, n, 0)); }
  for (int i = 0; i < launches; i++) CHECK(cudaGraphLaunch(e, s));
  CHECK(cudaStreamSynchronize(s)); CHECK(cudaGraphExecDestroy(e));
}
int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 100;
  CHECK(cudaMalloc(&p, 4096)); CHECK(cudaMalloc(&q, 4096)); CHECK(cudaStreamCreate(&s)); step<<<1, 64, 0, s>>>(p);
  launch(of_kernel(), n); launch(of_child(of_kernel()), n); launch(of_condition(1), n);
  launch(of_copies(), n); launch(of_child(of_copies()), n);
  launch(of_kernel(), n, true); launch(of_condition(0), n); CHECK(cudaDeviceSynchronize());
  printf("{\"launches\": %d, \"with_kernel\": %d, \"without_kernel\": %d, \"not_known\": %d, \"in_condition\": %d}\n", 7 * n + 1, 2 * n + 1, 2 * n, 3 * n, n); return 0;
}
