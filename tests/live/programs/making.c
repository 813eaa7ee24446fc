// Makes graphs in every way but a capture alone, and launches each N times: says what it did.
//   making N [before|profiler]   `before`: waits for a line on its input when the graphs are made, before it launches them;
//                                `profiler`: launches them between cudaProfilerStart and cudaProfilerStop
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef void *Handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
typedef struct { void *function; dim3 grid, block; unsigned shared; void **params, **extra; } KernelNode;
typedef struct { void (*function)(void *); void *data; } HostNode;
typedef struct { int result; Handle error_node, error_from_node; } UpdateInfo;
int cudaMalloc(void **, size_t), cudaStreamCreate(Handle *), cudaDeviceSynchronize(void), cudaGraphClone(Handle *, Handle);
int cudaStreamBeginCapture(Handle, int), cudaStreamEndCapture(Handle, Handle *), cudaGraphInstantiate(Handle *, Handle, unsigned long long);
int cudaGraphLaunch(Handle, Handle), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, Handle), cudaGraphCreate(Handle *, unsigned);
int cudaGraphAddKernelNode(Handle *, Handle, const Handle *, size_t, const KernelNode *), cudaGraphGetNodes(Handle, Handle *, size_t *);
int cudaGraphAddChildGraphNode(Handle *, Handle, const Handle *, size_t, Handle), cudaGraphAddHostNode(Handle *, Handle, const Handle *, size_t, const HostNode *);
int cudaGraphExecUpdate(Handle, Handle, UpdateInfo *), cudaGraphExecKernelNodeSetParams(Handle, Handle, const KernelNode *);
int cudaProfilerStart(void), cudaProfilerStop(void);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static int ran_first, ran_second, ran_host;
static void run_first(const SoftLaunch *launch, void **args) { __atomic_add_fetch(&ran_first, 1, 5); }
static void run_second(const SoftLaunch *launch, void **args) { __atomic_add_fetch(&ran_second, 1, 5); }
static void run_host(void *data) { ran_host++; }
static void first(void) {}
static void second(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad;
static Handle stream;
static dim3 one = {1, 1, 1};
#define APART __attribute__((noinline))
APART Handle adds_kernel(Handle graph, void *kernel) {
  Handle node;
  KernelNode params = {kernel, one, one, 0, 0, 0};
  bad += cudaGraphAddKernelNode(&node, graph, 0, 0, &params);
  __asm__ volatile("");
  return node;
}
APART Handle adds_in_child(Handle graph) { Handle node = adds_kernel(graph, second); __asm__ volatile(""); return node; }
APART void adds_child(Handle graph, Handle child) { Handle node; bad += cudaGraphAddChildGraphNode(&node, graph, 0, 0, child); __asm__ volatile(""); }
APART void captures_first(void) { bad += cudaLaunchKernel((void *)first, one, one, 0, 0, stream); __asm__ volatile(""); }
APART void captures_second(void) { bad += cudaLaunchKernel((void *)second, one, one, 0, 0, stream); __asm__ volatile(""); }
static Handle graph(void) { Handle it; bad += cudaGraphCreate(&it, 0); return it; }
static Handle captured(void (*captures)(void)) {
  Handle it;
  bad += cudaStreamBeginCapture(stream, 0);
  captures();
  bad += cudaStreamEndCapture(stream, &it);
  return it;
}
static Handle executable(Handle graph) { Handle it; bad += cudaGraphInstantiate(&it, graph, 0); return it; }
static int launched;
static void launch(Handle executable, int n) { for (; n; n--) bad += cudaGraphLaunch(executable, stream), launched++; }
int main(int argc, char **argv) {
  int n = atoi(argv[1]), before = argc > 2 && !strcmp(argv[2], "before"), profiler = argc > 2 && !strcmp(argv[2], "profiler");
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, (char *)first, "_Z5firstv", "_Z5firstv", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(binary, (char *)second, "_Z6secondv", "_Z6secondv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z5firstv", run_first, 0, 0), softgpu_register_kernel_params("_Z6secondv", run_second, 0, 0);
  bad += cudaStreamCreate(&stream);

  Handle added = graph(), node = adds_kernel(added, first), adds = executable((adds_kernel(added, first), added));
  Handle child = graph(), parent = graph(), clone;
  adds_in_child(child), adds_kernel(parent, first), adds_child(parent, child);
  Handle parents = executable(parent);
  bad += cudaGraphClone(&clone, parent);
  Handle clones = executable(clone), empties = executable(graph()), host_graph = graph(), host_node;
  HostNode host = {run_host, 0};
  bad += cudaGraphAddHostNode(&host_node, host_graph, 0, 0, &host);
  Handle hosts = executable(host_graph), updated = executable(captured(captures_first)), other = captured(captures_second);
  if (before) printf("ready %d\n", getpid()), fflush(stdout), getchar();
  if (profiler) bad += cudaProfilerStart();
  launch(adds, n);
  KernelNode params = {second, one, one, 0, 0, 0};
  bad += cudaGraphExecKernelNodeSetParams(adds, node, &params);
  launch(adds, n), launch(parents, n), launch(clones, n), launch(empties, n), launch(hosts, n), launch(updated, n);
  UpdateInfo info = {99, 0, 0}, refused = {99, 0, 0};
  bad += cudaGraphExecUpdate(updated, other, &info);
  launch(updated, n);
  bad += cudaDeviceSynchronize();
  if (profiler) bad += cudaProfilerStop();
  // What CUDA refuses: another shape, and a graph in a capture, which ends it.
  int shape = cudaGraphExecUpdate(updated, added, &refused);
  bad += cudaStreamBeginCapture(stream, 0);
  int in_capture = cudaGraphLaunch(updated, stream), end = cudaStreamEndCapture(stream, &clone);
  bad += cudaDeviceSynchronize();
  printf("launched %d first %d second %d host %d; updated %d; refused %d %d, %d %d %d; bad %d\n", launched, ran_first, ran_second, ran_host,
         info.result, shape, refused.result, in_capture, end, clone != 0, bad);
  return bad != 0;
}
