// Launches a kernel, then starts a thread that launches 50 and sleeps after each.
// flags: -O1 -rdynamic -L $SOFTGPU -lcudart -ldl -pthread
#include <pthread.h>
#include <stdio.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *), cudaDeviceSynchronize(void);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run(const SoftLaunch *launch, void **args) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static char kernel;
static int bad;
static void launch(void) {
  dim3 one = {1, 1, 1};
  bad |= cudaLaunchKernel(&kernel, one, one, 0, 0, 0) | cudaDeviceSynchronize();
}
static void *work(void *unused) {
  struct timespec pause = {0, 5000000};
  for (int i = 0; i < 50; i++) launch(), nanosleep(&pause, 0);
  return 0;
}
int main(void) {
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, &kernel, "_Z4workv", "_Z4workv", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z4workv", run, 0, 0);
  launch();
  pthread_t thread;
  pthread_create(&thread, 0, work, 0);
  pthread_join(thread, 0);
  return bad;
}
