// Uses the CUDA runtime: MALLOCS FREES COPIES SLOW QUICK [SIGNAL, sent to itself after the launches]; the kernels are `slow` (30 ms each) and `quick<int>`.
// flags: -L $SOFTGPU -lcudart -ldl
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaMemcpy(void *, const void *, size_t, int), cudaDeviceSynchronize(void);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_slow(const SoftLaunch *c, void **args) { struct timespec t = {0, 30000000}; nanosleep(&t, 0); }
static void run_quick(const SoftLaunch *c, void **args) {}
static void slow(void) {}
static void quick(void) { __asm__ volatile(""); }
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static dim3 grid = {2, 1, 1}, block = {32, 1, 1};
__attribute__((noinline)) int launch_slow(void) { int r = cudaLaunchKernel((void *)slow, grid, block, 0, 0, 0); __asm__ volatile(""); return r; }
__attribute__((noinline)) int launch_quick(void) { int r = cudaLaunchKernel((void *)quick, grid, block, 0, 0, 0); __asm__ volatile(""); return r; }
int main(int argc, char **argv) {
  int mallocs = atoi(argv[1]), frees = atoi(argv[2]), copies = atoi(argv[3]), slows = atoi(argv[4]), quicks = atoi(argv[5]), bad = 0;
  void **binary = __cudaRegisterFatBinary(&fatbin), *pointers[1000]; char host[64] = {0};
  __cudaRegisterFunction(binary, (char *)slow, "_Z4slowv", "_Z4slowv", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(binary, (char *)quick, "_Z5quickIiEvT_", "_Z5quickIiEvT_", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4slowv", run_slow, 0, 0);
  softgpu_register_kernel_params("_Z5quickIiEvT_", run_quick, 0, 0);
  for (int i = 0; i < mallocs; i++) bad |= cudaMalloc(&pointers[i], 64);
  for (int i = 0; i < copies; i++) bad |= cudaMemcpy(pointers[0], host, 64, 1);
  for (int i = 0; i < slows; i++) bad |= launch_slow();
  for (int i = 0; i < quicks; i++) bad |= launch_quick();
  bad |= cudaDeviceSynchronize();
  if (argc > 6) raise(atoi(argv[6]));
  for (int i = 0; i < frees; i++) bad |= cudaFree(pointers[i]);
  printf("bad %d\n", bad);
  return bad != 0;
}
