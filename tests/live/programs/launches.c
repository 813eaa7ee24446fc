// Launches kernels of any name, as its arguments say, one after the other:
//   shape GRID BLOCK SHARED   further launches have GRID blocks of BLOCK threads with SHARED bytes of dynamic shared memory;
//                             GRID and BLOCK are a number, or three: `4,2,1`
//   launch NAME N             launches the kernel of that mangled name N times in the first stream, and waits
//   meet ONE TWO N            N times: launches ONE in the first stream and TWO in the second. Each runs until the other does too
// Prints how many it launched, and how many calls failed.
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef void *Handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaStreamCreate(Handle *), cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, Handle);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static struct { const char *name; char function; } kernels[16];
static void **binary;
static int bad, launched, arrived, wanted;
static void run(const SoftLaunch *launch, void **args) {
  if (!wanted || launch->block_idx[0]) return;
  __atomic_add_fetch(&arrived, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&arrived, __ATOMIC_SEQ_CST) < wanted) {}
}
static dim3 shape(const char *text) {
  dim3 it = {1, 1, 1};
  sscanf(text, "%u,%u,%u", &it.x, &it.y, &it.z);
  return it;
}
static const void *kernel(const char *name) {
  int at = 0;
  while (kernels[at].name && strcmp(kernels[at].name, name)) at++;
  if (!kernels[at].name) {
    kernels[at].name = name;
    __cudaRegisterFunction(binary, &kernels[at].function, (char *)name, name, -1, 0, 0, 0, 0, 0);
    softgpu_register_kernel_params(name, run, 0, 0);
  }
  return &kernels[at].function;
}
int main(int argc, char **argv) {
  binary = __cudaRegisterFatBinary(&fatbin);
  dim3 grid = {1, 1, 1}, block = {32, 1, 1};
  Handle one, two;
  bad += cudaStreamCreate(&one) | cudaStreamCreate(&two);
  unsigned dynamic = 0;
  for (int i = 1; i < argc; i += 4) {
    if (!strcmp(argv[i], "shape")) {
      grid = shape(argv[i + 1]), block = shape(argv[i + 2]), dynamic = atoi(argv[i + 3]);
    } else if (!strcmp(argv[i], "launch")) {
      for (int n = atoi(argv[i + 2]); n; n--, launched++) bad += cudaLaunchKernel(kernel(argv[i + 1]), grid, block, 0, dynamic, one) != 0;
      bad += cudaDeviceSynchronize() != 0;
      i--;
    } else if (!strcmp(argv[i], "meet")) {
      for (int n = atoi(argv[i + 3]); n; n--, launched += 2) {
        arrived = 0, wanted = 2;
        bad += cudaLaunchKernel(kernel(argv[i + 1]), grid, block, 0, dynamic, one) != 0;
        bad += cudaLaunchKernel(kernel(argv[i + 2]), grid, block, 0, dynamic, two) != 0;
        bad += cudaDeviceSynchronize() != 0;
        wanted = 0;
      }
    } else {
      return 2;
    }
  }
  printf("launched %d bad %d\n", launched, bad);
  return bad != 0;
}
