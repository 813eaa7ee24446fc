// Sets memory: ALONE PINNED CAPTURED LAUNCHES. Sets 64 bytes of device memory to 6 ALONE times, 128 bytes of pinned
// memory to 2 PINNED times, and LAUNCHES times launches a graph that sets 32 bytes to 4 CAPTURED times.
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cudaMalloc(void **, size_t), cudaMallocHost(void **, size_t), cudaDeviceSynchronize(void), cudaStreamCreate(Handle *);
int cudaMemset(void *, int, size_t), cudaMemsetAsync(void *, int, size_t, Handle);
int cudaStreamBeginCapture(Handle, int), cudaStreamEndCapture(Handle, Handle *);
int cudaGraphInstantiate(Handle *, Handle, unsigned long long), cudaGraphLaunch(Handle, Handle);
int main(int argc, char **argv) {
  int alone = atoi(argv[1]), pinned = atoi(argv[2]), captured = atoi(argv[3]), launches = atoi(argv[4]), bad = 0;
  void *device, *host;
  Handle stream, graph, executable;
  bad |= cudaMalloc(&device, 4096) | cudaMallocHost(&host, 4096) | cudaStreamCreate(&stream);
  for (int i = 0; i < alone; i++) bad |= cudaMemset(device, 6, 64);
  for (int i = 0; i < pinned; i++) bad |= cudaMemsetAsync(host, 2, 128, stream);
  bad |= cudaStreamBeginCapture(stream, 0);
  for (int i = 0; i < captured; i++) bad |= cudaMemsetAsync(device, 4, 32, stream);
  bad |= cudaStreamEndCapture(stream, &graph) | cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < launches; i++) bad |= cudaGraphLaunch(executable, stream);
  bad |= cudaDeviceSynchronize();
  printf("bad %d\n", bad);
  return bad != 0;
}
