// Launches kernels at places, as its arguments say, one after the other; at the end it prints how many it launched
// on each GPU, by UUID, and with how many results other than 0.
//   device N          selects a GPU
//   stream KIND       selects `null`, the thread's own (`thread`), a `new` one, or a new one of `high` priority: -3
//   one N, two N      launches N kernels `_Z3onev` or `_Z3twov` in the stream
//   graph N           launches N times, in the stream, a graph of two kernels `_Z3twov`
//   late N            N times: sleeps, launches `_Z3onev` and waits for it, in the function `late`; `prompt N` does
//                     not sleep
//   wait              waits for the GPU
// flags: -L $SOFTGPU -lcudart -ldl
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
int cudaSetDevice(int), cudaGetDeviceProperties(void *, int), cudaDeviceSynchronize(void);
int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *);
int cudaStreamCreate(void **), cudaStreamCreateWithPriority(void **, unsigned, int), cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
static void run(const SoftLaunch *launch, void **args) {}
static void one(void) {}
static void two(void) { __asm__ volatile(""); }
static struct { int magic, version; const void *data; void *file; } fatbin = {0x466243b1, 1, "", 0};
static int bad, device, launched[16];
static void *stream;

__attribute__((noinline)) void launch(const void *kernel, int n) {
  dim3 size = {1, 1, 1};
  for (int i = 0; i < n; i++, launched[device]++) bad += cudaLaunchKernel(kernel, size, size, 0, 0, stream) != 0;
}
static void nap(void) { struct timespec t = {0, 3000000}; nanosleep(&t, 0); }
__attribute__((noinline)) void late(int n) { for (; n; n--) nap(), launch((void *)one, 1), bad += cudaDeviceSynchronize(); __asm__ volatile(""); }
__attribute__((noinline)) void prompt(int n) { for (; n; n--) launch((void *)one, 1), bad += cudaDeviceSynchronize(); __asm__ volatile(""); }
static void launch_graph(int n) {
  void *capturing, *graph, *executable;
  dim3 size = {1, 1, 1};
  bad += cudaStreamCreate(&capturing) | cudaStreamBeginCapture(capturing, 0);
  bad += cudaLaunchKernel((void *)two, size, size, 0, 0, capturing) | cudaLaunchKernel((void *)two, size, size, 0, 0, capturing);
  bad += cudaStreamEndCapture(capturing, &graph) | cudaGraphInstantiate(&executable, graph, 0);
  for (int i = 0; i < n; i++, launched[device] += 2) bad += cudaGraphLaunch(executable, stream) != 0;
}
static void select_stream(const char *kind) {
  if (!strcmp(kind, "null")) stream = 0;
  else if (!strcmp(kind, "thread")) stream = (void *)2;
  else if (!strcmp(kind, "high")) bad += cudaStreamCreateWithPriority(&stream, 0, -3) != 0;
  else bad += cudaStreamCreate(&stream) != 0;
}
static void tell(void) {
  static unsigned char properties[4096];
  for (int at = 0; at < 16; at++) {
    if (!launched[at]) continue;
    bad += cudaGetDeviceProperties(properties, at) != 0;
    printf("GPU");
    for (int i = 0; i < 16; i++) printf("%s%02x", i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", properties[256 + i]);
    printf(" %d\n", launched[at]);
  }
  printf("bad %d\n", bad);
}
int main(int argc, char **argv) {
  void **binary = __cudaRegisterFatBinary(&fatbin);
  __cudaRegisterFunction(binary, (char *)one, "_Z3onev", "_Z3onev", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(binary, (char *)two, "_Z3twov", "_Z3twov", -1, 0, 0, 0, 0, 0);
  softgpu_register_kernel_params("_Z3onev", run, 0, 0);
  softgpu_register_kernel_params("_Z3twov", run, 0, 0);
  for (int i = 1; i < argc; i++) {
    const char *what = argv[i];
    if (!strcmp(what, "device")) bad += cudaSetDevice(device = atoi(argv[++i])) != 0, stream = 0;
    else if (!strcmp(what, "stream")) select_stream(argv[++i]);
    else if (!strcmp(what, "one")) launch((void *)one, atoi(argv[++i]));
    else if (!strcmp(what, "two")) launch((void *)two, atoi(argv[++i]));
    else if (!strcmp(what, "graph")) launch_graph(atoi(argv[++i]));
    else if (!strcmp(what, "late")) late(atoi(argv[++i]));
    else if (!strcmp(what, "prompt")) prompt(atoi(argv[++i]));
    else if (!strcmp(what, "wait")) bad += cudaDeviceSynchronize() != 0;
    else return 2;
  }
  for (int at = 0; at < 16; at++) if (launched[at]) bad += cudaSetDevice(at) != 0 || cudaDeviceSynchronize() != 0;
  tell();
  return bad != 0;
}
