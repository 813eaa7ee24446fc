// Captures a graph of NODES kernels, a quarter of them below one function and the others below another one, and launches it
// TIMES times: NODES TIMES. Prints how many kernels that makes.
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_step(const SoftLaunch *c, void **args) {}
static void step(void) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad;
static void *stream;
__attribute__((noinline)) static void odd(void) { dim3 one = {1, 1, 1}; bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, stream); __asm__ volatile(""); }
__attribute__((noinline)) static void even(void) { dim3 one = {1, 1, 1}; bad |= cudaLaunchKernel((void *)step, one, one, 0, 0, stream); __asm__ volatile(""); }
int main(int argc, char **argv) {
  int nodes = atoi(argv[1]), times = atoi(argv[2]);
  __cudaRegisterFunction(__cudaRegisterFatBinary(&fatbin), (char *)step, "_Z4stepv", "_Z4stepv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4stepv", run_step, 0, 0);
  void *graph, *exec;
  bad |= cudaStreamCreate(&stream) | cudaStreamBeginCapture(stream, 1);
  for (int i = 0; i < nodes; i++) if (i % 4) odd(); else even();
  bad |= cudaStreamEndCapture(stream, &graph) | cudaGraphInstantiate(&exec, graph, 0);
  for (int i = 0; i < times; i++) bad |= cudaGraphLaunch(exec, stream);
  bad |= cudaStreamSynchronize(stream);
  printf("nodes %d, bad %d\n", nodes * times, bad);
  return bad;
}
