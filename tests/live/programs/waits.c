// Waits for kernels: STEPS times for a stream, the device, a copy and an event, each while a kernel runs there that ends
// only once the thread waits; behind the event another kernel is launched. Then waits for a stream where nothing runs. Prints the number of waits of each kind.
// flags: -L $SOFTGPU -lcudart -lcuda
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef void *Handle;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
unsigned softgpu_waiting_threads(void);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
int cudaMalloc(void **, size_t), cudaStreamCreateWithFlags(Handle *, unsigned), cudaStreamSynchronize(Handle), cudaStreamQuery(Handle), cudaDeviceSynchronize(void);
int cudaMemcpy(void *, const void *, size_t, int), cudaEventCreate(Handle *), cudaEventRecord(Handle, Handle), cudaEventSynchronize(Handle);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z4heldv() { ret; }\n.visible .entry _Z5quickv() { ret; }\n";

// Runs until the program waits.
static void held(const SoftLaunch *launch, void **args) {
  while (!softgpu_waiting_threads()) usleep(100);
}
static void quick(const SoftLaunch *launch, void **args) {}

int main(int argc, char **argv) {
  int steps = atoi(argv[1]), bad = 0;
  Handle module, long_one, short_one, a, b, idle, event;
  void *memory;
  char text[64] = "";
  (void)argc;
  softgpu_register_kernel_params("_Z4heldv", held, 0, 0), softgpu_register_kernel_params("_Z5quickv", quick, 0, 0);
  bad |= cudaMalloc(&memory, 64) | cudaStreamCreateWithFlags(&a, 1) | cudaStreamCreateWithFlags(&b, 1) | cudaStreamCreateWithFlags(&idle, 1);
  bad |= cuModuleLoadData(&module, ptx) | cuModuleGetFunction(&long_one, module, "_Z4heldv") | cuModuleGetFunction(&short_one, module, "_Z5quickv");
  bad |= cudaEventCreate(&event);
#define LAUNCH(kernel, stream) bad |= cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
  for (int i = 0; i < steps; i++) {
    LAUNCH(short_one, b), LAUNCH(long_one, a), bad |= cudaStreamSynchronize(a);
    LAUNCH(long_one, b), bad |= cudaDeviceSynchronize();
    LAUNCH(long_one, 0), bad |= cudaMemcpy(memory, text, sizeof text, 1);
    LAUNCH(long_one, a), bad |= cudaEventRecord(event, a);
    LAUNCH(short_one, a), bad |= cudaEventSynchronize(event);
    bad |= cudaStreamSynchronize(idle);
  }
  while (cudaStreamQuery(a)) usleep(100); // No wait, but the last kernel has ended.
  printf("steps %d bad %d\n", steps, bad);
  return bad;
}
