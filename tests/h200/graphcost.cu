// Launches a graph of NODES empty kernels in a row, STRETCHES times LAUNCHES times, waiting after each launch. Prints, a line
// a stretch, the median microseconds of a launch call and of a launch with its wait.
//
//   graphcost NODES STRETCHES LAUNCHES
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_runtime.h>
#define CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1); } } while (0)
__global__ void empty() {}
static double now() { return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static double median(std::vector<double> all) { std::sort(all.begin(), all.end()); return all[all.size() / 2]; }
int main(int argc, char **argv) {
  int nodes = atoi(argv[1]), stretches = atoi(argv[2]), launches = atoi(argv[3]);
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; i++) empty<<<1, 1, 0, stream>>>();
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  for (int s = 0; s < stretches; s++) {
    std::vector<double> calls, wholes;
    for (int i = 0; i < launches; i++) {
      double start = now();
      CHECK(cudaGraphLaunch(exec, stream));
      double called = now();
      CHECK(cudaStreamSynchronize(stream));
      calls.push_back(called - start), wholes.push_back(now() - start);
    }
    printf("%.3f %.3f\n", median(calls), median(wholes));
  }
}
