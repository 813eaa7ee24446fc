// Has the GPU and the CPU touch ALLOCATIONS managed allocations of BYTES bytes in turn, TURNS times. Prints how many bytes that is.
// flags: -L $SOFTGPU -lcuda -ldl -g -fno-omit-frame-pointer
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle), cuCtxSynchronize(void);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuMemAllocManaged(uint64_t *, size_t, unsigned), cuMemFree_v2(uint64_t);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static void quick(const void *launch, void **args) { (void)launch, (void)args; }

int main(int argc, char **argv) {
  int n = atoi(argv[1]), turns = atoi(argv[3]), bad = cuInit(0);
  size_t bytes = strtoull(argv[2], 0, 10);
  Handle context, module, kernel;
  uint64_t memory[64];
  (void)argc;
  void (*known)(const char *, void *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softgpu_register_kernel");
  known("_Z5quickv", quick);
  bad |= cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
  bad |= cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.visible .entry _Z5quickv() { ret; }\n");
  bad |= cuModuleGetFunction(&kernel, module, "_Z5quickv");
  for (int i = 0; i < n; i++) bad |= cuMemAllocManaged(&memory[i], bytes, 1);
  for (int i = 0; i < turns; i++) bad |= cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) | cuCtxSynchronize();
  printf("bytes %zu first %llu bad %d\n", n * turns * bytes, (unsigned long long)memory[0], bad);
  for (int i = 0; i < n; i++) bad |= cuMemFree_v2(memory[i]);
  return bad;
}
