// Makes graphs of kernels that several functions capture, and launches them: N times each; C copies between a graph and
// its executable one. `one` captures a kernel, `two` captures two, `adds` adds a copy of memory; a copied graph has all.
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaMalloc(void **, size_t), cudaStreamCreate(Handle *), cudaDeviceSynchronize(void), cudaGraphClone(Handle *, Handle);
int cudaStreamBeginCapture(Handle, int), cudaStreamEndCapture(Handle, Handle *), cudaGraphInstantiate(Handle *, Handle, unsigned long long);
int cudaGraphLaunch(Handle, Handle), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, Handle), cudaMemsetAsync(void *, int, size_t, Handle);
int cudaGraphAddMemcpyNode1D(Handle *, Handle, const Handle *, size_t, void *, const void *, size_t, int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run(const SoftLaunch *launch, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad;
static Handle stream;
static void *memory;
static dim3 size = {1, 1, 1};
__attribute__((noinline)) void captures_one(void) { bad += cudaLaunchKernel((void *)step, size, size, 0, 0, stream); __asm__ volatile(""); }
__attribute__((noinline)) void captures_two(void) {
  bad += cudaLaunchKernel((void *)step, size, size, 0, 0, stream);
  bad += cudaLaunchKernel((void *)step, size, size, 0, 0, stream);
  __asm__ volatile("");
}
__attribute__((noinline)) void captures_memset(void) { bad += cudaMemsetAsync(memory, 0, 64, stream); __asm__ volatile(""); }
__attribute__((noinline)) void adds_copy(Handle graph) {
  Handle node;
  bad += cudaGraphAddMemcpyNode1D(&node, graph, 0, 0, memory, (char *)memory + 2048, 32, 3);
  __asm__ volatile("");
}
__attribute__((noinline)) Handle makes_executable(Handle graph) { Handle it; bad += cudaGraphInstantiate(&it, graph, 0); __asm__ volatile(""); return it; }
__attribute__((noinline)) void launches(Handle executable, int n) { for (; n; n--) bad += cudaGraphLaunch(executable, stream); __asm__ volatile(""); }
int main(int argc, char **argv) {
  int n = atoi(argv[1]), copies = atoi(argv[2]);
  Handle graph, copy;
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run, 0, 0);
  bad += cudaStreamCreate(&stream) | cudaMalloc(&memory, 4096) | cudaStreamBeginCapture(stream, 0);
  captures_one(), captures_two(), captures_memset();
  bad += cudaStreamEndCapture(stream, &graph);
  adds_copy(graph);
  for (; copies; copies--, graph = copy) bad += cudaGraphClone(&copy, graph);
  Handle first = makes_executable(graph), second = makes_executable(graph);
  launches(first, n), launches(second, n);
  captures_one();
  bad += cudaDeviceSynchronize();
  printf("launched %d bad %d\n", 2 * n, bad);
  return bad != 0;
}
