// Copies BATCHES batches to the GPU: images from pinned memory, labels from memory that was meant to be pinned and is
// not. Says how many copies of each kind it made, and their bytes.
// flags: -g -fno-omit-frame-pointer -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
enum { IMAGES = 4096, LABELS = 1 << 22 };
int cudaMalloc(void **, size_t), cudaMallocHost(void **, size_t), cudaDeviceSynchronize(void), cudaStreamCreate(Handle *);
int cudaMemcpyAsync(void *, const void *, size_t, int, Handle);
static char *device, *images, *labels;
static Handle stream;
__attribute__((noinline)) static int upload_images(void) { int bad = cudaMemcpyAsync(device, images, IMAGES, 1, stream); return bad + 0; }
__attribute__((noinline)) static int upload_labels(void) { int bad = cudaMemcpyAsync(device, labels, LABELS, 1, stream); return bad + 0; }
int main(int argc, char **argv) {
  int batches = argc > 1 ? atoi(argv[1]) : 10, bad = 0;
  bad |= cudaMalloc((void **)&device, LABELS) | cudaMallocHost((void **)&images, IMAGES) | cudaStreamCreate(&stream);
  labels = calloc(LABELS, 1);
  for (int i = 0; i < batches; i++) bad |= upload_images() | upload_labels();
  bad |= cudaDeviceSynchronize();
  printf("pinned %d %d pageable %d %d bad %d\n", batches, batches * IMAGES, batches, batches * LABELS, bad);
  return bad;
}
