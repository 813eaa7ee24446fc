// The driver API alone: no CUDA runtime in the process.
//
//   g++ -O2 -fno-omit-frame-pointer -I$CUDA/include -o driver driver.cpp -L$CUDA/lib64/stubs -lcuda ;  ./driver [LAUNCHES]
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#define CHECK(x) do { CUresult r_ = (x); if (r_ != CUDA_SUCCESS) { const char *s_ = 0; cuGetErrorString(r_, &s_); fprintf(stderr, "%s: %s\n", #x, s_); exit(1); } } while (0)
static const char *ptx = ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry increment(.param .u64 p) {\n.reg .u64 %a<3>; .reg .u32 %r<3>;\n"
  "ld.param.u64 %a1, [p];\ncvta.to.global.u64 %a2, %a1;\natom.global.add.u32 %r1, [%a2], 1;\nret;\n}\n";
int main(int argc, char **argv) {
  int launches = argc > 1 ? atoi(argv[1]) : 1000; CUdevice d; CUcontext c; CUmodule m; CUfunction f; CUdeviceptr p; unsigned n = 0;
  CHECK(cuInit(0)); CHECK(cuDeviceGet(&d, 0)); CHECK(cuDevicePrimaryCtxRetain(&c, d)); CHECK(cuCtxSetCurrent(c)); CHECK(cuModuleLoadData(&m, ptx)); CHECK(cuModuleGetFunction(&f, m, "increment"));
  CHECK(cuMemAlloc(&p, 4)); CHECK(cuMemsetD32(p, 0, 1)); void *args[] = {&p};
  for (int i = 0; i < launches; i++) { if (i % 2) { CUlaunchConfig l = {}; l.gridDimX = l.gridDimY = l.gridDimZ = l.blockDimX = l.blockDimY = l.blockDimZ = 1; CHECK(cuLaunchKernelEx(&l, f, args, 0)); } else CHECK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, args, 0)); }
  CHECK(cuCtxSynchronize()); CHECK(cuMemcpyDtoH(&n, p, 4)); printf("{\"launches\": %d, \"ran\": %u}\n", launches, n); return n != (unsigned)launches;
}
