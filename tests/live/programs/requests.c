// Handles requests 1 to REQUESTS: handle_request(ID) copies a batch to the GPU, launches a kernel and waits. Request SLOW
// also copies 40 MiB back, in 40 copies. Prints how many requests it has handled, and how many calls failed.
// flags: -O1 -rdynamic -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
enum { BATCH = 4096, RESULT = 1 << 20 };
int cudaMalloc(void **, size_t), cudaMallocHost(void **, size_t), cudaStreamCreate(Handle *), cudaStreamSynchronize(Handle);
int cudaMemcpyAsync(void *, const void *, size_t, int, Handle), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, Handle);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run(const SoftLaunch *launch, void **args) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static char *device, *host, kernel;
static Handle stream;
static int slow, bad;
__attribute__((noinline)) void handle_request(int id) {
  dim3 size = {1, 1, 1};
  bad += cudaMemcpyAsync(device, host, BATCH, 1, stream) | cudaLaunchKernel(&kernel, size, size, 0, 0, stream);
  for (int i = 0; id == slow && i < 40; i++) bad += cudaMemcpyAsync(host, device, RESULT, 2, stream);
  bad += cudaStreamSynchronize(stream);
}
int main(int argc, char **argv) {
  int requests = atoi(argv[1]);
  slow = atoi(argv[2]);
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, &kernel, "_Z5inferv", "_Z5inferv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z5inferv", run, 0, 0);
  bad += cudaMalloc((void **)&device, RESULT) | cudaMallocHost((void **)&host, RESULT) | cudaStreamCreate(&stream);
  for (int id = 1; id <= requests; id++) handle_request(id);
  printf("handled %d bad %d\n", requests, bad);
  return bad != 0;
}
