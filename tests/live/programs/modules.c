// Loads LOADS modules and as many libraries, looks a function up in each, and unloads UNLOADS of the modules. Prints how many it
// loaded and unloaded.
// flags: -L $SOFTGPU -lcuda
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *), cuModuleUnload(Handle);
int cuLibraryLoadData(Handle *, const void *, int *, void **, unsigned, int *, void **, unsigned), cuLibraryGetKernel(Handle *, Handle, const char *);
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z5quickv() { ret; }\n";

__attribute__((noinline)) int loads_a_module(Handle *module) { return cuModuleLoadData(module, ptx) | 0 * printf("%s", ""); }
__attribute__((noinline)) int loads_a_library(Handle *library) { return cuLibraryLoadData(library, ptx, 0, 0, 0, 0, 0, 0) | 0 * printf("%s", ""); }

int main(int argc, char **argv) {
  int loads = atoi(argv[1]), unloads = atoi(argv[2]), bad = 0;
  Handle context, function, modules[64], library;
  (void)argc;
  bad |= cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
  for (int i = 0; i < loads; i++) {
    bad |= loads_a_module(&modules[i]) | cuModuleGetFunction(&function, modules[i], "_Z5quickv");
    bad |= loads_a_library(&library) | cuLibraryGetKernel(&function, library, "_Z5quickv");
  }
  for (int i = 0; i < unloads; i++) bad |= cuModuleUnload(modules[i]);
  printf("loaded %d unloaded %d bytes %zu bad %d\n", 2 * loads, unloads, sizeof ptx - 1, bad);
  return bad;
}
