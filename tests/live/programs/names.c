// Launches NAMES kernels of different names, each LENGTH characters long and ending in its number, twice:
//   names NAMES LENGTH [stop]   `stop`: its parent is stopped meanwhile
// flags: -L $SOFTGPU -lcudart -ldl
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaDeviceSynchronize(void), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run_step(const SoftLaunch *c, void **args) {}
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
int main(int argc, char **argv) {
  int names = atoi(argv[1]), length = atoi(argv[2]), bad = 0;
  char *functions = malloc(names);
  dim3 one = {1, 1, 1};
  void **binary = __cudaRegisterFatBinary(&fatbin);
  for (int i = 0; i < names; i++) {
    char *name = malloc(length + 1);
    memset(name, 'a' + i % 26, length);
    // The number is at the end: names must not be told apart by their beginnings alone.
    sprintf(name + length - 6, "%06d", i);
    __cudaRegisterFunction(binary, &functions[i], name, name, -1, 0, 0, 0, 0, 0);
    softgpu_register_kernel_params(name, run_step, 0, 0);
  }
  bad |= cudaDeviceSynchronize();
  if (argc > 3) kill(getppid(), SIGSTOP);
  for (int round = 0; round < 2; round++)
    for (int i = 0; i < names; i++) bad |= cudaLaunchKernel(&functions[i], one, one, 0, 0, 0);
  bad |= cudaDeviceSynchronize();
  if (argc > 3) kill(getppid(), SIGCONT);
  printf("names %d, bad %d\n", names, bad);
  return bad;
}
