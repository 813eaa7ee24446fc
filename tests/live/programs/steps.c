// A program with faults: STEPS. In each step it waits for the device (wait_in_step) and keeps 1 MiB (keep_batch), while
// what load_batch allocates is freed; every fourth step frees memory twice (free_twice), and goes on.
// flags: -rdynamic -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cudaMalloc(void **, size_t), cudaFree(void *), cudaDeviceSynchronize(void), cudaStreamCreate(Handle *);
int cudaMemcpy(void *, const void *, size_t, int), cudaEventCreate(Handle *), cudaEventSynchronize(Handle);
#define KEPT __attribute__((noinline)) void
static void *last;
KEPT keep_batch(void) { if (cudaMalloc(&last, 1 << 20)) exit(1); asm volatile("" ::: "memory"); }
KEPT load_batch(void) {
  void *batch;
  if (cudaMalloc(&batch, 4 << 20) || cudaFree(batch)) exit(1);
  asm volatile("" ::: "memory");
}
KEPT free_twice(void) {
  void *memory;
  if (cudaMalloc(&memory, 1 << 10) || cudaFree(memory)) exit(1);
  if (cudaFree(memory) == 0) exit(1);
  asm volatile("" ::: "memory");
}
KEPT wait_in_step(void) { if (cudaDeviceSynchronize()) exit(1); asm volatile("" ::: "memory"); }
int main(int argc, char **argv) {
  int steps = atoi(argv[1]);
  Handle stream, event;
  if (cudaStreamCreate(&stream) || cudaEventCreate(&event)) return 1;
  for (int i = 0; i < steps; i++) {
    load_batch();
    keep_batch();
    wait_in_step();
    if (i % 4 == 0) free_twice();
  }
  if (cudaEventSynchronize(event)) return 1;
  printf("steps %d\n", steps);
  return 0;
}
