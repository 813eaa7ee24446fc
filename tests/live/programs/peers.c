// Copies from the first GPU to the second and back, and checks what arrives. With an argument, the GPUs access each
// other's memory directly; without it, CUDA copies through memory of the host.
// flags: -L $SOFTGPU -lcudart -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
typedef void *Handle;
int cudaSetDevice(int), cudaMalloc(void **, size_t), cudaMemcpyPeer(void *, int, const void *, int, size_t), cudaMemcpy(void *, const void *, size_t, int);
int cudaStreamCreate(Handle *), cudaStreamSynchronize(Handle), cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, Handle);
static int access_each_other(void) {
  int (*enable)(int, unsigned) = (int (*)(int, unsigned))dlsym(RTLD_DEFAULT, "cudaDeviceEnablePeerAccess");
  return !enable || cudaSetDevice(0) || enable(1, 0) || cudaSetDevice(1) || enable(0, 0);
}
int main(int argc, char **argv) {
  (void)argv;
  char *a, *b, text[100] = "from the first to the second", back[100] = "";
  Handle stream;
  if (argc > 1 && access_each_other()) return puts("no access between the GPUs"), 3;
  int bad = cudaSetDevice(0) | cudaMalloc((void **)&a, 100) | cudaSetDevice(1) | cudaMalloc((void **)&b, 100) | cudaStreamCreate(&stream);
  bad |= cudaMemcpy(a, text, 100, 1);
  for (int i = 0; i < 3; i++) bad |= cudaMemcpyPeer(b, 1, a, 0, 100);
  for (int i = 0; i < 2; i++) bad |= cudaMemcpyPeerAsync(a, 0, b, 1, 50, stream);
  bad |= cudaStreamSynchronize(stream) | cudaMemcpy(back, b, 100, 2) | strcmp(text, back);
  printf("bad %d\n", bad);
  return bad;
}
